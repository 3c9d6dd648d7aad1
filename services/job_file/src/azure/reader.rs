//! The common part of the readers of all documents.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use super::document_overrides::DocumentOverrides;
use super::expression;
use super::known::{self, KnownKeys, WithoutEffect};
use super::layers::{Layer, LayerValue, Layers};
use super::register::Asset;
use super::versioned::NameTable;
use crate::paths::is_url;
use crate::problem::{did_you_mean, nearest};
use crate::{Context, Entry, Fault, Location, Node, Paths, Problems, Value, other};

/// The state that all steps of a document share.
pub struct Reader<'a> {
    pub context: &'a Context,
    pub problems: &'a Problems,
    pub overrides: &'a DocumentOverrides,
    /// Folder of the document.
    pub folder: PathBuf,
    /// The folder of outputs for which the document names no other.
    pub root: PathBuf,
    /// The first part of the names of its steps' jobs.
    pub document: String,
    pub without: RefCell<WithoutEffect>,
    /// Assets of the steps so far, with the step that makes each.
    pub announced: RefCell<Vec<(String, Asset)>>,
    /// Whether it reads steps that do not run, of which only the outputs matter.
    pub is_quiet: bool,
}

impl Reader<'_> {
    /// Calls a function with a separate reader, and returns the mistakes that this reader has found.
    pub fn aside<T>(&self, is_quiet: bool, read: impl FnOnce(&Reader<'_>) -> T) -> (T, Problems) {
        let found = self.problems.aside();
        let reader = Reader {
            context: self.context,
            problems: &found,
            overrides: self.overrides,
            folder: self.folder.clone(),
            root: self.root.clone(),
            document: self.document.clone(),
            without: RefCell::default(),
            announced: RefCell::default(),
            is_quiet,
        };
        let value = read(&reader);
        // Locations in the value may refer to these files.
        self.problems.set_others(found.others());
        (value, found)
    }

    pub fn check_keys(&self, entries: &[Entry], prefix: &str, known: &[KnownKeys]) {
        known::check(entries, prefix, known, &mut self.without.borrow_mut(), self.problems);
    }

    /// Checks the keys of the mapping `key` in every layer.
    pub fn check_nested(&self, layers: &Layers, key: &str, prefix: &str, known: KnownKeys) {
        for layer in &layers.0 {
            if let Some(node) = crate::find(&layer.entries, key) {
                match &node.value {
                    Value::Mapping(entries) => {
                        self.check_keys(entries, &format!("{prefix}{key}."), &[known])
                    }
                    _ => self.problems.add(
                        node.location,
                        &format!("{prefix}{key}"),
                        Fault::new(node, "a mapping"),
                    ),
                }
            }
        }
    }

    /// Checks the keys of the mapping `key`, in which Azure ML tolerates unknown ones. `needed`: without these, rows or
    /// arguments are lost, so a key that resembles one of them is a mistake.
    pub fn warn_of_unknown(
        &self,
        entries: &[Entry],
        key: &str,
        prefix: &str,
        known: KnownKeys,
        needed: &[&str],
    ) {
        let names: Vec<&str> = known::keys(&[known]).map(|(name, _)| name).collect();
        let Some(node) = crate::find(entries, key) else { return };
        let Value::Mapping(inner) = &node.value else {
            return self.problems.add(
                node.location,
                &format!("{prefix}{key}"),
                Fault::new(node, "a mapping"),
            );
        };
        let is_meant =
            |key: &str| names.contains(&key) || nearest(key, needed.iter().copied()).is_some();
        let (read, unknown): (Vec<Entry>, Vec<Entry>) =
            inner.iter().cloned().partition(|entry| is_meant(&entry.key));
        self.check_keys(&read, &format!("{prefix}{key}."), &[known]);
        for entry in unknown.into_iter().filter(|entry| !entry.key.starts_with("x-")) {
            let message = format!(
                "unknown key, without effect{}",
                did_you_mean(&entry.key, names.iter().copied())
            );
            self.problems.warn(entry.location, &format!("{prefix}{key}.{}", entry.key), message);
        }
    }

    /// Returns a path as the job file writes it: relative to the document where it lies below its folder.
    pub fn written(&self, path: &str) -> String {
        if is_url(path) {
            return path.to_owned();
        }
        match Path::new(path).strip_prefix(&self.folder) {
            Ok(relative) if relative.as_os_str().is_empty() => ".".to_owned(),
            Ok(relative) => relative.display().to_string(),
            Err(_) => path.to_owned(),
        }
    }

    /// Returns the absolute path or the URL of an address.
    pub fn locate(&self, node: &Node, folder: &Path, table: NameTable) -> Result<String, Fault> {
        self.context.azure.locate(node, folder, self.context.home_directory.as_ref(), table)
    }

    /// Returns the local path of a value, as the job file writes it.
    pub fn local(&self, found: LayerValue<'_>, field: &str) -> Option<Node> {
        let path = self.locate(found.node, found.folder, NameTable::Data).and_then(|path| {
            match is_url(&path) {
                true => Err(Fault::new(found.node, "a local folder")),
                false => Ok(path),
            }
        });
        let path = self.problems.accept(found.node.location, field, path)?;
        Some(Node::text(found.node.location, &self.written(&path)))
    }

    /// Returns the folder of code, as the job file writes it. Code may also be one file: its folder is that of the job.
    pub fn code(&self, found: LayerValue<'_>, field: &str) -> Option<Node> {
        let node = self.local(found, field)?;
        let path = self.folder.join(node.written());
        match path.parent().filter(|_| path.is_file()) {
            Some(folder) => {
                Some(Node::text(node.location, &self.written(&folder.display().to_string())))
            }
            None => Some(node),
        }
    }

    /// Returns the layers of a step: its own, and that of the component that it refers to.
    pub fn layers(&self, entries: Vec<Entry>, folder: &Path, field: &str) -> Layers {
        let component = crate::find(&entries, "component").cloned();
        let mut layers = vec![Layer { entries, folder: folder.to_owned() }];
        match component {
            None => {}
            Some(Node { value: Value::Mapping(entries), .. }) => {
                layers.push(Layer { entries, folder: folder.to_owned() });
            }
            Some(node) => {
                layers.extend(self.other_document(&node, folder, &format!("{field}component")))
            }
        }
        layers.iter_mut().for_each(Layer::flatten_groups);
        if let [step, component] = &mut layers[..] {
            step.divide_groups(component);
        }
        Layers(layers)
    }

    /// Reads another document that a value refers to.
    pub fn other_document(&self, node: &Node, folder: &Path, field: &str) -> Option<Layer> {
        let located = match node.written().trim().is_empty() {
            true => Err(Fault::new(
                node,
                "a mapping, the path of a file (./component.yml), or azureml:NAME:VERSION",
            )),
            false => self.component(node, folder),
        };
        let path = self.problems.accept(node.location, field, located)?;
        let entries = other::read(&path, node.location, field, "type: parallel", self.problems)?;
        Some(Layer { entries, folder: path.parent().unwrap_or(Path::new("/")).to_owned() })
    }

    /// Returns the value that `--input NAME=VALUE` gives an input. `alone`: it also takes `--input VALUE`; `names`: all
    /// inputs.
    pub fn overridden(&self, name: &str, alone: bool, names: &[&str]) -> Option<Node> {
        let split = |argument: &'_ String| {
            let (key, value) = argument.split_once('=')?;
            let key = names.iter().find(|name| **name == key.trim())?;
            Some(((*key).to_owned(), value.trim().to_owned()))
        };
        let value = self.overrides.inputs.iter().rev().find_map(|argument| match split(argument) {
            Some((key, value)) => (key == name).then_some(value),
            None => alone.then(|| argument.trim().to_owned()),
        });
        value.map(|value| Node::text(Location::Input, &value))
    }

    /// Refuses values of `--input` that no input takes. `takes_any`: one input takes values without a name.
    pub fn check_overrides(&self, names: &[&str], takes_any: bool) {
        for argument in &self.overrides.inputs {
            let name = argument.split_once('=').map(|(name, _)| name.trim());
            if takes_any || name.is_some_and(|name| names.contains(&name)) {
                continue;
            }
            let allowed = match names {
                [] => "no input: the document has none".to_owned(),
                names => {
                    names.iter().map(|name| format!("{name}=…")).collect::<Vec<_>>().join(", ")
                }
            };
            let hint = name.and_then(|name| crate::nearest(name, names.iter().copied()));
            let message = hint.map_or(String::new(), |hint| format!("did you mean {hint:?}?"));
            self.problems.add(
                Location::File,
                "--input",
                Fault::of(format!("{argument:?}"), allowed).saying(message),
            );
        }
    }

    /// Returns whether `--set` replaces a key of a step.
    pub fn is_replaced(&self, step: &str, key: &str) -> bool {
        self.overrides.overrides.iter().any(|(name, _)| {
            let name =
                name.strip_prefix(step).and_then(|rest| rest.strip_prefix('.')).unwrap_or(name);
            name == key || name.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
        })
    }

    pub fn paths(&self, folder: &Path) -> Paths {
        Paths::new(folder.to_owned(), self.context.home_directory.clone())
    }
}

/// The entries of a job file under construction.
#[derive(Debug, Default)]
pub struct JobFile(pub Vec<Entry>);

impl JobFile {
    /// Adds a key, unless its value is absent.
    pub fn put(&mut self, key: &str, node: Option<Node>) {
        if let Some(node) = node {
            self.0.push(Entry::new(key, node));
        }
    }

    pub fn put_text(&mut self, key: &str, location: Location, text: &str) {
        self.put(key, Some(Node::text(location, text)));
    }

    pub fn put_plain(&mut self, key: &str, location: Location, text: &str) {
        self.put(key, Some(Node::plain(location, text)));
    }

    /// Adds a mapping, unless it is empty.
    pub fn put_mapping(&mut self, key: &str, location: Location, entries: Vec<Entry>) {
        if !entries.is_empty() {
            self.put(key, Some(Node { location, value: Value::Mapping(entries) }));
        }
    }

    /// Adds a list of texts, unless it is empty.
    pub fn put_texts(&mut self, key: &str, location: Location, texts: &[String]) {
        if !texts.is_empty() {
            let items = texts.iter().map(|text| Node::text(location, text)).collect();
            self.put(key, Some(Node { location, value: Value::List(items) }));
        }
    }
}

const NAME_LENGTH_MAX: usize = 32;

/// Returns the name of a step's job, from the names of document and step. If it must be cut, a digest of the whole
/// distinguishes jobs whose names differ only in the part that is lost.
pub fn step_name(document: &str, step: &str) -> String {
    /// A shorter part of a document's name means nothing to people.
    const DOCUMENT_LENGTH_MIN: usize = 12;
    let (document, step) = (job_name(document), words(step));
    let whole = format!("{document}-{step}");
    if whole.len() <= NAME_LENGTH_MAX {
        return job_name(&whole);
    }
    let digest = &blake3::hash(whole.as_bytes()).to_hex()[..4];
    // With a `-` on both sides of the step.
    let left = NAME_LENGTH_MAX - digest.len() - 2;
    let document = cut(&document, left.saturating_sub(step.len()).max(DOCUMENT_LENGTH_MIN));
    format!("{document}-{}-{digest}", cut(&step, left - document.len()))
}

/// Returns the beginning of a name.
fn cut(name: &str, length_max: usize) -> &str {
    name[..name.len().min(length_max)].trim_end_matches('-')
}

/// Returns the letters and digits of a text in lower case, with `-` between its words.
fn words(text: &str) -> String {
    let mut name = String::new();
    for character in text.chars().map(|character| character.to_ascii_lowercase()) {
        match character.is_ascii_lowercase() || character.is_ascii_digit() {
            true => name.push(character),
            false if !name.is_empty() && !name.ends_with('-') => name.push('-'),
            false => {}
        }
    }
    name.truncate(name.trim_end_matches('-').len());
    name
}

/// Turns any text into the name of a job: 3 to 32 lower-case letters, digits and `-`.
pub fn job_name(text: &str) -> String {
    let mut name = words(text);
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) || name.len() < 3 {
        name = format!("job-{name}");
    }
    name.truncate(NAME_LENGTH_MAX);
    let name = name.trim_end_matches('-');
    if name.len() < 3 { "job".to_owned() } else { name.to_owned() }
}

/// Returns an integer, which may be written as text.
pub fn number(node: &Node) -> Result<i64, Fault> {
    node.written().trim().parse().map_err(|_| Fault::new(node, "an integer"))
}

/// Returns the name in `${{inputs.NAME}}` or `${{outputs.NAME}}`. `group`: the word before the dot.
pub fn reference(node: &Node, group: &str) -> Result<String, Fault> {
    let name = expression::only_name(node.written());
    let name = name.and_then(|name| Some(name.strip_prefix(group)?.strip_prefix('.')?.to_owned()));
    name.ok_or_else(|| match expression::parts(node.written()) {
        Err(fault) => fault,
        Ok(_) => Fault::new(node, format!("one reference: ${{{{{group}.NAME}}}}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_of_jobs_differ_where_document_or_step_differ() {
        let step = "batch_inferencing_with_mini_batch_size";
        let steps = [step.to_owned(), format!("{step}_1"), format!("{step}_2"), "score".repeat(9)];
        let documents = [
            "2a_iris",
            "3a_mnist",
            "alpha",
            "beta",
            "a document of very many words",
            "a document of very many w",
        ];
        let mut names: Vec<String> = documents
            .iter()
            .flat_map(|document| steps.iter().map(|step| step_name(document, step)))
            .collect();
        assert!(
            names
                .iter()
                .all(|name| (3..=NAME_LENGTH_MAX).contains(&name.len()) && !name.contains("--")),
            "{names:?}"
        );
        assert_eq!(names[0][..27], *"job-2a-iris-batch-inferenci");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), documents.len() * steps.len());
    }
}
