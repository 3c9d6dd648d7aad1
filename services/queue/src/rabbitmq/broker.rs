//! Queues of jobs on RabbitMQ: `PREFIX-NAME-tasks` and `PREFIX-NAME-results`, on shared connections.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::try_join_all;
use lapin::options::QueueDeleteOptions;
use tokio::time::{Instant, timeout};

use super::address::Address;
use super::connections::Connections;
use super::failure::{During, explain, is_gone};
use super::{RabbitOptions, RabbitQueue, TRIES_MAX};
use crate::broker::{Naming, Part};
use crate::{Broker, Error, JobQueues};

/// How many jobs may have queues at a time. Each has two quorum queues, each of which costs every node of the broker some
/// hundred kilobytes of memory even if it is empty, and its log on disk.
const JOBS_MAX: u32 = 1000;
/// The names that RabbitMQ allows: it counts bytes, and other characters would be several.
const NAMING: Naming = Naming { characters_max: 255, marks: "-_." };

/// The queues of jobs on RabbitMQ, each one quorum queue without lanes.
///
/// All queues that it opens share its connections, each with two channels, of which an idle one costs nothing but memory: it
/// has no consumer. If a connection breaks, all queues on it lose their leases, and use the same new connection. Messages
/// that are returned too often move to `PREFIX-dead-letters`.
///
/// RabbitMQ 3.10 closes a whole connection if a client starts a consumer, or sends a message, in the milliseconds in which
/// the broker deletes the queue. Stop the workers of a job before you delete its queues.
pub struct RabbitBroker {
    options: RabbitOptions,
    connections: Arc<Connections>,
}

impl RabbitBroker {
    /// Connects, without a second try, with the settings of the queues of a target.
    ///
    /// `consumer_timeout` is that of [`RabbitOptions`], and of every process that uses the queues.
    pub async fn connect(url: &str, prefix: &str, consumer_timeout: Option<Duration>) -> Result<Self, Error> {
        Self::connect_with(RabbitOptions { consumer_timeout, ..RabbitOptions::new(url, prefix) }).await
    }

    /// Connects, without a second try. [`RabbitOptions::name`] is the prefix of all names; lanes and dead letters are
    /// ignored.
    pub async fn connect_with(options: RabbitOptions) -> Result<Self, Error> {
        let connections = Arc::new(Connections::shared(format!("gristmill {}", options.name)));
        let until = Instant::now() + options.connect_wait_max;
        connections.seat(&Address::of_job(&options)?, until, false).await?;
        Ok(Self { options, connections })
    }

    /// Returns the number of connections, which all open queues share.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }

    fn options_of(&self, name: &str, part: Part) -> RabbitOptions {
        let prefix = &self.options.name;
        RabbitOptions {
            name: NAMING.name(&format!("{prefix}-{name}"), part),
            lanes: 1,
            dead_letters: Some(format!("{prefix}-dead-letters")),
            ..self.options.clone()
        }
    }

    async fn open_queues(&self, name: &str, declare: bool) -> Result<JobQueues, Error> {
        let [tasks, results] = Part::BOTH
            .map(|part| RabbitQueue::open_of_job(self.connections.clone(), self.options_of(name, part), declare));
        let (tasks, results) = tokio::try_join!(tasks, results)?;
        Ok(JobQueues { tasks: Arc::new(tasks), results: Arc::new(results) })
    }

    async fn delete_queue(&self, options: RabbitOptions) -> Result<(), Error> {
        let address = Address::of_job(&options)?;
        for tries in 1.. {
            let until = Instant::now() + options.connect_wait_max;
            let seat = self.connections.seat(&address, until, true).await?;
            let delete = async {
                let channel = seat.create_channel().await?;
                channel.queue_delete(options.name.as_str().into(), QueueDeleteOptions::default()).await?;
                channel.close(200, "deleted".into()).await
            };
            match timeout(options.answer_wait_max, delete).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) if is_gone(&error) => break,
                Ok(Err(_)) if tries < TRIES_MAX && !seat.is_alive() => {}
                Ok(Err(error)) => return Err(explain(&address, During::Working, error)),
                Err(_) => return Err(address.unavailable("no answer to the request to delete it")),
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Broker for RabbitBroker {
    async fn create(&self, name: &str) -> Result<JobQueues, Error> {
        self.open_queues(name, true).await
    }

    async fn open(&self, name: &str) -> Result<JobQueues, Error> {
        self.open_queues(name, false).await
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        let deletions = Part::BOTH.map(|part| self.delete_queue(self.options_of(name, part)));
        try_join_all(deletions).await.map(drop)
    }

    async fn target(&self) -> Result<crate::TargetQueues, Error> {
        let open = async |n: &str| {
            RabbitQueue::open(RabbitOptions {
                name: format!("{}-{n}", self.options.name),
                lanes: 1,
                dead_letters: None,
                ..self.options.clone()
            })
            .await
        };
        Ok(crate::TargetQueues {
            control: Arc::new(open("control").await?),
            dead_letters: Arc::new(open("dead-letters").await?),
            are_new: false,
        })
    }

    fn jobs_max(&self) -> u32 {
        JOBS_MAX
    }

    async fn close(&self) {
        self.connections.end(self.options.answer_wait_max).await;
    }
}

impl Debug for RabbitBroker {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RabbitBroker").field("prefix", &self.options.name).finish_non_exhaustive()
    }
}
