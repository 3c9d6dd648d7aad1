//! JSON lines.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use protocol::{BlockRange, ColumnType, MismatchPolicy, TableOptions};
use tables::{DecodeRequest, Decoded, Decoder, LocalBlock};

use crate::support::{Input, block, column, dtype, jsonl, messages, names};

#[test]
fn columns_follow_the_first_appearance_of_keys() {
    let text = r#"{"b":1,"a":"x","n":{"k": [1, 2]},"f":1.5,"t":true,"z":null}
{"a":"","b":2,"new":"late","f":2,"t":false,"z":null}
"#;
    let decoded = Input::new(text, jsonl()).decode_all();
    assert_eq!(names(&decoded), ["b", "a", "n", "f", "t", "z", "new"]);
    assert_eq!(
        (dtype(&decoded, "b"), column(&decoded, "b")),
        (DataType::Int64, vec!["1".into(), "2".into()])
    );
    assert_eq!(column(&decoded, "a"), ["x", ""]);
    assert_eq!(
        (column(&decoded, "n"), is_json(&decoded, "n")),
        (vec![r#"{"k":[1,2]}"#.into(), "-".into()], true)
    );
    assert!(!is_json(&decoded, "a"), "text is text");
    assert_eq!(
        (dtype(&decoded, "f"), column(&decoded, "f")),
        (DataType::Float64, vec!["1.5".into(), "2.0".into()])
    );
    assert_eq!(column(&decoded, "t"), ["true", "false"]);
    assert_eq!(dtype(&decoded, "z"), DataType::Null);
    assert_eq!(column(&decoded, "new"), ["-", "late"]);
    assert_eq!(decoded.warnings.total, 0);
}

#[test]
fn text_stays_text_and_zero_and_one_stay_numbers() {
    let text =
        "{\"s\":\"1\",\"d\":\"2020-01-01\",\"i\":1}\n{\"s\":\"2\",\"d\":\"2020-01-02\",\"i\":0}\n";
    let decoded = Input::new(text, jsonl()).decode_all();
    assert_eq!(
        (dtype(&decoded, "s"), dtype(&decoded, "d")),
        (DataType::LargeUtf8, DataType::LargeUtf8)
    );
    assert_eq!(dtype(&decoded, "i"), DataType::Int64);
    let mixed =
        Input::new("{\"a\":1}\n{\"a\":true}\n{\"a\":\"x\"}\n{\"a\":null}\n", jsonl()).decode_all();
    assert_eq!(
        (column(&mixed, "a"), is_json(&mixed, "a")),
        (["1", "true", "\"x\"", "-"].map(str::to_owned).to_vec(), true)
    );
    let missing = Input::new("{\"a\":5,\"b\":true}\n{}\n", jsonl()).decode_all();
    assert_eq!(column(&missing, "a"), ["5.0", "-"]);
    assert_eq!(column(&missing, "b"), ["true", "-"]);
    let untyped = Input::new(
        "{\"a\":1.50}\n{\"a\":true}\n",
        TableOptions { infer_column_types: false, ..jsonl() },
    );
    assert_eq!(column(&untyped.decode_all(), "a"), ["1.50", "true"]);
}

fn is_json(decoded: &Decoded, name: &str) -> bool {
    let schema = decoded.batch.schema();
    let metadata = schema.field_with_name(name).expect("the column is there").metadata();
    metadata.get("ARROW:extension:name").is_some_and(|name| name == "arrow.json")
}

/// The first 200 lines contain text, an object or nothing; later lines contain anything.
#[test]
fn later_values_of_other_kinds_stay_unchanged() {
    for (first, of_first, later) in [
        (r#""x\ty""#, r#""x\ty""#, [r#"{"k":[1,null]}"#, "[]", "12345678901234567890123", "true"]),
        ("null", "-", [r#""text""#, "1.50", r#"{"k":{}}"#, "NaN"]),
        (r#"{ "k" : 1 }"#, r#"{"k":1}"#, [r#""a\"b""#, "1", "null", "false"]),
    ] {
        let line = |value: &str| format!("{{\"a\": {value}, \"b\": 5}}\n");
        let text = line(first).repeat(200) + &later.map(line).concat();
        let decoded = Input::new(&text, jsonl()).decode_all();
        let expected = later.map(|value| if value == "null" { "-" } else { value });
        assert_eq!(column(&decoded, "a")[199..], [&[of_first], &expected[..]].concat(), "{first}");
        assert!(is_json(&decoded, "a") && decoded.warnings.total == 0, "{first}");
        let texts = TableOptions { infer_column_types: false, ..jsonl() };
        let decoded = Input::new(&text, texts).decode_all();
        assert!(!is_json(&decoded, "a"), "without inference everything is text");
    }
}

#[test]
fn keys_of_later_lines_are_reported_or_read_if_typed() {
    let text = format!("{}{{\"a\":1,\"late\":[1]}}\n", "{\"a\":1}\n".repeat(200));
    let decoded = Input::new(&text, jsonl()).decode_all();
    let [kind] = &decoded.warnings.kinds[..] else { panic!("one kind: {decoded:?}") };
    assert_eq!(
        (kind.column.as_deref(), kind.count, kind.remedy.as_str()),
        (Some("late"), 1, "to read it, set columns: {late: json}")
    );
    let column_types = BTreeMap::from([("late".to_owned(), ColumnType::Json)]);
    let given = Input::new(&text, TableOptions { column_types, ..jsonl() }).decode_all();
    assert_eq!(
        (column(&given, "late")[199..].to_vec(), given.warnings.total),
        (vec!["-".into(), "[1]".into()], 0)
    );
}

#[test]
fn nested_values_are_checked() {
    for line in [
        r#"[1,]"#,
        "[,1]",
        r#"{"k"}"#,
        r#"{"k":}"#,
        "[1 2]",
        "[01]",
        r#"["\x"]"#,
        "{1:2}",
        "[tru]",
        "[1}",
        "[[1]",
        "[\"a]",
    ] {
        let decoded = Input::new(format!("{{\"a\":{line}}}\n{{\"a\":[]}}\n"), jsonl()).decode_all();
        assert_eq!((decoded.rows, decoded.failed_records), (1, 1), "{line}");
    }
    for line in
        ["[ ]", "{ }", "[NaN, -Infinity]", r#"[ { "k" : [ [ ] , { } , "\u00e9\"" ] } , null ]"#]
    {
        let decoded = Input::new(format!("{{\"a\":{line}}}\n"), jsonl()).decode_all();
        assert_eq!((decoded.rows, decoded.warnings.total), (1, 0), "{line}");
    }
    let deep = |depth: usize| format!("{{\"a\":{}{}}}\n", "[".repeat(depth), "]".repeat(depth));
    let decoded = Input::new(deep(500) + &deep(501), jsonl()).decode_all();
    assert_eq!((decoded.rows, decoded.failed_records), (1, 1), "Python reads no deeper");
}

#[test]
fn line_without_object_fails_alone() {
    let decoded = Input::new("{\"a\":5}\nnot json\n\n{\"a\":6}\n{\"a\":", jsonl()).decode_all();
    assert_eq!((decoded.rows, decoded.failed_records), (2, 2));
    assert_eq!(
        (dtype(&decoded, "a"), column(&decoded, "a")),
        (DataType::Int64, vec!["5".into(), "6".into()])
    );
    let messages = messages(&decoded);
    assert_eq!(messages[0], "data.txt, line 2: the line is not a JSON object; the record failed");
    assert!(messages[1].starts_with("data.txt, line 5: "), "{messages:?}");
}

#[test]
fn later_values_follow_the_rules_of_text() {
    let text = format!(
        "{}{}",
        "{\"a\":5}\n".repeat(200),
        "{\"a\":\"x\"}\n{\"a\":1.5,\"b\":1}\n{\"a\":\"7\"}\n{\"a\":[]}\n"
    );
    let decoded = Input::new(&text, jsonl()).decode_all();
    assert_eq!(column(&decoded, "a")[200..], ["-", "1", "7", "-"]);
    assert_eq!(decoded.warnings.total, 4);
    assert!(messages(&decoded)[1].starts_with("data.txt, line 202"), "{:?}", messages(&decoded));
    assert!(
        decoded.warnings.kinds[0].remedy.ends_with("set columns: {a: json}"),
        "{:?}",
        decoded.warnings.kinds
    );
    let strict = TableOptions { on_type_mismatch: MismatchPolicy::Reject, ..jsonl() };
    let decoded = Input::new(&text, strict).decode_all();
    assert_eq!((decoded.rows, decoded.failed_records), (201, 3));
    assert_eq!(dtype(&decoded, "a"), DataType::Int64);
}

#[test]
fn escapes_repeated_keys_and_invalid_bytes_are_handled() {
    let decoded = Input::new(
        b"{\"a\\u0062\":\"x\\ty\"}\n{\"ab\":\"\xFF\", \"ab\":\"last\xFF wins\"}\r\n",
        jsonl(),
    )
    .decode_all();
    assert_eq!(column(&decoded, "ab"), ["x\ty", "last\u{FFFD} wins"]);
    assert_eq!(decoded.warnings.total, 1);
}

#[test]
fn items_have_line_numbers() {
    // Line: row of the table, item. 1: 0, 0; 2: none; 3 (fails): none, 1; 5: 1, 2.
    let options = TableOptions { on_type_mismatch: MismatchPolicy::Reject, ..jsonl() };
    let options =
        TableOptions { column_types: [("a".to_owned(), ColumnType::Integer)].into(), ..options };
    let input = Input::new("{\"a\":5}\nnot json\n{\"a\":\"x\"}\n\n{\"a\":6}\n", options);
    let block = block(&input.path, BlockRange::WholeText);
    let blocks = [LocalBlock { block: &block, path: &input.path, has_holes: false }];
    let schema = input.schema.as_ref();
    let places = |with_lines| {
        let request =
            DecodeRequest { blocks: &blocks, options: &input.options, schema, with_lines };
        Decoder::with_window(9).row_places(&request, &[0, 1, 2]).expect("readable")
    };
    let name = input.path.display();
    let expected =
        |lines: [Option<u64>; 3]| lines.map(|line| line.map(|line| format!("{name}, line {line}")));
    assert_eq!(places(false), expected([Some(1), Some(5), None]));
    assert_eq!(places(true), expected([Some(1), Some(3), Some(5)]));
}
