//! Reads one mapping of a document by the table of its keys.
//!
//! A key without a value (`description:`) counts as absent, like `None` in Azure ML.

use std::collections::BTreeMap;

use crate::keys::{Keys, Read, Setter};
use crate::values::mapping;
use crate::{Entry, Fault, Location, Node, Problems, find};

/// A mapping of the document.
pub struct Section<'a> {
    /// Its path with a trailing dot, `inputs[0].`; empty at the top.
    prefix: String,
    /// Its location, which stands in for absent keys.
    pub location: Location,
    entries: &'a [Entry],
    keys: Keys,
    /// Collects its mistakes and warnings.
    pub problems: &'a Problems,
}

impl<'a> Section<'a> {
    pub fn top(keys: Keys, entries: &'a [Entry], problems: &'a Problems) -> Self {
        let section =
            Self { prefix: String::new(), location: Location::File, entries, keys, problems };
        section.reject_unknown();
        section
    }

    /// Returns the section of a mapping inside the document. Records its unknown keys as problems.
    pub fn nested(keys: Keys, path: &str, node: &'a Node, problems: &'a Problems) -> Self {
        let (prefix, entries) = (format!("{path}."), node.entries());
        let section = Self { prefix, location: node.location, entries, keys, problems };
        section.reject_unknown();
        section
    }

    /// Returns the mapping that is the value of a key. `None`: the key is absent, or has another value, which is
    /// recorded.
    pub fn below(&self, key: &str, keys: Keys, allowed: &str) -> Option<Self> {
        let node = self.get(key)?;
        self.accept(key, node.location, mapping(node, allowed))?;
        Some(Self::nested(keys, &self.path(key), node, self.problems))
    }

    /// Records a mistake in the value of a key.
    pub fn refuse(&self, key: &str, location: Location, fault: Fault) {
        self.problems.add(location, &self.path(key), fault);
    }

    /// Returns the value of a key, or records the mistake in it.
    pub fn accept<T>(&self, key: &str, location: Location, read: Result<T, Fault>) -> Option<T> {
        self.problems.accept(location, &self.path(key), read)
    }

    /// Records that a key works, but probably not as intended.
    pub fn warn(&self, key: &str, message: impl Into<String>) {
        self.problems.warn(self.location_of(key), &self.path(key), message);
    }

    pub fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Returns the value of a key, unless it is absent.
    pub fn get(&self, key: &str) -> Option<&'a Node> {
        debug_assert!(self.keys.find(key).is_some(), "{key} has no row in the table of keys");
        find(self.entries, key)
    }

    /// Returns the location of a key, also of one without a value; of an absent key, that of the section.
    pub fn location_of(&self, key: &str) -> Location {
        self.entries
            .iter()
            .find(|entry| entry.key == key)
            .map_or(self.location, |entry| entry.location)
    }

    /// Returns the keys that have a value, each with the location of the value.
    pub fn locations(&self) -> Vec<(String, Location)> {
        let given = self.entries.iter().filter(|entry| !entry.node.is_null());
        given.map(|entry| (entry.key.clone(), entry.node.location)).collect()
    }

    /// Parses the value of a key. For an absent key, parses its default or, if it is required, null. Returns `None` if
    /// there is no value, or an invalid one, which is recorded.
    pub fn read<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&Node) -> Result<T, Fault>,
    ) -> Option<(Location, T)> {
        let absent = || self.keys.find(key).and_then(|row| row.absent(self.location_of(key)));
        let node = self.get(key).cloned().or_else(absent)?;
        Some((node.location, self.accept(key, node.location, parse(&node))?))
    }

    /// Works like [`Section::read`], without the location.
    pub fn value<T>(&self, key: &str, parse: impl FnOnce(&Node) -> Result<T, Fault>) -> Option<T> {
        self.read(key, parse).map(|(_, value)| value)
    }

    /// Parses every key whose row has a setter for `target`, or its default.
    pub fn fill<T>(&self, target: &mut T, setter: fn(Read) -> Option<Setter<T>>) {
        for key in self.keys.rows() {
            if let Some(set) = setter(key.read) {
                self.read(key.name, |node| set(target, node));
            }
        }
    }

    /// Reads a mapping of names to values. Records each problem with a name or value, and returns the others.
    pub fn named<T>(
        &self,
        key: &str,
        allowed: &str,
        parse: impl Fn(&Entry) -> Result<T, Fault>,
    ) -> BTreeMap<String, T> {
        let entries =
            self.get(key).and_then(|node| self.accept(key, node.location, mapping(node, allowed)));
        let named = |entry: &Entry| {
            let value =
                self.accept(&format!("{key}.{}", entry.key), entry.location, parse(entry))?;
            Some((entry.key.clone(), value))
        };
        entries.unwrap_or_default().iter().filter_map(named).collect()
    }

    /// Records every key without a row. Keys that begin with `x-` belong to the user, as in Compose files.
    fn reject_unknown(&self) {
        let is_unknown =
            |entry: &&Entry| self.keys.find(&entry.key).is_none() && !entry.key.starts_with("x-");
        for entry in self.entries.iter().filter(is_unknown) {
            let fault = self.keys.unknown(&entry.key, |names| self.problems.list_once(names));
            self.refuse(&entry.key, entry.location, fault);
        }
    }
}
