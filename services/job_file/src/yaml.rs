//! Reads YAML text into a [tree](crate::tree) that keeps lines and texts.
//!
//! Keys keep their order and duplicates are reported; `arguments: [1.50, 007]` reaches the script as `1.50` and `007`.
//! Scalars are typed by the YAML 1.2 core schema, so `yes` and `on` are text. The merge key of YAML 1.1
//! (`<<: *defaults`) is resolved here.

use std::collections::HashMap;

use saphyr::ScalarStyle;
use saphyr_parser::{Event, Marker, Parser, ScanError, StrInput};

use crate::{Entry, Fault, Location, Node, Problems, Scalar, Value};

/// Maximum nesting. Prevents a hostile job file from exhausting the stack.
const DEPTH_MAX: usize = 32;
/// Maximum number of values, aliases expanded. Prevents a hostile job file from exhausting memory.
const NODES_MAX: usize = 100_000;

/// Reads a value of the command line. A list, a mapping or a quoted text is YAML; anything else is one plain value, so
/// that `*.csv` and `a: b` need no quotes.
pub fn read_value(text: &str) -> Result<Node, Fault> {
    let text = text.trim();
    if !text.starts_with(['[', '{', '"', '\'']) {
        return Ok(Node::plain(Location::Override, text));
    }
    let mut builder = Builder::new(text);
    let allowed = "a value as in the job file: 20, text, [a, b], {key: value}";
    let fault =
        |found: String| Fault::of(format!("{text:?} ({found})"), allowed).saying("not valid YAML");
    let node = builder.document().map_err(|error| fault(error.info().to_owned()))?;
    if let Some((_, key)) = builder.duplicates.first() {
        return Err(fault(format!("{key:?} a second time")));
    }
    let mut node = node.ok_or_else(|| fault("nothing".to_owned()))?;
    node.relocate(Location::Override);
    Ok(node)
}

/// Reads the keys of the one document in `text`. Records duplicate keys in `problems`. Returns `None` if the text is
/// not YAML, or not a mapping, which it also records.
pub fn read(text: &str, problems: &Problems) -> Option<Vec<Entry>> {
    read_like("name: my-job", text, problems)
}

/// Works like [`read`] for a file whose keys look like this example.
pub fn read_like(example: &str, text: &str, problems: &Problems) -> Option<Vec<Entry>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::new(text);
    let root = builder.document();
    for (location, key) in builder.duplicates {
        let fault =
            Fault::of(format!("{key:?} a second time"), "each key once").saying("duplicate key");
        problems.add(location, &key, fault);
    }
    match root {
        Ok(Some(Node { value: Value::Mapping(entries), .. })) => return Some(entries),
        Ok(Some(node)) if !node.is_null() => {
            let allowed = format!("a mapping of keys to values, such as `{example}`");
            problems.add(node.location, "", Fault::new(&node, allowed));
        }
        Ok(_) => {
            let allowed = format!("a mapping of keys to values: `{example}`");
            problems.add(Location::File, "", Fault::of("an empty file", allowed))
        }
        Err(error) => {
            let marker = error.marker();
            let (format, allowed) = match text.trim_start().starts_with('{') {
                true => ("JSON or YAML", "one JSON object"),
                false => (
                    "YAML",
                    "one YAML document; texts that hold `: ` or ` #`, or begin with one of `*&!|>%@{[`, need quotes",
                ),
            };
            let message = format!("not valid {format}, column {}", marker.col() + 1);
            let found = error.info().strip_prefix("found ").unwrap_or(error.info());
            problems.add(
                Location::Line(marker.line()),
                "",
                Fault::of(found, allowed).saying(message),
            );
        }
    }
    None
}

struct Builder<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    duplicates: Vec<(Location, String)>,
}

impl<'a> Builder<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            parser: Parser::new_from_str(text),
            anchors: HashMap::new(),
            nodes: 0,
            duplicates: Vec::new(),
        }
    }

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
                Event::DocumentStart(_) if root.is_none() => {}
                Event::DocumentStart(_) => {
                    return Err(ScanError::new_str(marker, "a second document"));
                }
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
            Event::Scalar(text, _, _, _) if text.contains('\0') => {
                return Err(ScanError::new_str(marker, "a NUL character"));
            }
            Event::Scalar(text, style, anchor, tag) => {
                match Scalar::new(&text, style, tag.as_deref()) {
                    Some(scalar) => (Value::Scalar(scalar), anchor),
                    None => {
                        return Err(ScanError::new_str(
                            marker,
                            "a value that does not fit its tag",
                        ));
                    }
                }
            }
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
        let node = Node { location: Location::Line(marker.line()), value };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), self.nodes - nodes_before));
        }
        Ok(node)
    }

    fn count(&mut self, nodes: usize, marker: Marker) -> Result<(), ScanError> {
        self.nodes += nodes;
        if self.nodes > NODES_MAX {
            Err(ScanError::new_str(marker, "too many values"))
        } else {
            Ok(())
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
        let mut merged: Vec<Entry> = Vec::new();
        loop {
            let (event, marker) = self.next()?;
            if event == Event::MappingEnd {
                // The mapping's own keys take precedence, then those of the first merged mapping.
                for entry in merged {
                    if !entries.iter().any(|own| own.key == entry.key) {
                        entries.push(entry);
                    }
                }
                return Ok(Value::Mapping(entries));
            }
            let is_merge =
                matches!(&event, Event::Scalar(text, ScalarStyle::Plain, ..) if text == "<<");
            let key = match self.node(event, marker, depth + 1)?.value {
                Value::Scalar(scalar) => scalar.text,
                _ => return Err(ScanError::new_str(marker, "a list or mapping as a key")),
            };
            let (event, value_marker) = self.next()?;
            let node = self.node(event, value_marker, depth + 1)?;
            if is_merge {
                merged.extend(merged_entries(node.value, value_marker)?);
                continue;
            }
            let location = Location::Line(marker.line());
            match entries.iter().any(|entry| entry.key == key) {
                true => self.duplicates.push((location, key)),
                false => entries.push(Entry { key, location, node }),
            }
        }
    }
}

/// Returns the keys that `<<: VALUE` adds: those of one mapping, or of each mapping in a list.
fn merged_entries(value: Value, marker: Marker) -> Result<Vec<Entry>, ScanError> {
    match value {
        Value::Mapping(entries) => Ok(entries),
        Value::List(items) if items.iter().all(|item| matches!(item.value, Value::Mapping(_))) => {
            let entries = items.into_iter().map(|item| merged_entries(item.value, marker));
            Ok(entries.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        }
        _ => Err(ScanError::new_str(
            marker,
            "`<<` needs a mapping or a list of mappings, such as `<<: *defaults`",
        )),
    }
}
