//! The queues of jobs: SQS keeps the contract of brokers as far as the emulators can show.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue::contract::brokers::{Harness, names};
use queue::{Broker, Error, Redrive, SqsBroker, SqsQueue};

use crate::proxy::{Fate, Proxy};
use crate::{Deleted, localstack, moto, open, options, unused_name};

struct Aws {
    endpoint: String,
    prefix: String,
    broker: Arc<SqsBroker>,
    _dead_letters: Deleted,
}

impl Aws {
    async fn new(endpoint: String) -> Self {
        let prefix = unused_name();
        let dead_letters = open(&endpoint, &format!("{prefix}-dead-letters"), true).await.expect("creates");
        let broker = Arc::new(broker(&endpoint, &prefix).await);
        Self { endpoint, prefix, broker, _dead_letters: Deleted(dead_letters) }
    }

    /// Returns a queue of a job by its name.
    async fn queue(&self, name: &str) -> Result<SqsQueue, Error> {
        open(&self.endpoint, &format!("{}-{name}", self.prefix), false).await
    }
}

async fn broker(endpoint: &str, prefix: &str) -> SqsBroker {
    SqsBroker::connect(options(endpoint, prefix, false)).await.expect("connects")
}

#[async_trait]
impl Harness for Aws {
    fn broker(&self) -> Arc<dyn Broker> {
        self.broker.clone()
    }

    async fn another(&self) -> Arc<dyn Broker> {
        Arc::new(broker(&self.endpoint, &self.prefix).await)
    }

    /// A request that waits for messages lasts up to 20 seconds.
    fn notice_max(&self) -> Duration {
        Duration::from_secs(25)
    }
}

impl Drop for Aws {
    fn drop(&mut self) {
        let delete = async {
            for name in names() {
                let _ = self.broker.delete(&name).await;
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(delete));
    }
}

mod on_localstack {
    use super::{Aws, localstack};
    queue::broker_contract!(Aws::new(localstack()).await);
}

/// LocalStack runs the rest: moto is slow, and busy-waits during a receive.
mod on_moto {
    use super::{Aws, moto};

    queue::broker_contract! { Aws::new(moto()).await =>
        absent_queues_cannot_be_opened
        creating_again_keeps_messages
        calls_of_a_deleted_queue_fail_or_find_nothing
        unusual_names_work_and_differ
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_of_a_job_have_the_policies_of_their_target() {
    for endpoint in [localstack(), moto()] {
        let aws = Aws::new(endpoint).await;
        aws.broker.create("job").await.expect("creates");
        let dead_letters = aws.queue("dead-letters").await.expect("exists").attributes().await.expect("exists");
        for part in ["tasks", "results"] {
            let queue = aws.queue(&format!("job-{part}")).await.expect("exists");
            let attributes = queue.attributes().await.expect("exists");
            assert!(attributes.arn.ends_with(&format!(":{}-job-{part}", aws.prefix)), "{attributes:?}");
            let redrive = Redrive { dead_letters_arn: dead_letters.arn.clone(), receive_count_max: 100 };
            assert_eq!(attributes.redrive, Some(redrive));
            assert_eq!(attributes.retention, Duration::from_secs(14 * 24 * 3600));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn target_without_dead_letters_is_named_or_completed() {
    let (endpoint, prefix) = (localstack(), unused_name());
    let refused = broker(&endpoint, &prefix).await.create("job").await.expect_err("there is no target");
    let told = format!("{refused:#}");
    assert!(matches!(refused, Error::Misconfigured { .. }), "{told}");
    assert!(told.contains(&format!("{prefix}-dead-letters cannot be used: it does not exist")), "{told}");
    let broker = SqsBroker::connect(options(&endpoint, &prefix, true)).await.expect("connects");
    broker.create("job").await.expect("creates");
    let _dead_letters = Deleted(open(&endpoint, &format!("{prefix}-dead-letters"), false).await.expect("exists"));
    broker.delete("job").await.expect("deletes");
}

#[tokio::test(flavor = "multi_thread")]
async fn name_that_was_deleted_within_a_minute_is_unavailable() {
    const RECENT: &str = r#"{"__type":"com.amazonaws.sqs#QueueDeletedRecently","message":"You must wait 60 seconds after deleting a queue before you can create another with the same name."}"#;
    let aws = Aws::new(localstack()).await;
    let proxy = Proxy::start(&localstack(), |request| match request.action.as_str() {
        "CreateQueue" => Fate::Fail(Some((400, RECENT))),
        _ => Fate::Pass,
    })
    .await;
    let broker = broker(&proxy.endpoint, &aws.prefix).await;
    let refused = broker.create("job").await.expect_err("AWS refuses");
    let told = format!("{refused:#}");
    assert!(matches!(refused, Error::Unavailable { .. }), "{told}");
    assert!(told.contains("QueueDeletedRecently") && told.contains("wait 60 seconds"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_asks_for_the_address_of_each_queue_once() {
    let aws = Aws::new(localstack()).await;
    aws.broker.create("job").await.expect("creates");
    let proxy = Proxy::start(&localstack(), |_| Fate::Pass).await;
    let broker = broker(&proxy.endpoint, &aws.prefix).await;
    assert_eq!(proxy.requests().len(), 0);
    let queues = broker.open("job").await.expect("opens");
    for _ in 0..3 {
        queues.tasks.send(crate::messages(1)).await.expect("sends");
    }
    assert_eq!((proxy.count("GetQueueUrl"), proxy.count("SendMessageBatch")), (2, 3));
}
