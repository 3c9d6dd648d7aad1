//! The messages of one connection: those that have arrived and wait for a receiver, and those handed out.
//!
//! A lease is a delivery tag of a channel. Tags count 1, 2, 3 …, so one acknowledgement can settle all tags up to
//! its own once all earlier tags are settled.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::{Delivery, LeaseClock, Receipt};

/// The messages of one connection. All leases end with the connection.
#[derive(Debug)]
pub(super) struct Leases {
    generation: u32,
    state: Mutex<State>,
    /// Wakes receivers: a message arrived, the subscription changed, or the connection ended.
    pub changed: Notify,
    /// Wakes the subscription, which then checks whether it still fits.
    pub misfit: Notify,
}

#[derive(Debug, Default)]
struct State {
    arrived: BTreeMap<u64, Arrived>,
    handed_out: BTreeSet<u64>,
    settled: Settled,
    /// Total number of messages that the current receives request.
    wanted: usize,
    /// Number of unsettled messages that the broker sends: the prefetch of all consumers.
    capacity: usize,
    /// A caller has stopped receiving.
    enough: bool,
    ended: Option<Ended>,
}

/// Why a connection ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub reason: String,
    /// The broker rejected an operation, so another try would fail, too.
    pub refused: bool,
}

impl State {
    /// Returns how many messages are held once all current receives are satisfied.
    fn held(&self) -> usize {
        self.handed_out.len().saturating_add(self.wanted).min(HELD_MAX)
    }
}

#[derive(Debug)]
struct Arrived {
    body: Bytes,
    receive_count: u32,
}

/// How a subscription should change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// No change.
    Right,
    /// The broker should send this many more.
    Grow(usize),
    /// The broker should send this many in total, far fewer than it does.
    Shrink(usize),
    /// Messages have arrived, but no receive requests any: they should return to the queue if that lasts.
    Idle,
    /// A caller has stopped receiving: messages that have arrived should return to the queue now.
    Stop,
    /// The connection has ended.
    Ended,
}

/// The most messages that one connection holds.
const HELD_MAX: usize = 1_000_000;

/// One frame that settles: the tag, and whether it includes all earlier tags.
pub(super) type Step = (u64, bool);

impl Leases {
    pub fn new(generation: u32) -> Self {
        let (changed, misfit) = (Notify::new(), Notify::new());
        Self { generation, state: Mutex::default(), changed, misfit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Records the arrival of a message.
    pub fn arrive(&self, tag: u64, body: Bytes, receive_count: u32) {
        let mut state = self.state();
        state.arrived.insert(tag, Arrived { body, receive_count });
        if state.wanted == 0 {
            self.misfit.notify_one();
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records the end of the connection; the first reason counts.
    pub fn end(&self, reason: impl Into<String>, refused: bool) {
        let mut state = self.state();
        state.ended.get_or_insert_with(|| Ended { reason: reason.into(), refused });
        state.arrived.clear();
        state.handed_out.clear();
        drop(state);
        self.changed.notify_waiters();
        self.misfit.notify_one();
    }

    pub fn ended(&self) -> Option<Ended> {
        self.state().ended.clone()
    }

    /// Requests messages until the returned value is dropped.
    pub fn want(self: &Arc<Self>, messages: usize) -> Wish {
        let mut state = self.state();
        state.wanted = state.wanted.saturating_add(messages);
        state.enough = false;
        drop(state);
        self.misfit.notify_one();
        Wish { leases: self.clone(), messages }
    }

    /// Stops receiving until the next request.
    pub fn want_no_more(&self) {
        self.state().enough = true;
        self.misfit.notify_one();
    }

    /// Hands out messages that have arrived, up to `messages_max`.
    pub fn take(&self, messages_max: usize) -> Vec<Delivery> {
        let mut state = self.state();
        let mut deliveries = Vec::new();
        while deliveries.len() < messages_max
            && let Some((tag, Arrived { body, receive_count })) = state.arrived.pop_first()
        {
            state.handed_out.insert(tag);
            deliveries.push(Delivery {
                body,
                receipt: self.receipt(tag),
                receive_count,
                leased_at: LeaseClock::System.now(),
            });
        }
        deliveries
    }

    /// Returns how many messages are handed out, and how many wait.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.handed_out.len(), state.arrived.len())
    }

    /// Returns the receipts without a lease.
    pub fn lost<'a>(&self, receipts: impl Iterator<Item = &'a Receipt>) -> Vec<Receipt> {
        let state = self.state();
        receipts
            .filter(|receipt| !self.tag(receipt).is_some_and(|tag| state.handed_out.contains(&tag)))
            .cloned()
            .collect()
    }

    /// Ends the leases of these receipts. Returns the frames to send, and the receipts that were already lost.
    pub fn settle(&self, receipts: &[Receipt]) -> (Vec<Step>, Vec<Receipt>) {
        let mut state = self.state();
        let (mut tags, mut lost, mut seen) = (BTreeSet::new(), Vec::new(), HashSet::new());
        for receipt in receipts {
            match self.tag(receipt) {
                Some(tag) if state.handed_out.remove(&tag) => {
                    tags.insert(tag);
                    seen.insert(tag);
                }
                Some(tag) if seen.contains(&tag) => {}
                _ => lost.push(receipt.clone()),
            }
        }
        (state.settled.settle(&tags), lost)
    }

    /// Settles all waiting messages. Returns the frames to send.
    pub fn settle_arrived(&self) -> Vec<Step> {
        let mut state = self.state();
        let tags = std::mem::take(&mut state.arrived).into_keys().collect();
        state.settled.settle(&tags)
    }

    /// Takes all waiting messages: tags, bodies and counts. The caller settles the tags.
    pub fn take_arrived(&self) -> Vec<(u64, Bytes, u32)> {
        let arrived = std::mem::take(&mut self.state().arrived);
        arrived.into_iter().map(|(tag, Arrived { body, receive_count })| (tag, body, receive_count)).collect()
    }

    /// Returns the frames that settle these tags.
    pub fn settle_tags(&self, tags: &BTreeSet<u64>) -> Vec<Step> {
        self.state().settled.settle(tags)
    }

    /// Returns whether the broker still sends although a caller has stopped receiving.
    pub fn is_stopping(&self) -> bool {
        matches!(self.fit(), Fit::Stop)
    }

    /// Returns whether the broker sends as many messages as the current receives request.
    pub fn satisfied(&self) -> bool {
        let state = self.state();
        state.held() <= state.capacity
    }

    /// Returns how the subscription should change.
    pub fn fit(&self) -> Fit {
        let state = self.state();
        let held = state.held();
        if state.ended.is_some() {
            Fit::Ended
        } else if state.wanted == 0 {
            match (state.enough, state.arrived.is_empty()) {
                (true, _) if state.capacity > 0 => Fit::Stop,
                (_, false) => Fit::Idle,
                _ => Fit::Right,
            }
        } else if held > state.capacity {
            Fit::Grow(held - state.capacity)
        } else if held < state.capacity / 2 {
            Fit::Shrink(held)
        } else {
            Fit::Right
        }
    }

    pub fn set_capacity(&self, capacity: usize) {
        self.state().capacity = capacity;
        self.changed.notify_waiters();
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
pub(super) struct Wish {
    leases: Arc<Leases>,
    messages: usize,
}

impl Drop for Wish {
    fn drop(&mut self) {
        let mut state = self.leases.state();
        state.wanted = state.wanted.saturating_sub(self.messages);
        let unwanted = state.wanted == 0 && !state.arrived.is_empty();
        drop(state);
        if unwanted {
            self.leases.misfit.notify_one();
        }
    }
}

/// The settled tags.
#[derive(Debug, Default)]
struct Settled {
    up_to: u64,
    beyond: BTreeSet<u64>,
}

impl Settled {
    /// Settles tags. One frame settles all tags without an open earlier tag; each other tag has a frame.
    fn settle(&mut self, tags: &BTreeSet<u64>) -> Vec<Step> {
        self.beyond.extend(tags);
        while self.beyond.remove(&(self.up_to + 1)) {
            self.up_to += 1;
        }
        let together = tags.range(..=self.up_to).next_back().map(|&tag| (tag, true));
        together.into_iter().chain(tags.range(self.up_to + 1..).map(|&tag| (tag, false))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leases(arrived: u64) -> Arc<Leases> {
        let leases = Arc::new(Leases::new(7));
        (1..=arrived).for_each(|tag| leases.arrive(tag, Bytes::new(), 1));
        leases
    }

    fn receipts(tags: impl IntoIterator<Item = i64>) -> Vec<Receipt> {
        tags.into_iter().map(|tag| Receipt::numbered(tag, 7)).collect()
    }

    #[test]
    fn one_frame_settles_all_tags_without_open_predecessors() {
        let leases = leases(10);
        leases.take(8);
        assert_eq!(leases.settle(&receipts([2, 4])), (vec![(2, false), (4, false)], vec![]));
        assert_eq!(leases.settle(&receipts([1, 3, 6])), (vec![(3, true), (6, false)], vec![]));
        assert_eq!(leases.settle(&receipts([5])), (vec![(5, true)], vec![]));
        assert_eq!(leases.settle(&receipts([8])), (vec![(8, false)], vec![]));
        assert_eq!(leases.settle(&receipts([7])), (vec![(7, true)], vec![]));
        assert_eq!(leases.settle_arrived(), [(10, true)]);
    }

    #[test]
    fn receipt_is_valid_once_and_on_its_connection() {
        let leases = leases(3);
        leases.take(2);
        let other = Receipt::numbered(1, 6);
        let unseen = Receipt::numbered(3, 7);
        let asked = [receipts([1, 1]), vec![other.clone(), unseen.clone()]].concat();
        assert_eq!(leases.settle(&asked), (vec![(1, true)], vec![other, unseen]));
        assert_eq!(leases.settle(&receipts([1])), (vec![], receipts([1])));
        assert_eq!(leases.lost(receipts([1, 2]).iter()), receipts([1]));
        leases.end("cut", false);
        assert_eq!(leases.lost(receipts([2]).iter()), receipts([2]));
    }

    #[test]
    fn subscription_fits_held_and_requested_messages() {
        let leases = leases(0);
        assert_eq!(leases.fit(), Fit::Right);
        let wish = leases.want(8);
        assert_eq!(leases.fit(), Fit::Grow(8));
        leases.set_capacity(8);
        (1..=8).for_each(|tag| leases.arrive(tag, Bytes::new(), 1));
        assert_eq!(leases.take(8).len(), 8);
        drop(wish);
        assert_eq!(leases.fit(), Fit::Right);
        let wish = leases.want(2);
        assert_eq!(leases.fit(), Fit::Grow(2));
        leases.set_capacity(10);
        leases.settle(&receipts(1..=8));
        assert_eq!(leases.fit(), Fit::Shrink(2));
        drop(wish);
        leases.arrive(9, Bytes::new(), 1);
        assert_eq!(leases.fit(), Fit::Idle);
        leases.want_no_more();
        assert_eq!(leases.fit(), Fit::Stop);
    }
}
