//! Parsers of single values. Each returns the value, or a [`Fault`] with the allowed values.

use crate::{Entry, Fault, Node, ScalarKind, Value};

/// Parses any text, on one or more lines.
pub fn text(node: &Node) -> Result<String, Fault> {
    node.scalar().map(|scalar| scalar.text.clone()).ok_or_else(|| Fault::new(node, "a text"))
}

/// Parses a text of at least one character, and removes blanks around it.
pub fn word(node: &Node) -> Result<String, Fault> {
    match text(node)?.trim() {
        "" => Err(Fault::new(node, "a text that is not empty")),
        word => Ok(word.to_owned()),
    }
}

pub fn boolean(node: &Node) -> Result<bool, Fault> {
    match node.scalar().map(|scalar| scalar.kind) {
        Some(ScalarKind::Boolean(value)) => Ok(value),
        _ => Err(Fault::new(node, "true or false")),
    }
}

/// Parses an integer within inclusive bounds, both of which `T` can hold.
pub fn integer<T: TryFrom<i64>>(node: &Node, least: i64, most: i64) -> Result<T, Fault> {
    let fault = || Fault::new(node, format!("an integer from {least} to {most}, without quotes"));
    match node.scalar().map(|scalar| scalar.kind) {
        Some(ScalarKind::Integer(value)) if (least..=most).contains(&value) => {
            value.try_into().map_err(|_| fault())
        }
        Some(ScalarKind::Integer(_)) => Err(fault().saying(format!("must be {least} to {most}"))),
        _ => Err(fault()),
    }
}

/// Parses an amount of memory in bytes, with its unit, a multiple of 1024: `500MB`, `1.5 GB`.
pub fn memory(node: &Node) -> Result<u64, Fault> {
    let fault = || Fault::new(node, "a size with its unit: \"500MB\", \"1.5GB\"");
    let text =
        node.scalar().map(|scalar| scalar.text.trim().to_ascii_lowercase()).unwrap_or_default();
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "kb" => 1u64 << 10,
        "mb" => 1 << 20,
        "gb" => 1 << 30,
        "tb" => 1 << 40,
        _ => return Err(fault()),
    };
    let count: f64 = digits.trim_end().parse().map_err(|_| fault())?;
    let bytes = count * factor as f64;
    // Signed 64 bits, because other software reads numbers of JSON so.
    if (1.0..i64::MAX as f64).contains(&bytes) { Ok(bytes as u64) } else { Err(fault()) }
}

/// Parses one of a few names, in upper or lower case. `names` are lower case.
pub fn choice<T: Copy>(node: &Node, names: &[(&str, T)]) -> Result<T, Fault> {
    let text = node.scalar().map(|scalar| scalar.text.trim().to_lowercase());
    match names.iter().find(|(name, _)| text.as_deref() == Some(*name)) {
        Some((_, value)) => Ok(*value),
        None => Err(Fault::new(
            node,
            names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        )),
    }
}

pub fn list<'a>(node: &'a Node, allowed: &str) -> Result<&'a [Node], Fault> {
    if let Value::List(items) = &node.value { Ok(items) } else { Err(Fault::new(node, allowed)) }
}

pub fn mapping<'a>(node: &'a Node, allowed: &str) -> Result<&'a [Entry], Fault> {
    if let Value::Mapping(entries) = &node.value {
        Ok(entries)
    } else {
        Err(Fault::new(node, allowed))
    }
}

/// Parses a name that can be part of `${{inputs.NAME}}` and of a command line.
pub fn name(node: &Node) -> Result<String, Fault> {
    let name = text(node)?;
    let legal = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
    match name.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
        && name.chars().all(legal)
    {
        true => Ok(name),
        false => Err(Fault::new(
            node,
            "letters, digits, `_`, `-` and `.`, beginning with a letter, a digit or `_`",
        )),
    }
}

/// Parses the key of an entry as a [`name`].
pub fn key_name(entry: &Entry) -> Result<String, Fault> {
    name(&Node::text(entry.location, &entry.key))
}
