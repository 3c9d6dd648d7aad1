//! The RabbitMQ queue with real brokers: the one at `GRISTMILL_TEST_AMQP_URL`, and others that a test may harm.

mod broker;
mod brokers;
mod contract;
mod faults;
mod lanes;
mod prefetch;
mod proxy;
mod refusals;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lapin::options::QueueDeleteOptions;
use queue::{Delivery, Message, Queue, RabbitOptions, RabbitQueue, Receipt, Receive};

/// How long a busy machine may take for anything. A test that passes never waits this long.
const PATIENCE: Duration = Duration::from_secs(180);

/// Returns the address of the broker that all tests share.
fn shared_url() -> String {
    std::env::var("GRISTMILL_TEST_AMQP_URL")
        .expect("GRISTMILL_TEST_AMQP_URL names no RabbitMQ: start it with scripts/up")
}

/// Returns an unused queue name.
fn unused_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_micros();
    format!("test-{}-{now}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Deletes a queue of the shared broker with its lanes when dropped.
struct Deleted(String);

impl Drop for Deleted {
    fn drop(&mut self) {
        let delete = async {
            let connection = lapin::Connection::connect(&shared_url(), lapin::ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            for name in (RabbitOptions { lanes: 8, ..options("", &self.0) }).queue_names() {
                channel.queue_delete(name.into(), QueueDeleteOptions::default()).await?;
            }
            Ok::<_, lapin::Error>(())
        };
        let deleted = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(delete));
        if !std::thread::panicking() {
            deleted.expect("the queue can be deleted");
        }
    }
}

/// Returns the settings of a queue that waits patiently for its broker.
fn options(url: impl Into<String>, name: impl Into<String>) -> RabbitOptions {
    RabbitOptions { connect_wait_max: PATIENCE, answer_wait_max: PATIENCE, ..RabbitOptions::new(url, name) }
}

/// Returns the settings of a queue that does not exist yet on the shared broker.
fn unused_queue() -> (RabbitOptions, Deleted) {
    let name = unused_name();
    (options(shared_url(), &name), Deleted(name))
}

async fn send(queue: &RabbitQueue, bodies: impl IntoIterator<Item = String>) {
    queue.send(bodies.into_iter().map(|body| Message::new(body, "job")).collect()).await.expect("send");
}

/// Receives exactly this many messages, in as many calls as the broker needs.
async fn receive(queue: &RabbitQueue, messages: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    while deliveries.len() < messages {
        let more = queue.receive(request(messages - deliveries.len())).await.expect("receive");
        assert!(!more.is_empty(), "{} of {messages} messages arrived", deliveries.len());
        deliveries.extend(more);
    }
    deliveries
}

async fn receive_one(queue: &RabbitQueue) -> Delivery {
    receive(queue, 1).await.remove(0)
}

/// Receives until this many different messages have arrived and no other follows within a second.
async fn receive_all(queue: &RabbitQueue, expected: usize) -> Vec<Delivery> {
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

async fn lost(queue: &RabbitQueue, receipts: &[Receipt]) -> Vec<Receipt> {
    let leases: Vec<_> = receipts.iter().map(|receipt| (receipt.clone(), Duration::from_secs(60))).collect();
    queue.extend(&leases).await.expect("extend")
}

/// Waits until all these leases are lost.
async fn wait_until_lost(queue: &RabbitQueue, receipts: &[Receipt]) {
    let noticed = async {
        while lost(queue, receipts).await.len() < receipts.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, noticed).await.expect("the leases are lost");
}

fn receipts(deliveries: &[Delivery]) -> Vec<Receipt> {
    deliveries.iter().map(|delivery| delivery.receipt.clone()).collect()
}

fn bodies(deliveries: &[Delivery]) -> BTreeSet<String> {
    deliveries.iter().map(|delivery| String::from_utf8(delivery.body.to_vec()).expect("text was sent")).collect()
}

fn numbered(messages: usize) -> Vec<String> {
    (0..messages).map(|number| format!("{number:05}")).collect()
}
