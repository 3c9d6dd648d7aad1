//! `arguments`: every value as written, booleans as Python writes them, `${{…}}` replaced by absolute paths.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{ItemPath, JobSpec};

use crate::overrides::name_of;
use crate::values::list;
use crate::{Fault, Location, Node, ScalarKind, Section, Value, keys};

/// One element of `arguments`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub location: Location,
    /// Its name for messages: `arguments[0]`.
    pub field: String,
    /// The text that the script gets.
    pub text: String,
}

pub fn read_arguments(top: &Section<'_>, placeholders: &Placeholders) -> Vec<Token> {
    let allowed = r#"a list of texts and numbers that begins with an option: ["--model", "small"]"#;
    let Some(node) = top.get("arguments") else { return Vec::new() };
    let items = top.accept("arguments", node.location, list(node, allowed)).unwrap_or_default();
    let token = |(position, item): (usize, &Node)| {
        let (field, location) = (format!("arguments[{position}]"), item.location);
        let text = top.accept(&field, location, one_argument(item, position, placeholders))?;
        Some(Token { location, field, text })
    };
    items.iter().enumerate().filter_map(token).collect()
}

fn one_argument(
    item: &Node,
    position: usize,
    placeholders: &Placeholders,
) -> Result<String, Fault> {
    let written = match item.scalar().map(|scalar| (scalar.kind, scalar.text.as_str())) {
        Some((ScalarKind::Boolean(true), _)) => "True",
        Some((ScalarKind::Boolean(false), _)) => "False",
        Some((kind, text)) if kind != ScalarKind::Null => text,
        _ => return Err(Fault::new(item, "a text or a number; \"\" for an empty text")),
    };
    if position == 0 && !written.starts_with('-') {
        let message =
            format!("Found invalid argument '{written}', you can only use keyword argument.");
        return Err(Fault::new(item, "an option as the first element: \"--name\"").saying(message));
    }
    let name = written.split_once('=').map_or(written, |(name, _)| name);
    if let Some(key) = name.strip_prefix("--").and_then(keys::reserved) {
        let message = format!(
            "'{name}' is a reserved argument in ParallelRunStep, please use another argument name instead."
        );
        let allowed = format!("any other name; the key {} of the job file sets this one", key.name);
        return Err(Fault::new(item, allowed).saying(message));
    }
    placeholders.replace(written)
}

/// The reason why a name has no single path.
#[derive(Debug, thiserror::Error)]
enum NoPath {
    #[error("{0} is not valid UTF-8")]
    NotUtf8(String),
    #[error("input {name:?} has {count} paths, not one")]
    Several { name: String, count: usize },
}

/// The paths that replace `${{name}}`.
pub struct Placeholders {
    /// The path of each name, or the reason why it has no single path.
    paths: BTreeMap<String, Result<String, NoPath>>,
    /// Every name in the file. If the value of a name has a fault, only that fault is reported.
    declared: BTreeSet<String>,
}

impl Placeholders {
    /// Collects every named path of a job.
    pub fn new(top: &Section<'_>, job: &JobSpec) -> Self {
        let text = |path: &ItemPath| {
            String::from_utf8(path.as_bytes().to_vec())
                .map_err(|_| NoPath::NotUtf8(path.display().to_string()))
        };
        let of_input = |paths: &[ItemPath], name: &str| match paths {
            [path] => text(path),
            several => Err(NoPath::Several { name: name.to_owned(), count: several.len() }),
        };
        let inputs = job.inputs.iter();
        let mut paths: BTreeMap<_, _> = inputs
            .map(|input| (format!("inputs.{}", input.name), of_input(&input.paths, &input.name)))
            .collect();
        paths.extend(
            job.side_inputs.iter().map(|(name, path)| (format!("side_inputs.{name}"), text(path))),
        );
        paths
            .extend(job.outputs.iter().map(|(name, path)| (format!("outputs.{name}"), text(path))));
        if !job.output.folder.as_bytes().is_empty() {
            paths.insert("output".to_owned(), text(&job.output.folder));
        }
        Self { paths, declared: declared(top) }
    }

    /// Replaces every `${{name}}` in a text.
    pub fn replace(&self, written: &str) -> Result<String, Fault> {
        let mut replaced = String::new();
        let mut rest = written;
        while let Some(start) = rest.find("${{") {
            replaced.push_str(&rest[..start]);
            let inner = &rest[start + 3..];
            let Some(end) = inner.find("}}") else {
                return Err(self.fault(format!("{:?} without `}}}}`", &rest[start..])));
            };
            match self.paths.get(inner[..end].trim()) {
                Some(Ok(path)) => replaced.push_str(path),
                None if self.declared.contains(inner[..end].trim()) => {}
                Some(Err(reason)) => {
                    return Err(self
                        .fault(format!("{:?}", &rest[start..start + end + 5]))
                        .saying(reason.to_string()));
                }
                None => return Err(self.fault(format!("{:?}", &rest[start..start + end + 5]))),
            }
            rest = &inner[end + 2..];
        }
        replaced.push_str(rest);
        Ok(replaced)
    }

    fn fault(&self, found: String) -> Fault {
        let names: Vec<String> = self.paths.keys().map(|name| format!("${{{{{name}}}}}")).collect();
        let none = "no placeholder, since the job file names no path".to_owned();
        Fault::of(found, if names.is_empty() { none } else { names.join(", ") })
    }
}

fn declared(top: &Section<'_>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for key in ["inputs", "side_inputs", "outputs"] {
        match top.get(key).map(|node| &node.value) {
            Some(Value::Mapping(entries)) => {
                names.extend(entries.iter().map(|entry| format!("{key}.{}", entry.key)))
            }
            Some(Value::List(items)) => {
                names.extend(
                    items
                        .iter()
                        .enumerate()
                        .map(|(index, item)| format!("{key}.{}", name_of(item, index))),
                );
            }
            _ => {}
        }
    }
    names.extend(top.get("output").map(|_| "output".to_owned()));
    names
}
