//! A document as a tree: every key and value with its location, every scalar with its text as written.

use saphyr::{Scalar as Typed, ScalarStyle};
use saphyr_parser::Tag;

/// The place where a key or a value was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The file as a whole, for absent keys.
    File,
    /// A line of the file, counted from 1.
    Line(usize),
    /// A line of another file that the file refers to: its number among them, and the line.
    Other(u16, usize),
    /// A `--set key=value` of the command line.
    Override,
    /// An `--input` of the command line.
    Input,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub location: Location,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    /// Keys in the order of the file, each once.
    Mapping(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    pub location: Location,
    pub node: Node,
}

/// A single value, as written and as YAML understands it.
#[derive(Clone, Debug)]
pub struct Scalar {
    /// The text as written, without quotes.
    pub text: String,
    pub kind: ScalarKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarKind {
    /// Nothing, `null` or `~`.
    Null,
    Boolean(bool),
    /// A number that fits 64 bits.
    Integer(i64),
    Float(f64),
    Text,
}

impl Scalar {
    /// Types a scalar by the YAML 1.2 core schema. Returns `None` if the text does not fit its tag.
    pub fn new(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Option<Self> {
        let tag = tag.map(|tag| std::borrow::Cow::Owned(tag.clone()));
        let kind = match Typed::parse_from_cow_and_metadata(text.into(), style, tag.as_ref())? {
            Typed::Null => ScalarKind::Null,
            Typed::Boolean(value) => ScalarKind::Boolean(value),
            Typed::Integer(value) => ScalarKind::Integer(value),
            Typed::FloatingPoint(value) => ScalarKind::Float(value.into_inner()),
            Typed::String(_) => ScalarKind::Text,
        };
        Some(Self { text: text.to_owned(), kind })
    }

    pub fn is_null(&self) -> bool {
        self.kind == ScalarKind::Null
    }
}

impl Node {
    /// Creates a scalar of the type that its text has without quotes.
    pub fn plain(location: Location, text: &str) -> Self {
        let typed = Scalar::new(text, ScalarStyle::Plain, None);
        typed.map_or_else(
            || Self::text(location, text),
            |scalar| Self { location, value: Value::Scalar(scalar) },
        )
    }

    /// Creates a scalar that is text even if it looks like a number.
    pub fn text(location: Location, text: &str) -> Self {
        Self {
            location,
            value: Value::Scalar(Scalar { text: text.to_owned(), kind: ScalarKind::Text }),
        }
    }

    /// Returns the scalar, unless this is a list or a mapping.
    pub fn scalar(&self) -> Option<&Scalar> {
        if let Value::Scalar(scalar) = &self.value { Some(scalar) } else { None }
    }

    /// Returns the text of a scalar as written, or an empty text for any other value.
    pub fn written(&self) -> &str {
        self.scalar().map_or("", |scalar| &scalar.text)
    }

    /// Returns the entries of a mapping, or no entries for any other value.
    pub fn entries(&self) -> &[Entry] {
        if let Value::Mapping(entries) = &self.value { entries } else { &[] }
    }

    pub fn is_null(&self) -> bool {
        self.scalar().is_some_and(Scalar::is_null)
    }

    /// Replaces a part of every text in the value.
    pub fn replace(&mut self, from: &str, to: &str) {
        match &mut self.value {
            Value::Scalar(scalar) if scalar.text.contains(from) => {
                scalar.text = scalar.text.replace(from, to)
            }
            Value::Scalar(_) => {}
            Value::List(items) => items.iter_mut().for_each(|item| item.replace(from, to)),
            Value::Mapping(entries) => {
                entries.iter_mut().for_each(|entry| entry.node.replace(from, to))
            }
        }
    }

    /// Moves the value and everything in it to `location`.
    pub fn relocate(&mut self, location: Location) {
        self.relocate_each(&|_| location);
    }

    /// Changes the location of the value and of everything in it.
    pub fn relocate_each(&mut self, change: &impl Fn(Location) -> Location) {
        self.location = change(self.location);
        match &mut self.value {
            Value::Scalar(_) => {}
            Value::List(items) => items.iter_mut().for_each(|item| item.relocate_each(change)),
            Value::Mapping(entries) => {
                entries.iter_mut().for_each(|entry| entry.relocate_each(change))
            }
        }
    }
}

impl Entry {
    /// Creates an entry at the location of its value.
    pub fn new(key: &str, node: Node) -> Self {
        Self { key: key.to_owned(), location: node.location, node }
    }

    /// Creates an entry whose value is a text.
    pub fn text(key: &str, location: Location, text: &str) -> Self {
        Self::new(key, Node::text(location, text))
    }

    /// Changes the location of the key, its value and everything in it.
    pub fn relocate_each(&mut self, change: &impl Fn(Location) -> Location) {
        self.location = change(self.location);
        self.node.relocate_each(change);
    }
}

/// Returns the value of `key`, unless it is absent or null.
pub fn find<'a>(entries: &'a [Entry], key: &str) -> Option<&'a Node> {
    entries
        .iter()
        .find(|entry| entry.key == key)
        .map(|entry| &entry.node)
        .filter(|node| !node.is_null())
}
