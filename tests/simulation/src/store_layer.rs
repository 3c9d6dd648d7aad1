//! A store as one role sees it: requests fail, take long and lose their answers; and bugs can be planted in front of it.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use protocol::{JobResult, OwnerQuota, Quotas, Schedule};
use tokio::time::Instant;

use crate::actor::Actor;
use crate::counts::Counts;
use crate::dated::Dated;
use crate::weather::Bug;
use crate::witness::Witness;

/// How long a write takes that a bug does not wait for.
const LATE: Duration = Duration::from_secs(5);
/// From one look to the next of a planner with a bug.
const SELDOM: Duration = Duration::from_secs(60);

/// A listing, and its time.
type Listed = (Instant, Vec<ObjectMeta>);

/// One role's view of the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreLayer {
    pub inner: Arc<Dated>,
    pub actor: Actor,
    pub witness: Arc<Witness>,
    pub counts: Counts,
    pub bug: Option<Bug>,
    /// The schedule that a node with a bug follows for ever.
    pub believed: Arc<Mutex<Option<Path>>>,
    /// The open jobs that a planner with a bug has found, and when.
    pub open: Arc<Mutex<Option<Listed>>>,
    /// Time stands still while another thread works, so only this thread can wait.
    pub thread: ThreadId,
}

impl fmt::Display for StoreLayer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the store as {} sees it", self.actor.name())
    }
}

/// Returns the name of an object within its job; the whole path, if it belongs to no job.
fn in_job(location: &Path) -> &str {
    let path = location.as_ref();
    let of_job = path.strip_prefix("jobs/").and_then(|path| path.split_once('/'));
    of_job.map_or(path, |(_, name)| name)
}

impl StoreLayer {
    async fn call<T>(&self, work: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
        if std::thread::current().id() != self.thread {
            return work().await;
        }
        if self.actor.weather().latency > 0 {
            self.actor.wait(self.actor.weather().latency).await;
        }
        let failed =
            || object_store::Error::Generic { store: "simulated", source: "bad weather".into() };
        self.actor.call(failed, work).await
    }

    async fn write(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let bytes = Bytes::from(payload.clone());
        let written = self.inner.put_opts(location, payload, options).await?;
        self.witness.written(location.as_ref(), &bytes, self.actor.name());
        if in_job(location) == "result.json" {
            self.counts.stop();
        }
        Ok(written)
    }

    /// Whether a node with a bug does not see this.
    fn is_hidden(&self, location: &Path) -> bool {
        let believed = self.believed.lock().expect("no holder panics");
        location.as_ref().starts_with("schedule/")
            && believed.as_ref().is_some_and(|believed| believed != location)
    }

    /// A node with a bug believes the first schedule that gives it something.
    fn believe(&self, location: &Path, bytes: &Bytes) {
        let schedule: Schedule = serde_json::from_slice(bytes).expect("a schedule");
        if schedule.allocations.iter().any(|allocation| allocation.node == self.actor.name()) {
            self.believed.lock().expect("no holder panics").get_or_insert_with(|| location.clone());
        }
    }

    /// Returns what a role with a bug reads instead.
    async fn mistaken(&self, bug: Bug, location: &Path, got: GetResult) -> Result<GetResult> {
        let GetResult { meta, attributes, extensions, .. } = &got;
        let (meta, attributes, extensions) = (meta.clone(), attributes.clone(), extensions.clone());
        let mut bytes = got.bytes().await?;
        match (location.as_ref(), in_job(location)) {
            ("quotas.json", _) if self.is_reducer() => bytes = mistaken_quotas(bug, bytes),
            (_, "spec.json") if self.is_reducer() => bytes = mistaken_spec(bug, bytes),
            (path, _)
                if path.starts_with("schedule/")
                    && self.is_node()
                    && bug == Bug::BelievesAStaleSchedule =>
            {
                self.believe(location, &bytes);
            }
            _ => {}
        }
        let (size, range) = (bytes.len() as u64, 0..bytes.len() as u64);
        let payload =
            GetResultPayload::Stream(futures::stream::once(std::future::ready(Ok(bytes))).boxed());
        Ok(GetResult { payload, meta: ObjectMeta { size, ..meta }, range, attributes, extensions })
    }

    /// Whether this role has a bug that takes a failed request for a missing job.
    fn takes_failure_for_absence(&self, location: &Path) -> bool {
        let is_buggy = self.bug == Some(Bug::ServiceDropsOpenJobs) && self.is_reducer();
        is_buggy && in_job(location) == "spec.json"
    }

    /// Returns the open jobs of the last look that counts.
    fn seldom(&self, listed: Vec<ObjectMeta>) -> Vec<ObjectMeta> {
        let mut open = self.open.lock().expect("no holder panics");
        match &*open {
            Some((at, before)) if at.elapsed() < SELDOM => before.clone(),
            _ => open.insert((Instant::now(), listed)).1.clone(),
        }
    }

    fn is_reducer(&self) -> bool {
        self.actor.name().starts_with("Reducer")
    }

    fn is_node(&self) -> bool {
        self.actor.name().starts_with("Node")
    }
}

#[async_trait]
impl ObjectStore for StoreLayer {
    async fn put_opts(
        &self,
        location: &Path,
        mut payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        self.counts.add(|requests| requests.puts += 1);
        let path = in_job(location);
        if self.bug == Some(Bug::AnnouncesBeforeWriting) && path.starts_with("parts/") {
            let (layer, location) = (self.clone(), location.clone());
            tokio::spawn(async move {
                tokio::time::sleep(LATE).await;
                layer.actor.alive().await;
                layer.write(&location, payload, options).await
            });
            return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
        }
        if self.bug == Some(Bug::CommitsUnconditionally) && path.starts_with("ledger/") {
            options.mode = PutMode::Overwrite;
        }
        let is_schedule = location.as_ref().starts_with("schedule/");
        if self.bug == Some(Bug::SchedulesUnconditionally) && is_schedule {
            options.mode = PutMode::Overwrite;
        }
        if self.bug == Some(Bug::GivesGpusTwice) && is_schedule {
            payload = with_gpus_twice(payload);
        }
        if self.bug == Some(Bug::SwallowsCauses) && path == "result.json" {
            payload = without_cause(payload);
        }
        self.call(async || self.write(location, payload, options).await).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.counts.add(|requests| requests.gets += 1);
        if self.is_hidden(location) {
            let (path, source) = (location.to_string(), "it is not read".into());
            return Err(object_store::Error::NotFound { path, source });
        }
        let is_part = options.range.is_some();
        let get = async || {
            let got = self.inner.get_opts(location, options).await?;
            self.witness.read(location.as_ref(), self.actor.name());
            match self.bug.filter(|_| !is_part) {
                Some(bug) => self.mistaken(bug, location, got).await,
                None => Ok(got),
            }
        };
        let answer = self.call(get).await;
        match answer {
            Err(object_store::Error::Generic { source, .. })
                if self.takes_failure_for_absence(location) =>
            {
                Err(object_store::Error::NotFound { path: location.to_string(), source })
            }
            answer => answer,
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let layer = self.clone();
        let deleted = move |location: Result<Path>| {
            let layer = layer.clone();
            async move {
                let location = location?;
                let delete = async || {
                    let deleted = layer.inner.delete(&location).await;
                    layer.witness.deleted(location.as_ref());
                    deleted
                };
                layer.call(delete).await.map(|()| location.clone())
            }
        };
        locations.then(deleted).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counts.add(|requests| requests.lists += 1);
        let (layer, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            let list = async || layer.inner.list(prefix.as_ref()).try_collect::<Vec<_>>().await;
            let mut listed = layer.call(list).await?;
            listed.retain(|meta| !layer.is_hidden(&meta.location));
            if layer.bug == Some(Bug::LooksSeldom)
                && layer.is_reducer()
                && prefix == Some(Path::from("open"))
            {
                listed = layer.seldom(listed);
            }
            Ok::<_, object_store::Error>(futures::stream::iter(listed.into_iter().map(Ok)))
        };
        listed.try_flatten_stream().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.counts.add(|requests| requests.lists += 1);
        self.call(async || self.inner.list_with_delimiter(prefix).await).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.call(async || self.inner.copy_opts(from, to, options).await).await
    }
}

/// The object, format included, without one of the job's claims.
fn mistaken_spec(bug: Bug, bytes: Bytes) -> Bytes {
    let claim = match bug {
        Bug::IgnoresPriorities => "priority",
        Bug::IgnoresMaxShare => "max_share",
        Bug::IgnoresRequires => "requires",
        Bug::IgnoresNodeCount => "node_count",
        _ => return bytes,
    };
    let Ok(mut spec) = serde_json::from_slice::<serde_json::Map<_, _>>(&bytes) else {
        return bytes;
    };
    spec.remove(claim);
    serde_json::to_vec(&spec).expect("plain data").into()
}

fn mistaken_quotas(bug: Bug, bytes: Bytes) -> Bytes {
    let Ok(quotas) = serde_json::from_slice::<Quotas>(&bytes) else { return bytes };
    let of_owner = quotas.each_owner;
    let quotas = match bug {
        Bug::IgnoresQuotas => Quotas {
            max_jobs: None,
            each_owner: OwnerQuota { max_jobs: None, ..of_owner },
            ..quotas
        },
        Bug::IgnoresInFlight => {
            Quotas { each_owner: OwnerQuota { max_in_flight: None, ..of_owner }, ..quotas }
        }
        _ => return bytes,
    };
    serde_json::to_vec(&quotas).expect("plain data").into()
}

/// Gives the GPUs of a job to the next one on its node as well.
fn with_gpus_twice(payload: PutPayload) -> PutPayload {
    let bytes = Bytes::from(payload);
    let mut schedule: Schedule = serde_json::from_slice(&bytes).expect("a schedule");
    let before = schedule.allocations.clone();
    for (own, former) in schedule.allocations.iter_mut().skip(1).zip(&before) {
        if own.node == former.node && !own.gpus.is_empty() && !former.gpus.is_empty() {
            own.gpus.clone_from(&former.gpus);
        }
    }
    serde_json::to_vec(&schedule).expect("plain data").into()
}

fn without_cause(payload: PutPayload) -> PutPayload {
    let bytes = Bytes::from(payload);
    let result: JobResult = serde_json::from_slice(&bytes).expect("a result");
    serde_json::to_vec(&JobResult { cause: None, ..result })
        .expect("results always serialise")
        .into()
}
