//! The messages of one connection: those that have arrived and wait for a receiver, and those handed out.
//!
//! A lease is a delivery tag of a channel. Tags count 1, 2, 3 …, so one acknowledgement can settle all tags up to
//! its own once all earlier tags are settled.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::lanes::{Change, Lane, Lanes, divide};
use crate::{Delivery, LeaseClock, Receipt};

/// The messages of one connection. All leases end with the connection.
#[derive(Debug)]
pub(super) struct Leases {
    generation: u32,
    pub lanes: Arc<Lanes>,
    state: Mutex<State>,
    /// Wakes receivers: a message arrived, the subscription changed, or the connection ended.
    pub changed: Notify,
    /// Wakes the subscription, which then checks whether it still fits.
    pub misfit: Notify,
}

#[derive(Debug, Default)]
struct State {
    arrived: BTreeMap<u64, Arrived>,
    handed_out: BTreeMap<u64, Source>,
    settled: Settled,
    /// The unsettled messages of each lane, and the tag of its last arrival.
    lanes: Vec<(usize, u64)>,
    consumers: BTreeMap<u32, Consumer>,
    last_consumer: u32,
    /// Total number of messages that the current receives request.
    wanted: usize,
    /// A caller has stopped receiving.
    enough: bool,
    /// The consumers may get more messages than are requested, because no lane had any.
    listening: bool,
    /// When the lanes were last divided, and whether a message has arrived since.
    divided: Option<Instant>,
    arrived_since: bool,
    /// The lanes should be divided again, although the request is satisfied.
    is_due: bool,
    ended: Option<Ended>,
}

/// Where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub lane: usize,
    pub consumer: u32,
}

/// A consumer to which the broker sends.
#[derive(Debug)]
struct Consumer {
    lane: usize,
    prefetch: usize,
    unsettled: usize,
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

    /// Returns how many messages should still arrive.
    fn missing(&self) -> usize {
        self.held().saturating_sub(self.handed_out.len() + self.arrived.len())
    }

    /// Returns how many more messages the broker sends, of one lane or of all.
    fn free(&self, lane: Option<usize>) -> usize {
        let consumers = self.consumers.values().filter(|consumer| lane.is_none_or(|lane| consumer.lane == lane));
        consumers.map(|consumer| consumer.prefetch.saturating_sub(consumer.unsettled)).sum()
    }

    /// Returns the number of unsettled messages that the broker sends: the prefetch of consumers, of one lane or of all.
    fn capacity(&self, lane: Option<usize>) -> usize {
        let consumers = self.consumers.values().filter(|consumer| lane.is_none_or(|lane| consumer.lane == lane));
        consumers.map(|consumer| consumer.prefetch).sum()
    }

    /// Returns whether far fewer messages are requested than the broker sends.
    fn is_oversized(&self) -> bool {
        !self.listening && self.held() < self.capacity(None) / 2
    }

    /// A receiver waits, and the broker sends nothing of some lane.
    fn is_hungry(&self) -> bool {
        self.lanes.len() > 1 && self.arrived.is_empty() && (0..self.lanes.len()).any(|lane| self.free(Some(lane)) == 0)
    }

    /// Counts a message as settled.
    fn forget(&mut self, source: Source) {
        self.lanes[source.lane].0 -= 1;
        if let Some(consumer) = self.consumers.get_mut(&source.consumer) {
            consumer.unsettled -= 1;
        }
    }
}

#[derive(Debug)]
struct Arrived {
    message: Incoming,
    source: Source,
}

/// A message as the broker delivered it.
#[derive(Clone, Debug, Default)]
pub(super) struct Incoming {
    pub body: Bytes,
    pub receive_count: u32,
    /// The group that it names.
    pub group: Option<String>,
}

/// How a subscription should change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// No change.
    Right,
    /// The request should be divided between the lanes.
    Divide,
    /// The same, not before this moment.
    DivideAt(Instant),
    /// No receive requests any message, and messages that have arrived should return to the queue if that lasts, and
    /// consumers end, to which the broker would send some.
    Idle(Duration),
    /// A caller has stopped receiving: messages that have arrived should return to the queue now.
    Stop,
    /// The connection has ended.
    Ended,
}

/// The most messages that one connection holds.
const HELD_MAX: usize = 1_000_000;

/// Messages without a request return to the queue after this time, and consumers end.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// The same for consumers that may get more messages than were requested.
const LISTEN_MAX: Duration = Duration::from_millis(100);
/// The lanes are divided again at this interval while messages arrive.
const DIVIDE_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks at the lanes while a receiver waits.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// One frame that settles: the tag, and whether it includes all earlier tags.
pub(super) type Settlement = (u64, bool);

impl Leases {
    pub fn new(generation: u32, lanes: Arc<Lanes>) -> Self {
        let (changed, misfit) = (Notify::new(), Notify::new());
        let state = State { lanes: vec![(0, 0); lanes.names().len()], ..State::default() };
        Self { generation, lanes, state: Mutex::new(state), changed, misfit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Records the arrival of a message.
    pub fn arrive(&self, tag: u64, source: Source, message: Incoming) {
        if let Some(group) = &message.group {
            self.lanes.arrived(group, source.lane);
        }
        let mut state = self.state();
        let (held, last_tag) = &mut state.lanes[source.lane];
        (*held, *last_tag) = (*held + 1, tag);
        if let Some(consumer) = state.consumers.get_mut(&source.consumer) {
            consumer.unsettled += 1;
        }
        state.arrived.insert(tag, Arrived { message, source });
        state.arrived_since = true;
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
        state.consumers.clear();
        state.lanes.fill((0, 0));
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
        let is_old = state.divided.is_none_or(|divided| divided.elapsed() >= DIVIDE_EVERY);
        state.is_due |= state.lanes.len() > 1 && state.arrived_since && is_old;
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
            && let Some((tag, Arrived { message, source })) = state.arrived.pop_first()
        {
            state.handed_out.insert(tag, source);
            deliveries.push(Delivery {
                body: message.body,
                receipt: self.receipt(tag),
                receive_count: message.receive_count,
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
            .filter(|receipt| !self.tag(receipt).is_some_and(|tag| state.handed_out.contains_key(&tag)))
            .cloned()
            .collect()
    }

    /// Ends the leases of these receipts. Returns the frames to send, and the receipts that were already lost.
    pub fn settle(&self, receipts: &[Receipt]) -> (Vec<Settlement>, Vec<Receipt>) {
        let mut state = self.state();
        let (mut tags, mut lost, mut seen) = (BTreeSet::new(), Vec::new(), HashSet::new());
        for receipt in receipts {
            match self.tag(receipt).map(|tag| (tag, state.handed_out.remove(&tag))) {
                Some((tag, Some(source))) => {
                    state.forget(source);
                    tags.insert(tag);
                    seen.insert(tag);
                }
                Some((tag, None)) if seen.contains(&tag) => {}
                _ => lost.push(receipt.clone()),
            }
        }
        (state.settled.settle(&tags), lost)
    }

    /// Settles all waiting messages. Returns the frames to send.
    pub fn settle_arrived(&self) -> Vec<Settlement> {
        let tags = self.take_arrived().into_iter().map(|(tag, ..)| tag).collect();
        self.settle_tags(&tags)
    }

    /// Takes all waiting messages: tags, lanes and messages. The caller settles the tags.
    pub fn take_arrived(&self) -> Vec<(u64, usize, Incoming)> {
        let mut state = self.state();
        let arrived = std::mem::take(&mut state.arrived);
        arrived.values().for_each(|arrived| state.forget(arrived.source));
        arrived.into_iter().map(|(tag, Arrived { message, source })| (tag, source.lane, message)).collect()
    }

    /// Returns the frames that settle these tags.
    pub fn settle_tags(&self, tags: &BTreeSet<u64>) -> Vec<Settlement> {
        self.state().settled.settle(tags)
    }

    /// Returns whether the broker still sends although a caller has stopped receiving.
    pub fn is_stopping(&self) -> bool {
        matches!(self.fit(), Fit::Stop)
    }

    /// Returns whether the broker sends as many messages as the current receives request.
    pub fn satisfied(&self) -> bool {
        let state = self.state();
        state.missing() <= state.free(None)
    }

    /// Returns how the subscription should change.
    pub fn fit(&self) -> Fit {
        let state = self.state();
        let is_stopped = state.wanted == 0 && !state.consumers.is_empty();
        let is_misfit = state.wanted > 0 && (state.missing() > state.free(None) || state.is_oversized());
        if state.ended.is_some() {
            Fit::Ended
        } else if is_stopped && (state.enough || state.listening && !state.arrived.is_empty()) {
            Fit::Stop
        } else if is_misfit || state.is_due {
            Fit::Divide
        } else if state.wanted > 0 && state.is_hungry() {
            match state.divided.map(|divided| divided + LOOK_PAUSE) {
                Some(moment) if moment > Instant::now() => Fit::DivideAt(moment),
                _ => Fit::Divide,
            }
        } else if state.wanted == 0 && !state.arrived.is_empty() {
            Fit::Idle(IDLE_MAX)
        } else if is_stopped && state.listening {
            Fit::Idle(LISTEN_MAX)
        } else if is_stopped {
            Fit::Idle(IDLE_MAX)
        } else {
            Fit::Right
        }
    }

    /// Divides the current request between the lanes. `ready`: how many messages each lane could send.
    pub fn divide(&self, ready: &[usize]) -> Vec<Change> {
        let mut state = self.state();
        let lanes: Vec<Lane> = (0..ready.len())
            .map(|lane| Lane {
                ready: ready[lane],
                held: state.lanes[lane].0,
                free: state.free(Some(lane)),
                capacity: state.capacity(Some(lane)),
                parts: self.lanes.parts(lane, ready[lane]),
                turn: state.lanes[lane].1,
            })
            .collect();
        let missing = if state.wanted == 0 { 0 } else { state.missing() };
        let changes = divide(&lanes, missing, state.wanted > 0 && state.is_oversized());
        if missing > 0 {
            let sends = |(lane, change): (&Lane, &Change)| change.add + if change.cancel { 0 } else { lane.free };
            let sent: usize = lanes.iter().zip(&changes).map(sends).sum();
            state.listening = lanes.len() > 1 && sent > missing && ready.iter().all(|ready| *ready == 0);
        }
        (state.divided, state.arrived_since, state.is_due) = (Some(Instant::now()), false, false);
        changes
    }

    /// Records a consumer to which the broker will send. Returns its number.
    pub fn add_consumer(&self, lane: usize, prefetch: usize) -> u32 {
        let mut state = self.state();
        state.last_consumer += 1;
        let number = state.last_consumer;
        state.consumers.insert(number, Consumer { lane, prefetch, unsettled: 0 });
        number
    }

    /// Records that the broker sends nothing more to a consumer. Its messages stay leased.
    pub fn remove_consumer(&self, number: u32) {
        let mut state = self.state();
        state.consumers.remove(&number);
        state.listening &= !state.consumers.is_empty();
    }

    /// Returns whether the broker could still send messages of one of these lanes, given how many are ready in each.
    pub fn may_arrive(&self, lanes: &BTreeSet<usize>, ready: &[usize]) -> bool {
        let state = self.state();
        lanes.iter().any(|lane| ready[*lane] > 0 && state.free(Some(*lane)) > 0)
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
        let unwanted = state.wanted == 0 && (!state.arrived.is_empty() || !state.consumers.is_empty());
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
