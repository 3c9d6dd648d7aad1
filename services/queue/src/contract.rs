//! The contract of [`Queue`] as tests, one function per property, which every backend passes.
//!
//! A backend implements [`Harness`] and calls [`queue_contract!`](crate::queue_contract) with an expression that
//! creates a harness over an empty queue:
//!
//! ```ignore
//! mod my_queue {
//!     queue::queue_contract!(MyHarness::new());
//! }
//! ```
//!
//! [`brokers`] is the contract of [`Broker`](crate::Broker) in the same form.

pub mod brokers;
mod leases;
mod messages;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Delivery, Depth, Error, Message, Queue, Receipt, Receive};
pub use leases::*;
pub use messages::*;

/// A queue under test, and its clock.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Returns the queue, which is empty at first and has no other users.
    fn queue(&self) -> Arc<dyn Queue>;

    /// Returns the capabilities of the queue.
    fn capabilities(&self) -> Capabilities;

    /// Lets this much time pass for leases and delays: advances the queue's clock, or sleeps.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// The legitimate differences between backends, because their services differ.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// The unit in which the backend counts time. All durations of the tests are small multiples of it.
    pub time_unit: Duration,
    /// The longest [`Receive::wait`] that the backend honours.
    pub wait_max: Duration,
    /// Leases expire by time. Otherwise they end with their connection.
    pub timed_lease: bool,
    /// The effect of acknowledging a redelivered message with an old receipt.
    pub old_receipt: OldReceipt,
    /// The backend honours [`Message::delay`].
    pub delay: bool,
    /// [`Delivery::receive_count`] and [`Depth`] are exact.
    pub exact_counts: bool,
    /// The backend delivers new messages in the order in which they were sent.
    pub first_in_first_out: bool,
    /// Messages that a dropped [`Queue::receive`] has claimed are visible again immediately, and their receive counts
    /// do not include that claim.
    pub dropped_receive_returns: bool,
    /// The largest body in bytes, if there is a limit that a test can reach.
    pub message_bytes_max: Option<usize>,
}

/// The effect of acknowledging a redelivered message with an old receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldReceipt {
    /// Nothing: the queue reports the receipt as lost.
    Lost,
    /// It removes the message.
    Deletes,
    /// Either of the two.
    Either,
}

/// Creates one `#[tokio::test]` for each property. Each test evaluates `$harness`.
#[macro_export]
macro_rules! queue_contract {
    ($harness:expr) => {
        $crate::queue_contract! { $harness =>
            bodies_are_delivered_unchanged
            batch_of_any_size_is_sent_completely
            oversized_message_is_rejected_with_its_batch
            receive_respects_its_limit
            new_messages_are_delivered_in_order
            expired_lease_makes_message_visible
            extension_lengthens_lease
            extension_shortens_lease
            expired_lease_cannot_be_extended
            lost_receipts_of_a_batch_are_returned
            acknowledged_message_is_never_delivered_again
            old_receipt_does_not_affect_new_lease
            released_message_is_visible_immediately
            send_wakes_waiting_receive
            expired_lease_wakes_waiting_receive
            waiting_receive_times_out_empty
            dropped_receive_loses_no_message
            delayed_message_is_hidden_until_its_time
            concurrent_receivers_never_share_a_lease
            depth_counts_visible_leased_and_delayed_messages
            limits_agree_with_capabilities
        }
    };
    ($harness:expr => $($property:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $property() {
                $crate::contract::$property(&$harness).await;
            }
        )*
    };
}

/// A lease that outlasts everything that a test does during it.
const LEASE_UNITS: u32 = 20;
/// The delay that a busy machine may add.
const LATE_UNITS: u32 = 8;

/// A harness with the operations of the tests. Every error of the queue fails the test.
struct Tester<'a> {
    harness: &'a dyn Harness,
    queue: Arc<dyn Queue>,
    capabilities: Capabilities,
}

impl<'a> Tester<'a> {
    fn new(harness: &'a dyn Harness) -> Self {
        Self { harness, queue: harness.queue(), capabilities: harness.capabilities() }
    }

    fn units(&self, units: u32) -> Duration {
        self.capabilities.time_unit * units
    }

    async fn pass(&self, units: u32) {
        self.harness.pass(self.units(units)).await;
    }

    async fn send(&self, bodies: &[&str]) {
        let messages = bodies.iter().map(|body| Message::new(body.to_string())).collect();
        self.queue.send(messages).await.expect("send");
    }

    async fn receive(&self, request: Receive) -> Vec<Delivery> {
        self.queue.receive(request).await.expect("receive")
    }

    fn request(&self, messages_max: usize) -> Receive {
        Receive { messages_max, visibility: self.units(LEASE_UNITS), wait: Duration::ZERO }
    }

    /// Receives up to `messages_max` messages that are visible now.
    async fn receive_visible(&self, messages_max: usize) -> Vec<Delivery> {
        self.receive(self.request(messages_max)).await
    }

    /// Receives exactly this many messages, in as many calls as necessary.
    async fn take(&self, messages: usize) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while deliveries.len() < messages {
            let request = Receive {
                wait: self.capabilities.wait_max,
                ..self.request(messages - deliveries.len())
            };
            let more = self.receive(request).await;
            assert!(!more.is_empty(), "{} of {messages} messages arrived", deliveries.len());
            deliveries.extend(more);
        }
        deliveries
    }

    async fn take_one(&self) -> Delivery {
        self.take(1).await.remove(0)
    }

    async fn assert_none_visible(&self) {
        let deliveries = self.receive_visible(10).await;
        assert!(deliveries.is_empty(), "no message should be visible: {deliveries:?}");
    }

    async fn extend(&self, receipt: &Receipt, units: u32) -> bool {
        let lost =
            self.queue.extend(&[(receipt.clone(), self.units(units))]).await.expect("extend");
        assert!(lost.is_empty() || lost == [receipt.clone()], "{lost:?}");
        lost.is_empty()
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Vec<Receipt> {
        self.queue.acknowledge(receipts).await.expect("acknowledge")
    }

    async fn release(&self, receipt: &Receipt) {
        self.queue.release(std::slice::from_ref(receipt)).await.expect("release");
    }

    fn assert_count(&self, delivery: &Delivery, expected: u32) {
        if self.capabilities.exact_counts {
            assert_eq!(delivery.receive_count, expected);
        } else {
            assert!(delivery.receive_count >= 1);
        }
    }

    /// Runs `meanwhile` while a receive waits, and returns the deliveries of that receive.
    async fn receive_while(&self, meanwhile: impl Future<Output = ()>) -> Vec<Delivery> {
        let request = Receive { wait: self.capabilities.wait_max, ..self.request(10) };
        let queue = self.queue.clone();
        let waiting = tokio::spawn(async move { queue.receive(request).await });
        tokio::task::yield_now().await;
        meanwhile.await;
        waiting.await.expect("the receiver does not panic").expect("receive")
    }
}

/// Returns the receipts of deliveries.
pub fn receipts(deliveries: &[Delivery]) -> Vec<Receipt> {
    deliveries.iter().map(|delivery| delivery.receipt.clone()).collect()
}

fn sorted_bodies(deliveries: &[Delivery]) -> Vec<Bytes> {
    let mut bodies: Vec<Bytes> = deliveries.iter().map(|delivery| delivery.body.clone()).collect();
    bodies.sort();
    bodies
}
