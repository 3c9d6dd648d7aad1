//! The metadata of pandas for a file: the columns of the index, and the types of pandas.
//!
//! A process sends it with each DataFrame, as pandas writes it into its own Parquet files. The file
//! has the common metadata of all mini-batches, without the values in which they differ.

use std::collections::BTreeMap;

use arrow::datatypes::Field;
use serde_json::{Map, Value, json};

/// Key of the metadata of a DataFrame whose index counts rows: `on` from those of the mini-batch before, or `anew` from 0,
/// as that of a frame which the function has made. The process sends the index nevertheless: that of another mini-batch may
/// say more, and rows may be missing between two of them.
const POSITIONS: &str = "gristmill.positions";

/// The metadata of all DataFrames.
#[derive(Default)]
pub(super) struct Frames {
    last: Option<String>,
    /// Names of the columns of the index, in order.
    index: Vec<String>,
    /// The index of some mini-batch says more than the positions of its rows.
    has_labels: bool,
    /// That of some mini-batch counts anew.
    begins_anew: bool,
    /// The metadata of each column, by the name of its field; `None`: mini-batches differ.
    columns: BTreeMap<String, Option<Map<String, Value>>>,
    /// The names of the columns, as a type.
    column_indexes: Option<Value>,
    version: Option<Value>,
}

impl Frames {
    /// Adds the metadata of one table, if it has any.
    pub fn add(&mut self, metadata: Option<&String>) {
        let Some(text) = metadata.filter(|text| self.last.as_ref() != Some(text)) else { return };
        self.last = Some(text.clone());
        let Ok(Value::Object(known)) = serde_json::from_str(text) else { return };
        let names = known.get("index_columns").and_then(Value::as_array);
        let positions = known.get(POSITIONS).and_then(Value::as_str);
        self.has_labels |=
            names.is_some_and(|names| names.iter().any(Value::is_string)) && positions.is_none();
        self.begins_anew |= positions == Some("anew");
        // A range is an object: it says nothing of the rows of a file of several mini-batches.
        for name in names.into_iter().flatten() {
            if let Some(name) =
                name.as_str().filter(|name| !self.index.iter().any(|known| known == name))
            {
                self.index.push(name.to_owned());
            }
        }
        for column in known.get("columns").and_then(Value::as_array).into_iter().flatten() {
            let Some(column) = column.as_object() else { continue };
            let name =
                column.get("field_name").or_else(|| column.get("name")).and_then(Value::as_str);
            let Some(name) = name else { continue };
            let same = |known: &Map<String, Value>| {
                let zone = |column: &Map<String, Value>| {
                    column.get("metadata").and_then(|about| about.get("timezone")).cloned()
                };
                known.get("numpy_type") == column.get("numpy_type") && zone(known) == zone(column)
            };
            self.columns
                .entry(name.to_owned())
                .and_modify(|known| *known = known.take().filter(same))
                .or_insert_with(|| Some(column.clone()));
        }
        self.column_indexes =
            self.column_indexes.take().or_else(|| known.get("column_indexes").cloned());
        self.version = self.version.take().or_else(|| known.get("pandas_version").cloned());
    }

    /// Returns the column of an index that counts rows in each mini-batch; the caller finds out whether it does so over all
    /// of them.
    pub fn counted(&self) -> Option<&str> {
        if self.has_labels || self.begins_anew {
            None
        } else {
            self.index.first().map(String::as_str)
        }
    }

    /// Records that the index does not count all rows.
    pub fn keep_labels(&mut self) {
        self.has_labels = true;
    }

    /// Returns the names of columns that the file leaves out: an index that only counts rows.
    pub fn left_out(&self) -> &[String] {
        if self.has_labels { &[] } else { &self.index }
    }

    /// Returns the metadata of a file with these columns, in JSON; `None` if no DataFrame had any.
    pub fn metadata(&self, fields: &[Field]) -> Option<String> {
        self.last.as_ref()?;
        let has = |name: &str| fields.iter().any(|field| field.name() == name);
        let columns: Vec<&Map<String, Value>> = self
            .columns
            .iter()
            .filter(|(name, _)| has(name))
            .filter_map(|(_, column)| column.as_ref())
            .collect();
        let metadata = json!({
            "index_columns": self.index.iter().filter(|name| has(name)).collect::<Vec<_>>(),
            "column_indexes": self.column_indexes.clone().unwrap_or_else(|| json!([])),
            "columns": columns,
            "creator": { "library": "gristmill", "version": env!("CARGO_PKG_VERSION") },
            "pandas_version": self.version,
        });
        Some(metadata.to_string())
    }
}
