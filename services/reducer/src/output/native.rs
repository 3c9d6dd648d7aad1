//! The final file in a native format: the rows of all mini-batches, written by the format's own writer.

use std::io::Write;

use anyhow::Context;
use protocol::OutputFormat;

use super::csv_file::Csv;
use super::json_lines::JsonLines;
use super::parquet::Parquet;
use super::table::{Rows, Table, for_each_stream};
use super::{InOrder, rows_of};

/// Writes the rows of every mini-batch, and returns warnings about values that the format does not have. Calls `between`
/// after each mini-batch with its position; an error from it ends the writing.
pub(super) fn write<'a>(
    table: &Table,
    into: &'a mut (dyn Write + Send),
    format: OutputFormat,
    rows: &mut InOrder<'_>,
    between: &dyn Fn(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<String>> {
    let mut file: Box<dyn Rows + 'a> = match format {
        OutputFormat::Jsonl => Box::new(JsonLines::new(into, table)),
        OutputFormat::Parquet => Box::new(Parquet::new(into, table)?),
        OutputFormat::Csv | OutputFormat::Text => Box::new(Csv::new(into, table)?),
    };
    let mut position = 0;
    rows.for_each(&mut |mini_batch, rows, joined| {
        for_each_stream(rows, joined, |stream| stream.try_for_each(|batch| file.write(&batch?)))
            .with_context(|| rows_of(mini_batch))?;
        position += 1;
        between(position - 1)
    })?;
    file.finish().context("finish the file")
}
