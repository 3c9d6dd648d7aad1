//! The contract of [`Queue`] as tests, one function per property, which every backend passes.
//!
//! A backend implements [`Harness`] and calls [`queue_contract!`](crate::queue_contract) with an expression that makes
//! one over an empty queue:
//!
//! ```ignore
//! mod my_queue {
//!     queue::queue_contract!(MyHarness::new());
//! }
//! ```

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Delivery, Depth, Error, Message, Queue, Receipt, Receive};

/// A queue to be tested, and the time it lives in.
#[async_trait]
pub trait Harness: Send + Sync {
    /// The queue, empty at first and used by nobody else.
    fn queue(&self) -> Arc<dyn Queue>;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Lets that much time pass for leases and delays: moves the queue's clock, or sleeps.
    async fn pass(&self, time: Duration);
}

/// Where backends differ, because the services behind them do.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// The unit in which the backend counts time. All durations of the tests are small multiples of it.
    pub time_unit: Duration,
    /// The longest [`Receive::wait`] that the backend honours.
    pub wait_max: Duration,
    /// Leases lapse by time. (Where the lease is a connection, it ends with that.)
    pub timed_lease: bool,
    /// What acknowledging with an old receipt does to a message that was delivered again since.
    pub old_receipt: OldReceipt,
    /// [`Message::delay`] is honoured.
    pub delay: bool,
    /// [`Delivery::receive_count`] and [`Depth`] are exact.
    pub exact_counts: bool,
    /// New messages are delivered in the order in which they were sent.
    pub first_in_first_out: bool,
    /// What a dropped [`Queue::receive`] had claimed is visible again at once, and uncounted.
    pub dropped_receive_returns: bool,
    /// The largest body, where there is a limit that a test can reach.
    pub message_bytes_max: Option<usize>,
}

/// What acknowledging with an old receipt does to a message that was delivered again since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldReceipt {
    /// Nothing: the receipt is reported lost.
    Lost,
    /// Removes the message.
    Deletes,
    /// One or the other.
    Either,
}

/// Makes one `#[tokio::test]` of every property. `$harness` is evaluated in each.
#[macro_export]
macro_rules! queue_contract {
    ($harness:expr) => {
        $crate::queue_contract! { $harness =>
            bodies_arrive_unchanged
            a_batch_of_any_size_is_sent_whole
            a_message_that_is_too_large_is_refused
            receive_returns_at_most_what_was_asked_for
            new_messages_come_in_order
            a_leased_message_is_hidden_and_comes_back
            extend_prolongs_a_lease
            extend_shortens_a_lease
            a_lapsed_lease_cannot_be_extended
            each_receipt_of_a_batch_is_answered
            an_acknowledged_message_is_gone_for_good
            an_old_receipt_does_not_touch_a_new_lease
            a_released_message_is_visible_at_once
            a_waiting_receive_is_woken_by_a_send
            a_waiting_receive_is_woken_by_a_lapse
            a_waiting_receive_ends_empty
            a_dropped_receive_loses_nothing
            a_delayed_message_is_hidden_at_first
            receivers_never_share_a_lease
            depth_counts_each_kind
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

/// Long enough for everything that a test does meanwhile.
const LEASE_UNITS: u32 = 20;
/// How much later than told a busy machine may do something.
const LATE_UNITS: u32 = 8;

/// A harness with the words the tests use. Every failure of the queue is a failure of the test.
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
        let messages = bodies.iter().map(|body| Message::new(body.to_string(), "job")).collect();
        self.queue.send(messages).await.expect("send");
    }

    async fn receive(&self, request: Receive) -> Vec<Delivery> {
        self.queue.receive(request).await.expect("receive")
    }

    fn request(&self, messages_max: usize) -> Receive {
        Receive { messages_max, visibility: self.units(LEASE_UNITS), wait: Duration::ZERO }
    }

    /// What is visible now, up to `messages_max`.
    async fn look(&self, messages_max: usize) -> Vec<Delivery> {
        self.receive(self.request(messages_max)).await
    }

    /// Receives exactly that many messages, however many calls it takes.
    async fn take(&self, messages: usize) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while deliveries.len() < messages {
            let request = Receive { wait: self.capabilities.wait_max, ..self.request(messages - deliveries.len()) };
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
        let deliveries = self.look(10).await;
        assert!(deliveries.is_empty(), "nothing should be visible: {deliveries:?}");
    }

    async fn extend(&self, receipt: &Receipt, units: u32) -> bool {
        let lost = self.queue.extend(&[(receipt.clone(), self.units(units))]).await.expect("extend");
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

    /// Runs `meanwhile` while a receive waits, and returns what that received.
    async fn receive_while(&self, messages_max: usize, meanwhile: impl Future<Output = ()>) -> Vec<Delivery> {
        let request = Receive { wait: self.capabilities.wait_max, ..self.request(messages_max) };
        let queue = self.queue.clone();
        let waiting = tokio::spawn(async move { queue.receive(request).await });
        tokio::task::yield_now().await;
        meanwhile.await;
        waiting.await.expect("the receiver does not panic").expect("receive")
    }
}

fn receipts(deliveries: &[Delivery]) -> Vec<Receipt> {
    deliveries.iter().map(|delivery| delivery.receipt.clone()).collect()
}

fn sorted_bodies(deliveries: &[Delivery]) -> Vec<Bytes> {
    let mut bodies: Vec<Bytes> = deliveries.iter().map(|delivery| delivery.body.clone()).collect();
    bodies.sort();
    bodies
}

/// Bodies are any bytes: none, all values, 200 kB.
pub async fn bodies_arrive_unchanged(harness: &dyn Harness) {
    let test = Tester::new(harness);
    let large = 200_000.min(test.capabilities.message_bytes_max.unwrap_or(usize::MAX));
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let mut bodies = vec![
        Bytes::new(),
        Bytes::from_static(b"plain"),
        Bytes::from_static("größer als ASCII \u{0}".as_bytes()),
        Bytes::from_static(b"\xff\xfe not UTF-8"),
        Bytes::from(every_byte.iter().copied().cycle().take(large).collect::<Vec<u8>>()),
        Bytes::from(every_byte),
    ];
    let messages = bodies.iter().map(|body| Message::new(body.clone(), "job")).collect();
    test.queue.send(messages).await.expect("send");
    let deliveries = test.take(bodies.len()).await;
    bodies.sort();
    assert!(sorted_bodies(&deliveries) == bodies, "bodies differ");
    assert_eq!(receipts(&deliveries).into_iter().collect::<HashSet<_>>().len(), bodies.len());
}

/// One call sends, receives and acknowledges none, or thousands.
pub async fn a_batch_of_any_size_is_sent_whole(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&[]).await;
    test.assert_none_visible().await;
    let bodies: Vec<String> = (0..2500).map(|number| format!("{number:04}")).collect();
    test.send(&bodies.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let deliveries = test.take(bodies.len()).await;
    assert_eq!(sorted_bodies(&deliveries), bodies);
    assert!(test.acknowledge(&receipts(&deliveries)).await.is_empty());
    assert!(test.acknowledge(&[]).await.is_empty());
    assert!(test.queue.extend(&[]).await.expect("extend").is_empty());
    test.queue.release(&[]).await.expect("release");
}

/// A message over the limit is refused with the limit, and its batch is not sent.
pub async fn a_message_that_is_too_large_is_refused(harness: &dyn Harness) {
    let test = Tester::new(harness);
    let Some(bytes_max) = test.capabilities.message_bytes_max else { return };
    let largest = Message::new(vec![b'x'; bytes_max], "job");
    let too_large = Message::new(vec![b'x'; bytes_max + 1], "job");
    let refused = test.queue.send(vec![largest.clone(), too_large]).await;
    assert!(
        matches!(refused, Err(Error::TooLarge { bytes, bytes_max: limit, .. }) if (bytes, limit) == (bytes_max + 1, bytes_max)),
        "{refused:?}"
    );
    test.assert_none_visible().await;
    test.queue.send(vec![largest]).await.expect("the limit itself is allowed");
    assert_eq!(test.take_one().await.body.len(), bytes_max);
}

/// `messages_max` is a limit, 0 included.
pub async fn receive_returns_at_most_what_was_asked_for(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a", "b", "c"]).await;
    assert!(test.receive(Receive { wait: test.capabilities.wait_max, ..test.request(0) }).await.is_empty());
    let first = test.receive(Receive { wait: test.capabilities.wait_max, ..test.request(2) }).await;
    assert!((1..=2).contains(&first.len()), "{first:?}");
    let rest = test.take(3 - first.len()).await;
    assert_eq!(sorted_bodies(&[first, rest].concat()), ["a", "b", "c"]);
}

/// New messages are delivered in the order of sending, where the backend promises it.
pub async fn new_messages_come_in_order(harness: &dyn Harness) {
    let test = Tester::new(harness);
    if !test.capabilities.first_in_first_out {
        return;
    }
    test.send(&["a", "b"]).await;
    test.send(&["c", "d", "e"]).await;
    let mut deliveries = test.take(2).await;
    deliveries.extend(test.take(3).await);
    let bodies: Vec<&[u8]> = deliveries.iter().map(|delivery| &delivery.body[..]).collect();
    assert_eq!(bodies, [b"a", b"b", b"c", b"d", b"e"]);
}

/// A lease hides its message until it lapses; the next delivery has a new receipt and counts on.
pub async fn a_leased_message_is_hidden_and_comes_back(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a"]).await;
    let first = test.take_one().await;
    test.assert_count(&first, 1);
    test.assert_none_visible().await;
    if !test.capabilities.timed_lease {
        return;
    }
    test.pass(LEASE_UNITS - LATE_UNITS).await;
    test.assert_none_visible().await;
    test.pass(LATE_UNITS + 1).await;
    let second = test.take_one().await;
    assert_eq!(second.body, first.body);
    assert_ne!(second.receipt, first.receipt);
    test.assert_count(&second, 2);
    test.assert_none_visible().await;
}

/// A lease lasts as long as the last extension says.
pub async fn extend_prolongs_a_lease(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a"]).await;
    let delivery = test.take_one().await;
    for _ in 0..3 {
        test.pass(LEASE_UNITS - LATE_UNITS).await;
        assert!(test.extend(&delivery.receipt, LEASE_UNITS).await);
    }
    test.assert_none_visible().await;
    assert!(test.acknowledge(std::slice::from_ref(&delivery.receipt)).await.is_empty());
}

/// An extension counts from now, so it can bring the end of a lease nearer.
pub async fn extend_shortens_a_lease(harness: &dyn Harness) {
    let test = Tester::new(harness);
    if !test.capabilities.timed_lease {
        return;
    }
    test.send(&["a"]).await;
    let delivery = test.take_one().await;
    assert!(test.extend(&delivery.receipt, 2).await);
    test.pass(3).await;
    test.assert_count(&test.take_one().await, 2);
}

/// Once a lease has lapsed, extending it reports the loss, before and after the message is delivered again.
pub async fn a_lapsed_lease_cannot_be_extended(harness: &dyn Harness) {
    let test = Tester::new(harness);
    if !test.capabilities.timed_lease {
        return;
    }
    test.send(&["a"]).await;
    let first = test.take_one().await;
    test.pass(LEASE_UNITS + 1).await;
    assert!(!test.extend(&first.receipt, LEASE_UNITS).await);
    let second = test.take_one().await;
    assert!(!test.extend(&first.receipt, LEASE_UNITS).await);
    assert!(test.extend(&second.receipt, LEASE_UNITS).await);
}

/// A batch with lost receipts does its work for the others, and names exactly the lost ones.
pub async fn each_receipt_of_a_batch_is_answered(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a", "b", "c", "d"]).await;
    let first = test.take(4).await;
    test.release(&first[1].receipt).await;
    test.release(&first[3].receipt).await;
    let again = test.take(2).await;
    let leases: Vec<_> = receipts(&first).into_iter().map(|receipt| (receipt, test.units(LEASE_UNITS))).collect();
    let lost = test.queue.extend(&leases).await.expect("extend");
    assert_eq!(HashSet::from_iter(lost), HashSet::from([first[1].receipt.clone(), first[3].receipt.clone()]));
    if test.capabilities.old_receipt == OldReceipt::Lost {
        let lost = test.acknowledge(&receipts(&first)).await;
        assert_eq!(HashSet::from_iter(lost), HashSet::from([first[1].receipt.clone(), first[3].receipt.clone()]));
        assert!(test.acknowledge(&receipts(&again)).await.is_empty());
    }
}

/// An acknowledged message does not come back, whatever is done with its receipt.
pub async fn an_acknowledged_message_is_gone_for_good(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a", "b"]).await;
    let deliveries = test.take(2).await;
    assert!(test.acknowledge(&receipts(&deliveries)).await.is_empty());
    test.queue.release(&receipts(&deliveries)).await.expect("release");
    assert!(!test.extend(&deliveries[0].receipt, LEASE_UNITS).await);
    test.acknowledge(&receipts(&deliveries)).await;
    test.pass(LEASE_UNITS + 1).await;
    test.assert_none_visible().await;
}

/// Nothing that is done with an old receipt takes the message from who has it now, save that some services remove it.
pub async fn an_old_receipt_does_not_touch_a_new_lease(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a"]).await;
    let old = test.take_one().await.receipt;
    test.release(&old).await;
    let new = test.take_one().await.receipt;
    test.release(&old).await;
    assert!(!test.extend(&old, 1).await);
    test.assert_none_visible().await;
    let ignored = !test.acknowledge(std::slice::from_ref(&old)).await.is_empty();
    match test.capabilities.old_receipt {
        OldReceipt::Lost => assert!(ignored, "the old receipt removed the message"),
        OldReceipt::Deletes => assert!(!ignored, "the old receipt did not remove the message"),
        OldReceipt::Either => {}
    }
    assert_eq!(test.extend(&new, LEASE_UNITS).await, ignored);
    if ignored {
        assert!(test.acknowledge(&[new]).await.is_empty());
    }
}

/// Releasing ends the lease now, and the next delivery counts on.
pub async fn a_released_message_is_visible_at_once(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a", "b"]).await;
    let first = test.take(2).await;
    test.queue.release(&receipts(&first)).await.expect("release");
    assert!(!test.extend(&first[0].receipt, LEASE_UNITS).await);
    let second = test.take(2).await;
    assert_eq!(sorted_bodies(&second), ["a", "b"]);
    second.iter().for_each(|delivery| test.assert_count(delivery, 2));
}

/// A receive that waits returns when a message is sent.
pub async fn a_waiting_receive_is_woken_by_a_send(harness: &dyn Harness) {
    let test = Tester::new(harness);
    for body in ["a", "b", "c"] {
        let deliveries = test.receive_while(10, test.send(&[body])).await;
        assert_eq!(sorted_bodies(&deliveries), [body]);
    }
}

/// A receive that waits returns when a lease lapses or is released.
pub async fn a_waiting_receive_is_woken_by_a_lapse(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a"]).await;
    let first = test.take_one().await;
    let second = test.receive_while(10, test.release(&first.receipt)).await;
    assert_eq!(sorted_bodies(&second), ["a"]);
    if test.capabilities.timed_lease {
        let third = test.receive_while(10, test.pass(LEASE_UNITS + 1)).await;
        assert_eq!(sorted_bodies(&third), ["a"]);
        test.assert_count(&third[0], 3);
    }
}

/// A receive returns empty when nothing has come for as long as it was to wait.
pub async fn a_waiting_receive_ends_empty(harness: &dyn Harness) {
    let test = Tester::new(harness);
    let request = Receive { wait: test.units(1), ..test.request(10) };
    assert!(test.receive(request).await.is_empty());
    let (one, other) = tokio::join!(test.receive(request), test.receive(request));
    assert!(one.is_empty() && other.is_empty());
}

/// A receive that is dropped while it waits takes no message with it: dropped before the message comes, just as it
/// comes, and when it was claimed but not yet returned.
pub async fn a_dropped_receive_loses_nothing(harness: &dyn Harness) {
    let test = Tester::new(harness);
    for round in 0..30 {
        let mut waiting = test.queue.receive(Receive { wait: test.capabilities.wait_max, ..test.request(10) });
        tokio::select! {
            biased;
            deliveries = &mut waiting => panic!("the queue is empty: {deliveries:?}"),
            () = std::future::ready(()) => {}
        }
        if round % 3 == 0 {
            drop(waiting);
            test.send(&["a"]).await;
        } else {
            test.send(&["a"]).await;
            if round % 3 == 1 {
                test.queue.depth().await.expect("depth");
            }
            drop(waiting);
        }
        if !test.capabilities.dropped_receive_returns {
            test.pass(LEASE_UNITS + 1).await;
        }
        let delivery = test.take_one().await;
        if test.capabilities.dropped_receive_returns {
            test.assert_count(&delivery, 1);
        }
        test.acknowledge(&[delivery.receipt]).await;
    }
}

/// A message with a delay is received only after it.
pub async fn a_delayed_message_is_hidden_at_first(harness: &dyn Harness) {
    let test = Tester::new(harness);
    if !test.capabilities.delay {
        return;
    }
    let delayed = Message { delay: test.units(3 + LATE_UNITS), ..Message::new("later", "job") };
    test.queue.send(vec![delayed, Message::new("now", "job")]).await.expect("send");
    assert_eq!(sorted_bodies(&test.take(1).await), ["now"]);
    test.pass(3).await;
    test.assert_none_visible().await;
    let deliveries = test.receive_while(10, test.pass(LATE_UNITS + 1)).await;
    assert_eq!(sorted_bodies(&deliveries), ["later"]);
    test.assert_count(&deliveries[0], 1);
}

/// Many receivers at once: every message reaches exactly one of them while its lease runs.
pub async fn receivers_never_share_a_lease(harness: &dyn Harness) {
    let test = Tester::new(harness);
    let bodies: Vec<String> = (0..500).map(|number| format!("{number:03}")).collect();
    let received = Arc::new(Mutex::new(Vec::new()));
    let receivers: Vec<_> = (1..=8)
        .map(|messages_max| {
            let (queue, received, request) = (test.queue.clone(), received.clone(), test.request(messages_max));
            tokio::spawn(async move {
                while received.lock().expect("no holder panics").len() < 500 {
                    let deliveries = queue.receive(request).await.expect("receive");
                    received.lock().expect("no holder panics").extend(deliveries);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for part in bodies.chunks(50) {
        test.send(&part.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    for receiver in receivers {
        receiver.await.expect("the receiver does not panic");
    }
    let received = received.lock().expect("no holder panics").clone();
    assert_eq!(sorted_bodies(&received), bodies);
    assert!(test.acknowledge(&receipts(&received)).await.is_empty());
}

/// Depth tells visible, leased and delayed messages apart.
pub async fn depth_counts_each_kind(harness: &dyn Harness) {
    let test = Tester::new(harness);
    assert_eq!(test.queue.depth().await.expect("depth"), Depth::default());
    test.send(&["a", "b", "c", "d", "e"]).await;
    let deliveries = test.take(2).await;
    if test.capabilities.delay {
        let delayed = Message { delay: test.units(5), ..Message::new("later", "job") };
        test.queue.send(vec![delayed]).await.expect("send");
    }
    let depth = test.queue.depth().await.expect("depth");
    if test.capabilities.exact_counts {
        let delayed = u64::from(test.capabilities.delay);
        assert_eq!(depth, Depth { visible: 3, in_flight: 2, delayed });
        assert_eq!(depth.total(), 5 + delayed);
        test.acknowledge(&receipts(&deliveries)[..1]).await;
        test.release(&deliveries[1].receipt).await;
        assert_eq!(test.queue.depth().await.expect("depth"), Depth { visible: 4, in_flight: 0, delayed });
    }
}
