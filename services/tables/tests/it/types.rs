//! Types of columns, and values that do not have them.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float64Type, TimeUnit, TimestampNanosecondType};
use protocol::{ColumnType, MismatchPolicy, TableOptions};

use crate::support::{ALL_LINES, Folder, Input, column, csv, decode, dtype, messages};

use ColumnType::{Blank, Boolean, DateTimeDayFirst, DateTimeMonthFirst, Float, Integer, Text};

fn inferred(values: &[&str]) -> ColumnType {
    // A second column keeps a line with a missing value from being blank.
    let text: String = values.iter().map(|value| format!("{value},x\n")).collect();
    let input = Input::new(format!("a,b\n{text}"), csv());
    input.schema.expect("text has a schema").columns[0].column_type
}

#[test]
fn types_match_the_original() {
    for (values, expected) in [
        (&["1", "25"][..], Integer),
        (&["007", "042"], Integer),
        (&[" 5", "6 "], Integer),
        (&["+3", "-4"], Integer),
        (&["20200131", "20200201"], Integer),
        (&["\"5\"", "6"], Integer),
        (&["0", "1", "0"], Boolean),
        (&["1", "1"], Boolean),
        (&["0"], Boolean),
        (&["true", "FALSE", "True"], Boolean),
        (&["T", "F"], Boolean),
        (&["Y", "N"], Boolean),
        (&["0", "", "1"], Boolean),
        (&["0", "1", "2"], Integer),
        (&["9223372036854775808"], Float),
        (&["1", "9223372036854775808"], Float),
        (&["1", "2.5"], Float),
        (&["0.0", "1.0"], Float),
        (&["1e5"], Float),
        (&["NaN", "1"], Float),
        (&["inf", "-inf"], Float),
        (&["1", "", "3"], Float),
        (&["2020-01-31", "2020-02-01"], DateTimeMonthFirst),
        (&["2020-01-31 10:00:00", "2020-02-01T00:00:00Z"], DateTimeMonthFirst),
        (&["1/31/2020", "2/1/2020"], DateTimeMonthFirst),
        (&["1/2/2020"], DateTimeMonthFirst),
        (&["31/1/2020", "1/2/2020"], DateTimeDayFirst),
        (&["1/31/2020", ""], DateTimeMonthFirst),
        (&["1/31/2020", "31/1/2020"], Text),
        (&["9999-12-31"], Text),
        (&["yes", "no"], Text),
        (&["y", "n"], Text),
        (&["null"], Text),
        (&["NA", "1"], Text),
        (&["5%"], Text),
        (&["0x10"], Text),
        (&["\"1,234\""], Text),
        (&["10:30", "11:45"], Text),
        (&["Jan 5 2020"], Text),
        (&["1", "a"], Text),
        (&["1", "true"], Text),
        (&["true", "T"], Text),
        (&["2020-01-31", "5"], Text),
        (&["", ""], Blank),
        (&["\"\"", " "], Blank),
    ] {
        assert_eq!(inferred(values), expected, "{values:?}");
    }
}

#[test]
fn types_of_the_frame_match_pandas() {
    let text = "i,f,b,d,t,n\n1,1.5,true,2020-01-31,x,\n2,,,,,\n";
    let mut input = Input::new(text, csv());
    input.schema.as_mut().expect("text").columns[0].column_type = Integer;
    let decoded = input.decode_all();
    let time = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let types: Vec<DataType> =
        ["i", "f", "b", "d", "t", "n"].map(|name| dtype(&decoded, name)).to_vec();
    assert_eq!(
        types,
        [
            DataType::Int64,
            DataType::Float64,
            DataType::Boolean,
            time,
            DataType::LargeUtf8,
            DataType::Null
        ]
    );
    assert_eq!(column(&decoded, "f"), ["1.5", "-"]);
    assert_eq!(column(&decoded, "b"), ["true", "-"]);
    assert_eq!(column(&decoded, "d"), ["2020-01-31 00:00:00", "-"]);
    assert_eq!(column(&decoded, "t"), ["x", "-"]);
    assert_eq!(decoded.warnings.total, 0);
    // pandas copies these values unchanged.
    let floats = decoded.batch.column(1).as_primitive::<Float64Type>();
    assert!(floats.is_null(1) && floats.value(1).is_nan());
    assert_eq!(
        decoded.batch.column(3).as_primitive::<TimestampNanosecondType>().values()[1],
        i64::MIN
    );
}

#[test]
fn first_200_rows_over_all_files_decide_the_types() {
    let rows = |count: usize, last: &str| format!("a\n{}{last}\n", "5\n".repeat(count - 1));
    let folder = Folder::new();
    let typed = |files: &[String]| {
        let paths: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(index, text)| folder.file(&index.to_string(), text))
            .collect();
        let schema = tables::infer_schema(
            paths.iter().map(|path| path.as_path()),
            &csv(),
            &["Store".to_owned()],
        );
        let columns = schema.expect("readable").expect("text").columns;
        assert_eq!((columns[1].name.as_str(), columns[1].column_type), ("Store", Text));
        columns[0].column_type
    };
    assert_eq!(typed(&[rows(200, "x")]), Text);
    assert_eq!(typed(&[rows(201, "x")]), Integer);
    assert_eq!(typed(&[rows(20, "5"), rows(20, "x")]), Text);
    assert_eq!(typed(&[rows(150, "5"), rows(50, "x")]), Text);
    assert_eq!(typed(&[rows(150, "5"), rows(51, "x")]), Integer);
}

#[test]
fn columns_without_inference_are_text() {
    let input = Input::new("a,b\n1,\n007,x\n", TableOptions { infer_column_types: false, ..csv() });
    assert_eq!(column(&input.decode_all(), "a"), ["1", "007"]);
    assert_eq!(column(&input.decode_all(), "b"), ["-", "x"]);
    let kept = TableOptions { infer_column_types: false, empty_as_string: true, ..csv() };
    assert_eq!(column(&Input::new("a,b\n1,\n2,\"\"\n", kept.clone()).decode_all(), "b"), ["", ""]);
    let empty_in_numbers =
        Input::new("a,b\n5,x\n,y\n", TableOptions { infer_column_types: true, ..kept });
    assert_eq!(column(&empty_in_numbers.decode_all(), "a"), ["5.0", "-"]);
}

/// Returns 200 values that determine the type, then others.
fn later(first: &str, then: &[&str], policy: MismatchPolicy) -> Input {
    let typed = format!("{first},x\n").repeat(200);
    let later: String = then.iter().map(|value| format!("{value},y\n")).collect();
    Input::new(format!("a,b\n{typed}{later}"), TableOptions { on_type_mismatch: policy, ..csv() })
}

#[test]
fn later_misfits_are_converted_with_a_warning() {
    for (first, then, data_type, value, warning) in [
        ("5", "1.5", DataType::Int64, "1", Some("\"1.5\" is not an integer; read as 1")),
        ("5", "-1.5", DataType::Int64, "-1", Some("\"-1.5\" is not an integer; read as -1")),
        ("5", "1e3", DataType::Int64, "1000", None),
        ("5", "abc", DataType::Int64, "-", Some("\"abc\" is not an integer; read as missing")),
        ("5", "", DataType::Int64, "-", None),
        ("5", "NaN", DataType::Int64, "-", None),
        ("5", "inf", DataType::Float64, "inf", Some("\"inf\" is not an integer; read as inf")),
        (
            "5",
            "9223372036854775808",
            DataType::Float64,
            "9.223372036854776e18",
            Some("\"9223372036854775808\" is not an integer; read as 9.223372036854776e18"),
        ),
        (
            "5",
            "9007199254740993.0",
            DataType::Int64,
            "9007199254740992",
            Some("read as 9007199254740992"),
        ),
        ("2.5", "abc", DataType::Float64, "-", Some("\"abc\" is not a number; read as missing")),
        ("2.5", "", DataType::Float64, "-", None),
        (
            "true",
            "maybe",
            DataType::Boolean,
            "-",
            Some("\"maybe\" is not a truth value; read as missing"),
        ),
        ("1", "2", DataType::Boolean, "-", Some("\"2\" is not a truth value; read as missing")),
        ("true", "", DataType::Boolean, "-", None),
        (
            "2020-01-31",
            "soon",
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            "-",
            Some("\"soon\" is not a date or time from 1678 to 2261; read as missing"),
        ),
        (
            "1/31/2020",
            "31/1/2020",
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            "-",
            Some("\"31/1/2020\" is not a date or time from 1678 to 2261"),
        ),
        (
            "31/1/2020",
            "1/2/2020",
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            "2020-02-01 00:00:00",
            None,
        ),
        ("", "later", DataType::LargeUtf8, "later", None),
    ] {
        let decoded = later(first, &[then], MismatchPolicy::Missing).decode_all();
        assert_eq!(dtype(&decoded, "a"), data_type, "{first}, then {then}");
        assert_eq!(column(&decoded, "a")[200], value, "{first}, then {then}");
        assert_eq!((decoded.rows, decoded.failed_records), (201, 0));
        match warning {
            None => assert_eq!(messages(&decoded), [""; 0], "{first}, then {then}"),
            Some(warning) => {
                let mut messages = messages(&decoded);
                messages.retain(|message| !message.contains("is read as a truth value"));
                let [message] = &messages[..] else {
                    panic!("one warning for {then}: {decoded:?}")
                };
                assert!(message.starts_with("data.txt, line 202, column \"a\": "), "{message}");
                assert!(message.contains(warning), "{message}");
            }
        }
    }
}

#[test]
fn column_that_becomes_float_keeps_its_other_values() {
    let input = later("5", &["abc", "7", "inf"], MismatchPolicy::Missing);
    assert_eq!(column(&input.decode_all(), "a")[198..], ["5.0", "5.0", "-", "7.0", "inf"]);
    // The block before it keeps its type.
    let blocks = input.blocks(400);
    assert_eq!(dtype(&blocks[0], "a"), DataType::Int64);
    assert_eq!(dtype(blocks.last().expect("several"), "a"), DataType::Float64);
}

#[test]
fn rounded_whole_number_is_reported() {
    let decoded = later("5", &["9007199254740993", ""], MismatchPolicy::Missing).decode_all();
    assert_eq!(
        column(&decoded, "a")[200..],
        ["9007199254740993", "-"],
        "pandas rounds it, Arrow does not"
    );
    assert_eq!((decoded.warnings.total, decoded.warnings_of_pandas.total), (0, 1));
    assert!(
        decoded.warnings_of_pandas.first[0].message.contains("9007199254740993 is rounded"),
        "{:?}",
        decoded.warnings_of_pandas
    );
}

#[test]
fn error_policy_fails_only_the_record() {
    let decoded = later("5", &["abc", "1.5", "6", "inf"], MismatchPolicy::Reject).decode_all();
    assert_eq!((decoded.rows, decoded.failed_records, decoded.warnings.total), (201, 3, 3));
    assert_eq!(dtype(&decoded, "a"), DataType::Int64);
    assert_eq!(column(&decoded, "a")[199..], ["5", "6"]);
    let message = &messages(&decoded)[0];
    assert_eq!(
        message,
        "data.txt, line 202, column \"a\": \"abc\" is not an integer; the record failed"
    );
    // Two bad values in one record make one failed record.
    let twice = Input::new(
        format!("a,b\n{}x,y\n", "5,6\n".repeat(200)),
        TableOptions { on_type_mismatch: MismatchPolicy::Reject, ..csv() },
    );
    assert_eq!((twice.decode_all().failed_records, twice.decode_all().rows), (1, 200));
}

#[test]
fn first_warnings_have_text_and_all_are_counted() {
    let decoded = later("5", &["x"; 50], MismatchPolicy::Missing).decode_all();
    assert_eq!((decoded.warnings.first.len(), decoded.warnings.total), (10, 50));
}

#[test]
fn line_number_counts_from_the_start_of_the_file() {
    let input = later("5", &["x"; 3], MismatchPolicy::Missing);
    let last = input.blocks(100).into_iter().flat_map(|block| messages(&block)).collect::<Vec<_>>();
    let lines: Vec<_> =
        last.iter().map(|message| message.split(',').nth(1).expect("a line")).collect();
    assert_eq!(lines, [" line 202", " line 203", " line 204"]);
}

#[test]
fn types_apply_to_later_files() {
    let input = Input::new(format!("a\n{}", "5\n".repeat(200)), csv());
    let other = input.folder.file("other", "a\n7\nx\n");
    let decoded = decode(&other, ALL_LINES, &csv(), input.schema.as_ref()).expect("readable");
    assert_eq!(column(&decoded, "a"), ["7", "-"]);
}

/// Returns the summary of 200 values that determine the type, followed by others.
fn summary(first: &str, then: &[&str], given: &[(&str, ColumnType)]) -> Vec<String> {
    let mut input = later(first, then, MismatchPolicy::Missing);
    input.options.column_types =
        given.iter().map(|(name, given)| ((*name).to_owned(), *given)).collect();
    input.schema =
        tables::infer_schema([input.path.as_path()], &input.options, &[]).expect("readable");
    let mut decoded = input.decode_all();
    decoded.warnings.extend(decoded.warnings_of_pandas);
    assert_eq!(
        decoded.warnings.kinds.iter().map(|kind| kind.count).sum::<u64>(),
        decoded.warnings.total
    );
    let folder = format!("{}/", input.path.parent().expect("in a folder").display());
    // The columns of 0 and 1 have a test of their own.
    let kinds =
        decoded.warnings.kinds.iter().filter(|kind| !kind.problem.starts_with("only 0 and 1"));
    kinds.map(|kind| kind.to_string().replace(&folder, "")).collect()
}

#[test]
fn summary_names_losses_and_remedies() {
    let from_rows = "its type comes from the first 200 rows: set columns:";
    for (first, then, expected) in [
        ("1", &["2", "3"][..], format!("column \"a\": not a truth value, read as missing (2 times; first: data.txt, line 202: \"2\"); {from_rows} {{a: int64}}")),
        ("1", &["2", "2.5"], format!("column \"a\": not a truth value, read as missing (2 times; first: data.txt, line 202: \"2\"); {from_rows} {{a: float64}}")),
        ("1", &["x", "2"], format!("column \"a\": not a truth value, read as missing (2 times; first: data.txt, line 202: \"x\"); {from_rows} {{a: string}}")),
        ("5", &["1.5"], format!("column \"a\": not a whole number, fraction dropped (once: data.txt, line 202: \"1.5\"); {from_rows} {{a: float64}}")),
        ("5", &["NA"], format!("column \"a\": not a whole number, read as missing (once: data.txt, line 202: \"NA\"); {from_rows} {{a: string}}")),
        ("5", &["9223372036854775808"], format!("column \"a\": beyond int64, read as float64 (once: data.txt, line 202: \"9223372036854775808\"); {from_rows} {{a: string}}")),
        ("2.5", &["-"], format!("column \"a\": not a number, read as missing (once: data.txt, line 202: \"-\"); {from_rows} {{a: string}}")),
        ("2020-01-31", &["soon"], format!("column \"a\": not a date or time from 1678 to 2261, read as missing (once: data.txt, line 202: \"soon\"); {from_rows} {{a: string}}")),
        ("5", &["007", "-01", "0", "10"], "column \"a\": leading zeros, dropped (2 times; first: data.txt, line 202: \"007\"); to keep them, set columns: {a: string}".to_owned()),
        ("2.5", &["007", "00.5", "0.5", "0"], "column \"a\": leading zeros, dropped (2 times; first: data.txt, line 202: \"007\"); to keep them, set columns: {a: string}".to_owned()),
        ("2.5", &["9007199254740993", "9007199254740992", "0.1234567890123456789"], "column \"a\": more digits than float64 holds, rounded (once: data.txt, line 202: \"9007199254740993\"); to keep them, set columns: {a: string}".to_owned()),
        ("5", &["9007199254740993", ""], "column \"a\": more digits than float64 holds, rounded (once: row 200 of a mini-batch: \"9007199254740993\"); to keep them, set columns: {a: string}".to_owned()),
    ] {
        assert_eq!(summary(first, then, &[]), [expected], "{first}, then {then:?}");
    }
    for (first, then) in
        [("5", "1e3"), ("5", ""), ("2.5", "1e400"), ("1", "0"), ("2020-01-31", "2020-02-01 10:00")]
    {
        assert_eq!(summary(first, &[then], &[]), [""; 0], "{first}, then {then}");
    }
}

#[test]
fn given_types_are_used() {
    for (first, then, given, expected) in [
        ("1", "2", Integer, &["1", "2"][..]),
        ("1", "2", Text, &["1", "2"]),
        ("1", "2.5", Float, &["1.0", "2.5"]),
        ("007", "abc", Text, &["007", "abc"]),
        (
            "1/2/2020",
            "31/1/2020",
            DateTimeDayFirst,
            &["2020-02-01 00:00:00", "2020-01-31 00:00:00"],
        ),
        ("x", "2020-01-31", DateTimeMonthFirst, &["-", "2020-01-31 00:00:00"]),
        ("0", "T", Boolean, &["false", "true"]),
    ] {
        let mut input = later(first, &[then], MismatchPolicy::Missing);
        input.options.column_types = BTreeMap::from([("a".to_owned(), given)]);
        input.schema =
            tables::infer_schema([input.path.as_path()], &input.options, &[]).expect("readable");
        assert_eq!(
            input.schema.as_ref().expect("text").columns[1].column_type,
            Text,
            "others are found"
        );
        assert_eq!(column(&input.decode_all(), "a")[199..], *expected, "{first}, then {then}");
    }
    assert_eq!(summary("007", &["008"], &[("a", Integer)]), [""; 0], "the user asked for a number");
    assert_eq!(
        summary("5", &["x"], &[("a", Integer)]),
        [
            "column \"a\": not a whole number, read as missing (once: data.txt, line 202: \"x\"); `columns` makes it int64: \
          correct the values, or set columns: {a: string}"
        ]
    );
}

#[test]
fn remedy_quotes_names_for_yaml() {
    let text = |name: &str| format!("{name},b\n{}2,x\n", "1,x\n".repeat(200));
    for (name, expected) in [
        ("price_2", "{price_2: int64}"),
        ("yes", "{\"yes\": int64}"),
        ("Unit price", "{\"Unit price\": int64}"),
    ] {
        let decoded = Input::new(text(name), csv()).decode_all();
        let remedy = &decoded.warnings.kinds[0].remedy;
        assert!(remedy.ends_with(expected), "{remedy}");
    }
}
