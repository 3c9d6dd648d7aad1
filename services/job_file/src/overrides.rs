//! `--set key=value`: values of the command line replace those of the file.

use crate::keys::JOB;
use crate::{Entry, Fault, Location, Node, Problems, Value, find, yaml};

/// Replaces values. A dot leads into a mapping or an input: `inputs.images.path`, `environment_variables.KIND`.
pub fn apply(entries: &mut Vec<Entry>, overrides: &[(String, String)], problems: &Problems) {
    for (key, text) in overrides {
        let path = key.replace('[', ".").replace(']', "");
        if let Err(fault) = read_value(text).and_then(|node| set(entries, &path, node)) {
            problems.add(Location::Override, key, fault);
        }
    }
}

/// Reads the value of one of them.
pub fn read_value(text: &str) -> Result<Node, Fault> {
    match text.trim() {
        "" => Err(Fault::missing("a value behind the `=`; null for the default")),
        text => yaml::read_value(text),
    }
}

fn set(entries: &mut Vec<Entry>, path: &str, node: Node) -> Result<(), Fault> {
    let (key, rest) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
    let Some(row) = JOB.find(key) else { return Err(JOB.unknown(key, |names| names)) };
    let Some(rest) = rest else {
        replace(entries, key, node);
        return Ok(());
    };
    if !row.has_parts {
        return Err(
            Fault::of(format!("{path:?}"), key).saying(format!("{key} has no keys below it"))
        );
    }
    let found = value_of(entries, key);
    if key == "inputs" {
        return set_in_input(&mut found.value, rest, node);
    }
    if let Value::Mapping(entries) = &mut found.value {
        match rest.strip_prefix("labels.").filter(|_| key == "requires") {
            Some(label) => set_label(entries, label, node),
            None => replace(entries, rest, node),
        }
        return Ok(());
    }
    Err(Fault::new(found, format!("a mapping in the job file, or --set {key}=…")))
}

/// Sets one of the labels that a job requires.
fn set_label(requires: &mut Vec<Entry>, label: &str, node: Node) {
    let labels = &mut value_of(requires, "labels").value;
    if !matches!(labels, Value::Mapping(_)) {
        *labels = Value::Mapping(Vec::new());
    }
    if let Value::Mapping(labels) = labels {
        replace(labels, label, node);
    }
}

/// Sets a key of an input. `path`: the name or position of the input, a dot, and the key.
fn set_in_input(inputs: &mut Value, path: &str, node: Node) -> Result<(), Fault> {
    let named: Vec<(String, &mut Node)> = match inputs {
        Value::Mapping(entries) => {
            entries.iter_mut().map(|entry| (entry.key.clone(), &mut entry.node)).collect()
        }
        Value::List(items) => {
            items.iter_mut().enumerate().map(|(index, item)| (name_of(item, index), item)).collect()
        }
        Value::Scalar(_) => Vec::new(),
    };
    let allowed = named.iter().map(|(name, _)| format!("inputs.{name}.path, ")).collect::<String>();
    let below = |name: &str| {
        path.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')).map(str::to_owned)
    };
    let found = named.into_iter().enumerate().find_map(|(index, (name, node))| {
        let key = below(&name).or_else(|| below(&index.to_string()))?;
        Some((key, node))
    });
    match found {
        Some((key, Node { value: Value::Mapping(entries), .. })) => {
            replace(entries, &key, node);
            Ok(())
        }
        _ => Err(Fault::of(
            format!("{:?}", format!("inputs.{path}")),
            format!("a key of an input: {allowed}…"),
        )),
    }
}

/// Returns the name of an input in a list.
pub fn name_of(input: &Node, index: usize) -> String {
    let name = find(input.entries(), "name").and_then(Node::scalar);
    name.map_or_else(|| format!("input_{index}"), |name| name.text.clone())
}

/// Returns the value of a key. An absent one is added as an empty mapping.
pub fn value_of<'e>(entries: &'e mut Vec<Entry>, key: &str) -> &'e mut Node {
    if entries.iter().all(|entry| entry.key != key) {
        let value = Value::Mapping(Vec::new());
        replace(entries, key, Node { location: Location::Override, value });
    }
    let found = entries.iter_mut().find(|entry| entry.key == key);
    &mut found.expect("the key exists, or was just added").node
}

/// Sets the value of a key.
pub fn replace(entries: &mut Vec<Entry>, key: &str, node: Node) {
    let entry = Entry { key: key.to_owned(), location: Location::Override, node };
    match entries.iter_mut().find(|entry| entry.key == key) {
        Some(found) => *found = entry,
        None => entries.push(entry),
    }
}
