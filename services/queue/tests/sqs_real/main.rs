//! The SQS queue with two emulators of the service: LocalStack at `GRISTMILL_TEST_AWS_ENDPOINT`, and moto's server at
//! `GRISTMILL_TEST_MOTO_ENDPOINT`.

mod brokers;
mod contract;
mod faults;
mod limits;
mod proxy;
mod refusals;

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::BehaviorVersion;
use queue::contract::receipts;
use queue::{Delivery, Message, Queue, Receive, SqsOptions, SqsQueue};

fn localstack() -> String {
    endpoint("GRISTMILL_TEST_AWS_ENDPOINT", "localstack")
}

fn moto() -> String {
    endpoint("GRISTMILL_TEST_MOTO_ENDPOINT", "moto")
}

fn endpoint(variable: &str, component: &str) -> String {
    // Without keys in the environment, the tests would use the role of this machine.
    for name in [variable, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"] {
        let is_set = std::env::var_os(name).is_some_and(|value| !value.is_empty());
        assert!(is_set, "{name} is not set; start the component with scripts/up {component}");
    }
    std::env::var(variable).expect("UTF-8")
}

/// Returns an unused queue name.
fn unused_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_micros();
    format!("test-{}-{now}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Creates a queue that is deleted when dropped.
async fn unused_queue(endpoint: &str) -> Deleted {
    open(endpoint, &unused_name(), true)
        .await
        .map(Deleted)
        .expect("opens; is the component up? start it with scripts/up")
}

async fn open(endpoint: &str, name: &str, create: bool) -> Result<SqsQueue, queue::Error> {
    SqsQueue::open(options(endpoint, name, create)).await
}

fn options(endpoint: &str, queue: &str, create: bool) -> SqsOptions {
    SqsOptions {
        queue: queue.to_owned(),
        endpoint: Some(endpoint.to_owned()),
        create,
        ..SqsOptions::default()
    }
}

/// Returns a plain client of the service.
async fn client(endpoint: &str) -> Client {
    let config =
        aws_config::defaults(BehaviorVersion::latest()).endpoint_url(endpoint).load().await;
    Client::new(&config)
}

async fn name_of(queue: &SqsQueue) -> String {
    let arn = queue.attributes().await.expect("exists").arn;
    arn.rsplit(':').next().expect("a name").to_owned()
}

async fn url_of(client: &Client, name: &str) -> String {
    let found = client.get_queue_url().queue_name(name).send().await;
    found.expect("exists").queue_url.expect("a URL")
}

/// Deletes the queue when dropped.
struct Deleted(SqsQueue);

impl Deref for Deleted {
    type Target = SqsQueue;

    fn deref(&self) -> &SqsQueue {
        &self.0
    }
}

impl Drop for Deleted {
    fn drop(&mut self) {
        // A test may have deleted it already.
        let _ = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(self.0.delete())
        });
    }
}

fn messages(count: usize) -> Vec<Message> {
    (0..count).map(|number| Message::new(format!("{number:05}"))).collect()
}

fn request(messages_max: usize) -> Receive {
    Receive { messages_max, visibility: Duration::from_secs(60), wait: Duration::ZERO }
}

/// The longest time that a step may take on a busy machine. A test that passes never waits this long.
const PATIENCE: Duration = Duration::from_secs(180);

/// Receives exactly this many messages, in as many calls as the service needs.
async fn receive(queue: &SqsQueue, messages: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    while deliveries.len() < messages {
        let more =
            queue.receive(Receive { wait: PATIENCE, ..request(messages - deliveries.len()) }).await;
        let more = more.expect("receives");
        assert!(!more.is_empty(), "{} of {messages} messages arrived", deliveries.len());
        deliveries.extend(more);
    }
    deliveries
}

fn sorted_bodies(deliveries: &[Delivery]) -> Vec<String> {
    let mut bodies: Vec<String> = deliveries
        .iter()
        .map(|delivery| String::from_utf8_lossy(&delivery.body).into_owned())
        .collect();
    bodies.sort();
    bodies
}
