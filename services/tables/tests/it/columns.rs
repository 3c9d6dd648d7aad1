//! Tables restricted to listed columns.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, DictionaryArray, Int64Array, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use proptest::prelude::*;
use protocol::{
    Block, BlockRange, HeaderMode, ItemPath, MismatchPolicy, TableFormat, TableOptions,
};
use tables::{DecodeRequest, Decoded, Error, LocalBlock, Result};

use crate::support::{
    ALL_LINES, Folder, Input, column, csv, decode, dtype, jsonl, messages, names, values,
};

fn listing(columns: &[&str], options: TableOptions) -> TableOptions {
    TableOptions { columns: columns.iter().map(|&name| name.to_owned()).collect(), ..options }
}

#[test]
fn delimited_columns_follow_the_order_of_the_list() {
    let text = "id,note,price,day\n1,\"a, \"\"b\"\"\",1.5,2020-01-31\n2,\"open,2.5,x\n3,c,3.5,2020-02-01\n";
    let decoded = Input::new(text, listing(&["price", "id"], csv())).decode_all();
    assert_eq!(names(&decoded), ["price", "id"]);
    assert_eq!(
        (dtype(&decoded, "id"), column(&decoded, "id")),
        (DataType::Int64, vec!["1".into(), "2".into(), "3".into()])
    );
    assert_eq!(column(&decoded, "price"), ["1.5", "-", "3.5"]);
    let all = Input::new(text, listing(&["day", "price", "note", "id"], csv())).decode_all();
    assert_eq!(names(&all), ["day", "price", "note", "id"]);
    assert_eq!(column(&all, "note")[..2], ["a, \"b\"", "open,2.5,x"]);
}

#[test]
fn line_breaks_in_unread_cells_are_skipped() {
    let text = "id,note,n\n1,\"two\nlines, \"\"5\"\"\n\",10\n2,x,20\n";
    let whole = TableOptions { support_multi_line: true, ..csv() };
    let decoded = Input::new(text, listing(&["n"], whole)).decode_all();
    assert_eq!(
        (column(&decoded, "n"), decoded.warnings.total),
        (vec!["10".into(), "20".into()], 0)
    );
}

#[test]
fn list_does_not_change_the_rows_of_blocks() {
    let text: String = (0..300).map(|row| format!("{row},text {row},{}.5\n", row * 2)).collect();
    let input = Input::new(format!("a,b,c\n{text}"), listing(&["c", "a"], csv()));
    let blocks = input.blocks(100);
    assert!(blocks.len() > 30 && blocks.iter().all(|block| names(block) == ["c", "a"]));
    let found: Vec<String> = blocks.iter().flat_map(|block| column(block, "a")).collect();
    assert_eq!(found, (0..300).map(|row| row.to_string()).collect::<Vec<_>>());
}

#[test]
fn warnings_concern_listed_columns_and_whole_rows() {
    let typed = "7,7,x\n".repeat(200);
    // Row 201 misfits in `b`, row 202 is too short for `c`, row 203 misfits in `a`, row 204 has no text in `c`.
    let text = format!("a,b,c\n{typed}5,oops,x\n6,7\nbad,8,y\n").into_bytes();
    let text = [&text[..], b"9,10,\xFF\n"].concat();
    let decoded = Input::new(&text, listing(&["a"], csv())).decode_all();
    assert_eq!(column(&decoded, "a")[200..], ["5", "6", "-", "9"]);
    assert_eq!(
        messages(&decoded),
        [
            "data.txt, line 203: 2 cells in a table of 3 columns; the others are missing",
            "data.txt, line 204, column \"a\": \"bad\" is not an integer; read as missing"
        ]
    );
    let strict = TableOptions { on_type_mismatch: MismatchPolicy::Reject, ..csv() };
    let decoded = Input::new(&text, listing(&["a"], strict)).decode_all();
    assert_eq!((decoded.rows, decoded.failed_records), (203, 1));
    assert_eq!(column(&decoded, "a")[200..], ["5", "6", "9"]);
}

#[test]
fn header_may_differ_in_unlisted_columns() {
    let options = listing(&["c", "a"], csv());
    let input = Input::new("a,b,c\n5,6,7\n", options.clone());
    for (header, differs) in [("a,x,c", false), ("a,b,c,d", false), ("b,a,c", true), ("a,b", true)]
    {
        let other = input.folder.file("other", format!("{header}\n"));
        let decoded = decode(&other, ALL_LINES, &options, input.schema.as_ref()).expect("readable");
        let is_reported =
            decoded.warnings.first.iter().any(|warning| warning.message.contains("header differs"));
        assert_eq!(is_reported, differs, "{header}");
    }
}

#[test]
fn columns_without_header_are_listed_by_position() {
    let no_header = TableOptions { header: HeaderMode::NoHeader, ..csv() };
    let decoded = Input::new("1,x\n2,y\n", listing(&["Column2"], no_header)).decode_all();
    assert_eq!(
        (names(&decoded), column(&decoded, "Column2")),
        (vec!["Column2".into()], vec!["x".into(), "y".into()])
    );
}

#[test]
fn columns_from_the_path_come_last() {
    let folder = Folder::new();
    let path = folder.file("t.csv", "a,b,Store\n1,2,3\n");
    let options = listing(&["b"], csv());
    let schema =
        tables::infer_schema([path.as_path()], &options, &["Store".to_owned()]).expect("readable");
    let block = Block {
        path: ItemPath::from(path.as_path()),
        version: None,
        range: ALL_LINES,
        path_columns: vec![("Store".into(), "007".into())],
    };
    let blocks = [LocalBlock { block: &block, path: &path, has_holes: false }];
    let request = DecodeRequest {
        blocks: &blocks,
        options: &options,
        schema: schema.as_ref(),
        with_lines: false,
    };
    let decoded = tables::decode(&request).expect("readable");
    assert_eq!(names(&decoded), ["b", "Store"]);
    assert_eq!(column(&decoded, "Store"), ["007"]);
}

#[test]
fn missing_listed_column_is_an_error() {
    for options in [csv(), jsonl()] {
        let input = Input::new("{\"a\":1}\n", listing(&["missing"], options));
        let error = input.decode(ALL_LINES).expect_err("refused");
        assert!(
            matches!(error, Error::Options(_)) && error.to_string().contains("\"missing\""),
            "{error}"
        );
    }
    assert_eq!(
        Input::new("\n\n", listing(&["a"], csv())).decode_all().rows,
        0,
        "no rows need no columns"
    );
}

#[test]
fn json_columns_follow_the_order_of_the_list() {
    let text = r#"{"a":1,"skipped":{"k":[1,"}"]},"b":"x","late":"\u0041"}
{"skipped":"\"quoted\\","b":"y","other":[[]],"a":2}
{"b":null,"a":3,"never seen":-1.5e3}
"#;
    let decoded = Input::new(text, listing(&["late", "b", "a"], jsonl())).decode_all();
    assert_eq!(names(&decoded), ["late", "b", "a"]);
    assert_eq!(column(&decoded, "late"), ["A", "-", "-"]);
    assert_eq!(column(&decoded, "b"), ["x", "y", "-"]);
    assert_eq!(
        (dtype(&decoded, "a"), column(&decoded, "a")),
        (DataType::Int64, vec!["1".into(), "2".into(), "3".into()])
    );
    assert_eq!(decoded.warnings.total, 0);
}

#[test]
fn unlisted_json_members_are_not_checked() {
    let rows = "{\"a\":5,\"b\":6}\n".repeat(200);
    let later = r#"{"a":7,"b":"no number"}
{"a":8,"new":1}
{"a":9,"b":"\x"}
{"b":1,"a":"no number"}
{"a":10,"b":}
{"a":11,"b":[1}
{"a":12,"b":"open
"#;
    let strict = TableOptions { on_type_mismatch: MismatchPolicy::Reject, ..jsonl() };
    let decoded = Input::new(format!("{rows}{later}"), listing(&["a"], strict)).decode_all();
    assert_eq!(column(&decoded, "a")[200..], ["7", "8", "9"]);
    assert_eq!((decoded.rows, decoded.failed_records, decoded.warnings.total), (203, 4, 4));
    assert!(
        messages(&decoded)[0].starts_with("data.txt, line 204, column \"a\": "),
        "{:?}",
        messages(&decoded)
    );
}

/// 25 rows in groups of 10: `number`, `category` (a dictionary), `pair` (nested), `text`.
fn parquet_file(folder: &Folder) -> PathBuf {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..25));
    let categories: DictionaryArray<Int32Type> =
        (0..25).map(|row| if row % 2 == 0 { "even" } else { "odd" }).collect();
    let pair = StructArray::from(vec![
        (Arc::new(Field::new("number", DataType::Int64, true)), Arc::clone(&numbers)),
        (Arc::new(Field::new("text", DataType::Int64, true)), Arc::clone(&numbers)),
    ]);
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..25).map(|row| format!("t{row}"))));
    let columns = [
        ("number", numbers),
        ("category", Arc::new(categories) as ArrayRef),
        ("pair", Arc::new(pair) as ArrayRef),
        ("text", texts),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("columns match");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(10)).build();
    folder.parquet("data.parquet", &batch, properties)
}

fn decode_rows(
    path: &Path,
    (row_group, offset, rows): (u32, u64, u64),
    columns: &[&str],
) -> Result<Decoded> {
    let options =
        listing(columns, TableOptions { format: TableFormat::Parquet, ..TableOptions::default() });
    decode(path, BlockRange::RowGroup { row_group, offset, rows }, &options, None)
}

#[test]
fn parquet_columns_follow_the_order_of_the_list() {
    let folder = Folder::new();
    let path = parquet_file(&folder);
    assert_eq!(
        tables::parquet_columns(&path, &TableOptions::default()).expect("readable"),
        ["number", "category", "pair", "text"]
    );
    let decoded = decode_rows(&path, (0, 0, 10), &["text", "number"]).expect("readable");
    assert_eq!(names(&decoded), ["text", "number"]);
    assert_eq!(column(&decoded, "text")[8..], ["t8", "t9"]);
    assert_eq!(column(&decoded, "number")[8..], ["8", "9"]);
    let piece = decode_rows(&path, (1, 3, 4), &["category", "number"]).expect("readable");
    assert_eq!((names(&piece), piece.rows), (vec!["category".to_owned(), "number".to_owned()], 4));
    let categories = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    assert_eq!(
        (dtype(&piece, "category"), column(&piece, "category")[0].as_str()),
        (categories, "odd")
    );
    assert_eq!(column(&piece, "number"), ["13", "14", "15", "16"]);
    let nested =
        decode_rows(&path, (2, 4, 1), &["text", "pair", "category", "number"]).expect("readable");
    assert_eq!(names(&nested), ["text", "pair", "category", "number"]);
    assert!(
        matches!(nested.batch.column(1).data_type(), DataType::Struct(fields) if fields.len() == 2)
    );
    for missing in ["nothing", "pair.number", "Number"] {
        let error = decode_rows(&path, (0, 0, 10), &["number", missing]).expect_err("refused");
        assert!(
            matches!(error, Error::Kind { .. }) && error.to_string().contains(missing),
            "{error}"
        );
    }
}

#[test]
fn unlisted_parquet_columns_are_not_read() {
    let folder = Folder::new();
    let path = parquet_file(&folder);
    let reader = SerializedFileReader::new(File::open(&path).expect("written")).expect("readable");
    let file = File::options().write(true).open(&path).expect("written");
    for group in reader.metadata().row_groups() {
        for chunk in group.columns().iter().filter(|chunk| chunk.column_path().string() != "text") {
            let (start, bytes) = chunk.byte_range();
            file.write_all_at(&vec![0xFF; bytes as usize], start).expect("writable");
        }
    }
    let decoded = decode_rows(&path, (1, 0, 10), &["text"]).expect("the others do not matter");
    assert_eq!(column(&decoded, "text")[0], "t10");
    assert!(
        decode_rows(&path, (1, 0, 10), &[]).is_err()
            && decode_rows(&path, (1, 0, 10), &["pair"]).is_err()
    );
}

/// One decoder serves several inputs, and files that differ in unlisted columns.
#[test]
fn parquet_files_may_differ_in_unlisted_columns() {
    let folder = Folder::new();
    let first = parquet_file(&folder);
    let columns: [(&str, ArrayRef); 3] = [
        ("extra", Arc::new(Int64Array::from_iter_values([1]))),
        ("text", Arc::new(StringArray::from_iter_values(["other"]))),
        ("number", Arc::new(Int64Array::from_iter_values([99]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("columns match");
    let second = folder.parquet("other.parquet", &batch, WriterProperties::default());
    let range = |rows| BlockRange::RowGroup { row_group: 0, offset: 0, rows };
    let blocks = [(&first, 10), (&second, 1)].map(|(path, rows)| Block {
        path: ItemPath::from(path.as_path()),
        version: None,
        range: range(rows),
        path_columns: Vec::new(),
    });
    let local = [(&blocks[0], &first), (&blocks[1], &second)];
    let local = local.map(|(block, path)| LocalBlock { block, path, has_holes: false });
    let mut decoder = tables::Decoder::default();
    let all = TableOptions { format: TableFormat::Parquet, ..TableOptions::default() };
    let both = listing(&["number", "text"], all.clone());
    let decoded = decoder
        .decode(&DecodeRequest { blocks: &local, options: &both, schema: None, with_lines: false })
        .expect("alike");
    assert_eq!(column(&decoded, "number")[9..], ["9", "99"]);
    assert_eq!(column(&decoded, "text")[9..], ["t9", "other"]);
    let error = decoder
        .decode(&DecodeRequest { blocks: &local, options: &all, schema: None, with_lines: false })
        .expect_err("not alike as a whole");
    let blamed = format!(
        "{} has other columns, or other types, than {} in",
        second.display(),
        first.display()
    );
    assert!(error.to_string().starts_with(&blamed), "{error}");
    let again = decoder
        .decode(&DecodeRequest {
            blocks: &local[1..],
            options: &all,
            schema: None,
            with_lines: false,
        })
        .expect("readable");
    assert_eq!(names(&again), ["extra", "text", "number"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// A list only selects columns, and does not change their values.
    #[test]
    fn list_does_not_change_values(
        pieces in prop::collection::vec(prop::sample::select(vec![
            ",", ",", ",", "\n", "\n", "\r\n", "\"", "\"\"", "1", "-2.5", "true", "2020-01-01", "text", " ", "\u{FFFD}",
        ]), 0..120),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
        multi_line: bool,
    ) {
        let options = TableOptions { support_multi_line: multi_line, ..csv() };
        let text = format!("a,b,c,d\n{}", pieces.concat());
        let whole = Input::new(&text, options.clone()).decode_all();
        let mut listed: Vec<&str> = picks.iter().map(|pick| ["a", "b", "c", "d"][pick.index(4)]).collect();
        let mut seen = std::collections::HashSet::new();
        listed.retain(|name| seen.insert(*name));
        let some = Input::new(&text, listing(&listed, options)).decode_all();
        prop_assert_eq!(names(&some), listed.clone());
        prop_assert_eq!((some.rows, some.failed_records), (whole.rows, whole.failed_records));
        prop_assert!(some.warnings.total <= whole.warnings.total);
        for (index, name) in listed.iter().enumerate() {
            prop_assert_eq!(values(some.batch.column(index)), column(&whole, name));
        }
    }
}
