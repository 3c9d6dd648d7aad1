//! Temporary files, decoded in one call.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use protocol::{
    Block, BlockRange, ItemPath, MismatchPolicy, TableFormat, TableOptions, TableSchema,
};
use tables::{DecodeRequest, Decoded, Decoder, LocalBlock, RangeSize, Result};
use tempfile::TempDir;

pub struct Folder {
    folder: TempDir,
}

impl Folder {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).expect("the folder is writable");
        path
    }

    /// Writes a Parquet file.
    pub fn parquet(
        &self,
        name: &str,
        batch: &RecordBatch,
        properties: WriterProperties,
    ) -> PathBuf {
        let path = self.folder.path().join(name);
        let file = File::create(&path).expect("the folder is writable");
        let mut writer =
            ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("types of Parquet");
        writer.write(batch).expect("writable");
        writer.close().expect("writable");
        path
    }
}

/// One file and its options.
pub struct Input {
    pub folder: Folder,
    pub path: PathBuf,
    pub options: TableOptions,
    pub schema: Option<TableSchema>,
}

impl Input {
    pub fn new(content: impl AsRef<[u8]>, options: TableOptions) -> Self {
        Self::named("data.txt", content, options)
    }

    pub fn named(name: &str, content: impl AsRef<[u8]>, options: TableOptions) -> Self {
        let folder = Folder::new();
        let path = folder.file(name, content);
        let schema =
            tables::infer_schema([path.as_path()], &options, &[]).expect("the file can be read");
        Self { folder, path, options, schema }
    }

    pub fn decode(&self, range: BlockRange) -> Result<Decoded> {
        decode(&self.path, range, &self.options, self.schema.as_ref())
    }

    pub fn decode_all(&self) -> Decoded {
        self.decode_all_with(&mut Decoder::default())
    }

    pub fn decode_all_with(&self, decoder: &mut Decoder) -> Decoded {
        let range = if self.options.support_multi_line { BlockRange::WholeText } else { ALL_LINES };
        decode_with(decoder, &self.path, range, &self.options, self.schema.as_ref())
            .expect("the file can be read")
    }

    /// Returns the ranges of the file.
    pub fn ranges(&self, size: RangeSize) -> Vec<BlockRange> {
        self.counted_ranges(size).into_iter().map(|(range, _)| range).collect()
    }

    /// Returns the ranges with their counted rows.
    fn counted_ranges(&self, size: RangeSize) -> Vec<(BlockRange, u64)> {
        let name = self.path.display().to_string();
        let ranges = tables::text_ranges(&self.path, &name, &self.options, size)
            .expect("the file can be read");
        ranges.collect::<Result<_>>().expect("the file can be read")
    }

    /// Decodes the ranges of the file in order with one decoder, and checks the counted rows of each.
    pub fn parts(&self, size: RangeSize) -> Vec<Decoded> {
        let mut decoder = Decoder::default();
        let decoded = |(range, rows)| {
            let part =
                decode_with(&mut decoder, &self.path, range, &self.options, self.schema.as_ref())?;
            assert_eq!(part.rows + part.failed_records, rows, "{range:?} was counted wrong");
            Ok(part)
        };
        self.counted_ranges(size)
            .into_iter()
            .map(decoded)
            .collect::<Result<_>>()
            .expect("the file can be read")
    }

    pub fn blocks(&self, block_bytes: u64) -> Vec<Decoded> {
        let bytes = std::fs::metadata(&self.path).expect("written before").len();
        (0..tables::text_blocks(bytes, block_bytes))
            .map(|k| {
                self.decode(tables::text_block_range(k, block_bytes)).expect("the file can be read")
            })
            .collect()
    }
}

pub const ALL_LINES: BlockRange = BlockRange::Lines { first: 0, last: u64::MAX };

pub fn block(path: &Path, range: BlockRange) -> Block {
    Block { path: ItemPath::from(path), version: None, range, path_columns: Vec::new() }
}

pub fn decode(
    path: &Path,
    range: BlockRange,
    options: &TableOptions,
    schema: Option<&TableSchema>,
) -> Result<Decoded> {
    decode_with(&mut Decoder::default(), path, range, options, schema)
}

fn decode_with(
    decoder: &mut Decoder,
    path: &Path,
    range: BlockRange,
    options: &TableOptions,
    schema: Option<&TableSchema>,
) -> Result<Decoded> {
    let block = block(path, range);
    decoder.decode(&DecodeRequest {
        blocks: &[LocalBlock { block: &block, path, has_holes: false }],
        options,
        schema,
        with_lines: false,
    })
}

/// The options of documents of Azure ML.
pub fn csv() -> TableOptions {
    TableOptions { on_type_mismatch: MismatchPolicy::Missing, ..TableOptions::default() }
}

pub fn jsonl() -> TableOptions {
    TableOptions { format: TableFormat::Jsonl, ..csv() }
}

/// Returns every value of a column as text, missing ones as `-`.
pub fn column(decoded: &Decoded, name: &str) -> Vec<String> {
    values(decoded.batch.column_by_name(name).expect("the column is there"))
}

pub fn values(array: &ArrayRef) -> Vec<String> {
    (0..array.len())
        .map(|row| match array.data_type() {
            _ if array.is_null(row) => "-".to_owned(),
            DataType::Int64 => array.as_primitive::<Int64Type>().value(row).to_string(),
            DataType::Float64 => format!("{:?}", array.as_primitive::<Float64Type>().value(row)),
            DataType::Boolean => array.as_boolean().value(row).to_string(),
            DataType::LargeUtf8 => array.as_string::<i64>().value(row).to_owned(),
            DataType::Timestamp(_, _) => {
                let date = array.as_primitive::<TimestampNanosecondType>().value_as_datetime(row);
                date.expect("within the calendar").to_string()
            }
            DataType::Dictionary(_, _) => {
                let array = array.as_dictionary::<Int32Type>();
                let key = array.key(row).expect("it is not missing");
                array.values().as_string::<i32>().value(key).to_owned()
            }
            DataType::Null => "-".to_owned(),
            other => panic!("{other} is not a type of a text table"),
        })
        .collect()
}

/// Returns the names of the columns.
pub fn names(decoded: &Decoded) -> Vec<String> {
    decoded.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
}

pub fn dtype(decoded: &Decoded, name: &str) -> DataType {
    decoded.batch.column_by_name(name).expect("the column is there").data_type().clone()
}

pub fn messages(decoded: &Decoded) -> Vec<String> {
    decoded
        .warnings
        .first
        .iter()
        .map(|warning| {
            // The name of the folder varies.
            let message = &warning.message;
            message.rfind("/data.txt").map_or(message.clone(), |at| message[at + 1..].to_owned())
        })
        .collect()
}
