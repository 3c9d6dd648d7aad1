//! Reads Parquet: one row group, or some of its rows.
//!
//! Column types are those of the file, except for text: it has 64-bit offsets as everywhere in this crate, unless the
//! file stores it as a dictionary, which is kept so that equal texts are created once. Dictionaries of other types are
//! read as their values, and extension types as their storage. The file's own declarations, such as extension types and
//! the index of a library, travel beside the columns ([`RowGroup::declared`]).

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::ipc::convert::try_schema_from_ipc_buffer;
use arrow::ipc::root_as_message;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ProjectionMask};
use parquet::basic::{Compression, ConvertedType, Encoding, LogicalType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::schema::types::TypePtr;

use protocol::{TableOptions, TypeRules};

use crate::cast::{check_types, with_given_types};
use crate::error::{Error, Result, display, unreadable};

/// Returns the number of rows in each row group of a Parquet file.
pub fn parquet_row_groups(path: &Path) -> Result<Vec<u64>> {
    let name = display(path);
    let metadata = footer(path, &name)?;
    check_codecs(&metadata, &name)?;
    let groups = metadata.metadata().row_groups().iter();
    groups.map(|group| u64::try_from(group.num_rows()).map_err(|_| negative(&name))).collect()
}

/// Fails if a column has an unsupported compression.
fn check_codecs(metadata: &ArrowReaderMetadata, name: &str) -> Result<()> {
    let unread = |codec: Compression| match codec {
        Compression::BROTLI(_) => Some("brotli"),
        Compression::LZO => Some("LZO"),
        _ => None,
    };
    let mut chunks = metadata.metadata().row_groups().iter().flat_map(RowGroupMetaData::columns);
    match chunks.find_map(|chunk| unread(chunk.compression())) {
        None => Ok(()),
        Some(codec) => {
            let message = format!(
                "has columns compressed with {codec}, which is not supported; write it with zstd or snappy"
            );
            Err(Error::kind(name, message))
        }
    }
}

/// Fails if a column to read holds intervals of Parquet, because the reader drops their months. Only Arrow writes
/// intervals without months, and declares them.
fn check_intervals(read: &Schema, metadata: &ParquetMetaData, name: &str) -> Result<()> {
    let written = arrow_schema(metadata).and_then(decoded_schema);
    let is_declared = |field: &Field| {
        let written =
            written.as_ref().and_then(|written| written.field_with_name(field.name()).ok());
        written.is_some_and(|written| written.data_type() == field.data_type())
    };
    let mut fields = read.fields().iter();
    match fields.find(|field| holds_intervals(field.data_type()) && !is_declared(field)) {
        None => Ok(()),
        Some(field) => {
            let message = format!(
                "has intervals in column \"{}\", whose months are not read; write it as text, or leave it out with \
                 `columns`",
                field.name()
            );
            Err(Error::kind(name, message))
        }
    }
}

fn holds_intervals(data_type: &DataType) -> bool {
    match data_type {
        DataType::Interval(_) => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => {
            holds_intervals(item.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|field| holds_intervals(field.data_type())),
        _ => false,
    }
}

/// Returns the names of the top-level columns of a Parquet file. Fails if a column cannot have its type in the options.
pub fn parquet_columns(path: &Path, options: &TableOptions) -> Result<Vec<String>> {
    let name = display(path);
    let metadata = footer(path, &name)?;
    check_types(&readable_schema(metadata.schema()), options, &name)?;
    Ok(metadata.schema().fields().iter().map(|field| field.name().clone()).collect())
}

/// Returns names and types of the columns of a Parquet file, for comparison with another. Reads only its footer.
pub fn parquet_shape(path: &Path) -> Result<Vec<(String, String)>> {
    let metadata = footer(path, &display(path))?;
    let fields = metadata.schema().fields().iter();
    Ok(fields.map(|field| (field.name().clone(), field.data_type().to_string())).collect())
}

/// Returns the bytes that the columns of a row group span in a Parquet file, which messages call `name`. Reads only its
/// footer.
pub fn row_group_bytes(path: &Path, name: &str, row_group: u32) -> Result<Range<u64>> {
    let metadata = footer(path, name)?;
    let ends = |(start, length): (u64, u64)| start..start.saturating_add(length);
    let all = |all: Range<u64>, one: Range<u64>| all.start.min(one.start)..all.end.max(one.end);
    let range = guarded(name, "footer", || {
        let group = metadata.metadata().row_groups().get(row_group as usize);
        let columns = group.map(|group| group.columns().iter().map(|column| column.byte_range()));
        Ok(columns.map(|columns| columns.map(ends).reduce(all).unwrap_or(0..0)))
    })?;
    range.ok_or_else(|| Error::plan(name, format!("it has no row group {row_group}")))
}

/// Returns where the footer of a Parquet file of `size` bytes begins; `None`: `end`, the last bytes of the file, is too
/// short to tell.
pub fn footer_start(size: u64, end: &[u8]) -> Option<u64> {
    // The last eight bytes are the length of the footer, and `PAR1`.
    let tail = end.last_chunk::<8>()?;
    let length = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    Some(size.saturating_sub(u64::from(length) + tail.len() as u64))
}

fn footer(path: &Path, name: &str) -> Result<ArrowReaderMetadata> {
    let file = File::open(path).map_err(unreadable(name))?;
    footer_of(&file, name)
}

fn footer_of(file: &File, name: &str) -> Result<ArrowReaderMetadata> {
    let load = |options| guarded(name, "footer", || ArrowReaderMetadata::load(file, options));
    load(ArrowReaderOptions::new()).map_err(|error| {
        let found = load(ArrowReaderOptions::new().with_skip_arrow_metadata(true)).ok();
        match found.and_then(|found| column_of_unknown_type(found.metadata())) {
            None => error,
            Some((column, bits)) => {
                let message = format!(
                    "declares column \"{column}\" as integers of {bits} bits, which Arrow lacks; write it as text or as \
                     decimals"
                );
                Error::kind(name, message)
            }
        }
    })
}

/// Returns the first column that the file declares as integers of a width that Arrow lacks, such as `Int128` of Polars,
/// and that width.
fn column_of_unknown_type(metadata: &ParquetMetaData) -> Option<(String, i32)> {
    let bytes = BASE64_STANDARD.decode(arrow_schema(metadata)?).ok()?;
    // A marker and a length come first.
    let message = root_as_message(bytes.get(8..)?).ok()?;
    let fields = message.header_as_schema()?.fields()?;
    let width = |field: &arrow::ipc::Field<'_>| field.type_as_int().map(|int| int.bitWidth());
    let field = fields
        .iter()
        .find(|field| width(field).is_some_and(|width| !matches!(width, 8 | 16 | 32 | 64)))?;
    Some((field.name()?.to_owned(), width(&field)?))
}

/// Returns the encoded schema of Arrow in the metadata of a file.
fn arrow_schema(metadata: &ParquetMetaData) -> Option<&str> {
    let entries = metadata.file_metadata().key_value_metadata()?;
    entries.iter().find(|entry| entry.key == ARROW_SCHEMA_META_KEY)?.value.as_deref()
}

fn negative(name: &str) -> Error {
    let message = "a row group has a negative number of rows".to_owned();
    Error::Malformed { path: name.to_owned(), place: "footer".to_owned(), message }
}

/// Turns a panic into an error: some corrupt files make the decoder panic.
pub(crate) fn guarded<T>(
    name: &str,
    place: &str,
    read: impl FnOnce() -> std::result::Result<T, ParquetError>,
) -> Result<T> {
    let malformed = |message: String| {
        let message = format!("not readable as Parquet: {message}");
        Error::Malformed { path: name.to_owned(), place: place.to_owned(), message }
    };
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|error| malformed(error.to_string())),
        Err(_) => Err(malformed("the content contradicts itself".to_owned())),
    }
}

/// Rows of a row group.
pub(crate) struct RowGroup {
    /// The rows.
    pub batch: RecordBatch,
    /// The same columns with their types and metadata in the file, and the metadata of the file.
    pub declared: Schema,
    /// Number of rows of the file before these.
    pub first_row: u64,
    /// Names of the last columns, which the options do not list: the index of a DataFrame.
    pub index: Vec<String>,
}

/// Reads row groups. Keeps the footer of the last file, which the next block probably needs.
#[derive(Default)]
pub(crate) struct RowGroupReader {
    last: Option<(Identity, Footer)>,
}

/// The footer of a file, prepared for the columns as they are read.
#[derive(Clone)]
struct Footer {
    readable: ArrowReaderMetadata,
    /// The schema as the file declares it.
    declared: SchemaRef,
}

#[derive(PartialEq)]
struct Identity {
    path: std::path::PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl RowGroupReader {
    /// Reads rows `offset .. offset + rows` of row group `row_group` of `path`, which messages call `name`: the columns
    /// that `options` list, in that order, and by the rules of pandas those of the index; or all columns without a
    /// list. Each has its type in the options. With `with_dictionaries`, text of a whole row group may be dictionaries,
    /// which cannot be combined across row groups.
    pub fn read(
        &mut self,
        path: &Path,
        name: &str,
        (row_group, offset, rows): (u32, u64, u64),
        options: &TableOptions,
        with_dictionaries: bool,
    ) -> Result<RowGroup> {
        let file = File::open(path).map_err(unreadable(name))?;
        let Footer { readable: mut metadata, declared } = self.footer(&file, path, name)?;
        let group = metadata.metadata().row_groups().get(row_group as usize);
        let is_whole =
            group.is_some_and(|group| offset == 0 && rows == group.num_rows().max(0) as u64);
        if let Some(group) = group.filter(|_| with_dictionaries)
            && let Some(schema) = dictionary_schema(&metadata, group, |column, chunk| {
                let is_declared =
                    matches!(declared.field(column).data_type(), DataType::Dictionary(..));
                is_declared || is_whole && is_only_dictionary(chunk)
            })
        {
            let reading = ArrowReaderOptions::new().with_schema(schema);
            let footer = Arc::clone(metadata.metadata());
            metadata = guarded(name, "footer", || ArrowReaderMetadata::try_new(footer, reading))?;
        }
        let schema = bare_schema(metadata.schema());
        let index = index_beside(options, &declared);
        let listed: Vec<String> = options.columns.iter().chain(&index).cloned().collect();
        let selection = Selection::new(&schema, &listed, name)?;
        let schema = match &selection {
            None => schema,
            Some(selection) => Arc::new(schema.project(&selection.columns)?),
        };
        check_intervals(&schema, metadata.metadata(), name)?;
        let row_group = row_group as usize;
        let mut sizes =
            metadata.metadata().row_groups().iter().map(|group| group.num_rows().max(0) as u64);
        let rows_before = sizes.by_ref().take(row_group).fold(0, u64::saturating_add);
        let available = if rows == 0 { Some(offset) } else { sizes.next() };
        if available
            .is_none_or(|available| offset.checked_add(rows).is_none_or(|end| end > available))
        {
            let message = format!(
                "row group {row_group} does not hold rows {offset} to {}",
                offset.saturating_add(rows)
            );
            return Err(Error::plan(name, message));
        }
        let first_row = rows_before.saturating_add(offset);
        let rows = usize::try_from(rows).expect("a mini-batch fits into memory");
        let offset = usize::try_from(offset).expect("a row group fits into memory");
        let read = |columns: Option<&[usize]>, place: &str| {
            guarded(name, place, || {
                let mut reader = ParquetRecordBatchReaderBuilder::new_with_metadata(
                    file.try_clone()?,
                    metadata.clone(),
                );
                if let Some(columns) = columns {
                    let mask =
                        ProjectionMask::roots(reader.parquet_schema(), columns.iter().copied());
                    reader = reader.with_projection(mask);
                }
                let reader = reader
                    .with_row_groups(vec![row_group])
                    .with_offset(offset)
                    .with_limit(rows)
                    .with_batch_size(rows.max(1))
                    .build()?;
                Ok(reader.collect::<std::result::Result<Vec<_>, _>>()?)
            })
        };
        let columns = selection.as_ref().map(|selection| selection.columns.as_slice());
        // A file without rows may have no row group.
        let batches = if rows == 0 {
            Ok(Vec::new())
        } else {
            read(columns, &format!("row group {row_group}"))
        };
        let batches = batches.map_err(|error| {
            // The reader does not name the column, so each one is read alone.
            let all: Vec<usize> = (0..metadata.schema().fields().len()).collect();
            let columns = columns.unwrap_or(&all).iter();
            let alone = |&column: &usize| {
                let name = metadata.schema().field(column).name();
                read(Some(&[column]), &format!("row group {row_group}, column \"{name}\"")).err()
            };
            columns.filter_map(alone).next().unwrap_or(error)
        })?;
        let batch =
            joined(&schema, batches.into_iter().map(|batch| (name.to_owned(), batch)).collect())?;
        if batch.num_rows() != rows {
            let message =
                format!("holds {} rows where its footer promises {rows}", batch.num_rows());
            return Err(Error::Malformed {
                path: name.to_owned(),
                place: format!("row group {row_group}"),
                message,
            });
        }
        let (batch, declared) = match selection {
            None => (batch, declared.as_ref().clone()),
            Some(selection) => {
                let wanted: Vec<usize> =
                    selection.order.iter().map(|&read| selection.columns[read]).collect();
                (batch.project(&selection.order)?, declared.project(&wanted)?)
            }
        };
        let stored = batch.schema();
        let batch = with_given_types(batch, options, name)?;
        let declared = given_schema(declared, &stored, &batch.schema());
        Ok(RowGroup { batch, declared, first_row, index })
    }

    fn footer(&mut self, file: &File, path: &Path, name: &str) -> Result<Footer> {
        let state = file.metadata().map_err(unreadable(name))?;
        let identity =
            Identity { path: path.to_owned(), bytes: state.len(), modified: state.modified().ok() };
        if let Some((known, footer)) = &self.last
            && *known == identity
        {
            return Ok(footer.clone());
        }
        let found = footer_of(file, name)?;
        let footer = guarded(name, "footer", || {
            let declared = declared_schema(found.schema(), found.metadata());
            let options = ArrowReaderOptions::new().with_schema(readable_schema(&declared));
            let readable = ArrowReaderMetadata::try_new(Arc::clone(found.metadata()), options)?;
            Ok(Footer { readable, declared })
        })?;
        self.last = Some((identity, footer.clone()));
        Ok(footer)
    }
}

/// Decodes a schema from the metadata of a file: Arrow IPC in base64.
pub(crate) fn decoded_schema(text: &str) -> Option<Schema> {
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    try_schema_from_ipc_buffer(&bytes).ok()
}

/// Metadata of a column: the name of its extension type.
const EXTENSION: &str = "ARROW:extension:name";

/// Returns the schema of a file, with two properties that the reader leaves out: the time zones of instants whose unit
/// Parquet lacks, and the extension types of columns that only Parquet marks as JSON or UUID.
fn declared_schema(found: &SchemaRef, metadata: &ParquetMetaData) -> SchemaRef {
    let written = arrow_schema(metadata).and_then(decoded_schema);
    let roots = metadata.file_metadata().schema_descr().root_schema().get_fields();
    let complete = |(field, root): (&Arc<Field>, &TypePtr)| {
        let written =
            written.as_ref().and_then(|written| written.field_with_name(field.name()).ok());
        let field = match (field.data_type(), written.map(Field::data_type)) {
            (DataType::Timestamp(unit, Some(_)), Some(DataType::Timestamp(_, zone @ Some(_)))) => {
                field.as_ref().clone().with_data_type(DataType::Timestamp(*unit, zone.clone()))
            }
            _ => field.as_ref().clone(),
        };
        let extension = match root.get_basic_info().logical_type_ref() {
            Some(LogicalType::Uuid) => "arrow.uuid",
            Some(LogicalType::Json) => "arrow.json",
            _ => return field,
        };
        let mut metadata = field.metadata().clone();
        if !metadata.contains_key(EXTENSION) {
            metadata.insert(EXTENSION.to_owned(), extension.to_owned());
        }
        field.with_metadata(metadata)
    };
    let fields: Vec<Field> = found.fields().iter().zip(roots).map(complete).collect();
    Arc::new(Schema::new_with_metadata(fields, found.metadata.clone()))
}

/// Returns the columns of an index of pandas that the options do not list. Only a list by the rules of pandas adds
/// them.
fn index_beside(options: &TableOptions, declared: &Schema) -> Vec<String> {
    if options.columns.is_empty() || options.types != TypeRules::Pandas {
        return Vec::new();
    }
    let known = declared
        .metadata
        .get("pandas")
        .and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
    let levels = known.as_ref().and_then(|known| known.get("index_columns")?.as_array());
    let names = levels.into_iter().flatten().filter_map(serde_json::Value::as_str);
    let is_beside = |name: &&str| {
        declared.column_with_name(name).is_some() && !options.columns.iter().any(|one| one == name)
    };
    names.filter(is_beside).map(str::to_owned).collect()
}

/// Returns the declared schema of a file, with the new types of the columns that the options have converted.
fn given_schema(declared: Schema, stored: &Schema, given: &Schema) -> Schema {
    let fields = declared.fields().iter().zip(stored.fields()).zip(given.fields());
    let fields = fields.map(|((declared, stored), given)| {
        Arc::clone(if stored.data_type() == given.data_type() { declared } else { given })
    });
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), declared.metadata.clone())
}

/// The columns of a file to read.
struct Selection {
    /// Their positions in the file, ascending: the order of reading.
    columns: Vec<usize>,
    /// The requested order, as positions in `columns`.
    order: Vec<usize>,
}

impl Selection {
    /// Returns `None` without a list, so that all columns are read.
    fn new(schema: &Schema, listed: &[String], name: &str) -> Result<Option<Self>> {
        if listed.is_empty() {
            return Ok(None);
        }
        let positions: HashMap<&str, usize> = schema
            .fields()
            .iter()
            .enumerate()
            .rev()
            .map(|(index, field)| (field.name().as_str(), index))
            .collect();
        let position = |column: &String| {
            positions.get(column.as_str()).copied().ok_or_else(|| {
                let message = format!(
                    "has no column \"{column}\", which `columns` lists and the first file has: write it into the file, or \
                     make files without it an input of their own"
                );
                Error::kind(name, message)
            })
        };
        let wanted: Vec<usize> = listed.iter().map(position).collect::<Result<_>>()?;
        let columns: Vec<usize> = BTreeSet::from_iter(wanted.iter().copied()).into_iter().collect();
        let order =
            wanted.iter().map(|column| columns.partition_point(|read| read < column)).collect();
        Ok(Some(Self { columns, order }))
    }
}

/// Combines batches with the same columns, each with the name of its file.
pub(crate) fn joined(
    schema: &SchemaRef,
    batches: Vec<(String, RecordBatch)>,
) -> Result<RecordBatch> {
    let first = batches.first().map(|(name, _)| name.clone()).unwrap_or_default();
    let batches = batches.into_iter().map(|(path, batch)| {
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let found = bare_schema(&batch.schema());
        if found != *schema {
            let message = format!(
                "has other columns, or other types, than {first} in the same mini-batch; make the files alike, or an input \
                 of each kind"
            );
            return Err(Error::Kind { path, message });
        }
        Ok(RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &options)?)
    });
    let batches: Vec<RecordBatch> = batches.collect::<Result<_>>()?;
    match <[RecordBatch; 1]>::try_from(batches) {
        Ok([batch]) => Ok(batch),
        Err(batches) => Ok(concat_batches(schema, &batches)?),
    }
}

/// Returns the schema without metadata.
fn bare_schema(schema: &Schema) -> SchemaRef {
    let bare = |field: &Arc<Field>| Field::new(field.name(), field.data_type().clone(), true);
    Arc::new(Schema::new(schema.fields().iter().map(bare).collect::<Vec<_>>()))
}

/// Returns the schema for the reader, without metadata, dictionaries and kinds of text. The reader requires that a
/// column which is never null in the file is declared so.
fn readable_schema(schema: &Schema) -> SchemaRef {
    let plain = |field: &Arc<Field>| {
        Field::new(field.name(), plain_type(field.data_type()), field.is_nullable())
    };
    Arc::new(Schema::new(schema.fields().iter().map(plain).collect::<Vec<_>>()))
}

/// Returns the schema with dictionaries for the `wanted` text columns that have one in this row group; `None` without
/// such columns. Other texts, such as JSON, are bytes for the reader of dictionaries.
fn dictionary_schema(
    metadata: &ArrowReaderMetadata,
    group: &RowGroupMetaData,
    wanted: impl Fn(usize, &ColumnChunkMetaData) -> bool,
) -> Option<SchemaRef> {
    let mut fields: Vec<Arc<Field>> = metadata.schema().fields().iter().map(Arc::clone).collect();
    let mut has_dictionaries = false;
    for (leaf, chunk) in group.columns().iter().enumerate() {
        let column = metadata.parquet_schema().get_column_root_idx(leaf);
        let field = &mut fields[column];
        let is_text = chunk.column_descr().converted_type() == ConvertedType::UTF8;
        let has_dictionary = is_text && chunk.dictionary_page_offset().is_some();
        if *field.data_type() == DataType::LargeUtf8 && has_dictionary && wanted(column, chunk) {
            let dictionary =
                DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
            *field = Arc::new(field.as_ref().clone().with_data_type(dictionary));
            has_dictionaries = true;
        }
    }
    has_dictionaries.then(|| Arc::new(Schema::new(fields)))
}

/// Returns whether every value of the chunk is in its dictionary, according to the writer.
fn is_only_dictionary(chunk: &ColumnChunkMetaData) -> bool {
    let is_only =
        |encoding| chunk.page_encoding_stats_mask().is_some_and(|mask| mask.is_only(encoding));
    is_only(Encoding::RLE_DICTIONARY) || is_only(Encoding::PLAIN_DICTIONARY)
}

fn plain_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::Utf8 | DataType::Utf8View => DataType::LargeUtf8,
        DataType::BinaryView => DataType::LargeBinary,
        other => other.clone(),
    }
}
