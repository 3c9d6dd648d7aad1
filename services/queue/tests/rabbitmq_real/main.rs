//! The RabbitMQ queue against real brokers: the one at `GRISTMILL_TEST_AMQP_URL`, and own ones that may be harmed.

mod broker;
mod contract;
mod faults;
mod proxy;
mod refusals;
mod wishes;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lapin::options::QueueDeleteOptions;
use queue::{Delivery, Message, Queue, RabbitOptions, RabbitQueue, Receipt, Receive};

/// The broker that is there for all tests.
fn shared_url() -> String {
    std::env::var("GRISTMILL_TEST_AMQP_URL")
        .expect("GRISTMILL_TEST_AMQP_URL names no RabbitMQ: start it with scripts/up")
}

/// A queue name that nobody else uses.
fn unused_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_micros();
    format!("test-{}-{now}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Deletes a queue of the shared broker when dropped.
struct Deleted(String);

impl Drop for Deleted {
    fn drop(&mut self) {
        let delete = async {
            let connection = lapin::Connection::connect(&shared_url(), lapin::ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            channel.queue_delete(self.0.as_str().into(), QueueDeleteOptions::default()).await
        };
        let deleted = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(delete));
        if !std::thread::panicking() {
            deleted.expect("the queue can be deleted");
        }
    }
}

/// A queue that is not there yet, on the shared broker.
fn unused_queue() -> (RabbitOptions, Deleted) {
    let name = unused_name();
    (RabbitOptions::new(shared_url(), &name), Deleted(name))
}

async fn send(queue: &RabbitQueue, bodies: impl IntoIterator<Item = String>) {
    queue.send(bodies.into_iter().map(|body| Message::new(body, "job")).collect()).await.expect("send");
}

/// Receives so many, and what else comes within a second.
async fn receive_all(queue: &RabbitQueue, expected: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    loop {
        let wait = Duration::from_secs(if deliveries.len() < expected { 20 } else { 1 });
        let more = queue.receive(request(100, wait)).await.expect("receive");
        if more.is_empty() {
            return deliveries;
        }
        deliveries.extend(more);
    }
}

/// Waits for as long as a broker may take that starts again on a busy machine.
async fn receive_one(queue: &RabbitQueue) -> Delivery {
    queue.receive(request(1, Duration::from_secs(60))).await.expect("receive").remove(0)
}

fn request(messages_max: usize, wait: Duration) -> Receive {
    Receive { messages_max, visibility: Duration::from_secs(60), wait }
}

async fn lost(queue: &RabbitQueue, receipts: &[Receipt]) -> Vec<Receipt> {
    let leases: Vec<_> = receipts.iter().map(|receipt| (receipt.clone(), Duration::from_secs(60))).collect();
    queue.extend(&leases).await.expect("extend")
}

/// Waits until all these leases are lost, as a node that extends them would notice.
async fn wait_until_lost(queue: &RabbitQueue, receipts: &[Receipt]) {
    let noticed = async {
        while lost(queue, receipts).await.len() < receipts.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), noticed).await.expect("the leases are lost in the end");
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
