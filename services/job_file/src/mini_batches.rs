//! `mini_batch_size` and `partition_keys`: the division of inputs into mini-batches.

use partitioner::PartitionFormat;
use protocol::{InputKind, Isolate, JobSpec, MiniBatchSize, OutputAction, TableFormat};

use crate::values::list;
use crate::{Fault, Location, Node, ScalarKind, Section};

const FILES_DEFAULT: u64 = 10;
const BYTES_DEFAULT: u64 = 1024 * 1024;
const SIZE: &str = "mini_batch_size";
const SIZE_ALLOWED: &str = r#"a number of files (10), of bytes (100, "10kb", "1MB", "1GB") or of rows ("500 rows"), at least 1"#;
const KEYS: &str = "partition_keys";
const ISOLATE: &str = "isolate";
const KEYS_ALLOWED: &str = "a list of texts, each once: [store, brand]";

/// Reads both keys, and settles `isolate`, which may not divide the items that `partition_keys` keep together. The
/// inputs and `output_action` must have been read.
pub fn read_mini_batches(top: &Section<'_>, job: &mut JobSpec) {
    let size = top.read(SIZE, size);
    job.mini_batch_size = resolve(size, job, top);
    job.partition_keys = read_partition_keys(top, job);
    if let (Some(size), Some(_)) = (top.get(SIZE), top.get(KEYS)) {
        let message = "Parameters mini_batch_size and partition_keys are mutually exclusive";
        top.refuse(SIZE, size.location, Fault::of("both", "one of them").saying(message));
    }
    if top.get(ISOLATE).is_none()
        && job.output.action == OutputAction::AppendRow
        && top.get(KEYS).is_none()
    {
        job.isolate = Isolate::Items;
    }
    if job.isolate != Isolate::Off && top.get(KEYS).is_some() {
        let message = "it would divide the items that partition_keys keep together";
        top.refuse(
            ISOLATE,
            top.location_of(ISOLATE),
            Fault::of("both", "off with partition_keys").saying(message),
        );
    }
}

/// A size as written. The inputs decide what a plain number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// `10`
    Plain(u64),
    /// `1MB`
    Bytes(u64),
    /// `500 rows`
    Rows(u64),
}

/// Reads `10`, `"10"`, `"1MB"`, `"10kb"` or `"500 rows"`. Units are multiples of 1024.
fn size(node: &Node) -> Result<Size, Fault> {
    let fault = || Fault::new(node, SIZE_ALLOWED);
    let of_type = || fault().saying("Parameter mini_batch_size must be of type int or str.");
    let scalar = node.scalar().ok_or_else(of_type)?;
    let text = scalar.text.as_str();
    // YAML calls an integer of more than 64 bits a float.
    let is_fraction = matches!(scalar.kind, ScalarKind::Float(_))
        && !text.bytes().all(|byte| byte.is_ascii_digit());
    if is_fraction || matches!(scalar.kind, ScalarKind::Boolean(_) | ScalarKind::Null) {
        return Err(of_type());
    }
    let digits_end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    if digits_end == 0 {
        return Err(fault());
    }
    let too_large = || fault().saying("the size is too large");
    // A number of more than 64 bits is too large, whatever its unit.
    let count: u64 = text[..digits_end].parse().map_err(|_| too_large())?;
    let unit = text[digits_end..].to_ascii_lowercase();
    let (factor, size): (u64, fn(u64) -> Size) = match unit.as_str() {
        "" => (1, Size::Plain),
        "row" | " row" | "rows" | " rows" => (1, Size::Rows),
        "kb" => (1024, Size::Bytes),
        "mb" => (1024 * 1024, Size::Bytes),
        "gb" => (1024 * 1024 * 1024, Size::Bytes),
        _ => return Err(fault()),
    };
    // Signed 64 bits, like offsets in files.
    let count = count
        .checked_mul(factor)
        .filter(|count| *count <= i64::MAX as u64)
        .ok_or_else(too_large)?;
    if count > 0 { Ok(size(count)) } else { Err(fault()) }
}

/// Returns the size for these inputs, which are all of one kind.
fn resolve(given: Option<(Location, Size)>, job: &JobSpec, top: &Section<'_>) -> MiniBatchSize {
    let kind = job.inputs.first().map_or(InputKind::File, |input| input.kind);
    let Some((location, value)) = given else {
        return match kind {
            InputKind::File => MiniBatchSize::Files(FILES_DEFAULT),
            InputKind::Tabular => MiniBatchSize::Bytes(BYTES_DEFAULT),
        };
    };
    match (kind, value) {
        (InputKind::File, Size::Plain(count)) => MiniBatchSize::Files(count),
        (InputKind::File, Size::Bytes(count) | Size::Rows(count)) => {
            // Without any input the unit contradicts nothing.
            if !job.inputs.is_empty() {
                let unit = if matches!(value, Size::Rows(_)) { "rows" } else { "bytes" };
                let found = format!("{count} {unit} for inputs of type file");
                top.refuse(SIZE, location, Fault::of(found, "a number of files, at least 1"));
            }
            MiniBatchSize::Files(count)
        }
        (InputKind::Tabular, Size::Rows(count)) => MiniBatchSize::Rows(count),
        (InputKind::Tabular, Size::Plain(count) | Size::Bytes(count)) => {
            if job.inputs.iter().any(|input| input.table.format == TableFormat::Parquet) {
                let message = "a size in bytes has no effect on Parquet, where a row group is a mini-batch; \"500 rows\" has";
                top.problems.warn(location, SIZE, message);
            } else if value == Size::Plain(count) {
                let message = format!(
                    "{count} means {count} bytes of a table; write \"{count} rows\" to count rows"
                );
                top.problems.warn(location, SIZE, message);
            }
            MiniBatchSize::Bytes(count)
        }
    }
}

/// Reads `partition_keys`, which the paths of every input must name.
fn read_partition_keys(top: &Section<'_>, job: &JobSpec) -> Vec<String> {
    let Some((location, keys)) = top.read(KEYS, key_names) else { return Vec::new() };
    for input in &job.inputs {
        let format = input.partition_format.as_deref().map(PartitionFormat::parse);
        let names = match &format {
            Some(Ok(format)) => format.names(),
            Some(Err(_)) => continue,
            None => &[],
        };
        for key in keys.iter().filter(|key| !names.contains(key)) {
            let names = if names.is_empty() {
                "; it has none".to_owned()
            } else {
                format!(": {}", names.join(", "))
            };
            let allowed =
                format!("keys that partition_format of input {:?} names{names}", input.name);
            top.refuse(KEYS, location, Fault::of(format!("{key:?}"), allowed));
        }
    }
    keys
}

fn key_names(node: &Node) -> Result<Vec<String>, Fault> {
    let message = "Parameter partition_keys must be of type list.";
    let items = list(node, KEYS_ALLOWED).map_err(|fault| fault.saying(message))?;
    let mut names: Vec<String> = Vec::new();
    for item in items {
        let name = item.written();
        if name.is_empty() {
            let message = format!("Element {name} in partition_keys is not a str.");
            return Err(Fault::new(item, KEYS_ALLOWED).saying(message));
        }
        if names.iter().any(|earlier| earlier == name) {
            return Err(Fault::of(format!("{name:?} a second time"), KEYS_ALLOWED));
        }
        names.push(name.to_owned());
    }
    if names.is_empty() { Err(Fault::new(node, KEYS_ALLOWED)) } else { Ok(names) }
}
