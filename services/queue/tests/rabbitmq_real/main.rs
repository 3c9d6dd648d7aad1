//! RabbitMQ queues with real brokers: the shared one at `GRISTMILL_TEST_AMQP_URL`, and others that a test starts and
//! kills.

mod broker;
mod brokers;
mod contract;
mod faults;
mod log;
mod prefetch;
mod proxy;
mod refusals;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lapin::options::QueueDeleteOptions;
use queue::contract::brokers::names;
use queue::contract::receipts;
use queue::{
    Broker as _, CONTROL, DEAD_LETTERS, Delivery, Message, Queue, RabbitBroker, RabbitOptions,
    Receipt, Receive,
};

/// The longest time that a step may take on a busy machine. A test that passes never waits this long.
const PATIENCE: Duration = Duration::from_secs(180);

/// Returns the address of the broker that all tests share.
fn shared_url() -> String {
    std::env::var("GRISTMILL_TEST_AMQP_URL")
        .expect("GRISTMILL_TEST_AMQP_URL is not set; start RabbitMQ with scripts/up")
}

/// Returns an unused prefix of queue names.
fn unused_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_micros();
    format!("test-{}-{now}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Deletes the queues with this prefix on the shared broker when dropped.
struct Deleted(String);

impl Drop for Deleted {
    fn drop(&mut self) {
        let delete = async {
            let broker = connect(&options(shared_url(), &self.0)).await;
            let (_connection, channel) = channel().await;
            for name in names() {
                broker.delete(&name).await.expect("the queues of a job can be deleted");
            }
            for end in [CONTROL, DEAD_LETTERS] {
                delete(&channel, &format!("{}-{end}", self.0)).await;
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(delete));
    }
}

/// Returns a plain channel to the shared broker.
async fn channel() -> (lapin::Connection, lapin::Channel) {
    let connection =
        lapin::Connection::connect(&shared_url(), lapin::ConnectionProperties::default()).await;
    let connection = connection.expect("connects");
    let channel = connection.create_channel().await.expect("a channel");
    (connection, channel)
}

async fn delete(channel: &lapin::Channel, queue: &str) {
    channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.expect("deletes");
}

/// Returns the options of queues that wait long for their broker.
fn options(url: impl Into<String>, prefix: impl Into<String>) -> RabbitOptions {
    RabbitOptions {
        connect_wait_max: PATIENCE,
        answer_wait_max: PATIENCE,
        ..RabbitOptions::new(url, prefix)
    }
}

/// Returns the options of queues that do not exist yet on the shared broker.
fn unused_queues() -> (RabbitOptions, Deleted) {
    let prefix = unused_prefix();
    (options(shared_url(), &prefix), Deleted(prefix))
}

async fn connect(options: &RabbitOptions) -> RabbitBroker {
    RabbitBroker::connect_with(options.clone()).await.expect("connects")
}

/// Opens the queue `PREFIX-job-tasks` on a new connection, as another process would.
async fn open(options: &RabbitOptions) -> Arc<dyn Queue> {
    connect(options).await.create("job").await.expect("opens").tasks
}

async fn send(queue: &Arc<dyn Queue>, bodies: impl IntoIterator<Item = String>) {
    queue.send(bodies.into_iter().map(Message::new).collect()).await.expect("send");
}

/// Receives exactly this many messages, in as many calls as the broker needs.
async fn receive(queue: &Arc<dyn Queue>, messages: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    while deliveries.len() < messages {
        let more = queue.receive(request(messages - deliveries.len())).await.expect("receive");
        assert!(!more.is_empty(), "{} of {messages} messages arrived", deliveries.len());
        deliveries.extend(more);
    }
    deliveries
}

async fn receive_one(queue: &Arc<dyn Queue>) -> Delivery {
    receive(queue, 1).await.remove(0)
}

/// Receives until this many different messages have arrived, and no other follows within a second.
async fn receive_all(queue: &Arc<dyn Queue>, expected: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    loop {
        let is_complete = bodies(&deliveries).len() >= expected;
        let wait = if is_complete { Duration::from_secs(1) } else { PATIENCE };
        let more = queue.receive(Receive { wait, ..request(100) }).await.expect("receive");
        if more.is_empty() {
            assert!(is_complete, "{} of {expected} messages arrived", bodies(&deliveries).len());
            return deliveries;
        }
        deliveries.extend(more);
    }
}

fn request(messages_max: usize) -> Receive {
    Receive { messages_max, visibility: Duration::from_secs(60), wait: PATIENCE }
}

async fn lost(queue: &Arc<dyn Queue>, receipts: &[Receipt]) -> Vec<Receipt> {
    let leases: Vec<_> =
        receipts.iter().map(|receipt| (receipt.clone(), Duration::from_secs(60))).collect();
    queue.extend(&leases).await.expect("extend")
}

/// Waits until all these leases are lost.
async fn wait_until_lost(queue: &Arc<dyn Queue>, receipts: &[Receipt]) {
    let noticed = async {
        while lost(queue, receipts).await.len() < receipts.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, noticed).await.expect("the leases are lost");
}

fn bodies(deliveries: &[Delivery]) -> BTreeSet<String> {
    deliveries
        .iter()
        .map(|delivery| String::from_utf8(delivery.body.to_vec()).expect("text was sent"))
        .collect()
}

fn numbered(messages: usize) -> Vec<String> {
    (0..messages).map(|number| format!("{number:05}")).collect()
}
