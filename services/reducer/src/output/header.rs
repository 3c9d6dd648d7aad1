//! The header line: column names in the form that `DataFrame.to_csv` would write with the arguments of the job.

use protocol::Output;
use serde_json::Value;

use crate::csv::Dialect;

/// `csv.QUOTE_ALL`, `csv.QUOTE_NONNUMERIC` and `csv.QUOTE_NONE`.
const QUOTE_ALL: u64 = 1;
const QUOTE_NONNUMERIC: u64 = 2;
const QUOTE_NONE: u64 = 3;

/// Returns the header line for these columns.
pub(super) fn line(output: &Output, columns: &[String]) -> String {
    let arguments = &output.to_csv_arguments;
    let text =
        |names: &[&str]| names.iter().find_map(|&name| arguments.get(name)).and_then(Value::as_str);
    let quoting = arguments.get("quoting").and_then(Value::as_u64);
    let dialect = Dialect {
        separator: text(&["sep"]).unwrap_or(" ").to_owned(),
        quote: text(&["quotechar"]).and_then(|quote| quote.chars().next()).unwrap_or('"'),
        quote_all: matches!(quoting, Some(QUOTE_ALL | QUOTE_NONNUMERIC)),
        quote_none: quoting == Some(QUOTE_NONE),
        line_end: text(&["lineterminator", "line_terminator"]).unwrap_or("\n").to_owned(),
    };
    // `header=[…]` renames the columns, `columns=[…]` selects some.
    let named = ["header", "columns"].iter().find_map(|&name| arguments.get(name).and_then(names));
    let mut fields = named.unwrap_or_else(|| columns.to_vec());
    if arguments.get("index").and_then(Value::as_bool) == Some(true) {
        fields.insert(0, text(&["index_label"]).unwrap_or_default().to_owned());
    }
    dialect.line(&fields)
}

fn names(value: &Value) -> Option<Vec<String>> {
    value.as_array().map(|names| {
        names
            .iter()
            .map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::spec;

    fn line_with(arguments: Value) -> String {
        let mut output = spec(std::path::Path::new("/out")).output;
        output.to_csv_arguments = arguments.as_object().expect("an object").clone();
        line(&output, &["a b".to_owned(), "c".to_owned()])
    }

    #[test]
    fn header_has_the_dialect_of_the_rows() {
        use serde_json::json;
        assert_eq!(line_with(json!({})), "\"a b\" c\n");
        assert_eq!(line_with(json!({"sep": ","})), "a b,c\n");
        assert_eq!(line_with(json!({"sep": ";", "quoting": 1})), "\"a b\";\"c\"\n");
        assert_eq!(line_with(json!({"header": ["x", "y"], "index": true, "sep": ","})), ",x,y\n");
    }
}
