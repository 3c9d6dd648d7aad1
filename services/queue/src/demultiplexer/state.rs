//! The state of a demultiplexer: the requests of readers and the deliveries that wait for them. No I/O.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::{Arrival, DemultiplexerOptions, Unreadable};
use crate::clock::deadline;
use crate::{Delivery, Error, Queue, Receipt, Receive};

/// Maximum number of deliveries that wait without a reader that asks for them; with more, receiving stops.
const UNASKED_MAX: usize = 64;

/// The state, and the notifications of its changes.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) options: DemultiplexerOptions,
    state: Mutex<State>,
    /// Wakes the receiving loop.
    pub(super) asked: Notify,
    /// Wakes the readers.
    pub(super) answered: Notify,
    /// A look has found messages that no reader asks for, or a reader has ended while it held some.
    pub(super) found: Notify,
    arrivals: OnceLock<mpsc::Sender<Arrival>>,
}

#[derive(Debug)]
struct State {
    groups: BTreeMap<String, Group>,
    /// Messages that ended readers still held, where leases do not expire.
    abandoned: Vec<Receipt>,
    asks: BTreeMap<u64, Ask>,
    last_ask: u64,
    idle_wish: usize,
    paused_until: Option<Instant>,
    /// When the next look for other groups is due, unless the queue is asked before.
    look_at: Instant,
    /// The current receive is a look for other groups.
    is_look: bool,
    /// The last ask that the current receive covers; `None` while there is no receive.
    receiving_for: Option<u64>,
    /// Receiving has stopped, possibly because of this error.
    stopped: Option<Option<Error>>,
    /// When a delivery last arrived or left.
    changed_at: Instant,
}

#[derive(Debug, Default)]
struct Group {
    has_view: bool,
    waiting: VecDeque<Arrived>,
    /// Deliveries that the reader of the view holds.
    handed: HashSet<Receipt>,
    /// When a delivery last arrived or left.
    changed_at: Option<Instant>,
}

/// A waiting delivery and its lease.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) delivery: Delivery,
    received_at: Instant,
    /// A look has found it, and its reader did not ask for it.
    is_unasked: bool,
    pub(super) leased_until: Instant,
}

/// A waiting reader.
#[derive(Debug)]
struct Ask {
    group: String,
    messages_max: usize,
    visibility: Duration,
    deadline: Instant,
    /// A receive that covers it has ended.
    was_polled: bool,
    failure: Option<Error>,
}

/// The next step of the receiving loop.
pub(super) enum Poll {
    Receive(Receive),
    /// Wait until this moment.
    WaitUntil(Instant),
    /// Wait for a request.
    Wait,
    /// Wait for a request until this moment.
    WaitOrLook(Instant),
}

/// The answer to a reader.
pub(super) enum Answer {
    Deliveries(Vec<Arrived>),
    Failed(Error),
    Empty,
    /// Ask again after a change, or at the deadline.
    Wait,
}

impl Shared {
    pub(super) fn new(queue: Arc<dyn Queue>, options: DemultiplexerOptions) -> Self {
        let state = State {
            groups: BTreeMap::new(),
            abandoned: Vec::new(),
            asks: BTreeMap::new(),
            last_ask: 0,
            idle_wish: options.idle_wish,
            paused_until: None,
            look_at: Instant::now(),
            is_look: false,
            receiving_for: None,
            stopped: None,
            changed_at: Instant::now(),
        };
        let [asked, answered, found] = std::array::from_fn(|_| Notify::new());
        Self { queue, options, state: Mutex::new(state), asked, answered, found, arrivals: OnceLock::new() }
    }

    pub(super) fn set_arrivals(&self, arrivals: mpsc::Sender<Arrival>) {
        let _ = self.arrivals.set(arrivals);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the lock panics")
    }

    // ---- readers ---------------------------------------------------------------------------------------------

    pub(super) fn ask(&self, group: &str, request: Receive) -> u64 {
        let mut state = self.lock();
        state.last_ask += 1;
        let (id, deadline) = (state.last_ask, deadline(request.wait));
        let Receive { messages_max, visibility, .. } = request;
        let group = group.to_owned();
        state.asks.insert(id, Ask { group, messages_max, visibility, deadline, was_polled: false, failure: None });
        drop(state);
        self.asked.notify_one();
        id
    }

    pub(super) fn end_ask(&self, id: u64) {
        self.lock().asks.remove(&id);
    }

    pub(super) fn answer(&self, id: u64) -> Answer {
        let state = &mut *self.lock();
        let ask = &state.asks[&id];
        if let Some(group) = state.groups.get_mut(&ask.group).filter(|group| !group.waiting.is_empty()) {
            let taken = ask.messages_max.min(group.waiting.len());
            let taken: Vec<Arrived> = group.waiting.drain(..taken).collect();
            group.handed.extend(taken.iter().map(|arrived| arrived.delivery.receipt.clone()));
            // Under the same lock, so that nothing more is received for an answered ask.
            state.asks.remove(&id);
            self.asked.notify_one();
            return Answer::Deliveries(taken);
        }
        if let Some(error) = &ask.failure {
            return Answer::Failed(error.clone());
        }
        if let Some(Some(error)) = &state.stopped {
            return Answer::Failed(error.clone());
        }
        // Even a reader that does not wait needs one receive; one that is in progress counts.
        let now = Instant::now();
        let has_looked = ask.was_polled
            || state.receiving_for.is_some_and(|last| last < id)
            || state.stopped.is_some()
            || state.paused_until.is_some_and(|until| until > now);
        if now >= ask.deadline && has_looked { Answer::Empty } else { Answer::Wait }
    }

    /// Puts back deliveries that a reader could not take.
    pub(super) fn put_back(&self, group: &str, arrived: Vec<Arrived>) {
        let mut state = self.lock();
        let group = state.groups.entry(group.to_owned()).or_default();
        for arrived in arrived.into_iter().rev() {
            group.handed.remove(&arrived.delivery.receipt);
            group.waiting.push_front(arrived);
        }
        drop(state);
        self.answered.notify_waiters();
    }

    /// Records that a reader no longer holds these deliveries.
    pub(super) fn ended<'a>(&self, group: &str, receipts: impl IntoIterator<Item = &'a Receipt>) {
        let state = &mut *self.lock();
        let Some(group) = state.groups.get_mut(group) else { return };
        for receipt in receipts {
            group.handed.remove(receipt);
        }
        state.changed_at = Instant::now();
        group.changed_at = Some(state.changed_at);
    }

    pub(super) fn group_quiet_since(&self, group: &str) -> Option<Instant> {
        let state = self.lock();
        let group = state.groups.get(group)?;
        let is_quiet = group.waiting.is_empty() && group.handed.is_empty();
        group.changed_at.filter(|_| is_quiet)
    }

    /// Returns since when a delivery has waited for a view of its group; `None`: none waits.
    pub(super) fn unviewed_since(&self, group: &str) -> Option<Instant> {
        let state = self.lock();
        let group = state.groups.get(group).filter(|group| !group.has_view)?;
        group.waiting.iter().map(|arrived| arrived.received_at).min()
    }

    // ---- the owner -------------------------------------------------------------------------------------------

    pub(super) fn open(&self, name: &str) {
        let mut state = self.lock();
        let group = state.groups.entry(name.to_owned()).or_default();
        group.has_view = true;
        let now = Instant::now();
        group.changed_at = Some(now);
        // Its reader is about to ask.
        state.look_at = now + self.options.look_every.unwrap_or_default();
        drop(state);
        self.asked.notify_one();
        self.answered.notify_waiters();
    }

    pub(super) fn close(&self, name: &str) {
        let mut state = self.lock();
        let Some(group) = state.groups.get_mut(name) else { return };
        group.has_view = false;
        let held = std::mem::take(&mut group.handed);
        if !self.queue.limits().timed_lease && !held.is_empty() {
            state.abandoned.extend(held);
            self.found.notify_one();
        }
        self.without_view(name, state);
    }

    pub(super) fn take_abandoned(&self) -> Vec<Receipt> {
        std::mem::take(&mut self.lock().abandoned)
    }

    pub(super) fn take_unviewed(&self, name: &str, received_before: Option<Instant>) -> Vec<Delivery> {
        let mut state = self.lock();
        state.changed_at = Instant::now();
        let Some(group) = state.groups.get_mut(name).filter(|group| !group.has_view) else { return Vec::new() };
        let is_meant = |arrived: &Arrived| received_before.is_none_or(|moment| arrived.received_at < moment);
        let (taken, left): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut group.waiting).into_iter().partition(is_meant);
        group.waiting = left;
        self.without_view(name, state);
        taken.into_iter().map(|arrived| arrived.delivery).collect()
    }

    /// Forgets a group without a view once nothing waits for it; until then it tells the owner of the group.
    fn without_view(&self, name: &str, mut state: MutexGuard<'_, State>) {
        let is_empty = state.groups.get(name).is_none_or(|group| group.waiting.is_empty());
        if is_empty {
            state.groups.remove(name);
        }
        drop(state);
        self.asked.notify_one();
        if !is_empty {
            self.tell_again(name);
        }
    }

    /// Reports a known group to the owner again.
    fn tell_again(&self, name: &str) {
        let Some(arrivals) = self.arrivals.get().cloned() else { return };
        let arrival = Arrival::NewGroup(name.to_owned());
        if let Err(mpsc::error::TrySendError::Full(arrival)) = arrivals.try_send(arrival) {
            tokio::spawn(async move { arrivals.send(arrival).await });
        }
    }

    pub(super) fn pause_until(&self, moment: Instant) {
        let mut state = self.lock();
        state.paused_until = Some(state.paused_until.map_or(moment, |until| until.max(moment)));
    }

    pub(super) fn set_idle_wish(&self, messages: usize) {
        self.lock().idle_wish = messages;
        self.asked.notify_one();
    }

    pub(super) fn quiet_since(&self) -> Option<Instant> {
        let state = self.lock();
        let is_quiet = state.groups.values().all(|group| group.waiting.is_empty() && group.handed.is_empty());
        is_quiet.then_some(state.changed_at)
    }

    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.receiving_for = None;
        state.stopped.get_or_insert(None);
        drop(state);
        self.answered.notify_waiters();
    }

    pub(super) fn take_all(&self) -> Vec<(String, Vec<Delivery>)> {
        self.take_waiting(|_, _| true)
    }

    // ---- receiving -------------------------------------------------------------------------------------------

    pub(super) fn next_poll(&self) -> Poll {
        let state = &mut *self.lock();
        let now = Instant::now();
        if let Some(until) = state.paused_until {
            if until > now {
                return Poll::WaitUntil(until);
            }
            state.paused_until = None;
        }
        let unviewed = state.groups.values().filter(|group| !group.has_view);
        let for_nobody: usize = unviewed.map(|group| group.waiting.len()).sum();
        let asks = || state.asks.values().filter(|ask| !ask.was_polled || ask.deadline > now);
        let mut asked_of: BTreeMap<&str, usize> = BTreeMap::new();
        for ask in asks() {
            let asked = asked_of.entry(&ask.group).or_default();
            *asked = asked.saturating_add(ask.messages_max);
        }
        let waiting_of = |group: &str| state.groups.get(group).map_or(0, |group| group.waiting.len());
        let missing = asked_of.iter().map(|(group, asked)| asked.saturating_sub(waiting_of(group)));
        let missing = missing.fold(0, usize::saturating_add);
        let excess = |(name, group): (&String, &Group)| {
            group.waiting.len().saturating_sub(asked_of.get(name.as_str()).copied().unwrap_or(0))
        };
        // Deliveries of other groups do not stop receiving, unless there are too many.
        let unasked: usize = state.groups.iter().map(excess).sum();
        let asked = if unasked < UNASKED_MAX { missing } else { 0 };
        // Readers that pause between two asks expect to find more immediately afterwards.
        let has_views = state.groups.values().any(|group| group.has_view);
        let idle_wish = if has_views { 0 } else { state.idle_wish.saturating_sub(for_nobody) };
        let look_every = self.options.look_every.filter(|_| has_views && missing == 0 && unasked < UNASKED_MAX);
        state.is_look = look_every.is_some() && state.look_at <= now;
        let messages_max = asked.max(idle_wish).max(usize::from(state.is_look));
        if messages_max == 0 {
            // A reader that gets nothing now waits no longer than it asked to.
            state.asks.values_mut().for_each(|ask| ask.was_polled = true);
            self.answered.notify_waiters();
            return if look_every.is_some() { Poll::WaitOrLook(state.look_at) } else { Poll::Wait };
        }
        let visibility = asks().map(|ask| ask.visibility).max().unwrap_or(self.options.lease);
        let wait = asks().map(|ask| ask.deadline.saturating_duration_since(now)).min();
        let wait = wait.map_or(self.options.poll_wait, |wait| wait.min(self.options.poll_wait));
        let wait = if state.is_look { Duration::ZERO } else { wait };
        state.receiving_for = Some(state.last_ask);
        Poll::Receive(Receive { messages_max, visibility, wait })
    }

    /// Sorts deliveries by group, and returns the events for the owner.
    pub(super) fn arrived(&self, deliveries: Vec<Delivery>, visibility: Duration) -> Vec<Arrival> {
        let mut state = self.lock();
        state.was_polled(None);
        let now = Instant::now();
        let is_look = std::mem::take(&mut state.is_look);
        if let Some(every) = self.options.look_every {
            state.look_at = now + every;
        }
        let mut arrivals = Vec::new();
        for delivery in deliveries {
            state.changed_at = now;
            let name = match (self.options.group_of)(&delivery.body) {
                Ok(name) => name,
                Err(Unreadable(reason)) => {
                    arrivals.push(Arrival::Unreadable { delivery, reason });
                    continue;
                }
            };
            let group = match state.groups.get_mut(&name) {
                Some(group) => group,
                None => {
                    arrivals.push(Arrival::NewGroup(name.clone()));
                    state.groups.entry(name).or_default()
                }
            };
            group.changed_at = Some(now);
            let is_unasked = is_look && group.has_view;
            if is_unasked {
                self.found.notify_one();
            }
            let leased_until = delivery.leased_at + visibility;
            group.waiting.push_back(Arrived { delivery, received_at: now, is_unasked, leased_until });
        }
        drop(state);
        self.answered.notify_waiters();
        arrivals
    }

    pub(super) fn failed(&self, error: &Error) {
        let mut state = self.lock();
        state.was_polled(Some(error));
        if !matches!(error, Error::Unavailable { .. }) {
            state.stopped = Some(Some(error.clone()));
        }
        drop(state);
        self.answered.notify_waiters();
    }

    // ---- leases ----------------------------------------------------------------------------------------------

    /// Returns the leases of waiting deliveries that end before this time.
    pub(super) fn ending_before(&self, end: Instant) -> Vec<Receipt> {
        let state = self.lock();
        let waiting = state.groups.values().flat_map(|group| &group.waiting);
        waiting.filter(|one| one.leased_until < end).map(|one| one.delivery.receipt.clone()).collect()
    }

    /// Records that the lease of these waiting deliveries was extended at this time of the lease clock, except those lost.
    pub(super) fn extended(&self, at: Instant, extended: &[(Receipt, Duration)], lost: &[Receipt]) {
        let extended: HashSet<&Receipt> = extended.iter().map(|(receipt, _)| receipt).collect();
        let lost: HashSet<&Receipt> = lost.iter().collect();
        for group in self.lock().groups.values_mut() {
            group.waiting.retain(|arrived| !lost.contains(&arrived.delivery.receipt));
            for arrived in group.waiting.iter_mut().filter(|one| extended.contains(&one.delivery.receipt)) {
                arrived.leased_until = at + self.options.lease;
                arrived.delivery.leased_at = at;
            }
        }
        self.asked.notify_one();
    }

    /// Takes the deliveries that have waited too long for the reader of their view.
    pub(super) fn take_excess(&self) -> Vec<(String, Vec<Delivery>)> {
        let Some(hold_max) = self.options.hold_max else { return Vec::new() };
        let is_excess = |arrived: &Arrived| arrived.is_unasked || arrived.received_at.elapsed() >= hold_max;
        self.take_waiting(|group, arrived| group.has_view && is_excess(arrived))
    }

    fn take_waiting(&self, is_meant: impl Fn(&Group, &Arrived) -> bool) -> Vec<(String, Vec<Delivery>)> {
        let mut taken = Vec::new();
        for (name, group) in &mut self.lock().groups {
            let waiting = std::mem::take(&mut group.waiting);
            let (meant, left): (VecDeque<_>, VecDeque<_>) =
                waiting.into_iter().partition(|arrived| is_meant(group, arrived));
            group.waiting = left;
            if !meant.is_empty() {
                taken.push((name.clone(), meant.into_iter().map(|arrived| arrived.delivery).collect()));
            }
        }
        self.asked.notify_one();
        taken
    }
}

impl State {
    /// Records the end of the current receive.
    fn was_polled(&mut self, error: Option<&Error>) {
        let Some(last) = self.receiving_for.take() else { return };
        for ask in self.asks.range_mut(..=last).map(|(_, ask)| ask) {
            ask.was_polled = true;
            ask.failure = error.cloned();
        }
    }
}
