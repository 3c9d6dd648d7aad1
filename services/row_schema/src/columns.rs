//! Checks of rows against columns with types.

use protocol::{ColumnKind, ResultColumn};
use serde_json::{Map, Value};

use crate::{is_day, is_instant, shown};

/// Bounds of whole numbers of 64 bits as floating-point numbers.
const INTEGERS: std::ops::Range<f64> = -9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0;

/// Returns why a row does not fit.
pub(crate) fn misfit(columns: &[ResultColumn], row: &Value) -> Option<String> {
    let Value::Object(row) = row else {
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        return Some(format!("expected the columns {}, got {}", names.join(", "), shown(row)));
    };
    let first = columns.iter().find_map(|column| misfit_of_column(column, row));
    first.or_else(|| {
        let is_known = |name: &str| columns.iter().any(|column| column.name == name);
        // If all columns are present, a row of this length has no others.
        let other = (row.len() > columns.len() || columns.iter().any(|column| column.nullable))
            .then(|| row.keys().find(|name| !is_known(name)))??;
        Some(format!("{other}: not a column of result_schema"))
    })
}

fn misfit_of_column(column: &ResultColumn, row: &Map<String, Value>) -> Option<String> {
    let ResultColumn { name, kind, nullable } = column;
    let value = match row.get(name) {
        None | Some(Value::Null) if *nullable => return None,
        None => return Some(format!("{name}: missing, expected {}", kind.word())),
        Some(value) => value,
    };
    (!fits(*kind, value)).then(|| format!("{name}: expected {}, got {}", kind.word(), shown(value)))
}

fn fits(kind: ColumnKind, value: &Value) -> bool {
    match (kind, value) {
        (ColumnKind::Any, value) => !value.is_null(),
        (ColumnKind::String, Value::String(_))
        | (ColumnKind::Number, Value::Number(_))
        | (ColumnKind::Boolean, Value::Bool(_)) => true,
        // pandas holds whole numbers as floating-point numbers if a value of their column is missing.
        (ColumnKind::Integer, Value::Number(number)) => {
            number.is_i64()
                || number.is_f64()
                    && number
                        .as_f64()
                        .is_some_and(|number| number.fract() == 0.0 && INTEGERS.contains(&number))
        }
        (ColumnKind::Timestamp, Value::String(text)) => is_instant(text),
        (ColumnKind::Date, Value::String(text)) => is_day(text),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn column(name: &str, kind: ColumnKind, nullable: bool) -> ResultColumn {
        ResultColumn { name: name.to_owned(), kind, nullable }
    }

    #[test]
    fn values_fit_their_types() {
        use ColumnKind::{Any, Boolean, Date, Integer, Number, String, Timestamp};
        let values = [
            json!("a"),
            json!(1),
            json!(1.0),
            json!(1.5),
            json!(true),
            json!("2026-01-31"),
            json!("2026-01-31T12:30:00"),
            json!("2026-01-31 12:30:00.5+02:00"),
            json!([1]),
            json!(9_300_000_000_000_000_000_u64),
            json!(1e19),
            json!(null),
        ];
        for (kind, expected) in [
            (String, "yes no no no no yes yes yes no no no no"),
            (Integer, "no yes yes no no no no no no no no no"),
            (Number, "no yes yes yes no no no no no yes yes no"),
            (Boolean, "no no no no yes no no no no no no no"),
            (Date, "no no no no no yes no no no no no no"),
            (Timestamp, "no no no no no no yes yes no no no no"),
            (Any, "yes yes yes yes yes yes yes yes yes yes yes no"),
        ] {
            let found = values.each_ref().map(|value| if fits(kind, value) { "yes" } else { "no" });
            assert_eq!(found.join(" "), expected, "{kind:?}");
        }
    }

    #[test]
    fn misfit_names_the_column() {
        let columns =
            [column("id", ColumnKind::Integer, false), column("note", ColumnKind::String, true)];
        for (row, expected) in [
            (json!({"id": 1, "note": "a"}), None),
            (json!({"id": 1, "note": null}), None),
            (json!({"id": 1}), None),
            (json!({"note": "a"}), Some("id: missing, expected integer")),
            (json!({"id": null}), Some("id: expected integer, got null")),
            (json!({"id": "1"}), Some(r#"id: expected integer, got "1""#)),
            (json!({"id": 1, "note": 2}), Some("note: expected string, got 2")),
            (json!({"id": 1, "notes": "a"}), Some("notes: not a column of result_schema")),
            (json!([1, "a"]), Some(r#"expected the columns id, note, got [1,"a"]"#)),
        ] {
            assert_eq!(misfit(&columns, &row).as_deref(), expected, "{row}");
        }
    }
}
