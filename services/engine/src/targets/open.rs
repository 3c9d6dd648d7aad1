//! Opens the store and the queues of a target.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use queue::{
    Broker, Bundles, JobQueues, Queue, RabbitBroker, RabbitOptions, SqliteBroker, SqliteOptions,
    SqsBroker, SqsOptions, TargetQueues,
};
use serde::Serialize;
use storage::{StoreOptions, TargetStore};
use tokio::time::timeout;
use url::Url;

use super::{QueueAddress, Target};
use crate::{Fixable, Remedy, Settings};

/// How long a command waits for an answer before it says what it waits for.
const SILENCE: Duration = Duration::from_secs(4);
/// How long it waits for a store in all. Queues have limits of their own.
const STORE_ANSWER_MAX: Duration = Duration::from_secs(30);

/// The queues of a target.
#[derive(Clone, Debug)]
pub struct Queues {
    /// The control queue, which wakes reducers.
    pub control: Arc<dyn Queue>,
    /// Messages that no role can read.
    pub dead_letters: Arc<dyn Queue>,
    /// The queues of its jobs.
    pub broker: Arc<dyn Broker>,
    /// Whether this process has created the first two.
    pub are_new: bool,
}

impl Queues {
    /// Closes the connections, so that acknowledgements reach the broker.
    pub async fn close(&self) {
        self.broker.close().await;
    }

    /// Wraps the queues of each job that is created or opened from now on.
    pub fn wrap_jobs(&mut self, wrap: impl Fn(JobQueues) -> JobQueues + Send + Sync + 'static) {
        self.broker = Arc::new(Wrapping { broker: self.broker.clone(), wrap: Box::new(wrap) });
    }
}

/// The approximate number of messages in a queue, for people.
#[derive(Clone, Debug, Serialize)]
pub struct QueueDepth {
    /// Name of the queue.
    pub name: String,
    /// Messages that could be received now.
    pub visible: Option<u64>,
    /// Messages that are leased, if the service counts them.
    pub in_flight: Option<u64>,
    /// Messages that are not visible yet.
    pub delayed: Option<u64>,
    /// Why the depth is unknown.
    pub problem: Option<String>,
}

impl QueueDepth {
    /// Describes queues of a target whose depth is unknown.
    pub fn unknown(problem: String) -> Self {
        Self::without(DEAD_LETTERS_SHOWN.to_owned(), problem)
    }

    fn without(name: String, problem: String) -> Self {
        Self { name, visible: None, in_flight: None, delayed: None, problem: Some(problem) }
    }

    async fn of(name: String, queue: &dyn Queue) -> Self {
        match queue.depth().await {
            Ok(depth) => Self {
                name,
                visible: Some(depth.visible),
                in_flight: queue.limits().timed_lease.then_some(depth.in_flight),
                delayed: Some(depth.delayed),
                problem: None,
            },
            Err(error) => Self::without(name, error.to_string()),
        }
    }
}

/// The name of the queue of dead letters, as people see it.
const DEAD_LETTERS_SHOWN: &str = "dead letters";

impl Queues {
    /// Returns the depths of the dead letters, and of the task queues of these jobs, given their names.
    pub async fn depths(&self, of_jobs: &[(String, String)]) -> Vec<QueueDepth> {
        let mut found =
            vec![QueueDepth::of(DEAD_LETTERS_SHOWN.to_owned(), &*self.dead_letters).await];
        for (job_id, name) in of_jobs {
            let shown = format!("tasks of {job_id}");
            match self.broker.open(name).await {
                Ok(of_job) => found.push(QueueDepth::of(shown, &*of_job.tasks).await),
                // They are about to be created, or deleted.
                Err(queue::Error::Absent { .. }) => {}
                Err(error) => found.push(QueueDepth::without(shown, error.to_string())),
            }
        }
        found
    }
}

/// A broker that wraps the queues of jobs.
struct Wrapping {
    broker: Arc<dyn Broker>,
    wrap: Box<dyn Fn(JobQueues) -> JobQueues + Send + Sync>,
}

impl fmt::Debug for Wrapping {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.broker, formatter)
    }
}

#[async_trait]
impl Broker for Wrapping {
    async fn create(&self, name: &str) -> Result<JobQueues, queue::Error> {
        self.broker.create(name).await.map(&self.wrap)
    }

    async fn open(&self, name: &str) -> Result<JobQueues, queue::Error> {
        self.broker.open(name).await.map(&self.wrap)
    }

    fn name_of_tasks(&self, name: &str) -> String {
        self.broker.name_of_tasks(name)
    }

    async fn target(&self) -> Result<TargetQueues, queue::Error> {
        self.broker.target().await
    }

    async fn delete(&self, name: &str) -> Result<(), queue::Error> {
        self.broker.delete(name).await
    }

    fn jobs_max(&self) -> u32 {
        self.broker.jobs_max()
    }

    async fn close(&self) {
        self.broker.close().await;
    }
}

/// Lets the task queue of a job put quick mini-batches together, as each message is paid for.
fn bundling(queues: JobQueues) -> JobQueues {
    JobQueues { tasks: Arc::new(Bundles::new(queues.tasks, worker::body_to_return)), ..queues }
}

impl Target {
    /// Opens its store, which checks address, bucket and credentials.
    pub async fn open_store(&self) -> Result<TargetStore> {
        let opening = TargetStore::open(self.store()?, self.store_options());
        let opened = self.answer_of_store(opening).await;
        opened.with_context(|| format!("target {}: its store cannot be used", self.name))
    }

    /// Waits for the store of this target, at most for [`STORE_ANSWER_MAX`].
    pub(crate) async fn answer_of_store<T>(
        &self,
        request: impl Future<Output = storage::Result<T>>,
    ) -> Result<T> {
        match self.with_notice("its store", timeout(STORE_ANSWER_MAX, request)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => {
                let is_s3 = self.store()?.starts_with("s3:");
                let endpoint = self.endpoint.as_ref().filter(|_| is_s3);
                let at = endpoint.map_or_else(String::new, |endpoint| format!(" at {endpoint}"));
                anyhow::bail!("no answer{at} within {} s", STORE_ANSWER_MAX.as_secs())
            }
        }
    }

    /// Waits for a service of this target, and warns if it does not answer soon: its requests are retried.
    async fn with_notice<T>(&self, service: &str, request: impl Future<Output = T>) -> T {
        let mut request = std::pin::pin!(request);
        if let Ok(answer) = timeout(SILENCE, &mut request).await {
            return answer;
        }
        tracing::warn!("target {}: no answer from {service} yet; still trying", self.name);
        request.await
    }

    /// Returns the options for its store.
    pub fn store_options(&self) -> StoreOptions {
        StoreOptions { endpoint: self.endpoint.clone(), region: self.region.clone() }
    }

    /// Returns the options for one of its SQS queues, or for all of them by their prefix.
    pub fn sqs_options(&self, queue: &str, create: bool) -> SqsOptions {
        let (kms_key, tags) = match &self.queue {
            Some(QueueAddress::Sqs { kms_key, tags, .. }) => (kms_key.clone(), tags.clone()),
            _ => Default::default(),
        };
        SqsOptions {
            queue: queue.to_owned(),
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            create,
            kms_key,
            tags,
        }
    }

    /// Opens its queues for a role or a new job. The first of them creates the queues, except on SQS, where deployment does.
    pub async fn open_queues_to_work(&self) -> Result<Queues> {
        let create = !matches!(self.queue()?, QueueAddress::Sqs { .. });
        self.open_queues(create).await
    }

    /// Opens its queues. `create`: creates missing ones. Those that are files always are.
    pub async fn open_queues(&self, create: bool) -> Result<Queues> {
        let open = async {
            let broker = self.broker(create).await?;
            let TargetQueues { control, dead_letters, are_new } = broker.target().await?;
            // Files have no prefix that could be mistaken.
            let are_new = are_new && self.queue()?.prefix().is_some();
            let mut queues = Queues { control, dead_letters, broker, are_new };
            if matches!(self.queue()?, QueueAddress::Sqs { .. }) {
                queues.wrap_jobs(bundling);
            }
            anyhow::Ok(queues)
        };
        self.with_notice("its queues", open).await.map_err(|error| self.explain(error))
    }

    async fn broker(&self, create: bool) -> Result<Arc<dyn Broker>> {
        Ok(match self.queue()? {
            QueueAddress::Sqlite { folder } => {
                std::fs::create_dir_all(folder)
                    .with_context(|| format!("create {}", folder.display()))?;
                storage::snapshot::mark(folder)
                    .with_context(|| format!("write into {}", folder.display()))?;
                Arc::new(SqliteBroker::new(folder.clone(), SqliteOptions::default()))
            }
            QueueAddress::Rabbit { url, prefix } => {
                let options = RabbitOptions::new(url.as_str(), prefix);
                Arc::new(
                    RabbitBroker::connect_with(RabbitOptions {
                        consumer_timeout: self.lease,
                        create,
                        ..options
                    })
                    .await?,
                )
            }
            QueueAddress::Sqs { prefix, .. } => {
                Arc::new(SqsBroker::connect(self.sqs_options(prefix, create)).await?)
            }
        })
    }

    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let target = format!("target {}", self.name);
        match error.downcast_ref::<queue::Error>() {
            Some(known) if known.is_of_missing_queue() => {
                Fixable::caused(target, Remedy::CreateQueues(self.reference()), error)
            }
            Some(queue::Error::Unavailable { .. }) => {
                let is_sqs = matches!(self.queue, Some(QueueAddress::Sqs { .. }));
                match self.endpoint.as_ref().filter(|_| is_sqs) {
                    Some(endpoint) => anyhow::anyhow!(
                        "{target}: {error:#}; the endpoint of this target is {endpoint}"
                    ),
                    None => error.context(target),
                }
            }
            _ => error.context(target),
        }
    }

    /// Whether its queues are on this machine, so that its nodes probably are as well.
    pub fn is_on_this_machine(&self, settings: &Settings) -> Result<bool> {
        // The parser of URLs splits only addresses of the web.
        let is_loopback = |url: &Url| {
            let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
            let is_address = host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
            is_address || host == "localhost" || host.ends_with(".localhost")
        };
        Ok(match self.queue()? {
            QueueAddress::Sqlite { .. } => true,
            QueueAddress::Rabbit { url, .. } => is_loopback(url),
            QueueAddress::Sqs { .. } => {
                let endpoint = self.endpoint.clone().or_else(|| settings.sqs_endpoint.clone());
                endpoint
                    .and_then(|endpoint| Url::parse(&endpoint).ok())
                    .is_some_and(|url| is_loopback(&url))
            }
        })
    }
}
