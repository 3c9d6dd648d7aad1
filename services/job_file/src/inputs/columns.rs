//! `columns`: the columns of a table that `run` gets, and their types.

use std::collections::BTreeMap;

use protocol::{ColumnType, InputKind, TableFormat};

use crate::values::choice;
use crate::{Entry, Fault, Location, Node, Section, Value, nearest};

const ALLOWED: &str =
    "a list of column names, each once: [store, price], or types by name: {price: float64}";

#[derive(Default)]
pub struct Columns {
    /// The columns to read, in this order; empty: all.
    pub names: Vec<String>,
    pub types: BTreeMap<String, ColumnType>,
    pub locations: Vec<(String, Location)>,
}

/// Reads `columns`: a list of the columns to read, some perhaps with their types, or the types of some columns by name.
/// A later check compares them with the columns of the files.
pub fn read_columns(
    section: &Section<'_>,
    kind: Option<InputKind>,
    format: Option<TableFormat>,
) -> Columns {
    let mut columns = Columns::default();
    let Some(node) = section.get("columns") else { return columns };
    if kind == Some(InputKind::File) {
        let fault =
            Fault::of("columns of an input of type file", "columns of an input of type tabular");
        section.refuse("columns", section.location_of("columns"), fault);
        return columns;
    }
    let items: Vec<Item<'_>> = match &node.value {
        Value::List(listed) => listed.iter().flat_map(items).collect(),
        Value::Mapping(entries) => entries.iter().map(typed).collect(),
        Value::Scalar(_) => Vec::new(),
    };
    if items.is_empty() {
        section.refuse("columns", node.location, Fault::new(node, ALLOWED));
    }
    for item in items {
        let (name, location, given) = match item {
            Ok(named) => named,
            Err(node) => {
                section.refuse("columns", node.location, Fault::new(node, ALLOWED));
                continue;
            }
        };
        if columns.locations.iter().any(|(earlier, _)| earlier == name) {
            section.refuse(
                "columns",
                location,
                Fault::of(format!("{name:?} a second time"), ALLOWED),
            );
            continue;
        }
        columns.locations.push((name.clone(), location));
        if matches!(node.value, Value::List(_)) {
            columns.names.push(name.clone());
        }
        let read = |given: &Node| {
            section.accept(&format!("columns.{name}"), given.location, column_type(given, format))
        };
        columns.types.extend(given.and_then(read).map(|column_type| (name.clone(), column_type)));
    }
    columns
}

/// An element of `columns`: the name with its location, and its type, if there is one. `Err`: the element is neither.
type Item<'a> = Result<(&'a String, Location, Option<&'a Node>), &'a Node>;

fn typed(entry: &Entry) -> Item<'_> {
    Ok((&entry.key, entry.location, Some(&entry.node)))
}

/// Returns the columns that an element of a list names.
fn items(element: &Node) -> Vec<Item<'_>> {
    match &element.value {
        Value::Scalar(scalar) if !scalar.is_null() && !scalar.text.is_empty() => {
            vec![Ok((&scalar.text, element.location, None))]
        }
        Value::Mapping(entries) if !entries.is_empty() => entries.iter().map(typed).collect(),
        _ => vec![Err(element)],
    }
}

/// Parses the type of a column. If the format is known, the type must be possible in files of this format.
fn column_type(node: &Node, format: Option<TableFormat>) -> Result<ColumnType, Fault> {
    let is_possible = |named: ColumnType| format.is_none_or(|format| named.is_possible_in(format));
    let names: Vec<_> =
        ColumnType::NAMED.into_iter().filter(|(_, named)| is_possible(*named)).collect();
    choice(node, &names).map_err(|fault| {
        match nearest(node.written(), names.iter().map(|(name, _)| *name)) {
            Some(name) => fault.saying(format!("did you mean {name}?")),
            None => fault,
        }
    })
}
