//! The objects of one job. `ledger` has those of the ledger, `parts` those with rows, and `checkpoints` results that
//! scripts hand back early.

mod checkpoints;
mod copies;
mod ledger;
mod members;
mod parts;
mod reuses;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use protocol::{Durability, FORMAT, ItemPath, JobResult, JobSpec, Priority, Progress, TableSchema};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::clock::Clock;
use crate::create::Commit;
use crate::error::{found, optional};
use crate::folder::Folder;
use crate::listing::SkippedKeys;
use crate::objects::Objects;
use crate::snapshot::is_marked;
use crate::{Error, PlanComplete, Result, Stores};
pub use checkpoints::CheckpointPiece;
pub use ledger::records_of;
pub use parts::PartStream;
pub use reuses::Reuses;

/// The objects of one job.
#[derive(Clone, Debug)]
pub struct JobStore {
    pub(crate) objects: Objects,
    /// The same objects, for commits: its store makes them as durable as the job requires.
    pub(crate) commits: Objects,
    pub(crate) durability: Durability,
    /// The folder of the job, if it has one.
    pub(crate) folder: Option<PathBuf>,
    /// The stores of inputs and outputs elsewhere.
    pub(crate) stores: Stores,
    /// The clock of the store. The clock of a local job reports no time.
    pub(crate) clock: Clock,
    /// The expected id of the job in a store with several jobs.
    pub(crate) job_id: Option<String>,
}

/// A request for another round: the ended work that it runs besides the mini-batches that have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundRequest {
    /// Whether the round runs failed mini-batches again.
    pub failed: bool,
    /// Whether the round runs rejected items again.
    pub rejects: bool,
}

impl RoundRequest {
    /// All failed mini-batches and rejected items.
    pub const ALL: Self = Self { failed: true, rejects: true };
    /// Only the mini-batches that have not ended.
    pub const NOTHING: Self = Self { failed: false, rejects: false };
}

impl JobStore {
    /// Opens a job in a local folder, which must exist.
    pub fn local(folder: &Path) -> Result<Self> {
        let store = Arc::new(Folder::new(open_folder(folder)?, SkippedKeys::default()));
        let folder = Some(folder.to_owned());
        Ok(Self { folder, ..Self::new(store, ObjectPath::default()) })
    }

    /// Opens a job below `prefix` of any store.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: ObjectPath) -> Self {
        Self::of(Objects { store, prefix, url: String::new() })
    }

    pub(crate) fn of(objects: Objects) -> Self {
        Self {
            commits: objects.clone(),
            objects,
            durability: Durability::Process,
            folder: None,
            stores: Stores::default(),
            clock: Clock::default(),
            job_id: None,
        }
    }

    /// Sets the durability of commits of a local job. With [`Durability::Full`] each commit forces its file to disk
    /// before the file gets its name, and then the folder.
    pub fn with_durability(mut self, durability: Durability) -> Result<Self> {
        if let Some(folder) = &self.folder {
            let files = open_folder(folder)?.with_fsync(durability == Durability::Full);
            self.commits.store = Arc::new(files);
            self.durability = durability;
        }
        Ok(self)
    }

    /// Returns the store without its folder, so that callers use only object requests.
    pub fn without_folder(self) -> Self {
        Self { folder: None, ..self }
    }

    /// Returns the folder of the job, on a local or shared disk; `None` in any other store.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the stores of inputs and outputs, with the settings of the compute target.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// Returns the URL of an object of the job, such as `logs`, for people. If the job has a folder, returns the path.
    pub fn shown(&self, name: &str) -> String {
        match &self.folder {
            Some(folder) => folder.join(name).display().to_string(),
            None => self.objects.name(name),
        }
    }

    /// Writes `spec.json`.
    pub async fn put_spec(&self, spec: &JobSpec) -> Result<()> {
        self.commits.put("spec.json", json(&Formatted { format: FORMAT, spec })).await
    }

    /// Reads `spec.json`. Returns `None` if the store has no such job. If the store itself is missing (its folder is
    /// not mounted, or its bucket does not exist), the job may exist, so this is an error.
    pub async fn find_spec(&self) -> Result<Option<JobSpec>> {
        let read = optional(self.spec().await)?;
        let is_missing = match (&self.folder, Url::parse(&self.objects.url)) {
            _ if read.is_some() => false,
            // `jobs/<job_id>` in the folder of the store.
            (Some(folder), _) => !folder.ancestors().nth(2).is_some_and(is_marked),
            (None, Ok(url)) => self.stores.bucket_status(&url).await == Some(404),
            (None, Err(_)) => false,
        };
        match is_missing {
            true => Err(Error::unavailable(
                &self.objects.name(""),
                "the store of this job does not exist; mount its folder, or create its bucket",
            )),
            false => Ok(read),
        }
    }

    /// Reads `spec.json`. Fails with [`Error::Foreign`] if it has the format of another build, and with
    /// [`Error::Damaged`] if it belongs to another job, or contains names that lead elsewhere.
    pub async fn spec(&self) -> Result<JobSpec> {
        let (bytes, object) =
            (self.objects.get("spec.json").await?, self.objects.name("spec.json"));
        let damaged = |error| Error::damaged(&*object, error);
        // In another format, the other fields may be unreadable.
        let Format { format } = serde_json::from_slice(&bytes).map_err(damaged)?;
        if format != FORMAT {
            return Err(Error::Foreign { object, format });
        }
        let spec: JobSpec = serde_json::from_slice(&bytes).map_err(damaged)?;
        let other = self.job_id.as_ref().filter(|id| **id != spec.job_id);
        let fault = other.map(|id| format!("it belongs to job {:?}, not to {id}", spec.job_id));
        match fault.or_else(|| spec.check_names().err().map(|error| error.to_string())) {
            Some(message) => Err(Error::damaged(object, message)),
            None => Ok(spec),
        }
    }

    /// Returns when `spec.json` was written, by the clock of the store; `None` if the job does not exist.
    pub async fn described_at(&self) -> Result<Option<DateTime<Utc>>> {
        self.written_at("spec.json").await
    }

    /// Copies a local file to `inputs/<name>`, for nodes that cannot read it in place. Returns the path or URL of the
    /// copy.
    pub async fn put_input(&self, name: &str, file: &Path) -> Result<ItemPath> {
        let name = format!("inputs/{name}");
        self.objects.put_file(&name, file).await?;
        Ok(match &self.folder {
            Some(folder) => folder.join(&name).into(),
            None => self.objects.name(&name).as_str().into(),
        })
    }

    /// Creates a chunk of the plan: descriptors, one JSON line each. Returns `Lost` if another chunk exists there.
    pub async fn create_plan_chunk(&self, chunk: u64, lines: Bytes) -> Result<Commit> {
        self.commits.create(&plan_chunk(chunk), lines).await
    }

    /// Replaces a truncated chunk of the plan.
    pub async fn replace_plan_chunk(&self, chunk: u64, lines: Bytes) -> Result<()> {
        self.commits.put(&plan_chunk(chunk), lines).await
    }

    /// Reads a chunk of the plan.
    pub async fn plan_chunk(&self, chunk: u64) -> Result<Bytes> {
        self.objects.get(&plan_chunk(chunk)).await
    }

    /// Returns whether a chunk of the plan exists.
    pub async fn has_plan_chunk(&self, chunk: u64) -> Result<bool> {
        Ok(self.objects.head(&plan_chunk(chunk)).await?.is_some())
    }

    /// Writes the schemas: one entry per input, `None` for files and for tables that contain their schema (Parquet).
    pub async fn put_schemas(&self, schemas: &[Option<TableSchema>]) -> Result<()> {
        self.commits.put("plan/schemas.json", json(schemas)).await
    }

    /// Reads the schemas.
    pub async fn schemas(&self) -> Result<Vec<Option<TableSchema>>> {
        self.objects.json("plan/schemas.json").await
    }

    /// Records that the plan is complete.
    pub async fn put_plan_complete(&self, complete: &PlanComplete) -> Result<()> {
        self.commits.put("plan/complete.json", json(complete)).await
    }

    /// Returns the totals of the plan, once it is complete.
    pub async fn plan_complete(&self) -> Result<Option<PlanComplete>> {
        optional(self.objects.json("plan/complete.json").await)
    }

    /// Stores the properties that distinguish the job from others.
    pub async fn put_identity(&self, identity: Bytes) -> Result<()> {
        self.commits.put("plan/identity.json", identity).await
    }

    /// Returns the properties that distinguish the job from others, if they are stored.
    pub async fn identity(&self) -> Result<Option<Bytes>> {
        optional(self.objects.get("plan/identity.json").await)
    }

    /// Records a heartbeat of the command that plans the job. Each heartbeat must differ from all others.
    pub async fn put_planning(&self, heartbeat: String) -> Result<()> {
        self.objects.put("plan/planning", heartbeat).await
    }

    /// Returns the last heartbeat of a command that has planned the job.
    pub async fn planning(&self) -> Result<Option<Bytes>> {
        optional(self.objects.get("plan/planning").await)
    }

    /// Records a heartbeat of the reducer that publishes the job. Each heartbeat must differ from all others.
    pub async fn put_publishing(&self, heartbeat: String) -> Result<()> {
        self.objects.put("plan/publishing", heartbeat).await
    }

    /// Returns the last heartbeat of a reducer that has published the job.
    pub async fn publishing(&self) -> Result<Option<Bytes>> {
        optional(self.objects.get("plan/publishing").await)
    }

    /// Records that every mini-batch which needs a message has one, in the queues of the admission by the schedule with
    /// this number.
    pub async fn put_published(&self, admitted_in: u64) -> Result<()> {
        self.objects.put("plan/published", admitted_in.to_string()).await
    }

    /// Returns the number that [`put_published`](Self::put_published) recorded last, unless the job has been opened
    /// again since.
    pub async fn published_in(&self) -> Result<Option<u64>> {
        let number = optional(self.objects.get("plan/published").await)?;
        Ok(number.and_then(|number| std::str::from_utf8(&number).ok()?.parse().ok()))
    }

    /// Removes this record, so that reducers publish the unfinished mini-batches again, and the planning error.
    pub async fn forget_published(&self) -> Result<()> {
        self.objects.delete("plan/published").await?;
        self.objects.delete("plan/failed").await
    }

    /// Records why the job cannot be planned.
    pub async fn put_plan_failure(&self, cause: &str) -> Result<()> {
        self.objects.put("plan/failed", cause.to_owned()).await
    }

    /// Returns why the job cannot be planned; `None` if no error is recorded.
    pub async fn plan_failure(&self) -> Result<Option<String>> {
        let cause = optional(self.objects.get("plan/failed").await)?;
        Ok(cause.map(|cause| String::from_utf8_lossy(&cause).into_owned()))
    }

    /// Requests that all roles stop working on the job.
    pub async fn request_cancel(&self, reason: &str) -> Result<()> {
        self.objects.put("control/cancel", reason.to_owned()).await
    }

    /// Returns the reason of the request to cancel, if one exists.
    pub async fn cancel_requested(&self) -> Result<Option<String>> {
        let reason = optional(self.objects.get("control/cancel").await)?;
        Ok(reason.map(|reason| String::from_utf8_lossy(&reason).into_owned()))
    }

    /// Requests another round of a job that runs on this machine.
    pub async fn request_round(&self, request: &RoundRequest) -> Result<()> {
        self.objects.put("control/retry", json(request)).await
    }

    /// Returns the request for another round, if one exists.
    pub async fn round_requested(&self) -> Result<Option<RoundRequest>> {
        optional(self.objects.json("control/retry").await)
    }

    /// Removes the request for another round.
    pub async fn forget_round_request(&self) -> Result<()> {
        self.objects.delete("control/retry").await
    }

    /// Claims a round for a reducer, which then publishes the mini-batches that run again. Returns whether it is the
    /// first claim.
    pub async fn claim_round(&self, round: u64, writer: &str) -> Result<bool> {
        let name = format!("copies/round-{round}");
        Ok(self.commits.create(&name, writer.to_owned()).await? == Commit::Committed)
    }

    /// Changes the priority of the job.
    pub async fn put_priority(&self, priority: Priority) -> Result<()> {
        self.objects.put("control/priority", priority.word()).await
    }

    /// Returns the priority of the job if it was changed after its specification was written.
    pub async fn changed_priority(&self) -> Result<Option<Priority>> {
        let word = optional(self.objects.get("control/priority").await)?;
        Ok(word.and_then(|word| Priority::of_word(&String::from_utf8_lossy(&word))))
    }

    /// Writes `progress.json`.
    pub async fn put_progress(&self, progress: &Progress) -> Result<()> {
        self.objects.put("progress.json", json(progress)).await
    }

    /// Reads `progress.json`, with its age if the store reports the time. Returns `None` if a power cut has damaged it,
    /// because a reducer soon writes it again.
    pub async fn progress(&self) -> Result<Option<Progress>> {
        let read = async {
            let object = self.objects.store.get(&self.objects.path("progress.json")).await?;
            let written_at = object.meta.last_modified;
            Ok((object.bytes().await?, written_at))
        };
        let read = found(read.await, &self.objects.name("progress.json"))?;
        let Some((bytes, written_at)) = read else { return Ok(None) };
        let Ok(mut progress) = serde_json::from_slice::<Progress>(&bytes) else { return Ok(None) };
        progress.age =
            self.clock.reported().map(|now| (now - written_at).to_std().unwrap_or_default());
        Ok(Some(progress))
    }

    /// Creates `result.json`, which ends the job. Returns `Lost` if the job had already ended.
    pub async fn create_result(&self, result: &JobResult) -> Result<Commit> {
        self.commits.create("result.json", json(result)).await
    }

    /// Returns how the job ended, if it has.
    pub async fn result(&self) -> Result<Option<JobResult>> {
        optional(self.objects.json("result.json").await)
    }

    /// Removes an unreadable `result.json`, which a machine leaves if it stops before the file is on disk. Returns
    /// whether one existed.
    pub async fn remove_damaged_result(&self) -> Result<bool> {
        match self.result().await {
            Err(Error::Damaged { .. }) => self.commits.delete("result.json").await.map(|()| true),
            other => other.map(|_| false),
        }
    }

    /// Reopens an ended or canceled job: removes its result, and the reports of its end.
    pub async fn reopen(&self) -> Result<()> {
        // The request is deleted first, because a reducer would cancel an open job that has one.
        self.objects.delete("control/cancel").await?;
        for report in ["job_result.txt", "rejects.csv", "rejects.parquet"] {
            // No program reads the reports, so a failed deletion does not stop the round.
            let _ = self.objects.delete(&format!("logs/{report}")).await;
        }
        self.objects.delete("result.json").await
    }

    /// Returns when the job ended, or else when it last wrote its progress; `None` if it has done neither.
    pub async fn changed_at(&self) -> Result<Option<DateTime<Utc>>> {
        match self.written_at("result.json").await? {
            None => self.written_at("progress.json").await,
            ended => Ok(ended),
        }
    }

    /// Returns when an object was written; `None` if it does not exist.
    async fn written_at(&self, name: &str) -> Result<Option<DateTime<Utc>>> {
        Ok(self.objects.head(name).await?.map(|meta| meta.last_modified))
    }

    /// Returns the total size of the job's objects.
    pub async fn bytes(&self) -> Result<u64> {
        let listed = self.objects.store.list(Some(&self.objects.path("")));
        let sizes = listed.map_ok(|meta| meta.size);
        let sum = sizes.try_fold(0, |sum, size| async move { Ok(sum + size) }).await;
        sum.map_err(|error| Error::from_store(&self.objects.name(""), error))
    }

    /// Returns whether the job's objects include files that the script wrote, because it has no other output folder.
    pub async fn holds_output(&self) -> Result<bool> {
        self.objects.has_any("output").await
    }
}

fn open_folder(folder: &Path) -> Result<LocalFileSystem> {
    LocalFileSystem::new_with_prefix(folder)
        .map_err(|error| Error::from_store(&folder.display().to_string(), error))
}

/// `spec.json` as it is written.
#[derive(Serialize)]
struct Formatted<'a> {
    format: u32,
    #[serde(flatten)]
    spec: &'a JobSpec,
}

/// The field of `spec.json` that every build must read.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

fn json<T: Serialize + ?Sized>(value: &T) -> Bytes {
    serde_json::to_vec_pretty(value).expect("plain data always serialises").into()
}

fn plan_chunk(chunk: u64) -> String {
    format!("plan/{chunk:010}")
}
