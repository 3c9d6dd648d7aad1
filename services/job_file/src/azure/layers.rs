//! A step and the component that it refers to, read as one mapping: the step's values take precedence.

use std::path::{Path, PathBuf};

use crate::{Entry, Location, Node, Value};

/// One mapping, and the folder that its relative paths start from.
#[derive(Clone, Debug)]
pub struct Layer {
    pub entries: Vec<Entry>,
    pub folder: PathBuf,
}

/// Mappings that stand for one, in order of precedence.
#[derive(Clone, Debug)]
pub struct Layers(pub Vec<Layer>);

/// A value, and the folder that it is relative to.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub node: &'a Node,
    pub folder: &'a Path,
}

impl Layers {
    /// Returns the value at a path of keys, unless it is absent or null everywhere.
    pub fn find(&self, path: &[&str]) -> Option<Found<'_>> {
        self.0.iter().find_map(|layer| {
            let mut entries = &layer.entries[..];
            let mut found = None;
            for key in path {
                let node = crate::find(entries, key)?;
                entries = node.entries();
                found = Some(node);
            }
            found.map(|node| Found { node, folder: &layer.folder })
        })
    }

    /// Returns the entries of the mapping `key` of all layers, each name once.
    pub fn merged(&self, key: &str) -> Vec<(&Entry, &Path)> {
        let mut merged: Vec<(&Entry, &Path)> = Vec::new();
        for layer in &self.0 {
            let Some(Node { value: Value::Mapping(entries), .. }) = crate::find(&layer.entries, key) else { continue };
            for entry in entries {
                if !merged.iter().any(|(earlier, _)| earlier.key == entry.key) {
                    merged.push((entry, &layer.folder));
                }
            }
        }
        merged
    }

    /// Returns the location of the first of these keys that there is, else of the first key of all.
    pub fn location_of(&self, keys: &[&str]) -> Location {
        let all = || self.0.iter().flat_map(|layer| &layer.entries);
        let named = keys.iter().find_map(|key| all().find(|entry| entry.key == *key));
        named.or_else(|| all().next()).map_or(Location::File, |entry| entry.location)
    }
}
