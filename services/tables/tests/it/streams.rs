//! Text that is read from front to back: quoted line breaks, compression, two-byte encodings.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use protocol::HeaderMode::AllFilesDifferentHeaders;
use protocol::{BlockRange, TableOptions, TypeRules};
use tables::{Decoded, Decoder, Error, RangeSize};

use crate::support::{ALL_LINES, Folder, Input, column, csv, decode, jsonl, messages, values};

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).expect("vectors take all");
    encoder.finish().expect("vectors take all")
}

fn zstandard(text: &[u8]) -> Vec<u8> {
    zstd::encode_all(text, 1).expect("vectors take all")
}

fn multi_line() -> TableOptions {
    TableOptions { support_multi_line: true, infer_column_types: false, ..csv() }
}

fn all(parts: &[Decoded], name: &str) -> Vec<String> {
    parts.iter().flat_map(|part| column(part, name)).collect()
}

#[test]
fn multi_line_records_are_split_at_their_ends() {
    let text = "a,b\n1,\"x\n\ny\"\n\n2,\"p,\"\"q\n\"\"\"\n3,z";
    let input = Input::new(text, multi_line());
    let records = |start, end| BlockRange::Records { start, end };
    assert_eq!(
        input.ranges(RangeSize::Rows(1)),
        [records(0, 14), records(14, 27), records(27, 30)]
    );
    assert_eq!(input.ranges(RangeSize::Rows(2)), [records(0, 27), records(27, 30)]);
    assert_eq!(
        input.ranges(RangeSize::Bytes(10)),
        [records(0, 14), records(14, 27), records(27, 30)]
    );
    assert_eq!(input.ranges(RangeSize::Bytes(1000)), [records(0, 30)]);
    for size in [RangeSize::Rows(1), RangeSize::Bytes(7), RangeSize::Bytes(1000)] {
        let parts = input.parts(size);
        assert_eq!(all(&parts, "a"), ["1", "2", "3"]);
        assert_eq!(all(&parts, "b"), ["x\n\ny", "p,\"q\n\"", "z"]);
    }
}

#[test]
fn multi_line_file_without_quoted_line_breaks_is_split_like_any_other() {
    let text: String = (0..500).map(|row| format!("{row},\"text {row}\"\n")).collect();
    let input = Input::new(format!("a,b\n{text}"), csv());
    for block_bytes in [50, 1000, 4096] {
        let rows = |parts: &[Decoded]| {
            parts.iter().map(|part| part.rows).filter(|&rows| rows > 0).collect::<Vec<_>>()
        };
        let blocks = rows(&input.blocks(block_bytes));
        assert_eq!(
            rows(
                &Input::new(format!("a,b\n{text}"), multi_line())
                    .parts(RangeSize::Bytes(block_bytes))
            ),
            blocks
        );
    }
}

#[test]
fn compressed_file_has_the_same_rows_in_order() {
    let text: String = (0..2000).map(|row| format!("{row},text {row}\n")).collect();
    let text = format!("a,b\n{text}");
    let plain = Input::new(&text, csv());
    let members = [gzip(&text.as_bytes()[..5000]), gzip(&text.as_bytes()[5000..])].concat();
    for (name, bytes) in [
        ("d.csv.gz", gzip(text.as_bytes())),
        ("d.csv.gz", members),
        ("d.csv.zst", zstandard(text.as_bytes())),
    ] {
        assert!(tables::must_be_read(name.as_bytes(), &csv()));
        let packed = Input::named(name, bytes, csv());
        assert_eq!(packed.schema, plain.schema);
        for size in [RangeSize::Rows(300), RangeSize::Bytes(1000)] {
            let (parts, expected) = (packed.parts(size), plain.parts(size));
            assert_eq!(parts.len(), expected.len());
            for (part, expected) in parts.iter().zip(&expected) {
                assert_eq!(part.batch, expected.batch);
            }
        }
        let whole = packed.decode(BlockRange::WholeText).expect("readable");
        assert_eq!(whole.batch, plain.decode_all().batch);
    }
}

#[test]
fn ranges_of_a_compressed_file_are_read_in_any_order() {
    let text: String = (0..300).map(|row| format!("{{\"a\":{row}}}\n")).collect();
    let input = Input::named("d.jsonl.zst", zstandard(text.as_bytes()), jsonl());
    let ranges = input.ranges(RangeSize::Rows(100));
    let first = |range| column(&input.decode(range).expect("readable"), "a")[0].clone();
    assert_eq!([ranges[2], ranges[0], ranges[1]].map(first), ["200", "0", "100"]);
}

#[test]
fn line_numbers_refer_to_decompressed_text() {
    let text = format!("a\n{}x\n", "5\n".repeat(500));
    let input = Input::named("data.txt.gz", gzip(text.as_bytes()), csv());
    for size in [RangeSize::Rows(1000), RangeSize::Rows(7)] {
        let reported: Vec<String> = input.parts(size).iter().flat_map(messages).collect();
        assert_eq!(
            reported,
            ["data.txt.gz, line 502, column \"a\": \"x\" is not an integer; read as missing"]
        );
    }
}

#[test]
fn damaged_and_mistaken_files_are_named() {
    let whole = gzip("a\n1\n2\n".repeat(1000).as_bytes());
    let folder = Folder::new();
    for (name, content) in [
        ("cut.csv.gz", &whole[..whole.len() - 9]),
        ("torn.csv.zst", &b"\x28\xb5\x2f\xfd\x04\xff\xff"[..]),
    ] {
        let path = folder.file(name, content);
        let ranges = tables::text_ranges(&path, name, &csv(), RangeSize::Rows(10));
        let error = ranges
            .and_then(|ranges| ranges.collect::<tables::Result<Vec<_>>>())
            .expect_err("damaged");
        assert!(matches!(&error, Error::Malformed { path, .. } if path == name), "{error}");
        assert!(error.to_string().contains("damaged or cut short"), "{error}");
    }
    let inside = folder.file("p.csv.gz", gzip(b"PAR1 and so on"));
    let error = tables::infer_schema([inside.as_path()], &csv(), &[]).expect_err("refused");
    assert!(error.to_string().contains("the compressed data is not text"), "{error}");
}

/// A survey does not read the beginnings of all files, and never the content of a compressed one.
#[test]
fn unmarked_utf16_is_refused_by_its_reader() {
    let wide: Vec<u8> = "id,name\n1,a\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let folder = Folder::new();
    let schema =
        tables::infer_schema([folder.file("good.csv", "id,name\n1,a\n").as_path()], &csv(), &[]);
    let schema = schema.expect("readable");
    for (name, bytes) in
        [("a.csv", wide.clone()), ("a.csv.gz", gzip(&wide)), ("a.csv.zst", zstandard(&wide))]
    {
        let path = folder.file(name, bytes);
        let range = if name == "a.csv" { ALL_LINES } else { BlockRange::WholeText };
        let error = decode(&path, range, &csv(), schema.as_ref()).expect_err("refused").to_string();
        assert!(error.contains(name) && error.contains("looks like UTF-16LE text"), "{error}");
        let multi_line = TableOptions { support_multi_line: true, ..csv() };
        let error = tables::text_ranges(&path, name, &multi_line, RangeSize::Rows(1))
            .err()
            .expect("refused");
        assert!(error.to_string().contains("set `encoding: utf-16le`"), "{error}");
    }
}

/// The survey does not read the beginnings of all files, and never the content of a compressed one.
#[test]
fn lines_that_end_with_cr_alone_are_refused_by_every_reader() {
    let folder = Folder::new();
    let plain = TableOptions { support_multi_line: false, ..multi_line() };
    let pandas =
        TableOptions { types: TypeRules::Pandas, header: AllFilesDifferentHeaders, ..multi_line() };
    let schema =
        tables::infer_schema([folder.file("good.csv", "id,n\n1,a\n").as_path()], &plain, &[]);
    let schema = schema.expect("readable");
    for (name, packed) in [("a.csv", false), ("a.csv.gz", true)] {
        for (options, text) in [&plain, &multi_line(), &pandas]
            .into_iter()
            .flat_map(|options| [(options, "id,n\r1,a\r2,b\r"), (options, "id,n\r1,a")])
        {
            let path = folder
                .file(name, if packed { gzip(text.as_bytes()) } else { text.as_bytes().to_vec() });
            let is_whole = packed || options.support_multi_line;
            let range = if is_whole { BlockRange::WholeText } else { ALL_LINES };
            let inferred = tables::infer_schema([path.as_path()], options, &[])
                .expect_err("refused")
                .to_string();
            let decoded =
                decode(&path, range, options, schema.as_ref()).expect_err("refused").to_string();
            let ranges = tables::text_ranges(&path, name, options, RangeSize::Rows(9));
            let ranges = ranges.and_then(|ranges| ranges.collect::<tables::Result<Vec<_>>>());
            for error in [inferred, decoded, ranges.expect_err("refused").to_string()] {
                assert!(
                    error.contains(name) && error.contains("lines that end with CR alone"),
                    "{error}"
                );
            }
        }
    }
    let ranges = tables::text_ranges(
        &folder.file("b.csv", "id,n\r1,a\r\n"),
        "b.csv",
        &multi_line(),
        RangeSize::Rows(9),
    );
    let error =
        ranges.and_then(|ranges| ranges.collect::<tables::Result<Vec<_>>>()).expect_err("refused");
    assert!(error.to_string().contains("b.csv has lines that end with CR alone"), "{error}");
}

#[test]
fn cr_within_a_line_is_reported_wherever_it_is_read() {
    let text = "n,m\r\n1,\"x\ry\"\r\n2,a\r3,b\r\n4,c\r\n";
    for (name, packed) in [("data.txt", false), ("data.txt.gz", true)] {
        for options in
            [csv(), multi_line(), TableOptions { types: TypeRules::Pandas, ..multi_line() }]
        {
            let bytes = if packed { gzip(text.as_bytes()) } else { text.as_bytes().to_vec() };
            let input = Input::named(name, bytes, options);
            let parts = input.parts(RangeSize::Rows(9));
            assert_eq!(all(&parts, "n"), ["1", "2", "4"]);
            let reported = messages(&parts[0]);
            let expected = format!(
                "{name}, line 3: the line holds a CR, where pandas begins another row; kept in its field"
            );
            assert!(reported.contains(&expected), "{reported:?}");
            assert_eq!(
                reported.iter().filter(|reported| reported.contains("holds a CR")).count(),
                1
            );
        }
    }
}

#[test]
fn quote_that_is_not_closed_is_reported_with_its_row() {
    let text = "a,b\n1,\"x\n2,y\n3,z\n";
    for (name, packed) in [("data.txt", false), ("data.txt.gz", true)] {
        let bytes = if packed { gzip(text.as_bytes()) } else { text.as_bytes().to_vec() };
        let reported =
            messages(&Input::named(name, bytes, multi_line()).parts(RangeSize::Rows(9))[0]);
        assert!(
            reported[0].starts_with(&format!("{name}, line 2: the file ends within a quoted cell")),
            "{reported:?}"
        );
    }
}

#[test]
fn bytes_without_a_character_are_replaced_and_reported() {
    for (encoding, bytes, text) in [
        ("ascii", &b"\xc3\xa9"[..], "\u{fffd}\u{fffd}"),
        ("cp1252", b"\x80\x81", "\u{20ac}\u{fffd}"),
    ] {
        let content = [b"a,b\n1,", bytes, b"\n"].concat();
        for (name, options) in
            [("data.txt", csv()), ("data.txt", multi_line()), ("data.txt.gz", csv())]
        {
            let options = TableOptions { encoding: encoding.to_owned(), ..options };
            let content = if name.ends_with("gz") { gzip(&content) } else { content.clone() };
            let parts = Input::named(name, content, options).parts(RangeSize::Rows(9));
            assert_eq!(all(&parts, "b"), [text]);
            let reported = messages(&parts[0]);
            assert!(
                reported[0].starts_with(&format!(
                    "{name}, line 2, column \"b\": bytes that are not valid"
                )),
                "{reported:?}"
            );
        }
    }
}

#[test]
fn memory_is_bounded_by_window_and_record() {
    let record = format!("1,\"{}\n{}\"\n", "x".repeat(500), "y".repeat(500));
    let text = format!("a,b\n{}", record.repeat(5000));
    let input = Input::named("d.csv.zst", zstandard(text.as_bytes()), multi_line());
    let mut decoder = Decoder::with_window(4096);
    let decoded = input.decode_all_with(&mut decoder);
    assert_eq!(decoded.rows, 5000);
}

#[test]
fn truncated_file_is_an_error() {
    for (name, bytes) in [("d.csv", b"a,b\n1,2\n".to_vec()), ("d.csv.gz", gzip(b"a,b\n1,2\n"))] {
        let input = Input::named(name, bytes, multi_line());
        for range in [
            BlockRange::Records { start: 4, end: 40 },
            BlockRange::Records { start: 100, end: 140 },
        ] {
            let error = input.decode(range).expect_err("shorter");
            assert!(matches!(error, Error::Plan { .. }), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    /// Neither compression nor ranges change the rows of a text.
    #[test]
    fn ranges_cover_the_whole_text(
        pieces in prop::collection::vec(prop::sample::select(vec![
            ",", ",", "\n", "\n", "\r\n", "\"", "\"", "\"\"", "1", "text", " ", "é", "\u{20AC}",
        ]), 0..120),
        has_mark: bool,
        size in prop_oneof![(1u64..5).prop_map(RangeSize::Rows), (1u64..60).prop_map(RangeSize::Bytes)],
        packing in 0..4,
        window_bytes in 1u64..100,
    ) {
        let text = format!("{}a,b\n{}", if has_mark { "\u{FEFF}" } else { "" }, pieces.concat());
        let whole = Input::new(&text, multi_line());
        let expected = whole.decode_all();
        let packed = match packing {
            0 => Input::new(&text, multi_line()),
            1 => Input::named("d.csv.gz", gzip(text.as_bytes()), multi_line()),
            2 => Input::named("d.csv.zst", zstandard(text.as_bytes()), multi_line()),
            _ => {
                let units: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
                Input::new(units, TableOptions { encoding: "utf-16le".to_owned(), ..multi_line() })
            }
        };
        prop_assert_eq!(&packed.decode_all_with(&mut Decoder::with_window(window_bytes)).batch, &expected.batch);
        let parts = packed.parts(size);
        for column in 0..expected.batch.num_columns() {
            let found: Vec<String> = parts.iter().flat_map(|part| values(part.batch.column(column))).collect();
            prop_assert_eq!(found, values(expected.batch.column(column)));
        }
        if let RangeSize::Rows(rows) = size {
            prop_assert!(parts.iter().all(|part| part.rows <= rows));
        }
    }
}
