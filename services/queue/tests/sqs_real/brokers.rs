//! The queues of a target: SQS passes the contract of brokers, as far as its emulators can show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::types::QueueAttributeName;
use futures::future::{join_all, try_join_all};
use queue::contract::brokers::{Harness, names};
use queue::{
    Broker, CONTROL, DEAD_LETTERS, Error, Queue, Receive, Redrive, SqsBroker, SqsOptions, SqsQueue,
};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::proxy::{Fate, Proxy};
use crate::refusals::assert_error;
use crate::{
    Deleted, PATIENCE, client, localstack, messages, moto, open, options, receipts, receive,
    request, unused_name, url_of,
};

struct Aws {
    endpoint: String,
    prefix: String,
    broker: Arc<SqsBroker>,
}

impl Aws {
    async fn new(endpoint: String) -> Self {
        let prefix = unused_name();
        let broker = Arc::new(broker(&endpoint, &prefix, true).await);
        Self { endpoint, prefix, broker }
    }

    /// Returns a queue by the end of its name.
    async fn queue(&self, name: &str) -> Result<SqsQueue, Error> {
        open(&self.endpoint, &format!("{}-{name}", self.prefix), false).await
    }
}

/// Connects. With `create`, creates missing queues of the target itself.
async fn broker(endpoint: &str, prefix: &str, create: bool) -> SqsBroker {
    SqsBroker::connect(options(endpoint, prefix, create)).await.expect("connects")
}

#[async_trait]
impl Harness for Aws {
    fn broker(&self) -> Arc<dyn Broker> {
        self.broker.clone()
    }

    async fn another(&self) -> Arc<dyn Broker> {
        Arc::new(broker(&self.endpoint, &self.prefix, false).await)
    }

    /// Allows for a request that waits for messages, which lasts up to 20 seconds.
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
            for end in [CONTROL, DEAD_LETTERS] {
                drop(self.queue(end).await.map(Deleted));
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
        queues_of_the_target_are_created_once
        absent_queues_cannot_be_opened
        creating_again_keeps_messages
        calls_of_a_deleted_queue_fail_or_find_nothing
        unusual_names_work_and_differ
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn created_queues_have_retention_and_redrive_policies() {
    for endpoint in [localstack(), moto()] {
        let aws = Aws::new(endpoint).await;
        aws.broker.target().await.expect("creates");
        aws.broker.create("job").await.expect("creates");
        let attributes = async |end: &str| {
            let attributes =
                aws.queue(end).await.expect("exists").attributes().await.expect("exists");
            assert!(attributes.arn.ends_with(&format!(":{}-{end}", aws.prefix)), "{attributes:?}");
            assert_eq!(attributes.retention, Duration::from_secs(14 * 24 * 3600));
            attributes
        };
        let dead_letters = attributes(DEAD_LETTERS).await;
        assert_eq!((dead_letters.redrive, attributes(CONTROL).await.redrive), (None, None));
        let redrive = Redrive { dead_letters_arn: dead_letters.arn, receive_count_max: 100 };
        for end in ["job-tasks", "job-results"] {
            assert_eq!(attributes(end).await.redrive, Some(redrive.clone()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn created_queues_have_the_key_and_the_tags_of_the_target() {
    for endpoint in [localstack(), moto()] {
        let mut aws = Aws::new(endpoint).await;
        let key = "arn:aws:kms:us-east-1:000000000000:key/0a1b2c3d";
        let tags = BTreeMap::from([("Cost Center".to_owned(), "7 & 8".to_owned())]);
        let options = SqsOptions {
            kms_key: Some(key.to_owned()),
            tags: tags.clone(),
            ..options(&aws.endpoint, &aws.prefix, true)
        };
        aws.broker = Arc::new(SqsBroker::connect(options).await.expect("connects"));
        aws.broker.target().await.expect("creates");
        let queues = aws.broker.create("job").await.expect("creates");
        let client = client(&aws.endpoint).await;
        for end in [CONTROL, DEAD_LETTERS, "job-tasks", "job-results"] {
            let url = url_of(&client, &format!("{}-{end}", aws.prefix)).await;
            let name = QueueAttributeName::KmsMasterKeyId;
            let request =
                client.get_queue_attributes().queue_url(&url).attribute_names(name.clone());
            let attributes = request.send().await.expect("answers").attributes.unwrap_or_default();
            assert_eq!(attributes.get(&name).map(String::as_str), Some(key), "{end}");
            let listed = client.list_queue_tags().queue_url(url).send().await;
            let listed = listed.expect("answers").tags.unwrap_or_default();
            assert_eq!(listed.into_iter().collect::<BTreeMap<_, _>>(), tags, "{end}");
        }
        queues.tasks.send(messages(1)).await.expect("sends");
        let tasks = aws.queue("job-tasks").await.expect("exists");
        assert_eq!(receive(&tasks, 1).await.len(), 1);
        let again = broker(&aws.endpoint, &aws.prefix, false).await;
        again.create("job").await.expect("opens the queues, although their key differs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_message_of_a_job_moves_to_the_dead_letters() {
    let aws = Aws::new(localstack()).await;
    aws.broker.create("job").await.expect("creates");
    let tasks = aws.queue("job-tasks").await.expect("exists");
    tasks.send(messages(1)).await.expect("sends");
    for count in 1..=100 {
        let deliveries = receive(&tasks, 1).await;
        assert_eq!(deliveries[0].receive_count, count);
        tasks.release(&receipts(&deliveries)).await.expect("releases");
    }
    assert!(tasks.receive(request(1)).await.expect("receives").is_empty());
    let dead = receive(&aws.queue(DEAD_LETTERS).await.expect("exists"), 1).await;
    assert_eq!(dead[0].body, "00000");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_queues_of_the_target_are_named_or_created() {
    let aws = Aws::new(localstack()).await;
    let another = broker(&aws.endpoint, &aws.prefix, false).await;
    for (refused, end) in [
        (another.target().await.map(drop), "control"),
        (another.create("job").await.map(drop), "dead-letters"),
    ] {
        let name = format!("{}-{end}", aws.prefix);
        let why = "cannot be used: it does not exist in region us-east-1";
        assert_error(refused, &[&name, why, "create it"]);
    }
    aws.broker.create("job").await.expect("creates");
    assert!(aws.queue(DEAD_LETTERS).await.is_ok() && aws.queue(CONTROL).await.is_err());
    assert!(aws.broker.target().await.expect("creates the other").are_new);
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_of_the_target_are_created_once_by_concurrent_calls() {
    let aws = Aws::new(localstack()).await;
    let brokers = join_all((0..4).map(|_| broker(&aws.endpoint, &aws.prefix, true))).await;
    let opened = try_join_all(brokers.iter().map(|broker| broker.target())).await.expect("opens");
    opened[0].control.send(messages(1)).await.expect("sends");
    for target in opened {
        assert_eq!(target.control.depth().await.expect("depth").total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn name_of_a_recently_deleted_queue_is_unavailable() {
    const RECENT: &str = r#"{"__type":"com.amazonaws.sqs#QueueDeletedRecently","message":"You must wait 60 seconds after deleting a queue before you can create another with the same name."}"#;
    let aws = Aws::new(localstack()).await;
    aws.broker.target().await.expect("creates");
    let proxy = Proxy::start(&localstack(), |request| match request.action.as_str() {
        "CreateQueue" => Fate::Fail(400, RECENT),
        _ => Fate::Pass,
    });
    let broker = broker(&proxy.endpoint, &aws.prefix, false).await;
    let refused = broker.create("job").await.expect_err("AWS refuses");
    let text = format!("{refused:#}");
    assert!(matches!(refused, Error::Unavailable { .. }), "{text}");
    assert!(text.contains("QueueDeletedRecently") && text.contains("wait 60 seconds"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_requests_the_url_of_each_queue_once() {
    let aws = Aws::new(localstack()).await;
    aws.broker.create("job").await.expect("creates");
    let proxy = Proxy::start(&localstack(), |_| Fate::Pass);
    let broker = broker(&proxy.endpoint, &aws.prefix, false).await;
    assert_eq!(proxy.requests().len(), 0);
    let queues = broker.open("job").await.expect("opens");
    for _ in 0..3 {
        queues.tasks.send(messages(1)).await.expect("sends");
    }
    assert_eq!((proxy.count("GetQueueUrl"), proxy.count("SendMessageBatch")), (2, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn process_that_closes_its_broker_hides_no_message() {
    let aws = Aws::new(localstack()).await;
    let queues = aws.broker.create("job").await.expect("creates");
    let (polled, closed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let proxy = {
        let polled = polled.clone();
        Proxy::start(&localstack(), move |request| {
            if request.action == "ReceiveMessage" {
                polled.notify_one();
            }
            Fate::Pass
        })
    };
    // A runtime stands for a process: its end closes its connections.
    let process = tokio::runtime::Runtime::new().expect("starts");
    let (endpoint, prefix, has_closed) =
        (proxy.endpoint.clone(), aws.prefix.clone(), closed.clone());
    process.spawn(async move {
        let broker = broker(&endpoint, &prefix, false).await;
        let tasks = broker.open("job").await.expect("opens").tasks;
        tokio::select! {
            received = tasks.receive(Receive { wait: Duration::from_secs(4), ..request(10) }) => {
                panic!("the queue is empty: {received:?}")
            }
            () = polled.notified() => {}
        }
        broker.close().await;
        has_closed.notify_one();
    });
    timeout(PATIENCE, closed.notified()).await.expect("it closes");
    process.shutdown_background();
    queues.tasks.send(messages(1)).await.expect("sends");
    let received = queues.tasks.receive(Receive { wait: PATIENCE, ..request(1) }).await;
    assert_eq!(
        received.expect("receives")[0].receive_count,
        1,
        "the dropped receive took it first"
    );
}
