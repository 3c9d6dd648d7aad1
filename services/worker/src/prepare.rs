//! Prepares the argument of `run()` from a descriptor: a list of local paths, or a table in shared memory.
//!
//! This happens before a process needs it, while other mini-batches run. The agent downloads remote files, and removes
//! them when the attempt has ended. It reads, splits and decodes tables, so that Python gets a frame instead of text.
//! Inputs that have changed since they were planned fail the mini-batch.

mod bounds;
mod local;
mod prepared;
mod remote;

use std::io;
use std::path::PathBuf;
use std::sync::{self, Arc, PoisonError};

use anyhow::{Context, Result, bail};
use bounds::{Bounds, OutOfBounds};
use bytes::Bytes;
pub use prepared::{Preparation, Prepared};
use protocol::{
    Block, BlockRange, Descriptor, ErrorReport, JobSpec, Kept, Payload, TableForm, TableOptions,
    TableSchema, Work, is_part_of,
};
use remote::{Remote, TableFile};
use rustix::io::Errno;
use storage::JobStore;
use tables::{DecodeRequest, Decoder, IpcStream, LocalBlock};
use tokio::sync::{Mutex, OnceCell};

use crate::cache::is_full;
use crate::memory_files::{MemoryFile, MemoryFiles};

/// Prepares the mini-batches of one job on one node.
pub struct Preparer {
    spec: Arc<JobSpec>,
    bounds: Bounds,
    store: JobStore,
    remote: Remote,
    schemas: OnceCell<Vec<Option<TableSchema>>>,
    /// The last chunk of the plan that was read: descriptors that point into one chunk follow each other.
    chunk: Mutex<Option<(u64, Bytes)>>,
    files: Arc<MemoryFiles>,
    /// Idle decoders, which keep their buffers. There are as many as decode concurrently, not one for each thread that
    /// has ever decoded.
    decoders: Arc<sync::Mutex<Vec<Decoder>>>,
}

/// Returns the expected memory of a prepared mini-batch, including downloads.
pub fn expected_bytes(descriptor: &Descriptor) -> u64 {
    match &descriptor.work {
        Work::Files { versions, .. } => {
            let remote = versions.iter().filter(|version| version.modified.is_none());
            remote.map(|version| version.bytes).fold(0, u64::saturating_add)
        }
        Work::Rows { blocks, .. } => {
            blocks.iter().map(expected_block_bytes).fold(0, u64::saturating_add)
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
        BlockRange::Records { start, end } => end.saturating_sub(start),
        // Eight columns of eight bytes: a guess, since the file is not open yet.
        BlockRange::RowGroup { rows, .. } => rows.saturating_mul(64),
    }
}

impl Preparer {
    /// Creates a preparer whose tables may occupy `prefetch_bytes_max`.
    pub fn new(
        spec: Arc<JobSpec>,
        store: JobStore,
        cache: PathBuf,
        prefetch_bytes_max: u64,
    ) -> Self {
        let remote = Remote::new(store.stores().clone(), cache);
        let files = Arc::new(MemoryFiles::new(prefetch_bytes_max));
        let bounds = Bounds::new(&spec);
        let (schemas, chunk, decoders) = (OnceCell::new(), Mutex::new(None), Arc::default());
        Self { spec, bounds, store, remote, schemas, chunk, files, decoders }
    }

    /// Checks that a descriptor names only inputs of its job and its own line of the plan.
    pub fn check(&self, descriptor: &Descriptor) -> Result<(), OutOfBounds> {
        self.bounds.check(descriptor)
    }

    /// Reuses the table of a mini-batch that a process has answered.
    pub fn recycle(&self, file: MemoryFile) {
        self.files.recycle(file);
    }

    /// Prepares a mini-batch. Also returns the descriptor, in which the mini-batch replaces a pointer into the plan.
    pub async fn prepare(&self, descriptor: Descriptor) -> (Descriptor, Preparation) {
        let number = descriptor.mini_batch;
        let failed = |error: anyhow::Error| {
            let message = format!("mini-batch {number} cannot be read: {error:#}");
            let report =
                ErrorReport { category: "LoadFailed".into(), message, ..ErrorReport::default() };
            if is_full(&error) {
                Preparation::NoRoom(report)
            } else if is_unreachable(&error) {
                Preparation::Unreachable(report)
            } else {
                Preparation::Failed(report)
            }
        };
        let descriptor = match self.resolve(descriptor.clone()).await {
            Ok(resolved) => resolved,
            Err(error) => return (descriptor, failed(error)),
        };
        let preparation = match self.read(&descriptor).await {
            Ok(Preparation::Ready(prepared)) => with_kept(&self.store, &descriptor, prepared).await,
            other => other,
        };
        let preparation = preparation.unwrap_or_else(failed);
        (descriptor, preparation)
    }

    async fn read(&self, descriptor: &Descriptor) -> Result<Preparation> {
        if let Some(prepared) = Prepared::without_reading(descriptor) {
            return Ok(Preparation::Ready(prepared.into()));
        }
        let prepared = match &descriptor.work {
            Work::Rows { input, blocks, .. } => self.table(*input, blocks).await?,
            Work::Files { paths, versions, .. } => {
                let (paths, downloads) = self.remote.files(paths, versions).await?;
                let total = paths.len() as u64;
                let payload = Payload::Files { paths, stamps: Vec::new() };
                let (downloads, bytes) = (Some(Arc::new(downloads)), expected_bytes(descriptor));
                Prepared { downloads, bytes, ..Prepared::new(payload, total) }
            }
            Work::Rank => Prepared::new(Payload::Rank, 1),
            Work::Planned { .. } => unreachable!("resolved above"),
        };
        let is_empty = match *prepared.payload {
            Payload::Table { rows: 0, total: 0, .. } => !self.runs_without_rows(descriptor).await?,
            Payload::Table { rows, .. } => rows == 0,
            _ => false,
        };
        Ok(if is_empty {
            Preparation::Empty(prepared.into())
        } else {
            Preparation::Ready(prepared.into())
        })
    }

    /// Returns the places of some rows of a mini-batch for people, such as `data.csv, line 7`, in their order; `None` for
    /// rows whose place would take reading more of an object. The rows are those of the script, which gets them as
    /// `takes` says. Reads the mini-batch again.
    pub async fn row_places(
        &self,
        descriptor: &Descriptor,
        rows: Vec<u64>,
        takes: TableForm,
    ) -> Vec<Option<String>> {
        let unknown = vec![None; rows.len()];
        let Work::Rows { input, blocks, .. } = &descriptor.work else { return unknown };
        let Some(known) = self.spec.inputs.get(*input as usize) else { return unknown };
        let is_at_hand = |block: &Block| {
            !block.path.is_url() || tables::is_read_from_front(block.path.as_bytes(), &known.table)
        };
        if rows.is_empty() || !blocks.iter().all(is_at_hand) {
            return unknown;
        }
        let Ok(table) = self.local_table(*input, blocks).await else { return unknown };
        let places = self.with_decoder(move |decoder| {
            let with_lines = takes == TableForm::Items;
            table.request(with_lines, |request| decoder.row_places(request, &rows))
        });
        places.await.ok().and_then(std::result::Result::ok).unwrap_or(unknown)
    }

    /// Runs a function with an idle decoder, in a thread that may block.
    async fn with_decoder<T: Send + 'static>(
        &self,
        function: impl FnOnce(&mut Decoder) -> T + Send + 'static,
    ) -> Result<T> {
        let decoders = self.decoders.clone();
        let run = tokio::task::spawn_blocking(move || {
            let idle = || decoders.lock().unwrap_or_else(PoisonError::into_inner);
            let mut decoder = idle().pop().unwrap_or_default();
            let result = function(&mut decoder);
            idle().push(decoder);
            result
        });
        run.await.context("reading the table panicked")
    }

    /// Resolves a pointer into the plan.
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
            .with_context(|| format!("line {line} of plan chunk {chunk} is not a descriptor"))?;
        if planned.mini_batch != descriptor.mini_batch
            || matches!(planned.work, Work::Planned { .. })
        {
            bail!("line {line} of plan chunk {chunk} is not mini-batch {}", descriptor.mini_batch);
        }
        let Descriptor { work, shown_as, again, .. } = planned.run_again(descriptor.again.clone());
        let descriptor = Descriptor { work, shown_as, again, ..descriptor };
        self.check(&descriptor).with_context(|| format!("plan chunk {chunk}, line {line}"))?;
        Ok(descriptor)
    }

    /// Whether `run` gets this table although it has no rows: it is the first mini-batch of a job whose inputs have none.
    async fn runs_without_rows(&self, descriptor: &Descriptor) -> Result<bool> {
        if !self.spec.run_without_rows || descriptor.mini_batch > 0 {
            return Ok(false);
        }
        let schemas = self.schemas.get_or_try_init(|| self.store.schemas()).await?;
        // The plan knows the rows of other formats.
        let is_empty =
            |schema: &Option<TableSchema>| schema.as_ref().is_some_and(|schema| schema.is_empty);
        Ok(descriptor.items() == Some(0) || schemas.iter().all(is_empty))
    }

    async fn table(&self, input: u32, blocks: &[Block]) -> Result<Prepared> {
        let (table, files) = (self.local_table(input, blocks).await?, self.files.clone());
        self.with_decoder(move |decoder| table.decode(decoder, &files)).await?
    }

    async fn local_table(&self, input: u32, blocks: &[Block]) -> Result<LocalTable> {
        let schemas = self.schemas.get_or_try_init(|| self.store.schemas()).await?;
        let schema = schemas.get(input as usize).cloned().flatten();
        let known = self.spec.inputs.get(input as usize);
        let options = known.with_context(|| format!("the job has no input {input}"))?.table.clone();
        let files = self.remote.tables(blocks, &options).await?;
        Ok(LocalTable { files, blocks: blocks.to_vec(), options, schema })
    }
}

/// Adds the rows that an earlier round of the job has kept of a mini-batch.
pub async fn with_kept(
    store: &JobStore,
    descriptor: &Descriptor,
    mut prepared: Box<Prepared>,
) -> Result<Preparation> {
    let name = descriptor.again.as_ref().and_then(|again| again.kept.as_ref());
    let Some(name) = name else { return Ok(Preparation::Ready(prepared)) };
    if !is_part_of(name, descriptor.mini_batch) {
        bail!("{name:?} is not a part of it");
    }
    let content = store.part(name).await.with_context(|| format!("read parts/{name}"))?;
    let (kept, rows) = Kept::decode(&content).with_context(|| format!("read parts/{name}"))?;
    let found = prepared.as_items.as_ref().map_or(prepared.passed, |items| items.rows);
    if let Some((first, end)) = kept.ranges.last().filter(|(_, end)| *end > found) {
        bail!("{} has {found} items, and items {first} to {end} run again", descriptor.detail());
    }
    // The round that first read the mini-batch has reported them.
    (prepared.warnings, prepared.warnings_of_pandas) = Default::default();
    if kept.is_separate {
        prepared.passed = kept.items().saturating_add(kept.succeeded);
        prepared.total = prepared.passed;
        prepared.unread.clear();
        prepared.as_items = None;
    }
    prepared.bytes += content.len() as u64;
    prepared.kept = Some((kept, content.slice(rows..)));
    Ok(Preparation::Ready(prepared))
}

/// Whether the node, and not the mini-batch, causes an error: a store does not answer or denies
/// access, even to objects that the node has read before, or the node has no file descriptor left.
fn is_unreachable(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let code = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        let code = code.or_else(|| Some(cause.downcast_ref::<Errno>()?.raw_os_error()));
        matches!(
            cause.downcast_ref(),
            Some(storage::Error::Unavailable { .. } | storage::Error::Denied { .. })
        ) || code.is_some_and(|code| {
            [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).contains(&code)
        })
    })
}

/// Blocks whose files are local, one for each.
struct LocalTable {
    files: Vec<TableFile>,
    blocks: Vec<Block>,
    options: TableOptions,
    schema: Option<TableSchema>,
}

impl LocalTable {
    /// Calls a function with the request to decode the blocks.
    fn request<T>(&self, with_lines: bool, function: impl FnOnce(&DecodeRequest) -> T) -> T {
        let Self { files, blocks, options, schema } = self;
        let paths: Vec<PathBuf> = files.iter().map(TableFile::path).collect();
        let blocks = blocks.iter().zip(files.iter().zip(&paths));
        let blocks: Vec<LocalBlock> = blocks
            .map(|(block, (file, path))| LocalBlock { block, path, has_holes: file.has_holes() })
            .collect();
        function(&DecodeRequest { blocks: &blocks, options, schema: schema.as_ref(), with_lines })
    }

    fn decode(&self, decoder: &mut Decoder, files: &MemoryFiles) -> Result<Prepared> {
        let decoded = self.request(true, |request| decoder.decode(request));
        // After the file was read, and before an error that a change may have caused.
        local::check_blocks(&self.blocks)?;
        let decoded = decoded?;
        let stream = IpcStream::new(&decoded.batch)?;
        let (rows, total, bytes) =
            (decoded.rows, decoded.rows + decoded.failed_records, stream.bytes());
        let is_declared = !self.options.format.is_text();
        Ok(Prepared {
            file: Some(files.fill(stream.pieces())?),
            bytes,
            passed: rows,
            unread: decoded.unread,
            warnings: decoded.warnings,
            warnings_of_pandas: decoded.warnings_of_pandas,
            as_items: decoded.as_items,
            ..Prepared::new(Payload::Table { rows, total, bytes, is_declared }, total)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use object_store::http::HttpBuilder;
    use object_store::{ClientOptions, RetryConfig};
    use protocol::{FileVersion, Input, InputKind, ItemPath, TableFormat};

    use super::*;
    use crate::node::tests::{serve, unused_address};

    /// A node that reads files from a store, which answers each request by the path of its object.
    struct Reader {
        _folder: tempfile::TempDir,
        address: String,
        preparer: Preparer,
    }

    impl Reader {
        fn of(address: String) -> Self {
            let folder = tempfile::tempdir().expect("temporary folder");
            let store = JobStore::local(folder.path()).expect("folder exists");
            let options = ClientOptions::new().with_allow_http(true);
            let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
            let http = HttpBuilder::new()
                .with_url(&address)
                .with_client_options(options)
                .with_retry(retry);
            let url = url::Url::parse(&address).expect("a URL");
            store.stores().stand_in(&url, Arc::new(http.build().expect("complete")));
            let preparer = Preparer::new(
                Arc::new(JobSpec::example()),
                store,
                folder.path().join("cache"),
                1 << 20,
            );
            Self { _folder: folder, address, preparer }
        }

        async fn prepare(&self, name: &str) -> &'static str {
            let version = FileVersion { bytes: 0, etag: None, modified: None };
            let (paths, versions) =
                (vec![format!("{}/{name}", self.address).as_str().into()], vec![version]);
            let work = Work::Files { input: 0, paths, versions, stamps: vec![], key: vec![] };
            match self.preparer.prepare(Descriptor::new("job", 0, work)).await.1 {
                Preparation::Ready(_) => "ready",
                Preparation::Failed(_) => "failed",
                Preparation::Unreachable(_) => "unreachable",
                other => panic!("{other:?}"),
            }
        }
    }

    /// Answers 200 for an object `good` unless `is_away` is set, and each other object with the status in its name.
    fn answer(is_away: &AtomicBool, request: &str) -> Option<(&'static str, &'static str)> {
        let statuses =
            ["503 Service Unavailable", "403 Forbidden", "401 Unauthorized", "404 Not Found"];
        let named =
            statuses.into_iter().find(|status| request.contains(&format!("/{}", &status[..3])));
        let status = match named {
            Some(status) => status,
            None if is_away.load(Ordering::SeqCst) => "403 Forbidden",
            None => "200 OK\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT",
        };
        request.ends_with("\r\n\r\n").then_some((status, ""))
    }

    /// A sample of many files may show none, and then the plan has the mini-batches of all.
    #[tokio::test]
    async fn first_mini_batch_runs_without_rows_if_no_file_has_any() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a.csv");
        std::fs::write(&path, "x\n").expect("writable");
        let schema = |is_empty| {
            let columns = vec![protocol::TableColumn::new("x", protocol::ColumnType::Integer)];
            Some(TableSchema { columns, is_empty })
        };
        let range = BlockRange::Lines { first: 0, last: 100 };
        let block =
            Block { path: path.as_path().into(), version: None, range, path_columns: vec![] };
        let work = Work::Rows { input: 0, blocks: vec![block], rows_before: None, key: vec![] };
        for (run_without_rows, is_empty, mini_batch, runs) in [
            (true, true, 0, true),
            (false, true, 0, false),
            (true, false, 0, false),
            (true, true, 1, false),
        ] {
            let own = folder.path().join(format!("{run_without_rows}-{is_empty}-{mini_batch}"));
            std::fs::create_dir(&own).expect("writable");
            let store = JobStore::local(&own).expect("a folder");
            store.put_schemas(&[schema(is_empty)]).await.expect("written");
            let inputs = vec![Input {
                name: "data".into(),
                kind: InputKind::Tabular,
                paths: vec![],
                partition_format: None,
                table: TableOptions::default(),
            }];
            let spec = JobSpec { run_without_rows, inputs, ..JobSpec::example() };
            let preparer =
                Preparer::new(Arc::new(spec), store, folder.path().join("cache"), 1 << 20);
            let preparation =
                preparer.prepare(Descriptor::new("job", mini_batch, work.clone())).await.1;
            assert_eq!(matches!(preparation, Preparation::Ready(_)), runs, "{preparation:?}");
        }
    }

    #[tokio::test]
    async fn store_that_does_not_answer_is_not_a_fault_of_the_input() {
        let is_away = Arc::new(AtomicBool::new(false));
        let answers = is_away.clone();
        let reader = Reader::of(serve(move |request| answer(&answers, request)).await);
        for name in ["503", "403", "401"] {
            assert_eq!(reader.prepare(name).await, "unreachable", "{name}");
        }
        assert_eq!(reader.prepare("404").await, "failed");
        assert_eq!(reader.prepare("good").await, "ready");
        for name in ["503", "403", "401"] {
            assert_eq!(reader.prepare(name).await, "failed", "it serves others, {name}");
        }
        is_away.store(true, Ordering::SeqCst);
        for name in ["403", "good"] {
            assert_eq!(reader.prepare(name).await, "unreachable", "{name}");
        }
        assert_eq!(Reader::of(unused_address().await).prepare("a").await, "unreachable");
    }

    #[test]
    fn lack_of_descriptors_is_not_a_fault_of_the_input() {
        let error = |errno: Errno| anyhow::Error::from(errno).context("create a memory file");
        assert!(is_unreachable(&error(Errno::MFILE)) && is_unreachable(&error(Errno::NFILE)));
        assert!(is_unreachable(
            &anyhow::Error::from(io::Error::from(Errno::MFILE)).context("open it")
        ));
        assert!(!is_unreachable(&error(Errno::INVAL)));
    }

    #[tokio::test]
    async fn decoder_is_reused_by_any_thread() {
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
        let blocks =
            [Block { path, version: None, range: BlockRange::WholeText, path_columns: vec![] }];
        for _ in 0..3 {
            // The thread that decoded before is busy, so another one decodes.
            let (leave, left) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || left.recv());
            assert_eq!(preparer.table(0, &blocks).await.expect("readable").passed, 2);
            drop(leave);
            busy.await.expect("no panic").expect_err("the sender is dropped");
        }
        assert_eq!(preparer.decoders.lock().expect("no panic").len(), 1);
    }
}
