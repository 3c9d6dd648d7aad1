//! The three forms of `result_schema`, and mistakes in a file of one.

use protocol::{ColumnKind, ResultSchema};

use super::Workplace;

#[test]
fn result_schema_takes_columns_a_json_schema_or_a_file() {
    let workplace = Workplace::new();
    let schema = |changes: &str| workplace.spec(changes).output.row_schema.expect("a schema");
    let columns =
        schema("result_schema: {columns: {total: number, paid: 'bool?', note: String ?}}");
    let ResultSchema::Columns(found) = &columns else { panic!("{columns:?}") };
    let found: Vec<_> =
        found.iter().map(|column| (column.name.as_str(), column.kind, column.nullable)).collect();
    let expected = [
        ("total", ColumnKind::Number, false),
        ("paid", ColumnKind::Boolean, true),
        ("note", ColumnKind::String, true),
    ];
    assert_eq!(found, expected, "in this order");
    let inline = schema(
        "result_schema: {type: object, properties: {total: {minimum: 0.5}}, required: [total]}",
    );
    let json = serde_json::json!({
        "type": "object", "properties": {"total": {"minimum": 0.5}}, "required": ["total"],
    });
    assert_eq!(inline, ResultSchema::Json(json.clone()));
    workplace.write("row.json", &format!("{json:#}").replace("  ", "\t"));
    assert_eq!(schema("result_schema: row.json"), inline);
    workplace.write("row.yaml", "columns:\n  total: float\n  paid: boolean?\n  note: text?\n");
    assert_eq!(schema("result_schema: row.yaml"), columns);
}

#[test]
fn mistake_in_the_file_of_a_schema_names_its_line() {
    let workplace = Workplace::new();
    for (text, expected) in [
        (
            "type: object\nproperties:\n  total:\n    type: decimal\n",
            "row.yaml:4: result_schema.properties.total.type: ",
        ),
        ("columns:\n  total: decimal\n", "row.yaml:2: result_schema.columns.total: not a type"),
        ("{\"type\": \"object\",\n \"required\": [1]}\n", "row.yaml:2: result_schema.required.0: "),
        ("{\"type\": \"object\",\n \"required\": [\n", "not valid JSON or YAML"),
        (
            "type: object\npropertys: {}\n",
            "not a keyword of JSON Schema; did you mean \"properties\"?",
        ),
        ("- total\n", "row.yaml:1: found a list"),
        ("- total\n", "such as `columns: {total: number}`"),
        (
            "",
            "row.yaml:1: found an empty file; allowed: a mapping of keys to values: `columns: {total: number}`",
        ),
        ("a: \u{1}\n", "row.yaml:1: "),
    ] {
        workplace.write("row.yaml", text);
        let problems = workplace.problems("result_schema: row.yaml");
        assert!(problems.contains(expected) && problems.lines().count() == 1, "{text}\n{problems}");
        assert!(!problems.contains("found found"), "{problems}");
    }
}
