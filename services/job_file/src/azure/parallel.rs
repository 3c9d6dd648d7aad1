//! A parallel step or component as a job file.

use std::path::Path;

use protocol::TableFormat;

use super::bindings::{BoundInput, Data, Target};
use super::expression;
use super::known;
use super::layers::{LayerValue, Layers};
use super::reader::{JobFile, Reader, number, reference};
use super::scope::{Scope, StepContext, unknown};
use super::versioned::{NameTable, Versioned};
use crate::paths::is_url;
use crate::{Entry, Fault, Location, Node, Value, find, keys};

/// The module of the Python package that runs an MLflow model.
pub const MLFLOW: &str = "gristmill.mlflow_model";
/// Reserved arguments that set a key of the job file, since the original reads them among the arguments.
const SETTINGS: &[&str] = &[
    "mini_batch_size",
    "error_threshold",
    "allowed_failed_count",
    "allowed_failed_percent",
    "run_invocation_timeout",
    "run_max_try",
    "process_count_per_node",
    "logging_level",
    "append_row_file_name",
];
const TASK_TYPES: &[&str] = &["run_function", "function", "model"];

impl Reader<'_> {
    /// Returns the job file of a parallel step, and its scope.
    pub fn parallel<'s>(&self, layers: &Layers, around: &StepContext<'s>) -> (JobFile, Scope<'s>) {
        let prefix = around.prefix;
        self.check_parallel(layers, prefix);
        let mut scope = Scope::read(self, layers, around);
        let mut job = JobFile::default();
        let here = layers.location_of(&["task", "component", "type", "inputs"]);
        job.put_text("name", here, around.job);
        self.put_description(layers, &mut job);
        scope.main = self.main_input(layers, &scope);
        scope.appended = self.appended(layers, &scope);
        if let Some(target) = scope.appended.as_ref().and_then(|name| scope.outputs.get_mut(name))
            && !target.is_given
            && target.file.is_some()
        {
            target.file = Some(keys::default_file_name().to_owned());
        }
        self.put_script(layers, around.step, prefix, &mut job);
        let arguments =
            layers.find(&["task", "program_arguments"]).or_else(|| layers.find(&["task", "args"]));
        let words = arguments.map_or_else(Vec::new, |found| {
            self.words(&scope, found.node, &format!("{prefix}task.program_arguments"))
        });
        let format =
            row_format(&words).filter(|_| scope.main_kind().is_some_and(|kind| kind != "mltable"));
        self.put_main_input(&scope, format.as_deref(), &mut job);
        self.put_size(layers, &scope, &mut job);
        if format.is_some() {
            let location = arguments.map_or(here, |found| found.node.location);
            self.put_rows_of_size(
                value_of(&words, "amlbi_mini_batch_rows"),
                location,
                &format!("{prefix}mini_batch_size"),
                &mut job,
            );
        }
        self.put_rows(&scope, here, &mut job);
        self.put_limits(layers, &scope, &mut job);
        if let Some(found) = arguments {
            put_arguments(words, found.node.location, &mut job);
        }
        scope.put_variables(self, layers, &mut job);
        scope.put_side_inputs(self, layers.location_of(&["inputs"]), &mut job);
        scope.put_outputs(self, layers.location_of(&["outputs"]), &mut job);
        (job, scope)
    }

    fn check_parallel(&self, layers: &Layers, prefix: &str) {
        for layer in &layers.0 {
            self.check_keys(
                &layer.entries,
                prefix,
                &[known::COMMON, known::JOB, known::STEP, known::PARALLEL],
            );
        }
        self.check_nested(layers, "resources", prefix, known::RESOURCES);
        self.check_nested(layers, "retry_settings", prefix, known::RETRIES);
        for layer in &layers.0 {
            let needed = ["append_row_to", "program_arguments"];
            self.warn_of_unknown(&layer.entries, "task", prefix, known::TASK, &needed);
        }
        if layers.find(&["task"]).is_none() {
            let fault = Fault::missing("a mapping with type, code, entry_script, environment, …");
            self.problems.add(layers.location_of(&["type"]), &format!("{prefix}task"), fault);
        }
        if let Some(LayerValue { node, .. }) = layers.find(&["task", "type"])
            && !TASK_TYPES.contains(&node.written().trim().to_lowercase().as_str())
        {
            self.problems.add(
                node.location,
                &format!("{prefix}task.type"),
                Fault::new(node, TASK_TYPES.join(", ")),
            );
        }
        if let Some(LayerValue { node, .. }) = layers.find(&["output_data"]) {
            let message = "not read: rows go to append_row_to, and scripts get outputs through their arguments";
            self.problems.warn(node.location, &format!("{prefix}output_data"), message);
        }
    }

    pub fn put_description(&self, layers: &Layers, job: &mut JobFile) {
        job.put("description", layers.value(&["description"]));
        // Only `false` forbids reuse; some documents write it as Python does, `False`.
        if let Some(LayerValue { node, .. }) = layers.find(&["is_deterministic"])
            && node.written().trim().eq_ignore_ascii_case("false")
        {
            job.put_plain("allow_reuse", node.location, "false");
        }
    }

    fn put_script(&self, layers: &Layers, step: &str, prefix: &str, job: &mut JobFile) {
        let code = layers.find(&["task", "code"]);
        if let Some(found) = code {
            job.put("source_directory", self.code(found, &format!("{prefix}task.code")));
        }
        if let Some(LayerValue { node, folder }) = layers.find(&["task", "entry_script"]) {
            // Without `code` the script lies beside its own document.
            let node =
                match code.is_none() && folder != self.folder && node.written().ends_with(".py") {
                    true => self
                        .local(LayerValue { node, folder }, &format!("{prefix}task.entry_script")),
                    false => Some(node.clone()),
                };
            job.put("entry_script", node);
        } else if let Some(LayerValue { node, .. }) = layers.find(&["task", "model"]) {
            job.put_text("entry_script", node.location, MLFLOW);
        } else if layers.find(&["task"]).is_some() {
            let fault = Fault::missing("the path of a script below code, or its name as a module");
            self.problems.add(
                layers.location_of(&["task"]),
                &format!("{prefix}task.entry_script"),
                fault,
            );
        }
        let environment = self.environment(
            step,
            layers.find(&["task", "environment"]),
            &format!("{prefix}task.environment"),
        );
        job.put("environment", environment);
        if let Some(found) = layers.find(&["task", "model"]) {
            let field = format!("{prefix}task.model");
            self.put_model(found, &field, job);
            if layers.find(&["task", "entry_script"]).is_none() {
                let names_environment = layers.find(&["task", "environment"]).is_some();
                self.check_mlflow_model(found.node, &field, job);
                if !names_environment {
                    self.put_model_environment(
                        step,
                        &format!("{prefix}task.environment"),
                        found.node.location,
                        job,
                    );
                }
            }
        }
    }

    /// Checks that the model of a job without a script is one of MLflow.
    pub fn check_mlflow_model(&self, node: &Node, field: &str, job: &JobFile) {
        let Some(path) = self.model_of(job) else { return };
        if is_url(&path) || !Path::new(&path).exists() || Path::new(&path).join("MLmodel").is_file()
        {
            return;
        }
        let message =
            format!("{path} has no file MLmodel, so it is not an MLflow model; no script is named");
        let allowed = "a folder of an MLflow model, or a script";
        let fault = Fault::of(format!("{:?}", Path::new(&path).display().to_string()), allowed);
        self.problems.add(node.location, field, fault.saying(message));
    }

    /// Returns the path of the model of a job.
    pub fn model_of(&self, job: &JobFile) -> Option<String> {
        let node = job.0.iter().find(|entry| entry.key == "model").map(|entry| &entry.node)?;
        self.locate(node, &self.folder, NameTable::Models).ok()
    }

    /// Adds `model`, which is a path, a name, or a mapping with one.
    pub fn put_model(&self, found: LayerValue<'_>, field: &str, job: &mut JobFile) {
        let LayerValue { node, folder } = found;
        let (node, field, path) = match &node.value {
            Value::Mapping(entries) => {
                self.check_keys(entries, &format!("{field}."), &[known::MODEL]);
                match find(entries, "path") {
                    Some(path) => (
                        path,
                        format!("{field}.path"),
                        self.locate(path, folder, NameTable::Models),
                    ),
                    None => {
                        let name = find(entries, "name").map_or("", Node::written);
                        let version = find(entries, "version")
                            .map(Node::written)
                            .filter(|version| *version != "latest");
                        let named = self
                            .context
                            .azure
                            .named(Versioned { name, version }, NameTable::Models);
                        (node, field.to_owned(), named)
                    }
                }
            }
            _ => (node, field.to_owned(), self.locate(node, folder, NameTable::Models)),
        };
        if let Some(path) = self.problems.accept(node.location, &field, path) {
            job.put_text("model", node.location, &self.written(&path));
        }
    }

    fn main_input(&self, layers: &Layers, scope: &Scope<'_>) -> Option<String> {
        let field = format!("{}input_data", scope.prefix);
        let Some(LayerValue { node, .. }) = layers.find(&["input_data"]) else {
            let fault =
                Fault::missing("the input that is divided into mini-batches: ${{inputs.NAME}}");
            self.problems.add(layers.location_of(&["inputs", "task"]), &field, fault);
            return None;
        };
        let name = self.problems.accept(node.location, &field, reference(node, "inputs"))?;
        let fault = match scope.inputs.get(&name) {
            Some(BoundInput::Data(_)) => return Some(name),
            // Its mistake is already recorded.
            Some(BoundInput::Literal(node)) if node.location == Location::File => return None,
            Some(BoundInput::Literal(_)) => {
                Fault::new(node, "an input with a path").saying("this input is a literal")
            }
            Some(BoundInput::Absent) => {
                Fault::new(node, "an input that is given").saying("this input is absent")
            }
            None => unknown(&format!("inputs.{name}"), "inputs", scope.inputs.keys()),
        };
        self.problems.add(node.location, &field, fault);
        None
    }

    fn appended(&self, layers: &Layers, scope: &Scope<'_>) -> Option<String> {
        let found =
            layers.find(&["task", "append_row_to"]).or_else(|| layers.find(&["append_row_to"]))?;
        let field = format!("{}task.append_row_to", scope.prefix);
        let name = reference(found.node, "outputs").and_then(|name| {
            match scope.outputs.contains_key(&name) {
                true => Ok(name),
                false => Err(unknown(&format!("outputs.{name}"), "outputs", scope.outputs.keys())),
            }
        });
        self.problems.accept(found.node.location, &field, name)
    }

    fn put_main_input(&self, scope: &Scope<'_>, format: Option<&str>, job: &mut JobFile) {
        let Some(name) = &scope.main else { return };
        let Some(BoundInput::Data(data)) = scope.inputs.get(name) else { return };
        self.put_input(name, data, format, job);
    }

    /// Adds the input that is divided into mini-batches. `format`: files are read as tables of this format.
    pub fn put_input(&self, name: &str, data: &Data, format: Option<&str>, job: &mut JobFile) {
        let Data { text: path, location, kind, mode, .. } = data;
        let location = *location;
        let is_mltable = kind == "mltable";
        let is_table = is_mltable && !mode.starts_with("eval_") || format.is_some();
        let kind = if is_table { "tabular" } else { "file" };
        let mut keys = vec![
            Entry::text("type", location, kind),
            Entry::text("path", location, &self.written(path)),
        ];
        if let Some(format) = is_mltable.then_some("mltable").or(format) {
            keys.push(Entry::text("format", location, format));
        }
        if !is_mltable && format.is_some_and(|format| format != TableFormat::Parquet.word()) {
            // As in Azure ML. An MLTable file states it itself.
            keys.push(Entry::text("on_type_mismatch", location, "missing"));
        }
        let input = Entry::new(name, Node { location, value: Value::Mapping(keys) });
        job.put_mapping("inputs", location, vec![input]);
    }

    fn put_size(&self, layers: &Layers, scope: &Scope<'_>, job: &mut JobFile) {
        let size = layers.find(&["mini_batch_size"]);
        let keys = layers
            .find(&["partition_keys"])
            .filter(|found| !matches!(&found.node.value, Value::List(items) if items.is_empty()));
        if let Some(LayerValue { node, .. }) = keys {
            job.put("partition_keys", Some(node.clone()));
            if let Some(LayerValue { node, .. }) = size {
                let field = format!("{}mini_batch_size", scope.prefix);
                self.problems.warn(node.location, &field, "has no effect with partition_keys");
            }
            return;
        }
        let field = format!("{}mini_batch_size", scope.prefix);
        job.put("mini_batch_size", size.and_then(|found| scope.plain(self, found.node, &field)));
    }

    fn put_rows(&self, scope: &Scope<'_>, here: Location, job: &mut JobFile) {
        let appended = scope.appended.as_ref().and_then(|name| scope.outputs.get(name));
        job.put_text(
            "output_action",
            here,
            if appended.is_some() { "append_row" } else { "summary_only" },
        );
        if let Some(target) = appended {
            self.put_output(target, job);
        }
    }

    pub fn put_output(&self, target: &Target, job: &mut JobFile) {
        job.put_text("output", target.location, &self.written(&target.folder));
        if let Some(file) = target.file.as_ref().filter(|_| target.is_given) {
            job.put_text("append_row_file_name", target.location, file);
        }
    }

    fn put_limits(&self, layers: &Layers, scope: &Scope<'_>, job: &mut JobFile) {
        let mut same = |path: &[&str], key: &str| {
            let field = format!("{}{}", scope.prefix, path.join("."));
            let node = layers.find(path).and_then(|found| scope.plain(self, found.node, &field));
            let node = node.map(|node| match node.written().trim().parse::<i64>() {
                Ok(number) => Node::plain(node.location, &number.to_string()),
                Err(_) => node,
            });
            job.put(key, node);
        };
        same(&["error_threshold"], "error_threshold");
        same(&["mini_batch_error_threshold"], "allowed_failed_count");
        same(&["retry_settings", "timeout"], "run_invocation_timeout");
        same(&["max_concurrency_per_instance"], "process_count_per_node");
        same(&["logging_level"], "logging_level");
        let field = format!("{}retry_settings.max_retries", scope.prefix);
        let retries = layers.find(&["retry_settings", "max_retries"]);
        self.put_retries(
            retries.and_then(|found| scope.plain(self, found.node, &field)),
            &field,
            job,
        );
        let field = format!("{}resources.instance_count", scope.prefix);
        let count = layers.find(&["resources", "instance_count"]);
        self.put_nodes(count.and_then(|found| scope.plain(self, found.node, &field)), &field, job);
    }

    /// Adds `run_max_try`: one more than the retries.
    pub fn put_retries(&self, node: Option<Node>, field: &str, job: &mut JobFile) {
        let Some(node) = node else { return };
        match number(&node) {
            Ok(retries @ 0..) => {
                job.put_plain("run_max_try", node.location, &(retries + 1).to_string())
            }
            _ => self.problems.add(node.location, field, Fault::new(&node, "an integer from 0")),
        }
    }

    /// Adds `node_count`, where there can be several nodes. -1: any number.
    pub fn put_nodes(&self, node: Option<Node>, field: &str, job: &mut JobFile) {
        let Some(node) = node else { return };
        let is_elsewhere =
            self.context.compute_target.as_ref().is_some_and(|target| target != "local");
        match number(&node) {
            Ok(-1 | 1) => {}
            Ok(2..) if !is_elsewhere => {
                let reason =
                    "this machine is one node; on a target, the most nodes that work on the job";
                self.without.borrow_mut().add(field.to_owned(), reason);
            }
            Ok(count @ 2..) => job.put_plain("node_count", node.location, &count.to_string()),
            _ => self.problems.add(
                node.location,
                field,
                Fault::new(&node, "an integer from 1, or -1 for any number"),
            ),
        }
    }

    /// Sets the size of mini-batches that are rows of files: `--amlbi_mini_batch_rows`, or a number of bytes.
    fn put_rows_of_size(
        &self,
        rows: Option<String>,
        location: Location,
        field: &str,
        job: &mut JobFile,
    ) {
        const SIZE: &str = "mini_batch_size";
        if let Some(rows) = rows {
            job.0.retain(|entry| entry.key != SIZE);
            job.put_text(SIZE, location, &format!("{rows} rows"));
            return;
        }
        let counts_files = |entry: &&Entry| {
            entry.key == SIZE && entry.node.written().trim().parse::<u64>().is_ok()
        };
        if let Some(Entry { node, .. }) = job.0.iter().find(counts_files).cloned() {
            let message = "counts files, and `--amlbi_file_format` makes mini-batches of rows; without effect, unless \
                           `--amlbi_mini_batch_rows` gives a number of rows";
            self.problems.warn(node.location, field, message);
            job.0.retain(|entry| entry.key != SIZE);
        }
    }

    /// Splits arguments into words, and replaces the names in them.
    fn words(&self, scope: &Scope<'_>, node: &Node, field: &str) -> Vec<String> {
        let texts: Vec<&Node> = match &node.value {
            Value::List(items) => items.iter().collect(),
            _ => vec![node],
        };
        let mut words = Vec::new();
        for node in texts {
            let replaced = match &node.value {
                Value::Scalar(_) => expression::split(node.written(), &mut |name| scope.text(name)),
                _ => Err(Fault::new(node, "one text, as on a command line")),
            };
            words
                .extend(self.problems.accept(node.location, field, replaced).into_iter().flatten());
        }
        words
    }
}

/// Adds `arguments`. Those that set a limit or a size of the job become its keys.
fn put_arguments(words: Vec<String>, location: Location, job: &mut JobFile) {
    let mut kept = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let option = word.strip_prefix("--").unwrap_or_default().to_owned();
        let (name, inline) = option
            .split_once('=')
            .map_or((option.as_str(), None), |(name, value)| (name, Some(value)));
        let Some(key) = keys::reserved(name).filter(|key| SETTINGS.contains(&key.name)) else {
            kept.push(word);
            continue;
        };
        let next = || words.next_if(|next| !next.starts_with("--"));
        let Some(value) = inline.map(str::to_owned).or_else(next) else {
            kept.push(word);
            continue;
        };
        job.0.retain(|entry| entry.key != key.name);
        job.put_plain(key.name, location, &value);
    }
    job.put_texts("arguments", location, &kept);
}

/// Returns the format of files whose rows are the items of the job: `--amlbi_file_format`.
fn row_format(words: &[String]) -> Option<String> {
    let format = value_of(words, "amlbi_file_format")?.to_lowercase();
    let known = [TableFormat::Csv, TableFormat::Tsv, TableFormat::Jsonl, TableFormat::Parquet];
    known.iter().any(|known| known.word() == format).then_some(format)
}

/// Returns the last value of an option: `--x v` or `--x=v`.
fn value_of(words: &[String], name: &str) -> Option<String> {
    let of = |(index, word): (usize, &String)| {
        let rest = word.strip_prefix("--")?.strip_prefix(name)?;
        match rest.strip_prefix('=') {
            Some(value) => Some(value.to_owned()),
            None => rest
                .is_empty()
                .then(|| words.get(index + 1).filter(|value| !value.starts_with("--")).cloned())?,
        }
    };
    words.iter().enumerate().rev().find_map(of)
}
