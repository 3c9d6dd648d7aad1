//! One job's objects.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use protocol::{Durability, JobResult, JobSpec, Progress, TableSchema};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::create::{Commit, create};
use crate::{Error, PlanComplete, Result, Stores, disk};

/// The objects of one job.
#[derive(Clone, Debug)]
pub struct JobStore {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The same one for commits: what it has written is as durable as the job wants it.
    pub(crate) commits: Arc<dyn ObjectStore>,
    pub(crate) durability: Durability,
    /// Prefix of every object in `store`; empty for a local job, whose store is rooted in its folder.
    pub(crate) prefix: ObjectPath,
    /// The folder, where there is one.
    pub(crate) folder: Option<PathBuf>,
    /// The URL of the job, ending with a slash, for messages; empty for a local job.
    pub(crate) url: String,
    /// Opens what lies elsewhere.
    pub(crate) stores: Stores,
    /// The job that it is looked for by, where others lie beside it.
    pub(crate) job_id: Option<String>,
}

/// A part, as it arrives.
pub struct PartStream {
    bytes: u64,
    object: String,
    pieces: BoxStream<'static, object_store::Result<Bytes>>,
}

impl JobStore {
    /// A job in a local folder, which must exist.
    pub fn local(folder: &Path) -> Result<Self> {
        let store: Arc<dyn ObjectStore> = Arc::new(open_folder(folder)?);
        Ok(Self {
            commits: Arc::clone(&store),
            store,
            durability: Durability::Process,
            prefix: ObjectPath::default(),
            folder: Some(folder.to_owned()),
            url: String::new(),
            stores: Stores::default(),
            job_id: None,
        })
    }

    /// A job below `prefix` of any store.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: ObjectPath) -> Self {
        let commits = Arc::clone(&store);
        let (url, stores) = (String::new(), Stores::default());
        Self { store, commits, durability: Durability::Process, prefix, folder: None, url, stores, job_id: None }
    }

    /// The same local job, with commits that survive what it wants them to survive: each file is forced to disk before
    /// it gets its name, and its folder after that.
    pub fn with_durability(mut self, durability: Durability) -> Result<Self> {
        if let Some(folder) = &self.folder {
            self.commits = Arc::new(open_folder(folder)?.with_fsync(durability == Durability::Full));
            self.durability = durability;
        }
        Ok(self)
    }

    /// The job's folder, on a disk of this machine or one that it shares with others; `None` in any other store.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Opens inputs and outputs, with the settings of the compute target.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The URL of one of the job's objects, such as `logs`, for people; its path where the job has a folder.
    pub fn shown(&self, name: &str) -> String {
        match &self.folder {
            Some(folder) => folder.join(name).display().to_string(),
            None => self.name(name),
        }
    }

    /// Writes `spec.json`.
    pub async fn put_spec(&self, spec: &JobSpec) -> Result<()> {
        self.commit_json("spec.json", spec).await
    }

    /// Reads `spec.json`. One of another job, or with names that lead elsewhere, is damaged.
    pub async fn spec(&self) -> Result<JobSpec> {
        let spec: JobSpec = self.json("spec.json").await?;
        let other = self.job_id.as_ref().filter(|id| **id != spec.job_id);
        let fault = other.map(|id| format!("it is that of job {:?}, not of {id}", spec.job_id));
        match fault.or_else(|| spec.fault()) {
            Some(message) => Err(Error::Damaged { object: self.name("spec.json"), message }),
            None => Ok(spec),
        }
    }

    /// Writes a chunk of the plan: descriptors, one JSON line each. Returns `Lost` if it is there already.
    pub async fn create_plan_chunk(&self, chunk: u64, lines: Bytes) -> Result<Commit> {
        self.create(&plan_chunk(chunk), lines.into()).await
    }

    /// Replaces a chunk of the plan that is cut short.
    pub async fn replace_plan_chunk(&self, chunk: u64, lines: Bytes) -> Result<()> {
        self.commit(&plan_chunk(chunk), lines).await
    }

    /// Reads a chunk of the plan.
    pub async fn plan_chunk(&self, chunk: u64) -> Result<Bytes> {
        self.get(&plan_chunk(chunk)).await
    }

    /// Whether a chunk of the plan is there.
    pub async fn has_plan_chunk(&self, chunk: u64) -> Result<bool> {
        let name = plan_chunk(chunk);
        match self.store.head(&self.path(&name)).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(Error::from_store(&self.name(&name), error)),
        }
    }

    /// Writes the schemas: one entry an input, `None` for files and for tables that carry their own (Parquet).
    pub async fn put_schemas(&self, schemas: &[Option<TableSchema>]) -> Result<()> {
        self.commit_json("plan/schemas.json", schemas).await
    }

    /// Reads the schemas.
    pub async fn schemas(&self) -> Result<Vec<Option<TableSchema>>> {
        self.json("plan/schemas.json").await
    }

    /// Says that the plan is whole.
    pub async fn put_plan_complete(&self, complete: &PlanComplete) -> Result<()> {
        self.commit_json("plan/complete.json", complete).await
    }

    /// The plan's totals, once it is whole.
    pub async fn plan_complete(&self) -> Result<Option<PlanComplete>> {
        optional(self.json("plan/complete.json").await)
    }

    /// Commits a ledger segment: these pieces, one after the other. `Lost` means that another reducer has committed it; its
    /// records are no less true.
    pub async fn commit_segment(&self, sequence: u64, pieces: Vec<Bytes>) -> Result<Commit> {
        self.create(&ledger_segment(sequence), pieces.into_iter().collect()).await
    }

    /// Replaces a ledger segment by what can be read of it. Only where nobody else serves the job.
    pub async fn replace_segment(&self, sequence: u64, records: Bytes) -> Result<()> {
        self.commit(&ledger_segment(sequence), records).await
    }

    /// Reads a whole ledger segment; `None`: it was never committed, so the ledger ends before it.
    pub async fn segment(&self, sequence: u64) -> Result<Option<Bytes>> {
        optional(self.get(&ledger_segment(sequence)).await)
    }

    /// Reads a range of bytes of a ledger segment.
    pub async fn segment_range(&self, sequence: u64, range: Range<u64>) -> Result<Bytes> {
        self.range(&ledger_segment(sequence), range).await
    }

    /// The file of a ledger segment, for local jobs.
    pub fn segment_file(&self, sequence: u64) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(ledger_segment(sequence)))
    }

    /// Writes a part. Names are unique to an attempt, so nothing is overwritten. Before parts are announced,
    /// [`commit_parts`](Self::commit_parts) is called once for all of them.
    pub async fn put_part(&self, name: &str, rows: Bytes) -> Result<()> {
        self.put(&part(name), rows).await
    }

    /// Makes all parts that were written as durable as the job wants them: one call for many, which forces everything
    /// to disk that the file system of the job's folder still holds in memory.
    pub async fn commit_parts(&self) -> Result<()> {
        let Some(folder) = self.folder.as_ref().filter(|_| self.durability == Durability::Full) else { return Ok(()) };
        let parts = folder.join("parts");
        let object = parts.display().to_string();
        let forced = tokio::task::spawn_blocking(move || disk::sync_file_system(&parts));
        let forced = forced.await.expect("it does not panic");
        forced.map_err(|error| Error::unavailable(&object, error))
    }

    /// Reads a part.
    pub async fn part(&self, name: &str) -> Result<Bytes> {
        self.get(&part(name)).await
    }

    /// Reads a part piece by piece.
    pub async fn part_stream(&self, name: &str) -> Result<PartStream> {
        let (object, path) = (self.name(&part(name)), self.path(&part(name)));
        let read = self.store.get(&path).await.map_err(|error| Error::from_store(&object, error))?;
        Ok(PartStream { bytes: read.meta.size, object, pieces: read.into_stream() })
    }

    /// Which of these parts are gone, or not whole. Each is named by a number, a name and its bytes; returns the numbers.
    pub async fn lost_parts<'a>(&self, parts: impl Iterator<Item = (u64, &'a str, u64)>) -> Result<Vec<u64>> {
        let mut parts = parts.peekable();
        let numbers = |lost: &mut dyn Iterator<Item = (u64, &'a str, u64)>| lost.map(|(number, ..)| number).collect();
        if parts.peek().is_none() {
            return Ok(Vec::new());
        }
        if self.folder.is_some() {
            let file_bytes = |file: &Path| file.metadata().ok().map(|found| found.len());
            let is_lost =
                |name: &str, bytes: u64| self.part_file(name).is_none_or(|file| file_bytes(&file) != Some(bytes));
            return Ok(numbers(&mut parts.filter(|(_, name, bytes)| is_lost(name, *bytes))));
        }
        let listed = self.store.list(Some(&self.path("parts"))).map_ok(|meta| (meta.location, meta.size));
        let listed: HashMap<ObjectPath, u64> =
            listed.try_collect().await.map_err(|error| Error::from_store(&self.name("parts"), error))?;
        Ok(numbers(&mut parts.filter(|(_, name, bytes)| listed.get(&self.path(&part(name))) != Some(bytes))))
    }

    /// The file of a part, for local jobs.
    pub fn part_file(&self, name: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(ObjectPath::from(part(name)).as_ref()))
    }

    /// Removes every part: they are no longer needed once the final file and the result stand. The result is forced to
    /// disk first, else a power cut could leave neither.
    pub async fn delete_parts(&self) -> Result<()> {
        if let Some(folder) = &self.folder {
            let parts = folder.join("parts");
            let found = |done: io::Result<()>, path: &Path| match done {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(Error::unavailable(&path.display().to_string(), error))
                }
                _ => Ok(()),
            };
            if !parts.exists() {
                return Ok(());
            }
            for path in [&folder.join("result.json"), folder] {
                found(disk::sync(path), path)?;
            }
            return found(std::fs::remove_dir_all(&parts), &parts);
        }
        let parts = self.store.list(Some(&self.path("parts"))).map_ok(|meta| meta.location);
        let deleted = self.store.delete_stream(Box::pin(parts)).try_for_each(|_| async { Ok(()) }).await;
        match deleted {
            // Another reducer deletes them too.
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::from_store(&self.name("parts"), error)),
        }
    }

    /// Asks all roles to stop working on the job.
    pub async fn request_cancel(&self, reason: &str) -> Result<()> {
        self.put("control/cancel", Bytes::copy_from_slice(reason.as_bytes())).await
    }

    /// The reason, if somebody has asked to cancel.
    pub async fn cancel_requested(&self) -> Result<Option<String>> {
        let reason = optional(self.get("control/cancel").await)?;
        Ok(reason.map(|reason| String::from_utf8_lossy(&reason).into_owned()))
    }

    /// Writes `progress.json`.
    pub async fn put_progress(&self, progress: &Progress) -> Result<()> {
        self.put("progress.json", json(progress)).await
    }

    /// Reads `progress.json`. One that a power cut has spoiled is none: it is for people, and soon written again.
    pub async fn progress(&self) -> Result<Option<Progress>> {
        match self.json("progress.json").await {
            Err(Error::Damaged { .. }) => Ok(None),
            read => optional(read),
        }
    }

    /// Ends the job. `Lost`: it had ended already.
    pub async fn create_result(&self, result: &JobResult) -> Result<Commit> {
        self.create("result.json", json(result).into()).await
    }

    /// How the job ended, if it has.
    pub async fn result(&self) -> Result<Option<JobResult>> {
        optional(self.json("result.json").await)
    }

    /// Removes a `result.json` that cannot be read: the machine stopped before it was on the disk. Says whether there
    /// was one.
    pub async fn remove_damaged_result(&self) -> Result<bool> {
        match self.result().await {
            Err(Error::Damaged { .. }) => {}
            other => return other.map(|_| false),
        }
        let removed = self.commits.delete(&self.path("result.json")).await;
        removed.map(|()| true).map_err(|error| Error::from_store(&self.name("result.json"), error))
    }

    /// Opens an ended or canceled job again.
    pub async fn reopen(&self) -> Result<()> {
        for name in ["result.json", "control/cancel"] {
            match self.store.delete(&self.path(name)).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(Error::from_store(&self.name(name), error)),
            }
        }
        Ok(())
    }

    pub(crate) fn path(&self, name: &str) -> ObjectPath {
        self.prefix.parts().chain(ObjectPath::from(name).parts()).collect()
    }

    async fn commit_json<T: Serialize + ?Sized>(&self, name: &str, value: &T) -> Result<()> {
        self.commit(name, json(value)).await
    }

    /// Writes or replaces an object that others rely on.
    async fn commit(&self, name: &str, bytes: Bytes) -> Result<()> {
        let put = self.commits.put(&self.path(name), bytes.into()).await;
        put.map(drop).map_err(|error| Error::from_store(&self.name(name), error))
    }

    pub(crate) async fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let bytes = self.get(name).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::Damaged { object: self.name(name), message: error.to_string() })
    }

    pub(crate) async fn put(&self, name: &str, bytes: Bytes) -> Result<()> {
        let put = self.store.put(&self.path(name), bytes.into()).await;
        put.map(drop).map_err(|error| Error::from_store(&self.name(name), error))
    }

    pub(crate) async fn get(&self, name: &str) -> Result<Bytes> {
        let read = async { self.store.get(&self.path(name)).await?.bytes().await };
        read.await.map_err(|error| Error::from_store(&self.name(name), error))
    }

    pub(crate) async fn range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let read = self.store.get_range(&self.path(name), range).await;
        read.map_err(|error| Error::from_store(&self.name(name), error))
    }

    pub(crate) async fn create(&self, name: &str, bytes: PutPayload) -> Result<Commit> {
        create(&*self.commits, &self.path(name), &self.name(name), bytes).await
    }

    /// An object, for messages.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.url)
    }
}

impl PartStream {
    /// Size of the part.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.pieces.try_next().await.map_err(|error| Error::from_store(&self.object, error))
    }
}

fn open_folder(folder: &Path) -> Result<LocalFileSystem> {
    LocalFileSystem::new_with_prefix(folder).map_err(|error| Error::from_store(&folder.display().to_string(), error))
}

fn json<T: Serialize + ?Sized>(value: &T) -> Bytes {
    serde_json::to_vec_pretty(value).expect("plain data always serialises").into()
}

fn optional<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn plan_chunk(chunk: u64) -> String {
    format!("plan/{chunk:010}")
}

fn ledger_segment(sequence: u64) -> String {
    format!("ledger/{sequence:010}")
}

pub(crate) fn part(name: &str) -> String {
    format!("parts/{name}")
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn stores() -> (tempfile::TempDir, Vec<JobStore>) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let local = JobStore::local(folder.path()).expect("folder exists");
        let remote = JobStore::new(Arc::new(InMemory::new()), ObjectPath::from("jobs/one"));
        (folder, vec![local, remote])
    }

    #[tokio::test]
    async fn a_segment_is_committed_by_one_writer_only() {
        let (_folder, stores) = stores();
        for store in stores {
            let commit = |bytes: &'static [u8]| store.commit_segment(0, vec![Bytes::from_static(bytes)]);
            assert_eq!(store.segment(0).await.expect("readable"), None);
            assert_eq!(commit(b"first").await.expect("writable"), Commit::Committed);
            assert_eq!(commit(b"second").await.expect("writable"), Commit::Lost);
            assert_eq!(commit(b"first").await.expect("writable"), Commit::Committed, "our own lost answer");
            let pieces = |pieces: [&'static str; 2]| store.commit_segment(0, pieces.map(Bytes::from).to_vec());
            assert_eq!(pieces(["fir", "st"]).await.expect("writable"), Commit::Committed, "the same in pieces");
            for others in [["fi", "st"], ["first", "s"], ["fir", ""]] {
                assert_eq!(pieces(others).await.expect("writable"), Commit::Lost);
            }
            assert_eq!(&store.segment(0).await.expect("readable").expect("committed")[..], b"first");
            assert_eq!(&store.segment_range(0, 1..3).await.expect("readable")[..], b"ir");
        }
    }

    #[tokio::test]
    async fn parts_go_all_at_once() {
        let (_folder, stores) = stores();
        for store in stores {
            store.put_part("0-1", Bytes::from_static(b"rows")).await.expect("writable");
            assert_eq!(&store.part("0-1").await.expect("readable")[..], b"rows");
            store.delete_parts().await.expect("deletable");
            store.delete_parts().await.expect("deletable when there are none");
            assert!(matches!(store.part("0-1").await, Err(Error::NotFound { .. })));
        }
    }

    #[tokio::test]
    async fn parts_that_are_gone_or_not_whole_are_lost() {
        let (_folder, stores) = stores();
        for store in stores {
            let lost = |parts: [(u64, &'static str, u64); 3]| store.lost_parts(parts.into_iter());
            store.put_part("0-1", Bytes::from_static(b"rows")).await.expect("writable");
            store.put_part("1-1", Bytes::new()).await.expect("writable");
            store.commit_parts().await.expect("writable");
            let parts = [(0, "0-1", 4), (1, "1-1", 4), (2, "2-1", 4)];
            assert_eq!(lost(parts).await.expect("readable"), [1, 2]);
            assert!(store.lost_parts([].into_iter()).await.expect("readable").is_empty());
        }
    }

    #[tokio::test]
    async fn the_name_of_a_part_leads_nowhere_else() {
        let (folder, stores) = stores();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "s3cr3t").expect("writable");
        for store in stores {
            for name in ["../secret", "../../../../../../../../../../etc/passwd", secret.to_str().expect("text")] {
                assert!(matches!(store.part(name).await, Err(Error::NotFound { .. })), "{name}");
                assert!(store.part_file(name).is_none_or(|file| !file.exists()), "{name}");
                assert_eq!(store.lost_parts([(0, name, 6)].into_iter()).await.expect("readable"), [0], "{name}");
            }
        }
    }

    #[tokio::test]
    async fn a_spec_is_that_of_its_job_and_its_names_lead_nowhere_else() {
        let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let store = JobStore { job_id: Some("a-job".into()), ..JobStore::new(memory, ObjectPath::from("jobs/a-job")) };
        let spec = |job_id: &str, file_name: &str| {
            let mut spec = JobSpec { job_id: job_id.into(), ..JobSpec::example() };
            spec.output.file_name = file_name.into();
            spec
        };
        store.put_spec(&spec("a-job", "rows.txt")).await.expect("writable");
        store.spec().await.expect("its own");
        for (job_id, file_name) in [("b-job", "rows.txt"), ("a-job", "../rows.txt"), ("a-job", "/etc/cron.d/rows")] {
            store.put_spec(&spec(job_id, file_name)).await.expect("writable");
            assert!(matches!(store.spec().await, Err(Error::Damaged { .. })), "{job_id} {file_name}");
        }
    }

    #[tokio::test]
    async fn what_is_spoiled_is_never_read_as_whole() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::local(folder.path()).expect("folder exists");
        let store = store.with_durability(Durability::Full).expect("folder exists");
        assert!(!store.remove_damaged_result().await.expect("there is none"));
        for name in ["result.json", "progress.json", "spec.json"] {
            std::fs::write(folder.path().join(name), "").expect("writable");
        }
        assert_eq!(store.progress().await.expect("none"), None);
        assert!(matches!(store.spec().await, Err(Error::Damaged { .. })));
        assert!(matches!(store.result().await, Err(Error::Damaged { .. })));
        assert!(store.remove_damaged_result().await.expect("removable"));
        assert_eq!(store.result().await.expect("none"), None);
    }

    #[tokio::test]
    async fn a_canceled_job_can_be_opened_again() {
        let (_folder, stores) = stores();
        for store in stores {
            assert_eq!(store.cancel_requested().await.expect("readable"), None);
            store.request_cancel("by the user").await.expect("writable");
            assert_eq!(store.cancel_requested().await.expect("readable").as_deref(), Some("by the user"));
            store.reopen().await.expect("deletable");
            assert_eq!(store.cancel_requested().await.expect("readable"), None);
        }
    }
}
