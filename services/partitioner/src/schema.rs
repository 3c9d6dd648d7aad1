//! Column names and types of a tabular input, found once before planning, and compared with the columns that the job
//! reads.

use protocol::{HeaderMode, Input, TableColumn, TableFormat, TableOptions, TableSchema, TypeRules};
use tables::{PLACES_MAX, SchemaInference};

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
pub(crate) fn infer<L: Iterator<Item = Result<Listed>>>(
    input: &Input,
    listing: impl Fn() -> L,
    remote: &Remote,
    path_columns: &[String],
) -> Result<TableSchema> {
    let inference = match input.table.types {
        TypeRules::Original => read_heads(input, listing(), remote, SchemaInference::is_complete)?,
        TypeRules::Pandas => read_sample(input, listing(), remote)?,
    };
    let mut schema = inference.finish(path_columns).expect("text has no types of its own");
    // A sample leaves files out.
    schema.is_empty = schema.is_empty
        && (input.table.types == TypeRules::Original
            || !read_heads(input, listing(), remote, SchemaInference::found_rows)?.found_rows());
    let (own, from_path) = schema.columns.split_at(schema.columns.len() - path_columns.len());
    let names: Vec<String> = own.iter().map(|column| column.name.clone()).collect();
    check_columns(input, &names)?;
    check_path_column(input, &names)?;
    let listed = &input.table.columns;
    let is_read = |column: &&TableColumn| listed.is_empty() || listed.contains(&column.name);
    match from_path
        .iter()
        .find(|column| own.iter().filter(is_read).any(|other| other.name == column.name))
    {
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
        let inference = read_heads(input, listing, remote, SchemaInference::knows_names)?;
        return Ok(inference.names().map(str::to_owned).collect());
    }
    check_types(input)?;
    let Some(listed) = listing.next().transpose()? else { return Ok(Vec::new()) };
    let file = LocalFile::open(remote, &input.name, &listed.path, Fetch::ParquetFooter)?;
    tables::parquet_columns(file.path(), &input.table)
        .map_err(|error| table_error(&input.name, &listed.path, error))
}

/// Fails if an input lists a column that its files do not have.
pub(crate) fn check_columns(input: &Input, there: &[String]) -> Result<()> {
    match missing(input, there).next() {
        None => Ok(()),
        Some(name) => Err(Error::bad_input(
            &input.name,
            format_args!(
                "the files have no column '{name}', which `columns` names; they have {}",
                there.join(", ")
            ),
        )),
    }
}

/// Fails if a column of the files has the name of the column of their paths.
pub(crate) fn check_path_column(input: &Input, there: &[String]) -> Result<()> {
    let TableOptions { columns, path_column, .. } = &input.table;
    match path_column
        .as_ref()
        .filter(|name| there.contains(name) && (columns.is_empty() || columns.contains(name)))
    {
        None => Ok(()),
        Some(name) => Err(Error::bad_input(
            &input.name,
            format_args!(
                "the files have a column '{name}', which is also the name of the column of their paths \
                 (path_column, or include_path_column of an MLTable); leave one of them out"
            ),
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
pub(crate) fn missing<'a>(
    input: &'a Input,
    there: &'a [String],
) -> impl Iterator<Item = &'a String> {
    let TableOptions { columns, column_types, format, .. } = &input.table;
    let typed = column_types.keys().filter(|name| !columns.contains(name));
    let may_come_later =
        |name: &String| *format == TableFormat::Jsonl && column_types.contains_key(name);
    let is_missing =
        move |name: &&String| !there.is_empty() && !there.contains(name) && !may_come_later(name);
    columns.iter().chain(typed).filter(is_missing)
}

/// Reads the beginnings of the files until `is_enough`.
fn read_heads(
    input: &Input,
    listing: impl Iterator<Item = Result<Listed>>,
    remote: &Remote,
    is_enough: impl Fn(&SchemaInference) -> bool,
) -> Result<SchemaInference> {
    let mut inference = begin(input)?;
    for listed in listing {
        read(input, &listed?, 1, remote, &mut inference)?;
        if is_enough(&inference) {
            break;
        }
    }
    Ok(inference)
}

/// Reads rows at places that are evenly spread over the files. Also reads every header if files name their own columns.
fn read_sample(
    input: &Input,
    listing: impl Iterator<Item = Result<Listed>>,
    remote: &Remote,
) -> Result<SchemaInference> {
    let mut inference = begin(input)?;
    if input.table.header == HeaderMode::AllFilesDifferentHeaders
        && input.table.format.is_delimited()
    {
        let files: Vec<Listed> = listing.collect::<Result<_>>()?;
        let sampled = spread(files.len() as u64);
        for (index, listed) in (0..).zip(&files) {
            read(input, listed, sampled(index), remote, &mut inference)?;
        }
        return Ok(inference);
    }
    let mut kept = SparseSample::default();
    for listed in listing {
        kept.add(listed?);
    }
    let sampled = spread(kept.files.len() as u64);
    for (index, listed) in (0..).zip(&kept.files) {
        match sampled(index) {
            0 => {}
            places => read(input, listed, places, remote, &mut inference)?,
        }
    }
    Ok(inference)
}

/// Returns the number of places to read in each of this many files. The first file, whose header names the columns, has
/// at least one.
fn spread(files: u64) -> impl Fn(u64) -> u64 {
    move |index| {
        let until = |index: u64| (index * PLACES_MAX).div_ceil(files.max(1));
        until(index + 1) - until(index)
    }
}

/// A sample of files from a listing of unknown length: every one of the first, then every second, fourth, …
struct SparseSample<T> {
    files: Vec<T>,
    /// Number of files so far, and the distance between two that are kept, as a power of two.
    listed: u64,
    distance: u32,
}

impl<T> Default for SparseSample<T> {
    fn default() -> Self {
        Self { files: Vec::new(), listed: 0, distance: 0 }
    }
}

impl<T> SparseSample<T> {
    fn add(&mut self, listed: T) {
        if self.listed.is_multiple_of(1 << self.distance) {
            if self.files.len() as u64 == 2 * PLACES_MAX {
                let mut index = 0;
                self.files.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.distance += 1;
            }
            if self.listed.is_multiple_of(1 << self.distance) {
                self.files.push(listed);
            }
        }
        self.listed += 1;
    }
}

fn begin(input: &Input) -> Result<SchemaInference> {
    check_types(input)?;
    SchemaInference::new(&input.table).map_err(|error| Error::bad_table(&input.name, error))
}

/// Reads the rows at some places of a file.
fn read(
    input: &Input,
    listed: &Listed,
    places: u64,
    remote: &Remote,
    inference: &mut SchemaInference,
) -> Result<()> {
    // A part of compressed data may not decode, and half a row looks like a row with line breaks.
    let must_be_read = tables::must_be_read(listed.path.as_bytes(), &input.table);
    let fetch = if must_be_read { Fetch::Whole } else { Fetch::Head(HEAD_BYTES) };
    let file = LocalFile::open(remote, &input.name, &listed.path, fetch)?;
    let added = inference.add_file(file.path(), &listed.path.display(), places);
    added.map_err(|error| Error::bad_table(&input.name, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_spread_over_all_files() {
        for files in [1, 2, 3, 63, 64, 65, 100, 128] {
            let places = spread(files);
            let all: Vec<u64> = (0..files).map(places).collect();
            assert_eq!(all.iter().sum::<u64>(), PLACES_MAX, "{files} files");
            assert!(all[0] >= 1, "{files} files");
            assert!(
                all.iter().max() <= all.iter().min().map(|least| least + 1).as_ref(),
                "{files} files: {all:?}"
            );
        }
        for files in [5, 128, 129, 1000, 100_000] {
            let mut kept = SparseSample::default();
            for number in 0..files {
                kept.add(number);
            }
            let numbers: Vec<u64> = kept.files;
            let distance = numbers[1] - numbers[0];
            assert!(
                numbers.windows(2).all(|pair| pair[1] - pair[0] == distance),
                "{files} files: {numbers:?}"
            );
            assert!(numbers[0] == 0 && files - numbers[numbers.len() - 1] <= distance);
            assert!(numbers.len() as u64 >= PLACES_MAX.min(files));
        }
    }
}
