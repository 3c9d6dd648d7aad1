//! YAML text as a tree that keeps the line of every key and value, and the text of every scalar as it was written.
//!
//! Keys are kept in order and duplicates are reported rather than dropped; `arguments: [1.50, 007]` reaches the script
//! as `1.50` and `007`. Scalars are typed by the YAML 1.2 core schema, so `yes` and `on` are text.

use std::collections::HashMap;

use saphyr::{Scalar as Typed, ScalarStyle};
use saphyr_parser::{Event, Marker, Parser, ScanError, StrInput, Tag};

use super::problem::{Fault, Place, Problems};

/// Deeper than any job file; keeps a hostile one from exhausting the stack.
const DEPTH_MAX: usize = 32;
/// More values than any job file has, aliases expanded; keeps a hostile one from exhausting memory.
const NODES_MAX: usize = 100_000;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it starts.
    pub place: Place,
    /// What it is.
    pub value: Value,
}

/// What a value can be.
#[derive(Clone, Debug)]
pub enum Value {
    /// A single value.
    Scalar(Scalar),
    /// A sequence.
    List(Vec<Node>),
    /// Keys in the order of the file, each once.
    Mapping(Vec<Entry>),
}

/// One key of a mapping.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub place: Place,
    /// What it is set to.
    pub node: Node,
}

/// A single value, as written and as YAML understands it.
#[derive(Clone, Debug)]
pub struct Scalar {
    /// As written, without quotes.
    pub text: String,
    /// Its YAML type.
    pub kind: ScalarKind,
}

/// YAML type of a scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarKind {
    /// Nothing, `null` or `~`.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A number that fits 64 bits.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// Everything else, and everything in quotes.
    Text,
}

impl Scalar {
    /// A plain scalar of this text.
    pub fn plain(text: &str) -> Self {
        Self { text: text.to_owned(), kind: kind_of(text, ScalarStyle::Plain, None).unwrap_or(ScalarKind::Text) }
    }

    /// Whether there is no value.
    pub fn is_null(&self) -> bool {
        self.kind == ScalarKind::Null
    }
}

impl Node {
    /// A plain scalar.
    pub fn plain(place: Place, text: &str) -> Self {
        Self { place, value: Value::Scalar(Scalar::plain(text)) }
    }

    /// A scalar that is text whatever it looks like.
    pub fn text(place: Place, text: &str) -> Self {
        Self { place, value: Value::Scalar(Scalar { text: text.to_owned(), kind: ScalarKind::Text }) }
    }

    /// The scalar, if it is one.
    pub fn scalar(&self) -> Option<&Scalar> {
        if let Value::Scalar(scalar) = &self.value { Some(scalar) } else { None }
    }

    /// Whether it is a scalar without a value.
    pub fn is_null(&self) -> bool {
        self.scalar().is_some_and(Scalar::is_null)
    }
}

/// Reads the keys of the one document in `text`. Duplicate keys go to `problems`; so does a text that is not YAML, or
/// not a mapping, for which `None` is returned.
pub fn read(text: &str, problems: &mut Problems) -> Option<Vec<Entry>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder =
        Builder { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0, duplicates: Vec::new() };
    let root = builder.document();
    for (place, key) in builder.duplicates {
        let fault = Fault::of(format!("{key:?} a second time"), "each key once").saying("duplicate key");
        problems.add(place, &key, fault);
    }
    match root {
        Ok(Some(Node { value: Value::Mapping(entries), .. })) => return Some(entries),
        Ok(Some(node)) if !node.is_null() => {
            problems.add(node.place, "", Fault::new(&node, "a mapping of keys to values, such as `name: my-job`"));
        }
        Ok(_) => {
            problems.add(Place::File, "", Fault::of("an empty file", "a mapping of keys to values: `name: my-job`"))
        }
        Err(error) => {
            let marker = error.marker();
            let allowed =
                "one YAML document; texts that hold `: ` or ` #`, or begin with one of `*&!|>%@{[`, need quotes";
            let message = format!("not valid YAML, column {}", marker.col() + 1);
            problems.add(Place::Line(marker.line()), "", Fault::of(error.info(), allowed).saying(message));
        }
    }
    None
}

struct Builder<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    duplicates: Vec<(Place, String)>,
}

impl<'a> Builder<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Marker), ScanError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.start)),
            Some(Err(error)) => Err(error),
            None => Ok((Event::StreamEnd, Marker::default())),
        }
    }

    fn document(&mut self) -> Result<Option<Node>, ScanError> {
        let mut root = None;
        loop {
            let (event, marker) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(root),
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                Event::DocumentStart(_) if root.is_some() => {
                    return Err(ScanError::new_str(marker, "a second document"));
                }
                Event::DocumentStart(_) => {}
                event => root = Some(self.node(event, marker, 0)?),
            }
        }
    }

    fn node(&mut self, event: Event<'a>, marker: Marker, depth: usize) -> Result<Node, ScanError> {
        if depth > DEPTH_MAX {
            return Err(ScanError::new_str(marker, "nested too deeply"));
        }
        let nodes_before = self.nodes;
        self.count(1, marker)?;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => (scalar(&text, style, tag.as_deref(), marker)?, anchor),
            Event::SequenceStart(anchor, _) => (self.list(depth)?, anchor),
            Event::MappingStart(anchor, _) => (self.mapping(depth)?, anchor),
            Event::Alias(anchor) => {
                let Some((node, size)) = self.anchors.get(&anchor).cloned() else {
                    return Err(ScanError::new_str(marker, "an alias inside its own anchor"));
                };
                self.count(size, marker)?;
                (node.value, 0)
            }
            _ => return Err(ScanError::new_str(marker, "unexpected end")),
        };
        let node = Node { place: Place::Line(marker.line()), value };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), self.nodes - nodes_before));
        }
        Ok(node)
    }

    fn count(&mut self, nodes: usize, marker: Marker) -> Result<(), ScanError> {
        self.nodes += nodes;
        match self.nodes > NODES_MAX {
            true => Err(ScanError::new_str(marker, "too many values")),
            false => Ok(()),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, ScanError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, marker) => items.push(self.node(event, marker, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, ScanError> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (event, marker) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Value::Mapping(entries));
            }
            let key = match self.node(event, marker, depth + 1)?.value {
                Value::Scalar(scalar) => scalar.text,
                _ => return Err(ScanError::new_str(marker, "a list or mapping as a key")),
            };
            let (event, value_marker) = self.next()?;
            let node = self.node(event, value_marker, depth + 1)?;
            let place = Place::Line(marker.line());
            match entries.iter().any(|entry| entry.key == key) {
                true => self.duplicates.push((place, key)),
                false => entries.push(Entry { key, place, node }),
            }
        }
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, marker: Marker) -> Result<Value, ScanError> {
    if text.contains('\0') {
        return Err(ScanError::new_str(marker, "a NUL character"));
    }
    match kind_of(text, style, tag) {
        Some(kind) => Ok(Value::Scalar(Scalar { text: text.to_owned(), kind })),
        None => Err(ScanError::new_str(marker, "a value that does not fit its tag")),
    }
}

fn kind_of(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Option<ScalarKind> {
    let tag = tag.map(|tag| std::borrow::Cow::Owned(tag.clone()));
    Typed::parse_from_cow_and_metadata(text.into(), style, tag.as_ref()).map(|typed| match typed {
        Typed::Null => ScalarKind::Null,
        Typed::Boolean(value) => ScalarKind::Boolean(value),
        Typed::Integer(value) => ScalarKind::Integer(value),
        Typed::FloatingPoint(value) => ScalarKind::Float(value.into_inner()),
        Typed::String(_) => ScalarKind::Text,
    })
}
