//! A job after validation: every value resolved, every default filled in. Written once as `spec.json`.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{ItemPath, is_file_name, is_job_id};

/// Everything a partitioner, a worker or a reducer needs to know of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Identity of the job: `<name>-<UTC yyyymmdd-hhmmss>-<4 hex digits>`.
    pub job_id: String,
    /// `name` of the job file.
    pub name: String,
    /// Free text for people.
    #[serde(default)]
    pub description: String,
    /// Entry script, relative to `source_directory`.
    pub entry_script: String,
    /// Absolute path of the folder that holds the script and what it imports.
    pub source_directory: ItemPath,
    /// Inputs in the order of the job file. Empty only with `rank_mini_batch_count`.
    pub inputs: Vec<Input>,
    /// Reference data by name: absolute paths, the same for every mini-batch.
    #[serde(default)]
    pub side_inputs: BTreeMap<String, ItemPath>,
    /// How large a mini-batch is.
    pub mini_batch_size: MiniBatchSize,
    /// Names of the partition keys; empty: partition by size.
    #[serde(default)]
    pub partition_keys: Vec<String>,
    /// Number of mini-batches without input (`--rank_mini_batch_count`); 0: off.
    #[serde(default)]
    pub rank_mini_batch_count: u64,
    /// When the job is given up.
    pub thresholds: ErrorThresholds,
    /// Copies of what a node elsewhere cannot see at its place; empty for a job that stays on this machine.
    #[serde(default)]
    pub snapshots: Snapshots,
    /// What becomes of the results.
    pub output: Output,
    /// The most nodes that work on the job at a time; `None`: every node of the compute target, or the one node that
    /// is this machine.
    #[serde(default)]
    pub node_count: Option<u32>,
    /// Python processes a node; `None`: as many as cores, or 1 where there is a GPU.
    pub process_count_per_node: Option<u32>,
    /// Limit of one `run()` call.
    pub run_invocation_timeout_seconds: u64,
    /// Slack around a `run()` call for loading the mini-batch and reporting.
    pub task_overhead_timeout_seconds: u64,
    /// Give up when no mini-batch finished for so long.
    pub progress_update_timeout_seconds: u64,
    /// Give up when no mini-batch was created for so long.
    pub first_task_creation_timeout_seconds: u64,
    /// Tries that user code may spend on one mini-batch.
    pub run_max_try: u32,
    /// Deliveries of one mini-batch that may be lost with their node before it is given up.
    pub lost_delivery_max: u32,
    /// `DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`.
    pub logging_level: String,
    /// `sys.argv[1:]` of the entry script: engine options, then the user's.
    pub argv: Vec<String>,
    /// The Python that runs the script.
    pub environment: Environment,
    /// Set in the process that runs the script.
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
    /// Hide every GPU from processes that got no index, instead of leaving the variable unset.
    #[serde(default)]
    pub hide_unassigned_gpus: bool,
    /// Digest of the script snapshot and of every setting that changes the output; without the inputs' contents.
    pub fingerprint: String,
    /// Digest of the script snapshot alone, by which a later change of the script is noticed.
    #[serde(default)]
    pub snapshot_digest: String,
    /// Absolute path of the job file; it is no part of the snapshot.
    #[serde(default)]
    pub job_file: String,
    /// Whether a finished job of the same fingerprint and inputs may stand in for this one.
    pub allow_reuse: bool,
    /// What a committed outcome survives, on a disk of this machine.
    #[serde(default)]
    pub durability: Durability,
}

impl JobSpec {
    /// Why nobody should work on it, if there is a reason: names in it lead elsewhere.
    pub fn fault(&self) -> Option<String> {
        let file_name = &self.output.file_name;
        if !is_job_id(&self.job_id) {
            return Some(format!("{:?} is no id of a job", self.job_id));
        }
        (!is_file_name(file_name)).then(|| format!("{file_name:?} is no name of an output file"))
    }

    /// A job to be changed by tests and examples: `JobSpec { rank_mini_batch_count: 3, ..JobSpec::example() }`.
    ///
    /// It has no inputs, a file a mini-batch, three tries and no thresholds; all rows go into one file. These are not
    /// the defaults of a job file, and no job of a user is made from here.
    pub fn example() -> Self {
        Self {
            job_id: "example-20260101-000000-0000".to_owned(),
            name: "example".to_owned(),
            description: String::new(),
            entry_script: "entry.py".to_owned(),
            source_directory: "/src".into(),
            inputs: Vec::new(),
            side_inputs: BTreeMap::new(),
            mini_batch_size: MiniBatchSize::Files(1),
            partition_keys: Vec::new(),
            rank_mini_batch_count: 0,
            thresholds: ErrorThresholds {
                error_threshold: -1,
                allowed_failed_count: -1,
                allowed_failed_percent: 100.0,
            },
            snapshots: Snapshots::default(),
            output: Output {
                action: OutputAction::AppendRow,
                folder: "/output".into(),
                file_name: "parallel_run_step.txt".to_owned(),
                format: OutputFormat::Text,
                header: false,
                to_csv_arguments: serde_json::Map::new(),
            },
            node_count: None,
            process_count_per_node: Some(1),
            run_invocation_timeout_seconds: 60,
            task_overhead_timeout_seconds: 30,
            progress_update_timeout_seconds: 270,
            first_task_creation_timeout_seconds: 600,
            run_max_try: 3,
            lost_delivery_max: 10,
            logging_level: "INFO".to_owned(),
            argv: Vec::new(),
            environment: Environment::Node,
            environment_variables: BTreeMap::new(),
            resource_monitor_interval_seconds: 0,
            profiling_module: String::new(),
            nice: 0,
            strict_results: false,
            hide_unassigned_gpus: false,
            fingerprint: String::new(),
            snapshot_digest: String::new(),
            job_file: String::new(),
            allow_reuse: false,
            durability: Durability::Process,
        }
    }
}

/// Folders and files that travel with a job, content-addressed in the target's store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshots {
    /// `source_directory`; `None`: nodes use it where it stands.
    pub source: Option<Snapshot>,
    /// Side inputs by name, where they are local to the machine that enqueued the job.
    pub side_inputs: BTreeMap<String, Snapshot>,
    /// The environment's requirements file, or the folder of its `pyproject.toml`.
    pub environment: Option<Snapshot>,
}

/// One packed folder or file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// BLAKE3 of what is packed, in hexadecimal: its name in the store, and in the cache of a node.
    pub digest: String,
    /// Size of the packed object.
    pub bytes: u64,
    /// Name of the one file that is packed; `None`: a folder is.
    #[serde(default)]
    pub file: Option<String>,
}

/// When a job is given up. Every comparison is a strict "greater than".
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorThresholds {
    /// Failed items; -1: any number.
    pub error_threshold: i64,
    /// Failed mini-batches; -1: any number.
    pub allowed_failed_count: i64,
    /// Percentage of failed mini-batches, judged once all are scheduled; 100: any.
    pub allowed_failed_percent: f64,
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
    /// How to read the tables. Ignored for files.
    #[serde(default)]
    pub table: TableOptions,
}

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// An item is a file; `run` gets a list of paths.
    File,
    /// An item is a row; `run` gets a DataFrame.
    Tabular,
}

/// How the tables of an input are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableOptions {
    /// Format of every file of the input.
    pub format: TableFormat,
    /// Field separator of delimited text, one byte.
    pub delimiter: u8,
    /// Whether the first line of a file names its columns.
    pub header: HeaderMode,
    /// WHATWG label of the text encoding, `utf-8` by default.
    pub encoding: String,
    /// Find column types in the first 200 rows; otherwise every column is text.
    pub infer_column_types: bool,
    /// A quoted field may hold line breaks. The file is then one mini-batch.
    pub support_multi_line: bool,
    /// Keep `''` in text columns instead of a missing value.
    pub empty_as_string: bool,
    /// What to do with a value that does not fit its column's type.
    pub on_type_mismatch: MismatchPolicy,
    /// The file's own columns that are read, in this order; empty: all, as they stand in the file. Left out of the
    /// JSON where it is empty, so that a job without it keeps its fingerprint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            format: TableFormat::Csv,
            delimiter: b',',
            header: HeaderMode::AllFilesSameHeaders,
            encoding: "utf-8".to_owned(),
            infer_column_types: true,
            support_multi_line: false,
            empty_as_string: false,
            on_type_mismatch: MismatchPolicy::Warn,
            columns: Vec::new(),
        }
    }
}

/// Format of a table file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableFormat {
    /// Delimited text, comma by default.
    Csv,
    /// Delimited text, tab by default.
    Tsv,
    /// One JSON object a line.
    Jsonl,
    /// Apache Parquet.
    Parquet,
}

impl TableFormat {
    /// Whether the file is cut by byte ranges.
    pub fn is_text(self) -> bool {
        self != Self::Parquet
    }
}

/// Where column names of delimited text come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeaderMode {
    /// Every file starts with the same header line.
    AllFilesSameHeaders,
    /// No file has one: `Column1`, `Column2`, …
    NoHeader,
}

/// What happens to a value that does not fit the type found for its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MismatchPolicy {
    /// Convert as the original did, and report it.
    Warn,
    /// The record fails: it is not passed to `run`, and counts as a failed item.
    Error,
}

/// `mini_batch_size`, with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "unit", content = "count", rename_all = "snake_case")]
pub enum MiniBatchSize {
    /// So many files.
    Files(u64),
    /// So many bytes of a text table.
    Bytes(u64),
    /// So many rows of a table.
    Rows(u64),
}

/// What becomes of the results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// One file of all rows, or counting only.
    pub action: OutputAction,
    /// Absolute folder; the script's `output_dir`.
    pub folder: ItemPath,
    /// Name of the final file in `folder`.
    pub file_name: String,
    /// How rows become bytes.
    pub format: OutputFormat,
    /// Write the column names of DataFrames once at the top (`--append_row_dataframe_header`).
    pub header: bool,
    /// `to_csv` keyword arguments from `parallel_run_step.settings.json`, as JSON.
    #[serde(default)]
    pub to_csv_arguments: serde_json::Map<String, serde_json::Value>,
}

/// `output_action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputAction {
    /// Results are counted; the script writes its own files.
    SummaryOnly,
    /// All rows end up in one file.
    AppendRow,
}

/// How rows become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    /// The compatible text: `format(element)` lines, or `to_csv` without header.
    Text,
    /// CSV with a header (`output_format: native`).
    Csv,
    /// JSON lines (`output_format: native`).
    Jsonl,
    /// Apache Parquet (`output_format: native`). Parts are Arrow IPC streams.
    Parquet,
}

/// The Python that runs the script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Environment {
    /// The interpreter that a node of the compute target uses by default (`GRISTMILL_PYTHON` there).
    Node,
    /// An interpreter, as given or found.
    Interpreter {
        /// Absolute path.
        path: ItemPath,
    },
    /// A virtual environment made once from a file and cached by its content.
    Requirements {
        /// Absolute path of a requirements file or a `pyproject.toml`.
        file: ItemPath,
        /// Interpreter that makes the environment.
        base: ItemPath,
    },
}

/// What an outcome survives once it is acknowledged. The death of every process: always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Not the death of the machine: what was written in its last seconds may be lost, and is done again.
    #[default]
    Process,
    /// The death of the machine too: whatever is acknowledged has been forced to disk.
    Full,
}

/// How a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// Not ended yet.
    Running,
    /// All mini-batches processed, within the thresholds, output written.
    Completed,
    /// A threshold was exceeded, or nothing could go on.
    Failed,
    /// Stopped by the user.
    Canceled,
}

/// Column names and types of one input, found once when the job is planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSchema {
    /// All of them in file order, whichever are read; columns taken from the path come last.
    pub columns: Vec<TableColumn>,
}

/// One column of a [`TableSchema`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableColumn {
    /// Name as in the header.
    pub name: String,
    /// Type of every block.
    pub column_type: ColumnType,
}

/// Types that text columns can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnType {
    /// `int64`.
    Integer,
    /// `float64`.
    Float,
    /// `bool`.
    Boolean,
    /// `datetime64[ns]`; month before day in `1/2/2020`.
    DateTimeMonthFirst,
    /// `datetime64[ns]`; day before month.
    DateTimeDayFirst,
    /// `object` of `str`.
    Text,
    /// `object` of `None`: every value seen was blank. Later values are kept as text.
    Blank,
}

/// Wall clock, for records that people read. Never used to measure.
pub fn milliseconds_since_epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
}
