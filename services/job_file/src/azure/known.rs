//! The keys of documents of Azure ML, and why some have no effect here.

use crate::{Entry, Fault, Problems};

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Read,
    /// No effect, for this reason.
    None(&'static str),
}

use Effect::Read;

/// The keys of a mapping by effect, separated by commas.
pub type KnownKeys = &'static [(Effect, &'static str)];

const MACHINES: Effect =
    Effect::None("a job runs on this machine, or on a target of gristmill.toml");
pub const PEOPLE: Effect = Effect::None("names and notes for people");
const ACCESS: Effect = Effect::None("access to data comes from the tools of its store");
pub const CONTAINER: Effect = Effect::None("no container is made");
pub const SERVICE: Effect = Effect::None("there is no service");
const ONE: Effect = Effect::None("a command runs once, on one machine");

/// Keys of every document.
pub const COMMON: KnownKeys = &[
    (Read, "$schema, type, name, description"),
    (MACHINES, "compute"),
    (ACCESS, "identity"),
    (PEOPLE, "display_name, tags, properties"),
];

/// Keys of pipelines and of all steps.
pub const JOB: KnownKeys = &[
    (Read, "inputs, outputs"),
    (PEOPLE, "experiment_name, version, creation_context"),
    (SERVICE, "services"),
];

/// Keys of all steps.
pub const STEP: KnownKeys = &[(Read, "component, is_deterministic"), (MACHINES, "queue_settings")];

pub const PIPELINE: KnownKeys =
    &[(Read, "settings, jobs, component"), (SERVICE, "is_deterministic")];

pub const SETTINGS: KnownKeys = &[
    (MACHINES, "default_compute"),
    (Read, "default_datastore"),
    (
        Effect::None("a failed step ends the pipeline"),
        "continue_on_step_failure, continue_run_on_step_failure",
    ),
    (Effect::None("--fresh runs steps again"), "force_rerun"),
    (SERVICE, "on_init, on_finalize"),
];

pub const PARALLEL: KnownKeys = &[(
    Read,
    "input_data, mini_batch_size, partition_keys, resources, max_concurrency_per_instance, error_threshold, \
     mini_batch_error_threshold, retry_settings, logging_level, environment_variables, task, append_row_to, output_data",
)];

/// `args` is the name of `program_arguments` in the first releases of the second SDK.
pub const TASK: KnownKeys = &[(
    Read,
    "type, code, entry_script, environment, program_arguments, args, append_row_to, model",
)];

pub const RESOURCES: KnownKeys = &[
    (Read, "instance_count"),
    (MACHINES, "instance_type, locations, max_instance_count, properties"),
    (CONTAINER, "shm_size, docker_args, docker_args_list"),
];

pub const RETRIES: KnownKeys = &[(Read, "max_retries, timeout")];

pub const COMMAND: KnownKeys = &[
    (Read, "command, code, environment, environment_variables, limits"),
    (MACHINES, "resources"),
    (ONE, "distribution"),
];

/// Keys of one input.
pub const INPUT: KnownKeys = &[
    (Read, "type, path, mode, optional, default, value"),
    (PEOPLE, "description, name, version, min, max, enum, datastore"),
    (SERVICE, "early_available, is_control"),
];

/// Keys of one output.
pub const OUTPUT: KnownKeys = &[
    (Read, "type, path, mode, optional, default, value, name, version"),
    (PEOPLE, "description, tags, properties, datastore"),
    (SERVICE, "early_available, is_control"),
];

pub const DEPLOYMENT: KnownKeys = &[
    (Read, "model, code_configuration, environment, resources, settings"),
    (PEOPLE, "endpoint_name"),
];

/// Keys below `settings`; of an older deployment, at the top.
pub const DEPLOYMENT_SETTINGS: KnownKeys = &[(
    Read,
    "mini_batch_size, max_concurrency_per_instance, output_action, output_file_name, error_threshold, retry_settings, \
     logging_level, environment_variables, instance_count",
)];

pub const CODE: KnownKeys = &[(Read, "code, scoring_script")];
pub const MODEL: KnownKeys =
    &[(Read, "path"), (PEOPLE, "name, version, type, description, tags, properties, flavors")];

/// Iterates over the names of keys, each with its effect.
pub fn keys(known: &[KnownKeys]) -> impl Iterator<Item = (&'static str, Effect)> {
    let rows = known.iter().copied().flatten();
    rows.flat_map(|(effect, names)| names.split(", ").map(|name| (name, *effect)))
}

/// Keys without effect that a document has, by the reason.
#[derive(Debug, Default)]
pub struct WithoutEffect(Vec<(&'static str, Vec<String>)>);

impl WithoutEffect {
    pub fn add(&mut self, key: String, reason: &'static str) {
        let position =
            self.0.iter().position(|(earlier, _)| *earlier == reason).unwrap_or_else(|| {
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
pub fn check(
    entries: &[Entry],
    prefix: &str,
    known: &[KnownKeys],
    without: &mut WithoutEffect,
    problems: &Problems,
) {
    for entry in entries.iter().filter(|entry| !entry.key.starts_with("x-")) {
        let field = format!("{prefix}{}", entry.key);
        match keys(known).find(|(name, _)| *name == entry.key) {
            Some((_, Effect::None(reason))) if !entry.node.is_null() => without.add(field, reason),
            Some(_) => {}
            None => {
                let names = keys(known).map(|(name, _)| name);
                let fault = Fault::unknown(&entry.key, names, "unknown key");
                problems.add(entry.location, &field, fault);
            }
        }
    }
}
