//! Checks whether the beginning of a text file suits its options, and notes possible surprises.
//!
//! It decides nothing: the options determine how a file is read, and the notes point out where they seem wrong.

use encoding_rs::{Encoding, UTF_8};
use protocol::{HeaderMode, TableFormat, TableOptions};
use serde::de::IgnoredAny;

use crate::charset::{Charset, encoding_of};
use crate::headers::has_header;
use crate::line_ends::{CR_ALONE, LineEnds};
use crate::scalar::{parse_float, trim};
use crate::source::is_splittable;
use crate::split::{FirstRow, Rows, first_row, is_multi_line, splitter};
use crate::wide::unmarked_utf16;

/// Common delimiters.
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// Maximum number of cells of a line in a note, and of characters of each.
const CELLS_SHOWN: usize = 4;
const CELL_CHARACTERS: usize = 20;
/// Bytes of a JSON object that tell a table from a row.
const WHOLE_TABLE_BYTES: usize = 256;

/// The result for the beginning of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peek {
    /// The encoding according to the byte order mark.
    pub mark: Option<&'static str>,
    /// The cells of the first line of delimited text; empty if unknown.
    pub first_row: Vec<String>,
    /// Possible surprises, each with the key that changes it. A sentence continues the name of the file.
    pub notes: Vec<(&'static str, String)>,
    /// Why the file cannot be read with these options, as a sentence that continues its name.
    pub refusal: Option<String>,
}

/// Checks `head`, the first bytes of a text file, which may be the whole file (`is_whole`).
pub fn peek(head: &[u8], is_whole: bool, options: &TableOptions) -> Peek {
    let mut peek = Peek::default();
    let mark = Encoding::for_bom(head);
    peek.mark = mark.map(|(encoding, _)| encoding.name());
    let (charset, mark_bytes) = match (mark, Charset::of(options)) {
        (Some((encoding, mark_bytes)), _) => (encoding.into(), mark_bytes),
        (None, Ok(charset)) => (charset, 0),
        // Another check rejects these options.
        (None, Err(_)) => return peek,
    };
    let encoding = charset.encoding;
    let is_expected =
        is_multi_line(options) || encoding_of(options).is_ok_and(|given| !is_splittable(given));
    if !is_splittable(encoding) && !is_expected {
        let name = encoding.name();
        let setting = name.to_lowercase();
        peek.refusal =
            Some(format!("is {name} text; set `encoding: {setting}`, or convert it to UTF-8"));
        return peek;
    }
    if encoding == UTF_8 {
        peek.refusal = unmarked_utf16(head);
        if peek.refusal.is_some() {
            return peek;
        }
    }
    if encoding == UTF_8
        && let Err(error) = std::str::from_utf8(head)
        && error.error_len().is_some()
    {
        if is_binary(head) {
            peek.refusal = Some(
                "is not text: it holds control characters and bytes that are not UTF-8; set `format`, or leave it out"
                    .to_owned(),
            );
            return peek;
        }
        let at = error.valid_up_to();
        peek.notes.push((
            "encoding",
            format!(
                "is not valid UTF-8 (first at byte {at}), and invalid bytes become U+FFFD: set `encoding`, for example to \
                 windows-1252"
            ),
        ));
    }
    if let Some(at) = charset.first_gap(head) {
        let label = &options.encoding;
        let message = format!(
            "is not valid {label} (first at byte {at}), and invalid bytes become U+FFFD: set `encoding` to that of the file"
        );
        peek.notes.push(("encoding", message));
    }
    let (text, _) = charset.decode(head.get(mark_bytes..).unwrap_or_default());
    let skipped = usize::try_from(options.skip_rows).ok().filter(|&lines| lines > 0);
    let start = skipped.map_or(0, |lines| {
        memchr::memchr_iter(b'\n', text.as_bytes()).nth(lines - 1).map_or(text.len(), |end| end + 1)
    });
    let text = &text[start..];
    if options.format == TableFormat::Jsonl {
        peek.check_json(text.as_bytes(), is_whole);
    } else {
        peek.check_rows(text.as_bytes(), is_whole, options);
    }
    peek
}

/// Returns whether one byte in twenty is a control character that does not occur in text.
fn is_binary(head: &[u8]) -> bool {
    let is_control = |byte: &&u8| matches!(**byte, 0..=8 | 14..=26 | 28..=31);
    head.iter().filter(is_control).count() * 20 > head.len()
}

/// Returns, by the first characters of a JSON object, what it holds if it is a whole table, as some libraries write
/// one.
fn whole_table(line: &[u8]) -> Option<&'static str> {
    let start: Vec<u8> = line
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .take(WHOLE_TABLE_BYTES)
        .collect();
    let (key, value) =
        start.strip_prefix(b"{\"")?.split_at(start.iter().skip(2).position(|&byte| byte == b'"')?);
    let value = value.strip_prefix(b"\":")?;
    match key {
        b"columns" | b"index" | b"schema"
            if value.starts_with(b"[") || value.starts_with(b"{\"fields\":") =>
        {
            Some("the columns and the rows of a table")
        }
        b"type" if value.starts_with(b"\"FeatureCollection\"") => {
            Some("a collection of GeoJSON features")
        }
        _ if value.starts_with(b"{\"0\":") => Some("the columns of a table"),
        _ => None,
    }
}

impl Peek {
    fn check_json(&mut self, text: &[u8], is_whole: bool) {
        let text = text.trim_ascii_start();
        let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let is_cut = line.len() == text.len() && !is_whole;
        match text.first() {
            None => {}
            Some(b'[') => {
                let message = "holds a JSON array, and is read as JSON lines: write one object per line (`jq -c '.[]'` does)";
                self.refusal = Some(message.to_owned());
            }
            Some(b'{') => {
                let parsed = serde_json::from_slice::<IgnoredAny>(line);
                if !is_cut && parsed.is_err_and(|error| error.is_eof()) {
                    let message = "holds objects of several lines, and is read as JSON lines: write one object per line \
                                   (`jq -c .` does)";
                    self.refusal = Some(message.to_owned());
                } else if let Some(form) = whole_table(line) {
                    let message = format!(
                        "holds {form} in one object, which is one row here: write one object per line (with pandas, \
                         `to_json(orient=\"records\", lines=True)`)"
                    );
                    self.notes.push(("format", message));
                }
            }
            Some(_) => {
                self.notes.push((
                    "format",
                    "does not begin with an object, but is read as JSON lines: correct `format`"
                        .to_owned(),
                ));
            }
        }
    }

    /// Rejects text whose lines end with CR alone, and notes a CR within a line: readers that also end lines at CR
    /// would find more rows.
    fn check_line_ends(&mut self, text: &[u8], is_whole: bool, options: &TableOptions) {
        let ends = LineEnds::of(splitter(options), text);
        if ends.are_cr_alone(text, is_whole, options.delimiter) {
            self.refusal = Some(CR_ALONE.to_owned());
        } else if let Some(at) = ends.lone_cr {
            let message = format!(
                "holds a CR within a line (first at byte {at}), which ends no line here: convert CR to LF if it should"
            );
            self.notes.push(("line ends", message));
        }
    }

    /// Notes quotes and delimiters after a backslash, which end no field for writers with an escape character: a quote
    /// within a field, or a delimiter in a row with too many cells.
    fn check_escapes(&mut self, text: &[u8], columns: usize, rows: &Rows, options: &TableOptions) {
        let ends_field = |next: Option<&u8>| {
            next.is_none_or(|next| [b'"', b'\r', b'\n', options.delimiter].contains(next))
        };
        let quote =
            memchr::memmem::find_iter(text, b"\\\"").find(|at| !ends_field(text.get(at + 2)));
        let escaped = [b'\\', options.delimiter];
        let delimiter = rows.ragged.iter().filter(|row| row.cells > columns).find_map(|row| {
            // The last row may begin after the text, which ends with a whole line.
            let line =
                text.get(row.position..)?.split(|&byte| byte == b'\n').next().unwrap_or_default();
            memchr::memmem::find(line, &escaped).map(|at| row.position + at)
        });
        let Some(at) = [quote, delimiter].into_iter().flatten().min() else { return };
        let found = if text[at + 1] == b'"' { "\"".to_owned() } else { shown(options.delimiter) };
        let message = format!(
            "holds `\\{found}` (first at byte {at}), in which the backslash is text and not an escape character: if it should \
             be one, write fields in quotes, and double each quote in them"
        );
        self.notes.push(("quotes", message));
    }

    fn check_rows(&mut self, text: &[u8], is_whole: bool, options: &TableOptions) {
        self.check_line_ends(text, is_whole, options);
        if self.refusal.is_some() {
            return;
        }
        let splitter = splitter(options);
        let FirstRow { cells: first, is_broken, next } = first_row(splitter, text);
        let mut rows = Rows::default();
        splitter.split(text, next, first.len(), usize::MAX, &mut rows);
        // The part after the last line break may be truncated.
        let end = if is_whole { text.len() } else { memchr::memrchr(b'\n', text).unwrap_or(0) };
        if is_broken || rows.ragged.iter().any(|row| row.is_broken && row.position < end) {
            let message = "has a line that ends within quotes: set `support_multi_line: true` if fields hold line breaks";
            self.notes.push(("support_multi_line", message.to_owned()));
        }
        self.check_escapes(&text[..end], first.len(), &rows, options);
        if next == text.len() && !is_whole {
            return;
        }
        let line = &text[..next];
        let count = |delimiter: u8| line.iter().filter(|&&byte| byte == delimiter).count();
        let other = DELIMITERS.into_iter().filter(|&delimiter| delimiter != options.delimiter);
        let most = other
            .max_by_key(|&delimiter| count(delimiter))
            .filter(|&delimiter| count(delimiter) > 0);
        if first.len() == 1 {
            let used = shown(options.delimiter);
            if let Some(delimiter) = most {
                let (found, times) = (shown(delimiter), count(delimiter));
                let message = format!(
                    "has no `{used}` in its first line but {times} `{found}`: set `delimiter: \"{found}\"`"
                );
                self.notes.push(("delimiter", message));
            } else if first[0].trim().contains("  ") {
                let message = format!(
                    "has no `{used}` in its first line but runs of spaces: each line is one column; convert columns of \
                     fixed width to CSV"
                );
                self.notes.push(("delimiter", message));
            }
        }
        let is_number = |cell: &String| parse_float(trim(cell.as_bytes())).is_some();
        let is_blank = |cell: &String| cell.trim().is_empty();
        let numbers = first.iter().filter(|cell| is_number(cell)).count();
        let is_data = numbers > 0 && first.iter().all(|cell| is_number(cell) || is_blank(cell));
        if has_header(options) && is_data {
            let row = row_shown(&first, options.delimiter);
            let message = format!(
                "begins with {row}, taken as column names although these are numbers: set `header: no_header`"
            );
            self.notes.push(("header", message));
        }
        if options.header == HeaderMode::NoHeader && numbers == 0 {
            let FirstRow { cells: second, next: end, .. } = first_row(splitter, &text[next..]);
            let is_cut = next + end == text.len() && !is_whole;
            if !is_cut
                && second.len() == first.len()
                && second.iter().any(is_number)
                && !first.iter().any(is_blank)
            {
                let row = row_shown(&first, options.delimiter);
                let message = format!(
                    "begins with {row}, which look like column names and are taken as a row: set `header: \
                     all_files_same_headers`"
                );
                self.notes.push(("header", message));
            }
        }
        self.first_row = first;
    }
}

/// Returns a delimiter in the form of a job file.
pub fn shown(delimiter: u8) -> String {
    char::from(delimiter).escape_default().to_string()
}

/// Returns the first cells of a row, for people.
fn row_shown(cells: &[String], delimiter: u8) -> String {
    let cell = |cell: &String| -> String {
        let cut: String = cell.trim().chars().take(CELL_CHARACTERS).collect();
        cut.chars()
            .map(|character| if character.is_control() { '\u{FFFD}' } else { character })
            .collect()
    };
    let row: Vec<String> = cells.iter().take(CELLS_SHOWN).map(cell).collect();
    let more = if cells.len() > CELLS_SHOWN { "…" } else { "" };
    format!("`{}{more}`", row.join(&shown(delimiter)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(format: TableFormat) -> TableOptions {
        let delimiter = if format == TableFormat::Tsv { b'\t' } else { b',' };
        TableOptions { format, delimiter, ..TableOptions::default() }
    }

    fn notes(text: &[u8], options: &TableOptions) -> String {
        let peek = peek(text, true, options);
        assert_eq!(peek.refusal, None);
        peek.notes.into_iter().map(|(key, note)| format!("{key}: {note}\n")).collect()
    }

    fn refused(text: &[u8], is_whole: bool, format: TableFormat) -> String {
        peek(text, is_whole, &options(format)).refusal.unwrap_or_default()
    }

    #[test]
    fn ordinary_text_has_no_notes() {
        let csv = options(TableFormat::Csv);
        for text in
            ["", "\n\n", "id,name\n1,a\n", "only one column\n1\n", "a,\"b;c;d\"\n1,2\n", "1a,2\n"]
        {
            assert_eq!(notes(text.as_bytes(), &csv), "", "{text:?}");
        }
        let no_header = TableOptions { header: HeaderMode::NoHeader, ..csv };
        assert_eq!(notes(b"1,2\n3,4\n", &no_header), "");
        assert_eq!(notes(b"a,b\nc,d\n", &no_header), "");
        assert_eq!(notes(b"{\"a\": 1}\n{\"a\": 2}\n", &options(TableFormat::Jsonl)), "");
        assert_eq!(refused(b"{\"a\": [1,", false, TableFormat::Jsonl), "", "a long line is cut");
    }

    #[test]
    fn lines_that_end_with_cr_are_rejected_or_noted() {
        let csv = options(TableFormat::Csv);
        assert!(
            refused(b"a,b\r1,2\r", true, TableFormat::Csv).contains("lines that end with CR alone")
        );
        assert!(
            notes(b"a,b\n1,2\r3,4\n", &csv)
                .contains("line ends: holds a CR within a line (first at byte 7)")
        );
        for text in ["a,b\r\n1,2\r\n", "a,b\n1,\"2\r3\"\n", "a,b\r"] {
            assert_eq!(notes(text.as_bytes(), &csv), "", "{text:?}");
        }
        let multi_line = TableOptions { support_multi_line: true, ..csv };
        assert!(
            peek(b"a,b\r1,2\r", false, &multi_line)
                .refusal
                .is_some_and(|reason| reason == CR_ALONE)
        );
        assert!(
            notes(b"a,b\n1,2\r3,4\n", &multi_line).contains("line ends: holds a CR within a line")
        );
        assert_eq!(notes(b"a,b\n1,\"2\r\n\r3\"\n", &multi_line), "");
    }

    #[test]
    fn other_delimiter_is_reported_with_the_key() {
        let csv = options(TableFormat::Csv);
        assert!(
            notes(b"id;name;price\n1;a;2,5\n", &csv)
                .contains("no `,` in its first line but 2 `;`: set `delimiter: \";\"`")
        );
        assert!(notes(b"id\tname\n1\ta\n", &csv).contains("set `delimiter: \"\\t\"`"));
        assert!(
            notes(b"id,name\n1,a\n", &options(TableFormat::Tsv)).contains("set `delimiter: \",\"`")
        );
        assert!(
            notes(b"id   name\n1    alice\n", &csv)
                .contains("runs of spaces: each line is one column")
        );
        assert_eq!(notes(b"some words \n1  2\n", &csv), "", "text");
    }

    #[test]
    fn line_break_in_quotes_is_reported_with_the_key() {
        let csv = options(TableFormat::Csv);
        for text in ["a,b\n1,\"x\ny\"\n", "a,\"b\nc\"\n1,2\n"] {
            assert!(
                notes(text.as_bytes(), &csv).contains("set `support_multi_line: true`"),
                "{text:?}"
            );
        }
        assert!(
            peek(b"a,b\n1,\"x", false, &csv).notes.is_empty(),
            "a line that is cut here may go on"
        );
        let multi_line = TableOptions { support_multi_line: true, ..csv };
        assert_eq!(notes(b"a,b\n1,\"x\ny\"\n", &multi_line), "");
    }

    #[test]
    fn escape_character_is_reported() {
        let csv = options(TableFormat::Csv);
        for (text, found, at) in [
            ("id,s\n10,c\\\"d\n", "\"", 9),
            ("id,s\n10,\"c\\\"d\"\n", "\"", 10),
            ("id,s\n10,x\n10,a\\,b\n", ",", 14),
        ] {
            assert!(
                notes(text.as_bytes(), &csv)
                    .contains(&format!("quotes: holds `\\{found}` (first at byte {at})")),
                "{text}"
            );
        }
        for text in [
            "id,s,t\n10,C:\\,x\n",
            "s,id\n\"C:\\\",1\n",
            "id,s\n1,\"{\"\"a\"\": \"\"x\\\"\"y\"\"}\"\n",
            "id,s\n1,\"C:\\\"\n",
        ] {
            assert!(!notes(text.as_bytes(), &csv).contains("quotes: "), "{text}");
        }
    }

    #[test]
    fn doubtful_header_is_reported() {
        let csv = options(TableFormat::Csv);
        assert!(notes(b"5.1,3.5,1.4,0.2,7\n4.9,3,1,1,1\n", &csv).contains("`5.1,3.5,1.4,0.2…`"));
        let no_header = TableOptions { header: HeaderMode::NoHeader, ..csv };
        assert!(
            notes(b"id,name\n1,a\n", &no_header).contains("set `header: all_files_same_headers`")
        );
    }

    #[test]
    fn wrong_encoding_is_rejected_or_reported() {
        let csv = options(TableFormat::Csv);
        assert!(notes(b"id,na\xefve\n", &csv).contains("(first at byte 5)"));
        assert_eq!(notes("id,na\u{ef}ve\n".as_bytes(), &csv), "");
        let ascii = TableOptions { encoding: "ascii".to_owned(), ..csv.clone() };
        assert!(
            notes(b"id,na\xefve\n", &ascii)
                .contains("encoding: is not valid ascii (first at byte 5)")
        );
        assert!(
            refused(b"ORC\x0a\x03\x00\x00\x00\xff\x01\x02", true, TableFormat::Csv)
                .starts_with("is not text")
        );
        assert_eq!(
            refused(b"a,b\n1,x\x00y\n2,z\xff\n3,4\n5,6\n7,8\n9,0\n", true, TableFormat::Csv),
            ""
        );
        assert!(
            peek(b"id,na\xc3", false, &csv).notes.is_empty(),
            "a character that is cut is not invalid"
        );
        let wide: Vec<u8> = "id,name\n1,a\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(refused(&wide, true, TableFormat::Csv).contains("set `encoding: utf-16le`, or"));
        let marked = [&b"\xff\xfe"[..], &wide].concat();
        assert!(
            refused(&marked, true, TableFormat::Csv)
                .starts_with("is UTF-16LE text; set `encoding: utf-16le`")
        );
        assert_eq!(peek(b"\xef\xbb\xbfid,n\n1,2\n", true, &csv).first_row, ["id", "n"]);
    }

    #[test]
    fn whole_table_in_one_object_is_reported() {
        let json = options(TableFormat::Jsonl);
        for (text, form) in [
            (r#"{"id":{"0":0,"1":1},"name":{"0":"a","1":"b"}}"#, "the columns of a table"),
            (r#"{"id": {"0": 0}}"#, "the columns of a table"),
            (r#"{"columns":["id"],"index":[0],"data":[[0]]}"#, "the columns and the rows"),
            (
                r#"{"schema":{"fields":[{"name":"id"}]},"data":[{"id":0}]}"#,
                "the columns and the rows",
            ),
            (r#"{"type": "FeatureCollection", "features": []}"#, "a collection of GeoJSON"),
        ] {
            assert!(
                notes(text.as_bytes(), &json).starts_with(&format!("format: holds {form}")),
                "{text}"
            );
            assert_eq!(
                peek(text.as_bytes(), false, &json).notes.len(),
                1,
                "a long line is cut: {text}"
            );
        }
        for text in [
            r#"{"id":0,"name":"a"}"#,
            r#"{"columns":3,"index":"a"}"#,
            r#"{"id":{"a":0},"n":1}"#,
            r#"{"schema":{"a":1}}"#,
            "{}",
            r#"{"type":"Feature"}"#,
        ] {
            assert_eq!(notes(text.as_bytes(), &json), "", "{text}");
        }
    }

    #[test]
    fn json_other_than_lines_is_rejected() {
        assert!(refused(b" [\n  {\"a\": 1}\n]", true, TableFormat::Jsonl).contains("jq -c '.[]'"));
        assert!(refused(b"{\n  \"a\": 1\n}", true, TableFormat::Jsonl).contains("jq -c ."));
        assert!(
            notes(b"id,name\n", &options(TableFormat::Jsonl)).starts_with("format: does not begin")
        );
    }
}
