//! A store as one role sees it: requests fail, take long and lose their answers; and bugs can be planted in front of it.

use std::fmt;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use futures::stream::BoxStream;
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use protocol::JobResult;
use tokio::time::Instant;

use crate::actor::Actor;
use crate::counts::{Asked, Counts};
use crate::weather::Bug;
use crate::witness::Witness;

/// How long a write takes that a bug does not wait for.
const LATE: Duration = Duration::from_secs(5);

/// One role's view of the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreLayer {
    pub inner: Arc<InMemory>,
    pub actor: Actor,
    pub witness: Arc<Witness>,
    pub counts: Counts,
    pub bug: Option<Bug>,
    /// The store dates the markers of open jobs by virtual time, which began then.
    pub began: Instant,
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
    job_of(location).map_or(location.as_ref(), |(_, name)| name)
}

/// Returns the job of an object, and its name there.
fn job_of(location: &Path) -> Option<(&str, &str)> {
    location.as_ref().strip_prefix("jobs/")?.split_once('/')
}

impl StoreLayer {
    async fn call<T>(&self, work: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
        if std::thread::current().id() != self.thread {
            return work().await;
        }
        if self.actor.weather().latency > 0 {
            self.actor.wait(self.actor.weather().latency).await;
        }
        let failed = || object_store::Error::Generic { store: "simulated", source: "bad weather".into() };
        self.actor.call(failed, work).await
    }

    async fn write(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let bytes = Bytes::from(payload.clone());
        let written = self.inner.put_opts(location, payload, options).await?;
        self.witness.written(location.as_ref(), &bytes);
        if in_job(location) == "result.json" {
            self.counts.stop();
        }
        Ok(written)
    }

    /// Lists the workers, and shows the witness who knows them now.
    fn workers(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (listed, witness, actor) = (self.inner.list(prefix), self.witness.clone(), self.actor.clone());
        let is_alone = self.bug == Some(Bug::IgnoresOtherWorkers);
        let listed = async move {
            let mut listed: Vec<ObjectMeta> = listed.try_collect().await?;
            let names = listed.iter().filter_map(|meta| meta.location.filename().map(str::to_owned));
            witness.in_flight.listed(actor.name(), names.collect());
            listed.retain(|meta| !is_alone || meta.location.filename() == Some(actor.name()));
            Ok::<_, object_store::Error>(futures::stream::iter(listed.into_iter().map(Ok)))
        };
        listed.try_flatten_stream().boxed()
    }

    /// Whether this role has a bug that takes a failed request for a missing job.
    fn takes_failure_for_absence(&self, location: &Path) -> bool {
        let is_buggy = match self.bug {
            Some(Bug::NodeDropsOpenJobs) => self.is_node(),
            Some(Bug::ServiceDropsOpenJobs) => self.actor.name().starts_with("Reducer"),
            _ => false,
        };
        is_buggy && in_job(location) == "spec.json"
    }

    fn is_node(&self) -> bool {
        self.actor.name().starts_with("Node")
    }

    /// Whether the write would renew a seat that this role has.
    fn renews_seat(&self, location: &Path) -> bool {
        let holder = job_of(location).and_then(|(job_id, name)| self.witness.of(job_id).seat_holder(name));
        holder.is_some_and(|holder| holder == self.actor.name())
    }
}

#[async_trait]
impl ObjectStore for StoreLayer {
    async fn put_opts(&self, location: &Path, mut payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        self.counts.asked(Asked::Put);
        let path = in_job(location);
        let is_late = match self.bug {
            Some(Bug::AnnouncesBeforeWriting) => path.starts_with("parts/"),
            Some(Bug::PublishesBeforePlanning) => path.starts_with("plan/0"),
            _ => false,
        };
        if is_late {
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
        if self.bug == Some(Bug::TurnsTwice) && location.as_ref().starts_with("turns/") {
            options.mode = PutMode::Overwrite;
        }
        if self.bug == Some(Bug::TakesSeatsOfOthers) && job_of(location).is_some_and(|(_, name)| is_seat(name)) {
            options.mode = PutMode::Overwrite;
        }
        if self.bug == Some(Bug::NeverRenewsSeats) && self.renews_seat(location) {
            return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
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
        self.counts.asked(Asked::Get);
        let answer = self.call(async || self.inner.get_opts(location, options).await).await;
        match answer {
            Err(object_store::Error::Generic { source, .. }) if self.takes_failure_for_absence(location) => {
                Err(object_store::Error::NotFound { path: location.to_string(), source })
            }
            answer => answer,
        }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let witness = self.witness.clone();
        self.inner.delete_stream(locations).inspect_ok(move |location| witness.deleted(location.as_ref())).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counts.asked(Asked::List);
        if prefix.is_some_and(|prefix| prefix.as_ref() == "workers") {
            return self.workers(prefix);
        }
        let (witness, began) = (self.witness.clone(), self.began);
        let dated = move |meta: ObjectMeta| match witness.marked(meta.location.as_ref()) {
            Some(at) => ObjectMeta { last_modified: DateTime::UNIX_EPOCH + (at - began), ..meta },
            None => meta,
        };
        self.inner.list(prefix).map_ok(dated).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.counts.asked(Asked::List);
        self.call(async || self.inner.list_with_delimiter(prefix).await).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.call(async || self.inner.copy_opts(from, to, options).await).await
    }
}

fn is_seat(name: &str) -> bool {
    name.strip_prefix("nodes/").is_some_and(|name| name.contains('/'))
}

fn without_cause(payload: PutPayload) -> PutPayload {
    let bytes = Bytes::from(payload);
    let result: JobResult = serde_json::from_slice(&bytes).expect("a result");
    serde_json::to_vec(&JobResult { cause: None, ..result }).expect("results always serialise").into()
}
