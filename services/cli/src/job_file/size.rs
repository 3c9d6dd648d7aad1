//! `mini_batch_size`: files, bytes or rows.

use protocol::{Input, InputKind, MiniBatchSize, TableFormat};

use super::problem::{Fault, Problems};
use super::section::Given;
use super::yaml::{Node, ScalarKind};

/// Files of a mini-batch unless told otherwise.
const FILES_DEFAULT: u64 = 10;
/// Bytes of a mini-batch unless told otherwise.
const BYTES_DEFAULT: u64 = 1024 * 1024;
const FIELD: &str = "mini_batch_size";
const ALLOWED: &str =
    r#"a number of files (10), of bytes (100, "10kb", "1MB", "1GB") or of rows ("500 rows"), at least 1"#;

/// A size as written: what a plain number counts depends on the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// `10`
    Plain(u64),
    /// `1MB`
    Bytes(u64),
    /// `500 rows`
    Rows(u64),
}

/// Reads `10`, `"10"`, `"1MB"`, `"10kb"` or `"500 rows"`. Units are multiples of 1024.
pub fn parse(node: &Node) -> Result<Size, Fault> {
    let fault = || Fault::new(node, ALLOWED);
    let of_type = || fault().saying("Parameter mini_batch_size must be of type int or str.");
    let scalar = node.scalar().ok_or_else(of_type)?;
    if matches!(scalar.kind, ScalarKind::Boolean(_) | ScalarKind::Float(_) | ScalarKind::Null) {
        return Err(of_type());
    }
    let text = scalar.text.as_str();
    let digits_end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let count: u64 = text[..digits_end].parse().map_err(|_| fault())?;
    let unit = text[digits_end..].to_ascii_lowercase();
    let factor = match unit.as_str() {
        "" | "row" | " row" | "rows" | " rows" => 1,
        "kb" => 1024,
        "mb" => 1024 * 1024,
        "gb" => 1024 * 1024 * 1024,
        _ => return Err(fault()),
    };
    // Signed 64 bits, because offsets in files are.
    let count = count.checked_mul(factor).filter(|count| (1..=i64::MAX as u64).contains(count)).ok_or_else(fault)?;
    Ok(match unit.trim() {
        "" => Size::Plain(count),
        "row" | "rows" => Size::Rows(count),
        _ => Size::Bytes(count),
    })
}

/// The size for these inputs, all of one kind.
pub fn resolve(given: Option<Given<Size>>, inputs: &[Input], problems: &mut Problems) -> MiniBatchSize {
    let kind = inputs.first().map_or(InputKind::File, |input| input.kind);
    let Some(Given { place, value }) = given else {
        return match kind {
            InputKind::File => MiniBatchSize::Files(FILES_DEFAULT),
            InputKind::Tabular => MiniBatchSize::Bytes(BYTES_DEFAULT),
        };
    };
    let parquet = inputs.iter().any(|input| input.table.format == TableFormat::Parquet);
    match (kind, value) {
        (InputKind::File, Size::Plain(count)) => MiniBatchSize::Files(count),
        (InputKind::File, Size::Bytes(count) | Size::Rows(count)) => {
            // Without any input there is nothing that the unit could contradict.
            if !inputs.is_empty() {
                let unit = if matches!(value, Size::Rows(_)) { "rows" } else { "bytes" };
                let fault =
                    Fault::of(format!("{count} {unit} for inputs of type file"), "a number of files, at least 1");
                problems.add(place, FIELD, fault);
            }
            MiniBatchSize::Files(count)
        }
        (InputKind::Tabular, Size::Rows(count)) => MiniBatchSize::Rows(count),
        (InputKind::Tabular, Size::Plain(count) | Size::Bytes(count)) => {
            if parquet {
                problems.warn(
                    place,
                    FIELD,
                    "a size in bytes has no effect on Parquet, where a row group is a mini-batch; \"500 rows\" has",
                );
            } else if value == Size::Plain(count) {
                let message = format!("{count} means {count} bytes of a table; write \"{count} rows\" to count rows");
                problems.warn(place, FIELD, &message);
            }
            MiniBatchSize::Bytes(count)
        }
    }
}
