//! The final file in a native format: the rows of all mini-batches, in their order.
//!
//! Formatting takes longer than reading and writing. So one thread reads the rows and hands them out in turn, several threads
//! format them, and another one takes their texts in the same turn, which keeps the order, and writes them.

use std::io::Write;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, bail};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
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
const PIECE_BATCHES_MAX: usize = 256;

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
        let (mut formatters, mut texts, mut formatting) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..count {
            let (formatter, pieces) = mpsc::sync_channel::<Vec<(u64, RecordBatch)>>(1);
            let (formatted, text) = mpsc::sync_channel(1);
            formatting.push(scope.spawn(move || {
                let mut texts = pieces.iter().map(|piece| format(lines, &piece));
                // Fails once the writer has failed, and receives no more.
                let _ = texts.try_for_each(|text| formatted.send(text));
            }));
            formatters.push(formatter);
            texts.push(text);
        }
        let writing = scope.spawn(move || {
            let mut beginning = Vec::new();
            lines.begin(&mut beginning);
            into.write_all(&beginning)?;
            // The pieces have ended when the formatter whose turn it is has none.
            for text in texts.iter().cycle().map_while(|text| text.recv().ok()) {
                into.write_all(&text?)?;
            }
            anyhow::Ok(into.flush()?)
        });
        let mut pieces = Pieces { formatters, next: 0, piece: Vec::new(), bytes: 0 };
        let read = read(&mut |mini_batch, batch| pieces.add(mini_batch, &batch))
            .and_then(|()| pieces.send());
        drop(pieces);
        for formatting in formatting {
            formatting.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
        // Its error comes first: without a writer, reading fails as well.
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

fn bytes_of(column: &ArrayRef) -> Result<usize, ArrowError> {
    match column.data_type() {
        // Its buffers may be those of the whole message.
        DataType::Utf8View => {
            Ok(column.as_string_view().lengths().map(|bytes| bytes as usize).sum())
        }
        _ => column.to_data().get_slice_memory_size(),
    }
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
        let bytes = batch.columns().iter().map(bytes_of).sum::<Result<usize, _>>()?.max(1);
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use arrow::array::Date32Builder;
    use arrow::array::{
        Int64Array, ListArray, MapBuilder, StringArray, StringBuilder, StringViewArray, StructArray,
    };
    use arrow::datatypes::Int32Type;

    use super::super::cells::{Json, cells, push_json};
    use super::*;

    /// Every cell of a row as JSON. A negative number cannot be formatted.
    struct Rows;

    impl Lines for Rows {
        fn begin(&self, into: &mut Vec<u8>) {
            into.extend_from_slice(b"header\n");
        }

        fn append(&self, batch: &RecordBatch, into: &mut Vec<u8>) -> anyhow::Result<()> {
            let schema = batch.schema();
            let columns = schema.fields().iter().zip(batch.columns());
            let columns: Vec<_> = columns
                .map(|(field, column)| cells(column, field, field))
                .collect::<Result<_, _>>()?;
            for row in 0..batch.num_rows() {
                for cells in &columns {
                    let start = into.len();
                    push_json(&**cells, row, Json::Strict, into);
                    anyhow::ensure!(into[start] != b'-', "a negative number");
                    into.push(b' ');
                }
                into.push(b'\n');
            }
            Ok(())
        }
    }

    fn batch(first: i64, rows: i64) -> RecordBatch {
        let numbers = || first..first + rows;
        let gap = |number: i64| number % 7 != 0;
        let (ids, texts) = (
            Int64Array::from_iter(numbers().map(|number| gap(number).then_some(number))),
            StringArray::from_iter(
                numbers().map(|number| gap(number).then(|| format!("{number}"))),
            ),
        );
        let views = StringViewArray::from_iter_values(
            numbers().map(|number| format!("a longer text {number}")),
        );
        let lists = numbers().map(|number| {
            gap(number).then(|| (0..number % 4).map(|item| Some(item as i32)).collect::<Vec<_>>())
        });
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
        let mut maps = MapBuilder::new(None, StringBuilder::new(), Date32Builder::new());
        for number in numbers() {
            for key in 0..number % 3 {
                maps.keys().append_value(format!("k{key}"));
                maps.values().append_value(number as i32 % 10_000);
            }
            maps.append(gap(number)).expect("as many keys as values");
        }
        let columns: [(&str, ArrayRef); 5] = [
            ("ids", Arc::new(ids)),
            ("texts", Arc::new(texts)),
            ("views", Arc::new(views)),
            ("lists", Arc::new(lists)),
            ("maps", Arc::new(maps.finish())),
        ];
        let all =
            StructArray::from(RecordBatch::try_from_iter(columns.clone()).expect("equal lengths"));
        let columns = columns.into_iter().chain([("all", Arc::new(all) as ArrayRef)]);
        RecordBatch::try_from_iter(columns).expect("equal lengths")
    }

    fn written(batches: &[RecordBatch], into: &mut (dyn Write + Send)) -> anyhow::Result<()> {
        write_lines(&Rows, into, |take| {
            (0..).zip(batches).try_for_each(|(mini_batch, batch)| take(mini_batch, batch.clone()))
        })
    }

    #[test]
    fn rows_of_many_pieces_keep_their_order() {
        let mut batches = vec![batch(0, 60_000)];
        batches.extend((0..2_000).map(|number| batch(60_000 + number, 1)));
        batches.extend([batch(0, 0), batch(62_000, 60_000)]);
        let mut expected = Vec::new();
        Rows.begin(&mut expected);
        for batch in &batches {
            Rows.append(batch, &mut expected).expect("valid");
        }
        let mut found = Vec::new();
        written(&batches, &mut found).expect("memory");
        assert!(expected.len() > 16 * PIECE_BYTES && found == expected);
        found.clear();
        written(&[], &mut found).expect("memory");
        assert_eq!(found, b"header\n");
    }

    /// A file on a disk with room for this many bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let left = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            self.0 = left;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn first_failure_ends_the_writing() {
        let many: Vec<RecordBatch> = (0..40).map(|number| batch(10_000 * number, 10_000)).collect();
        let error = written(&many, &mut Full(3 * PIECE_BYTES)).expect_err("full");
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        assert_eq!(kind, Some(io::ErrorKind::StorageFull), "{error:#}");
        let invalid = [&many[..3], &[batch(-5, 3)], &many[3..]].concat();
        let error = written(&invalid, &mut Vec::new()).expect_err("not a row");
        assert_eq!(format!("{error:#}"), format!("{}: a negative number", rows_of(3)));
        let stopped = write_lines(&Rows, &mut Vec::new(), |take| {
            many.iter().try_for_each(|batch| take(0, batch.clone()))?;
            bail!("abandoned")
        });
        assert_eq!(stopped.expect_err("stopped").to_string(), "abandoned");
    }
}
