//! The job file: YAML with the keys that `ParallelRunConfig` and `ParallelRunStep` had, read into a [`JobSpec`].
//!
//! Every mistake is found in one go, each with its line, what was found and what is allowed. The environment of the
//! process is never read: the caller passes what paths, `~` and interpreters depend on. `JOB_FILE.md` is the reference
//! for users; a test keeps its table of keys complete.
//!
//! One file a topic: [`yaml`] keeps lines, [`section`] reads one mapping, and the others read the keys they are named
//! after. A value parser returns a value or a [`Fault`], and the collector [`Problems`] knows where it stands.

mod arguments;
mod argv;
mod driver_flags;
mod environment;
mod fingerprint;
mod inputs;
mod keys;
mod output;
mod paths;
mod problem;
mod script;
mod section;
mod size;
mod snapshot;
mod thresholds;
mod yaml;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::{Durability, Environment, Input, ItemPath, JobSpec};

use arguments::{Placeholders, Token};
use inputs::ColumnList;
use partitioner::MissingColumn;
use paths::Paths;
use problem::{Fault, Place, Problems};
use section::{Section, boolean, choice, integer, text, word};
use yaml::Node;

pub use paths::not_kept;
pub use problem::{Problem, nearest};
pub use snapshot::pack_script;

/// Nodes and processes beyond these are a slip of the keyboard.
const NODE_COUNT_MAX: i64 = 10_000;
const PROCESS_COUNT_MAX: i64 = 1_000;
const RUN_INVOCATION_TIMEOUT_DEFAULT: u64 = 60;
const RUN_MAX_TRY_DEFAULT: i64 = 3;
const LOST_DELIVERY_MAX_DEFAULT: i64 = 10;
const TASK_OVERHEAD_TIMEOUT_DEFAULT: u64 = 30;
const FIRST_TASK_CREATION_TIMEOUT_DEFAULT: u64 = 600;
const RESOURCE_MONITOR_INTERVAL_DEFAULT: u64 = 600;
const NICE_DEFAULT: u32 = 5;

/// What the meaning of a job file depends on beside its text.
#[derive(Clone, Debug)]
pub struct Context {
    /// Absolute folder that a relative path of the job file itself starts from.
    pub working_directory: PathBuf,
    /// What `~` stands for.
    pub home_directory: Option<PathBuf>,
    /// Python for jobs without `environment`, and for making virtual environments.
    pub interpreter: PathBuf,
    /// Folders in which `environment: python3.12` is looked for.
    pub search_path: Vec<PathBuf>,
    /// Compute target, if it has been decided; goes before the file's own. `local`: this machine.
    pub compute_target: Option<String>,
}

/// A job file without mistakes.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The job. `job_id` is empty; `output.folder` is empty where the file names none (`summary_only`).
    pub spec: JobSpec,
    /// What works, but hardly as meant; a line each, with the place in front.
    pub warnings: Vec<String>,
    /// Name of the compute target, if the file names one.
    pub compute_target: Option<String>,
    /// The file, as the user named it.
    file: String,
    /// Of each input.
    column_lists: Vec<ColumnList>,
}

impl Parsed {
    /// What is wrong with listed columns that the files do not have; only whoever has looked at the files can tell.
    pub fn refuse_columns(&self, missing: &[MissingColumn]) -> Vec<Problem> {
        let mut problems = Problems::new(self.file.clone());
        for missing in missing {
            let name = &self.spec.inputs[missing.input].table.columns[missing.position];
            self.column_lists[missing.input].refuse(name, missing, &mut problems);
        }
        problems.finish().err().unwrap_or_default()
    }
}

/// Reads the job file `path` with the content `text`. `overrides` are the `--set key=value` of the command line.
pub fn load(
    path: &Path,
    text: &str,
    overrides: &[(String, String)],
    context: &Context,
) -> Result<Parsed, Vec<Problem>> {
    let file = path.display().to_string();
    let mut problems = Problems::new(file.clone());
    let parsed = read(path, text, overrides, context, &mut problems);
    let warnings = problems.finish()?;
    let (spec, compute_target, column_lists) = parsed.expect("without a value there is a problem");
    Ok(Parsed { spec, warnings, compute_target, file, column_lists })
}

fn read(
    path: &Path,
    text: &str,
    overrides: &[(String, String)],
    context: &Context,
    problems: &mut Problems,
) -> Option<(JobSpec, Option<String>, Vec<ColumnList>)> {
    let job_file = paths::clean(&context.working_directory.join(path));
    let folder = job_file.parent().unwrap_or(Path::new("/")).to_owned();
    if folder.to_str().is_none() {
        let fault = Fault::of(format!("{}", folder.display()), "a folder name that is valid UTF-8");
        problems.add(Place::File, "", fault.saying("paths of the job cannot be passed to a script as text"));
        return None;
    }
    let paths = Paths { folder, home: context.home_directory.clone() };
    let mut entries = yaml::read(text, problems)?;
    keys::apply_overrides(&mut entries, overrides, problems);
    let top = Section::top(&entries);
    top.reject_unknown(keys::TOP, problems);

    let compute_target = top.value("compute_target", problems, word);
    let place = context.compute_target.as_deref().or(compute_target.as_deref());
    let elsewhere = place.is_some_and(|place| place != "local");
    let draft = read_keys(&top, &paths, context, elsewhere, problems);
    let arguments: Vec<String> = draft.arguments.iter().map(|token| token.text.clone()).collect();
    let mut spec = draft.spec?;
    if !problems.is_empty() {
        return None;
    }
    spec.argv = argv::assemble(
        &spec,
        &argv::Given {
            allowed_failed_count: draft.allowed_failed_count,
            allowed_failed_percent: draft.allowed_failed_percent.as_deref(),
            arguments: &arguments,
        },
    );
    (spec.fingerprint, spec.snapshot_digest) = match fingerprint_of(&spec, &arguments, &job_file, context) {
        Ok(digests) => digests,
        Err(fault) => {
            problems.add(top.place_of("source_directory"), "source_directory", fault);
            return None;
        }
    };
    spec.job_file = job_file.display().to_string();
    Some((spec, compute_target, ColumnList::of_inputs(&top)))
}

/// Whether the script of a job, or anything it can import, is no longer what it was when the job was made.
pub fn script_has_changed(spec: &JobSpec) -> bool {
    let now = snapshot::digest_snapshot(spec, Path::new(&spec.job_file));
    !now.is_ok_and(|now| now == spec.snapshot_digest)
}

/// What the keys say, before anything is derived from all of them.
struct Draft {
    /// `None` without a script.
    spec: Option<JobSpec>,
    arguments: Vec<Token>,
    allowed_failed_count: Option<i64>,
    allowed_failed_percent: Option<String>,
}

/// `elsewhere`: the job runs on nodes that may be other machines.
fn read_keys(top: &Section<'_>, paths: &Paths, context: &Context, elsewhere: bool, problems: &mut Problems) -> Draft {
    let name = top.required("name", problems, Fault::of("nothing", NAME_ALLOWED), name);
    let description = top.value("description", problems, text).unwrap_or_default();
    let script = script::read_script(top, paths, problems);
    let inputs = inputs::read_inputs(top, paths, problems);
    let side_inputs = inputs::read_side_inputs(top, paths, problems);
    let mut output = output::read_output(top, paths, problems);

    let placeholders = Placeholders::new(top, &inputs, &side_inputs, &output.folder);
    let arguments = arguments::read_arguments(top, &placeholders, problems);
    let environment_variables = replace_in_variables(top, &placeholders, problems);
    let flags = driver_flags::read_driver_flags(&arguments, problems);
    let rank_mini_batch_count = flags.rank_mini_batch_count.unwrap_or(0);
    require_inputs(top, &inputs, rank_mini_batch_count, problems);

    let size = top.read("mini_batch_size", problems, size::parse);
    let mini_batch_size = size::resolve(size, &inputs, problems);
    let partition_keys = inputs::read_partition_keys(top, &inputs, problems);
    if let (Some(size), Some(_)) = (top.get("mini_batch_size"), top.get("partition_keys")) {
        let fault = Fault::of("both", "one of them");
        let message = "Parameters mini_batch_size and partition_keys are mutually exclusive";
        problems.add(size.place, "mini_batch_size", fault.saying(message));
    }

    let given = thresholds::read_thresholds(top, problems);
    let timeout = top.value("run_invocation_timeout", problems, |node| {
        integer(node, 1, driver_flags::TIMEOUT_SECONDS_MAX as i64).map(|seconds| seconds as u64)
    });
    let run_invocation_timeout_seconds = match (timeout, flags.score_run_timeout_seconds) {
        (Some(seconds), Some((place, _))) => {
            problems.warn(place, "arguments", "\"--score_run_timeout\" has no effect beside run_invocation_timeout");
            seconds
        }
        (None, Some((_, seconds))) => seconds,
        (seconds, None) => seconds.unwrap_or(RUN_INVOCATION_TIMEOUT_DEFAULT),
    };
    let task_overhead_timeout_seconds = flags.task_overhead_timeout_seconds.unwrap_or(TASK_OVERHEAD_TIMEOUT_DEFAULT);
    let run_max_try = top.value("run_max_try", problems, |node| integer(node, 1, i32::MAX.into()));
    let lost_delivery_max = top.value("lost_delivery_max", problems, |node| integer(node, 0, i32::MAX.into()));
    let node_count = top.value("node_count", problems, node_count);
    let process_count_per_node = top.value("process_count_per_node", problems, |node| {
        integer(node, 1, PROCESS_COUNT_MAX)
            .map_err(|fault| fault.saying("Parameter process_count_per_node must be an integer greater than 0."))
    });
    let logging_level = top.value("logging_level", problems, |node| choice(node, LOGGING_LEVELS)).unwrap_or("INFO");
    let environment = environment::read_environment(top, paths, context, elsewhere, problems);
    let mut read_switch = |key: &str, default: bool| top.value(key, problems, boolean).unwrap_or(default);
    let (allow_reuse, strict_results, hide_unassigned_gpus) = (
        read_switch("allow_reuse", true),
        read_switch("strict_results", false),
        read_switch("hide_unassigned_gpus", false),
    );
    let durability = top.value("durability", problems, |node| {
        choice(node, &[("process", Durability::Process), ("full", Durability::Full)])
    });
    if let Some(script) = &script {
        output.header = flags.append_row_dataframe_header.unwrap_or(false);
        output.to_csv_arguments = output::read_to_csv_arguments(&script.source_directory, problems);
    }

    let spec = script.zip(name).map(|(script, name)| JobSpec {
        job_id: String::new(),
        name: name.value,
        description,
        entry_script: script.entry_script,
        source_directory: ItemPath::from(script.source_directory),
        inputs,
        side_inputs,
        mini_batch_size,
        partition_keys,
        rank_mini_batch_count,
        thresholds: given.thresholds,
        output,
        node_count,
        snapshots: Default::default(),
        process_count_per_node: process_count_per_node.map(|count| count as u32),
        run_invocation_timeout_seconds,
        task_overhead_timeout_seconds,
        progress_update_timeout_seconds: flags
            .progress_update_timeout_seconds
            .unwrap_or(3 * (run_invocation_timeout_seconds + task_overhead_timeout_seconds)),
        first_task_creation_timeout_seconds: flags
            .first_task_creation_timeout_seconds
            .unwrap_or(FIRST_TASK_CREATION_TIMEOUT_DEFAULT),
        run_max_try: run_max_try.unwrap_or(RUN_MAX_TRY_DEFAULT) as u32,
        lost_delivery_max: lost_delivery_max.unwrap_or(LOST_DELIVERY_MAX_DEFAULT) as u32,
        logging_level: logging_level.to_owned(),
        argv: Vec::new(),
        environment,
        environment_variables,
        resource_monitor_interval_seconds: flags
            .resource_monitor_interval_seconds
            .unwrap_or(RESOURCE_MONITOR_INTERVAL_DEFAULT),
        profiling_module: flags.profiling_module.unwrap_or_default(),
        nice: flags.nice.unwrap_or(NICE_DEFAULT),
        strict_results,
        hide_unassigned_gpus,
        fingerprint: String::new(),
        snapshot_digest: String::new(),
        job_file: String::new(),
        allow_reuse,
        durability: durability.unwrap_or_default(),
    });
    Draft {
        spec,
        arguments,
        allowed_failed_count: given.allowed_failed_count,
        allowed_failed_percent: given.allowed_failed_percent,
    }
}

const NAME_ALLOWED: &str = "3 to 32 lower-case letters, digits and `-`, beginning with a letter and not ending in `-`";

/// `^[a-z]([-a-z0-9]*[a-z0-9])?$`, 3 to 32 characters.
fn name(node: &Node) -> Result<String, Fault> {
    let name = text(node)?;
    let legal = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-';
    match (3..=32).contains(&name.len())
        && name.chars().all(legal)
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
    {
        true => Ok(name),
        false => Err(Fault::new(node, NAME_ALLOWED)),
    }
}

/// Names of Python's `logging`, its two short forms included.
const LOGGING_LEVELS: &[(&str, &str)] = &[
    ("debug", "DEBUG"),
    ("info", "INFO"),
    ("warning", "WARNING"),
    ("error", "ERROR"),
    ("critical", "CRITICAL"),
    ("warn", "WARNING"),
    ("fatal", "CRITICAL"),
];

fn node_count(node: &Node) -> Result<u32, Fault> {
    integer(node, 1, NODE_COUNT_MAX).map(|count| count as u32).map_err(|fault| {
        let shown = node.scalar().map_or("", |scalar| &scalar.text);
        fault.saying(format!("node_count '{shown}' is not between 1 and max_nodes {NODE_COUNT_MAX}."))
    })
}

fn require_inputs(top: &Section<'_>, inputs: &[Input], rank_mini_batch_count: u64, problems: &mut Problems) {
    let is_empty = top.get("inputs").is_none_or(|node| match &node.value {
        yaml::Value::List(items) => items.is_empty(),
        yaml::Value::Mapping(entries) => entries.is_empty(),
        yaml::Value::Scalar(_) => false,
    });
    let place = top.place_of("inputs");
    if is_empty && rank_mini_batch_count == 0 {
        let message = "The parameter 'inputs' must be a list and have at least one element or rank_mini_batch_count \
                       must be greater than zero.";
        problems.add(place, "inputs", Fault::of("no input", "at least one input").saying(message));
    }
    if rank_mini_batch_count > 0 && !inputs.is_empty() {
        problems.warn(
            place,
            "inputs",
            "not read, because \"--rank_mini_batch_count\" makes mini-batches without input",
        );
    }
}

fn replace_in_variables(
    top: &Section<'_>,
    placeholders: &Placeholders,
    problems: &mut Problems,
) -> BTreeMap<String, String> {
    let mut replaced = BTreeMap::new();
    for (name, node) in environment::read_environment_variables(top, problems) {
        match text(&node).and_then(|written| placeholders.replace(&written)) {
            Ok(value) => {
                replaced.insert(name, value);
            }
            Err(fault) => problems.add(node.place, &format!("environment_variables.{name}"), fault),
        }
    }
    replaced
}

/// Fingerprint of the job, and digest of its snapshot.
fn fingerprint_of(
    spec: &JobSpec,
    arguments: &[String],
    job_file: &Path,
    context: &Context,
) -> Result<(String, String), Fault> {
    // Where a job runs makes no other job of it.
    let mut spec = spec.clone();
    environment::choose_here(&mut spec.environment, context);
    let spec = &spec;
    let requirements = match &spec.environment {
        Environment::Node | Environment::Interpreter { .. } => String::new(),
        Environment::Requirements { file, .. } => snapshot::digest_file(file.as_path())
            .map(|digest| digest.to_hex().to_string())
            .map_err(|error| Fault::of(error.to_string(), "a requirements file that can be read"))?,
    };
    let snapshot = snapshot::digest_snapshot(spec, job_file).map_err(|error| match error {
        storage::Error::TooLarge { found, allowed } => {
            Fault::of(found, allowed).saying("the folder of the script is too large to be a snapshot")
        }
        error => Fault::of(error.to_string(), "files that can be read, or an .amlignore"),
    })?;
    let fingerprint = fingerprint::fingerprint(&fingerprint::Ingredients {
        spec,
        arguments,
        snapshot: &snapshot,
        side_inputs: &snapshot::digest_side_inputs(spec.side_inputs.iter()),
        requirements: &requirements,
    });
    Ok((fingerprint, snapshot))
}
