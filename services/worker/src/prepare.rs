//! A descriptor becomes what `run()` gets: a list of local paths, or a table in shared memory.
//!
//! This happens before a process asks, beside the runs of other mini-batches. Remote files are downloaded, and removed
//! when the mini-batch is concluded; tables are read, split and decoded here, so that Python sees a frame and no text.

mod bounds;
mod remote;

use std::path::PathBuf;
use std::sync::{self, Arc, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use bounds::Bounds;
use bytes::Bytes;
use protocol::{
    Block, BlockRange, Descriptor, ErrorReport, ItemPath, JobSpec, Payload, TableOptions, TableSchema, Work,
};
pub use remote::Downloads;
use remote::{Remote, TableFile};
use storage::JobStore;
use tables::{DecodeRequest, Decoder, IpcStream, LocalBlock};
use tokio::sync::{Mutex, OnceCell};

use crate::lease::LeaseId;
use crate::memory_files::{MemoryFile, MemoryFiles};
use crate::slot::Prepared;

/// What becomes of a descriptor.
#[derive(Debug)]
pub enum Preparation {
    /// It can be handed to a process.
    Ready(Box<Prepared>),
    /// There is nothing for `run()` in it.
    Empty(Box<Prepared>),
    /// It cannot be read.
    Failed(Box<Prepared>, ErrorReport),
}

/// Everything that preparing needs. Shared by all preparations of a node.
#[derive(Debug)]
pub struct Preparer {
    spec: Arc<JobSpec>,
    bounds: Bounds,
    store: JobStore,
    remote: Remote,
    schemas: OnceCell<Vec<Option<TableSchema>>>,
    /// Chunk of the plan that was read last: descriptors that point there come in runs.
    chunk: Mutex<Option<(u64, Bytes)>>,
    files: Arc<MemoryFiles>,
    decoders: Arc<Decoders>,
}

/// Decoders that nobody uses now. Each keeps its buffers and is used again: there are as many as decode at a time, and not
/// one for each of the threads that have done so.
#[derive(Debug, Default)]
struct Decoders(sync::Mutex<Vec<Decoder>>);

/// A table as it was read.
struct Table {
    file: MemoryFile,
    bytes: u64,
    rows: u64,
    failed_records: u64,
    warnings: Vec<protocol::Warning>,
    warnings_total: u64,
}

/// Memory that preparing a mini-batch is expected to take, and room for downloads.
pub fn expected_bytes(descriptor: &Descriptor) -> u64 {
    match &descriptor.work {
        Work::Files { versions, .. } => versions.iter().fold(0, |bytes, version| bytes.saturating_add(version.bytes)),
        Work::Rows { blocks, .. } => {
            blocks.iter().fold(0, |bytes, block| bytes.saturating_add(expected_block_bytes(block)))
        }
        Work::Rank | Work::Planned { .. } => 0,
    }
}

fn expected_block_bytes(block: &Block) -> u64 {
    let file_bytes = || match &block.version {
        Some(version) => version.bytes,
        None => std::fs::metadata(block.path.as_path()).map_or(0, |metadata| metadata.len()),
    };
    match block.range {
        BlockRange::Lines { first, last } => last.min(file_bytes()).saturating_sub(first),
        BlockRange::WholeText => file_bytes(),
        // Eight columns of eight bytes, for want of anything better before the file is opened.
        BlockRange::RowGroup { rows, .. } => rows.saturating_mul(64),
    }
}

impl Preparer {
    /// For one job on one node, where tables may occupy `prefetch_bytes_max`.
    pub fn new(spec: Arc<JobSpec>, store: JobStore, cache: PathBuf, prefetch_bytes_max: u64) -> Self {
        let remote = Remote::new(store.stores().clone(), cache);
        // Free files are those that tables have needed at a time before.
        let files = Arc::new(MemoryFiles::new(prefetch_bytes_max));
        let bounds = Bounds::new(&spec);
        let decoders = Arc::default();
        Self { spec, bounds, store, remote, schemas: OnceCell::new(), chunk: Mutex::new(None), files, decoders }
    }

    /// Whether a descriptor names nothing but what is its own; in the error, what else it names.
    pub fn check(&self, descriptor: &Descriptor) -> Result<(), String> {
        self.bounds.check(descriptor)
    }

    /// Takes back the table of a mini-batch that a process has answered.
    pub fn give_back(&self, file: MemoryFile) {
        self.files.give_back(file);
    }

    /// The mini-batch, if it takes neither time nor memory to prepare it.
    pub fn at_once(&self, lease: LeaseId, descriptor: &Descriptor, deliveries_lost: u32) -> Option<Prepared> {
        let (payload, total) = match &descriptor.work {
            Work::Files { paths, .. } if !paths.iter().any(ItemPath::is_url) => {
                (Payload::Files { paths: paths.clone() }, paths.len() as u64)
            }
            Work::Rank => (Payload::Rank, 1),
            _ => return None,
        };
        Some(prepared(lease, descriptor.clone(), deliveries_lost, payload, total))
    }

    /// Reads whatever the descriptor names.
    pub async fn prepare(&self, lease: LeaseId, descriptor: Descriptor, deliveries_lost: u32) -> Preparation {
        let descriptor = match self.resolve(descriptor.clone()).await {
            Ok(resolved) => resolved,
            Err(error) => return self.failed(lease, descriptor, deliveries_lost, &error),
        };
        let result = match &descriptor.work {
            Work::Rows { input, blocks, .. } => self.table(*input, blocks).await.map(|table| {
                let total = table.rows + table.failed_records;
                let payload = Payload::Table { rows: table.rows, total, bytes: table.bytes };
                let prepared = Prepared {
                    file: Some(table.file),
                    bytes: table.bytes,
                    passed: table.rows,
                    warnings: table.warnings,
                    warnings_total: table.warnings_total,
                    ..prepared(lease, descriptor.clone(), deliveries_lost, payload, total)
                };
                if table.rows == 0 {
                    Preparation::Empty(Box::new(prepared))
                } else {
                    Preparation::Ready(Box::new(prepared))
                }
            }),
            Work::Files { paths, versions, .. } => {
                self.remote.files(paths, versions).await.map(|(paths, downloads)| {
                    let total = paths.len() as u64;
                    let payload = Payload::Files { paths };
                    let prepared = Prepared {
                        downloads: Some(Arc::new(downloads)),
                        bytes: expected_bytes(&descriptor),
                        ..prepared(lease, descriptor.clone(), deliveries_lost, payload, total)
                    };
                    Preparation::Ready(Box::new(prepared))
                })
            }
            Work::Rank => {
                Ok(Preparation::Ready(Box::new(prepared(lease, descriptor.clone(), deliveries_lost, Payload::Rank, 1))))
            }
            Work::Planned { .. } => unreachable!("resolved above"),
        };
        result.unwrap_or_else(|error| self.failed(lease, descriptor, deliveries_lost, &error))
    }

    fn failed(&self, lease: LeaseId, descriptor: Descriptor, lost: u32, error: &anyhow::Error) -> Preparation {
        let message = format!("mini-batch {} cannot be read: {error:#}", descriptor.mini_batch);
        let report = ErrorReport { category: "LoadFailed".into(), message, ..ErrorReport::default() };
        Preparation::Failed(Box::new(Prepared::unreadable(lease, descriptor, lost)), report)
    }

    /// Follows a pointer into the plan.
    async fn resolve(&self, descriptor: Descriptor) -> Result<Descriptor> {
        let Work::Planned { chunk, line } = descriptor.work else { return Ok(descriptor) };
        let mut last = self.chunk.lock().await;
        let lines = match &*last {
            Some((number, lines)) if *number == chunk => lines.clone(),
            _ => last.insert((chunk, self.store.plan_chunk(chunk).await?)).1.clone(),
        };
        drop(last);
        let line_bytes = lines.split(|byte| *byte == b'\n').nth(line as usize);
        let planned: Descriptor = line_bytes
            .and_then(|line| serde_json::from_slice(line).ok())
            .with_context(|| format!("line {line} of plan chunk {chunk} is no descriptor"))?;
        if planned.mini_batch != descriptor.mini_batch || matches!(planned.work, Work::Planned { .. }) {
            bail!("line {line} of plan chunk {chunk} is not mini-batch {}", descriptor.mini_batch);
        }
        let descriptor = Descriptor { work: planned.work, ..descriptor };
        self.check(&descriptor).map_err(|reason| anyhow!("plan chunk {chunk}, line {line}: {reason}"))?;
        Ok(descriptor)
    }

    async fn table(&self, input: u32, blocks: &[Block]) -> Result<Table> {
        let schemas = self.schemas.get_or_try_init(|| self.store.schemas()).await?;
        let schema = schemas.get(input as usize).cloned().flatten();
        let options = self
            .spec
            .inputs
            .get(input as usize)
            .with_context(|| format!("the job has no input {input}"))?
            .table
            .clone();
        let local = self.remote.tables(blocks).await?;
        let (blocks, files, decoders) = (blocks.to_vec(), self.files.clone(), self.decoders.clone());
        let decoded = tokio::task::spawn_blocking(move || {
            let mut decoder = decoders.take();
            let table = decode(&mut decoder, &local, &blocks, &options, schema.as_ref(), &files);
            decoders.give_back(decoder);
            table
        });
        decoded.await.context("reading the table panicked")?
    }
}

impl Decoders {
    fn take(&self) -> Decoder {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give_back(&self, decoder: Decoder) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(decoder);
    }
}

fn decode(
    decoder: &mut Decoder,
    local: &[TableFile],
    blocks: &[Block],
    options: &TableOptions,
    schema: Option<&TableSchema>,
    files: &MemoryFiles,
) -> Result<Table> {
    let paths: Vec<PathBuf> = local.iter().map(TableFile::path).collect();
    let local_blocks = blocks.iter().zip(local.iter().zip(&paths));
    let local_blocks: Vec<LocalBlock> =
        local_blocks.map(|(block, (file, path))| LocalBlock { block, path, has_holes: file.has_holes() }).collect();
    let request = DecodeRequest { blocks: &local_blocks, options, schema };
    let decoded = decoder.decode(&request)?;
    let stream = IpcStream::new(&decoded.batch)?;
    Ok(Table {
        file: files.fill(stream.pieces())?,
        bytes: stream.bytes(),
        rows: decoded.rows,
        failed_records: decoded.failed_records,
        warnings: decoded.warnings,
        warnings_total: decoded.warnings_total,
    })
}

fn prepared(lease: LeaseId, descriptor: Descriptor, lost: u32, payload: Payload, total: u64) -> Prepared {
    Prepared {
        lease,
        descriptor,
        deliveries_lost: lost,
        payload,
        file: None,
        downloads: None,
        bytes: 0,
        passed: total,
        total,
        warnings: Vec::new(),
        warnings_total: 0,
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Input, InputKind, TableFormat};

    use super::*;

    #[tokio::test]
    async fn a_decoder_is_used_again_whichever_thread_decodes() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("a.csv");
        std::fs::write(&file, "id\n1\n2\n").expect("writable");
        let table = TableOptions { format: TableFormat::Csv, ..TableOptions::default() };
        let schema = tables::infer_schema([file.as_path()], &table, &[]).expect("readable");
        let path = ItemPath::from(file);
        let (name, paths) = ("rows".to_owned(), vec![path.clone()]);
        let input = Input { name, kind: InputKind::Tabular, paths, partition_format: None, table };
        let spec = JobSpec { inputs: vec![input], ..JobSpec::example() };
        let store = JobStore::local(folder.path()).expect("folder exists");
        store.put_schemas(&[schema]).await.expect("writable");
        let preparer = Preparer::new(Arc::new(spec), store, folder.path().join("cache"), 1 << 20);
        let blocks = [Block { path, version: None, range: BlockRange::WholeText, path_columns: vec![] }];
        for _ in 0..3 {
            // The thread that has decoded before is busy, so that another one has to.
            let (leave, left) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || left.recv());
            assert_eq!(preparer.table(0, &blocks).await.expect("readable").rows, 2);
            drop(leave);
            busy.await.expect("no panic").expect_err("told by hanging up");
        }
        assert_eq!(preparer.decoders.0.lock().expect("no panic").len(), 1);
    }
}
