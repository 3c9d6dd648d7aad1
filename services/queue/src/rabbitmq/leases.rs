//! The messages of a session: those that have arrived and wait for a receiver, and those that receivers hold.
//!
//! A lease is a delivery tag of a channel. Tags count 1, 2, 3 …, so one frame can settle its tag and all earlier ones,
//! if none of them is still leased.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::{Delivery, LeaseClock, Receipt};

/// The messages of a session. All leases end with it.
#[derive(Debug)]
pub(super) struct Leases {
    /// The number of sessions of the queue before this one.
    pub generation: u32,
    state: Mutex<State>,
    /// Wakes receivers: a message arrived, the subscription changed, or the session ended.
    pub changed: Notify,
    /// Wakes the subscription, which then checks whether its consumers still fit the demand.
    pub demand_changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    arrived: BTreeMap<u64, UnsettledDelivery>,
    /// The tags that receivers hold, each with the set of the consumer that got it.
    handed_out: BTreeMap<u64, ConsumerSet>,
    settled: Settled,
    consumers: Consumers,
    /// The total number of messages that the current receives request.
    requested: usize,
    /// Whether a caller has stopped receiving.
    is_stopped: bool,
    ended: Option<Ended>,
}

/// The number of a set of consumers.
pub(super) type ConsumerSet = u32;

/// The current consumers. They end together, and then another set begins.
#[derive(Debug, Default)]
struct Consumers {
    set: ConsumerSet,
    count: usize,
    /// The largest total number of unsettled messages that the broker sends to them.
    prefetch: usize,
    unsettled: usize,
}

impl Consumers {
    /// Returns how many more messages the broker sends.
    fn free(&self) -> usize {
        self.prefetch.saturating_sub(self.unsettled)
    }

    fn settle(&mut self, set: ConsumerSet) {
        self.unsettled -= usize::from(set == self.set);
    }

    /// Ends the set and begins another one. Returns the set that has ended.
    fn end(&mut self) -> ConsumerSet {
        std::mem::replace(self, Self { set: self.set + 1, ..Self::default() }).set
    }
}

/// Why a session ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub reason: String,
    /// Whether the broker denied an operation, so that a retry would fail as well.
    pub refused: bool,
}

impl State {
    /// Returns how many messages receivers will hold once all current receives are satisfied.
    fn held(&self) -> usize {
        self.handed_out.len().saturating_add(self.requested).min(HELD_MAX)
    }

    /// Returns how many messages should still arrive.
    fn missing(&self) -> usize {
        self.held().saturating_sub(self.handed_out.len() + self.arrived.len())
    }

    /// Returns how many messages are missing beyond those that the current consumers may still get.
    fn more(&self) -> usize {
        self.missing().saturating_sub(self.consumers.free())
    }
}

#[derive(Debug)]
struct UnsettledDelivery {
    message: Incoming,
    set: ConsumerSet,
}

/// A message as the broker delivered it.
#[derive(Clone, Debug, Default)]
pub(super) struct Incoming {
    pub body: Bytes,
    pub receive_count: u32,
}

/// The required change of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConsumerChange {
    Unchanged,
    /// Another consumer should get this many messages.
    More(usize),
    /// All consumers should end, and others should begin.
    Replace,
    /// No receive requests a message. If that lasts, consumers should end, and messages that have arrived should return
    /// to the queue.
    Idle,
    /// A caller has stopped receiving: consumers should end, and messages return, at once.
    Stop,
    /// The session has ended.
    Ended,
}

/// The largest number of messages that a session holds.
const HELD_MAX: usize = 1_000_000;

/// The largest number of consumers. If more would be needed, one replaces all of them.
const CONSUMERS_MAX: usize = 16;

/// The content of a frame that settles: the tag, and whether it includes all earlier tags.
pub(super) type Settlement = (u64, bool);

impl Leases {
    pub fn new(generation: u32) -> Self {
        Self {
            generation,
            state: Mutex::default(),
            changed: Notify::new(),
            demand_changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Records the arrival of a message for a consumer of this set.
    pub fn arrive(&self, tag: u64, set: ConsumerSet, message: Incoming) {
        let mut state = self.state();
        if state.ended.is_some() {
            return;
        }
        state.consumers.unsettled += usize::from(set == state.consumers.set);
        state.arrived.insert(tag, UnsettledDelivery { message, set });
        if state.requested == 0 {
            self.demand_changed.notify_one();
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records the end of the session. The first reason stays.
    pub fn end(&self, reason: impl Into<String>, refused: bool) {
        let mut state = self.state();
        state.ended.get_or_insert_with(|| Ended { reason: reason.into(), refused });
        state.arrived.clear();
        state.handed_out.clear();
        state.consumers.end();
        drop(state);
        self.changed.notify_waiters();
        self.demand_changed.notify_one();
    }

    pub fn ended(&self) -> Option<Ended> {
        self.state().ended.clone()
    }

    /// Requests messages until the returned value is dropped.
    pub fn request(self: &Arc<Self>, messages: usize) -> ReceiveRequest {
        let mut state = self.state();
        state.requested = state.requested.saturating_add(messages);
        state.is_stopped = false;
        drop(state);
        self.demand_changed.notify_one();
        ReceiveRequest { leases: self.clone(), messages }
    }

    /// Stops receiving until the next request.
    pub fn stop(&self) {
        self.state().is_stopped = true;
        self.demand_changed.notify_one();
    }

    /// Hands out messages that have arrived, up to `messages_max`.
    pub fn take(&self, messages_max: usize) -> Vec<Delivery> {
        let mut state = self.state();
        let mut deliveries = Vec::new();
        while deliveries.len() < messages_max
            && let Some((tag, UnsettledDelivery { message, set })) = state.arrived.pop_first()
        {
            state.handed_out.insert(tag, set);
            deliveries.push(Delivery {
                body: message.body,
                receipt: self.receipt(tag),
                receive_count: message.receive_count,
                leased_at: LeaseClock::System.now(),
            });
        }
        deliveries
    }

    /// Returns how many messages receivers hold, and how many wait for a receiver.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.handed_out.len(), state.arrived.len())
    }

    /// Returns the receipts without a lease.
    pub fn lost<'a>(&self, receipts: impl Iterator<Item = &'a Receipt>) -> Vec<Receipt> {
        let state = self.state();
        receipts
            .filter(|receipt| {
                !self.tag(receipt).is_some_and(|tag| state.handed_out.contains_key(&tag))
            })
            .cloned()
            .collect()
    }

    /// Ends the leases of these receipts. Returns the frames to send, and the receipts whose leases were already lost.
    pub fn settle(&self, receipts: &[Receipt]) -> (Vec<Settlement>, Vec<Receipt>) {
        let mut state = self.state();
        let (mut tags, mut lost, mut seen) = (BTreeSet::new(), Vec::new(), HashSet::new());
        for receipt in receipts {
            match self.tag(receipt).map(|tag| (tag, state.handed_out.remove(&tag))) {
                Some((tag, Some(set))) => {
                    state.consumers.settle(set);
                    tags.insert(tag);
                    seen.insert(tag);
                }
                Some((tag, None)) if seen.contains(&tag) => {}
                _ => lost.push(receipt.clone()),
            }
        }
        (state.settled.settle(&tags), lost)
    }

    /// Takes all waiting messages with their tags, which the caller settles.
    pub fn take_arrived(&self) -> Vec<(u64, Incoming)> {
        let mut state = self.state();
        let arrived = std::mem::take(&mut state.arrived);
        arrived.values().for_each(|arrived| state.consumers.settle(arrived.set));
        arrived.into_iter().map(|(tag, arrived)| (tag, arrived.message)).collect()
    }

    /// Returns the frames that settle these tags.
    pub fn settle_tags(&self, tags: &BTreeSet<u64>) -> Vec<Settlement> {
        self.state().settled.settle(tags)
    }

    /// Returns whether a caller has stopped receiving, but consumers have not ended yet.
    pub fn is_stopping(&self) -> bool {
        self.required_change() == ConsumerChange::Stop
    }

    /// Returns whether the consumers may get as many messages as the current receives request.
    pub fn is_satisfied(&self) -> bool {
        self.state().more() == 0
    }

    /// Returns how the subscription should change.
    pub fn required_change(&self) -> ConsumerChange {
        let state = self.state();
        let Consumers { count, prefetch, .. } = state.consumers;
        if state.ended.is_some() {
            ConsumerChange::Ended
        } else if state.requested == 0 {
            match (count, state.is_stopped) {
                (1.., true) => ConsumerChange::Stop,
                (0, _) if state.arrived.is_empty() => ConsumerChange::Unchanged,
                _ => ConsumerChange::Idle,
            }
        } else if state.held() < prefetch / 2 || state.more() > 0 && count >= CONSUMERS_MAX {
            ConsumerChange::Replace
        } else {
            match state.more() {
                0 => ConsumerChange::Unchanged,
                more => ConsumerChange::More(more),
            }
        }
    }

    /// Records a consumer with this prefetch. Returns its set.
    pub fn add_consumer(&self, prefetch: usize) -> ConsumerSet {
        let consumers = &mut self.state().consumers;
        consumers.count += 1;
        consumers.prefetch += prefetch;
        consumers.set
    }

    /// Records that the consumers get no more messages. Those that they have got stay leased. Returns their set.
    pub fn remove_consumers(&self) -> ConsumerSet {
        self.state().consumers.end()
    }

    /// Returns whether the broker would send another message.
    pub fn may_arrive(&self) -> bool {
        self.state().consumers.free() > 0
    }

    fn receipt(&self, tag: u64) -> Receipt {
        Receipt::numbered(tag.cast_signed(), self.generation)
    }

    fn tag(&self, receipt: &Receipt) -> Option<u64> {
        match receipt.numbers() {
            (tag, generation) if generation == self.generation => u64::try_from(tag).ok(),
            _ => None,
        }
    }
}

/// A request of a current receive. Dropping it withdraws the request.
pub(super) struct ReceiveRequest {
    leases: Arc<Leases>,
    messages: usize,
}

impl Drop for ReceiveRequest {
    fn drop(&mut self) {
        let mut state = self.leases.state();
        state.requested = state.requested.saturating_sub(self.messages);
        let is_last = state.requested == 0;
        drop(state);
        if is_last {
            self.leases.demand_changed.notify_one();
        }
    }
}

/// The settled tags: all up to `up_to` inclusive, and those in `beyond`.
#[derive(Debug, Default)]
struct Settled {
    up_to: u64,
    beyond: BTreeSet<u64>,
}

impl Settled {
    /// Settles tags. One frame settles all tags before the first unsettled tag; each other tag has its own frame.
    fn settle(&mut self, tags: &BTreeSet<u64>) -> Vec<Settlement> {
        self.beyond.extend(tags);
        while self.beyond.remove(&(self.up_to + 1)) {
            self.up_to += 1;
        }
        let together = tags.range(..=self.up_to).next_back().map(|&tag| (tag, true));
        together.into_iter().chain(tags.range(self.up_to + 1..).map(|&tag| (tag, false))).collect()
    }
}

#[cfg(test)]
mod tests;
