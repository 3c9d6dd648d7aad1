//! The items that an attempt names as rejected, with texts that are short enough: those of [`REJECTED_MAX`] items fit
//! into one message, and more items go to an object of the store.

use protocol::{ErrorReport, FailedItems, REJECTED_MAX, Rejected};

use crate::memory_files::MemoryFile;

/// Bytes of the rejected rows that an attempt names, for each [`REJECTED_MAX`] of them, and of one row.
const VALUES_BYTES: usize = 64 * 1024;
const ROW_BYTES_MAX: usize = 4 * 1024;
/// Bytes that are kept of the texts of a rejected item, and of the tracebacks of each [`REJECTED_MAX`] of them.
const TEXT_BYTES: usize = 400;
const TRACEBACK_BYTES: usize = 2 * 1024;
const TRACEBACKS_BYTES: usize = 24 * 1024;
/// Bytes that are kept of what the run of a rejected item has printed, and of these texts of each [`REJECTED_MAX`] of them.
const PRINTED_BYTES: usize = 1024;
const ALL_PRINTED_BYTES: usize = 12 * 1024;
/// Most times that an attempt has this room, which bounds the memory that it needs.
const TIMES_MAX: usize = 64;

/// Returns the rejects of a success: at most as many items as have no result, because a process runs code of the user and
/// may claim anything. `detail` names an item for people.
pub(super) fn rejected(
    failed: Vec<FailedItems>,
    mut without_result: u64,
    detail: impl Fn(u64) -> String,
) -> Vec<Rejected> {
    let rejected = failed.into_iter().map(|FailedItems { item, items, status, error }| {
        let items = items.min(without_result);
        without_result -= items;
        Rejected {
            item,
            items,
            detail: detail(item),
            values: String::new(),
            status,
            error,
            run: None,
        }
    });
    let mut rejected: Vec<Rejected> = rejected.filter(|rejected| rejected.items > 0).collect();
    shorten(&mut rejected);
    rejected
}

/// Returns how often there is room for the texts of [`REJECTED_MAX`] items.
fn times(items: usize) -> usize {
    items.div_ceil(REJECTED_MAX).clamp(1, TIMES_MAX)
}

/// Shortens the texts of rejects.
pub(super) fn shorten(rejected: &mut [Rejected]) {
    let times = times(rejected.len());
    let mut rooms = [TRACEBACKS_BYTES * times, ALL_PRINTED_BYTES * times];
    for Rejected { detail, error, .. } in rejected {
        shorten_error(error);
        for (text, room) in [&mut error.traceback, &mut error.printed].into_iter().zip(&mut rooms) {
            if text.len() > *room {
                text.clear();
            }
            *room -= text.len();
        }
        cut(detail);
    }
}

/// Shortens the texts of the error of an item.
pub(super) fn shorten_error(error: &mut ErrorReport) {
    let ErrorReport { category, message, traceback, log, printed } = error;
    keep_ends(traceback, TRACEBACK_BYTES);
    if keep_end(printed, PRINTED_BYTES)
        && let Some(end) = printed.find('\n')
    {
        printed.drain(..=end);
    }
    [category, message, log].into_iter().for_each(cut);
}

/// Keeps the lines at both ends of a traceback: the first ones are those of the script, and the last one is the error.
fn keep_ends(text: &mut String, bytes: usize) {
    if text.len() <= bytes {
        return;
    }
    let head = text.floor_char_boundary(bytes / 2);
    let head = text[..head].rfind('\n').map_or(head, |end| end + 1);
    let tail = text.ceil_char_boundary(text.len() - bytes / 2);
    let tail = text[tail..].find('\n').map_or(tail, |end| tail + end + 1);
    let left_out = text[head..tail].lines().count();
    text.replace_range(head..tail, &format!("  … {left_out} lines …\n"));
}

/// Keeps the end of a text. Returns whether it was longer.
fn keep_end(text: &mut String, bytes: usize) -> bool {
    let start = text.ceil_char_boundary(text.len().saturating_sub(bytes));
    text.drain(..start);
    start > 0
}

fn cut(text: &mut String) {
    if text.len() > TEXT_BYTES {
        text.truncate(text.floor_char_boundary(TEXT_BYTES));
        text.push('…');
    }
}

/// Adds to the rejected rows of a table what they hold. `bytes`: length of the table.
pub(super) fn add_values(rejected: &mut [Rejected], table: &MemoryFile, bytes: u64) {
    let single = rejected.iter_mut().filter(|rejected| rejected.items == 1).collect::<Vec<_>>();
    if single.is_empty() {
        return;
    }
    let rows: Vec<u64> = single.iter().map(|rejected| rejected.item).collect();
    for (rejected, text) in single.into_iter().zip(values(&rows, table, bytes)) {
        rejected.values = text;
    }
}

/// Returns what these rows of a table hold, each as a JSON object. Empty if the table cannot be read: the texts are for
/// people, who still have the place of the row. `bytes`: length of the table.
pub(super) fn values(rows: &[u64], table: &MemoryFile, bytes: u64) -> Vec<String> {
    let each = (VALUES_BYTES * times(rows.len()) / rows.len().max(1)).min(ROW_BYTES_MAX);
    let texts =
        table.copy(bytes).ok().and_then(|stream| tables::row_texts(&stream, rows, each).ok());
    texts.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_traceback_keeps_the_lines_of_the_script_and_the_error() {
        let first = "Traceback (most recent call last):\n  File \"score.py\", line 3, in run\n";
        let frame = "  File \"/lib/pandas/frame.py\", line 99, in apply\n    return self.ä()\n";
        let mut text = format!("{first}{}ValueError: bad value\n", frame.repeat(100));
        let lines = text.lines().count();
        keep_ends(&mut text, TRACEBACK_BYTES);
        assert!(text.len() <= TRACEBACK_BYTES + 40, "{}", text.len());
        assert!(text.starts_with(first) && text.ends_with("ValueError: bad value\n"), "{text}");
        let (_, rest) = text.split_once("  … ").expect("a mark");
        let left_out: usize = rest.split(' ').next().expect("a number").parse().expect("a number");
        assert_eq!(text.lines().count() - 1 + left_out, lines);
        let mut short = first.to_owned();
        keep_ends(&mut short, TRACEBACK_BYTES);
        assert_eq!(short, first);
        let mut one_line = "ü".repeat(TRACEBACK_BYTES);
        keep_ends(&mut one_line, TRACEBACK_BYTES);
        assert!(one_line.len() <= TRACEBACK_BYTES + 40);
    }
}
