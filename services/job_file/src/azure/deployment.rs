//! A batch deployment as a job file. The newer form has its settings below `settings`, the older one at the top.

use super::bindings::Data;
use super::known;
use super::layers::{Layer, LayerValue, Layers};
use super::parallel::MLFLOW;
use super::reader::{JobFile, Reader, job_name};
use super::versioned::NameTable;
use crate::paths::is_url;
use crate::{Entry, Fault, Location, Node, Value, find};

const INPUT: &str = "input";
const DEFAULTS: &[(&str, &str)] = &[
    ("mini_batch_size", "10"),
    ("max_concurrency_per_instance", "1"),
    ("error_threshold", "-1"),
    ("logging_level", "info"),
];
const RETRIES: &str = "3";
const TIMEOUT_SECONDS: &str = "30";

impl Reader<'_> {
    /// Returns the name and the job file of a batch deployment.
    pub fn deployment(&self, entries: Vec<Entry>, stem: &str) -> (String, JobFile) {
        let (settings, prefix) = match find(&entries, "settings") {
            Some(node) => {
                self.check_keys(&entries, "", &[known::COMMON, known::DEPLOYMENT]);
                self.check_keys(node.entries(), "settings.", &[known::DEPLOYMENT_SETTINGS]);
                (node.entries().to_vec(), "settings.")
            }
            None => {
                self.check_keys(
                    &entries,
                    "",
                    &[known::COMMON, known::DEPLOYMENT, known::DEPLOYMENT_SETTINGS],
                );
                (entries.clone(), "")
            }
        };
        let [top, settings] = [entries, settings]
            .map(|entries| Layers(vec![Layer { entries, folder: self.folder.clone() }]));
        self.check_nested(&top, "resources", "", known::RESOURCES);
        self.check_nested(&settings, "retry_settings", prefix, known::RETRIES);
        self.check_nested(&top, "code_configuration", "", known::CODE);

        let name = top.find(&["name"]).map_or(stem, |found| found.node.written()).to_owned();
        let here = top.location_of(&["name", "model"]);
        let mut job = JobFile::default();
        job.put_text("name", here, &job_name(&name));
        job.put("description", top.value(&["description"]));
        self.put_code(&top, &name, here, &mut job);
        self.put_data(here, &mut job);
        for (key, default) in DEFAULTS {
            let node = settings.value(&[key]);
            let own = match *key {
                "max_concurrency_per_instance" => "process_count_per_node",
                key => key,
            };
            job.put(own, Some(node.unwrap_or_else(|| Node::plain(here, default))));
        }
        let retries = settings.value(&["retry_settings", "max_retries"]);
        let retries = retries.unwrap_or_else(|| Node::plain(here, RETRIES));
        self.put_retries(Some(retries), &format!("{prefix}retry_settings.max_retries"), &mut job);
        let timeout = settings.value(&["retry_settings", "timeout"]);
        job.put(
            "run_invocation_timeout",
            Some(timeout.unwrap_or_else(|| Node::plain(here, TIMEOUT_SECONDS))),
        );
        let count = top.value(&["resources", "instance_count"]);
        let count = count.or_else(|| settings.value(&["instance_count"]));
        self.put_nodes(count, "resources.instance_count", &mut job);
        self.put_results(&settings, prefix, here, &mut job);
        if let Some(LayerValue {
            node: Node { value: Value::Mapping(variables), location }, ..
        }) = settings.find(&["environment_variables"])
        {
            job.put_mapping("environment_variables", *location, variables.clone());
        }
        (name, job)
    }

    fn put_code(&self, top: &Layers, name: &str, here: Location, job: &mut JobFile) {
        if let Some(found) = top.find(&["model"]) {
            self.put_model(found, "model", job);
        }
        let environment = self.environment(name, top.find(&["environment"]), "environment");
        job.put("environment", environment);
        if top.find(&["code_configuration"]).is_some() {
            if let Some(found) = top.find(&["code_configuration", "code"]) {
                job.put("source_directory", self.local(found, "code_configuration.code"));
            }
            match top.find(&["code_configuration", "scoring_script"]) {
                Some(LayerValue { node, .. }) => job.put("entry_script", Some(node.clone())),
                None => {
                    let location = top.location_of(&["code_configuration"]);
                    self.problems.add(
                        location,
                        "code_configuration.scoring_script",
                        Fault::missing("a Python script"),
                    );
                }
            }
            return;
        }
        let Some(found) = top.find(&["model"]) else {
            let allowed = "code_configuration with a script, or model, a folder with MLmodel";
            self.problems.add(here, "code_configuration", Fault::missing(allowed));
            return;
        };
        job.put_text("entry_script", here, MLFLOW);
        self.check_mlflow_model(found.node, "model", job);
        if top.find(&["environment"]).is_none() {
            self.put_model_environment(name, "environment", here, job);
        }
    }

    /// Adds the data, which a deployment gets when it is invoked.
    fn put_data(&self, here: Location, job: &mut JobFile) {
        self.check_overrides(&[INPUT], true);
        let Some(node) = self.overridden(INPUT, true, &[INPUT]) else {
            let fault = Fault::missing("--input PATH: a file, a folder, a pattern or a URL");
            return self.problems.add(
                here,
                "--input",
                fault.saying("a deployment gets its data when it is run"),
            );
        };
        let located = self.locate(&node, &self.context.working_directory, NameTable::Data);
        let Some(text) = self.problems.accept(Location::Input, "--input", located) else { return };
        let has_script =
            job.0.iter().any(|entry| entry.key == "entry_script" && entry.node.written() != MLFLOW);
        let text = if has_script { text } else { self.files_in(text) };
        let (kind, mode, made_by) = ("uri_folder".to_owned(), String::new(), None);
        self.put_input(
            INPUT,
            &Data { text, location: Location::Input, kind, mode, made_by },
            None,
            job,
        );
    }

    /// Returns a pattern for the files directly in a folder: a model without a script does not read folders in it.
    fn files_in(&self, path: String) -> String {
        let Some(listed) = std::fs::read_dir(&path).ok().filter(|_| !is_url(&path)) else {
            return path;
        };
        let is_folder = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.path().is_dir())
        };
        if listed.into_iter().any(is_folder) {
            let message = format!(
                "folders in {path} are not read: a model without a script takes the files of one folder"
            );
            self.problems.warn(Location::File, "--input", message);
        }
        let is_special = |character: char| "*?[]{}\\".contains(character);
        let escaped = path.trim_end_matches('/').chars().flat_map(|character| {
            is_special(character).then_some('\\').into_iter().chain(std::iter::once(character))
        });
        format!("{}/*", escaped.collect::<String>())
    }

    fn put_results(&self, settings: &Layers, prefix: &str, here: Location, job: &mut JobFile) {
        let action = settings.find(&["output_action"]);
        let action_text = action
            .map_or("append_row".to_owned(), |found| found.node.written().trim().to_lowercase());
        let location = action.map_or(here, |found| found.node.location);
        if !["append_row", "summary_only"].contains(&action_text.as_str()) {
            let found = action.expect("the default is valid");
            self.problems.add(
                location,
                &format!("{prefix}output_action"),
                Fault::new(found.node, "append_row, summary_only"),
            );
            return;
        }
        job.put_text("output_action", location, &action_text);
        job.put_text("output", here, &self.written(&self.root.display().to_string()));
        if action_text == "append_row" {
            let name = settings.value(&["output_file_name"]);
            job.put(
                "append_row_file_name",
                Some(name.unwrap_or_else(|| Node::text(here, "predictions.csv"))),
            );
        }
    }
}
