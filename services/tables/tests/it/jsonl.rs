//! JSON lines.

use arrow::datatypes::DataType;
use protocol::{MismatchPolicy, TableOptions};

use crate::support::{Input, column, dtype, jsonl, messages};

#[test]
fn columns_in_the_order_in_which_keys_are_first_seen() {
    let text = r#"{"b":1,"a":"x","n":{"k": [1, 2]},"f":1.5,"t":true,"z":null}
{"a":"","b":2,"new":"late","f":2,"t":false,"z":null}
"#;
    let decoded = Input::new(text, jsonl()).decode_all();
    let fields: Vec<_> = decoded.batch.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(fields, ["b", "a", "n", "f", "t", "z", "new"]);
    assert_eq!((dtype(&decoded, "b"), column(&decoded, "b")), (DataType::Int64, vec!["1".into(), "2".into()]));
    assert_eq!(column(&decoded, "a"), ["x", ""]);
    assert_eq!(column(&decoded, "n"), [r#"{"k":[1,2]}"#, "-"]);
    assert_eq!((dtype(&decoded, "f"), column(&decoded, "f")), (DataType::Float64, vec!["1.5".into(), "2.0".into()]));
    assert_eq!(column(&decoded, "t"), ["true", "false"]);
    assert_eq!(dtype(&decoded, "z"), DataType::Null);
    assert_eq!(column(&decoded, "new"), ["-", "late"]);
    assert_eq!(decoded.warnings_total, 0);
}

#[test]
fn text_stays_text_and_zero_and_one_stay_numbers() {
    let text = "{\"s\":\"1\",\"d\":\"2020-01-01\",\"i\":1}\n{\"s\":\"2\",\"d\":\"2020-01-02\",\"i\":0}\n";
    let decoded = Input::new(text, jsonl()).decode_all();
    assert_eq!((dtype(&decoded, "s"), dtype(&decoded, "d")), (DataType::LargeUtf8, DataType::LargeUtf8));
    assert_eq!(dtype(&decoded, "i"), DataType::Int64);
    let mixed = Input::new("{\"a\":1}\n{\"a\":true}\n{\"a\":\"x\"}\n{\"a\":null}\n", jsonl()).decode_all();
    assert_eq!(column(&mixed, "a"), ["1", "true", "x", "-"]);
    let missing = Input::new("{\"a\":5,\"b\":true}\n{}\n", jsonl()).decode_all();
    assert_eq!(column(&missing, "a"), ["5.0", "NaN"]);
    assert_eq!(column(&missing, "b"), ["true", "-"]);
    let untyped = Input::new("{\"a\":1.50}\n{\"a\":true}\n", TableOptions { infer_column_types: false, ..jsonl() });
    assert_eq!(column(&untyped.decode_all(), "a"), ["1.50", "true"]);
}

#[test]
fn a_line_that_is_no_object_fails_alone() {
    let decoded = Input::new("{\"a\":5}\nnot json\n\n{\"a\":6}\n{\"a\":", jsonl()).decode_all();
    assert_eq!((decoded.rows, decoded.failed_records), (2, 2));
    assert_eq!((dtype(&decoded, "a"), column(&decoded, "a")), (DataType::Int64, vec!["5".into(), "6".into()]));
    let messages = messages(&decoded);
    assert_eq!(messages[0], "data.txt, line 2: the line is no JSON object; the record failed");
    assert!(messages[1].starts_with("data.txt, line 5: "), "{messages:?}");
}

#[test]
fn later_values_follow_the_rules_of_text() {
    let text =
        format!("{}{}", "{\"a\":5}\n".repeat(200), "{\"a\":\"x\"}\n{\"a\":1.5,\"b\":1}\n{\"a\":\"7\"}\n{\"a\":[]}\n");
    let decoded = Input::new(&text, jsonl()).decode_all();
    assert_eq!(column(&decoded, "a")[200..], ["NaN", "1.0", "7.0", "NaN"]);
    assert_eq!(decoded.warnings_total, 4);
    assert!(messages(&decoded)[1].starts_with("data.txt, line 202"), "{:?}", messages(&decoded));
    let strict = TableOptions { on_type_mismatch: MismatchPolicy::Error, ..jsonl() };
    let decoded = Input::new(&text, strict).decode_all();
    assert_eq!((decoded.rows, decoded.failed_records), (201, 3));
    assert_eq!(dtype(&decoded, "a"), DataType::Int64);
}

#[test]
fn escapes_keys_and_invalid_bytes() {
    let decoded =
        Input::new(b"{\"a\\u0062\":\"x\\ty\"}\n{\"ab\":\"\xFF\", \"ab\":\"last\xFF wins\"}\r\n", jsonl()).decode_all();
    assert_eq!(column(&decoded, "ab"), ["x\ty", "last\u{FFFD} wins"]);
    assert_eq!(decoded.warnings_total, 1);
}
