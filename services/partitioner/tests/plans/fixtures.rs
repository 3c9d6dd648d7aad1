//! Jobs over folders that a test makes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use protocol::{
    Descriptor, Environment, ErrorThresholds, Input, InputKind, ItemPath, JobSpec, MiniBatchSize, Output, OutputAction,
    OutputFormat, TableFormat, TableOptions, Work,
};
use tempfile::TempDir;

/// An empty folder.
pub fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

/// Writes a file below `root`, and the folders it stands in.
pub fn write(root: &Path, name: impl AsRef<OsStr>, content: impl AsRef<[u8]>) {
    let path = root.join(Path::new(name.as_ref()));
    fs::create_dir_all(path.parent().expect("below root")).expect("writable");
    fs::write(path, content).expect("writable");
}

/// A job without inputs.
pub fn job(mini_batch_size: MiniBatchSize) -> JobSpec {
    JobSpec {
        job_id: "job-20260101-000000-0000".to_owned(),
        name: "job".to_owned(),
        description: String::new(),
        entry_script: "entry.py".to_owned(),
        source_directory: ItemPath::from("/src"),
        inputs: Vec::new(),
        side_inputs: BTreeMap::new(),
        mini_batch_size,
        partition_keys: Vec::new(),
        rank_mini_batch_count: 0,
        thresholds: ErrorThresholds { error_threshold: -1, allowed_failed_count: -1, allowed_failed_percent: 100.0 },
        output: Output {
            action: OutputAction::SummaryOnly,
            folder: ItemPath::from("/output"),
            file_name: "parallel_run_step.txt".to_owned(),
            format: OutputFormat::Text,
            header: false,
            to_csv_arguments: serde_json::Map::new(),
        },
        node_count: None,
        snapshots: Default::default(),
        process_count_per_node: None,
        run_invocation_timeout_seconds: 60,
        task_overhead_timeout_seconds: 30,
        progress_update_timeout_seconds: 270,
        first_task_creation_timeout_seconds: 600,
        run_max_try: 3,
        lost_delivery_max: 3,
        logging_level: "INFO".to_owned(),
        argv: Vec::new(),
        environment: Environment::Interpreter { path: ItemPath::from("/usr/bin/python3") },
        environment_variables: BTreeMap::new(),
        resource_monitor_interval_seconds: 0,
        profiling_module: String::new(),
        nice: 0,
        strict_results: false,
        hide_unassigned_gpus: false,
        fingerprint: String::new(),
        snapshot_digest: String::new(),
        job_file: String::new(),
        allow_reuse: true,
    }
}

/// A job over files.
pub fn file_job(files: u64, paths: &[&Path]) -> JobSpec {
    let mut job = job(MiniBatchSize::Files(files));
    job.inputs.push(input("images", InputKind::File, paths));
    job
}

/// A job over tables.
pub fn table_job(format: TableFormat, size: MiniBatchSize, paths: &[&Path]) -> JobSpec {
    let mut job = job(size);
    let mut input = input("sales", InputKind::Tabular, paths);
    input.table = TableOptions { format, ..TableOptions::default() };
    job.inputs.push(input);
    job
}

/// An input without options.
pub fn input(name: &str, kind: InputKind, paths: &[&Path]) -> Input {
    Input {
        name: name.to_owned(),
        kind,
        paths: paths.iter().copied().map(ItemPath::from).collect(),
        partition_format: None,
        table: TableOptions::default(),
    }
}

/// All descriptors of a job that can be planned.
pub fn descriptors(job: &JobSpec) -> Vec<Descriptor> {
    partitioner::plan(job).collect::<Result<_, _>>().expect("the job can be planned")
}

/// Why a job cannot be planned.
pub fn refusal(job: &JobSpec) -> String {
    let mut plan = partitioner::plan(job);
    let refused = plan.find_map(Result::err).expect("the job cannot be planned");
    assert!(plan.next().is_none(), "nothing follows an error");
    refused.to_string()
}

/// The files of each mini-batch, relative to `root`.
pub fn file_batches(root: &Path, job: &JobSpec) -> Vec<Vec<String>> {
    descriptors(job).iter().map(|descriptor| files_of(root, descriptor)).collect()
}

/// The files of one mini-batch, relative to `root`; bytes that are no text are escaped.
pub fn files_of(root: &Path, descriptor: &Descriptor) -> Vec<String> {
    let Work::Files { paths, .. } = &descriptor.work else { panic!("{descriptor:?} has no files") };
    let relative = paths.iter().map(|path| path.as_path().strip_prefix(root).expect("below the root"));
    relative.map(|path| path.as_os_str().as_bytes().escape_ascii().to_string()).collect()
}
