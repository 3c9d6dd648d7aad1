//! Column names and types of a tabular input, found once before anything is planned, and whether they are those that the
//! job wants to read.

use protocol::{Input, TableColumn, TableSchema};

use crate::blocks::{LocalFile, table_error};
use crate::error::{Error, Result};
use crate::listing::Listed;
use crate::remote::{Fetch, Remote};

/// What is fetched of an object: more than 200 rows of most tables.
const HEAD_BYTES: u64 = 4 * 1024 * 1024;

/// A name that an input lists in `columns`, but that is none of its files' own columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingColumn {
    /// Position of the input in the job.
    pub input: usize,
    /// Position of the name in its list.
    pub position: usize,
    /// The columns that there are.
    pub there: Vec<String>,
    /// Whether it comes from the path.
    pub is_from_path: bool,
}

/// The columns of the files, then those that come from the path.
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
                "the column '{name}' stands in the files and in partition_format; give it another name in \
                 partition_format"
            ),
        )),
    }
}

/// The files' own columns, by as little of them as tells. Of Parquet, whose files should be alike, by the first.
pub(crate) fn columns(
    input: &Input,
    mut listing: impl Iterator<Item = Result<Listed>>,
    remote: &Remote,
) -> Result<Vec<String>> {
    if input.table.format.is_text() {
        let inference = read_heads(input, listing, remote, tables::SchemaInference::knows_names)?;
        return Ok(inference.names().map(str::to_owned).collect());
    }
    let Some(listed) = listing.next().transpose()? else { return Ok(Vec::new()) };
    let file = LocalFile::open(remote, &input.name, &listed.path, Fetch::ParquetFooter)?;
    tables::parquet_columns(file.path()).map_err(|error| table_error(&input.name, &listed.path, &error))
}

/// Refuses an input that lists a column which its files do not have.
pub(crate) fn check_columns(input: &Input, there: &[String]) -> Result<()> {
    match missing(input, there).next() {
        None => Ok(()),
        Some((_, name)) => Err(Error::bad_input(
            &input.name,
            format_args!("the files have no column '{name}', which `columns` lists; they have {}", there.join(", ")),
        )),
    }
}

/// What is listed and not there, with its position in the list. Files without any column have no rows to read either.
pub(crate) fn missing<'a>(input: &'a Input, there: &'a [String]) -> impl Iterator<Item = (usize, &'a String)> {
    input.table.columns.iter().enumerate().filter(|(_, name)| !there.is_empty() && !there.contains(name))
}

/// The beginnings of the files, until `is_enough`.
fn read_heads(
    input: &Input,
    listing: impl Iterator<Item = Result<Listed>>,
    remote: &Remote,
    is_enough: impl Fn(&tables::SchemaInference) -> bool,
) -> Result<tables::SchemaInference> {
    let bad_table = |error| Error::bad_input(&input.name, error);
    let mut inference = tables::SchemaInference::new(&input.table).map_err(bad_table)?;
    // A row with line breaks in it cannot be told from half a row.
    let fetch = if input.table.support_multi_line { Fetch::Whole } else { Fetch::Head(HEAD_BYTES) };
    for listed in listing {
        let listed = listed?;
        let file = LocalFile::open(remote, &input.name, &listed.path, fetch)?;
        inference.add_file(file.path(), &listed.path.display()).map_err(bad_table)?;
        if is_enough(&inference) {
            break;
        }
    }
    Ok(inference)
}
