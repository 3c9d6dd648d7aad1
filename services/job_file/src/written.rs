//! Writes entries of a document as YAML that reads as the same entries.

use crate::{Entry, Node, Scalar, ScalarKind, Value};

/// Returns a mapping as the text of a document.
pub fn yaml(entries: &[Entry]) -> String {
    let mut text = String::new();
    mapping(entries, 0, &mut text);
    text
}

fn mapping(entries: &[Entry], depth: usize, text: &mut String) {
    for entry in entries {
        text.push_str(&"  ".repeat(depth));
        text.push_str(&quoted(&entry.key));
        text.push(':');
        below(&entry.node, depth, text);
    }
}

/// Writes a value after a key or a dash.
fn below(node: &Node, depth: usize, text: &mut String) {
    match &node.value {
        Value::Scalar(value) => {
            text.push(' ');
            text.push_str(&scalar(value));
            text.push('\n');
        }
        Value::List(items) if items.is_empty() => text.push_str(" []\n"),
        Value::Mapping(entries) if entries.is_empty() => text.push_str(" {}\n"),
        Value::List(items) => {
            text.push('\n');
            for item in items {
                text.push_str(&"  ".repeat(depth + 1));
                text.push('-');
                below(item, depth + 1, text);
            }
        }
        Value::Mapping(entries) => {
            text.push('\n');
            mapping(entries, depth + 1, text);
        }
    }
}

fn scalar(scalar: &Scalar) -> String {
    match scalar.kind {
        ScalarKind::Null => "null".to_owned(),
        ScalarKind::Boolean(_) | ScalarKind::Integer(_) | ScalarKind::Float(_) => {
            scalar.text.clone()
        }
        ScalarKind::Text => quoted(&scalar.text),
    }
}

/// Quotes a text unless it reads as itself without quotes.
fn quoted(text: &str) -> String {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "_-./".contains(character);
    let is_text = || match Node::plain(crate::Location::File, text).scalar() {
        Some(scalar) => scalar.kind == ScalarKind::Text,
        None => false,
    };
    match text.starts_with(|first: char| first.is_ascii_alphabetic() || "_./".contains(first))
        && text.chars().all(is_plain)
        && is_text()
    {
        true => text.to_owned(),
        false => serde_json::Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Problems, yaml as reader};

    #[test]
    fn written_document_reads_as_the_same() {
        let text = "a: 1\nb: '1'\nc: [x, 'y: z', {k: true, l: null}]\nd: {'e f': \"line\\nbreak \\u00e9\"}\ng: ''\nh: 1.50\ni: []\n";
        let problems = Problems::default();
        let entries = reader::read(text, &problems).expect("YAML");
        let again = reader::read(&yaml(&entries), &problems).expect("YAML");
        assert!(problems.is_empty());
        assert_eq!(yaml(&again), yaml(&entries));
        let kinds = |entries: &[Entry]| {
            format!("{entries:?}").replace(|character: char| character.is_ascii_digit(), "")
        };
        assert_eq!(kinds(&again), kinds(&entries));
    }
}
