//! The Python of a step: a conda file, a name that `gristmill.toml` knows, or the default interpreter.

use std::fs::{File, FileTimes};
use std::path::Path;
use std::time::SystemTime;

use super::known::{CONTAINER, Effect, KnownKeys, PEOPLE, SERVICE};
use super::layers::{Layer, LayerValue};
use super::reader::{JobFile, Reader};
use super::versioned::NameTable;
use crate::paths::is_url;
use crate::{Entry, Fault, Location, Node, Value, find, other, written};

const KEYS: KnownKeys = &[
    (Effect::Read, "$schema, image, build, conda_file"),
    (PEOPLE, "name, version, description, tags, properties, datastore"),
    (CONTAINER, "os_type"),
    (SERVICE, "inference_config"),
];
/// The files that MLflow writes beside `MLmodel`, the first of which counts.
const MODEL_FILES: [&str; 2] = ["requirements.txt", "conda.yaml"];
/// The file that MLflow writes for a model without any of these.
const PYTHON_ENV: &str = "python_env.yaml";
const REPLACE: &str = "--set environment=PATH names an interpreter or a requirements file";

impl Reader<'_> {
    /// Returns the value of `environment` in the job file of a step. `None`: the default interpreter.
    pub fn environment(
        &self,
        step: &str,
        found: Option<LayerValue<'_>>,
        field: &str,
    ) -> Option<Node> {
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
                if !text.starts_with("azureml:")
                    && (path.ends_with(".yml") || path.ends_with(".yaml"))
                {
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
                self.problems.add(
                    node.location,
                    field,
                    Fault::new(node, "azureml:NAME:VERSION, or a mapping"),
                );
                None
            }
        }
    }

    /// Adds the environment of an MLflow model without a script: that of the files beside `MLmodel`.
    pub fn put_model_environment(&self, step: &str, field: &str, at: Location, job: &mut JobFile) {
        if self.is_replaced(step, "environment") {
            return;
        }
        let Some(model) = self.model_of(job) else { return };
        let folder = Path::new(&model);
        let file = MODEL_FILES
            .iter()
            .map(|name| folder.join(name))
            .find(|path| !is_url(&model) && path.is_file());
        if let Some(file) = file {
            return job.put_text("environment", at, &self.written(&file.display().to_string()));
        }
        let listed = folder.join(PYTHON_ENV);
        if !is_url(&model) && listed.is_file() {
            let example = "dependencies: [\"pandas==2.2\"]";
            let Some(entries) = other::read(&listed, at, field, example, self.problems) else {
                return;
            };
            if let Some(path) = self.problems.accept(at, field, self.python_env(&entries, &listed))
            {
                job.put_text("environment", at, &path);
            }
            return;
        }
        let message = format!(
            "no environment is named, and none of {}, {PYTHON_ENV} lies beside MLmodel: the model runs with the \
             default interpreter; {REPLACE}",
            MODEL_FILES.join(", ")
        );
        self.problems.warn(at, field, message);
    }

    /// Writes the conda file that says what a `python_env.yaml` says, and returns its path.
    fn python_env(&self, entries: &[Entry], listed: &Path) -> Result<String, Fault> {
        let (at, folder) = (Location::File, listed.parent().unwrap_or(Path::new("/")));
        let fault = |cause: String| {
            let message = format!("{} makes no environment: {cause}; {REPLACE}", listed.display());
            Fault::of(
                format!("{:?}", listed.display().to_string()),
                "python and a list `dependencies`",
            )
            .saying(message)
        };
        let mut pip = Vec::new();
        for key in ["build_dependencies", "dependencies"] {
            match find(entries, key).map(|node| &node.value) {
                Some(Value::List(lines)) => pip.extend(lines.iter().map(|line| {
                    let line = line.written();
                    match line.strip_prefix("-r ") {
                        Some(file) => {
                            Node::text(at, &format!("-r {}", folder.join(file.trim()).display()))
                        }
                        None => Node::text(at, line),
                    }
                })),
                Some(_) => return Err(fault(format!("`{key}` is not a list"))),
                None => {}
            }
        }
        if pip.is_empty() {
            return Err(fault("it lists no packages".to_owned()));
        }
        let python = find(entries, "python")
            .map(|node| Node::text(at, &format!("python={}", node.written())));
        let list = |items: Vec<Node>| Node { location: at, value: Value::List(items) };
        let pip = Node { location: at, value: Value::Mapping(vec![Entry::new("pip", list(pip))]) };
        let dependencies = list(python.into_iter().chain([pip]).collect());
        self.conda_file(&[Entry::new("dependencies", dependencies)])
            .map_err(|error| fault(error.to_string()))
    }

    /// Writes a conda file that a document contains, and returns its path, which depends only on its content.
    fn conda_file(&self, entries: &[Entry]) -> std::io::Result<String> {
        let text = written::yaml(entries);
        let digest = blake3::hash(text.as_bytes()).to_hex();
        let path = self.context.files.join(format!("{}.yml", &digest[..16]));
        // `gristmill clean` removes files that no job names and that have been unused for a while.
        let now = FileTimes::new().set_accessed(SystemTime::now());
        let touched = |path: &Path| File::options().append(true).open(path)?.set_times(now);
        if !std::fs::read_to_string(&path).is_ok_and(|there| there == text)
            || touched(&path).is_err()
        {
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
        let entry = |key: &str| {
            layer.entries.iter().find(|entry| entry.key == key && !entry.node.is_null())
        };
        if let Some(Entry { node, .. }) = entry("conda_file") {
            let field = format!("{field}.conda_file");
            return match &node.value {
                Value::Scalar(_) => self.local(LayerValue { node, folder: &layer.folder }, &field),
                Value::Mapping(entries) => {
                    let path = self.conda_file(entries).map_err(|error| {
                        let message = format!(
                            "its packages cannot be written to {}",
                            self.context.files.display()
                        );
                        Fault::of(error.to_string(), "a writable folder").saying(message)
                    });
                    let path = self.problems.accept(node.location, &field, path)?;
                    Some(Node::text(node.location, &path))
                }
                Value::List(_) => {
                    self.problems.add(
                        node.location,
                        &field,
                        Fault::new(node, "a conda file: its path, or a mapping"),
                    );
                    None
                }
            };
        }
        let (key, name) = match (entry("image"), entry("build")) {
            (Some(image), _) => ("image", image.node.written().to_owned()),
            (None, Some(_)) => ("build", "a Dockerfile".to_owned()),
            (None, None) => {
                ("name", find(&layer.entries, "name").map_or("", Node::written).to_owned())
            }
        };
        let message =
            format!("{name} is not used; the script runs with the default interpreter; {REPLACE}");
        self.problems.warn(at.location, &format!("{field}.{key}"), message);
        None
    }
}
