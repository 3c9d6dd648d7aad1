//! Opens the store and the queues of a target.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use async_trait::async_trait;
use queue::{
    Broker, Bundles, JobQueues, Queue, RabbitBroker, RabbitOptions, RabbitQueue, SqliteBroker, SqliteOptions,
    SqliteQueue, SqsBroker, SqsOptions, SqsQueue, SqsTarget,
};
use storage::{StoreOptions, TargetStore};
use url::Url;

use super::{QueueAddress, Role, Target};
use crate::{Fixable, Remedy, Settings};

/// The queues of a target.
#[derive(Clone, Debug)]
pub struct Queues {
    connections: Vec<Arc<RabbitQueue>>,
    /// Whether the broker had no task queue, and this process has created it.
    pub are_new: bool,
    /// Descriptors.
    pub tasks: Arc<dyn Queue>,
    /// Outcomes.
    pub results: Arc<dyn Queue>,
    /// Messages that no role can read.
    pub dead_letters: Arc<dyn Queue>,
    /// The queues of each job; `None`: all jobs share those above.
    pub broker: Option<Arc<dyn Broker>>,
}

impl Queues {
    /// Closes the connections, so that acknowledgements reach the broker.
    pub async fn close(&self) {
        for connection in &self.connections {
            if let Err(error) = connection.close().await {
                tracing::debug!("cannot close a connection: {error:#}");
            }
        }
        if let Some(broker) = &self.broker {
            broker.close().await;
        }
    }
}

/// A broker whose task queues put quick mini-batches together, as each message is paid for.
#[derive(Debug)]
struct Bundling(SqsBroker);

#[async_trait]
impl Broker for Bundling {
    async fn create(&self, name: &str) -> Result<JobQueues, queue::Error> {
        self.0.create(name).await.map(bundling)
    }

    async fn open(&self, name: &str) -> Result<JobQueues, queue::Error> {
        self.0.open(name).await.map(bundling)
    }

    async fn delete(&self, name: &str) -> Result<(), queue::Error> {
        self.0.delete(name).await
    }

    fn jobs_max(&self) -> u32 {
        self.0.jobs_max()
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

fn bundling(queues: JobQueues) -> JobQueues {
    JobQueues { tasks: Arc::new(Bundles::new(queues.tasks, worker::unspent)), ..queues }
}

/// A queue, and its connection if it has one.
type Opened = (Arc<dyn Queue>, Option<Arc<RabbitQueue>>);

fn without_connection(queue: impl Queue + 'static) -> Opened {
    (Arc::new(queue), None)
}

/// Each message to SQS is paid for, so quick mini-batches share one.
fn tasks_of_sqs(queue: SqsQueue) -> Opened {
    without_connection(Bundles::new(Arc::new(queue), worker::unspent))
}

impl Target {
    /// Opens its store, and so checks address, bucket and credentials.
    pub async fn open_store(&self) -> Result<TargetStore> {
        let store = TargetStore::open(self.store()?, self.store_options()).await;
        store.map_err(|error| {
            let endpoint = self.endpoint.as_ref().filter(|_| matches!(error, storage::Error::Unavailable { .. }));
            let endpoint =
                endpoint.map_or(String::new(), |endpoint| format!("; the endpoint of this target is {endpoint}"));
            anyhow::anyhow!("target {}: its store cannot be used: {error:#}{endpoint}", self.name)
        })
    }

    /// Returns how to reach its store.
    pub fn store_options(&self) -> StoreOptions {
        StoreOptions { endpoint: self.endpoint.clone(), region: self.region.clone() }
    }

    /// Returns how to reach one of its SQS queues, or all of them by their prefix.
    pub fn sqs_options(&self, queue: &str, create: bool) -> SqsOptions {
        SqsOptions { queue: queue.to_owned(), endpoint: self.endpoint.clone(), region: self.region.clone(), create }
    }

    /// Opens its three queues. Creates missing SQS queues only if `create` is set, and all others always.
    pub async fn open_queues(&self, create: bool) -> Result<Queues> {
        let open = async {
            let opened: [Opened; 3] = match self.queue()? {
                QueueAddress::Sqs { prefix } => {
                    let SqsTarget { tasks, results, dead_letters } =
                        SqsTarget::open(self.sqs_options(prefix, create)).await?;
                    [tasks_of_sqs(tasks), without_connection(results), without_connection(dead_letters)]
                }
                _ => tokio::try_join!(self.open(Role::Tasks), self.open(Role::Results), self.open(Role::DeadLetters))?
                    .into(),
            };
            let connections: Vec<Arc<RabbitQueue>> =
                opened.iter().filter_map(|(_, connection)| connection.clone()).collect();
            let are_new = connections.first().is_some_and(|tasks| tasks.is_new());
            let [tasks, results, dead_letters] = opened.map(|(queue, _)| queue);
            let broker = if self.has_schedule { Some(self.broker().await?) } else { None };
            Ok(Queues { connections, are_new, tasks, results, dead_letters, broker })
        };
        open.await.map_err(|error| self.explain(error))
    }

    async fn broker(&self) -> Result<Arc<dyn Broker>> {
        Ok(match self.queue()? {
            QueueAddress::Sqlite { folder } => {
                std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
                Arc::new(SqliteBroker::new(folder.clone(), SqliteOptions::default()))
            }
            QueueAddress::Rabbit { url, prefix } => {
                Arc::new(RabbitBroker::connect(url.as_str(), prefix, self.lease).await?)
            }
            QueueAddress::Sqs { prefix } => {
                Arc::new(Bundling(SqsBroker::connect(self.sqs_options(prefix, false)).await?))
            }
        })
    }

    /// Opens one of its queues.
    pub async fn open_queue(&self, role: Role) -> Result<Arc<dyn Queue>> {
        let (queue, _) = self.open(role).await.map_err(|error| self.explain(error))?;
        Ok(queue)
    }

    async fn open(&self, role: Role) -> Result<Opened> {
        let address = self.queue()?;
        match address {
            QueueAddress::Sqlite { folder } => {
                std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
                storage::snapshot::mark(folder).with_context(|| format!("write into {}", folder.display()))?;
                Ok(without_connection(SqliteQueue::open(address.name(role), SqliteOptions::default())?))
            }
            QueueAddress::Rabbit { url, prefix } => {
                let [tasks, results, dead_letters] = RabbitOptions::target(url.as_str(), prefix);
                let options = match role {
                    Role::Tasks => tasks,
                    Role::Results => results,
                    Role::DeadLetters => dead_letters,
                };
                let options = RabbitOptions { consumer_timeout: self.lease, ..options };
                let queue = Arc::new(RabbitQueue::open(options).await?);
                Ok((queue.clone(), Some(queue)))
            }
            QueueAddress::Sqs { .. } => {
                let queue = SqsQueue::open(self.sqs_options(&address.name(role), false)).await?;
                Ok(if role == Role::Tasks { tasks_of_sqs(queue) } else { without_connection(queue) })
            }
        }
    }

    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let target = format!("target {}", self.name);
        match (&self.queue, error.downcast_ref(), &self.endpoint) {
            (Some(QueueAddress::Sqs { .. }), Some(queue::Error::Misconfigured { .. }), _) => {
                Fixable::caused(target, Remedy::CreateQueues(self.reference()), error)
            }
            (Some(QueueAddress::Sqs { .. }), Some(queue::Error::Unavailable { .. }), Some(endpoint)) => {
                anyhow::anyhow!("{target}: {error:#}; the endpoint of this target is {endpoint}")
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
                endpoint.and_then(|endpoint| Url::parse(&endpoint).ok()).is_some_and(|url| is_loopback(&url))
            }
        })
    }
}
