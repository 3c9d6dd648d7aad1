//! Delimited text with all peculiarities of real files.

use std::path::PathBuf;

use protocol::{Block, BlockRange, ColumnType, HeaderMode, ItemPath, MismatchPolicy, TableOptions};
use tables::{DecodeRequest, Decoder, Error, IpcStream, LocalBlock, RangeSize};

use crate::support::{ALL_LINES, Folder, Input, block, column, csv, decode, messages, names};

#[test]
fn marks_line_breaks_and_blank_lines_are_ignored() {
    for text in [
        "a,b\n1,x\n2,y\n",
        "\u{FEFF}a,b\n1,x\n2,y",
        "a,b\r\n1,x\r\n2,y\r\n",
        "\r\n\na,b\n\n1,x\n  \n2,y\n\n",
    ] {
        let input = Input::new(text, TableOptions { infer_column_types: false, ..csv() });
        assert_eq!(names(&input.decode_all()), ["a", "b"], "{text:?}");
        assert_eq!(column(&input.decode_all(), "a"), ["1", "2"], "{text:?}");
        assert_eq!(column(&input.decode_all(), "b"), ["x", "y"], "{text:?}");
    }
}

#[test]
fn quotes_are_removed_from_cells() {
    let input = Input::new("a,b\n\"x, y\",\"he said \"\"no\"\"\"\n\"open,1\nz,\"2\"\n", csv());
    let decoded = input.decode_all();
    assert_eq!(column(&decoded, "a"), ["x, y", "open,1", "z"]);
    assert_eq!(column(&decoded, "b"), ["he said \"no\"", "-", "2"]);
    assert_eq!(
        messages(&decoded),
        [
            "data.txt, line 3: the line ends within quotes, with 1 cell in a table of 2 columns; the row was cut there"
        ]
    );
}

#[test]
fn quoted_line_break_ends_the_row_unless_multi_line() {
    let text = "a,b\n1,\"x\ny\"\n2,z\n";
    let torn = Input::new(text, csv()).decode_all();
    assert_eq!(column(&torn, "a"), ["1", "y\"", "2"]);
    let [broken, short] = &torn.warnings.kinds[..] else { panic!("two kinds: {torn:?}") };
    assert_eq!(
        (broken.problem.as_str(), broken.count),
        ("lines that end within quotes, the row was cut there", 1)
    );
    assert!(
        broken.first.ends_with("data.txt, line 2")
            && broken.remedy.ends_with("set support_multi_line: true")
    );
    assert_eq!(
        short.problem,
        "rows with fewer cells than there are columns, the others are missing"
    );
    let strict = TableOptions { on_type_mismatch: MismatchPolicy::Reject, ..csv() };
    let strict = Input::new("a,b\n1,\"x\ny,z\"\n2,z\n", strict).decode_all();
    assert_eq!(
        (strict.failed_records, column(&strict, "a")),
        (1, vec!["y".to_owned(), "2".to_owned()])
    );
    let whole = Input::new(text, TableOptions { support_multi_line: true, ..csv() });
    assert_eq!(column(&whole.decode_all(), "b"), ["x\ny", "z"]);
    let unended = Input::new("a,b\n5,\"x\ny\n", TableOptions { support_multi_line: true, ..csv() });
    let decoded = unended.decode_all();
    assert_eq!(column(&decoded, "b"), ["x\ny\n"]);
    assert_eq!(decoded.warnings.total, 1);
}

#[test]
fn types_of_large_multi_line_file_come_from_first_rows() {
    let long = format!("a,b\n{}x,y\n", format!("5,\"{}\n\"\n", "z".repeat(5000)).repeat(200));
    let input = Input::new(long, TableOptions { support_multi_line: true, ..csv() });
    let decoded = input.decode_all();
    assert_eq!(column(&decoded, "a")[199..], ["5", "-"]);
    assert_eq!(
        messages(&decoded),
        ["data.txt, line 402, column \"a\": \"x\" is not an integer; read as missing"]
    );
}

#[test]
fn ragged_row_does_not_affect_other_rows() {
    let text = "a,b,c\n1,2,3\n4,5\n6,7,8,9\n10,11,12,\n";
    let decoded = Input::new(text, csv()).decode_all();
    assert_eq!(column(&decoded, "a"), ["1", "4", "6", "10"]);
    assert_eq!(column(&decoded, "c"), ["3.0", "-", "8.0", "12.0"]);
    assert_eq!(
        messages(&decoded),
        [
            "data.txt, line 3: 2 cells in a table of 3 columns; the others are missing",
            "data.txt, line 4: 4 cells in a table of 3 columns; the others were dropped"
        ]
    );
    let strict =
        Input::new(text, TableOptions { on_type_mismatch: MismatchPolicy::Reject, ..csv() })
            .decode_all();
    assert_eq!((strict.rows, strict.failed_records), (3, 1), "a short row loses nothing");
    assert_eq!(column(&strict, "c"), ["3.0", "-", "12.0"]);
}

#[test]
fn column_names_are_unique_and_not_empty() {
    let header = Input::new("a,,a,\"b, c\",a.1\n", csv());
    assert_eq!(names(&header.decode_all()), ["a", "Column2", "a.2", "b, c", "a.1"]);
    let no_header = TableOptions { header: HeaderMode::NoHeader, ..csv() };
    let input = Input::new("1,x\n2,y\n", no_header);
    assert_eq!(names(&input.decode_all()), ["Column1", "Column2"]);
    assert_eq!(column(&input.decode_all(), "Column1"), ["1", "2"]);
}

#[test]
fn each_file_may_have_its_own_columns() {
    for multi_line in [false, true] {
        let header = HeaderMode::AllFilesDifferentHeaders;
        let options = TableOptions { header, support_multi_line: multi_line, ..csv() };
        let folder = Folder::new();
        // More rows than decide the types, so that the other files have only their headers read.
        let many = format!("a,b\n1,x\n2,y\n{}", "3,z\n".repeat(300));
        let files =
            [("1", many.as_str()), ("2", "\nc,a\n5.5,4\n6,\n"), ("3", "b\n\"q\"\n"), ("4", "")];
        let paths = files.map(|(name, text)| folder.file(name, text));
        let schema = tables::infer_schema(paths.iter().map(PathBuf::as_path), &options, &[])
            .expect("readable");
        let names: Vec<String> =
            schema.iter().flat_map(|schema| &schema.columns).map(|c| c.name.clone()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        let all = if multi_line { BlockRange::WholeText } else { ALL_LINES };
        let read = |file: usize, range| {
            decode(&paths[file], range, &options, schema.as_ref()).expect("readable")
        };
        let second = read(1, all);
        assert_eq!(
            (column(&second, "a"), column(&second, "b")),
            (texts(&["4", "-"]), texts(&["-", "-"]))
        );
        assert_eq!(column(&second, "c").len(), 2);
        let third = read(2, all);
        assert_eq!((column(&third, "b"), column(&third, "a")), (texts(&["q"]), texts(&["-"])));
        assert!(second.warnings.first.is_empty() && third.warnings.first.is_empty());
        let behind = match multi_line {
            true => BlockRange::Records { start: 8, end: 12 },
            false => BlockRange::Lines { first: 8, last: 9 },
        };
        assert_eq!(
            column(&read(0, behind), "b"),
            ["y"],
            "a part of the file that does not have its header"
        );
    }
}

fn texts(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

#[test]
fn different_header_is_reported() {
    let input = Input::new("a,b\n5,6\n", csv());
    let other = input.folder.file("other", "b,a\n7,8\n");
    let decoded = decode(&other, ALL_LINES, &csv(), input.schema.as_ref()).expect("readable");
    assert!(decoded.warnings.first[0].message.contains("header differs"), "{:?}", decoded.warnings);
    assert_eq!(column(&decoded, "a"), ["7"]);
}

#[test]
fn nul_is_a_character_and_invalid_bytes_are_replaced_with_a_warning() {
    let decoded = Input::new(b"a,b\nx\0y,1\nz\xFF,2\n", csv()).decode_all();
    assert_eq!(column(&decoded, "a"), ["x\0y", "z\u{FFFD}"]);
    assert_eq!(column(&decoded, "b"), ["1", "2"]);
    let [message] = &messages(&decoded)[..] else { panic!("one warning") };
    assert!(
        message.starts_with("data.txt, line 3, column \"a\": bytes that are not valid"),
        "{message}"
    );
}

#[test]
fn encodings_are_decoded() {
    let latin = TableOptions { encoding: "latin-1".to_owned(), ..csv() };
    assert_eq!(column(&Input::new(b"n,x\ncaf\xE9,1\n", latin).decode_all(), "n"), ["café"]);
    // The second byte of this character is a vertical bar.
    let japanese = TableOptions { encoding: "shift_jis".to_owned(), delimiter: b'|', ..csv() };
    assert_eq!(column(&Input::new(b"n|x\n\x83\x7C|1\n", japanese).decode_all(), "n"), ["ポ"]);
    let utf16: Vec<u8> = "\u{FEFF}n,x\né,5\n".encode_utf16().flat_map(u16::to_be_bytes).collect();
    let whole = TableOptions { encoding: "utf-16".to_owned(), support_multi_line: true, ..csv() };
    let decoded = Input::new(&utf16, whole).decode_all();
    assert_eq!(
        (column(&decoded, "n"), column(&decoded, "x")),
        (vec!["é".to_owned()], vec!["5".to_owned()])
    );

    for encoding in ["utf-16", "utf-16be"] {
        let parts = Input::new(&utf16, TableOptions { encoding: encoding.to_owned(), ..csv() });
        assert_eq!(column(&parts.parts(RangeSize::Rows(9))[0], "n"), ["é"]);
    }

    let folder = Folder::new();
    let path = folder.file("utf16.csv", &utf16);
    for (encoding, expected) in [("utf-8", "set encoding: utf-16be"), ("klingon", "unknown")] {
        let options = TableOptions { encoding: encoding.to_owned(), ..csv() };
        let error = tables::infer_schema([path.as_path()], &options, &[]).expect_err("refused");
        assert!(matches!(&error, Error::Options(message) if message.contains(expected)), "{error}");
    }
}

#[test]
fn columns_from_the_path_are_last_and_blocks_are_in_order() {
    let folder = Folder::new();
    let paths = [folder.file("1.csv", "a\n5\n6\n"), folder.file("2.csv", "a\n7\n")];
    let from_path = ["Store".to_owned(), "Brand".to_owned()];
    let schema = tables::infer_schema(paths.iter().map(|path| path.as_path()), &csv(), &from_path)
        .expect("readable");
    let blocks: Vec<Block> = paths
        .iter()
        .zip(["x", "y"])
        .map(|(path, store)| Block {
            path: ItemPath::from(path.as_path()),
            version: None,
            range: ALL_LINES,
            path_columns: vec![("Store".into(), store.into()), ("Brand".into(), "007".into())],
        })
        .collect();
    let local: Vec<_> = blocks
        .iter()
        .zip(&paths)
        .map(|(block, path)| LocalBlock { block, path, has_holes: false })
        .collect();
    let request = DecodeRequest {
        blocks: &local,
        options: &csv(),
        schema: schema.as_ref(),
        with_lines: false,
    };
    let decoded = tables::decode(&request).expect("readable");
    assert_eq!(names(&decoded), ["a", "Store", "Brand"]);
    assert_eq!(column(&decoded, "a"), ["5", "6", "7"]);
    assert_eq!(column(&decoded, "Store"), ["x", "x", "y"]);
    assert_eq!(column(&decoded, "Brand"), ["007", "007", "007"]);
}

#[test]
fn long_line_belongs_to_the_block_of_its_start() {
    let long = "x".repeat(3 << 20);
    let input = Input::new(format!("a,b\n1,{long}\n2,y\n"), csv());
    let blocks = input.blocks(100_000);
    assert_eq!(blocks.iter().map(|block| block.rows).sum::<u64>(), 2);
    assert_eq!(column(&blocks[0], "b"), [long]);
}

#[test]
fn line_beyond_the_limit_is_an_error_that_names_it() {
    let folder = Folder::new();
    let path = folder.file("zeros", "a\n");
    // A sparse file, which takes no space on disk.
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("just made");
    file.set_len(tables::LINE_BYTES_MAX as u64 * 3).expect("sparse files are supported");
    let error =
        decode(&path, tables::text_block_range(0, 1000), &csv(), None).expect_err("no schema");
    assert!(matches!(error, Error::Options(_)));
    let schema = Input::new("a\n1\n", csv()).schema;
    let error = decode(&path, tables::text_block_range(0, 1000), &csv(), schema.as_ref())
        .expect_err("too long");
    assert!(matches!(&error, Error::Malformed { place, .. } if place == "byte 2"), "{error}");
}

#[test]
fn missing_files_and_folders_are_named() {
    let schema = Input::new("a\n1\n", csv()).schema;
    let folder = Folder::new();
    let path = folder.file("data", "");
    let parent = path.parent().expect("in a folder");
    for path in [&parent.join("not there"), parent] {
        let error = decode(path, ALL_LINES, &csv(), schema.as_ref()).expect_err("unreadable");
        assert!(matches!(error, Error::Unreadable { .. }), "{error}");
        assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
    }
}

#[test]
fn stream_has_one_batch_and_the_announced_length() {
    let decoded = Input::new("a,b,c\n5,x,\n6,,\n", csv()).decode_all();
    let stream = IpcStream::new(&decoded.batch).expect("encodes");
    let bytes = stream.pieces().collect::<Vec<_>>().concat();
    assert_eq!(bytes.len() as u64, stream.bytes());
    let reader = arrow::ipc::reader::StreamReader::try_new(&bytes[..], None).expect("a stream");
    let batches: Vec<_> = reader.collect::<Result<_, _>>().expect("complete");
    assert_eq!(batches, [decoded.batch]);
}

#[test]
fn rows_have_line_numbers() {
    let options = TableOptions { support_multi_line: true, ..csv() };
    let options = TableOptions { on_type_mismatch: MismatchPolicy::Reject, ..options };
    let options =
        TableOptions { column_types: [("n".to_owned(), ColumnType::Integer)].into(), ..options };
    // Row: line. 1: 2, "x": 3 (fails), 2: 6 (after a blank line, with two lines), 3: 8, "": 9.
    let input = Input::new("n,t\n1,a\nx,b\n\n\n2,\"c\nd\"\n3,e\n,f\n", options);
    let block = block(&input.path, BlockRange::WholeText);
    let blocks = [LocalBlock { block: &block, path: &input.path, has_holes: false }];
    let request = DecodeRequest {
        blocks: &blocks,
        options: &input.options,
        schema: input.schema.as_ref(),
        with_lines: false,
    };
    let places = Decoder::with_window(5).row_places(&request, &[0, 1, 2, 3, 4]).expect("readable");
    let name = input.path.display();
    let expected = [Some(2), Some(6), Some(8), Some(9), None];
    assert_eq!(places, expected.map(|line| line.map(|line: u64| format!("{name}, line {line}"))));
}

#[test]
fn rest_of_a_row_that_ends_within_quotes_is_left_out_in_any_block() {
    let options = TableOptions { on_type_mismatch: MismatchPolicy::Reject, ..csv() };
    let input = Input::new("a,b,c\n1,\"x\n\ny\",2\n3,,4\n5\n", options);
    for block_bytes in [1, 9, 10, 11, 1000] {
        let blocks = input.blocks(block_bytes);
        assert_eq!(
            blocks.iter().flat_map(|block| column(block, "a")).collect::<Vec<_>>(),
            ["3", "5"]
        );
        assert_eq!(blocks.iter().map(|block| block.failed_records).sum::<u64>(), 2);
    }
}
