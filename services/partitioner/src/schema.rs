//! Column names and types of a tabular input, found once before planning, and compared with the columns that the job
//! reads.

use protocol::{Input, TableColumn, TableFormat, TableOptions, TableSchema};

use crate::blocks::{LocalFile, table_error};
use crate::error::{Error, Result};
use crate::listing::Listed;
use crate::remote::{Fetch, Remote};

/// Bytes fetched of an object: more than 200 rows of most tables.
const HEAD_BYTES: u64 = 4 * 1024 * 1024;

/// A name that `columns` of an input lists, but that its files do not contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingColumn {
    /// Position of the input in the job.
    pub input: usize,
    /// The name.
    pub name: String,
    /// The existing columns.
    pub there: Vec<String>,
    /// Whether it comes from the path.
    pub is_from_path: bool,
}

/// Returns the columns of the files, then those from the path.
pub(crate) fn infer(
    input: &Input,
    listing: impl Iterator<Item = Result<Listed>>,
    remote: &Remote,
    path_columns: &[String],
) -> Result<TableSchema> {
    let inference = read_heads(input, listing, remote, tables::SchemaInference::is_complete)?;
    let schema = inference.finish(path_columns).expect("text has no types of its own");
    let (own, from_path) = schema.columns.split_at(schema.columns.len() - path_columns.len());
    check_columns(input, &own.iter().map(|column| column.name.clone()).collect::<Vec<_>>())?;
    let listed = &input.table.columns;
    let is_read = |column: &&TableColumn| listed.is_empty() || listed.contains(&column.name);
    match from_path.iter().find(|column| own.iter().filter(is_read).any(|other| other.name == column.name)) {
        None => Ok(schema),
        Some(TableColumn { name, .. }) => Err(Error::bad_input(
            &input.name,
            format_args!(
                "the column '{name}' appears in the files and in partition_format; give it another name in \
                 partition_format"
            ),
        )),
    }
}

/// Returns the columns in the files, from as little of them as possible; for Parquet, whose files should be alike, from
/// the first file.
pub(crate) fn columns(
    input: &Input,
    mut listing: impl Iterator<Item = Result<Listed>>,
    remote: &Remote,
) -> Result<Vec<String>> {
    if input.table.format.is_text() {
        let inference = read_heads(input, listing, remote, tables::SchemaInference::knows_names)?;
        return Ok(inference.names().map(str::to_owned).collect());
    }
    check_types(input)?;
    let Some(listed) = listing.next().transpose()? else { return Ok(Vec::new()) };
    let file = LocalFile::open(remote, &input.name, &listed.path, Fetch::ParquetFooter)?;
    tables::parquet_columns(file.path(), &input.table).map_err(|error| table_error(&input.name, &listed.path, error))
}

/// Fails if an input lists a column that its files do not have.
pub(crate) fn check_columns(input: &Input, there: &[String]) -> Result<()> {
    match missing(input, there).next() {
        None => Ok(()),
        Some(name) => Err(Error::bad_input(
            &input.name,
            format_args!("the files have no column '{name}', which `columns` names; they have {}", there.join(", ")),
        )),
    }
}

/// Fails if no column of this format can have a listed type. The job file alone does not show this if it names no
/// format.
pub(crate) fn check_types(input: &Input) -> Result<()> {
    let TableOptions { column_types, format, .. } = &input.table;
    match column_types.iter().find(|(_, column_type)| !column_type.is_possible_in(*format)) {
        None => Ok(()),
        Some((name, column_type)) => Err(Error::bad_input(
            &input.name,
            format_args!(
                "`columns` makes '{name}' {}, which no column of {} can be",
                column_type.name(),
                format.word()
            ),
        )),
    }
}

/// Returns the names in `columns` that the files do not have. Files without any column have no rows, either. For JSON
/// lines, `columns` may contain the type of a key that only later lines have.
pub(crate) fn missing<'a>(input: &'a Input, there: &'a [String]) -> impl Iterator<Item = &'a String> {
    let TableOptions { columns, column_types, format, .. } = &input.table;
    let typed = column_types.keys().filter(|name| !columns.contains(name));
    let may_come_later = |name: &String| *format == TableFormat::Jsonl && column_types.contains_key(name);
    let is_missing = move |name: &&String| !there.is_empty() && !there.contains(name) && !may_come_later(name);
    columns.iter().chain(typed).filter(is_missing)
}

/// Reads the beginnings of the files until `is_enough`.
fn read_heads(
    input: &Input,
    listing: impl Iterator<Item = Result<Listed>>,
    remote: &Remote,
    is_enough: impl Fn(&tables::SchemaInference) -> bool,
) -> Result<tables::SchemaInference> {
    let bad_table = |error| Error::bad_table(&input.name, error);
    check_types(input)?;
    let mut inference = tables::SchemaInference::new(&input.table).map_err(bad_table)?;
    for listed in listing {
        let listed = listed?;
        // A part of compressed data may not decode, and half a row looks like a row with line breaks.
        let must_be_read = tables::must_be_read(listed.path.as_bytes(), &input.table);
        let fetch = if must_be_read { Fetch::Whole } else { Fetch::Head(HEAD_BYTES) };
        let file = LocalFile::open(remote, &input.name, &listed.path, fetch)?;
        inference.add_file(file.path(), &listed.path.display()).map_err(bad_table)?;
        if is_enough(&inference) {
            break;
        }
    }
    Ok(inference)
}
