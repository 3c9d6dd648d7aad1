//! The queues of a target on SQS: `PREFIX-control`, `PREFIX-dead-letters`, and `PREFIX-NAME-tasks` and
//! `PREFIX-NAME-results` for each job.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use futures::future::try_join_all;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio::{join, try_join};
use tokio_util::task::TaskTracker;

use super::attributes::{RECEIVES_MAX, check_region, delete, find};
use super::failure::Failure;
use super::service::{REQUEST_TIME, connect};
use super::{Redrive, SqsOptions, SqsQueue, WAIT_MAX, region};
use crate::broker::Naming;
use crate::{Broker, CONTROL, DEAD_LETTERS, Error, JobQueues, TargetQueues};

/// How many jobs may have queues at a time. The service allows any number, but each waiting receiver costs a request
/// every 20 seconds.
const JOBS_MAX: u32 = 2000;
/// The names that SQS allows.
const NAMING: Naming = Naming { characters_max: 80, marks: "-_" };

/// The queues of a target on SQS, with one client. SQS moves messages of jobs that are received too often to
/// `PREFIX-dead-letters`.
///
/// For a minute after a deletion, AWS refuses to create a queue of the same name, and the call fails with
/// [`Error::Unavailable`]; so no job reuses a name. Another process may not find a new queue for a moment.
#[derive(Clone)]
pub struct SqsBroker {
    client: Client,
    options: SqsOptions,
    redrive: OnceCell<Redrive>,
    receives: TaskTracker,
}

impl SqsBroker {
    /// Creates a broker with the AWS settings of the environment. [`SqsOptions::queue`] is the prefix of all names.
    /// Sends no request yet.
    pub async fn connect(options: SqsOptions) -> Result<Self, Error> {
        let client = connect(&options).await?;
        check_region(&client, &options.queue)?;
        Ok(Self { client, options, redrive: OnceCell::new(), receives: TaskTracker::new() })
    }

    fn queue_names(&self, name: &str) -> [String; 2] {
        NAMING.names(&format!("{}-{name}", self.options.queue))
    }

    /// Returns a queue of the target itself, and whether it was created.
    async fn open_of_target(&self, end: &str) -> Result<(SqsQueue, bool), Error> {
        let queue = format!("{}-{end}", self.options.queue);
        let options = SqsOptions { queue, ..self.options.clone() };
        SqsQueue::open_with(self.client.clone(), &options, &self.receives).await
    }

    /// Returns the destination of messages that are received too often.
    async fn redrive(&self) -> Result<&Redrive, Error> {
        let find = async || {
            let (dead_letters, _) = self.open_of_target(DEAD_LETTERS).await?;
            let dead_letters_arn = dead_letters.attributes().await?.arn;
            Ok(Redrive { dead_letters_arn, receive_count_max: RECEIVES_MAX })
        };
        self.redrive.get_or_try_init(find).await
    }

    async fn open_with(&self, name: &str, create: Option<&Redrive>) -> Result<JobQueues, Error> {
        let [tasks, results] = self.queue_names(name).map(|name| {
            let client = self.client.clone();
            SqsQueue::open_of_job(client, name, &self.options, create, &self.receives)
        });
        let (tasks, results) = try_join!(tasks, results)?;
        Ok(JobQueues { tasks: Arc::new(tasks), results: Arc::new(results) })
    }

    async fn delete_queue(&self, name: String) -> Result<(), Error> {
        let deletion = async { delete(&self.client, &find(&self.client, &name).await?).await };
        match deletion.await {
            Ok(()) | Err(Failure::NoQueue) => Ok(()),
            Err(failure) => Err(failure.explain(&name, region(&self.client))),
        }
    }
}

#[async_trait]
impl Broker for SqsBroker {
    async fn target(&self) -> Result<TargetQueues, Error> {
        // `join` instead of `try_join`: if both queues are missing, the error always names the first.
        let (control, dead_letters) =
            join!(self.open_of_target(CONTROL), self.open_of_target(DEAD_LETTERS));
        let ((control, are_new), (dead_letters, _)) = (control?, dead_letters?);
        Ok(TargetQueues {
            control: Arc::new(control),
            dead_letters: Arc::new(dead_letters),
            are_new,
        })
    }

    async fn create(&self, name: &str) -> Result<JobQueues, Error> {
        self.open_with(name, Some(self.redrive().await?)).await
    }

    async fn open(&self, name: &str) -> Result<JobQueues, Error> {
        self.open_with(name, None).await
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

    /// SQS does not notice that a process has ended. It would deliver messages to the last receive of that process, and
    /// hide them until the visibility timeout. So `close` waits for this receive, no longer than a request may take.
    async fn close(&self) {
        self.receives.close();
        if !self.receives.is_empty() {
            tracing::info!(
                "waiting up to {} s for the answer of SQS to the last receive",
                WAIT_MAX.as_secs()
            );
        }
        let _ = timeout(WAIT_MAX + REQUEST_TIME, self.receives.wait()).await;
    }
}

impl Debug for SqsBroker {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SqsBroker")
            .field("prefix", &self.options.queue)
            .finish_non_exhaustive()
    }
}
