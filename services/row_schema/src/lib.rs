//! Checks rows of results against the `result_schema` of a job.
//!
//! A row is checked in the form that it has in JSON lines, whatever the format of the output. The processes that run
//! scripts check rows (`gristmill/checked.py`), and `job_file` checks the schema itself before the first mini-batch.
//! `columns.rs` checks columns with types, and `json_schema.rs` JSON Schemas.

mod columns;
mod json_schema;

use arrow::compute::kernels::cast_utils::{Parser, string_to_datetime};
use arrow::datatypes::Date32Type;
use chrono::Utc;
use jsonschema::Validator;
use protocol::ResultSchema;
use serde_json::Value;

/// Maximum characters of the reason why a row does not fit.
const CHARACTERS_MAX: usize = 300;
/// Maximum characters of a value in such a reason.
const VALUE_CHARACTERS_MAX: usize = 80;
/// Length of `2026-01-31`.
const DAY_BYTES: usize = 10;

/// A schema that is ready to check rows.
pub struct RowSchema(Kind);

enum Kind {
    Columns(Vec<protocol::ResultColumn>),
    Json(Box<Validator>),
}

/// The reason why a value is not a JSON Schema.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct InvalidSchema {
    /// Place of the mistake in the schema: keys and positions.
    pub place: Vec<String>,
    /// The problem at this place.
    pub message: String,
    /// Keywords that may stand at this place instead; empty if no keyword is the problem.
    pub keywords: Vec<&'static str>,
}

impl RowSchema {
    /// Prepares a schema.
    pub fn new(schema: &ResultSchema) -> Result<Self, InvalidSchema> {
        match schema {
            ResultSchema::Columns(columns) => Ok(Self(Kind::Columns(columns.clone()))),
            ResultSchema::Json(schema) => {
                json_schema::validator(schema).map(|schema| Self(Kind::Json(Box::new(schema))))
            }
        }
    }

    /// Returns why a row does not fit: the field and its problem; `None` if it fits.
    pub fn misfit(&self, row: &Value) -> Option<String> {
        let message = match &self.0 {
            Kind::Columns(columns) => columns::misfit(columns, row)?,
            Kind::Json(schema) => json_schema::misfit(schema, row)?,
        };
        Some(cut(message, CHARACTERS_MAX))
    }

    /// Returns the rows of JSON lines that do not fit, by position from 0, each with the reason.
    pub fn misfits(&self, lines: &[u8]) -> Vec<(usize, String)> {
        let lines = lines.strip_suffix(b"\n").unwrap_or(lines);
        if lines.is_empty() {
            return Vec::new();
        }
        let misfit = |line: &[u8]| match serde_json::from_slice(line) {
            Ok(row) => self.misfit(&row),
            // Half of a surrogate pair, for example.
            Err(error) => Some(format!("the row is not valid JSON: {error}")),
        };
        let lines = lines.split(|byte| *byte == b'\n').enumerate();
        lines.filter_map(|(row, line)| Some((row, misfit(line)?))).collect()
    }
}

/// Returns whether a text is an instant, with or without a zone. The reducer reads texts in the same way for columns of
/// Parquet, so that it can write every row that fits.
fn is_instant(text: &str) -> bool {
    text.len() > DAY_BYTES && string_to_datetime(&Utc, text).is_ok()
}

/// Returns whether a text is a day, as the reducer reads it.
fn is_day(text: &str) -> bool {
    text.len() <= DAY_BYTES && Date32Type::parse(text).is_some()
}

/// Returns a value as JSON, shortened.
fn shown(value: &Value) -> String {
    cut(value.to_string(), VALUE_CHARACTERS_MAX)
}

fn cut(text: String, characters_max: usize) -> String {
    match text.char_indices().nth(characters_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn invoice() -> RowSchema {
        let schema = json!({
            "type": "object",
            "required": ["total"],
            "properties": {
                "total": {"type": "number", "minimum": 0},
                "day": {"type": "string", "format": "date"},
                "lines": {"type": "array", "items": {"properties": {"price": {"type": "number"}}}},
            },
        });
        RowSchema::new(&ResultSchema::Json(schema)).expect("valid")
    }

    #[test]
    fn misfit_of_a_json_schema_names_the_field() {
        for (row, expected) in [
            (json!({"total": 1.5, "lines": [{"price": 1}], "other": null}), None),
            (json!({"total": "1.5"}), Some(r#"total: "1.5" is not of type "number""#)),
            (json!({"total": -1}), Some("total: -1 is less than the minimum of 0")),
            (json!({}), Some(r#""total" is a required property"#)),
            (json!({"total": 1, "day": "1 May"}), Some(r#"day: "1 May" is not a "date""#)),
            (
                json!({"total": 1, "lines": [{}, {"price": "x"}]}),
                Some(r#"lines[1].price: "x" is not of type "number""#),
            ),
            (json!("text"), Some(r#""text" is not of type "object""#)),
        ] {
            assert_eq!(invoice().misfit(&row).as_deref(), expected, "{row}");
        }
    }

    #[test]
    fn large_integers_are_compared_exactly() {
        let large = 9_007_199_254_740_993_u64; // 2^53 + 1, which no f64 represents.
        for (schema, good, bad) in [
            (json!({"maximum": large - 1}), json!(large - 1), json!(large)),
            (json!({"exclusiveMinimum": large - 1}), json!(large), json!(large - 1)),
            (json!({"minimum": large}), json!(large), json!(large - 1)),
            (json!({"maximum": 9_007_199_254_740_992.0}), json!(large - 1), json!(large)),
            (json!({"const": large}), json!(large), json!(large - 1)),
            (json!({"enum": [large - 1]}), json!(9_007_199_254_740_992.0), json!(large)),
            (json!({"multipleOf": 2}), json!(large - 1), json!(large)),
            (json!({"multipleOf": 3}), json!(u64::MAX), json!(u64::MAX - 1)),
            (json!({"uniqueItems": true}), json!([large, large - 1]), json!([large, large])),
            (json!({"minimum": i64::MIN}), json!(i64::MIN), json!(-1e300)),
            (json!({"maximum": 1e300}), json!(u64::MAX), json!(1.1e300)),
            (json!({"minimum": 2.5}), json!(3), json!(2)),
            (json!({"maximum": -2.5}), json!(-3), json!(-2)),
            (json!({"multipleOf": 0.1}), json!(0.3), json!(0.35)),
        ] {
            let rows = RowSchema::new(&ResultSchema::Json(schema.clone())).expect("valid");
            assert_eq!(rows.misfit(&good), None, "{schema} {good}");
            assert!(rows.misfit(&bad).is_some(), "{schema} {bad}");
        }
    }

    #[test]
    fn lines_that_do_not_fit_are_found_by_position() {
        let found = invoice()
            .misfits(b"{\"total\":1}\n{\"total\":null}\n{\"total\":2}\n{\"total\":\"\xff\"}\n");
        assert_eq!(found.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [1, 3]);
        assert!(found[1].1.starts_with("the row is not valid JSON"), "{found:?}");
        assert!(invoice().misfits(b"").is_empty());
    }

    #[test]
    fn long_texts_are_cut() {
        let message = invoice().misfit(&json!({"total": "é".repeat(1000)})).expect("a text");
        assert_eq!(message.chars().count(), CHARACTERS_MAX + 1, "{message}");
    }

    #[test]
    fn invalid_schema_names_the_place() {
        for (schema, place) in [
            (
                json!({"properties": {"total": {"type": "decimal"}}}),
                vec!["properties", "total", "type"],
            ),
            (json!({"required": "total"}), vec!["required"]),
            (json!({"$ref": "https://example.com/other.json"}), vec![]),
            (
                json!({"properties": {"a/b": {"pattern": "("}}}),
                vec!["properties", "a/b", "pattern"],
            ),
            (json!({"properties": {"a": {"$ref": "#/$defs/a"}}}), vec![]),
            (json!({"anyOf": [{"type": "string"}, {"tipe": "null"}]}), vec!["anyOf", "1", "tipe"]),
            (json!({"total": "number"}), vec!["total"]),
            (json!({"items not": {}}), vec!["items not"]),
            (json!(["total"]), vec![]),
        ] {
            let error = RowSchema::new(&ResultSchema::Json(schema.clone())).err().expect("invalid");
            assert_eq!(error.place, place, "{schema}: {error}");
        }
    }

    #[test]
    fn invalid_schema_says_what_is_allowed() {
        for (schema, expected) in [
            (
                json!({"type": "float"}),
                r#""array","boolean","integer","null","number","object","string""#,
            ),
            (
                json!({"$ref": "#/$defs/a"}),
                "/$defs/a' does not exist; `$ref` may name a part of this schema",
            ),
            (json!({"$ref": "a.json"}), "and no other document"),
        ] {
            let error = RowSchema::new(&ResultSchema::Json(schema)).err().expect("invalid");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn json_schema_keywords_are_checked() {
        for (schema, fits, misfits) in [
            (
                json!({"type": ["integer", "null"]}),
                vec![json!(1), json!(1.0), json!(null)],
                vec![json!(1.5), json!("1")],
            ),
            (json!({"enum": [1, "a"]}), vec![json!(1.0), json!("a")], vec![json!("b")]),
            (
                json!({"const": {"a": [1]}}),
                vec![json!({"a": [1.0]})],
                vec![json!({"a": [2]}), json!({})],
            ),
            (
                json!({"exclusiveMinimum": 0, "maximum": 2}),
                vec![json!(2), json!("text")],
                vec![json!(0), json!(2.5)],
            ),
            (json!({"multipleOf": 0.1}), vec![json!(0.3), json!(7)], vec![json!(0.25)]),
            (
                json!({"minLength": 1, "maxLength": 2}),
                vec![json!("é"), json!(["", "", ""])],
                vec![json!(""), json!("abc")],
            ),
            (json!({"pattern": "^[a-z]+$"}), vec![json!("abc")], vec![json!("a1")]),
            (
                json!({"format": "date-time"}),
                vec![json!("2026-01-31T12:30:00Z")],
                vec![json!("2026-01-31")],
            ),
            (json!({"format": "email"}), vec![json!("a@b.example")], vec![json!("anything")]),
            (json!({"format": "of my own"}), vec![json!("anything")], vec![]),
            (
                json!({"contains": {"const": 1}, "minContains": 2}),
                vec![json!([1, 1])],
                vec![json!([1])],
            ),
            (
                json!({"dependentRequired": {"a": ["b"]}}),
                vec![json!({"b": 1})],
                vec![json!({"a": 1})],
            ),
            // A circular reference ends, and checks nothing.
            (json!({"$ref": "#"}), vec![json!(1)], vec![]),
            (
                json!({"minItems": 1, "uniqueItems": true}),
                vec![json!([1, "1"])],
                vec![json!([]), json!([1, 1.0])],
            ),
            (
                json!({"prefixItems": [{"type": "string"}], "items": {"type": "number"}}),
                vec![json!(["a", 1, 2]), json!([])],
                vec![json!([1]), json!(["a", "b"])],
            ),
            (
                json!({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}], "additionalItems": false}),
                vec![json!(["a"])],
                vec![json!(["a", 1])],
            ),
            (
                json!({"properties": {"a": true}, "patternProperties": {"^x": {"type": "number"}}, "additionalProperties": false}),
                vec![json!({"a": null, "x1": 1})],
                vec![json!({"b": 1}), json!({"x1": "1"})],
            ),
            (
                json!({"propertyNames": {"maxLength": 1}}),
                vec![json!({"a": 1})],
                vec![json!({"ab": 1})],
            ),
            (
                json!({"minProperties": 1, "maxProperties": 1}),
                vec![json!({"a": 1})],
                vec![json!({}), json!({"a": 1, "b": 2})],
            ),
            (
                json!({"anyOf": [{"type": "number"}, {"type": "null"}]}),
                vec![json!(1), json!(null)],
                vec![json!("a")],
            ),
            (
                json!({"oneOf": [{"type": "number"}, {"minimum": 5}]}),
                vec![json!(1)],
                vec![json!(7)],
            ),
            (
                json!({"allOf": [{"type": "number"}, {"minimum": 5}], "not": {"const": 6}}),
                vec![json!(7)],
                vec![json!(4), json!(6)],
            ),
            (
                json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}),
                vec![json!({"a": 1, "b": 1}), json!({"c": 1})],
                vec![json!({"a": 1}), json!({})],
            ),
            (
                json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}}}),
                vec![json!({"next": {"next": {}}})],
                vec![json!({"next": {"next": 1}})],
            ),
            (json!(true), vec![json!(1)], vec![]),
        ] {
            let checker = RowSchema::new(&ResultSchema::Json(schema.clone()))
                .unwrap_or_else(|error| panic!("{schema}: {error}"));
            for row in fits {
                assert_eq!(checker.misfit(&row), None, "{schema}");
            }
            for row in misfits {
                assert!(checker.misfit(&row).is_some(), "{schema}: {row}");
            }
        }
    }

    #[test]
    fn misfit_of_alternatives_names_what_is_expected() {
        let schema = json!({"properties": {
            "total": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}]},
        }});
        let schema = RowSchema::new(&ResultSchema::Json(schema)).expect("valid");
        let reasons = [json!("x"), json!(-1)]
            .map(|total| schema.misfit(&json!({"total": total})).expect("bad"));
        assert_eq!(
            reasons,
            [
                r#"total: "x" is not of types "number", "null""#,
                "total: -1 is less than the minimum of 0"
            ]
        );
    }

    /// A level of alternatives must not double the time.
    #[test]
    fn misfit_behind_many_levels_of_alternatives_is_found_at_once() {
        for keyword in ["anyOf", "oneOf"] {
            let next = json!({keyword: [{"$ref": "#/$defs/node"}, {"type": "null"}]});
            let node =
                json!({"type": "object", "properties": {"next": next, "n": {"type": "integer"}}});
            let schema = json!({"$ref": "#/$defs/node", "$defs": {"node": node}});
            let schema = RowSchema::new(&ResultSchema::Json(schema)).expect("valid");
            let row = (0..30).fold(json!({"n": "x"}), |row, _| json!({"n": 1, "next": row}));
            assert!(
                schema
                    .misfit(&row)
                    .is_some_and(|reason| reason.ends_with("\"x\" is not of type \"integer\"")),
                "{keyword}"
            );
        }
    }
}
