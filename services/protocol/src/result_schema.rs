//! `result_schema`: what each row of a result must be. The crate `row_schema` checks rows against it.

use serde::{Deserialize, Serialize};

use crate::is_default;

/// The schema of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultSchema {
    /// An object with these columns and no others, in the order of the output.
    Columns(Vec<ResultColumn>),
    /// A value that fits this JSON Schema.
    Json(serde_json::Value),
}

/// A column of the rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultColumn {
    /// Name.
    pub name: String,
    /// Type of its values.
    #[serde(rename = "type")]
    pub kind: ColumnKind,
    /// Whether a value may be missing, or null.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nullable: bool,
}

/// The type of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnKind {
    /// Any text.
    String,
    /// A whole number of 64 bits.
    Integer,
    /// Any number.
    Number,
    /// True or false.
    Boolean,
    /// An instant: ISO 8601 with a date, a time and possibly a zone.
    Timestamp,
    /// A day: ISO 8601.
    Date,
    /// Anything.
    Any,
}

impl ColumnKind {
    /// Every type.
    pub const ALL: [Self; 7] = [
        Self::String,
        Self::Integer,
        Self::Number,
        Self::Boolean,
        Self::Timestamp,
        Self::Date,
        Self::Any,
    ];

    /// Returns the word for it in job files.
    pub fn word(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Timestamp => "timestamp",
            Self::Date => "date",
            Self::Any => "any",
        }
    }
}

impl ResultSchema {
    /// Returns the columns, if it lists columns.
    pub fn columns(&self) -> Option<&[ResultColumn]> {
        if let Self::Columns(columns) = self { Some(columns) } else { None }
    }
}
