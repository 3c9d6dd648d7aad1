//! A descriptor becomes what `run()` gets: a list of local paths, or a table in shared memory.
//!
//! This happens before a process asks, beside the runs of other mini-batches. Remote files are downloaded once a node;
//! tables are read, split and decoded here, so that Python sees a frame and no text.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use protocol::{
    Block, BlockRange, Descriptor, ErrorReport, ItemPath, JobSpec, Payload, TableOptions, TableSchema, Work,
};
use storage::JobStore;
use tables::{DecodeRequest, Decoder, IpcStream, LocalBlock};
use tokio::sync::{Mutex, OnceCell};

use crate::lease::LeaseId;
use crate::python_process::memory_file;
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
    store: JobStore,
    /// Where remote files are kept.
    cache: PathBuf,
    schemas: OnceCell<Vec<Option<TableSchema>>>,
    /// Chunk of the plan that was read last: descriptors that point there come in runs.
    chunk: Mutex<Option<(u64, Bytes)>>,
    /// One download a file at a time.
    downloads: Mutex<HashMap<PathBuf, Arc<Mutex<()>>>>,
}

/// A table as it was read.
struct Table {
    file: std::os::fd::OwnedFd,
    bytes: u64,
    rows: u64,
    failed_records: u64,
    warnings: Vec<protocol::Warning>,
    warnings_total: u64,
}

/// Memory that preparing a mini-batch is expected to take.
pub fn expected_bytes(descriptor: &Descriptor) -> u64 {
    let Work::Rows { blocks, .. } = &descriptor.work else { return 0 };
    let expected = |block: &Block| match block.range {
        BlockRange::Lines { first, last } => match std::fs::metadata(block.path.as_path()) {
            Ok(metadata) => last.min(metadata.len()).saturating_sub(first),
            Err(_) => 0,
        },
        BlockRange::WholeText => std::fs::metadata(block.path.as_path()).map_or(0, |metadata| metadata.len()),
        // Eight columns of eight bytes, for want of anything better before the file is opened.
        BlockRange::RowGroup { rows, .. } => rows * 64,
    };
    blocks.iter().map(expected).sum()
}

impl Preparer {
    /// For one job on one node.
    pub fn new(spec: Arc<JobSpec>, store: JobStore, cache: PathBuf) -> Self {
        Self {
            spec,
            store,
            cache,
            schemas: OnceCell::new(),
            chunk: Mutex::new(None),
            downloads: Mutex::new(HashMap::new()),
        }
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
                    file: Some(Arc::new(table.file)),
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
            Work::Files { paths, .. } => self.local_all(paths).await.map(|paths| {
                let total = paths.len() as u64;
                let payload = Payload::Files { paths };
                Preparation::Ready(Box::new(prepared(lease, descriptor.clone(), deliveries_lost, payload, total)))
            }),
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
        Ok(Descriptor { work: planned.work, ..descriptor })
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
        let names: Vec<ItemPath> = blocks.iter().map(|block| block.path.clone()).collect();
        let local = self.local_all(&names).await?;
        let blocks = blocks.to_vec();
        let decoded = tokio::task::spawn_blocking(move || decode(&local, &blocks, &options, schema.as_ref()));
        decoded.await.context("reading the table panicked")?
    }

    async fn local_all(&self, paths: &[ItemPath]) -> Result<Vec<ItemPath>> {
        let mut local = Vec::with_capacity(paths.len());
        for path in paths {
            local.push(if path.is_url() { self.download(path).await?.into() } else { path.clone() });
        }
        Ok(local)
    }

    /// The local copy of a remote file.
    async fn download(&self, url: &ItemPath) -> Result<PathBuf> {
        let text = std::str::from_utf8(url.as_bytes()).context("a URL must be text")?;
        let digest = blake3::hash(url.as_bytes()).to_hex();
        let name = storage::file_name(text);
        let copy = self.cache.join(&digest[..16]).join(name);
        let turn = self.downloads.lock().await.entry(copy.clone()).or_default().clone();
        let _turn = turn.lock().await;
        if !copy.exists() {
            self.store.stores().download(text, None, &copy).await.with_context(|| format!("download {text}"))?;
        }
        Ok(copy)
    }
}

thread_local! {
    /// A decoder keeps its buffers, so each thread that decodes has one.
    static DECODER: RefCell<Decoder> = RefCell::default();
}

fn decode(local: &[ItemPath], blocks: &[Block], options: &TableOptions, schema: Option<&TableSchema>) -> Result<Table> {
    let local_blocks = blocks.iter().zip(local).map(|(block, path)| LocalBlock { block, path: path.as_path() });
    let local_blocks: Vec<LocalBlock> = local_blocks.collect();
    let request = DecodeRequest { blocks: &local_blocks, options, schema };
    let decoded = DECODER.with_borrow_mut(|decoder| decoder.decode(&request))?;
    let stream = IpcStream::new(&decoded.batch)?;
    Ok(Table {
        file: memory_file(stream.pieces())?,
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
        bytes: 0,
        passed: total,
        total,
        warnings: Vec::new(),
        warnings_total: 0,
    }
}
