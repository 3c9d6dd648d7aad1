//! Reading one mapping of the file: known keys through a value parser each, unknown ones with a suggestion.
//!
//! A key without a value (`description:`) is a key that is not there, as `None` was in the original.

use super::keys;
use super::problem::{Fault, Place, Problems, nearest};
use super::yaml::{Entry, Node, ScalarKind, Value};

/// A mapping of the file and where it is.
pub struct Section<'a> {
    /// Its path with a dot behind it, `inputs[0].`; empty at the top.
    prefix: String,
    /// Where it begins, for what is missing in it.
    place: Place,
    entries: &'a [Entry],
}

/// A value read from the file or the command line, with where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given<T> {
    /// Where it stands.
    pub place: Place,
    /// The value.
    pub value: T,
}

impl<'a> Section<'a> {
    /// The whole file.
    pub fn top(entries: &'a [Entry]) -> Self {
        Self { prefix: String::new(), place: Place::File, entries }
    }

    /// A mapping inside the file, named by its path.
    pub fn nested(path: &str, place: Place, entries: &'a [Entry]) -> Self {
        Self { prefix: format!("{path}."), place, entries }
    }

    /// The name of a key as the user is told it.
    pub fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Where the section begins.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The value of a key, unless there is none.
    pub fn get(&self, key: &str) -> Option<&'a Node> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node).filter(|node| !node.is_null())
    }

    /// Where a key stands, even without a value; the section where it is not given.
    pub fn place_of(&self, key: &str) -> Place {
        self.entries.iter().find(|entry| entry.key == key).map_or(self.place, |entry| entry.place)
    }

    /// The parsed value of a key. `None`: not given, or wrong and recorded as a problem.
    pub fn read<T>(
        &self,
        key: &str,
        problems: &mut Problems,
        parse: impl FnOnce(&Node) -> Result<T, Fault>,
    ) -> Option<Given<T>> {
        let node = self.get(key)?;
        match parse(node) {
            Ok(value) => Some(Given { place: node.place, value }),
            Err(fault) => {
                problems.add(node.place, &self.path(key), fault);
                None
            }
        }
    }

    /// As [`Section::read`], without where it stands.
    pub fn value<T>(
        &self,
        key: &str,
        problems: &mut Problems,
        parse: impl FnOnce(&Node) -> Result<T, Fault>,
    ) -> Option<T> {
        self.read(key, problems, parse).map(|given| given.value)
    }

    /// As [`Section::read`]; without a value there is a problem. `allowed` says what would be.
    pub fn required<T>(
        &self,
        key: &str,
        problems: &mut Problems,
        fault: Fault,
        parse: impl FnOnce(&Node) -> Result<T, Fault>,
    ) -> Option<Given<T>> {
        if self.get(key).is_none() {
            problems.add(self.place_of(key), &self.path(key), fault);
            return None;
        }
        self.read(key, problems, parse)
    }

    /// Reports every key that is not one of `known`.
    pub fn reject_unknown(&self, known: &[&str], problems: &mut Problems) {
        for entry in self.entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let (hint, allowed) = match (keys::hint(&entry.key), nearest(&entry.key, known.iter().copied())) {
                (Some(hint), _) => (format!("; {hint}"), known.join(", ")),
                (None, Some(key)) => (format!("; did you mean {key:?}?"), key.to_owned()),
                (None, None) => (String::new(), known.join(", ")),
            };
            let fault = Fault::of(format!("{:?}", entry.key), allowed);
            problems.add(entry.place, &self.path(&entry.key), fault.saying(format!("unknown key{hint}")));
        }
    }
}

/// Any text, on one or more lines.
pub fn text(node: &Node) -> Result<String, Fault> {
    node.scalar().map(|scalar| scalar.text.clone()).ok_or_else(|| Fault::new(node, "a text"))
}

/// A text of at least one character, without blanks around it.
pub fn word(node: &Node) -> Result<String, Fault> {
    match text(node)?.trim() {
        "" => Err(Fault::new(node, "a text that is not empty")),
        word => Ok(word.to_owned()),
    }
}

/// `true` or `false`.
pub fn boolean(node: &Node) -> Result<bool, Fault> {
    match node.scalar().map(|scalar| scalar.kind) {
        Some(ScalarKind::Boolean(value)) => Ok(value),
        _ => Err(Fault::new(node, "true or false")),
    }
}

/// A whole number within bounds.
pub fn integer(node: &Node, least: i64, most: i64) -> Result<i64, Fault> {
    match node.scalar().map(|scalar| scalar.kind) {
        Some(ScalarKind::Integer(value)) if (least..=most).contains(&value) => Ok(value),
        _ => Err(Fault::new(node, format!("an integer from {least} to {most}, without quotes"))),
    }
}

/// One of a few names, in any case; `names` are lower case.
pub fn choice<T: Copy>(node: &Node, names: &[(&str, T)]) -> Result<T, Fault> {
    let text = node.scalar().map(|scalar| scalar.text.trim().to_lowercase());
    match names.iter().find(|(name, _)| text.as_deref() == Some(*name)) {
        Some((_, value)) => Ok(*value),
        None => Err(Fault::new(node, names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))),
    }
}

/// A list.
pub fn list<'a>(node: &'a Node, allowed: &str) -> Result<&'a [Node], Fault> {
    if let Value::List(items) = &node.value { Ok(items) } else { Err(Fault::new(node, allowed)) }
}

/// A mapping.
pub fn mapping<'a>(node: &'a Node, allowed: &str) -> Result<&'a [Entry], Fault> {
    if let Value::Mapping(entries) = &node.value { Ok(entries) } else { Err(Fault::new(node, allowed)) }
}
