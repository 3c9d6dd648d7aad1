//! Splits delimited text into rows and cells.
//!
//! The one idea: a pass over the text, 64 bytes at a time, marks the few bytes that can end a cell; only those are
//! examined one by one. The pass writes the ends of cells into an index, from which the columns are then parsed one
//! after the other, each in its own tight loop. The index covers a few hundred rows at a time, so that it and its text
//! stay in the processor's cache.

use std::ops::Range;

use protocol::{MismatchPolicy, TableFormat, TableOptions};

/// Returns whether a line is blank. Blank lines are skipped everywhere.
pub(crate) fn is_blank(line: &[u8], delimiter: u8) -> bool {
    line.iter().all(|&byte| matches!(byte, b' ' | b'\t' | b'\r') && byte != delimiter)
}

/// Returns whether a record may contain line breaks.
pub(crate) fn is_multi_line(options: &TableOptions) -> bool {
    options.support_multi_line && matches!(options.format, TableFormat::Csv | TableFormat::Tsv)
}

/// Returns the splitter for `options`.
pub(crate) fn splitter(options: &TableOptions) -> Splitter {
    let drops_lossy = options.on_type_mismatch == MismatchPolicy::Reject;
    Splitter { delimiter: options.delimiter, multi_line: is_multi_line(options), drops_lossy }
}

/// Number of cells in the index of one chunk.
const INDEX_CELLS: usize = 16 * 1024;

/// The rules that separate cells and rows.
#[derive(Clone, Copy)]
pub(crate) struct Splitter {
    /// The delimiter between two cells of a row.
    pub delimiter: u8,
    /// Whether a line break in a quoted cell belongs to the cell. Otherwise it ends the row.
    pub multi_line: bool,
    /// Whether to leave out rows that have too many cells or end within quotes, and the rests of the latter. They are
    /// reported in any case.
    pub drops_lossy: bool,
}

/// A row with a wrong number of cells, or that ends within quotes.
pub(crate) struct Ragged {
    /// Its start in the text.
    pub position: usize,
    /// Number of its cells.
    pub cells: usize,
    /// Whether it ends within quotes, so that the next line is probably its rest.
    pub is_broken: bool,
    /// Whether it is such a rest: too short, with a quote that it does not open. Its own content must show that,
    /// because the line before it may be in another block. Only detected where such rows are left out.
    pub is_rest: bool,
}

/// The positions of the cells of some rows.
#[derive(Default)]
pub(crate) struct Rows {
    /// For each row: its start minus one, then the end of each of its cells; relative to `base`.
    index: Vec<u32>,
    base: usize,
    columns: usize,
    /// Number of rows.
    pub count: usize,
    /// Rows with too few or too many cells, or that end within quotes, including those left out.
    pub ragged: Vec<Ragged>,
    /// Whether the text ended within quotes, in a row that is not left out.
    pub unterminated: bool,
}

impl Rows {
    /// Returns the starts of the rows in the text.
    pub fn starts(&self) -> impl Iterator<Item = usize> + '_ {
        let rows = self.index[..self.count * (self.columns + 1)].chunks_exact(self.columns + 1);
        rows.map(|row| self.base + row[0].wrapping_add(1) as usize)
    }

    /// Returns the cells of one column as `(start, end)`. A missing cell has `start > end`.
    pub fn cells(&self, column: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let base = self.base;
        self.index[..self.count * (self.columns + 1)].chunks_exact(self.columns + 1).map(
            move |row| {
                (base + row[column].wrapping_add(1) as usize, base + row[column + 1] as usize)
            },
        )
    }
}

impl Splitter {
    /// Indexes the next rows of `text`, at most `rows_max`, and returns the start of the first row after them.
    pub fn split(
        &self,
        text: &[u8],
        from: usize,
        columns: usize,
        rows_max: usize,
        rows: &mut Rows,
    ) -> usize {
        let stride = columns + 1;
        let rows_max = rows_max.min(INDEX_CELLS / stride).max(1);
        let tail = &text[from..];
        rows.index.resize(rows.index.len().max(rows_max * stride), 0);
        (rows.base, rows.columns, rows.count, rows.unterminated) = (from, columns, 0, false);
        rows.ragged.clear();

        let mut window = 0;
        let mut marks = self.marks(tail, 0);
        let mut row = 0;
        let mut cell = 0;
        let mut cells = 0;
        let mut quoted = false;
        let mut after_quote = usize::MAX;
        let mut entry = &mut rows.index[..stride];
        loop {
            if marks == 0 {
                window += 64;
                if window < tail.len() {
                    marks = self.marks(tail, window);
                    continue;
                }
                let kept = rows.count;
                if row < tail.len() {
                    self.end_row(tail, row..tail.len(), cells, quoted && !self.multi_line, rows);
                }
                // A row that is left out is reported as such.
                rows.unterminated = quoted && self.multi_line && rows.count > kept;
                return text.len();
            }
            let at = window + marks.trailing_zeros() as usize;
            marks &= marks - 1;
            let byte = tail[at];
            if byte == self.delimiter {
                if quoted {
                    continue;
                }
                cells += 1;
                if let Some(end) = entry.get_mut(cells) {
                    *end = at as u32;
                }
                cell = at + 1;
            } else if byte == b'\n' {
                if quoted && self.multi_line {
                    continue;
                }
                self.end_row(tail, row..at, cells, quoted, rows);
                (row, cell, cells, quoted) = (at + 1, at + 1, 0, false);
                if rows.count == rows_max || row > u32::MAX as usize / 4 {
                    return from + row;
                }
                entry = &mut rows.index[rows.count * stride..][..stride];
            } else if quoted {
                // Closes the quotes, or is the first of two quotes that represent one.
                quoted = false;
                after_quote = at + 1;
            } else if at == cell || at == after_quote {
                quoted = true;
            }
        }
    }

    /// Adds the row `tail[place]` with `cells` delimiters to the index. `is_broken` says whether it ends within quotes.
    fn end_row(
        &self,
        tail: &[u8],
        place: Range<usize>,
        cells: usize,
        is_broken: bool,
        rows: &mut Rows,
    ) {
        let Range { start: row, mut end } = place;
        if end > row && tail[end - 1] == b'\r' {
            end -= 1;
        }
        if cells == 0 && is_blank(&tail[row..end], self.delimiter) {
            return;
        }
        let columns = rows.columns;
        let entry = &mut rows.index[rows.count * (columns + 1)..][..columns + 1];
        entry[0] = (row as u32).wrapping_sub(1);
        let found = cells + 1;
        if found <= columns {
            // Missing cells end before they start.
            entry[found..].fill(end as u32);
        }
        let ragged = if found > columns {
            // Delimiters at the end of a row add nothing.
            let kept = if columns == 0 { row } else { entry[columns] as usize };
            tail[kept..end].iter().any(|&byte| byte != self.delimiter)
        } else {
            found < columns
        };
        let has_stray_quote = || memchr::memchr_iter(b'"', &tail[row..end]).count() % 2 == 1;
        let is_rest = self.drops_lossy && !is_broken && found < columns && has_stray_quote();
        let is_lossy = is_broken || is_rest || ragged && found > columns;
        if ragged || is_broken {
            rows.ragged.push(Ragged {
                position: rows.base + row,
                cells: found,
                is_broken,
                is_rest,
            });
        }
        if !(is_lossy && self.drops_lossy) {
            rows.count += 1;
        }
    }

    /// Returns one bit for each of 64 bytes: whether it can end a cell.
    #[inline]
    fn marks(&self, tail: &[u8], window: usize) -> u64 {
        match tail[window..].first_chunk::<64>() {
            Some(chunk) => self.marks_of(chunk),
            None => {
                let rest = &tail[window..];
                let mut chunk = [0; 64];
                chunk[..rest.len()].copy_from_slice(rest);
                self.marks_of(&chunk) & ((1 << rest.len()) - 1)
            }
        }
    }

    #[inline]
    fn marks_of(&self, chunk: &[u8; 64]) -> u64 {
        // The compiler turns this into vector instructions: bytes of 0 or 1 first, then eight of them at
        // a time into eight bits by one multiplication.
        const GATHER: u64 = 0x0102_0408_1020_4080;
        let mut flags = [0u8; 64];
        for (flag, &byte) in flags.iter_mut().zip(chunk) {
            *flag = u8::from((byte == self.delimiter) | (byte == b'\n') | (byte == b'"'));
        }
        let mut marks = 0;
        for (index, word) in flags.as_chunks::<8>().0.iter().enumerate() {
            marks |= (u64::from_le_bytes(*word).wrapping_mul(GATHER) >> 56) << (index * 8);
        }
        marks
    }
}

/// Returns the content of a cell without its quotes. `scratch` contains it if it has doubled quotes.
pub(crate) fn unquote<'a>(cell: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
    let [b'"', inner @ ..] = cell else { return cell };
    if let [plain @ .., b'"'] = inner
        && memchr::memchr(b'"', plain).is_none()
    {
        return plain;
    }
    scratch.clear();
    let mut rest = inner;
    loop {
        let Some(quote) = memchr::memchr(b'"', rest) else {
            scratch.extend_from_slice(rest);
            return scratch;
        };
        scratch.extend_from_slice(&rest[..quote]);
        rest = &rest[quote + 1..];
        let [b'"', behind @ ..] = rest else {
            // Text after the closing quote is kept unchanged.
            scratch.extend_from_slice(rest);
            return scratch;
        };
        scratch.push(b'"');
        rest = behind;
    }
}

/// The first row of a text.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct FirstRow {
    /// Its cells; empty if the text is blank.
    pub cells: Vec<String>,
    /// Whether it ends within quotes.
    pub is_broken: bool,
    /// Start of the next row.
    pub next: usize,
}

/// Returns the first row of `text` that is not blank.
pub(crate) fn first_row(splitter: Splitter, text: &[u8]) -> FirstRow {
    let splitter = Splitter { drops_lossy: false, ..splitter };
    let mut rows = Rows::default();
    let next = splitter.split(text, 0, 0, 1, &mut rows);
    let (columns, is_broken) = match rows.ragged.first() {
        Some(row) => (row.cells, row.is_broken),
        // A row of only delimiters is not ragged in a table without columns.
        None if rows.count == 1 => {
            (memchr::memchr_iter(splitter.delimiter, &text[..next]).count() + 1, false)
        }
        None => return FirstRow { next, ..FirstRow::default() },
    };
    splitter.split(text, 0, columns, 1, &mut rows);
    let mut scratch = Vec::new();
    let cells = (0..columns).map(|column| {
        let (start, end) = rows.cells(column).next().expect("one row was split");
        String::from_utf8_lossy(unquote(&text[start..end], &mut scratch)).into_owned()
    });
    FirstRow { cells: cells.collect(), is_broken, next }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: Splitter = Splitter { delimiter: b',', multi_line: false, drops_lossy: false };

    fn split_all(splitter: Splitter, text: &[u8], columns: usize) -> Vec<Vec<Option<String>>> {
        let mut rows = Rows::default();
        let mut table = Vec::new();
        let mut from = 0;
        while from < text.len() {
            from = splitter.split(text, from, columns, 3, &mut rows);
            let first = table.len();
            table.resize(first + rows.count, Vec::new());
            for column in 0..columns {
                for (row, (start, end)) in rows.cells(column).enumerate() {
                    let cell = (start <= end)
                        .then(|| unquote(&text[start..end], &mut Vec::new()).to_vec());
                    table[first + row]
                        .push(cell.map(|cell| String::from_utf8_lossy(&cell).into_owned()));
                }
            }
        }
        table
    }

    /// Splits a text into cells, one byte at a time.
    fn reference(text: &[u8], columns: usize, multi_line: bool) -> Vec<Vec<Option<String>>> {
        let mut table = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let (mut row, start) = (Vec::new(), at);
            let mut is_last = false;
            while !is_last {
                let mut value = Vec::new();
                let mut in_quotes = text.get(at) == Some(&b'"');
                at += usize::from(in_quotes);
                loop {
                    match text.get(at) {
                        None => {
                            is_last = true;
                            break;
                        }
                        Some(b'"') if in_quotes && text.get(at + 1) == Some(&b'"') => {
                            value.push(b'"');
                            at += 1;
                        }
                        Some(b'"') if in_quotes => in_quotes = false,
                        Some(b'\n') if !(in_quotes && multi_line) => {
                            is_last = true;
                            break;
                        }
                        Some(b',') if !in_quotes => break,
                        Some(&byte) => value.push(byte),
                    }
                    at += 1;
                }
                if is_last && text[start..at].ends_with(b"\r") && value.ends_with(b"\r") {
                    value.pop();
                }
                row.push(String::from_utf8_lossy(&value).into_owned());
                at += 1;
            }
            let raw = &text[start..(at - 1).min(text.len())];
            if raw.iter().all(|byte| b" \t\r".contains(byte)) {
                continue;
            }
            let mut cells: Vec<Option<String>> = row.into_iter().map(Some).collect();
            cells.resize(columns, None);
            table.push(cells);
        }
        table
    }

    #[test]
    fn quotes_are_special_only_at_the_start_of_a_cell() {
        let table = split_all(PLAIN, b"\"a,b\",c\"d\n\"x\"\"y\",\"p\"q\"\n", 2);
        let expected = [["a,b", "c\"d"], ["x\"y", "pq\""]]
            .map(|row| row.map(|cell| Some(cell.to_owned())).to_vec());
        assert_eq!(table, expected);
    }

    #[test]
    fn quoted_line_break_ends_the_row_unless_multi_line() {
        let text = b"1,\"a\nb\"\n";
        assert_eq!(split_all(PLAIN, text, 2).len(), 2);
        let table = split_all(Splitter { multi_line: true, ..PLAIN }, text, 2);
        assert_eq!(table, [[Some("1".to_owned()), Some("a\nb".to_owned())]]);
    }

    #[test]
    fn row_that_ends_within_quotes_is_reported_for_any_width() {
        let mut rows = Rows::default();
        let text = b"1,\"a\nb\"\n2,\"c\"\n3,\"d";
        PLAIN.split(text, 0, 2, 9, &mut rows);
        let broken: Vec<_> =
            rows.ragged.iter().map(|row| (row.position, row.cells, row.is_broken)).collect();
        assert_eq!(broken, [(0, 2, true), (5, 1, false), (14, 2, true)]);
        Splitter { drops_lossy: true, ..PLAIN }.split(text, 0, 2, 9, &mut rows);
        assert_eq!((rows.count, rows.ragged[1].is_rest), (1, true), "strict jobs do not take them");
        Splitter { multi_line: true, ..PLAIN }.split(text, 0, 2, 9, &mut rows);
        assert!(rows.ragged.is_empty() && rows.unterminated);
    }

    #[test]
    fn ragged_rows_are_reported_and_trailing_delimiters_are_not() {
        let mut rows = Rows::default();
        let text = b"1,2\n1\n1,2,3\n1,2,,\n";
        assert_eq!(PLAIN.split(text, 0, 2, 9, &mut rows), text.len());
        let ragged: Vec<_> = rows.ragged.iter().map(|row| (row.position, row.cells)).collect();
        assert_eq!((rows.count, ragged), (4, vec![(4, 1), (6, 3)]));
        assert!(rows.ragged.iter().all(|row| !row.is_broken));
        Splitter { drops_lossy: true, ..PLAIN }.split(text, 0, 2, 9, &mut rows);
        assert_eq!((rows.count, rows.ragged.len()), (3, 2), "a short row loses nothing");
    }

    #[test]
    fn first_row_has_its_own_width() {
        let first = first_row(PLAIN, b"\n\na,\"b \"\"c\"\nd");
        assert_eq!(
            (first.cells, first.is_broken, first.next),
            (vec!["a".to_owned(), "b \"c".to_owned()], false, 12)
        );
        assert_eq!(first_row(PLAIN, b",,\n").cells, ["", "", ""]);
        assert_eq!(first_row(PLAIN, b""), FirstRow::default());
        assert!(first_row(PLAIN, b"a,\"b\nc\",d\n").is_broken);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn same_cells_as_one_byte_at_a_time(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "\"", "\"", "\"\"", ",", ",", "\n", "\r\n", "a", "bc", " ", "\0", "long text that crosses a window of 64 bytes",
            ]), 0..60),
            columns in 1usize..4,
            multi_line: bool,
        ) {
            let text = pieces.concat();
            let splitter = Splitter { multi_line, ..PLAIN };
            prop_assert_eq!(split_all(splitter, text.as_bytes(), columns), reference(text.as_bytes(), columns, multi_line));
        }
    }
}
