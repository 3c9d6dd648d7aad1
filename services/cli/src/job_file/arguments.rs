//! `arguments`: every value as it is written, truth values as Python writes them, `${{…}}` replaced by absolute paths.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{Input, ItemPath};

use super::problem::{Fault, Place, Problems};
use super::section::{Section, list, mapping};
use super::yaml::{Node, ScalarKind, Value};

/// Options that the engine sets from keys of the job file.
pub const RESERVED: &[&str] = &[
    "mini_batch_size",
    "error_threshold",
    "allowed_failed_count",
    "allowed_failed_percent",
    "output",
    "output_action",
    "logging_level",
    "process_count_per_node",
    "run_invocation_timeout",
    "run_max_try",
    "append_row_file_name",
    "partition_keys",
];

/// One element of `arguments`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Where it stands.
    pub place: Place,
    /// Its name for messages: `arguments[0]`.
    pub field: String,
    /// What the script gets.
    pub text: String,
}

/// Reads `arguments`.
pub fn read_arguments(top: &Section<'_>, placeholders: &Placeholders, problems: &mut Problems) -> Vec<Token> {
    let allowed = r#"a list of texts and numbers that begins with an option: ["--model", "small"]"#;
    let Some(node) = top.get("arguments") else { return Vec::new() };
    let items = match list(node, allowed) {
        Ok(items) => items,
        Err(fault) => {
            problems.add(node.place, "arguments", fault);
            return Vec::new();
        }
    };
    let mut tokens = Vec::new();
    for (position, item) in items.iter().enumerate() {
        let field = format!("arguments[{position}]");
        match one_argument(item, position, placeholders) {
            Ok(text) => tokens.push(Token { place: item.place, field, text }),
            Err(fault) => problems.add(item.place, &field, fault),
        }
    }
    tokens
}

fn one_argument(item: &Node, position: usize, placeholders: &Placeholders) -> Result<String, Fault> {
    let written = match item.scalar().map(|scalar| (scalar.kind, scalar.text.as_str())) {
        Some((ScalarKind::Boolean(true), _)) => "True",
        Some((ScalarKind::Boolean(false), _)) => "False",
        Some((kind, text)) if kind != ScalarKind::Null => text,
        _ => return Err(Fault::new(item, "a text or a number; \"\" for an empty text")),
    };
    if position == 0 && !written.starts_with('-') {
        let message = format!("Found invalid argument '{written}', you can only use keyword argument.");
        return Err(Fault::new(item, "an option as the first element: \"--name\"").saying(message));
    }
    let name = written.split_once('=').map_or(written, |(name, _)| name);
    if name.strip_prefix("--").is_some_and(|name| RESERVED.contains(&name)) {
        let message =
            format!("'{name}' is a reserved argument in ParallelRunStep, please use another argument name instead.");
        let allowed = format!("any other name; the key {} of the job file sets this one", &name[2..]);
        return Err(Fault::new(item, allowed).saying(message));
    }
    placeholders.replace(written)
}

/// What `${{name}}` stands for.
pub struct Placeholders {
    /// Why a name has no single path, where it has none.
    paths: BTreeMap<String, Result<String, String>>,
    /// Every name that the file gives, also where its value has a fault, which is then the only one reported.
    declared: BTreeSet<String>,
}

impl Placeholders {
    /// Everything that a job file names and that has a path.
    pub fn new(
        top: &Section<'_>,
        inputs: &[Input],
        side_inputs: &BTreeMap<String, ItemPath>,
        output: &ItemPath,
    ) -> Self {
        let text = |path: &ItemPath| {
            String::from_utf8(path.as_bytes().to_vec()).map_err(|_| format!("{} is not valid UTF-8", path.display()))
        };
        let mut paths = BTreeMap::new();
        for input in inputs {
            let path = match input.paths.as_slice() {
                [path] => text(path),
                several => Err(format!("input {:?} has {} paths, not one", input.name, several.len())),
            };
            paths.insert(format!("inputs.{}", input.name), path);
        }
        for (name, path) in side_inputs {
            paths.insert(format!("side_inputs.{name}"), text(path));
        }
        if !output.as_bytes().is_empty() {
            paths.insert("output".to_owned(), text(output));
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
                    return Err(self.fault(format!("{:?}", &rest[start..start + end + 5])).saying(reason));
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
        Fault::of(
            found,
            if names.is_empty() { "no placeholder, nothing is named".to_owned() } else { names.join(", ") },
        )
    }
}

fn declared(top: &Section<'_>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for key in ["inputs", "side_inputs"] {
        match top.get(key).map(|node| &node.value) {
            Some(Value::Mapping(entries)) => names.extend(entries.iter().map(|entry| format!("{key}.{}", entry.key))),
            Some(Value::List(items)) => names.extend(items.iter().enumerate().map(|(position, item)| {
                let name =
                    mapping(item, "").ok().and_then(|entries| Section::nested("", item.place, entries).get("name"));
                let name = name.and_then(Node::scalar).map(|scalar| scalar.text.clone());
                format!("{key}.{}", name.unwrap_or_else(|| format!("input_{position}")))
            })),
            _ => {}
        }
    }
    if top.get("output").is_some() {
        names.insert("output".to_owned());
    }
    names
}
