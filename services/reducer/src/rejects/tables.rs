//! The tables of rejects: the same rows as CSV and as Parquet. Their bytes follow from the rejects alone, so that reducers
//! that write them again, or at the same time, write the same.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use arrow::array::{
    ArrayRef, Int64Builder, RecordBatch, StringBuilder, TimestampMillisecondBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use chrono::{DateTime, SecondsFormat};
use parquet::arrow::ArrowWriter;

use super::Reject;
use crate::csv::Dialect;
use crate::output;

/// Rows of Parquet that are held in memory. Each has a traceback of at most 16 KiB.
const ROWS_HELD_MAX: usize = 1024;

/// The columns of both tables.
const COLUMNS: [(&str, ColumnKind); 21] = [
    ("mini_batch", ColumnKind::Number),
    ("item", ColumnKind::Number),
    ("items", ColumnKind::Number),
    ("input", ColumnKind::Text),
    ("path", ColumnKind::Text),
    ("row", ColumnKind::Number),
    ("byte_start", ColumnKind::Number),
    ("byte_end", ColumnKind::Number),
    ("key", ColumnKind::Text),
    ("detail", ColumnKind::Text),
    ("values", ColumnKind::Text),
    ("cause", ColumnKind::Text),
    ("exception", ColumnKind::Text),
    ("message", ColumnKind::Text),
    ("traceback", ColumnKind::Repeated),
    ("tries", ColumnKind::Number),
    ("node", ColumnKind::Text),
    ("process", ColumnKind::Text),
    ("started_at", ColumnKind::Time),
    ("log", ColumnKind::Text),
    ("printed", ColumnKind::Repeated),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnKind {
    Number,
    Text,
    /// A text that the items of a mini-batch may share. Only the first of them has it in the CSV file.
    Repeated,
    /// Milliseconds since 1970, UTC.
    Time,
}

/// A value. An empty text is missing in Parquet.
#[derive(Clone, Copy, Debug)]
enum Cell<'a> {
    Number(Option<u64>),
    Text(&'a str),
}

/// Both tables, being written.
pub(super) struct Tables {
    csv: BufWriter<File>,
    line: String,
    /// The repeated texts of the last row, by column, and its mini-batch.
    last: (u64, [String; COLUMNS.len()]),
    parquet: ArrowWriter<File>,
    schema: Arc<Schema>,
    columns: Vec<Column>,
    rows_held: usize,
    /// Rejected items so far.
    pub items: u64,
    /// Those of them whose places are unknown.
    pub without_place: u64,
}

/// Rows of one column of the Parquet file.
enum Column {
    Number(Int64Builder),
    Text(StringBuilder),
    Time(TimestampMillisecondBuilder),
}

impl Tables {
    /// Creates or replaces two files.
    pub fn create(csv: &Path, parquet: &Path) -> anyhow::Result<Self> {
        let create =
            |path: &Path| File::create(path).with_context(|| format!("create {}", path.display()));
        let mut csv = BufWriter::new(create(csv)?);
        let mut header = COLUMNS.map(|(name, _)| name).join(",");
        header.push('\n');
        csv.write_all(header.as_bytes())?;
        let field = |(name, kind): (&str, ColumnKind)| Field::new(name, kind.data_type(), true);
        let schema = Arc::new(Schema::new(COLUMNS.map(field).to_vec()));
        let parquet = ArrowWriter::try_new(
            create(parquet)?,
            schema.clone(),
            Some(output::parquet_properties()),
        )?;
        let columns = COLUMNS.map(|(_, kind)| Column::new(kind)).into();
        Ok(Self {
            csv,
            line: String::new(),
            last: (u64::MAX, Default::default()),
            parquet,
            schema,
            columns,
            rows_held: 0,
            items: 0,
            without_place: 0,
        })
    }

    /// Adds one row.
    pub fn add(&mut self, reject: &Reject<'_>) -> anyhow::Result<()> {
        self.items += reject.items;
        self.without_place += if reject.item.is_none() { reject.items } else { 0 };
        let cells = cells(reject);
        self.write_line(reject.mini_batch, &cells)?;
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.push(cell);
        }
        self.rows_held += 1;
        if self.rows_held == ROWS_HELD_MAX {
            self.write_rows()?;
        }
        Ok(())
    }

    /// Completes both files and forces them to disk.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.write_rows()?;
        self.csv.flush()?;
        self.csv.get_ref().sync_data()?;
        self.parquet.finish()?;
        self.parquet.inner().sync_data()?;
        Ok(())
    }

    /// Writes a line of the CSV file.
    fn write_line(
        &mut self,
        mini_batch: u64,
        cells: &[Cell<'_>; COLUMNS.len()],
    ) -> anyhow::Result<()> {
        let dialect = Dialect::default();
        self.line.clear();
        if self.last.0 != mini_batch {
            self.last = (mini_batch, Default::default());
        }
        for (position, ((_, kind), cell)) in COLUMNS.iter().zip(cells).enumerate() {
            if position > 0 {
                self.line.push(',');
            }
            match *cell {
                Cell::Number(None) => {}
                Cell::Number(Some(number)) if *kind == ColumnKind::Time => {
                    self.line.push_str(&time(number))
                }
                Cell::Number(Some(number)) => {
                    self.line.push_str(itoa::Buffer::new().format(number))
                }
                Cell::Text(text) if *kind == ColumnKind::Repeated => {
                    let last = &mut self.last.1[position];
                    if last != text {
                        dialect.push_inert(text, &mut self.line);
                        text.clone_into(last);
                    }
                }
                Cell::Text(text) => dialect.push_inert(text, &mut self.line),
            }
        }
        self.line.push('\n');
        Ok(self.csv.write_all(self.line.as_bytes())?)
    }

    fn write_rows(&mut self) -> anyhow::Result<()> {
        if self.rows_held > 0 {
            let columns = self.columns.iter_mut().map(Column::finish).collect();
            self.parquet.write(&RecordBatch::try_new(self.schema.clone(), columns)?)?;
            self.rows_held = 0;
        }
        Ok(())
    }
}

/// Returns the values of a reject in the order of [`COLUMNS`].
fn cells<'a>(reject: &'a Reject<'a>) -> [Cell<'a>; COLUMNS.len()] {
    let number = |number: u64| Cell::Number(Some(number));
    let error = &*reject.error;
    [
        number(reject.mini_batch),
        Cell::Number(reject.item),
        number(reject.items),
        Cell::Text(reject.input),
        Cell::Text(&reject.path),
        Cell::Number(reject.row),
        Cell::Number(reject.bytes.map(|(start, _)| start)),
        Cell::Number(reject.bytes.map(|(_, end)| end)),
        Cell::Text(&reject.key),
        Cell::Text(&reject.detail),
        Cell::Text(reject.values),
        Cell::Text(reject.status.word()),
        Cell::Text(&error.category),
        Cell::Text(&error.message),
        Cell::Text(&error.traceback),
        number(reject.tries.into()),
        Cell::Text(reject.node),
        Cell::Text(reject.process),
        number(reject.started_at),
        Cell::Text(&error.log),
        Cell::Text(&error.printed),
    ]
}

/// Returns a time as ISO 8601, or an empty text if it is out of range.
fn time(milliseconds: u64) -> String {
    let time = i64::try_from(milliseconds).ok().and_then(DateTime::from_timestamp_millis);
    time.map_or_else(String::new, |time| time.to_rfc3339_opts(SecondsFormat::Millis, true))
}

impl ColumnKind {
    fn data_type(self) -> DataType {
        match self {
            Self::Number => DataType::Int64,
            Self::Text | Self::Repeated => DataType::Utf8,
            Self::Time => DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
        }
    }
}

impl Column {
    fn new(kind: ColumnKind) -> Self {
        match kind {
            ColumnKind::Number => Self::Number(Int64Builder::new()),
            ColumnKind::Text | ColumnKind::Repeated => Self::Text(StringBuilder::new()),
            ColumnKind::Time => Self::Time(
                TimestampMillisecondBuilder::new().with_data_type(ColumnKind::Time.data_type()),
            ),
        }
    }

    fn push(&mut self, cell: Cell<'_>) {
        let signed =
            |number: Option<u64>| number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        match (self, cell) {
            (Self::Number(column), Cell::Number(number)) => column.append_option(signed(number)),
            (Self::Time(column), Cell::Number(number)) => column.append_option(signed(number)),
            (Self::Text(column), Cell::Text(text)) => {
                column.append_option(Some(text).filter(|text| !text.is_empty()))
            }
            _ => unreachable!("cells have the kinds of their columns"),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Number(column) => Arc::new(column.finish()),
            Self::Text(column) => Arc::new(column.finish()),
            Self::Time(column) => Arc::new(column.finish()),
        }
    }
}
