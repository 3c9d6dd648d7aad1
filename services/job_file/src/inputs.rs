//! `inputs`: the data that a job processes.

mod columns;
mod mltable;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use partitioner::{MissingColumn, PartitionFormat};
use protocol::{
    HeaderMode, Input, InputKind, ItemPath, JobSpec, TableFormat, TableOptions, TypeRules,
};
use storage::real_path;

use crate::keys::{INPUT, Read};
use crate::paths::glob_folder;
use crate::problem::did_you_mean;
use crate::values::{choice, key_name, mapping, name, text, word};
use crate::{Entry, Fault, Location, Node, Paths, Problems, Section, Value};
use columns::{Columns, read_columns};
use mltable::Expanded;

const INPUTS_ALLOWED: &str =
    "a list of inputs, or a mapping of names to inputs; an input is a mapping with type and path";

/// Reads `inputs` into `job`. Leaves out invalid inputs, so that the others decide keys that depend on all of them.
pub fn read_inputs(top: &Section<'_>, paths: &Paths, job: &mut JobSpec) -> Vec<InputLocations> {
    let mut locations = Vec::new();
    let Some(node) = top.get("inputs") else { return locations };
    let Some(listed) = listed_inputs(node) else {
        top.refuse("inputs", node.location, Fault::new(node, INPUTS_ALLOWED));
        return locations;
    };
    let mut earlier = Earlier::default();
    for (position, (path, entry, item)) in listed.into_iter().enumerate() {
        let read = read_input(position, &path, entry, item, paths, top.problems);
        let Some((location, input, found)) = read else { continue };
        if job.inputs.iter().any(|earlier| earlier.name == input.name) {
            let fault =
                Fault::of(format!("{:?} a second time", input.name), "a name for each input");
            top.refuse(&path, location, fault);
        }
        if let Some(first) = job.inputs.first().filter(|first| first.kind != input.kind) {
            let fault = Fault::of(kind_name(input.kind), kind_name(first.kind));
            top.refuse(
                &format!("{path}.type"),
                location,
                fault.saying("All inputs of step must be same type"),
            );
        }
        let places = input.paths.iter().filter_map(Place::of).collect::<Vec<_>>();
        if let Some(message) = places.iter().find_map(|place| earlier.read_twice(place)) {
            top.problems.warn(location, &path, message);
        }
        places.into_iter().for_each(|place| earlier.add(place));
        job.inputs.push(input);
        locations.push(found);
    }
    locations
}

/// Checks that there is an input, unless the mini-batches need none.
pub fn require_inputs(top: &Section<'_>, job: &JobSpec) {
    let is_empty = top
        .get("inputs")
        .is_none_or(|node| listed_inputs(node).is_some_and(|listed| listed.is_empty()));
    if is_empty && job.rank_mini_batch_count == 0 {
        let message = "The parameter 'inputs' must be a list and have at least one element or rank_mini_batch_count \
                       must be greater than zero.";
        top.refuse(
            "inputs",
            top.location_of("inputs"),
            Fault::of("no input", "at least one input").saying(message),
        );
    }
    if job.rank_mini_batch_count > 0 && !job.inputs.is_empty() {
        let message =
            "not read, because \"--rank_mini_batch_count\" makes mini-batches without input";
        top.warn("inputs", message);
    }
}

/// Returns the path of each input, its entry if its name is a key, and its value. `None`: neither a list nor a mapping.
fn listed_inputs<'a>(node: &'a Node) -> Option<Vec<(String, Option<&'a Entry>, &'a Node)>> {
    let in_list = |(position, item): (usize, &'a Node)| (format!("inputs[{position}]"), None, item);
    let named = |entry: &'a Entry| (format!("inputs.{}", entry.key), Some(entry), &entry.node);
    match &node.value {
        Value::List(items) => Some(items.iter().enumerate().map(in_list).collect()),
        Value::Mapping(entries) => Some(entries.iter().map(named).collect()),
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
    problems: &Problems,
) -> Option<(Location, Input, InputLocations)> {
    problems.accept(node.location, path, mapping(node, "a mapping with type and path"))?;
    let expanded = match mltable::expand(path, node, paths, problems) {
        Expanded::No => None,
        Expanded::Into(node) => Some(node),
        Expanded::Unknown => return None,
    };
    let section = Section::nested(INPUT, path, expanded.as_ref().unwrap_or(node), problems);
    let name = match entry {
        Some(entry) => {
            problems.accept(entry.location, path, key_name(entry));
            if section.get("name").is_some() {
                let fault = Fault::of("a second name", "the key above it, which is the name");
                section.refuse("name", section.location_of("name"), fault);
            }
            entry.key.clone()
        }
        None => section.value("name", name).unwrap_or_else(|| format!("input_{position}")),
    };
    let kinds = [InputKind::File, InputKind::Tabular].map(|kind| (kind_name(kind), kind));
    let kind = section.read("type", |node| choice(node, &kinds));
    let item_paths = read_paths(&section, paths);
    // An invalid format is kept, so that `partition_keys` cause no second message.
    let partition_format = section.get("partition_format").and_then(|node| text(node).ok());
    section.value("partition_format", |node| {
        PartitionFormat::parse(&word(node)?).map_err(|error| {
            Fault::new(node, "columns in braces: {Store}/{Brand}/{file_name}.csv")
                .saying(error.to_string())
        })
    });
    let is_local = item_paths.iter().all(|path| !path.is_url());
    let (table, columns) = read_table(&section, kind.map(|(_, kind)| kind), is_local);
    let (location, kind) = kind?;
    let input = Input { name, kind, paths: item_paths, partition_format, table };
    let locations = InputLocations { path: path.to_owned(), keys: section.locations(), columns };
    Some((location, input, locations))
}

fn read_paths(section: &Section<'_>, paths: &Paths) -> Vec<ItemPath> {
    let allowed =
        "a path, a folder, a glob such as data/**/*.csv, a URL, or in `paths` a list of them";
    let (key, node) = match (section.get("path"), section.get("paths")) {
        (Some(_), Some(node)) => {
            section.refuse("paths", node.location, Fault::of("path and paths", "one of them"));
            return Vec::new();
        }
        (None, None) => {
            section.refuse("path", section.location, Fault::missing(allowed));
            return Vec::new();
        }
        (Some(node), None) => ("path", node),
        (None, Some(node)) => ("paths", node),
    };
    let nodes: &[Node] =
        if let Value::List(items) = &node.value { items } else { std::slice::from_ref(node) };
    if nodes.is_empty() {
        section.refuse(key, node.location, Fault::new(node, allowed));
    }
    let (mut found, mut earlier) = (Vec::new(), Earlier::default());
    for node in nodes {
        let path = paths.path_or_url(node).and_then(|path| exists_or_matches(node, path, paths));
        let Some(path) = section.accept(key, node.location, path) else { continue };
        if let Some(place) = Place::of(&path) {
            if let Some(message) = earlier.read_twice(&place) {
                section.problems.warn(node.location, &section.path(key), message);
            }
            earlier.add(place);
        }
        found.push(path);
    }
    found
}

/// The places of the paths so far, with their names in the document. There may be many thousands.
#[derive(Default)]
struct Earlier(BTreeMap<PathBuf, String>);

impl Earlier {
    fn add(&mut self, place: Place) {
        self.0.entry(place.path).or_insert(place.shown);
    }

    /// Returns a warning if an earlier path contains files of this one, or the other way round.
    fn read_twice(&self, Place { path, shown, is_url }: &Place) -> Option<String> {
        let above = || path.ancestors().find_map(|folder| self.0.get(folder)).filter(|_| !is_url);
        // In the order of paths, the content of a folder follows the folder.
        let below = || {
            let next = self.0.range::<Path, _>((Bound::Included(&**path), Bound::Unbounded)).next();
            next.filter(|(other, _)| !is_url && other.starts_with(path)).map(|(_, other)| other)
        };
        let other = self.0.get(path).or_else(above).or_else(below)?;
        Some(match other == shown {
            true => format!("{shown} is listed twice, so each of its items runs twice"),
            false => format!("{shown} and {other} have files in common, whose items run twice"),
        })
    }
}

/// The place of the files of a path.
struct Place {
    /// A URL, or a path without links.
    path: PathBuf,
    /// The path as the document names it.
    shown: String,
    is_url: bool,
}

impl Place {
    /// Returns the place of a path. `None`: a pattern, which is not compared.
    fn of(path: &ItemPath) -> Option<Self> {
        let (shown, is_url) = (path.display(), path.is_url());
        let path = match glob_folder(path.as_path()) {
            _ if is_url => path.as_path().to_owned(),
            Some(_) => return None,
            None => real_path(path.as_path()),
        };
        Some(Self { path, shown, is_url })
    }
}

/// Checks that a local path exists, or the folder before the first wildcard of a glob.
fn exists_or_matches(node: &Node, path: ItemPath, paths: &Paths) -> Result<ItemPath, Fault> {
    match glob_folder(path.as_path()) {
        Some(folder) if !path.is_url() => paths.exists(node, ItemPath::from(folder)).map(|_| path),
        _ => paths.exists(node, path),
    }
}

fn read_table(
    section: &Section<'_>,
    kind: Option<InputKind>,
    is_local: bool,
) -> (TableOptions, Vec<(String, Location)>) {
    let formats = [TableFormat::Csv, TableFormat::Tsv, TableFormat::Jsonl, TableFormat::Parquet];
    let formats = formats.map(|format| (format.word(), format));
    let format = section.value("format", |node| choice(node, &formats));
    let is_file = kind == Some(InputKind::File);
    for key in INPUT
        .rows()
        .filter(|key| section.get(key.name).is_some() && !key.applies.to(is_file, format))
    {
        let object = if is_file { "an input of type file" } else { "this format" };
        section.warn(key.name, format!("has no effect on {object}"));
    }
    // Without the key, the files decide; they are read later.
    let by_name = format.is_none() && !is_file;
    let delimiter = match format {
        Some(TableFormat::Tsv) => b'\t',
        None if by_name => TableOptions::DELIMITER_OF_FORMAT,
        _ => b',',
    };
    let Columns { names, types, locations } = read_columns(section, kind, format);
    let mut table = TableOptions {
        by_name,
        delimiter,
        columns: names,
        column_types: types,
        ..TableOptions::default()
    };
    table.format = format.unwrap_or(table.format);
    section.fill(&mut table, |read| if let Read::Table(set) = read { Some(set) } else { None });
    // As pandas reads each file. The planner must read whole files for this, which is expensive for URLs.
    let is_as_pandas = table.types == TypeRules::Pandas && is_local;
    table.support_multi_line |= is_as_pandas && section.get("support_multi_line").is_none();
    table.header = match (section.get("header").is_some(), table.names.is_empty()) {
        (false, false) => HeaderMode::NoHeader,
        (false, true) if is_as_pandas => HeaderMode::AllFilesDifferentHeaders,
        _ => table.header,
    };
    if !table.names.is_empty() && table.header != HeaderMode::NoHeader {
        let fault = Fault::of(
            "names of columns, and a header that names them",
            "names with header: no_header",
        );
        section.refuse("names", section.location_of("names"), fault);
    }
    (table, locations)
}

/// The locations of an input's keys, for problems that only its files show.
#[derive(Clone, Debug)]
pub struct InputLocations {
    path: String,
    keys: Vec<(String, Location)>,
    columns: Vec<(String, Location)>,
}

impl InputLocations {
    /// Records why the files of the input cannot be processed.
    pub fn refuse(&self, message: String, problems: &Problems) {
        let (key, location) = self
            .keys
            .iter()
            .find(|(key, _)| key == "path" || key == "paths")
            .expect("one is required");
        problems.add(*location, &format!("{}.{key}", self.path), Fault::only(message));
    }

    /// Warns of keys without effect on the format that was found.
    pub fn warn_without_effect(&self, format: TableFormat, problems: &Problems) {
        let applies =
            |key: &str| INPUT.find(key).is_none_or(|row| row.applies.to(false, Some(format)));
        for (key, location) in self.keys.iter().filter(|(key, _)| !applies(key)) {
            let message = format!("has no effect on files that are {}", format.word());
            problems.warn(*location, &format!("{}.{key}", self.path), message);
        }
    }

    pub fn refuse_column(&self, missing: &MissingColumn, problems: &Problems) {
        /// Maximum number of columns in a message. Some files have thousands.
        const SHOWN_MAX: usize = 50;
        let MissingColumn { name, there, .. } = missing;
        let mut allowed = there[..there.len().min(SHOWN_MAX)].join(", ");
        if there.len() > SHOWN_MAX {
            allowed += &format!(", … and {} more", there.len() - SHOWN_MAX);
        }
        let message = match missing.is_from_path {
            true => "it comes from the path, so every frame has it; list columns of the files"
                .to_owned(),
            false => {
                let hint = did_you_mean(name, there.iter().map(String::as_str));
                format!("the files have no such column{hint}")
            }
        };
        let location = self
            .columns
            .iter()
            .find(|(named, _)| named == name)
            .map_or(Location::File, |(_, at)| *at);
        let fault = Fault::of(format!("{name:?}"), allowed).saying(message);
        problems.add(location, &format!("{}.columns", self.path), fault);
    }
}
