//! Jobs over folders of a test.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use partitioner::Inputs;
use protocol::{
    BlockRange, Descriptor, Input, InputKind, ItemPath, JobSpec, MiniBatchSize, TableFormat,
    TableOptions, TableSchema, Work,
};
use storage::PlanComplete;
use tempfile::TempDir;

/// Creates an empty folder.
pub fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

/// Writes a file below `root`, with its folders.
pub fn write(root: &Path, name: impl AsRef<OsStr>, content: impl AsRef<[u8]>) {
    let path = root.join(Path::new(name.as_ref()));
    fs::create_dir_all(path.parent().expect("below root")).expect("writable");
    fs::write(path, content).expect("writable");
}

/// Returns a job without inputs.
pub fn job(mini_batch_size: MiniBatchSize) -> JobSpec {
    JobSpec { mini_batch_size, ..JobSpec::example() }
}

/// Returns a job over files.
pub fn file_job(files: u64, paths: &[&Path]) -> JobSpec {
    let mut job = job(MiniBatchSize::Files(files));
    job.inputs.push(input("images", InputKind::File, paths));
    job
}

/// Returns a job over tables.
pub fn table_job(format: TableFormat, size: MiniBatchSize, paths: &[&Path]) -> JobSpec {
    let mut job = job(size);
    let mut input = input("sales", InputKind::Tabular, paths);
    input.table = TableOptions { format, ..TableOptions::default() };
    job.inputs.push(input);
    job
}

/// Returns an input without options.
pub fn input(name: &str, kind: InputKind, paths: &[&Path]) -> Input {
    Input {
        name: name.to_owned(),
        kind,
        paths: paths.iter().copied().map(ItemPath::from).collect(),
        partition_format: None,
        table: TableOptions::default(),
    }
}

/// Returns all descriptors of a job that can be planned.
pub fn descriptors(job: &JobSpec) -> Vec<Descriptor> {
    Inputs::default().plan(job).collect::<Result<_, _>>().expect("the job can be planned")
}

/// Returns the totals of a job that can be planned.
pub fn totals(job: &JobSpec) -> PlanComplete {
    let mut plan = Inputs::default().plan(job);
    plan.by_ref().for_each(|planned| drop(planned.expect("the job can be planned")));
    plan.totals()
}

/// Returns the columns of the first input, which is text.
pub fn schema(job: &JobSpec) -> TableSchema {
    let mut schemas = Inputs::default().plan(job).schemas().expect("readable");
    schemas.remove(0).expect("text has a schema")
}

/// Returns a range of rows of a Parquet file.
pub fn group(row_group: u32, offset: u64, rows: u64) -> BlockRange {
    BlockRange::RowGroup { row_group, offset, rows }
}

/// Returns why a job cannot be planned.
pub fn refusal(job: &JobSpec) -> String {
    let mut plan = Inputs::default().plan(job);
    let refused = plan.find_map(Result::err).expect("the job cannot be planned");
    assert!(plan.next().is_none(), "nothing follows an error");
    format!("{refused:#}")
}

/// Returns the files of each mini-batch, relative to `root`.
pub fn file_batches(root: &Path, job: &JobSpec) -> Vec<Vec<String>> {
    descriptors(job).iter().map(|descriptor| files_of(root, descriptor)).collect()
}

/// Returns the files of one mini-batch, relative to `root`; bytes that are not text are escaped.
pub fn files_of(root: &Path, descriptor: &Descriptor) -> Vec<String> {
    let Work::Files { paths, .. } = &descriptor.work else { panic!("{descriptor:?} has no files") };
    let relative =
        paths.iter().map(|path| path.as_path().strip_prefix(root).expect("below the root"));
    relative.map(|path| path.as_os_str().as_bytes().escape_ascii().to_string()).collect()
}
