//! The final file in a native format: the rows of all mini-batches, in their order.
//!
//! Formatting takes longer than reading and writing. So this thread reads batches of rows, several others format them, each in
//! its turn, and one writes the texts in the same turns, which are the order of the file.

use std::io::Write;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, bail};
use arrow::array::{Array, RecordBatch};
use protocol::OutputFormat;

use super::csv_file::Csv;
use super::json_lines::{Infinite, JsonLines};
use super::parquet::Parquet;
use super::table::{Lines, Table, for_each_stream};
use super::{InOrder, rows_of};

/// Threads that format lines, at most.
const FORMATTERS_MAX: usize = 4;
/// Bytes of rows that a thread formats at once.
const PIECE_BYTES: usize = 1 << 20;
/// Batches of rows that a thread formats at once, at most.
const PIECE_BATCHES_MAX: usize = 4096;

/// Writes the rows of every mini-batch, and returns warnings about values that the format does not have. Calls `between`
/// after each mini-batch with its position; an error from it ends the writing.
pub(super) fn write(
    table: &Table,
    into: &mut (dyn Write + Send),
    format: OutputFormat,
    rows: &mut InOrder<'_>,
    between: &dyn Fn(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<String>> {
    let mut read = |take: &mut dyn FnMut(u64, RecordBatch) -> anyhow::Result<()>| {
        let mut position = 0;
        rows.for_each(&mut |mini_batch, rows, joined| {
            for_each_stream(rows, joined, |stream| {
                stream.try_for_each(|batch| take(mini_batch, batch?))
            })
            .with_context(|| rows_of(mini_batch))?;
            position += 1;
            between(position - 1)
        })
    };
    match format {
        OutputFormat::Parquet => {
            let mut file = Parquet::new(into, table)?;
            read(&mut |_, batch| file.write(&batch))?;
            file.finish().map(|()| Vec::new())
        }
        OutputFormat::Jsonl => {
            let mut infinite = Infinite::default();
            write_lines(&JsonLines::new(table), into, |take| {
                read(&mut |mini_batch, batch| {
                    infinite.count(&table.schema, &batch);
                    take(mini_batch, batch)
                })
            })?;
            Ok(infinite.warnings())
        }
        OutputFormat::Csv | OutputFormat::Text => {
            write_lines(&Csv::new(table), into, read).map(|()| Vec::new())
        }
    }
}

/// Writes rows as lines. `read`: calls its argument with each batch of a mini-batch.
fn write_lines(
    lines: &impl Lines,
    into: &mut (dyn Write + Send),
    read: impl FnOnce(&mut dyn FnMut(u64, RecordBatch) -> anyhow::Result<()>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let count = thread::available_parallelism().map_or(1, NonZero::get).min(FORMATTERS_MAX);
    thread::scope(|scope| {
        let (mut formatters, mut texts) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (formatter, pieces) = mpsc::sync_channel::<Vec<(u64, RecordBatch)>>(1);
            let (formatted, text) = mpsc::sync_channel(1);
            scope.spawn(move || {
                pieces
                    .iter()
                    .map(|piece| format(lines, &piece))
                    .try_for_each(|text| formatted.send(text))
            });
            formatters.push(formatter);
            texts.push(text);
        }
        let writing = scope.spawn(move || {
            let mut beginning = Vec::new();
            lines.begin(&mut beginning);
            into.write_all(&beginning)?;
            // The first formatter without a text was to have the piece after the last one.
            for text in texts.iter().cycle().map_while(|text| text.recv().ok()) {
                into.write_all(&text?)?;
            }
            anyhow::Ok(into.flush()?)
        });
        let mut pieces = Pieces { formatters, next: 0, piece: Vec::new(), bytes: 0 };
        let read = read(&mut |mini_batch, batch| pieces.add(mini_batch, &batch))
            .and_then(|()| pieces.send());
        drop(pieces);
        // If it fails, reading stops for want of a receiver.
        writing.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        read
    })
}

fn format(lines: &impl Lines, piece: &[(u64, RecordBatch)]) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(PIECE_BYTES);
    for (mini_batch, batch) in piece {
        lines.append(batch, &mut text).with_context(|| rows_of(*mini_batch))?;
    }
    Ok(text)
}

/// Hands rows to the formatters, to each in its turn.
struct Pieces {
    formatters: Vec<mpsc::SyncSender<Vec<(u64, RecordBatch)>>>,
    next: usize,
    piece: Vec<(u64, RecordBatch)>,
    bytes: usize,
}

impl Pieces {
    fn add(&mut self, mini_batch: u64, batch: &RecordBatch) -> anyhow::Result<()> {
        let sizes = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
        let bytes = sizes.sum::<Result<usize, _>>()?.max(1);
        let rows = batch.num_rows();
        let rows_each = (rows * PIECE_BYTES / bytes).max(1);
        for start in (0..rows).step_by(rows_each) {
            let part = batch.slice(start, rows_each.min(rows - start));
            self.bytes += bytes * part.num_rows() / rows;
            self.piece.push((mini_batch, part));
            if self.bytes >= PIECE_BYTES || self.piece.len() == PIECE_BATCHES_MAX {
                self.send()?;
            }
        }
        Ok(())
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.bytes = 0;
        let piece = std::mem::take(&mut self.piece);
        if self.formatters[self.next].send(piece).is_err() {
            bail!("the rows cannot be written");
        }
        self.next = (self.next + 1) % self.formatters.len();
        Ok(())
    }
}
