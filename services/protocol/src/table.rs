//! The options for reading the tables of an input, and their columns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::is_default;

/// The options for reading the tables of an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableOptions {
    /// Format of every file of the input.
    pub format: TableFormat,
    /// Field separator of delimited text, one byte.
    pub delimiter: u8,
    /// Whether the first line of a file names its columns.
    pub header: HeaderMode,
    /// Names of the columns of files without a header, in their order. The JSON omits an empty list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// WHATWG label of the text encoding, `utf-8` by default.
    pub encoding: String,
    /// Number of lines before the header, or before the first row of a file without one. The JSON omits 0.
    #[serde(skip_serializing_if = "is_default")]
    pub skip_rows: u64,
    /// By which rules text becomes typed values. The JSON omits those of the original.
    #[serde(skip_serializing_if = "TypeRules::is_original")]
    pub types: TypeRules,
    /// Infer column types from the first rows; otherwise every column is text.
    pub infer_column_types: bool,
    /// A quoted field may contain line breaks. The partitioner then reads the file once to find where it can be split.
    pub support_multi_line: bool,
    /// Keep `''` in text columns instead of a missing value.
    pub empty_as_string: bool,
    /// The handling of a value that does not fit its column's type.
    pub on_type_mismatch: MismatchPolicy,
    /// Columns of the file to read, in this order; empty: all in the order of the file. The JSON omits an empty list,
    /// so that a job without it keeps its fingerprint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Types that the job file gives to columns; the others are inferred. The JSON omits an empty map.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub column_types: BTreeMap<String, ColumnType>,
    /// The job file names no format; the names of the files determine it.
    #[serde(skip_serializing_if = "is_default")]
    pub by_name: bool,
    /// Name of a first column with the path of the file of each row; `None`: no such column. The JSON omits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_column: Option<String>,
    /// Number of rows to skip at the beginning of the input, counted over its files in order. The JSON omits 0.
    #[serde(skip_serializing_if = "is_default")]
    pub skip: u64,
    /// Maximum number of rows to read after these; `None`: all. The JSON omits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub take: Option<u64>,
}

impl TableOptions {
    /// Stands for the delimiter of a format that is not known yet.
    pub const DELIMITER_OF_FORMAT: u8 = 0;

    /// Returns whether the words that pandas takes for a missing value are one: JSON has `null`.
    pub fn has_missing_words(&self) -> bool {
        self.types == TypeRules::Pandas && self.format.is_delimited()
    }

    /// Returns the delimiter of files of this format.
    pub fn delimiter_for(&self, format: TableFormat) -> u8 {
        match (self.delimiter, format) {
            (Self::DELIMITER_OF_FORMAT, TableFormat::Tsv) => b'\t',
            (Self::DELIMITER_OF_FORMAT, _) => b',',
            (delimiter, _) => delimiter,
        }
    }

    /// Returns whether the first file of the input has a header, and no other file does.
    pub fn has_one_header(&self) -> bool {
        self.format.is_delimited() && self.header == HeaderMode::FromFirstFile
    }

    /// Sets the format, once known, and its delimiter.
    pub fn settle(&mut self, format: TableFormat) {
        (self.format, self.delimiter) = (format, self.delimiter_for(format));
    }
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            format: TableFormat::Csv,
            delimiter: b',',
            header: HeaderMode::AllFilesSameHeaders,
            names: Vec::new(),
            encoding: "utf-8".to_owned(),
            skip_rows: 0,
            types: TypeRules::Original,
            infer_column_types: true,
            support_multi_line: false,
            empty_as_string: false,
            on_type_mismatch: MismatchPolicy::Reject,
            columns: Vec::new(),
            by_name: false,
            column_types: BTreeMap::new(),
            path_column: None,
            skip: 0,
            take: None,
        }
    }
}

/// Format of a table file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableFormat {
    /// Delimited text, comma by default.
    Csv,
    /// Delimited text, tab by default.
    Tsv,
    /// One JSON object per line.
    Jsonl,
    /// Apache Parquet.
    Parquet,
}

impl TableFormat {
    /// Whether byte ranges can split the file.
    pub fn is_text(self) -> bool {
        self != Self::Parquet
    }

    /// Whether a delimiter splits lines into fields.
    pub fn is_delimited(self) -> bool {
        matches!(self, Self::Csv | Self::Tsv)
    }

    /// Returns the name in the job file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Jsonl => "jsonl",
            Self::Parquet => "parquet",
        }
    }
}

/// The source of column names of delimited text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeaderMode {
    /// Every file starts with the same header line.
    AllFilesSameHeaders,
    /// No file has a header line; columns are named `Column1`, `Column2`, …
    NoHeader,
    /// The first file of the input starts with a header line, and no other file does.
    FromFirstFile,
    /// Every file starts with a header line of its own. The table has the columns of all files, and rows of a file that
    /// lacks a column have missing values there.
    AllFilesDifferentHeaders,
}

impl HeaderMode {
    /// Returns whether the first line of every file names its columns.
    pub fn is_in_every_file(self) -> bool {
        matches!(self, Self::AllFilesSameHeaders | Self::AllFilesDifferentHeaders)
    }

    /// Returns whether the first line of a file names its columns.
    pub fn is_in(self, is_first_file: bool) -> bool {
        self.is_in_every_file() || self == Self::FromFirstFile && is_first_file
    }
}

/// The handling of a value that does not fit the type of its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MismatchPolicy {
    /// Reject its row: `run` does not get it, and it counts as a failed item.
    Reject,
    /// Convert it as the original did, to a missing value in most cases, and report it.
    Missing,
}

/// By which rules text becomes typed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TypeRules {
    /// Those of Azure ML: the first 200 rows of the input decide, `0` and `1` are truth values, dates become times.
    Original,
    /// Those of `pandas.read_csv`: rows from all files decide, whole numbers stay numbers, `NA` and its kin are missing,
    /// dates stay text.
    Pandas,
}

impl TypeRules {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
    fn is_original(&self) -> bool {
        *self == Self::Original
    }
}

/// Column names and types of one input, determined once when the job is planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSchema {
    /// All columns in file order, whether read or not, then the columns taken from the path.
    pub columns: Vec<TableColumn>,
    /// No file of the input has a row.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_empty: bool,
}

/// One column of a [`TableSchema`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableColumn {
    /// Name as in the header.
    pub name: String,
    /// Type of every block.
    pub column_type: ColumnType,
    /// By the rules of pandas, a missing value among whole numbers makes all of them `float64`: the rows that decided
    /// the type have one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub has_missing: bool,
    /// By the rules of pandas, the times of a column have an offset, or none has: those that decided this have one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub has_offset: bool,
    /// A text with two possible readings, of which the rules of the original choose one: a code (`0`, `1`, `Y`, `N`, `T` or
    /// `F`) that is read as a truth value, or a date that is read with the month first. `None` if another text decided the
    /// type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubtful: Option<String>,
}

impl TableColumn {
    /// Creates a column whose values are all there, and without an offset.
    pub fn new(name: impl Into<String>, column_type: ColumnType) -> Self {
        Self {
            name: name.into(),
            column_type,
            has_missing: false,
            has_offset: false,
            doubtful: None,
        }
    }
}

/// Types of text columns. Of the types that the job file can name, each holds at least the values of those before it,
/// except that `uint64` holds no negative numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnType {
    /// `bool`.
    Boolean,
    /// `int64`.
    Integer,
    /// `uint64`.
    Unsigned,
    /// `float64`.
    Float,
    /// `datetime64[ns]`, by the rules of pandas also `datetime64[ns, UTC]`; month before day in `1/2/2020`.
    DateTimeMonthFirst,
    /// `datetime64[ns]`; day before month.
    DateTimeDayFirst,
    /// `object` of `str`.
    Text,
    /// `object` of JSON values: `dict`, `list`, `str`, `int`, `float`, `bool`, `None`.
    Json,
    /// `object` of `None`: every inspected value was blank. Later values are text, or JSON values in JSON lines.
    Blank,
}

impl ColumnType {
    /// The types that `columns` of the job file can name.
    pub const NAMED: [(&str, Self); 8] = [
        ("bool", Self::Boolean),
        ("int64", Self::Integer),
        ("uint64", Self::Unsigned),
        ("float64", Self::Float),
        ("timestamp", Self::DateTimeMonthFirst),
        ("timestamp_day_first", Self::DateTimeDayFirst),
        ("string", Self::Text),
        ("json", Self::Json),
    ];

    /// Whether a column in files of this format can have the type.
    pub fn is_possible_in(self, format: TableFormat) -> bool {
        match self {
            Self::Json => format == TableFormat::Jsonl,
            // Parquet has its own dates.
            Self::DateTimeDayFirst => format.is_text(),
            _ => true,
        }
    }

    /// Returns the name of the type in `columns`, or `empty` for a column of blanks.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, named)| *named == self).map_or("empty", |(name, _)| name)
    }
}
