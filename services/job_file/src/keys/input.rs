//! Keys of an input, and of `environment` as a mapping.

use protocol::{HeaderMode, MismatchPolicy, TypeRules};

use super::{Applies, Key, REQUIRED, Table, key, key_with_default};
use crate::values::{boolean, choice, integer, list, text, word};
use crate::{Fault, Node};

const BOOLEAN: &str = "`true`, `false`";

pub static INPUT: &[Table] = &[Table { name: "input", rows: OF_INPUT }];
pub static REQUIRES: &[Table] = &[Table { name: "node requirements", rows: OF_REQUIRES }];
pub static LIMITS: &[Table] = &[Table { name: "service limits", rows: OF_LIMITS }];
pub static ENVIRONMENT: &[Table] = &[Table { name: "environment", rows: OF_ENVIRONMENT }];

const OF_INPUT: &[Key] = &[
    key("name", "text", "`input_0`, `input_1`, …")
        .meaning("Letters, digits, `_`, `-` and `.`; unique in the job."),
    key("type", "`file`, `tabular`", REQUIRED)
        .meaning("`file`: `run` gets a list of paths. `tabular`: `run` gets a DataFrame."),
    key("path", "path", REQUIRED).meaning(
        "A file, a folder with everything below it, a glob (`data/**/*.csv`) or a URL. See [What \
         Gristmill decides](#what-gristmill-decides).",
    ),
    key("paths", "list of paths", "").meaning("Several paths, instead of `path`."),
    key("partition_format", "text", "none").meaning(
        "Columns from the path: `{Store}/{Brand}/{file_name}.csv`. A time, `{date:yyyy/MM/dd}`, \
         is a text `yyyyMMddHHmmss`. Behind `=` in folders (`city={city}/*.csv`), values are \
         percent-decoded, and `__HIVE_DEFAULT_PARTITION__` is missing.",
    ),
    key("columns", "list of names, or types by name", "all, with the types found").meaning(
        "A list selects columns of a table, each once, in this order (CSV with `types: pandas`: \
         in that of the file). A mapping gives types, `{code: string, day: timestamp}`, and keeps \
         the others. Both: `[store, {code: string}]`. Columns from the path follow. A name that \
         the first file lacks is an error. For a nested Parquet column, the name at the top. See \
         [Types of columns](#types-of-columns).",
    ),
    key("format", "`csv`, `tsv`, `jsonl`, `parquet`, `mltable`", "the format of the files")
        .meaning(
            "Without it, the names of the files decide; a mixture or an unknown name is an error. \
             `mltable`: the folder `path` holds a file `MLTable`, whose paths and transformations \
             become keys of the input.",
        )
        .only(Applies::Tables),
    key("delimiter", "one ASCII character", "`,`; for `tsv`, tab")
        .meaning("Separator between the fields of a line.")
        .table(|table, node| delimiter(node).map(|delimiter| table.delimiter = delimiter))
        .only(Applies::Delimited),
    key_with_default(
        "header",
        "`all_files_same_headers`, `all_files_different_headers`, `from_first_file`, `no_header`",
        "all_files_same_headers",
    )
    .meaning(
        "Which files begin with a header. `all_files_same_headers`: all; the first one names the \
         columns. `from_first_file`: the first. `all_files_different_headers`: each names its own \
         columns, and those that it lacks are missing in its rows; the planner then reads the \
         beginning of every file. `no_header`: none.",
    )
    .table(|table, node| {
        let headers = [
            ("all_files_same_headers", HeaderMode::AllFilesSameHeaders),
            ("all_files_different_headers", HeaderMode::AllFilesDifferentHeaders),
            ("from_first_file", HeaderMode::FromFirstFile),
            ("no_header", HeaderMode::NoHeader),
        ];
        choice(node, &headers).map(|header| table.header = header)
    })
    .only(Applies::Delimited),
    key("names", "list of names, each once", "`Column1`, `Column2`, …")
        .meaning(
            "Names of the columns, for `header: no_header`, which it sets. Columns beyond the \
             fields of the first file are missing; a name too few is an error.",
        )
        .table(|table, node| names(node).map(|names| table.names = names))
        .only(Applies::Delimited),
    key_with_default("skip_rows", "integer from 0", "0")
        .meaning("Lines of each file before its header, or before its first row without one.")
        .table(|table, node| integer(node, 0, i64::MAX).map(|lines| table.skip_rows = lines))
        .only(Applies::Delimited),
    key_with_default("encoding", "text", "utf-8")
        .meaning(
            "A name of WHATWG or Python: `latin-1`, `cp1252`, `utf-8-sig`, `utf-16`, `shift_jis`, \
             … Latin-1, `iso8859-9` and `iso8859-11` are read as windows-1252, windows-1254 and \
             windows-874. Bytes without a character in `ascii` or a code page are not valid.",
        )
        .table(|table, node| encoding(node).map(|encoding| table.encoding = encoding))
        .only(Applies::Text),
    key_with_default("types", "`original`, `pandas`", "original")
        .meaning(
            "Rules of Azure ML, or of `pandas.read_csv`. See [Types of \
             columns](#types-of-columns).",
        )
        .table(|table, node| {
            let rules = [("original", TypeRules::Original), ("pandas", TypeRules::Pandas)];
            choice(node, &rules).map(|rules| table.types = rules)
        })
        // Has no effect on Parquet, but a caller need not know the format.
        .only(Applies::Tables),
    key_with_default("infer_column_types", BOOLEAN, "true")
        .meaning("`false`: every column is text, except where `columns` gives a type.")
        .table(|table, node| boolean(node).map(|infer| table.infer_column_types = infer))
        .only(Applies::Text),
    key_with_default("support_multi_line", BOOLEAN, "false")
        .meaning("Quoted fields may hold line breaks; the planner then reads each file once.")
        .table(|table, node| boolean(node).map(|multi_line| table.support_multi_line = multi_line))
        .only(Applies::Delimited),
    key_with_default("empty_as_string", BOOLEAN, "false")
        .meaning("Keeps `''` in text columns, instead of a missing value.")
        .table(|table, node| boolean(node).map(|keep| table.empty_as_string = keep))
        .only(Applies::Text),
    key_with_default("on_type_mismatch", "`reject`, `missing`", "reject")
        .meaning(
            "A value that does not fit its column. `reject`: its row is a failed item, and `run` \
             gets the others. `missing`: it is converted as Azure ML does, mostly to a missing \
             value, and reported. Documents of Azure ML and files `MLTable` set `missing`.",
        )
        .table(|table, node| {
            let policies =
                [("reject", MismatchPolicy::Reject), ("missing", MismatchPolicy::Missing)];
            choice(node, &policies).map(|policy| table.on_type_mismatch = policy)
        })
        .only(Applies::Tables),
    key("path_column", "text", "none")
        .meaning(
            "Name of a first column with the path or URL of each row's file. \
             `include_path_column` of an MLTable sets `Path`.",
        )
        .table(|table, node| word(node).map(|name| table.path_column = Some(name)))
        .only(Applies::Tables),
    key_with_default("skip", "integer from 0", "0")
        .meaning(
            "Rows to skip at the beginning of the table, over all files; they count for the types \
             of columns. With `skip` or `take`, the planner reads text once to count rows, and \
             downloads it from URLs.",
        )
        .table(|table, node| integer(node, 0, i64::MAX).map(|rows| table.skip = rows))
        .only(Applies::Tables),
    key("take", "integer from 1", "all rows")
        .meaning("Most rows to read, after those that `skip` leaves out.")
        .table(|table, node| integer(node, 1, i64::MAX).map(|rows| table.take = Some(rows)))
        .only(Applies::Tables),
];

const OF_LIMITS: &[Key] = &[
    key("requests_per_minute", "integer from 1", "any number").meaning("Requests in any minute."),
    key("tokens_per_minute", "integer from 1", "any number")
        .meaning("Tokens in any minute, as `context.limit.acquire(tokens=…)` counts them."),
    key("concurrent", "1 to 1000000", "any number").meaning("Requests at the same time."),
];

const OF_REQUIRES: &[Key] = &[
    key("gpus", "1 to 1000", "any number").meaning("GPUs of the node, as its driver counts them."),
    key("memory", "size: `500MB`, `16GB`", "any amount").meaning(
        "What the kernel of the node reports, or the limit of its container; units of 1024. A \
         machine sold with 16 GB reports a little less.",
    ),
    key("processors", "1 to 10000", "any number").meaning("Processors that the node may use."),
    key("labels", "mapping of texts", "none")
        .meaning("Labels of the node, with these values: `gristmill worker --label NAME=VALUE`."),
];

const OF_ENVIRONMENT: &[Key] = &[
    key("python", "path", "the interpreter of the command")
        .meaning("An interpreter, or the folder of a virtual environment."),
    key("requirements", "path", "none").meaning(
        "A requirements file, `pyproject.toml` or conda file: `python` creates the environment \
         from it.",
    ),
];

fn names(node: &Node) -> Result<Vec<String>, Fault> {
    const ALLOWED: &str = "a list of column names, each once: [store, price]";
    let mut names: Vec<String> = Vec::new();
    for item in list(node, ALLOWED)? {
        match word(item) {
            Ok(name) if !names.contains(&name) => names.push(name),
            _ => return Err(Fault::new(item, ALLOWED)),
        }
    }
    if names.is_empty() { Err(Fault::new(node, ALLOWED)) } else { Ok(names) }
}

fn delimiter(node: &Node) -> Result<u8, Fault> {
    match text(node)?.as_bytes() {
        br"\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !b"\"\r\n".contains(byte) => Ok(*byte),
        _ => {
            Err(Fault::new(node, r#"one ASCII character, not a quote or a line break: ";", "\t""#))
        }
    }
}

/// Parses a label that `tables` knows.
fn encoding(node: &Node) -> Result<String, Fault> {
    let label = word(node)?.to_ascii_lowercase();
    match partitioner::encoding_for(&label) {
        Some(_) => Ok(label),
        None => Err(Fault::new(
            node,
            "a name of an encoding: utf-8, latin-1, windows-1252, utf-16, shift_jis, …",
        )),
    }
}
