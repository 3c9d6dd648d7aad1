//! The Python of a step: a conda file, a name that `gristmill.toml` knows, or the default interpreter.

use std::fs::{File, FileTimes};
use std::path::Path;
use std::time::SystemTime;

use super::known::{CONTAINER, Effect, KnownKeys, PEOPLE, SERVICE};
use super::layers::{Layer, LayerValue};
use super::reader::Reader;
use super::versioned::NameTable;
use crate::{Entry, Fault, Node, Value, find, written};

const KEYS: KnownKeys = &[
    (Effect::Read, "$schema, image, build, conda_file"),
    (PEOPLE, "name, version, description, tags, properties, datastore"),
    (CONTAINER, "os_type"),
    (SERVICE, "inference_config"),
];
const REPLACE: &str = "--set environment=PATH names an interpreter or a requirements file";

impl Reader<'_> {
    /// Returns the value of `environment` in the job file of a step. `None`: the default interpreter.
    pub fn environment(&self, step: &str, found: Option<LayerValue<'_>>, field: &str) -> Option<Node> {
        if self.is_replaced(step, "environment") {
            return None;
        }
        let found = found?;
        let node = found.node;
        match &node.value {
            Value::Mapping(entries) => {
                let layer = Layer { entries: entries.clone(), folder: found.folder.to_owned() };
                self.inline(&layer, node, field)
            }
            Value::Scalar(_) => {
                let text = node.written().trim();
                let path = text.strip_prefix("file:").unwrap_or(text);
                if !text.starts_with("azureml:") && (path.ends_with(".yml") || path.ends_with(".yaml")) {
                    let layer = self.other_document(node, found.folder, field)?;
                    // The file may be a conda file itself.
                    if find(&layer.entries, "dependencies").is_some() {
                        return self.local(found, field);
                    }
                    return self.inline(&layer, node, field);
                }
                let path = self.locate(node, found.folder, NameTable::Environments);
                let path = path.map_err(|fault| fault.adding(&format!("; or {REPLACE}")));
                let path = self.problems.accept(node.location, field, path)?;
                Some(Node::text(node.location, &self.written(&path)))
            }
            Value::List(_) => {
                self.problems.add(node.location, field, Fault::new(node, "azureml:NAME:VERSION, or a mapping"));
                None
            }
        }
    }

    /// Writes a conda file that a document contains, and returns its path, which depends only on its content.
    fn conda_file(&self, entries: &[Entry]) -> std::io::Result<String> {
        let text = written::yaml(entries);
        let digest = blake3::hash(text.as_bytes()).to_hex();
        let path = self.context.files.join(format!("{}.yml", &digest[..16]));
        // A clean-up removes files that no job names and nothing has used for a while.
        let now = FileTimes::new().set_accessed(SystemTime::now());
        let touched = |path: &Path| File::options().append(true).open(path)?.set_times(now);
        if !std::fs::read_to_string(&path).is_ok_and(|there| there == text) || touched(&path).is_err() {
            std::fs::create_dir_all(&self.context.files)?;
            // Another process may be reading it.
            let new = self.context.files.join(format!("{}.{}", &digest[..16], std::process::id()));
            std::fs::write(&new, text)?;
            std::fs::rename(&new, &path)?;
        }
        Ok(path.display().to_string())
    }

    fn inline(&self, layer: &Layer, at: &Node, field: &str) -> Option<Node> {
        self.check_keys(&layer.entries, &format!("{field}."), &[KEYS]);
        let entry = |key: &str| layer.entries.iter().find(|entry| entry.key == key && !entry.node.is_null());
        if let Some(Entry { node, .. }) = entry("conda_file") {
            let field = format!("{field}.conda_file");
            return match &node.value {
                Value::Scalar(_) => self.local(LayerValue { node, folder: &layer.folder }, &field),
                Value::Mapping(entries) => {
                    let path = self.conda_file(entries).map_err(|error| {
                        let message = format!("its packages cannot be written to {}", self.context.files.display());
                        Fault::of(error.to_string(), "a writable folder").saying(message)
                    });
                    let path = self.problems.accept(node.location, &field, path)?;
                    Some(Node::text(node.location, &path))
                }
                Value::List(_) => {
                    self.problems.add(node.location, &field, Fault::new(node, "a conda file: its path, or a mapping"));
                    None
                }
            };
        }
        let (what, name) = match (entry("image"), entry("build")) {
            (Some(image), _) => ("image", image.node.written().to_owned()),
            (None, Some(_)) => ("build", "a Dockerfile".to_owned()),
            (None, None) => ("name", find(&layer.entries, "name").map_or("", Node::written).to_owned()),
        };
        let message = format!("{name} is not used; the script runs with the default interpreter; {REPLACE}");
        self.problems.warn(at.location, &format!("{field}.{what}"), message);
        None
    }
}
