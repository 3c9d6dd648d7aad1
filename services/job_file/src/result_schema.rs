//! `result_schema`: the schema of each row of the results. Columns with types, or a JSON Schema, inline or in a file.

use protocol::{ColumnKind, JobSpec, OutputAction, ResultColumn, ResultSchema};
use row_schema::RowSchema;
use serde_json::{Map, Number, Value as Json};

use crate::problem::did_you_mean;
use crate::values::{mapping, word};
use crate::{Entry, Fault, Location, Node, Paths, Scalar, ScalarKind, Section, Value, other};

const KEY: &str = "result_schema";
const COLUMNS: &str = "columns";
const ALLOWED: &str = "columns: {total: number, note: string?}, a JSON Schema, or the path of a file with one of them";
/// Other common words for types.
const SYNONYMS: [(&str, ColumnKind); 9] = [
    ("str", ColumnKind::String),
    ("text", ColumnKind::String),
    ("int", ColumnKind::Integer),
    ("long", ColumnKind::Integer),
    ("float", ColumnKind::Number),
    ("double", ColumnKind::Number),
    ("bool", ColumnKind::Boolean),
    ("datetime", ColumnKind::Timestamp),
    ("object", ColumnKind::Any),
];

/// Reads the key. `output_action` must have been read.
pub fn read_result_schema(top: &Section<'_>, paths: &Paths, job: &mut JobSpec) {
    let Some(node) = top.get(KEY) else { return };
    if job.output.action == OutputAction::SummaryOnly {
        let fault = Fault::of(
            "both",
            "one of them: result_schema checks rows, and summary_only keeps none",
        );
        return top.refuse(
            KEY,
            top.location_of(KEY),
            fault.saying("it has no effect with output_action summary_only"),
        );
    }
    let file;
    let entries = match &node.value {
        Value::Mapping(entries) => entries,
        Value::Scalar(Scalar { kind: ScalarKind::Text, .. }) => match in_file(top, node, paths) {
            Some(entries) => {
                file = entries;
                &file
            }
            None => return,
        },
        Value::Scalar(_) | Value::List(_) => {
            return top.refuse(KEY, node.location, Fault::new(node, ALLOWED));
        }
    };
    job.output.row_schema = match entries.as_slice() {
        [entry] if entry.key == COLUMNS => columns(top, entry),
        [] => {
            top.refuse(KEY, node.location, Fault::of("an empty mapping", ALLOWED));
            None
        }
        entries => json_schema(top, node.location, entries),
    };
}

/// Reads a file of YAML or JSON. `None`: a mistake, which is recorded.
fn in_file(top: &Section<'_>, node: &Node, paths: &Paths) -> Option<Vec<Entry>> {
    let path = paths.local(node).and_then(|path| match path.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(path),
        Ok(_) => Err(Fault::new(node, ALLOWED).saying(format!("{} is not a file", path.display()))),
        Err(error) => Err(Fault::new(node, ALLOWED).saying(crate::paths::unusable(&path, &error))),
    });
    let path = top.problems.accept(node.location, KEY, path)?;
    other::read(&path, node.location, KEY, "columns: {total: number}", top.problems)
}

fn columns(top: &Section<'_>, entry: &Entry) -> Option<ResultSchema> {
    let field = format!("{KEY}.{COLUMNS}");
    let allowed = "a mapping of names to types: {total: number, note: string?}";
    let entries = match mapping(&entry.node, allowed) {
        Ok(entries) if !entries.is_empty() => entries,
        found => {
            let fault = found.err().unwrap_or_else(|| Fault::of("an empty mapping", allowed));
            top.refuse(&field, entry.location, fault);
            return None;
        }
    };
    let mut columns = Vec::with_capacity(entries.len());
    for Entry { key, location, node } in entries {
        match kind(node) {
            Ok((kind, nullable)) => {
                columns.push(ResultColumn { name: key.clone(), kind, nullable })
            }
            Err(fault) => top.refuse(&format!("{field}.{key}"), *location, fault),
        }
    }
    (columns.len() == entries.len()).then_some(ResultSchema::Columns(columns))
}

/// Reads a type, with `?` behind it if a value may be missing.
fn kind(node: &Node) -> Result<(ColumnKind, bool), Fault> {
    let known = ColumnKind::ALL.map(|kind| (kind.word(), kind));
    let words = || known.iter().chain(&SYNONYMS).copied();
    let list = ColumnKind::ALL.map(ColumnKind::word).join(", ");
    let allowed = format!("{list}; with `?` behind it where a value may be missing");
    let text = word(node).map_err(|_| Fault::new(node, allowed.as_str()))?.to_lowercase();
    let plain = text.strip_suffix('?').unwrap_or(&text).trim_end();
    match words().find(|(word, _)| *word == plain) {
        Some((_, kind)) => Ok((kind, text.ends_with('?'))),
        None => {
            let hint = did_you_mean(plain, words().map(|(word, _)| word));
            Err(Fault::new(node, allowed).saying(format!("not a type{hint}")))
        }
    }
}

fn json_schema(top: &Section<'_>, location: Location, entries: &[Entry]) -> Option<ResultSchema> {
    let schema = ResultSchema::Json(json_of_entries(entries));
    let Err(invalid) = RowSchema::new(&schema) else { return Some(schema) };
    let field = std::iter::once(KEY)
        .chain(invalid.place.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join(".");
    let location = location_of(entries, &invalid.place).unwrap_or(location);
    let keyword = invalid.place.last().map_or("", String::as_str);
    let hint = did_you_mean(keyword, invalid.keywords.iter().copied());
    let rest = if hint.is_empty() { format!("; allowed: {ALLOWED}") } else { hint };
    let message = format!("found a value that is not a JSON Schema: {}{rest}", invalid.message);
    top.refuse(&field, location, Fault::only(message));
    None
}

/// Returns the location of the deepest part of the schema on the path `place`.
fn location_of(entries: &[Entry], place: &[String]) -> Option<Location> {
    let (first, rest) = place.split_first()?;
    let entry = entries.iter().find(|entry| entry.key == *first)?;
    Some(location_in(&entry.node, rest).unwrap_or(entry.location))
}

fn location_in(node: &Node, place: &[String]) -> Option<Location> {
    match &node.value {
        Value::Mapping(entries) => location_of(entries, place),
        Value::List(items) => {
            let (first, rest) = place.split_first()?;
            let item = items.get(first.parse::<usize>().ok()?)?;
            Some(location_in(item, rest).unwrap_or(item.location))
        }
        Value::Scalar(_) => None,
    }
}

fn json_of_entries(entries: &[Entry]) -> Json {
    Json::Object(
        entries
            .iter()
            .map(|entry| (entry.key.clone(), json_of(&entry.node)))
            .collect::<Map<_, _>>(),
    )
}

fn json_of(node: &Node) -> Json {
    match &node.value {
        Value::Mapping(entries) => json_of_entries(entries),
        Value::List(items) => items.iter().map(json_of).collect(),
        Value::Scalar(scalar) => match scalar.kind {
            ScalarKind::Null => Json::Null,
            ScalarKind::Boolean(value) => value.into(),
            ScalarKind::Integer(value) => value.into(),
            ScalarKind::Float(value) => {
                Number::from_f64(value).map_or_else(|| scalar.text.clone().into(), Json::Number)
            }
            ScalarKind::Text => scalar.text.clone().into(),
        },
    }
}
