//! `format: mltable`: an input that a file `MLTable` describes. Its paths and transformations become keys of the input.

use std::collections::BTreeMap;
use std::path::Path;

use partitioner::Inputs;
use protocol::{Input, InputKind, ItemPath, JobSpec, TableFormat, TableOptions};

use crate::keys::{INPUT, Read};
use crate::paths::is_url;
use crate::problem::did_you_mean;
use crate::values::{boolean, integer, list, word};
use crate::{Entry, Fault, Location, Node, Paths, Problems, Value, find, nearest, other};

const FILE: &str = "MLTable";
const READERS: [(&str, TableFormat); 3] = [
    ("read_delimited", TableFormat::Csv),
    ("read_json_lines", TableFormat::Jsonl),
    ("read_parquet", TableFormat::Parquet),
];
const KNOWN: &str = "read_delimited, read_json_lines, read_parquet, extract_columns_from_partition_format, drop_columns, \
                     keep_columns, convert_column_types, take, skip";
/// The column of `include_path_column` without `path_column`.
const PATH_COLUMN: &str = "Path";

/// An input after the expansion of `format: mltable`.
pub enum Expanded {
    /// The input names no MLTable.
    No,
    /// The input with the keys of the MLTable.
    Into(Node),
    /// The MLTable cannot be read: its mistake is recorded, or an earlier step makes it.
    Unknown,
}

/// Replaces `format: mltable` by the keys that the file describes.
pub fn expand(field: &str, input: &Node, paths: &Paths, problems: &Problems) -> Expanded {
    let given = input.entries();
    if find(given, "format")
        .is_none_or(|format| !format.written().trim().eq_ignore_ascii_case("mltable"))
    {
        return Expanded::No;
    }
    let is_file =
        find(given, "type").is_some_and(|kind| kind.written().trim().eq_ignore_ascii_case("file"));
    match read(field, given, is_file, paths, problems) {
        Ok(entries) => {
            Expanded::Into(Node { location: input.location, value: Value::Mapping(entries) })
        }
        Err(Some((location, key, fault))) => {
            problems.add(location, &format!("{field}.{key}"), fault);
            Expanded::Unknown
        }
        Err(None) => Expanded::Unknown,
    }
}

type Refused = Option<(Location, String, Fault)>;

fn read(
    field: &str,
    given: &[Entry],
    is_file: bool,
    paths: &Paths,
    problems: &Problems,
) -> Result<Vec<Entry>, Refused> {
    let allowed = "a local folder with a file MLTable";
    let Some(path) = find(given, "path") else {
        let location = find(given, "format").map_or(Location::File, |format| format.location);
        return Err(Some((location, "path".to_owned(), Fault::missing(allowed))));
    };
    let refuse = |fault: Fault| Some((path.location, "path".to_owned(), fault));
    let folder = paths
        .local(path)
        .map_err(|fault| refuse(fault.saying("an MLTable is read from a local folder")))?;
    let file = if folder.ends_with(FILE) { folder } else { folder.join(FILE) };
    if !file.is_file() {
        let is_made = paths.made_earlier.iter().any(|made| file.starts_with(made));
        let message = format!("there is no file {}", file.display());
        return Err(if is_made { None } else { refuse(Fault::new(path, allowed).saying(message)) });
    }
    let entries =
        other::read(&file, path.location, field, "type: mltable", problems).ok_or(None)?;
    let mut table = MlTable { is_file, ..MlTable::default() };
    for entry in &entries {
        let known = match entry.key.as_str() {
            "paths" => table.read_paths(&entry.node, &file),
            "transformations" => table.read_transformations(&entry.node),
            "$schema" | "type" | "metadata" | "traits" => Ok(()),
            key => {
                let hint = did_you_mean(key, ["paths", "transformations", "metadata"]);
                Err((
                    entry.location,
                    Fault::only(format!("unknown key {key:?} of an MLTable{hint}")),
                ))
            }
        };
        known.map_err(|(location, fault)| Some((location, FILE.to_owned(), fault)))?;
    }
    if table.paths.is_empty() {
        let fault = Fault::of("no path", "paths: [{file: …}, {folder: …}, {pattern: …}]");
        return Err(refuse(fault.saying(format!("{} names no data", file.display()))));
    }
    let columns = table
        .columns(problems)
        .map_err(|(location, fault)| Some((location, FILE.to_owned(), fault)))?;
    let path_name = table.path_column().to_owned();
    if let Some(location) = table.without_effect {
        problems.warn(
            location,
            FILE,
            "true_values, false_values and mismatch_as have no effect: Gristmill reads true and false",
        );
    }
    if let (Some(rows), true) = (&table.rows, is_file) {
        problems.warn(rows.location, FILE, "take and skip have no effect on an input of type file");
    }
    let location = path.location;
    let mut keys = vec![Entry::new("paths", Node { location, value: Value::List(table.paths) })];
    if let Some(format) = table.format.filter(|_| !is_file) {
        keys.push(Entry::text("format", location, format.word()));
    }
    if let Some((format, location)) = table.partition_format {
        keys.push(Entry::text("partition_format", location, &format));
    }
    keys.extend(columns);
    if let Some(location) = table.has_paths.filter(|_| !is_file) {
        keys.push(Entry::text("path_column", location, &path_name));
    }
    keys.extend(table.rows.into_iter().filter(|_| !is_file).flat_map(Rows::keys));
    keys.extend(table.keys);
    if table.format.is_some_and(|format| !is_file && format.is_text()) {
        keys.push(Entry::text("on_type_mismatch", location, "missing"));
    }
    // Keys of the input itself take precedence.
    let own =
        given.iter().filter(|entry| !["path", "format"].contains(&entry.key.as_str())).cloned();
    let mut all: Vec<Entry> = own.collect();
    for key in keys {
        if !all.iter().any(|entry| entry.key == key.key) {
            all.push(key);
        }
    }
    Ok(all)
}

/// The content of an MLTable.
#[derive(Default)]
struct MlTable {
    is_file: bool,
    paths: Vec<Node>,
    format: Option<TableFormat>,
    partition_format: Option<(String, Location)>,
    /// Options of the format, as keys of an input.
    keys: Vec<Entry>,
    /// Location of the `include_path_column` that asks for the column of paths.
    has_paths: Option<Location>,
    path_column: Option<String>,
    dropped: Vec<String>,
    kept: Option<Vec<String>>,
    types: BTreeMap<String, (&'static str, Location)>,
    /// Location of the transformation that chooses columns.
    chosen_at: Option<Location>,
    rows: Option<Rows>,
    /// Location of `true_values`, `false_values` or `mismatch_as`.
    without_effect: Option<Location>,
}

/// The rows that remain after `take` and `skip`.
struct Rows {
    location: Location,
    skip: u64,
    take: Option<u64>,
}

impl Rows {
    fn keys(self) -> impl Iterator<Item = Entry> {
        let Self { location, skip, take } = self;
        let key = move |name, rows: u64| Entry::new(name, Node::plain(location, &rows.to_string()));
        let skip = (skip > 0).then(|| key("skip", skip));
        skip.into_iter().chain(take.map(|take| key("take", take)))
    }
}

type Checked = Result<(), (Location, Fault)>;

fn at<T>(node: &Node, result: Result<T, Fault>) -> Result<T, (Location, Fault)> {
    result.map_err(|fault| (node.location, fault))
}

impl MlTable {
    fn path_column(&self) -> &str {
        self.path_column.as_deref().unwrap_or(PATH_COLUMN)
    }

    fn read_paths(&mut self, node: &Node, file: &Path) -> Checked {
        let allowed = "a list of file, folder or pattern: [{pattern: ./*.csv}]";
        let folder = file.parent().unwrap_or(Path::new("/"));
        for item in at(node, list(node, allowed))? {
            let [entry] = item.entries() else {
                return Err((item.location, Fault::new(item, allowed)));
            };
            let path = at(&entry.node, word(&entry.node))?;
            if path.starts_with("azureml:") {
                let fault = Fault::new(&entry.node, "a local path, https://, abfss://, s3://, …");
                return Err((
                    entry.location,
                    fault.saying("an MLTable cannot name data of a workspace here"),
                ));
            }
            let path = match is_url(&path) {
                true => path,
                false => Paths::new(folder.to_owned(), None)
                    .resolve(path.trim_start_matches("file:"))
                    .display()
                    .to_string(),
            };
            if !["file", "folder", "pattern"].contains(&entry.key.as_str()) {
                return Err((entry.location, Fault::of(format!("{:?}", entry.key), allowed)));
            }
            if entry.key == "pattern" && !is_url(&path) && matches_nothing(&path) {
                let fault = Fault::new(&entry.node, "a pattern that matches files");
                return Err((entry.location, fault.saying(format!("no file matches {path}"))));
            }
            self.paths.push(Node::text(entry.node.location, &path));
        }
        Ok(())
    }

    fn read_transformations(&mut self, node: &Node) -> Checked {
        for item in at(node, list(node, "a list of transformations"))? {
            let (name, location, options) = match item.entries() {
                [entry] => (entry.key.as_str(), entry.location, &entry.node),
                _ => (item.written(), item.location, item),
            };
            self.transform(name, location, options)?;
        }
        Ok(())
    }

    fn transform(&mut self, name: &str, location: Location, options: &Node) -> Checked {
        if let Some((_, format)) = READERS.iter().find(|(reader, _)| *reader == name) {
            self.format = Some(*format);
            return options.entries().iter().try_for_each(|entry| self.read_option(entry));
        }
        match name {
            "extract_columns_from_partition_format" => {
                let format = find(options.entries(), "partition_format").unwrap_or(options);
                let text = at(format, word(format))?;
                // In Azure ML the format begins at the folder of the table, here at any folder above the file.
                self.partition_format = Some((
                    text.trim_start_matches("./").trim_start_matches('/').to_owned(),
                    location,
                ));
                Ok(())
            }
            "drop_columns" => {
                self.dropped.extend(names(options)?);
                self.chosen_at = Some(location);
                Ok(())
            }
            "keep_columns" => {
                self.kept = Some(names(options)?);
                self.chosen_at = Some(location);
                Ok(())
            }
            "convert_column_types" => self.convert(options),
            "take" | "skip" => self.limit(name == "take", location, options),
            _ => {
                let message = match nearest(name, KNOWN.split(", ")) {
                    Some(near) => format!(
                        "Gristmill does not know the transformation {name}; did you mean {near}?"
                    ),
                    None => format!("Gristmill does not make the transformation {name}"),
                };
                Err((location, Fault::of(format!("{name:?}"), KNOWN).saying(message)))
            }
        }
    }

    /// Reads `take: 5`, `skip: 5` or `take: {count: 5}`. Each counts the rows that the ones before it leave.
    fn limit(&mut self, is_take: bool, location: Location, options: &Node) -> Checked {
        if self.format.is_none() && !self.is_file {
            let readers = READERS.map(|(reader, _)| reader).join(", ");
            let fault = Fault::of("no reader before it", readers);
            return Err((location, fault.saying("take and skip count the rows of a reader")));
        }
        let count = find(options.entries(), "count").unwrap_or(options);
        let count: u64 = at(count, integer(count, i64::from(is_take), i64::MAX))?;
        let rows = self.rows.get_or_insert(Rows { location, skip: 0, take: None });
        match is_take {
            true => rows.take = Some(rows.take.map_or(count, |take| take.min(count))),
            false => {
                rows.skip = rows.skip.saturating_add(count);
                rows.take = rows.take.map(|take| take.saturating_sub(count));
            }
        }
        match rows.take {
            Some(0) => Err((location, Fault::only("take and skip leave no row"))),
            _ => Ok(()),
        }
    }

    fn read_option(&mut self, entry: &Entry) -> Checked {
        let node = &entry.node;
        let written = node.written().trim();
        match entry.key.as_str() {
            "infer_column_types" if !node.entries().is_empty() => self.infer(node.entries())?,
            "delimiter" | "infer_column_types" | "support_multi_line" | "empty_as_string" => {
                self.keys.push(Entry::new(&entry.key, node.clone()));
            }
            "encoding" => {
                let label = match written.to_lowercase().as_str() {
                    "utf8" | "utf_8" | "utf8bom" => "utf-8".to_owned(),
                    label => label.to_owned(),
                };
                self.keys.push(Entry::text("encoding", node.location, &label));
            }
            "header" => {
                let header = match written.to_lowercase().as_str() {
                    "false" => "no_header".to_owned(),
                    "true" => "all_files_same_headers".to_owned(),
                    header => header.to_owned(),
                };
                self.keys.push(Entry::text("header", node.location, &header));
            }
            "include_path_column" => {
                self.has_paths = at(node, boolean(node))?.then_some(node.location)
            }
            "path_column" => self.path_column = (!node.is_null()).then(|| written.to_owned()),
            // A line that cannot be read is a rejected item in any case.
            "invalid_lines" | "partition_size" => {}
            key => {
                let allowed = "delimiter, encoding, header, infer_column_types, support_multi_line, empty_as_string, \
                               include_path_column, path_column";
                let fault = Fault::unknown(key, allowed.split(", "), "unknown option");
                return Err((entry.location, fault));
            }
        }
        Ok(())
    }

    /// Reads `infer_column_types: {column_type_overrides: {a: string}}`. Ignores `sample_size`: Gristmill chooses it.
    fn infer(&mut self, entries: &[Entry]) -> Checked {
        for entry in entries {
            match entry.key.as_str() {
                "sample_size" => {}
                "column_type_overrides" => {
                    for Entry { key, location, node } in entry.node.entries() {
                        self.set_type(key.clone(), *location, node)?;
                    }
                }
                key => {
                    let known = ["sample_size", "column_type_overrides"];
                    let fault = Fault::unknown(key, known, "unknown option");
                    return Err((entry.location, fault));
                }
            }
        }
        Ok(())
    }

    fn convert(&mut self, options: &Node) -> Checked {
        let allowed = "a list of columns and column_type: [{columns: [a], column_type: int}]";
        for item in at(options, list(options, allowed))? {
            let (Some(columns), Some(kind)) =
                (find(item.entries(), "columns"), find(item.entries(), "column_type"))
            else {
                return Err((item.location, Fault::new(item, allowed)));
            };
            for column in names(columns)? {
                self.set_type(column, columns.location, kind)?;
            }
        }
        Ok(())
    }

    fn set_type(&mut self, column: String, location: Location, kind: &Node) -> Checked {
        let own = at(kind, column_type(kind))?;
        if own == "bool"
            && kind.entries().first().is_some_and(|entry| !entry.node.entries().is_empty())
        {
            self.without_effect = Some(kind.location);
        }
        self.types.insert(column, (own, location));
        Ok(())
    }

    /// Returns the key `columns`, and removes columns that are not chosen from the path columns.
    fn columns(&mut self, problems: &Problems) -> Result<Option<Entry>, (Location, Fault)> {
        let location =
            self.chosen_at.or_else(|| self.types.values().next().map(|(_, location)| *location));
        let Some(location) = location else { return Ok(None) };
        if self.is_file {
            problems.warn(location, FILE, "columns have no effect on an input of type file");
            return Ok(None);
        }
        let kept = self.kept.clone();
        let dropped = std::mem::take(&mut self.dropped);
        let is_out = |name: &str| {
            dropped.iter().any(|dropped| dropped == name)
                || kept.as_ref().is_some_and(|kept| !kept.iter().any(|kept| kept == name))
        };
        let path_column = self.path_column().to_owned();
        self.has_paths.take_if(|_| is_out(&path_column));
        let mut of_path = Vec::new();
        if let Some((format, _)) = &mut self.partition_format {
            let mut changed = String::new();
            let mut rest = format.as_str();
            while let Some((before, (inside, behind))) = rest
                .split_once('{')
                .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
            {
                let name = inside.split(':').next().unwrap_or_default();
                of_path.push(name.to_owned());
                changed += before;
                changed += &if is_out(name) { "*".to_owned() } else { format!("{{{inside}}}") };
                rest = behind;
            }
            *format = changed + rest;
        }
        let of_files = |names: &[String]| {
            let is_own = |name: &&String| !of_path.contains(name) && **name != path_column;
            names.iter().filter(is_own).cloned().collect::<Vec<_>>()
        };
        let selected = match (&kept, of_files(&dropped)) {
            (Some(kept), _) => {
                of_files(kept).into_iter().filter(|name| !dropped.contains(name)).collect()
            }
            (None, dropped) if dropped.is_empty() => Vec::new(),
            (None, dropped) => {
                let existing = self.existing_columns().map_err(|fault| (location, fault))?;
                if let Some(unknown) = dropped.iter().find(|name| !existing.contains(name)) {
                    let fault = Fault::of(format!("{unknown:?}"), existing.join(", "));
                    return Err((
                        location,
                        fault.saying("drop_columns names a column that the files do not have"),
                    ));
                }
                existing.into_iter().filter(|name| !dropped.contains(name)).collect()
            }
        };
        if selected.is_empty() && (kept.is_some() || !of_files(&dropped).is_empty()) {
            let message =
                "keep_columns and drop_columns leave no column of the files; keep at least one";
            return Err((location, Fault::only(message)));
        }
        let typed = |name: &String| {
            let (kind, at) = self.types.get(name)?;
            Some(Entry::text(name, *at, kind))
        };
        let value = match selected.is_empty() {
            true if self.types.is_empty() => return Ok(None),
            true => Value::Mapping(self.types.keys().filter_map(typed).collect()),
            false => {
                let item = |name: &String| match typed(name) {
                    Some(entry) => Node { location, value: Value::Mapping(vec![entry]) },
                    None => Node::text(location, name),
                };
                Value::List(selected.iter().map(item).collect())
            }
        };
        Ok(Some(Entry::new("columns", Node { location, value })))
    }

    /// Returns the columns of the first file.
    fn existing_columns(&self) -> Result<Vec<String>, Fault> {
        let mut table = TableOptions {
            format: self.format.unwrap_or(TableFormat::Csv),
            ..TableOptions::default()
        };
        for Entry { key, node, .. } in &self.keys {
            if let Some(Read::Table(set)) = INPUT.find(key).map(|row| row.read) {
                set(&mut table, node).map_err(|fault| fault.within(key))?;
            }
        }
        let paths = self.paths.iter().map(|path| ItemPath::from(path.written())).collect();
        let input = Input {
            name: FILE.to_owned(),
            kind: InputKind::Tabular,
            paths,
            partition_format: None,
            table,
        };
        let spec = JobSpec { inputs: vec![input], ..JobSpec::default() };
        let columns = Inputs::default().columns(&spec, 0);
        columns.map_err(|error| Fault::only(format!("the columns cannot be read: {error:#}")))
    }
}

/// Returns whether a format of `datetime: {formats: ['%d/%m/%Y']}` puts the day before the month.
fn is_day_first(node: &Node) -> bool {
    let details = node.entries().first().map(|entry| &entry.node);
    let formats = details.and_then(|details| find(details.entries(), "formats"));
    let texts = formats.map_or(Vec::new(), |formats| match &formats.value {
        Value::List(items) => items.iter().map(Node::written).collect(),
        _ => vec![formats.written()],
    });
    let place = |text: &str, month: &[&str]| month.iter().filter_map(|sign| text.find(sign)).min();
    texts.iter().any(|text| match (place(text, &["%d", "%e"]), place(text, &["%m", "%b", "%B"])) {
        (Some(day), Some(month)) => day < month,
        _ => false,
    })
}

/// Returns the type of a column in a job file.
fn column_type(node: &Node) -> Result<&'static str, Fault> {
    let name =
        node.entries().first().map_or_else(|| node.written().trim(), |entry| entry.key.as_str());
    match name {
        "int" | "long" => Ok("int64"),
        "float" | "double" => Ok("float64"),
        "string" => Ok("string"),
        "boolean" | "bool" => Ok("bool"),
        "datetime" if is_day_first(node) => Ok("timestamp_day_first"),
        "datetime" => Ok("timestamp"),
        _ => Err(Fault::of(format!("{name:?}"), "int, float, string, boolean, datetime")),
    }
}

fn names(node: &Node) -> Result<Vec<String>, (Location, Fault)> {
    let node = find(node.entries(), "columns").unwrap_or(node);
    match &node.value {
        Value::Scalar(_) => Ok(vec![at(node, word(node))?]),
        Value::List(items) => items.iter().map(|item| at(item, word(item))).collect(),
        Value::Mapping(_) => Err((node.location, Fault::new(node, "a list of columns"))),
    }
}

/// Returns whether a local pattern whose folder exists matches no file. Walks only to the first match.
fn matches_nothing(pattern: &str) -> bool {
    let input = Input {
        name: FILE.to_owned(),
        kind: InputKind::File,
        paths: vec![ItemPath::from(pattern)],
        partition_format: None,
        table: TableOptions::default(),
    };
    let spec = JobSpec { inputs: vec![input], ..JobSpec::default() };
    Inputs::default().finds_nothing(&spec, 0)
}
