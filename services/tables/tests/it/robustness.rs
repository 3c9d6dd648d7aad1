//! Arbitrary bytes never end the process.

use std::collections::BTreeSet;

use proptest::prelude::*;
use protocol::{HeaderMode, MismatchPolicy, TableOptions};
use tables::detect::{Content, MAGIC_BYTES, content};
use tables::{Decoder, RangeSize};

use crate::support::{Folder, Input, csv, jsonl, messages, values};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        &b","[..],
        b"\n",
        b"\r\n",
        b"\"",
        b"\0",
        b"\xFF",
        b"\xEF\xBB\xBF",
        b"1",
        b"-1.5",
        b"true",
        b"2020-01-01",
        b"abc",
        b"{\"a\":",
        b"}",
        b"[",
        b"{\"a\":1}\n",
        b" ",
        b"\xC3",
        "é".as_bytes(),
        b"99999999999999999999",
    ]);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(pieces, 0..120).prop_map(|pieces| pieces.concat()),
    ]
}

fn any_options() -> impl Strategy<Value = TableOptions> {
    let flags =
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let encodings = prop::sample::select(vec!["utf-8", "latin1", "shift_jis", "utf-16le"]);
    (flags, encodings).prop_map(
        |((is_json, no_header, multi_line, untyped, keeps_empty, strict), encoding)| TableOptions {
            header: if no_header { HeaderMode::NoHeader } else { HeaderMode::AllFilesSameHeaders },
            support_multi_line: multi_line || encoding == "utf-16le",
            infer_column_types: !untyped,
            empty_as_string: keeps_empty,
            on_type_mismatch: if strict { MismatchPolicy::Reject } else { MismatchPolicy::Missing },
            encoding: encoding.to_owned(),
            ..if is_json { jsonl() } else { csv() }
        },
    )
}

/// Returns whether bytes are rejected: they begin like a file of another kind, or may be UTF-16.
fn is_rejected(bytes: &[u8]) -> bool {
    may_be_utf16(bytes)
        || !matches!(
            content(&bytes[..bytes.len().min(MAGIC_BYTES)]),
            Content::Text | Content::Empty
        )
}

/// Returns whether text has a mark of UTF-16, or zeros in every other byte.
fn may_be_utf16(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(MAGIC_BYTES)];
    let zeros = |odd: usize| head.iter().skip(odd).step_by(2).filter(|&&byte| byte == 0).count();
    let looks_like_it = zeros(0).max(zeros(1)) * 2 > head.len() / 2;
    looks_like_it || bytes.starts_with(b"\xFF\xFE") || bytes.starts_with(b"\xFE\xFF")
}

/// Returns whether a file is rejected because CR ends all of its lines.
fn is_cr_alone(bytes: &[u8], options: &TableOptions) -> bool {
    let folder = Folder::new();
    let path = folder.file("data.txt", bytes);
    let ranges = tables::text_ranges(&path, "data.txt", options, RangeSize::Rows(3));
    let error = ranges.and_then(|ranges| ranges.collect::<tables::Result<Vec<_>>>()).err();
    error.is_some_and(|error| error.to_string().contains("lines that end with CR alone"))
}

/// Returns the cells according to RFC 4180, without line breaks in them.
fn written(cells: &[Vec<String>], quotes: &[bool]) -> String {
    let mut text = String::new();
    let mut quotes = quotes.iter().cycle();
    for row in cells {
        let row: Vec<String> = row
            .iter()
            .map(|cell| {
                let must = cell.contains([',', '"']) || cell.is_empty() || cell.trim() != cell;
                let may = *quotes.next().expect("cycles");
                if must || may {
                    format!("\"{}\"", cell.replace('"', "\"\""))
                } else {
                    cell.clone()
                }
            })
            .collect();
        text.push_str(&row.join(","));
        text.push('\n');
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn random_bytes_never_panic_and_no_record_is_lost(bytes in bytes(), options in any_options(), block_bytes in 1u64..200) {
        prop_assume!(!is_rejected(&bytes) && !is_cr_alone(&bytes, &options));
        let input = Input::new(&bytes, options);
        let whole = input.decode_all();
        prop_assert_eq!(whole.rows as usize, whole.batch.num_rows());
        prop_assert!(whole.warnings.total >= whole.failed_records && whole.warnings.first.len() <= 10);
        let unread: u64 = whole.unread.iter().map(|record| record.records).sum();
        prop_assert_eq!(unread, whole.failed_records, "{:?}", &whole.unread);
        if !input.options.support_multi_line {
            let blocks = input.blocks(block_bytes);
            let rows: u64 = blocks.iter().map(|block| block.rows).sum();
            let failed: u64 = blocks.iter().map(|block| block.failed_records).sum();
            prop_assert_eq!((rows, failed), (whole.rows, whole.failed_records));
        }
        for size in [RangeSize::Rows(3), RangeSize::Bytes(block_bytes)] {
            let rows: u64 = input.parts(size).iter().map(|part| part.rows + part.failed_records).sum();
            prop_assert_eq!(rows, whole.rows + whole.failed_records);
        }
    }

    #[test]
    fn buffer_size_and_earlier_blocks_do_not_change_the_result(
        files in prop::collection::vec((bytes(), any_options()), 1..4),
        window_bytes in 1u64..200,
    ) {
        let mut decoder = Decoder::with_window(window_bytes);
        for (bytes, options) in files {
            prop_assume!(!is_rejected(&bytes) && !is_cr_alone(&bytes, &options));
            let input = Input::new(&bytes, options);
            let (whole, decoded) = (input.decode_all(), input.decode_all_with(&mut decoder));
            prop_assert_eq!(&decoded.batch, &whole.batch);
            prop_assert_eq!(decoded.failed_records, whole.failed_records);
            prop_assert_eq!(decoded.warnings.total, whole.warnings.total);
            if whole.warnings.first.len() as u64 == whole.warnings.total {
                // A piece of text is decoded column by column, which decides their order.
                let sorted = |decoded| BTreeSet::from_iter(messages(decoded));
                prop_assert_eq!(sorted(&decoded), sorted(&whole));
            }
        }
    }

    #[test]
    fn written_values_are_read(
        rows in prop::collection::vec(prop::collection::vec("[a-z,\" é\t]{0,6}", 3), 1..30),
        quotes in prop::collection::vec(any::<bool>(), 7),
    ) {
        let text = format!("a,b,c\n{}", written(&rows, &quotes));
        let options = TableOptions { infer_column_types: false, empty_as_string: true, ..csv() };
        let decoded = Input::new(text, options).decode_all();
        for column in 0..3 {
            let expected: Vec<&str> = rows.iter().map(|row| row[column].as_str()).collect();
            prop_assert_eq!(values(decoded.batch.column(column)), expected);
        }
        prop_assert_eq!(decoded.warnings.total, 0);
    }
}

#[test]
fn deeply_nested_json_does_not_exhaust_the_stack() {
    for open in ["[", "{\"a\":", "{\"a\":[{\"a\":"] {
        let line = format!("{{\"a\":1}}\n{}\n{{\"a\":2}}\n", open.repeat(500_000));
        let decoded = Input::new(line, jsonl()).decode_all();
        assert_eq!((decoded.rows, decoded.failed_records), (2, 1), "{open}");
    }
}
