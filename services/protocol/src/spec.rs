//! A job after validation: every value resolved, every default filled in. Written once as `spec.json`.
//!
//! It begins with the number of its format, `FORMAT`. A build leaves a job of another format alone:
//! commands say so, reducers skip it, and a worker reports that it cannot take it, so that the
//! schedule gives it to others. A field that older builds may ignore does not change the format.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::table::TableOptions;
use crate::{
    FileVersion, ItemPath, NameError, Priority, RateLimits, Requirements, ResultSchema,
    check_job_id, is_default, is_file_name,
};

/// The format of what builds write for each other: the objects of a job, messages, and schedules. It grows with each change
/// after which a build with the former number would misread one of them. `spec.json` names it, and builds of one format may
/// meet.
pub const FORMAT: u32 = 1;

/// Everything that the roles need to know about a job.
///
/// The default value is empty, for readers of job files to fill; it does not hold the defaults of a job file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Identity of the job: `<name>-<UTC yyyymmdd-hhmmss>-<16 hex digits>`.
    pub job_id: String,
    /// `name` of the job file.
    pub name: String,
    /// Free text for people.
    #[serde(default)]
    pub description: String,
    /// Entry script, relative to `source_directory`.
    pub entry_script: String,
    /// Absolute path of the folder of the script and its modules.
    pub source_directory: ItemPath,
    /// Inputs in the order of the job file. Empty only with `rank_mini_batch_count`.
    pub inputs: Vec<Input>,
    /// Reference data by name: absolute paths, the same for every mini-batch.
    #[serde(default)]
    pub side_inputs: BTreeMap<String, ItemPath>,
    /// Name under which scripts find the side input [`MODEL`] below `AZUREML_MODEL_DIR`; empty: the job has no model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Size of a mini-batch.
    pub mini_batch_size: MiniBatchSize,
    /// Names of the partition keys; empty: partition by size.
    #[serde(default)]
    pub partition_keys: Vec<String>,
    /// Number of mini-batches without input (`--rank_mini_batch_count`); 0: off.
    #[serde(default)]
    pub rank_mini_batch_count: u64,
    /// Numbers of failures that fail the job.
    pub thresholds: ErrorThresholds,
    /// Copies of files that other nodes cannot reach; empty for a local job.
    #[serde(default)]
    pub snapshots: Snapshots,
    /// Destination and form of the results.
    pub output: Output,
    /// Further folders or URLs that the script writes to, by name; local folders exist before it starts. The JSON omits
    /// an empty map, so that a job without it keeps its fingerprint.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, ItemPath>,
    /// Maximum number of nodes that work on the job concurrently; `None`: every node of the target, or this machine.
    #[serde(default)]
    pub node_count: Option<u32>,
    /// Python processes per node; `None`: as many as have GPUs if the job says how many GPUs belong to a process, else one
    /// per core, or 1 on a node with a GPU.
    pub process_count_per_node: Option<u32>,
    /// GPUs of each process; `None`: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_process: Option<u32>,
    /// Processes that share each GPU; `None`: one has it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_count_per_gpu: Option<u32>,
    /// Person or team that the job counts for on a compute target; empty: not known yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Weight of the job on nodes that it shares with other jobs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Largest part of the processes of a node, in percent; `None`: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_share: Option<u32>,
    /// Bytes of memory of its processes on one node together; 0: any amount.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_memory: u64,
    /// Limit of one `run()` call.
    pub run_invocation_timeout_seconds: u64,
    /// Additional time for loading the mini-batch and reporting.
    pub task_overhead_timeout_seconds: u64,
    /// The job fails after this many seconds without a finished mini-batch.
    pub progress_update_timeout_seconds: u64,
    /// The job fails after this many seconds without a first mini-batch.
    pub first_task_creation_timeout_seconds: u64,
    /// Tries that user code may spend on one mini-batch.
    pub run_max_try: u32,
    /// Deliveries of one mini-batch that may be lost with their node before the mini-batch fails.
    pub lost_delivery_max: u32,
    /// Runs after which a process is replaced; 0: any number.
    #[serde(default, skip_serializing_if = "is_default")]
    pub process_max_runs: u64,
    /// Resident memory in bytes above which a process is replaced; 0: any amount.
    #[serde(default, skip_serializing_if = "is_default")]
    pub process_max_memory: u64,
    /// `DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`.
    pub logging_level: String,
    /// `sys.argv[1:]` of the entry script: engine options, then the user's.
    pub argv: Vec<String>,
    /// The Python that runs the script.
    pub environment: Environment,
    /// Environment variables of the process that runs the script.
    #[serde(default)]
    pub environment_variables: BTreeMap<String, String>,
    /// Period of resource sampling; 0: off.
    pub resource_monitor_interval_seconds: u64,
    /// `""`, `cProfile` or `profile`.
    #[serde(default)]
    pub profiling_module: String,
    /// Scheduling priority of the Python processes, 0 to 20.
    pub nice: u32,
    /// Fail a mini-batch whose result is shorter than its input, instead of counting the missing items.
    #[serde(default)]
    pub strict_results: bool,
    /// Call `run` once with a table of no rows if no file of a job of tables has any, instead of failing the job.
    #[serde(default)]
    pub run_without_rows: bool,
    /// Items of one mini-batch that an asynchronous `run_item()` works on at a time.
    #[serde(default = "default_concurrency", skip_serializing_if = "is_default_concurrency")]
    pub concurrency: u32,
    /// The limits of the requests of all processes of all nodes to a service.
    #[serde(default, skip_serializing_if = "RateLimits::is_empty")]
    pub limits: RateLimits,
    /// The requirements on each node of the job.
    #[serde(default, skip_serializing_if = "Requirements::is_empty")]
    pub requires: Requirements,
    /// The handling of a mini-batch whose tries are spent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub isolate: Isolate,
    /// Items of the largest mini-batch that is isolated.
    #[serde(default = "isolate_items_max", skip_serializing_if = "is_isolate_items_max")]
    pub isolate_items_max: u64,
    /// Whether mini-batches that run far longer than their peers get a speculative run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub speculation: bool,
    /// Hide every GPU from processes without an assigned GPU, instead of leaving the variable unset.
    #[serde(default)]
    pub hide_unassigned_gpus: bool,
    /// Digest of the script snapshot and of every setting that affects the output, without the content of the inputs.
    pub fingerprint: String,
    /// Digest of the script snapshot alone, which reveals a later change of the script.
    #[serde(default)]
    pub snapshot_digest: String,
    /// Decisions of the engine about the inputs that may surprise users, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Absolute path of the job file, which is not part of the snapshot.
    #[serde(default)]
    pub job_file: String,
    /// What the command line changed in the job file, in words of a command: `--set`, `run_max_try=5`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Whether a completed job with the same fingerprint and inputs may replace this one.
    pub allow_reuse: bool,
    /// Failures that a committed outcome survives, on a disk of this machine.
    #[serde(default)]
    pub durability: Durability,
}

/// The default of [`JobSpec::concurrency`].
pub const DEFAULT_CONCURRENCY: u32 = 8;

pub(crate) fn default_concurrency() -> u32 {
    DEFAULT_CONCURRENCY
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
pub(crate) fn is_default_concurrency(concurrency: &u32) -> bool {
    *concurrency == DEFAULT_CONCURRENCY
}

/// The handling of a mini-batch whose tries are spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolate {
    /// It fails.
    #[default]
    Off,
    /// Each half of its items is run once more.
    Halves,
    /// Its items are run in ever smaller ranges, down to single ones.
    Items,
}

/// Limits of a run that the isolation of one mini-batch may take.
const ISOLATION_LIMITS: u64 = 32;

/// More than the rows of an ordinary row group.
fn isolate_items_max() -> u64 {
    2_000_000
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_isolate_items_max(items: &u64) -> bool {
    *items == isolate_items_max()
}

/// The side input that is the model of a job.
pub const MODEL: &str = "AZUREML_MODEL_DIR";
/// The entry script of an MLflow model without a script.
const MODEL_SCRIPT: &str = "gristmill/mlflow_model.py";
/// The entry script of a command.
const COMMAND_SCRIPT: &str = "gristmill/command_step.py";
/// Entry scripts that are part of the Python package.
pub const BUILT_IN_SCRIPTS: [&str; 2] = [COMMAND_SCRIPT, MODEL_SCRIPT];

/// Endings of the files that an MLflow model without a script reads.
const MODEL_FILES: [&str; 7] = [".csv", ".png", ".jpg", ".jpeg", ".tiff", ".bmp", ".gif"];

impl JobSpec {
    /// Returns the endings, in lower case, that files of the inputs must have; `None`: any.
    pub fn file_endings(&self) -> Option<&'static [&'static str]> {
        (self.entry_script == MODEL_SCRIPT).then_some(&MODEL_FILES)
    }

    /// Whether the job runs a command, as its only mini-batch.
    pub fn is_command(&self) -> bool {
        self.entry_script == COMMAND_SCRIPT
    }

    /// Whether the entry script is part of the Python package and not of the job.
    pub fn has_built_in_script(&self) -> bool {
        BUILT_IN_SCRIPTS.contains(&self.entry_script.as_str())
    }

    /// Whether it says how many GPUs a process has, or how many processes share one.
    pub fn asks_for_gpus(&self) -> bool {
        self.gpus_per_process.is_some() || self.process_count_per_gpu.is_some()
    }

    /// Returns the number of items of the largest mini-batch that is divided, and the most extra runs that one bad item
    /// in it costs. `items_max`: items of the largest mini-batch, if known. `None` if nothing is divided.
    pub fn extra_runs_for_one(&self, items_max: Option<u64>) -> Option<(u64, u64)> {
        let items = items_max.unwrap_or(self.isolate_items_max).min(self.isolate_items_max);
        match self.isolate {
            // Two more for an item that the process names by mistake.
            Isolate::Items if items > 1 => {
                let halves = 2 * u64::from((items - 1).ilog2() + 1);
                Some((items, (halves + 2).min((items - 1).saturating_mul(2))))
            }
            Isolate::Halves if items > 1 => Some((items, 2)),
            _ => None,
        }
    }

    /// Returns the longest time in seconds that a node isolates one mini-batch.
    pub fn isolation_seconds_max(&self) -> u64 {
        if self.isolate == Isolate::Off { 0 } else { self.ranges_seconds_max() }
    }

    /// Returns how long the ranges of one mini-batch may run, in seconds, after which those that have not run are rejected.
    pub fn ranges_seconds_max(&self) -> u64 {
        let limit =
            self.run_invocation_timeout_seconds.saturating_add(self.task_overhead_timeout_seconds);
        limit.saturating_mul(ISOLATION_LIMITS)
    }

    /// Checks the names that become part of a path. No role may work on a job that fails this.
    pub fn check_names(&self) -> Result<(), NameError> {
        check_job_id(&self.job_id)?;
        if !is_file_name(&self.output.file_name) {
            return Err(NameError::OutputFile(self.output.file_name.clone()));
        }
        match self.model.is_empty() || is_file_name(&self.model) {
            true => Ok(()),
            false => Err(NameError::Model(self.model.clone())),
        }
    }

    /// Returns a job for tests and examples to modify: `JobSpec { rank_mini_batch_count: 3, ..JobSpec::example() }`.
    ///
    /// It has no inputs, one file per mini-batch, three tries and no thresholds; all rows go to one file. These are not
    /// the defaults of a job file, and no job of a user starts from it.
    pub fn example() -> Self {
        Self {
            job_id: "example-20260101-000000-0000".to_owned(),
            name: "example".to_owned(),
            entry_script: "entry.py".to_owned(),
            source_directory: "/src".into(),
            mini_batch_size: MiniBatchSize::Files(1),
            output: Output {
                action: OutputAction::AppendRow,
                folder: "/output".into(),
                file_name: "parallel_run_step.txt".to_owned(),
                ..Output::default()
            },
            process_count_per_node: Some(1),
            run_invocation_timeout_seconds: 60,
            task_overhead_timeout_seconds: 30,
            progress_update_timeout_seconds: 270,
            first_task_creation_timeout_seconds: 600,
            run_max_try: 3,
            concurrency: DEFAULT_CONCURRENCY,
            isolate_items_max: isolate_items_max(),
            lost_delivery_max: 10,
            logging_level: "INFO".to_owned(),
            ..Self::default()
        }
    }
}

/// Folders and files that travel with a job, addressed by content in the target's store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshots {
    /// `source_directory`; `None`: nodes use it in place.
    pub source: Option<Snapshot>,
    /// Side inputs that are local to the machine that enqueued the job, by name.
    pub side_inputs: BTreeMap<String, Snapshot>,
    /// The environment's requirements file, or the folder of its `pyproject.toml`.
    pub environment: Option<Snapshot>,
}

/// One packed folder or file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// BLAKE3 of the content in hexadecimal: its name in the store and in the cache of a node.
    pub digest: String,
    /// Size of the packed object.
    pub bytes: u64,
    /// Name of the packed file; `None` for a folder.
    #[serde(default)]
    pub file: Option<String>,
}

/// Numbers of failures that fail a job. Every comparison except that of `fail_fast` is a strict "greater than".
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorThresholds {
    /// Failed items; -1: any number.
    pub error_threshold: i64,
    /// Failed mini-batches; -1: any number.
    pub allowed_failed_count: i64,
    /// Percentage of failed mini-batches, evaluated once all are scheduled; 100: any.
    pub allowed_failed_percent: f64,
    /// Attempts that fail for the same reason ("greater than or equal"); 0: any number.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fail_fast: u64,
}

impl Default for ErrorThresholds {
    /// No limits.
    fn default() -> Self {
        Self {
            error_threshold: -1,
            allowed_failed_count: -1,
            allowed_failed_percent: 100.0,
            fail_fast: 0,
        }
    }
}

/// One input of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// Name in the job file, or `input_<position>`.
    pub name: String,
    /// Files, or tables.
    pub kind: InputKind,
    /// Absolute paths, folders, globs and URLs in the order of the job file.
    pub paths: Vec<ItemPath>,
    /// `{Store}/{Brand}/{file_name}.csv`: columns taken from the path.
    #[serde(default)]
    pub partition_format: Option<String>,
    /// The options for reading its tables. Ignored for files.
    #[serde(default)]
    pub table: TableOptions,
}

/// The kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// An item is a file; `run` gets a list of paths.
    File,
    /// An item is a row; `run` gets a DataFrame.
    Tabular,
}

/// `mini_batch_size`, with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "unit", content = "count", rename_all = "snake_case")]
pub enum MiniBatchSize {
    /// This many files.
    Files(u64),
    /// This many bytes of a text table.
    Bytes(u64),
    /// This many rows of a table.
    Rows(u64),
}

impl Default for MiniBatchSize {
    fn default() -> Self {
        Self::Files(1)
    }
}

/// Destination and form of the results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// One file of all rows, or counting only.
    pub action: OutputAction,
    /// Absolute folder; the script's `output_dir`.
    pub folder: ItemPath,
    /// Name of the final file in `folder`.
    pub file_name: String,
    /// The format of rows.
    pub format: OutputFormat,
    /// Write the column names of DataFrames once at the top (`--append_row_dataframe_header`).
    pub header: bool,
    /// `to_csv` keyword arguments from `parallel_run_step.settings.json`, as JSON.
    #[serde(default)]
    pub to_csv_arguments: serde_json::Map<String, serde_json::Value>,
    /// The schema of each row; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_schema: Option<ResultSchema>,
    /// The final file of earlier jobs that this job may replace. Another one is kept beside the new file.
    #[serde(default, skip_serializing_if = "is_default")]
    pub replaceable: Replaceable,
}

impl Output {
    /// Returns the path or URL of the final file; without one, of the folder.
    pub fn path(&self) -> PathBuf {
        match self.action {
            OutputAction::AppendRow => self.folder.as_path().join(&self.file_name),
            OutputAction::SummaryOnly => self.folder.as_path().to_owned(),
        }
    }
}

/// What a job may replace where it writes its final file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replaceable {
    /// Whatever is there: earlier jobs are not known.
    #[default]
    Anything,
    /// What an earlier round or job wrote. Somebody has edited another version.
    Version(FileVersion),
    /// Nothing: a retry with another script completed the file, or the record of the earlier job cannot be read.
    Nothing,
}

/// `output_action`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputAction {
    /// Results are counted; the script writes its own files.
    #[default]
    SummaryOnly,
    /// All rows end up in one file.
    AppendRow,
}

/// The format of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    /// The compatible text: `format(element)` lines, or `to_csv` without header.
    #[default]
    Text,
    /// CSV with a header (`output_format: native`).
    Csv,
    /// JSON lines (`output_format: native`).
    Jsonl,
    /// Apache Parquet (`output_format: native`). Parts are Arrow IPC streams.
    Parquet,
}

/// The Python that runs the script.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Environment {
    /// The interpreter that a node of the compute target uses by default (`GRISTMILL_PYTHON` there).
    #[default]
    Node,
    /// An interpreter.
    Interpreter {
        /// Absolute path.
        path: ItemPath,
    },
    /// A virtual environment, created once from a file and cached by its content.
    Requirements {
        /// Absolute path of a requirements file or a `pyproject.toml`.
        file: ItemPath,
        /// Interpreter that creates the environment.
        base: ItemPath,
    },
}

/// Failures that an acknowledged outcome survives. It always survives the death of every process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Not the death of the machine: writes of its last seconds may be lost, and that work runs again.
    #[default]
    Process,
    /// The death of the machine too: Gristmill forces data to disk before it acknowledges.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_item_costs_two_runs_for_each_division() {
        let of =
            |isolate, items| JobSpec { isolate, ..JobSpec::example() }.extra_runs_for_one(items);
        for (items, runs) in [(2, 2), (3, 4), (4, 6), (5, 8), (1000, 22), (1024, 22), (1025, 24)] {
            assert_eq!(of(Isolate::Items, Some(items)), Some((items, runs)));
        }
        assert_eq!(of(Isolate::Items, None), Some((2_000_000, 44)));
        assert_eq!(of(Isolate::Halves, Some(1000)), Some((1000, 2)));
        assert_eq!((of(Isolate::Items, Some(1)), of(Isolate::Off, Some(9))), (None, None));
    }
}
