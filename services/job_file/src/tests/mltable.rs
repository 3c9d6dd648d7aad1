//! Inputs that an `MLTable` describes.

use protocol::{ColumnType, HeaderMode, InputKind, JobSpec, TableFormat};

use super::{Workplace, lines};

const JOB: &str = "inputs: {data: {type: tabular, format: mltable, path: sales}}\n";

fn workplace(table: &str) -> Workplace {
    let workplace = Workplace::new();
    workplace.write("sales/1/a.csv", "id;price;note\n1;2;x\n");
    workplace.write("sales/2/b.csv", "id;price;note\n3;4;y\n");
    workplace.write("sales/MLTable", table);
    workplace
}

fn job(table: &str, keys: &str) -> JobSpec {
    let workplace = workplace(table);
    let mut spec = workplace.spec(&format!("{JOB}{keys}"));
    for path in &mut spec.inputs[0].paths {
        *path =
            path.display().replace(&workplace.path("").display().to_string(), "/").as_str().into();
    }
    spec
}

#[test]
fn transformations_become_keys_of_the_input() {
    let table = "\
$schema: https://azuremlschemas.azureedge.net/latest/MLTable.schema.json
paths:
  - pattern: ./*/*.csv
transformations:
  - read_delimited: {delimiter: ';', encoding: ascii, header: all_files_same_headers, include_path_column: false}
  - extract_columns_from_partition_format: {partition_format: '{Store}/{file_name}.{extension}'}
  - drop_columns: [Path, file_name, extension, note]
  - convert_column_types: [{columns: id, column_type: string}]
";
    let spec = job(table, "partition_keys: [Store]\n");
    let input = &spec.inputs[0];
    assert_eq!((input.kind, input.name.as_str()), (InputKind::Tabular, "data"));
    assert_eq!(input.paths[0].display(), "/sales/*/*.csv");
    assert_eq!((input.table.format, input.table.delimiter), (TableFormat::Csv, b';'));
    assert_eq!(input.partition_format.as_deref(), Some("{Store}/*.*"));
    assert_eq!(input.table.columns, ["id", "price"]);
    assert_eq!(input.table.column_types["id"], ColumnType::Text);
}

#[test]
fn every_path_and_reader_is_read() {
    for (table, format, path) in [
        (
            "paths: [{file: ./1/a.csv}]\ntransformations: [read_delimited: {delimiter: ';'}]\n",
            TableFormat::Csv,
            "/sales/1/a.csv",
        ),
        (
            "paths: [{folder: ./}]\ntransformations: [read_json_lines]\n",
            TableFormat::Jsonl,
            "/sales",
        ),
        (
            "paths: [{folder: .}]\ntransformations: [read_delimited: {encoding: utf8bom}]\ntraits: {index_columns: [a]}\n",
            TableFormat::Csv,
            "/sales",
        ),
        (
            "paths: [{pattern: '1/*.csv'}]\ntransformations: [read_parquet]\n",
            TableFormat::Parquet,
            "/sales/1/*.csv",
        ),
        (
            "paths: [{file: 'https://host/a.csv'}]\ntransformations: [read_delimited: {header: no_header}]\n",
            TableFormat::Csv,
            "https://host/a.csv",
        ),
    ] {
        let input = &job(table, "").inputs[0];
        assert_eq!(
            (input.table.format, input.paths[0].display().as_str()),
            (format, path),
            "{table}"
        );
    }
    let keep = "paths: [{folder: .}]\ntransformations: [read_delimited: {delimiter: ';', header: no_header}, keep_columns: [a]]\n";
    let input = &job(keep, "").inputs[0];
    assert_eq!(
        (input.table.header, input.table.columns.as_slice()),
        (HeaderMode::NoHeader, &["a".to_owned()][..])
    );
    for (word, header) in [
        ("from_first_file", HeaderMode::FromFirstFile),
        ("all_files_different_headers", HeaderMode::AllFilesDifferentHeaders),
        ("all_files_same_headers", HeaderMode::AllFilesSameHeaders),
    ] {
        let table = format!(
            "paths: [{{folder: .}}]\ntransformations: [read_delimited: {{header: {word}}}]\n"
        );
        assert_eq!(job(&table, "").inputs[0].table.header, header);
    }
}

#[test]
fn column_of_paths_is_a_key_unless_it_is_dropped() {
    for (steps, expected) in [
        ("read_delimited: {delimiter: ';', include_path_column: true}", Some("Path")),
        (
            "read_delimited: {delimiter: ';', include_path_column: True}}, {drop_columns: [Path, note]",
            None,
        ),
        (
            "read_delimited: {delimiter: ';', include_path_column: true}}, {keep_columns: [id, Path]",
            Some("Path"),
        ),
        ("read_delimited: {delimiter: ';', include_path_column: true}}, {keep_columns: [id]", None),
        ("read_delimited: {delimiter: ';', path_column: Path}", None),
        (
            "read_delimited: {delimiter: ';', path_column: from, include_path_column: true}",
            Some("from"),
        ),
        (
            "read_delimited: {delimiter: ';', path_column: from, include_path_column: true}}, {drop_columns: [from, note]",
            None,
        ),
        ("read_json_lines: {include_path_column: true}", Some("Path")),
        ("read_parquet: {include_path_column: true}", Some("Path")),
    ] {
        let table = format!("paths: [{{folder: .}}]\ntransformations: [{{{steps}}}]\n");
        assert_eq!(job(&table, "").inputs[0].table.path_column.as_deref(), expected, "{steps}");
    }
}

#[test]
fn types_of_inference_are_those_of_the_columns() {
    let overrides =
        "{sample_size: 9, column_type_overrides: {a: string, b: {datetime: {formats: ['%Y']}}}}";
    let table = format!(
        "paths: [{{folder: .}}]\ntransformations: [read_delimited: {{infer_column_types: {overrides}}}]\n"
    );
    let table = &job(&table, "").inputs[0].table;
    assert_eq!(
        (table.column_types["a"], table.column_types["b"]),
        (ColumnType::Text, ColumnType::DateTimeMonthFirst)
    );
    assert!(table.infer_column_types);
}

#[test]
fn days_come_first_where_the_formats_say_so() {
    for (formats, expected) in [
        ("['%d/%m/%Y']", ColumnType::DateTimeDayFirst),
        ("'%d %b %Y'", ColumnType::DateTimeDayFirst),
        ("['%m/%d/%Y']", ColumnType::DateTimeMonthFirst),
        ("['%Y-%m-%d']", ColumnType::DateTimeMonthFirst),
        ("", ColumnType::DateTimeMonthFirst),
    ] {
        let kind = format!("{{columns: a, column_type: {{datetime: {{formats: {formats}}}}}}}");
        let table = format!(
            "paths: [{{folder: .}}]\ntransformations: [read_delimited, {{convert_column_types: [{kind}]}}]\n"
        );
        assert_eq!(job(&table, "").inputs[0].table.column_types["a"], expected, "{formats}");
    }
}

#[test]
fn values_of_booleans_without_effect_are_a_warning() {
    let kind = "{boolean: {true_values: ['yes']}}";
    for steps in [
        format!("read_delimited, convert_column_types: [{{columns: a, column_type: {kind}}}]"),
        format!("read_delimited: {{infer_column_types: {{column_type_overrides: {{a: {kind}}}}}}}"),
    ] {
        let table = format!("paths: [{{folder: .}}]\ntransformations: [{steps}]\n");
        let warnings = lines(&workplace(&table).parsed(JOB).warnings);
        assert!(
            warnings.contains("true_values, false_values and mismatch_as have no effect"),
            "{warnings}"
        );
    }
}

#[test]
fn unreadable_lines_do_not_affect_types() {
    let of = |option: &str| {
        let table =
            format!("paths: [{{folder: .}}]\ntransformations: [read_json_lines: {{{option}}}]\n");
        job(&table, "").inputs[0].table.clone()
    };
    assert_eq!(of("invalid_lines: error"), of(""));
    assert_eq!(of("invalid_lines: drop"), of(""));
}

#[test]
fn take_and_skip_count_remaining_rows() {
    for (steps, expected) in [
        ("take: 5", (0, Some(5))),
        ("skip: 3", (3, None)),
        ("skip: 3, take: 5", (3, Some(5))),
        ("take: 5, skip: 3", (3, Some(2))),
        ("take: {count: 5}, take: 9, skip: 1, skip: 1", (2, Some(3))),
    ] {
        let steps = steps.replace(", ", "}, {");
        let table =
            format!("paths: [{{folder: .}}]\ntransformations: [read_delimited, {{{steps}}}]\n");
        let table = &job(&table, "").inputs[0].table;
        assert_eq!((table.skip, table.take), expected, "{steps}");
    }
    let workplace = workplace("paths: [{pattern: ./*/*.csv}]\ntransformations: [take: 3]\n");
    let parsed = workplace.parsed("inputs: {data: {type: file, format: mltable, path: sales}}\n");
    assert!(
        lines(&parsed.warnings).contains("take and skip have no effect"),
        "{}",
        lines(&parsed.warnings)
    );
}

#[test]
fn files_of_an_mltable_are_an_input_of_files() {
    let workplace = workplace("paths: [{pattern: ./*/*.csv}]\n");
    let spec = workplace.spec("inputs: {data: {type: file, format: mltable, path: sales}}\n");
    assert_eq!((spec.inputs[0].kind, spec.inputs[0].paths.len()), (InputKind::File, 1));
}

#[test]
fn mistake_names_the_line_of_the_mltable() {
    for (table, expected) in [
        (
            "paths: [{pattern: ./*.none}]\n",
            "/sales/MLTable:1: inputs.data.MLTable: no file matches /sales/*.none",
        ),
        (
            "paths: [{folder: .}]\ntransformations:\n  - filter: x\n",
            "/sales/MLTable:3: inputs.data.MLTable: Gristmill does not make the transformation filter",
        ),
        (
            "paths: [{folder: .}]\ntransformations:\n  - take: 5\n",
            "/sales/MLTable:3: inputs.data.MLTable: take and skip count the rows of a reader",
        ),
        (
            "paths: [{folder: .}]\ntransformations: [read_parquet, take: 2, skip: 2]\n",
            "/sales/MLTable:2: inputs.data.MLTable: take and skip leave no row",
        ),
        (
            "paths: [{folder: .}]\ntransformations: [read_parquet, take: few]\n",
            "/sales/MLTable:2: inputs.data.MLTable: found \"few\"; allowed: an integer from 1",
        ),
        (
            "paths: [{folder: .}]\ntransformations:\n  - take_random_sample: {probability: 0.1}\n",
            "/sales/MLTable:3: inputs.data.MLTable: Gristmill does not make the transformation take_random_sample",
        ),
        (
            "paths: [{folder: .}]\ntransformations:\n  - read_delimitd: x\n",
            "did you mean read_delimited?",
        ),
        (
            "paths: [{folder: .}]\ntransformations: [read_delimited: {infer_column_types: {samplesize: 3}}]\n",
            "unknown option; did you mean \"sample_size\"?",
        ),
        (
            "paths: [{folder: .}]\ntransformations:\n  - read_delimited: {header: from_last_file}\n",
            "allowed: all_files_same_headers, all_files_different_headers, from_first_file, no_header",
        ),
        (
            "paths: [{folder: .}]\ntransformations:\n  - read_delimited: {delimter: x}\n",
            "unknown option; did you mean \"delimiter\"?",
        ),
        (
            "paths: [{folder: .}]\ntransformations:\n  - read_delimited: {delimiter: ';'}\n  - drop_columns: nt\n",
            "/sales/MLTable:4: inputs.data.MLTable: drop_columns names a column that the files do not have (found \"nt\"; allowed: id, price, note)",
        ),
        (
            "paths: [{folder: .}]\ntransformations:\n  - read_delimited: {delimiter: ';'}\n  - drop_columns: [id, price, note]\n",
            "/sales/MLTable:4: inputs.data.MLTable: keep_columns and drop_columns leave no column of the files",
        ),
        (
            "paths: [{folder: .}]\ntransformations:\n  - read_delimited: {delimiter: ';', include_path_column: true}\n  - keep_columns: Path\n",
            "/sales/MLTable:4: inputs.data.MLTable: keep_columns and drop_columns leave no column of the files",
        ),
        ("transformations: []\n", "/sales/MLTable names no data"),
        ("a: [\n", "/sales/MLTable:2: not valid YAML"),
        ("path: x\n", "unknown key \"path\" of an MLTable; did you mean \"paths\"?"),
    ] {
        let workplace = workplace(table);
        let found = workplace.load(&super::base_with(JOB), &[]).expect_err(table);
        let found = lines(&found).replace(&workplace.path("").display().to_string(), "/");
        assert!(found.contains(expected), "{table}: {found}");
    }
    let workplace = Workplace::new();
    workplace.write("sales/a.csv", "");
    let found = workplace.load(&super::base_with(JOB), &[]).expect_err("no MLTable");
    assert!(lines(&found).contains("inputs.data.path: there is no file "), "{}", lines(&found));
}
