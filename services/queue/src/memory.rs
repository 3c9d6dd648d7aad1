//! A queue in memory, for the roles of one process and for tests. A test can make it fail as services sometimes do.

mod broker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::clock::deadline;
use crate::error::check_sizes;
use crate::{Clock, Delivery, Depth, Error, LeaseClock, Limits, Message, Queue, Receipt, Receive};

pub use broker::MemoryBroker;

/// The behaviour of a [`MemoryQueue`] where services differ.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// The clock that ends leases and delays.
    pub clock: Clock,
    /// Whether acknowledging with an old receipt removes a message that was delivered again since.
    pub old_receipt_deletes: bool,
    /// The largest body.
    pub message_bytes_max: usize,
    /// The value of [`Limits::timed_lease`]. Leases expire in either case.
    pub timed_lease: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            clock: Clock::tokio(),
            old_receipt_deletes: false,
            message_bytes_max: usize::MAX,
            timed_lease: true,
        }
    }
}

/// A queue in memory. Needs a Tokio runtime.
#[derive(Debug)]
pub struct MemoryQueue {
    options: MemoryOptions,
    /// `send` waits while the queue has at least this many messages.
    messages_max: usize,
    shared: Arc<Shared>,
}

/// The messages, which several handles may share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    became_visible: Notify,
    /// Wakes senders that wait for room.
    has_room: Notify,
}

#[derive(Debug, Default)]
struct State {
    messages: BTreeMap<i64, Stored>,
    /// `(visible_at, id)` of every message: the order of claims.
    order: BTreeSet<(i64, i64)>,
    /// Messages to deliver again during their lease.
    duplicates: VecDeque<i64>,
    last_id: i64,
    failures_left: usize,
    duplicates_left: usize,
    stalls_left: usize,
    extended: usize,
    /// The name of the queue, if it was deleted.
    deleted: Option<String>,
    /// Whether its receiver has ended.
    is_abandoned: bool,
}

#[derive(Debug)]
struct Stored {
    body: Bytes,
    visible_at: i64,
    receive_count: u32,
}

/// The `visible_at` of a message that is visible now. It is earlier than any clock, so such messages keep their order.
const VISIBLE_NOW: i64 = 0;

/// The bits of a message id that number it within its queue; the bits above them number the queue.
const MESSAGE_BITS: u32 = 32;

/// Interval at which a waiting receiver checks a manual clock.
const TICK: Duration = Duration::from_millis(10);

/// The longest time between two checks of a waiting receiver.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(3600);

impl MemoryQueue {
    /// Creates an empty queue.
    pub fn new(options: MemoryOptions) -> Self {
        Self { options, messages_max: usize::MAX, shared: Arc::default() }
    }

    /// Creates one of several queues, no two of which have equal receipts.
    fn numbered(options: MemoryOptions, number: u32) -> Self {
        let state = State { last_id: i64::from(number) << MESSAGE_BITS, ..State::default() };
        Self {
            shared: Arc::new(Shared { state: Mutex::new(state), ..Shared::default() }),
            ..Self::new(options)
        }
    }

    /// Makes the next `calls` calls fail with [`Error::Unavailable`], without effect.
    pub fn fail_next(&self, calls: usize) {
        self.state().failures_left = calls;
    }

    /// Makes the next `calls` calls of [`Queue::extend`] take effect without returning.
    pub fn stall_next_extensions(&self, calls: usize) {
        self.state().stalls_left = calls;
    }

    /// Returns how many leases have been extended.
    pub fn extended(&self) -> usize {
        self.state().extended
    }

    /// Duplicates each of the next `deliveries` deliveries: another receiver gets the message during its lease.
    pub fn duplicate_next(&self, deliveries: usize) {
        self.state().duplicates_left = deliveries;
    }

    /// Returns a handle for a fast sender: its `send` waits while the queue has `messages_max` messages or more. A role
    /// that receives from the queue must not send with it, because it would wait for itself.
    pub fn bounded(&self, messages_max: usize) -> Self {
        Self { options: self.options.clone(), messages_max, shared: self.shared.clone() }
    }

    /// Records that the receiver has ended. Senders no longer wait for room.
    pub fn abandon(&self) {
        self.state().is_abandoned = true;
        self.shared.has_room.notify_waiters();
    }

    /// Waits until the queue has fewer than `messages_max` messages, or is abandoned.
    async fn wait_for_room(&self) {
        loop {
            let mut has_room = std::pin::pin!(self.shared.has_room.notified());
            has_room.as_mut().enable();
            let is_full = {
                let state = self.state();
                !state.is_abandoned && state.messages.len() >= self.messages_max
            };
            if !is_full {
                return;
            }
            has_room.await;
        }
    }

    /// Removes all messages. All later calls fail.
    fn delete(&self, name: &str) {
        *self.state() = State { deleted: Some(name.to_owned()), ..State::default() };
        self.shared.became_visible.notify_waiters();
    }

    /// Returns the time at which a message may become visible without a notification.
    fn next_check(&self, now: i64) -> Instant {
        let wait = match self.options.clock {
            Clock::Manual(_) => TICK,
            Clock::System | Clock::Tokio(_) => {
                let next = self
                    .state()
                    .order
                    .range((now + 1, i64::MIN)..)
                    .next()
                    .map_or(i64::MAX, |(at, _)| *at);
                Duration::from_millis((next - now).unsigned_abs()).min(CHECK_INTERVAL_MAX)
            }
        };
        Instant::now() + wait
    }

    /// Extends leases. Returns the lost ones, and whether the call should return to its caller.
    fn set_leases(&self, leases: &[(Receipt, Duration)]) -> Result<(Vec<Receipt>, bool), Error> {
        let mut state = self.call()?;
        let now = self.options.clock.now_milliseconds();
        let mut lost = Vec::new();
        for (receipt, visibility) in leases {
            if state.is_leased(receipt, now) {
                state.set_visible_at(receipt.numbers().0, self.options.clock.after(*visibility));
            } else {
                lost.push(receipt.clone());
            }
        }
        state.extended += leases.len();
        let is_answered = state.stalls_left == 0;
        state.stalls_left = state.stalls_left.saturating_sub(1);
        Ok((lost, is_answered))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("no holder panics")
    }

    /// Returns the state, unless the queue was deleted.
    fn existing(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.state();
        match &state.deleted {
            Some(name) => Err(Error::Absent { queue: name.clone() }),
            None => Ok(state),
        }
    }

    /// Returns the state, or the error that the test requested.
    fn call(&self) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = self.existing()?;
        match state.failures_left.checked_sub(1) {
            None => Ok(state),
            Some(left) => {
                state.failures_left = left;
                Err(Error::Unavailable {
                    queue: NAME.to_owned(),
                    source: "a test requested this failure".into(),
                })
            }
        }
    }
}

const NAME: &str = "(memory)";

#[async_trait]
impl Queue for MemoryQueue {
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        check_sizes(&messages, self.options.message_bytes_max, NAME)?;
        self.wait_for_room().await;
        let mut state = self.call()?;
        for message in messages {
            let delayed = !message.delay.is_zero();
            let visible_at =
                if delayed { self.options.clock.after(message.delay) } else { VISIBLE_NOW };
            state.last_id += 1;
            let id = state.last_id;
            state.messages.insert(id, Stored { body: message.body, visible_at, receive_count: 0 });
            state.order.insert((visible_at, id));
        }
        drop(state);
        self.shared.became_visible.notify_waiters();
        Ok(())
    }

    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        drop(self.call()?);
        let deadline = deadline(request.wait);
        loop {
            let mut became_visible = std::pin::pin!(self.shared.became_visible.notified());
            became_visible.as_mut().enable();
            let now = self.options.clock.now_milliseconds();
            let leased_until = self.options.clock.after(request.visibility);
            let deliveries = self.existing()?.claim(request.messages_max, now, leased_until);
            if !deliveries.is_empty() || request.messages_max == 0 || Instant::now() >= deadline {
                return Ok(deliveries);
            }
            tokio::select! {
                () = became_visible => {}
                () = sleep_until(deadline.min(self.next_check(now))) => {}
            }
        }
    }

    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        let (lost, is_answered) = self.set_leases(leases)?;
        self.shared.became_visible.notify_waiters();
        if !is_answered {
            std::future::pending::<()>().await;
        }
        Ok(lost)
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        let mut state = self.call()?;
        let mut lost = Vec::new();
        for receipt in receipts {
            let (message, delivery) = receipt.numbers();
            let removes = state.messages.get(&message).is_some_and(|stored| {
                stored.receive_count == delivery || self.options.old_receipt_deletes
            });
            if removes {
                state.remove(message);
            } else {
                lost.push(receipt.clone());
            }
        }
        drop(state);
        self.shared.has_room.notify_waiters();
        Ok(lost)
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        let mut state = self.call()?;
        let now = self.options.clock.now_milliseconds();
        for receipt in receipts {
            if state.is_leased(receipt, now) {
                state.set_visible_at(receipt.numbers().0, VISIBLE_NOW);
            }
        }
        drop(state);
        self.shared.became_visible.notify_waiters();
        Ok(())
    }

    async fn depth(&self) -> Result<Depth, Error> {
        let state = self.call()?;
        let now = self.options.clock.now_milliseconds();
        let mut depth = Depth::default();
        for stored in state.messages.values() {
            *match (stored.visible_at <= now, stored.receive_count) {
                (true, _) => &mut depth.visible,
                (false, 0) => &mut depth.delayed,
                (false, _) => &mut depth.in_flight,
            } += 1;
        }
        Ok(depth)
    }

    fn limits(&self) -> Limits {
        Limits {
            message_bytes_max: self.options.message_bytes_max,
            lease_max: None,
            delay_max: Duration::MAX,
            timed_lease: self.options.timed_lease,
            bundle_max: 1,
        }
    }
}

impl State {
    fn claim(&mut self, messages_max: usize, now: i64, leased_until: i64) -> Vec<Delivery> {
        let mut ids: Vec<i64> = Vec::new();
        while ids.len() < messages_max
            && let Some(id) = self.duplicates.pop_front()
        {
            if self.messages.contains_key(&id) {
                ids.push(id);
            }
        }
        let visible =
            self.order.range(..=(now, i64::MAX)).map(|(_, id)| *id).filter(|id| !ids.contains(id));
        let visible: Vec<i64> = visible.take(messages_max - ids.len()).collect();
        ids.extend(visible);
        let leased_at = LeaseClock::System.now();
        ids.into_iter().map(|id| self.deliver(id, leased_at, leased_until)).collect()
    }

    fn deliver(&mut self, id: i64, leased_at: Instant, leased_until: i64) -> Delivery {
        if let Some(left) = self.duplicates_left.checked_sub(1) {
            self.duplicates_left = left;
            self.duplicates.push_back(id);
        }
        self.set_visible_at(id, leased_until);
        let stored = self.messages.get_mut(&id).expect("claimed ids exist");
        stored.receive_count += 1;
        let receipt = Receipt::numbered(id, stored.receive_count);
        let (body, receive_count) = (stored.body.clone(), stored.receive_count);
        Delivery { body, receipt, receive_count, leased_at }
    }

    fn is_leased(&self, receipt: &Receipt, now: i64) -> bool {
        let (message, delivery) = receipt.numbers();
        let stored = self.messages.get(&message);
        stored.is_some_and(|stored| stored.receive_count == delivery && stored.visible_at > now)
    }

    fn set_visible_at(&mut self, id: i64, visible_at: i64) {
        let stored = self.messages.get_mut(&id).expect("the caller looked it up");
        self.order.remove(&(stored.visible_at, id));
        self.order.insert((visible_at, id));
        stored.visible_at = visible_at;
    }

    fn remove(&mut self, id: i64) {
        let stored = self.messages.remove(&id).expect("the caller looked it up");
        self.order.remove(&(stored.visible_at, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Broker;

    const REQUEST: Receive =
        Receive { messages_max: 10, visibility: Duration::from_secs(60), wait: Duration::ZERO };

    #[tokio::test]
    async fn duplicate_is_delivered_during_the_lease() {
        let queue = MemoryQueue::new(MemoryOptions::default());
        queue.send(vec![Message::new("a"), Message::new("b")]).await.expect("sends");
        queue.duplicate_next(1);
        let first = queue.receive(REQUEST).await.expect("receives");
        let again = queue.receive(REQUEST).await.expect("receives");
        assert_eq!(first.len(), 2);
        assert_eq!((again.len(), &again[0].body, again[0].receive_count), (1, &first[0].body, 2));
        assert_ne!(again[0].receipt, first[0].receipt);
        assert!(queue.receive(REQUEST).await.expect("receives").is_empty());
    }

    #[tokio::test]
    async fn sender_waits_for_room_until_the_queue_is_abandoned() {
        let queue = MemoryQueue::new(MemoryOptions::default());
        let bounded = queue.bounded(3);
        let send = |body: &'static str| bounded.send(vec![Message::new(body)]);
        for body in ["a", "b", "c"] {
            send(body).await.expect("there is room");
        }
        let mut waiting = std::pin::pin!(send("d"));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        let received =
            queue.receive(Receive { messages_max: 1, ..REQUEST }).await.expect("receives");
        assert!(futures::poll!(waiting.as_mut()).is_pending(), "it may come back");
        queue.acknowledge(&[received[0].receipt.clone()]).await.expect("answers");
        waiting.await.expect("there is room again");
        let mut waiting = std::pin::pin!(send("e"));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        queue.send(vec![Message::new("f")]).await.expect("this handle never waits");
        queue.abandon();
        waiting.await.expect("no receiver will make room");
        assert_eq!(queue.depth().await.expect("answers").total(), 5);
    }

    #[tokio::test]
    async fn queues_of_a_broker_have_different_receipts() {
        let broker = MemoryBroker::new(MemoryOptions::default());
        broker.create("job").await.expect("creates");
        let [tasks, results] = broker.pair("job").expect("exists");
        let [control, dead_letters] = broker.target_pair();
        let mut receipts = std::collections::HashSet::new();
        for queue in [tasks, results, control, dead_letters] {
            queue.send(vec![Message::new("a")]).await.expect("sends");
            receipts.insert(queue.receive(REQUEST).await.expect("receives").remove(0).receipt);
        }
        assert_eq!(receipts.len(), 4);
    }

    #[tokio::test]
    async fn requested_failures_have_no_effect() {
        let queue = MemoryQueue::new(MemoryOptions::default());
        queue.fail_next(2);
        let sent = queue.send(vec![Message::new("a")]).await;
        assert!(matches!(sent, Err(Error::Unavailable { .. })), "{sent:?}");
        assert!(matches!(queue.depth().await, Err(Error::Unavailable { .. })));
        assert_eq!(queue.depth().await.expect("answers again"), Depth::default());
    }
}
