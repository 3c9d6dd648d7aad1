//! `inputs`, `partition_keys` and `side_inputs`: what is worked on, and what is there to look things up in.

use std::collections::BTreeMap;
use std::path::Path;

use partitioner::{MissingColumn, PartitionFormat};
use protocol::{HeaderMode, Input, InputKind, ItemPath, MismatchPolicy, TableFormat, TableOptions};

use super::keys;
use super::paths::{Paths, glob_folder};
use super::problem::{Fault, Place, Problems, nearest};
use super::section::{Given, Section, boolean, choice, list, mapping, text, word};
use super::yaml::{Entry, Node, Value};

const INPUTS_ALLOWED: &str =
    "a list of inputs, or a mapping of names to inputs; an input is a mapping with type and path";

/// Reads `inputs`. Those with a fault are left out, so that what depends on all of them is judged by the others.
pub fn read_inputs(top: &Section<'_>, paths: &Paths, problems: &mut Problems) -> Vec<Input> {
    let Some(node) = top.get("inputs") else { return Vec::new() };
    let Some(listed) = listed_inputs(node) else {
        problems.add(node.place, "inputs", Fault::new(node, INPUTS_ALLOWED));
        return Vec::new();
    };
    let mut inputs: Vec<Given<Input>> = Vec::new();
    for (position, (path, entry, item)) in listed.into_iter().enumerate() {
        let Some(input) = read_input(position, &path, entry, item, paths, problems) else { continue };
        if inputs.iter().any(|earlier| earlier.value.name == input.value.name) {
            let fault = Fault::of(format!("{:?} a second time", input.value.name), "a name for each input");
            problems.add(input.place, &path, fault);
        }
        if let Some(first) = inputs.first()
            && first.value.kind != input.value.kind
        {
            let fault = Fault::of(kind_name(input.value.kind), kind_name(first.value.kind));
            problems.add(input.place, &format!("{path}.type"), fault.saying("All inputs of step must be same type"));
        }
        inputs.push(input);
    }
    inputs.into_iter().map(|input| input.value).collect()
}

/// The inputs as they are written: path of each, its entry where its name is a key, and itself.
fn listed_inputs(node: &Node) -> Option<Vec<(String, Option<&Entry>, &Node)>> {
    match &node.value {
        Value::List(items) => {
            let named = |(position, item)| (format!("inputs[{position}]"), None, item);
            Some(items.iter().enumerate().map(named).collect())
        }
        Value::Mapping(entries) => {
            Some(entries.iter().map(|entry| (format!("inputs.{}", entry.key), Some(entry), &entry.node)).collect())
        }
        Value::Scalar(_) => None,
    }
}

fn kind_name(kind: InputKind) -> &'static str {
    match kind {
        InputKind::File => "file",
        InputKind::Tabular => "tabular",
    }
}

fn read_input(
    position: usize,
    path: &str,
    entry: Option<&Entry>,
    node: &Node,
    paths: &Paths,
    problems: &mut Problems,
) -> Option<Given<Input>> {
    let entries = mapping(node, "a mapping with type and path").map_err(|fault| problems.add(node.place, path, fault));
    let section = Section::nested(path, node.place, entries.ok()?);
    section.reject_unknown(keys::INPUT, problems);

    let name = match entry {
        Some(entry) => {
            if let Err(fault) = input_name(&Node::text(entry.place, &entry.key)) {
                problems.add(entry.place, path, fault);
            }
            if section.get("name").is_some() {
                let fault = Fault::of("a second name", "the key above it, which is the name");
                problems.add(section.place_of("name"), &section.path("name"), fault);
            }
            entry.key.clone()
        }
        None => section.value("name", problems, input_name).unwrap_or_else(|| format!("input_{position}")),
    };
    let missing = Fault::of("nothing", "file, tabular");
    let kind = section.required("type", problems, missing, |node| {
        choice(node, &[("file", InputKind::File), ("tabular", InputKind::Tabular)])
    });
    let item_paths = read_paths(&section, paths, problems);
    // Kept where it has a fault, so that keys are not said to have none.
    let partition_format = section.get("partition_format").and_then(|node| text(node).ok());
    section.read("partition_format", problems, |node| {
        PartitionFormat::parse(&word(node)?)
            .map_err(|message| Fault::new(node, "columns in braces: {Store}/{Brand}/{file_name}.csv").saying(message))
    });
    let table = read_table(&section, kind.map(|kind| kind.value), &item_paths, problems);
    let Given { place, value: kind } = kind?;
    Some(Given { place, value: Input { name, kind, paths: item_paths, partition_format, table } })
}

/// A name that can stand in `${{inputs.NAME}}` and on a command line.
fn input_name(node: &Node) -> Result<String, Fault> {
    let name = text(node)?;
    let legal = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
    match name.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_') && name.chars().all(legal) {
        true => Ok(name),
        false => Err(Fault::new(node, "letters, digits, `_`, `-` and `.`, beginning with a letter, a digit or `_`")),
    }
}

fn read_paths(section: &Section<'_>, paths: &Paths, problems: &mut Problems) -> Vec<ItemPath> {
    let allowed = "a path, a folder, a glob such as data/**/*.csv, a URL, or in `paths` a list of them";
    let (key, nodes): (&str, &[Node]) = match (section.get("path"), section.get("paths")) {
        (Some(_), Some(node)) => {
            problems.add(node.place, &section.path("paths"), Fault::of("path and paths", "one of them"));
            return Vec::new();
        }
        (None, None) => {
            problems.add(section.place(), &section.path("path"), Fault::of("nothing", allowed));
            return Vec::new();
        }
        (Some(node), None) | (None, Some(node)) => {
            let key = if section.get("path").is_some() { "path" } else { "paths" };
            match &node.value {
                Value::List(items) if items.is_empty() => {
                    problems.add(node.place, &section.path(key), Fault::new(node, allowed));
                    return Vec::new();
                }
                Value::List(items) => (key, items),
                _ => (key, std::slice::from_ref(node)),
            }
        }
    };
    let mut found = Vec::new();
    for node in nodes {
        match paths.path_or_url(node).and_then(|path| exists_or_matches(node, path)) {
            Ok(path) => found.push(path),
            Err(fault) => problems.add(node.place, &section.path(key), fault),
        }
    }
    found
}

/// A local path must be there; of a glob, the folder it begins in.
fn exists_or_matches(node: &Node, path: ItemPath) -> Result<ItemPath, Fault> {
    match glob_folder(path.as_path()) {
        Some(folder) if !path.is_url() => exists(node, ItemPath::from(folder)).map(|_| path),
        _ => exists(node, path),
    }
}

fn exists(node: &Node, path: ItemPath) -> Result<ItemPath, Fault> {
    let needed = path.as_path();
    if path.is_url() {
        return Ok(path);
    }
    match needed.metadata() {
        Ok(_) => Ok(path),
        Err(error) => Err(Fault::new(node, "a path that exists").saying(unreachable_path(needed, &error))),
    }
}

/// Why a path cannot be used, in words.
pub fn unreachable_path(path: &Path, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => format!("{} does not exist", path.display()),
        _ => format!("{} cannot be read: {error}", path.display()),
    }
}

fn read_table(
    section: &Section<'_>,
    kind: Option<InputKind>,
    item_paths: &[ItemPath],
    problems: &mut Problems,
) -> TableOptions {
    const TEXT_ONLY: &[&str] = &["encoding", "infer_column_types", "empty_as_string", "on_type_mismatch"];
    const DELIMITED_ONLY: &[&str] = &["delimiter", "header", "support_multi_line"];
    let format = section.value("format", problems, |node| {
        choice(
            node,
            &[
                ("csv", TableFormat::Csv),
                ("tsv", TableFormat::Tsv),
                ("jsonl", TableFormat::Jsonl),
                ("parquet", TableFormat::Parquet),
            ],
        )
    });
    let format = format.unwrap_or_else(|| format_by_extension(item_paths));
    let delimited = matches!(format, TableFormat::Csv | TableFormat::Tsv);
    let mut without_effect: Vec<&str> = Vec::new();
    match kind {
        Some(InputKind::File) => {
            without_effect.extend(TEXT_ONLY.iter().chain(DELIMITED_ONLY).chain(&["format"]));
        }
        _ if format == TableFormat::Parquet => without_effect.extend(TEXT_ONLY.iter().chain(DELIMITED_ONLY)),
        _ if !delimited => without_effect.extend(DELIMITED_ONLY),
        _ => {}
    }
    for key in without_effect.into_iter().filter(|key| section.get(key).is_some()) {
        let what = if kind == Some(InputKind::File) { "an input of type file" } else { "this format" };
        problems.warn(section.place_of(key), &section.path(key), &format!("has no effect on {what}"));
    }
    let defaults = TableOptions::default();
    let headers = [("all_files_same_headers", HeaderMode::AllFilesSameHeaders), ("no_header", HeaderMode::NoHeader)];
    let policies = [("warn", MismatchPolicy::Warn), ("error", MismatchPolicy::Error)];
    TableOptions {
        format,
        delimiter: section.value("delimiter", problems, delimiter).unwrap_or(if format == TableFormat::Tsv {
            b'\t'
        } else {
            b','
        }),
        header: section.value("header", problems, |node| choice(node, &headers)).unwrap_or(defaults.header),
        encoding: section.value("encoding", problems, encoding).unwrap_or(defaults.encoding),
        infer_column_types: section
            .value("infer_column_types", problems, boolean)
            .unwrap_or(defaults.infer_column_types),
        support_multi_line: section
            .value("support_multi_line", problems, boolean)
            .unwrap_or(defaults.support_multi_line),
        empty_as_string: section.value("empty_as_string", problems, boolean).unwrap_or(defaults.empty_as_string),
        on_type_mismatch: section
            .value("on_type_mismatch", problems, |node| choice(node, &policies))
            .unwrap_or(defaults.on_type_mismatch),
        columns: read_columns(section, kind, problems),
    }
}

/// Reads `columns`. Whether the files have them is seen when these are looked at: [`ColumnList`].
fn read_columns(section: &Section<'_>, kind: Option<InputKind>, problems: &mut Problems) -> Vec<String> {
    const ALLOWED: &str = "a list of column names, each once: [store, price]";
    let Some(node) = section.get("columns") else { return Vec::new() };
    let path = section.path("columns");
    if kind == Some(InputKind::File) {
        let fault = Fault::of("columns of an input of type file", "columns of an input of type tabular");
        problems.add(section.place_of("columns"), &path, fault);
        return Vec::new();
    }
    let items = match list(node, ALLOWED) {
        Ok(items) if !items.is_empty() => items,
        _ => {
            problems.add(node.place, &path, Fault::new(node, ALLOWED));
            return Vec::new();
        }
    };
    let mut names: Vec<String> = Vec::new();
    for item in items {
        match item.scalar().filter(|scalar| !scalar.is_null() && !scalar.text.is_empty()) {
            None => problems.add(item.place, &path, Fault::new(item, ALLOWED)),
            Some(scalar) if names.contains(&scalar.text) => {
                problems.add(item.place, &path, Fault::of(format!("{:?} a second time", scalar.text), ALLOWED));
            }
            Some(scalar) => names.push(scalar.text.clone()),
        }
    }
    names
}

/// Where the names in `columns` of one input stand, for what the files say about them.
#[derive(Clone, Debug)]
pub struct ColumnList {
    path: String,
    places: Vec<Place>,
}

impl ColumnList {
    /// One for each input of a job file without mistakes; empty where nothing is listed.
    pub fn of_inputs(top: &Section<'_>) -> Vec<Self> {
        let listed = top.get("inputs").and_then(listed_inputs).unwrap_or_default();
        let lists = listed.into_iter().map(|(path, _, node)| {
            let section = Section::nested(&path, node.place, mapping(node, "").unwrap_or_default());
            let items = section.get("columns").and_then(|node| list(node, "").ok()).unwrap_or_default();
            Self { path: section.path("columns"), places: items.iter().map(|item| item.place).collect() }
        });
        lists.collect()
    }

    /// Says that one of the names is no column of the files.
    pub fn refuse(&self, name: &str, missing: &MissingColumn, problems: &mut Problems) {
        /// More than a person reads, and fewer than some files have.
        const SHOWN_MAX: usize = 50;
        let there = &missing.there;
        let mut allowed = there[..there.len().min(SHOWN_MAX)].join(", ");
        if there.len() > SHOWN_MAX {
            allowed += &format!(", … and {} more", there.len() - SHOWN_MAX);
        }
        let message = match nearest(name, there.iter().map(String::as_str)) {
            _ if missing.is_from_path => {
                "it comes from the path, so every frame has it; list columns of the files".to_owned()
            }
            Some(nearest) => format!("the files have no such column; did you mean {nearest:?}?"),
            None => "the files have no such column".to_owned(),
        };
        let fault = Fault::of(format!("{name:?}"), allowed).saying(message);
        problems.add(self.places[missing.position], &self.path, fault);
    }
}

/// What the file names say, if they all say the same.
fn format_by_extension(item_paths: &[ItemPath]) -> TableFormat {
    let format_of = |path: &ItemPath| {
        let extension = path.as_path().extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "tsv" => Some(TableFormat::Tsv),
            "jsonl" | "ndjson" => Some(TableFormat::Jsonl),
            "parquet" => Some(TableFormat::Parquet),
            _ => None,
        }
    };
    let first = item_paths.first().and_then(format_of);
    match first {
        Some(format) if item_paths.iter().all(|path| format_of(path) == first) => format,
        _ => TableFormat::Csv,
    }
}

fn delimiter(node: &Node) -> Result<u8, Fault> {
    match text(node)?.as_bytes() {
        br"\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !b"\"\r\n".contains(byte) => Ok(*byte),
        _ => Err(Fault::new(node, r#"one ASCII character, not a quote or a line break: ";", "\t""#)),
    }
}

/// A WHATWG label, or one of the original's names for the same encodings.
fn encoding(node: &Node) -> Result<String, Fault> {
    let label = word(node)?.to_ascii_lowercase();
    let label = match label.as_str() {
        "utf16" => "utf-16le",
        "windows1252" => "windows-1252",
        label => label,
    };
    let known = |label: &str| encoding_rs::Encoding::for_label_no_replacement(label.as_bytes());
    match known(label).or_else(|| known(&label.replace('_', "-"))).or_else(|| known(label.trim_end_matches("-sig"))) {
        Some(_) => Ok(label.to_owned()),
        None => Err(Fault::new(node, "a name of an encoding: utf-8, iso-8859-1, windows-1252, utf-16le, shift_jis, …")),
    }
}

/// Reads `partition_keys`, which every input must be able to tell from its paths.
pub fn read_partition_keys(top: &Section<'_>, inputs: &[Input], problems: &mut Problems) -> Vec<String> {
    let Some(keys) = top.read("partition_keys", problems, key_names) else { return Vec::new() };
    for input in inputs {
        let format = input.partition_format.as_deref().map(PartitionFormat::parse);
        let names = match &format {
            Some(Ok(format)) => format.names(),
            Some(Err(_)) => continue,
            None => &[],
        };
        for key in keys.value.iter().filter(|key| !names.contains(key)) {
            let allowed = match names.is_empty() {
                true => format!("keys that partition_format of input {:?} names; it has none", input.name),
                false => format!("keys that partition_format of input {:?} names: {}", input.name, names.join(", ")),
            };
            problems.add(keys.place, "partition_keys", Fault::of(format!("{key:?}"), allowed));
        }
    }
    keys.value
}

fn key_names(node: &Node) -> Result<Vec<String>, Fault> {
    let allowed = "a list of texts, each once: [store, brand]";
    let items = list(node, allowed).map_err(|fault| fault.saying("Parameter partition_keys must be of type list."))?;
    let mut names: Vec<String> = Vec::new();
    for item in items {
        let name = match item.scalar() {
            Some(scalar) if !scalar.text.is_empty() => scalar.text.clone(),
            _ => {
                let shown = item.scalar().map_or("", |scalar| &scalar.text);
                let message = format!("Element {shown} in partition_keys is not a str.");
                return Err(Fault::new(item, allowed).saying(message));
            }
        };
        if names.contains(&name) {
            return Err(Fault::of(format!("{name:?} a second time"), allowed));
        }
        names.push(name);
    }
    match names.is_empty() {
        true => Err(Fault::new(node, allowed)),
        false => Ok(names),
    }
}

/// Reads `side_inputs`. What is local must be there.
pub fn read_side_inputs(top: &Section<'_>, paths: &Paths, problems: &mut Problems) -> BTreeMap<String, ItemPath> {
    let mut found = BTreeMap::new();
    let Some(node) = top.get("side_inputs") else { return found };
    let entries = match mapping(node, "a mapping of names to paths: {labels: labels.txt}") {
        Ok(entries) => entries,
        Err(fault) => {
            problems.add(node.place, "side_inputs", fault);
            return found;
        }
    };
    for entry in entries {
        let field = format!("side_inputs.{}", entry.key);
        if let Err(fault) = input_name(&Node::text(entry.place, &entry.key)) {
            problems.add(entry.place, &field, fault);
        }
        match paths.path_or_url(&entry.node).and_then(|path| exists(&entry.node, path)) {
            Ok(path) => {
                found.insert(entry.key.clone(), path);
            }
            Err(fault) => problems.add(entry.place, &field, fault),
        }
    }
    found
}
