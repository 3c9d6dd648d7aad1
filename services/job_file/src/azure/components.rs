//! Components by name: `[azureml.components]` gives a file, or a folder of component files.

use std::path::{Path, PathBuf};

use super::reader::Reader;
use super::versioned::{NameTable, Versioned, version_order};
use crate::{Fault, Node, Problems, find, yaml};

/// Maximum number of files to read. No folder of components has more.
const FILES_MAX: usize = 5_000;
/// Maximum size of a file. No component is larger.
const BYTES_MAX: u64 = 1 << 20;

impl Reader<'_> {
    /// Returns the file of a component that a step names.
    pub fn component(&self, node: &Node, folder: &Path) -> Result<PathBuf, Fault> {
        let place = PathBuf::from(self.locate(node, folder, NameTable::Components)?);
        match Versioned::of_address(node.written().trim(), NameTable::Components) {
            Some(wanted) if place.is_dir() => in_folder(&place, wanted),
            _ => Ok(place),
        }
    }
}

/// Returns the file in a folder that describes this component.
fn in_folder(folder: &Path, wanted: Versioned<'_>) -> Result<PathBuf, Fault> {
    let mut versions: Vec<(String, PathBuf)> = files(folder)
        .into_iter()
        .filter_map(|file| Some((version_of(&file, wanted.name)?, file)))
        .collect();
    versions.sort_by(|(left, _), (right, _)| version_order(left).cmp(&version_order(right)));
    let is_wanted = |(version, _): &&(String, PathBuf)| {
        wanted.version.is_none_or(|wanted| wanted == version || version.is_empty())
    };
    if let Some((_, file)) = versions.iter().rev().find(is_wanted) {
        return Ok(file.clone());
    }
    let known: Vec<&str> = versions.iter().map(|(version, _)| version.as_str()).collect();
    let message = match known.is_empty() {
        true => format!(
            "no file in {} is the component {} (`name: {}`)",
            folder.display(),
            wanted.name,
            wanted.name
        ),
        false => {
            format!(
                "{} has the component {} in other versions: {}",
                folder.display(),
                wanted.name,
                known.join(", ")
            )
        }
    };
    Err(Fault::only(message))
}

/// Returns the YAML files of a folder and those below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let walk = ignore::WalkBuilder::new(folder).standard_filters(false).hidden(true).build();
    let is_yaml =
        |path: &Path| path.extension().is_some_and(|ending| ending == "yml" || ending == "yaml");
    walk.flatten()
        .map(ignore::DirEntry::into_path)
        .filter(|path| is_yaml(path))
        .take(FILES_MAX)
        .collect()
}

/// Returns the version of the component that a file describes, if it has this name; without a version, an empty text.
fn version_of(file: &Path, name: &str) -> Option<String> {
    let is_small = file.metadata().is_ok_and(|metadata| metadata.len() <= BYTES_MAX);
    let text = std::fs::read_to_string(file).ok().filter(|text| is_small && text.contains(name))?;
    let entries = yaml::read(&text, &Problems::default())?;
    let word = |key: &str| find(&entries, key).map(|node| node.written().trim().to_owned());
    // Conda files and environments have names, too.
    let is_component = ["task", "command", "jobs"].iter().any(|key| find(&entries, key).is_some());
    (is_component && word("name")? == name).then(|| word("version").unwrap_or_default())
}
