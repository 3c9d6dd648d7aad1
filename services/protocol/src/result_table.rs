//! The tables in which a process hands its rows to the reducer: Arrow IPC streams, with marks where Arrow has no word.
//!
//! The formats CSV, JSON lines and Parquet have such tables; `text` has none.

/// Key of the metadata of a field that names its extension type, as Arrow defines it.
pub const EXTENSION_NAME: &str = "ARROW:extension:name";
/// The extension type of texts that are JSON, as Arrow defines it.
pub const JSON_EXTENSION: &str = "arrow.json";
/// The extension type of 16 bytes that are a UUID, as Arrow defines it.
pub const UUID_EXTENSION: &str = "arrow.uuid";

/// Name of the child of a union for rows that lack the column: the key of a dictionary that another row has.
pub const ABSENT: &str = "absent";

/// Key of the metadata of a table whose rows are not records. Tables of records, such as DataFrames, have none.
pub const ROW_SHAPE: &str = "gristmill.rows";

/// Key of the metadata of a table with what pandas knows about it, as pandas and pyarrow define it.
pub const PANDAS_METADATA: &str = "pandas";

/// The type of the rows of a table in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowShape {
    /// Dictionaries, named tuples, and rows of DataFrames.
    Record,
    /// Tuples; their columns are `0`, `1`, and so on.
    Tuple,
    /// Any other values, in the column `value`.
    Value,
    /// Missing values, which take the shape of other rows.
    Missing,
}

impl RowShape {
    /// Returns the value of [`ROW_SHAPE`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Tuple => "tuple",
            Self::Value => "value",
            Self::Missing => "missing",
        }
    }

    /// Reads the value of [`ROW_SHAPE`]; without one, rows are records.
    pub fn parse(text: Option<&str>) -> Self {
        [Self::Tuple, Self::Value, Self::Missing]
            .into_iter()
            .find(|shape| Some(shape.as_str()) == text)
            .unwrap_or(Self::Record)
    }

    /// Returns the shape of rows of both shapes: a file has one.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Missing, shape) | (shape, Self::Missing) => shape,
            (left, right) if left == right => left,
            _ => Self::Record,
        }
    }
}
