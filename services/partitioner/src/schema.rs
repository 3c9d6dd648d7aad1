//! Column names and types of a tabular input, found once before anything is planned.

use protocol::{Input, TableColumn, TableSchema};

use crate::blocks::LocalFile;
use crate::error::{Error, Result};
use crate::listing::Listed;
use crate::remote::{Fetch, Remote};

/// What is fetched of an object: more than 200 rows of most tables.
const HEAD_BYTES: u64 = 4 * 1024 * 1024;

/// The columns of the files, then those that come from the path.
pub(crate) fn infer(
    input: &Input,
    listing: impl Iterator<Item = Result<Listed>>,
    remote: &Remote,
    path_columns: &[String],
) -> Result<TableSchema> {
    let bad_table = |error| Error::bad_input(&input.name, error);
    let mut inference = tables::SchemaInference::new(&input.table).map_err(bad_table)?;
    // A row with line breaks in it cannot be told from half a row.
    let fetch = if input.table.support_multi_line { Fetch::Whole } else { Fetch::Head(HEAD_BYTES) };
    for listed in listing {
        let listed = listed?;
        let file = LocalFile::open(remote, &input.name, &listed.path, fetch)?;
        inference.add_file(file.path(), &listed.path.display()).map_err(bad_table)?;
        if inference.is_complete() {
            break;
        }
    }
    let schema = inference.finish(path_columns).expect("text has no types of its own");
    let (own, from_path) = schema.columns.split_at(schema.columns.len() - path_columns.len());
    match from_path.iter().find(|column| own.iter().any(|other| other.name == column.name)) {
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
