//! A step and the component that it refers to, read as one mapping: the step's values take precedence.

use std::path::{Path, PathBuf};

use super::{expression, known};
use crate::{Entry, Location, Node, Value};

/// One mapping, and the folder that its relative paths start from.
#[derive(Clone, Debug)]
pub struct Layer {
    pub entries: Vec<Entry>,
    pub folder: PathBuf,
}

impl Layer {
    /// Replaces groups of inputs by their members: `GROUP.NAME`.
    pub fn flatten_groups(&mut self) {
        if let Some(Node { value: Value::Mapping(inputs), .. }) = self.inputs() {
            let mut flat = Vec::new();
            std::mem::take(inputs).into_iter().for_each(|entry| flatten(entry, &mut flat));
            *inputs = flat;
        }
    }

    /// Replaces a reference to a group by references to its members, which the component declares.
    pub fn divide_groups(&mut self, component: &Self) {
        let declared = crate::find(&component.entries, "inputs").map_or(&[][..], Node::entries);
        let Some(Node { value: Value::Mapping(inputs), .. }) = self.inputs() else { return };
        let mut divided = Vec::new();
        for entry in std::mem::take(inputs) {
            let member = |declared: &Entry| {
                Some(declared.key.strip_prefix(&entry.key)?.strip_prefix('.')?.to_owned())
            };
            let members: Vec<String> = declared.iter().filter_map(member).collect();
            match expression::only_name(entry.node.written()).filter(|_| !members.is_empty()) {
                Some(group) => divided.extend(members.into_iter().map(|name| Entry {
                    key: format!("{}.{name}", entry.key),
                    location: entry.location,
                    node: Node::text(entry.node.location, &format!("${{{{{group}.{name}}}}}")),
                })),
                None => divided.push(entry),
            }
        }
        *inputs = divided;
    }

    /// Iterates over the entries of the mapping `key`.
    pub fn entries_of(&self, key: &str) -> impl Iterator<Item = (&Entry, &Path)> {
        let entries = crate::find(&self.entries, key).map_or(&[][..], Node::entries);
        entries.iter().map(|entry| (entry, self.folder.as_path()))
    }

    fn inputs(&mut self) -> Option<&mut Node> {
        self.entries.iter_mut().find(|entry| entry.key == "inputs").map(|entry| &mut entry.node)
    }
}

/// Adds an input, or the members of a group: a mapping with `type: group`, or without any key of an input.
fn flatten(entry: Entry, flat: &mut Vec<Entry>) {
    let entries = entry.node.entries();
    let is_declared =
        crate::find(entries, "type").is_some_and(|kind| kind.written().trim() == "group");
    let is_key = |inner: &Entry| known::keys(&[known::INPUT]).any(|(key, _)| key == inner.key);
    if !is_declared && (entries.is_empty() || entries.iter().any(is_key)) {
        flat.push(entry);
        return;
    }
    let members = match is_declared {
        true => crate::find(entries, "values").map_or(&[][..], Node::entries),
        false => entries,
    };
    for member in members {
        flatten(Entry { key: format!("{}.{}", entry.key, member.key), ..member.clone() }, flat);
    }
}

/// Mappings that are read as one, in order of precedence.
#[derive(Clone, Debug)]
pub struct Layers(pub Vec<Layer>);

/// A value, and the folder that it is relative to.
#[derive(Clone, Copy, Debug)]
pub struct LayerValue<'a> {
    pub node: &'a Node,
    pub folder: &'a Path,
}

impl Layers {
    /// Returns the value at a path of keys, unless it is absent or null everywhere.
    pub fn find(&self, path: &[&str]) -> Option<LayerValue<'_>> {
        self.0.iter().find_map(|layer| {
            let mut entries = &layer.entries[..];
            let mut found = None;
            for key in path {
                let node = crate::find(entries, key)?;
                entries = node.entries();
                found = Some(node);
            }
            found.map(|node| LayerValue { node, folder: &layer.folder })
        })
    }

    /// Returns a copy of the value at a path of keys.
    pub fn value(&self, path: &[&str]) -> Option<Node> {
        self.find(path).map(|found| found.node.clone())
    }

    /// Returns the entries of the mapping `key` of all layers, each name once.
    pub fn merged(&self, key: &str) -> Vec<(&Entry, &Path)> {
        let mut merged: Vec<(&Entry, &Path)> = Vec::new();
        for (entry, folder) in self.0.iter().flat_map(|layer| layer.entries_of(key)) {
            if !merged.iter().any(|(earlier, _)| earlier.key == entry.key) {
                merged.push((entry, folder));
            }
        }
        merged
    }

    /// Returns the location of the first of these keys that is present, else of the first key of all.
    pub fn location_of(&self, keys: &[&str]) -> Location {
        let all = || self.0.iter().flat_map(|layer| &layer.entries);
        let named = keys.iter().find_map(|key| all().find(|entry| entry.key == *key));
        named.or_else(|| all().next()).map_or(Location::File, |entry| entry.location)
    }
}
