//! The keys of documents of Azure ML, and why some have no effect here.

use crate::{Entry, Fault, Problems, nearest};

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Read,
    /// None, for this reason.
    None(&'static str),
}

use Effect::Read;

pub type Known = &'static [(&'static str, Effect)];

const MACHINES: Effect = Effect::None("a job runs on this machine, or on a target of gristmill.toml");
const PEOPLE: Effect = Effect::None("names and notes for people");
const ACCESS: Effect = Effect::None("access to data comes from the tools of its store");
const CONTAINER: Effect = Effect::None("no container is made");
const SERVICE: Effect = Effect::None("there is no service");
const ONE: Effect = Effect::None("a command runs once, on one machine");

/// Keys of every document.
pub const COMMON: Known = &[
    ("$schema", Read),
    ("type", Read),
    ("name", Read),
    ("description", Read),
    ("compute", MACHINES),
    ("identity", ACCESS),
    ("display_name", PEOPLE),
    ("tags", PEOPLE),
    ("properties", PEOPLE),
];

/// Keys of pipelines and of all steps.
pub const JOB: Known = &[
    ("inputs", Read),
    ("outputs", Read),
    ("experiment_name", PEOPLE),
    ("version", PEOPLE),
    ("creation_context", PEOPLE),
    ("services", SERVICE),
];

/// Keys of all steps.
pub const STEP: Known = &[("component", Read), ("is_deterministic", Read), ("queue_settings", MACHINES)];

pub const PIPELINE: Known = &[("settings", Read), ("jobs", Read), ("is_deterministic", SERVICE)];

pub const SETTINGS: Known = &[
    ("default_compute", MACHINES),
    ("default_datastore", Read),
    ("continue_on_step_failure", Effect::None("a failed step ends the pipeline")),
    ("continue_run_on_step_failure", Effect::None("a failed step ends the pipeline")),
    ("force_rerun", Effect::None("--fresh runs steps again")),
    ("on_init", SERVICE),
    ("on_finalize", SERVICE),
];

pub const PARALLEL: Known = &[
    ("input_data", Read),
    ("mini_batch_size", Read),
    ("partition_keys", Read),
    ("resources", Read),
    ("max_concurrency_per_instance", Read),
    ("error_threshold", Read),
    ("mini_batch_error_threshold", Read),
    ("retry_settings", Read),
    ("logging_level", Read),
    ("environment_variables", Read),
    ("task", Read),
    ("append_row_to", Read),
    ("output_data", Read),
];

pub const TASK: Known = &[
    ("type", Read),
    ("code", Read),
    ("entry_script", Read),
    ("environment", Read),
    ("program_arguments", Read),
    // The name of `program_arguments` in the first releases of the second SDK.
    ("args", Read),
    ("append_row_to", Read),
    ("model", Read),
];

pub const RESOURCES: Known = &[
    ("instance_count", Read),
    ("instance_type", MACHINES),
    ("locations", MACHINES),
    ("max_instance_count", MACHINES),
    ("properties", MACHINES),
    ("shm_size", CONTAINER),
    ("docker_args", CONTAINER),
    ("docker_args_list", CONTAINER),
];

pub const RETRIES: Known = &[("max_retries", Read), ("timeout", Read)];

pub const COMMAND: Known = &[
    ("command", Read),
    ("code", Read),
    ("environment", Read),
    ("environment_variables", Read),
    ("limits", Read),
    ("resources", MACHINES),
    ("distribution", ONE),
];

/// Keys of one input or output.
pub const BINDING: Known = &[
    ("type", Read),
    ("path", Read),
    ("mode", Read),
    ("optional", Read),
    ("default", Read),
    ("value", Read),
    ("description", PEOPLE),
    ("name", PEOPLE),
    ("version", PEOPLE),
    ("min", PEOPLE),
    ("max", PEOPLE),
    ("enum", PEOPLE),
    ("datastore", PEOPLE),
    ("early_available", SERVICE),
    ("is_control", SERVICE),
];

pub const DEPLOYMENT: Known = &[
    ("model", Read),
    ("code_configuration", Read),
    ("environment", Read),
    ("resources", Read),
    ("settings", Read),
    ("endpoint_name", PEOPLE),
];

/// Keys below `settings`; of an older deployment, at the top.
pub const DEPLOYMENT_SETTINGS: Known = &[
    ("mini_batch_size", Read),
    ("max_concurrency_per_instance", Read),
    ("output_action", Read),
    ("output_file_name", Read),
    ("error_threshold", Read),
    ("retry_settings", Read),
    ("logging_level", Read),
    ("environment_variables", Read),
    ("instance_count", Read),
];

pub const CODE: Known = &[("code", Read), ("scoring_script", Read)];
pub const MODEL: Known = &[
    ("name", PEOPLE),
    ("version", PEOPLE),
    ("path", Read),
    ("type", PEOPLE),
    ("description", PEOPLE),
    ("tags", PEOPLE),
    ("properties", PEOPLE),
    ("flavors", PEOPLE),
];

/// Keys without effect that a document has, by the reason.
#[derive(Debug, Default)]
pub struct WithoutEffect(Vec<(&'static str, Vec<String>)>);

impl WithoutEffect {
    pub fn add(&mut self, key: String, reason: &'static str) {
        let position = self.0.iter().position(|(earlier, _)| *earlier == reason).unwrap_or_else(|| {
            self.0.push((reason, Vec::new()));
            self.0.len() - 1
        });
        let keys = &mut self.0[position].1;
        if !keys.contains(&key) {
            keys.push(key);
        }
    }

    /// Returns one sentence that names all of them, if there are any.
    pub fn sentence(&self) -> Option<String> {
        let parts: Vec<String> =
            self.0.iter().map(|(reason, keys)| format!("{} ({reason})", keys.join(", "))).collect();
        (!parts.is_empty()).then(|| format!("without effect here: {}", parts.join("; ")))
    }
}

/// Records keys without effect, and unknown keys as mistakes. `prefix`: the path of the mapping, with a dot behind it.
/// `tables`: what is known of the mapping.
pub fn check(entries: &[Entry], prefix: &str, tables: &[Known], without: &mut WithoutEffect, problems: &Problems) {
    for entry in entries.iter().filter(|entry| !entry.key.starts_with("x-")) {
        let row = tables.iter().flat_map(|table| table.iter()).find(|(name, _)| *name == entry.key);
        match row {
            Some((_, Effect::Read)) => {}
            Some((name, Effect::None(reason))) => {
                if !entry.node.is_null() {
                    without.add(format!("{prefix}{name}"), reason);
                }
            }
            None => {
                let names = || tables.iter().flat_map(|table| table.iter()).map(|(name, _)| *name);
                let fault = Fault::of(format!("{:?}", entry.key), names().collect::<Vec<_>>().join(", "));
                let message = match nearest(&entry.key, names()) {
                    Some(name) => format!("unknown key; did you mean {name:?}?"),
                    None => "unknown key".to_owned(),
                };
                problems.add(entry.location, &format!("{prefix}{}", entry.key), fault.saying(message));
            }
        }
    }
}
