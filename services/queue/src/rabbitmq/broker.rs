//! The queues of a target on RabbitMQ, on shared connections: `PREFIX-control`, `PREFIX-dead-letters`, and
//! `PREFIX-NAME-tasks` and `PREFIX-NAME-results` for each job.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::try_join_all;
use lapin::options::QueueDeleteOptions;
use tokio::time::{Instant, timeout};

use super::address::Address;
use super::connections::Connections;
use super::failure::{Operation, explain, is_gone};
use super::{Access, RabbitOptions, RabbitQueue, TRIES_MAX};
use crate::broker::Naming;
use crate::{Broker, CONTROL, DEAD_LETTERS, Error, JobQueues, TargetQueues};

/// How many jobs may have queues at a time. Each has two quorum queues. Even an empty one costs every node of the
/// broker some hundred kilobytes of memory, and a log on disk.
const JOBS_MAX: u32 = 1000;
/// The names that RabbitMQ allows. It counts bytes, so only ASCII characters remain.
const NAMING: Naming = Naming { characters_max: 255, marks: "-_." };

/// The queues of a target on RabbitMQ, each one quorum queue.
///
/// All queues that it opens share its connections. Each has two channels; an idle queue has no consumer, and costs only
/// memory. If a connection breaks, all queues on it lose their leases and move to the same new connection. The broker
/// moves messages of jobs that are returned too often to `PREFIX-dead-letters`.
///
/// RabbitMQ 3.10 closes a whole connection if a client starts a consumer, or sends a message, in the milliseconds in
/// which the broker deletes the queue. Stop the workers of a job before you delete its queues.
pub struct RabbitBroker {
    options: RabbitOptions,
    connections: Arc<Connections>,
}

impl RabbitBroker {
    /// Connects, without retries.
    ///
    /// [`Error::Misconfigured`] means a rejected user, a missing virtual host, or an untrusted certificate;
    /// [`Error::Unavailable`] means any temporary failure.
    pub async fn connect_with(options: RabbitOptions) -> Result<Self, Error> {
        let connections = Arc::new(Connections::new(format!("gristmill {}", options.prefix)));
        let until = Instant::now() + options.connect_wait_max;
        let address = Address::new(&options, &options.prefix, false)?;
        connections.acquire(&address, until, false).await?;
        Ok(Self { options, connections })
    }

    /// Returns the number of open connections, which all queues share.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }

    fn queue_names(&self, name: &str) -> [String; 2] {
        NAMING.names(&format!("{}-{name}", self.options.prefix))
    }

    async fn open_queue(
        &self,
        name: &str,
        of_job: bool,
        declare: bool,
    ) -> Result<RabbitQueue, Error> {
        let (connections, options) = (self.connections.clone(), self.options.clone());
        let address = Address::new(&options, name, of_job)?;
        RabbitQueue::open(Access { connections, address, options }, declare).await
    }

    async fn open_queues(&self, name: &str, declare: bool) -> Result<JobQueues, Error> {
        let [tasks, results] = self.queue_names(name);
        let (tasks, results) = tokio::try_join!(
            self.open_queue(&tasks, true, declare),
            self.open_queue(&results, true, declare)
        )?;
        Ok(JobQueues { tasks: Arc::new(tasks), results: Arc::new(results) })
    }

    async fn delete_queue(&self, name: String) -> Result<(), Error> {
        let options = &self.options;
        let address = Address::new(options, &name, true)?;
        for tries in 1.. {
            let until = Instant::now() + options.connect_wait_max;
            let permit = self.connections.acquire(&address, until, true).await?;
            let delete = async {
                let channel = permit.create_channel().await?;
                channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await?;
                channel.close(200, "deleted".into()).await
            };
            match timeout(options.answer_wait_max, delete).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) if is_gone(&error) => break,
                Ok(Err(_)) if tries < TRIES_MAX && !permit.is_alive() => {}
                Ok(Err(error)) => return Err(explain(&address, Operation::Working, error)),
                Err(_) => {
                    return Err(
                        address.unavailable("the broker did not answer the request to delete it")
                    );
                }
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Broker for RabbitBroker {
    async fn target(&self) -> Result<TargetQueues, Error> {
        let [control, dead_letters] =
            [CONTROL, DEAD_LETTERS].map(|end| self.options.name_of_target(end));
        let open = |name| self.open_queue(name, false, self.options.create);
        // `join` instead of `try_join`: if both queues are missing, the error always names the first.
        let (control, dead_letters) = tokio::join!(open(&control), open(&dead_letters));
        let (control, dead_letters) = (control?, dead_letters?);
        let are_new = control.current().is_new;
        Ok(TargetQueues {
            control: Arc::new(control),
            dead_letters: Arc::new(dead_letters),
            are_new,
        })
    }

    async fn create(&self, name: &str) -> Result<JobQueues, Error> {
        self.open_queues(name, true).await
    }

    async fn open(&self, name: &str) -> Result<JobQueues, Error> {
        self.open_queues(name, false).await
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        let deletions = self.queue_names(name).map(|name| self.delete_queue(name));
        try_join_all(deletions).await.map(drop)
    }

    fn name_of_tasks(&self, name: &str) -> String {
        let [tasks, _] = self.queue_names(name);
        tasks
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
        formatter
            .debug_struct("RabbitBroker")
            .field("prefix", &self.options.prefix)
            .finish_non_exhaustive()
    }
}
