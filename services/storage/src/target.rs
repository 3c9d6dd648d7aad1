//! The store of a compute target: all jobs and the list of open jobs. [`removal`] removes jobs, [`snapshots`] keeps the
//! folders that travel with them, [`workers`] lists the workers, [`schedules`] keeps the schedules, [`queues`] lists
//! the queues of jobs, [`writers`] lists the jobs that write an output, and [`quotas`] keeps quotas and marks open
//! jobs.
//!
//! ```text
//! jobs/<job_id>/…            the objects of one job: `JobStore`
//! open/<job_id>              marker of a job that has not ended
//! snapshots/<digest>         a packed folder or file, named by its content
//! snapshots/removing         marker while snapshots are being removed
//! workers/<name>             the offer of a worker, and its current work
//! schedule/<number>          which worker works on which job: created if absent
//! queues/<name>              marker while queues of this name may exist, for one job
//! writers/<digest>/<job_id>  marker of a job that writes the output with this digest
//! quotas.json                limits of jobs at a time, by owner
//! ```

mod queues;
mod quotas;
mod removal;
mod schedules;
mod snapshots;
mod workers;
mod writers;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path as ObjectPath;
use protocol::{Schedule, is_job_id};
use url::Url;

use crate::clock::Clock;
use crate::error::deepest_cause;
use crate::objects::Objects;
use crate::stores::shown;
use crate::{Error, JobStore, Result, StoreOptions, Stores, snapshot};

pub use quotas::OpenJob;
pub use removal::Removal;
pub use schedules::ScheduleFollower;
pub use workers::{
    SeenWorker, WORKER_ENTRY_LASTS, WORKER_PERIOD, WORKER_PERIOD_AT_WORK, WorkerWatch,
};

/// All jobs of one compute target.
#[derive(Clone, Debug)]
pub struct TargetStore {
    pub(crate) objects: Objects,
    /// The folder of a `file://` store, on a disk that all machines of the target share.
    folder: Option<PathBuf>,
    stores: Stores,
    pub(crate) clock: Clock,
}

impl TargetStore {
    /// Opens `s3://bucket/prefix`, `file:///folder`, or the URL of any other store. Sends one request, so that errors
    /// in the address, the bucket or the credentials appear here. Nothing is written into a folder that
    /// [`create`](Self::create) has not marked: workers and reducers may start before the first job, or before the folder is
    /// mounted.
    pub async fn open(url: &str, options: StoreOptions) -> Result<Self> {
        let parsed = Url::parse(url).map_err(|error| {
            Error::unavailable(
                "an invalid URL",
                format!("{error}; write one such as s3://bucket/prefix"),
            )
        })?;
        let stores = Stores::new(options);
        let shown = shown(&parsed).trim_end_matches('/').to_owned();
        let folder = match parsed.scheme() {
            "file" => {
                let folder = parsed
                    .to_file_path()
                    .map_err(|()| Error::unavailable(&shown, "it is not a path of this machine"))?;
                Some(folder)
            }
            _ => None,
        };
        let (store, prefix) = stores.open(&parsed).await?;
        let (store, clock) = match &folder {
            Some(folder) => {
                (Arc::new(stores.files().below(folder.clone())) as _, Clock::of_folder(folder))
            }
            None => (store, stores.clock(&parsed).await?),
        };
        let objects = Objects { store, prefix, url: format!("{shown}/") };
        let target = Self { objects, folder, stores, clock };
        let open = target.objects.path("open");
        let listed = target.objects.store.list(Some(&open)).try_next().await;
        match listed {
            Ok(_) => Ok(target),
            Err(error) => Err(target.explained(&parsed, error).await),
        }
    }

    /// Creates the folder of a `file://` store if it is absent. Only commands that write the first objects of a target
    /// call this: on a worker or reducer, an absent folder may not be mounted.
    pub fn create(&self) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let created = std::fs::create_dir_all(folder).and_then(|()| snapshot::mark(folder));
        created.map_err(|error| Error::unavailable(self.url(), error))
    }

    /// Opens a target below `prefix` of any store. Sends no request.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: ObjectPath) -> Self {
        let objects = Objects { store, prefix, url: String::new() };
        Self { objects, folder: None, stores: Stores::default(), clock: Clock::default() }
    }

    /// Sets the time of the store's clock, for a store that does not report it.
    pub fn with_time(self, now: DateTime<Utc>) -> Self {
        self.clock.record(now);
        self
    }

    /// Explains a failed listing. Requests the bucket itself from S3, because the error does not name the cause.
    async fn explained(&self, url: &Url, error: object_store::Error) -> Error {
        let system: Option<&std::io::Error> = deepest_cause(&error).downcast_ref();
        let is_refused = system.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        let status = if is_refused { None } else { self.stores.bucket_status(url).await };
        match (status, Error::from_store(self.url(), error)) {
            (Some(404), _) | (None, Error::NotFound { .. }) => {
                let message =
                    "there is no such bucket; create it, or correct `store` of the compute target";
                Error::unavailable(self.url(), message)
            }
            (Some(401 | 403), Error::Unavailable { object, source }) => {
                Error::Denied { object, source }
            }
            (_, Error::Unavailable { object, source }) => {
                let endpoint = self.stores.endpoint(url).await;
                let at = endpoint.map_or(String::new(), |endpoint| format!(" at {endpoint}"));
                Error::Unavailable { object: format!("{object}{at}"), source }
            }
            (_, error) => error,
        }
    }

    /// Returns the URL, without its secrets and without a slash at its end.
    pub fn url(&self) -> &str {
        self.objects.url.trim_end_matches('/')
    }

    /// Returns the root folder of a `file://` store.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the stores of inputs and outputs, which have the same settings.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// Returns the time by the clock of the store, which dates its objects. Precise after a request.
    pub fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    /// Returns the age of a schedule by the clock of the store. Precise after a request.
    pub fn age(&self, schedule: &Schedule) -> Duration {
        let now = u64::try_from(self.now().timestamp_millis()).unwrap_or_default();
        Duration::from_millis(now.saturating_sub(schedule.made_at))
    }

    /// Returns the objects of one job. Sends no request: the job may not exist.
    pub fn job(&self, job_id: &str) -> JobStore {
        // `join` encodes characters that would lead elsewhere, so this is always a single name.
        let name = ObjectPath::default().join(job_id);
        let objects = Objects {
            store: Arc::clone(&self.objects.store),
            prefix: self.objects.path("jobs").join(job_id),
            url: self.objects.name(&format!("jobs/{name}/")),
        };
        JobStore {
            folder: self.folder.as_ref().map(|folder| folder.join("jobs").join(name.as_ref())),
            stores: self.stores.clone(),
            clock: self.clock.clone(),
            job_id: Some(job_id.to_owned()),
            ..JobStore::of(objects)
        }
    }

    /// Returns the ids of all jobs, sorted.
    pub async fn job_ids(&self) -> Result<Vec<String>> {
        let jobs = self.objects.path("jobs");
        let listed = self.objects.store.list_with_delimiter(Some(&jobs)).await;
        let listed =
            listed.map_err(|error| Error::from_store(&self.objects.name("jobs"), error))?;
        let mut ids: Vec<_> = listed
            .common_prefixes
            .iter()
            .filter_map(|prefix| prefix.filename().map(str::to_owned))
            .collect();
        ids.retain(|id| is_job_id(id));
        ids.sort();
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a store in a folder, and one in memory that behaves like a bucket.
    pub(super) async fn targets(folder: &Path) -> [TargetStore; 2] {
        let url = Url::from_file_path(folder).expect("absolute");
        let local =
            TargetStore::open(url.as_str(), StoreOptions::default()).await.expect("it is there");
        local.create().expect("writable");
        let store = Arc::new(object_store::memory::InMemory::new());
        let bucket = TargetStore {
            objects: Objects { store, prefix: ObjectPath::from("prefix"), ..local.objects.clone() },
            folder: None,
            ..local.clone()
        };
        [local, bucket]
    }

    #[tokio::test]
    async fn unmounted_store_differs_from_a_store_without_the_job() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mount = folder.path().join("mount");
        let url = Url::from_file_path(&mount).expect("absolute");
        let target = TargetStore::open(url.as_str(), StoreOptions::default())
            .await
            .expect("a worker may start before");
        assert!(!mount.exists(), "opening it creates nothing");
        let error = target.objects.put("workers/a", "").await.expect_err("it is not mounted");
        let text = format!("{error:#}");
        assert!(text.contains("is not the folder of a store: it is not mounted"), "{text}");
        assert!(!mount.exists(), "a file on the disk below it would be hidden later");
        assert_eq!(target.open_ids().await.expect("nothing there"), [""; 0]);
        let job = target.job("job");
        for is_there in [false, true] {
            if is_there {
                std::fs::create_dir_all(mount.join("workers")).expect("writable");
            }
            let error = job.find_spec().await.expect_err("the job may exist");
            assert!(matches!(error, Error::Unavailable { .. }), "{error:#}");
            assert!(error.to_string().contains("mount"), "{error}");
        }
        target.create().expect("writable");
        assert_eq!(job.find_spec().await.expect("it is there"), None);
        let spec = protocol::JobSpec { job_id: "job".into(), ..protocol::JobSpec::example() };
        job.put_spec(&spec).await.expect("writable");
        assert_eq!(job.find_spec().await.expect("it is there"), Some(spec));
    }

    #[tokio::test]
    async fn job_id_cannot_lead_to_other_objects() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let root = folder.path().join("store");
        std::fs::create_dir_all(root.join("jobs")).expect("writable");
        std::fs::create_dir_all(root.join("open")).expect("writable");
        let spec = serde_json::to_vec(&protocol::JobSpec::example()).expect("plain data");
        std::fs::write(folder.path().join("spec.json"), spec).expect("writable");
        let url = Url::from_file_path(&root).expect("absolute");
        let target =
            TargetStore::open(url.as_str(), StoreOptions::default()).await.expect("it is there");
        for id in
            ["../..", "..", "../../", "a/../../..", "", "/", folder.path().to_str().expect("text")]
        {
            let job = target.job(id);
            assert!(matches!(job.spec().await, Err(Error::NotFound { .. })), "{id}");
            let place = job.folder().expect("a folder").canonicalize();
            assert!(place.is_err() || id.is_empty() || id == "/", "{id}: {place:?}");
        }
        for name in ["a-job", "-job", ".hidden", "a job", "j\u{202e}ob"] {
            std::fs::write(root.join("open").join(name), "").expect("writable");
        }
        assert_eq!(target.open_ids().await.expect("readable"), ["a-job"]);
    }
}
