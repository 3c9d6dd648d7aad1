//! Types by the rules of pandas.

use arrow::datatypes::{DataType, TimeUnit};
use protocol::{
    ColumnType, HeaderMode, MismatchPolicy, TableColumn, TableOptions, TypeRules, fields,
};

use crate::support::{ALL_LINES, Folder, Input, column, csv, dtype, jsonl, messages};

use ColumnType::{Boolean, Float, Integer, Json, Text, Unsigned};

fn pandas() -> TableOptions {
    TableOptions { types: TypeRules::Pandas, on_type_mismatch: MismatchPolicy::Reject, ..csv() }
}

fn input(values: &[&str]) -> Input {
    let text: String = values.iter().map(|value| format!("{value},x\n")).collect();
    Input::new(format!("a,b\n{text}"), pandas())
}

fn first_column(input: &Input) -> TableColumn {
    input.schema.as_ref().expect("text has a schema").columns[0].clone()
}

#[test]
fn types_match_pandas() {
    for (values, expected, has_missing) in [
        (&["1", "25"][..], Integer, false),
        (&["0", "1"], Integer, false),
        (&["007", "+3"], Integer, false),
        (&[" 5", "6 "], Integer, false),
        (&["1", "", "3"], Integer, true),
        (&["1", "NA"], Integer, true),
        (&["\"1\"", "\"#N/A\""], Integer, true),
        (&["9223372036854775808", "1"], Unsigned, false),
        (&["9223372036854775808", ""], Text, false),
        (&["9223372036854775808", "-1"], Text, false),
        (&["18446744073709551616"], Text, false),
        (&["1", "2.5", "null"], Float, false),
        (&["1e5", "inf"], Float, false),
        (&["", "NaN"], Float, false),
        (&["NAN"], Text, false),
        (&[" "], Text, false),
        (&["True", "FALSE", "tRue", "None"], Boolean, false),
        (&["T", "F"], Text, false),
        (&["True", "1"], Text, false),
        (&["2020-01-31"], Text, false),
        (&["1/31/2020"], Text, false),
    ] {
        let column = first_column(&input(values));
        assert_eq!((column.column_type, column.has_missing), (expected, has_missing), "{values:?}");
    }
}

#[test]
fn words_for_missing_values_are_missing_in_every_column() {
    let decoded = Input::new("i,f,b,t\nNA,null,<NA>,N/A\n1,1.5,True,na\n", pandas()).decode_all();
    for (name, value) in [("i", "1"), ("f", "1.5"), ("b", "true"), ("t", "na")] {
        assert_eq!(column(&decoded, name), ["-", value], "{name}");
    }
    let word = |name: &str| {
        decoded.batch.schema().field_with_name(name).expect("a column").metadata().clone()
    };
    assert_eq!(word("i").get(fields::PANDAS).map(String::as_str), Some(fields::FLOAT));
    assert_eq!(word("t").get(fields::PANDAS).map(String::as_str), Some(fields::NAN));
    let kept = TableOptions { empty_as_string: true, ..pandas() };
    assert_eq!(column(&Input::new("t,i\nx,1\n,\n", kept).decode_all(), "t"), ["x", ""]);
}

#[test]
fn rows_of_many_places_decide() {
    let rows = |at: usize| {
        (0..20_000).map(|row| if row == at { "x\n" } else { "5\n" }).collect::<String>()
    };
    // Each of 64 places has 312 lines, of which 200 decide.
    for (at, expected) in [(0, Text), (150, Text), (312 * 40 + 20, Text), (312 * 40 + 300, Integer)]
    {
        let input = Input::new(format!("a\n{}", rows(at)), pandas());
        assert_eq!(first_column(&input).column_type, expected, "row {at}");
    }
    let small: String = (0..1000).map(|row| if row == 999 { "x\n" } else { "5\n" }).collect();
    assert_eq!(
        first_column(&Input::new(format!("a\n{small}"), pandas())).column_type,
        Text,
        "all rows"
    );
}

#[test]
fn rows_of_many_places_decide_where_fields_hold_line_breaks() {
    // Lines within quotes that look like rows, and rows that hold such lines, at every place.
    let options = TableOptions { support_multi_line: true, ..pandas() };
    let row = |value: &str| format!("{value},\"one\n1.5,\"\"two\"\",3\n7,\n\",4\n");
    let rows = |at: usize| {
        (0..20_000).map(|number| row(if number == at { "x" } else { "5" })).collect::<String>()
    };
    for (at, expected) in [(0, Text), (312 * 40 + 100, Text), (312 * 40 + 300, Integer)] {
        let input = Input::new(format!("a,b,c\n{}", rows(at)), options.clone());
        let types: Vec<_> = input
            .schema
            .as_ref()
            .expect("text")
            .columns
            .iter()
            .map(|one| one.column_type)
            .collect();
        assert_eq!(types, [expected, Text, Integer], "row {at}");
    }
    // With very long fields, only the first place may have whole rows.
    let long = format!("1,\"{}\",2\n", "no row, but a line of text\n".repeat(10_000));
    let types: Vec<_> =
        (Input::new(format!("a,b,c\n{}", long.repeat(20)), options).schema.expect("text").columns)
            .iter()
            .map(|one| one.column_type)
            .collect();
    assert_eq!(types, [Integer, Text, Integer]);
}

fn named(names: &[&str], types: TypeRules) -> TableOptions {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    TableOptions { header: HeaderMode::NoHeader, names, types, ..pandas() }
}

#[test]
fn columns_without_a_header_have_the_given_names() {
    let input = Input::new("1,x,2.5\n2,y,3\n", named(&["id", "name", "price"], TypeRules::Pandas));
    let columns = &input.schema.as_ref().expect("text").columns;
    let named: Vec<_> =
        columns.iter().map(|column| (column.name.as_str(), column.column_type)).collect();
    assert_eq!(named, [("id", Integer), ("name", Text), ("price", Float)]);
    assert_eq!(column(&input.decode_all(), "name"), ["x", "y"]);
}

#[test]
fn names_beyond_the_fields_of_a_file_are_columns_without_values() {
    let options = named(&["x", "y", "z"], TypeRules::Pandas);
    for multi_line in [false, true] {
        let options = TableOptions { support_multi_line: multi_line, ..options.clone() };
        let decoded = Input::new("1,2\n3,4\n", options.clone()).decode_all();
        assert_eq!(
            (column(&decoded, "y"), column(&decoded, "z")),
            (vec!["2".into(), "4".into()], vec!["-".to_owned(); 2])
        );
        assert_eq!((dtype(&decoded, "z"), decoded.failed_records), (DataType::Float64, 0));
        assert!(
            messages(&decoded)[0]
                .contains("2 cells in a table of 3 columns; the others are missing")
        );
        let longer = Input::new("1,2\n3,4,5\n", options.clone());
        assert_eq!(column(&longer.decode_all(), "z"), ["-", "5"]);
        // Rows of all places decide, where no row has as many fields as there are names.
        let rows: String =
            (0..20_000).map(|row| if row == 312 * 40 + 20 { "1,a\n" } else { "1,2\n" }).collect();
        assert_eq!(Input::new(rows, options).schema.expect("text").columns[1].column_type, Text);
    }
}

#[test]
fn fewer_names_than_fields_are_an_error() {
    for types in [TypeRules::Pandas, TypeRules::Original] {
        let folder = Folder::new();
        let path = folder.file("q.csv", "1,2,3\n");
        let error = tables::infer_schema([path.as_path()], &named(&["x", "y"], types), &[])
            .expect_err("refused");
        let error = error.to_string();
        assert!(
            error.contains("q.csv has 3 fields in its first row, and `names` lists 2 names"),
            "{error}"
        );
    }
}

#[test]
fn file_with_another_header_is_an_error() {
    let schema = Input::new("a,b\n1,2\n", pandas()).schema;
    for (text, expected) in [
        ("b,a\n1,2\n", "column 1 is \"b\" instead of \"a\""),
        ("a\n1\n", "column 2 is missing instead of \"b\""),
        ("a,b,c\n1,2,3\n", "column 3 is \"c\" instead of missing"),
    ] {
        let input = Input { schema: schema.clone(), ..Input::new(text, pandas()) };
        let error = input.decode(ALL_LINES).expect_err("another header").to_string();
        assert!(error.contains(expected), "{error}");
        let original = TableOptions { types: TypeRules::Original, ..pandas() };
        let input = Input { schema: schema.clone(), ..Input::new(text, original) };
        assert!(messages(&input.decode_all())[0].contains("its header differs"));
    }
}

#[test]
fn row_that_does_not_fit_fails_alone() {
    let mut input = input(&["1", "2", "x", "1.5", "NA", " ", "3.0"]);
    input.schema.as_mut().expect("text").columns[0] = TableColumn::new("a", Integer);
    let decoded = input.decode_all();
    assert_eq!(column(&decoded, "a"), ["1", "2", "-", "3"]);
    assert_eq!(dtype(&decoded, "a"), DataType::Int64);
    assert_eq!((decoded.rows, decoded.failed_records), (4, 3));
    assert_eq!(
        messages(&decoded)[0],
        "data.txt, line 4, column \"a\": \"x\" is not an integer; the record failed"
    );
    assert_eq!(decoded.unread[2].message, "column \"a\": \" \" is not an integer");
}

#[test]
fn times_keep_their_offset() {
    let column_types = [("a".to_owned(), ColumnType::DateTimeMonthFirst)].into();
    let options = TableOptions { column_types, ..pandas() };
    let json = TableOptions { format: jsonl().format, ..options.clone() };
    assert!(first_column(&Input::new("{\"a\": \"2024-05-01T10:00:00Z\"}\n", json)).has_offset);
    let text = "a\n2024-05-01T10:00:00+02:00\nNA\n2024-05-01T10:00:00Z\n2024-05-01\n";
    let input = Input::new(text, options);
    assert!(first_column(&input).has_offset);
    let decoded = input.decode_all();
    assert_eq!(dtype(&decoded, "a"), DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())));
    assert_eq!(decoded.rows, 3);
    assert_eq!(
        decoded.unread[0].message,
        "column \"a\": \"2024-05-01\" is not a time with an offset"
    );
}

#[test]
fn json_lines_keep_whole_numbers() {
    let options = TableOptions { types: TypeRules::Pandas, ..jsonl() };
    let text = "{\"a\": 1, \"b\": 18446744073709551616, \"c\": \"NA\"}\n{\"b\": 2, \"c\": null}\n";
    let input = Input::new(text, options);
    let columns = &input.schema.as_ref().expect("text").columns;
    let types: Vec<_> =
        columns.iter().map(|column| (column.column_type, column.has_missing)).collect();
    assert_eq!(types, [(Integer, true), (Json, false), (Text, false)]);
    let decoded = input.decode_all();
    assert_eq!(column(&decoded, "a"), ["1", "-"]);
    assert_eq!(column(&decoded, "b"), ["18446744073709551616", "2"]);
    assert_eq!(column(&decoded, "c"), ["NA", "-"]);
}
