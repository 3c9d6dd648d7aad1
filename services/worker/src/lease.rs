//! The leases of this node in the task queue.
//!
//! A lease is short, so the queue soon redelivers the mini-batches of a dead node. A mini-batch that ends within half a
//! lease costs no extension; the node extends the other leases again and again, all of them together. It never extends the
//! lease of a running mini-batch past the deadline, so the queue redelivers it if the node hangs. A lease that was not
//! extended in time is lost: the node stops the work under it and announces nothing.
//!
//! A suspended node, or one whose queue is unavailable, would learn of a loss too late. So the node also keeps the end
//! of each timed lease, counted from before the call that granted it, by a clock that goes on while the machine sleeps.
//! After that end the lease counts as lost.
//!
//! On SQLite and SQS a lease lasts eight seconds, and all leases of a node are extended in one call
//! every four: longer leases would save requests for slow mini-batches only, and delay the work of
//! a killed node. With leases of 30 s, its mini-batches began elsewhere after 32 s instead of 10, and
//! two processes with runs of a minute caused 6 of these requests a minute instead of 15. On
//! RabbitMQ a lease ends with its connection. `GRISTMILL_LEASE_SECONDS` lengthens
//! leases where networks fail for longer.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use queue::{Delivery, LeaseClock, Queue, Receipt, Receive};
use rustc_hash::{FxHashMap, FxHashSet};
use telemetry::metrics;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::retry::while_unavailable;

/// How long a lease lasts without an extension, and so how soon another node gets the mini-batches of a dead one. A queue
/// that does not answer for half of this time costs no work.
pub const LEASE_STEP: Duration = Duration::from_secs(8);
/// How long a request to the queue waits for the first message.
const RECEIVE_WAIT: Duration = Duration::from_secs(20);
/// Time between two checks of leases that end with their connection. A check costs no call.
const CHECK: Duration = Duration::from_secs(1);
const EXTENSION_MIN: Duration = Duration::from_secs(1);
/// Margin to the longest lease that the queue allows, because a delivery may have been leased a while before it
/// arrived.
const LEASE_MAX_MARGIN: Duration = Duration::from_secs(60);

/// Identifies a leased delivery within this node.
pub type LeaseId = u64;

#[derive(Debug)]
struct Lease {
    receipt: Receipt,
    since: Instant,
    /// When it expires without an extension; `None`: it does not expire by time.
    until: Option<Instant>,
    /// Reported as lost: an extension that succeeds later is ignored.
    lapsed: bool,
    /// When it may be extended next: a request without an answer is repeated later.
    not_before: Instant,
    /// Set when the attempt starts. By the clock of the scheduler, which stops while the machine is suspended.
    deadline: Option<Instant>,
}

impl Lease {
    fn has_lapsed(&mut self, now: Instant) -> bool {
        self.lapsed |= self.until.is_some_and(|until| until <= now);
        self.lapsed
    }
}

/// How leases are extended. Times are those of the lease clock.
#[derive(Clone, Copy, Debug)]
struct ExtensionTiming {
    step: Duration,
    /// How long the machine has been suspended.
    suspended: Duration,
    /// The longest time from the first lease of a delivery to the end of the last.
    lease_max: Option<Duration>,
}

impl ExtensionTiming {
    /// Returns when the lease is to be extended, halfway through, or checked; `None`: it already lasts as long as it may.
    fn due(&self, lease: &Lease) -> Option<Instant> {
        let Some(until) = lease.until else { return Some(lease.not_before) };
        let is_whole = self.end(lease).is_some_and(|end| until >= end);
        (!is_whole).then(|| (until - self.step / 2).max(lease.not_before))
    }

    /// Returns the time past which the lease is not extended.
    fn end(&self, lease: &Lease) -> Option<Instant> {
        let deadline = lease.deadline.map(|deadline| deadline + self.suspended);
        let ends = [deadline, self.lease_max.map(|lease_max| lease.since + lease_max)];
        ends.into_iter().flatten().min()
    }

    /// Returns for how long to extend the lease now, if it is due within a quarter of a step: leases that are extended
    /// together share requests.
    fn extension(&self, lease: &Lease, now: Instant) -> Option<Duration> {
        if lease.not_before > now || self.due(lease).is_none_or(|due| due > now + self.step / 4) {
            return None;
        }
        let left = self.end(lease).map_or(self.step, |end| end.saturating_duration_since(now));
        Some(left.min(self.step).max(EXTENSION_MIN))
    }
}

#[derive(Debug, Default)]
struct Table {
    next: LeaseId,
    held: FxHashMap<LeaseId, Lease>,
    /// No lease ends before this time; `None`: none ends by time.
    first_end: Option<Instant>,
}

/// All leases of one agent. Clones share one table.
#[derive(Clone, Debug)]
pub struct Leases {
    /// Duration of one extension.
    step: Duration,
    timed: bool,
    clock: LeaseClock,
    table: Arc<Mutex<Table>>,
    /// Notified when a lease must be extended before the next round.
    urgent: Arc<Notify>,
}

/// The answer to a request for extensions.
struct ExtensionResult {
    requested: Instant,
    leases: Vec<(LeaseId, (Receipt, Duration))>,
    answer: Result<Vec<Receipt>>,
}

impl Leases {
    /// Creates an empty table. `timed`: as in the limits of the queue.
    pub fn new(step: Duration, timed: bool) -> Self {
        Self {
            step,
            timed,
            clock: LeaseClock::System,
            table: Arc::default(),
            urgent: Arc::default(),
        }
    }

    /// Counts by this clock.
    #[cfg(test)]
    fn by(self, clock: LeaseClock) -> Self {
        Self { clock, ..self }
    }

    /// Requests messages, each leased for one step, and retries without end while the queue is unavailable.
    pub async fn receive(&self, tasks: &dyn Queue, messages_max: usize) -> Result<Vec<Delivery>> {
        let request = Receive { messages_max, visibility: self.step, wait: RECEIVE_WAIT };
        while_unavailable("receive from the task queue", None, || tasks.receive(request)).await
    }

    /// Adds a delivery, which is leased for one step from `leased_at`.
    pub fn hold(&self, receipt: Receipt, leased_at: Instant) -> LeaseId {
        let now = self.clock.now();
        let until = self.timed.then(|| leased_at + self.step);
        // The delivery has waited for long.
        if until.is_some_and(|until| until <= now + self.step / 2) {
            self.urgent.notify_one();
        }
        let mut table = self.lock();
        let id = table.next;
        table.next += 1;
        table.first_end = [table.first_end, until].into_iter().flatten().min();
        let not_before = if self.timed { now } else { now + CHECK };
        table.held.insert(
            id,
            Lease { receipt, since: now, until, lapsed: false, not_before, deadline: None },
        );
        id
    }

    /// Notes that the attempt starts and must end by `deadline`.
    pub fn start(&self, id: LeaseId, deadline: Instant) {
        self.set_deadline(id, Some(deadline));
    }

    /// Notes that the mini-batch waits for another run, after one that has ended.
    pub fn wait(&self, id: LeaseId) {
        self.set_deadline(id, None);
    }

    fn set_deadline(&self, id: LeaseId, deadline: Option<Instant>) {
        let timing = self.timing(None);
        if let Some(lease) = self.lock().held.get_mut(&id) {
            let was_whole = timing.due(lease).is_none();
            lease.deadline = deadline;
            // No round is planned for it.
            if self.timed && was_whole && timing.due(lease).is_some() {
                self.urgent.notify_one();
            }
        }
    }

    /// Returns the receipt, unless the lease is lost.
    pub fn receipt(&self, id: LeaseId) -> Option<Receipt> {
        let now = self.clock.now();
        let mut table = self.lock();
        let lease = table.held.get_mut(&id)?;
        (!lease.has_lapsed(now)).then(|| lease.receipt.clone())
    }

    /// Removes and returns the lapsed leases, in order. Costs little if none has lapsed.
    pub fn lapsed(&self) -> Vec<LeaseId> {
        if self.lock().first_end.is_none_or(|end| end > self.clock.now()) {
            return Vec::new();
        }
        let mut lapsed = self.take_lapsed();
        metrics().leases_lost.inc_by(lapsed.len() as u64);
        lapsed.sort_unstable();
        lapsed
    }

    /// Removes a delivery that was acknowledged or returned.
    pub fn end(&self, id: LeaseId) {
        self.lock().held.remove(&id);
    }

    /// Stops extending the leases of mini-batches, and returns their receipts. Leaves out lost leases.
    pub fn release<T>(&self, held: Vec<(LeaseId, T)>) -> Vec<(Receipt, T)> {
        let release = |(lease, mini_batch)| {
            let receipt = self.receipt(lease)?;
            self.end(lease);
            Some((receipt, mini_batch))
        };
        held.into_iter().filter_map(release).collect()
    }

    /// Returns the number of leases.
    pub fn count(&self) -> usize {
        self.lock().held.len()
    }

    /// Extends all leases until the guard is dropped. Calls `lost` for each lost lease.
    ///
    /// A round looks at every lease. There are a few rounds in each step, however many mini-batches come and go, so an
    /// order by due time, which changes with every deadline and every sleep of the machine, would save nothing.
    pub fn keep(
        &self,
        tasks: Arc<dyn Queue>,
        lost: impl Fn(LeaseId) + Send + 'static,
    ) -> AbortOnDropHandle<()> {
        let leases = self.clone();
        let keeping = async move {
            let lease_max = tasks
                .limits()
                .lease_max
                .map(|lease_max| lease_max.saturating_sub(LEASE_MAX_MARGIN));
            let mut unanswered = FuturesUnordered::new();
            loop {
                let round = leases.next_round(leases.timing(lease_max));
                let wake = leases.first_end().map_or(round, |end| end.min(round));
                let mut ended = tokio::select! {
                    biased;
                    Some(extended) = unanswered.next() => leases.extended(extended),
                    () = sleep_until(leases.clock.awake_at(wake)) => Vec::new(),
                    () = leases.urgent.notified() => Vec::new(),
                };
                ended.extend(leases.take_lapsed());
                let now = leases.clock.now();
                let due = leases.take_due(leases.timing(lease_max), now);
                if !due.is_empty() {
                    unanswered.push(extend(tasks.clone(), now, due, leases.step));
                }
                ended.sort_unstable();
                metrics().leases_lost.inc_by(ended.len() as u64);
                for id in ended {
                    lost(id);
                }
            }
        };
        AbortOnDropHandle::new(tokio::spawn(keeping.in_current_span()))
    }

    fn timing(&self, lease_max: Option<Duration>) -> ExtensionTiming {
        ExtensionTiming { step: self.step, suspended: self.clock.suspended(), lease_max }
    }

    /// Returns when leases are next to be extended or checked. A delivery that arrives before is not due earlier.
    fn next_round(&self, timing: ExtensionTiming) -> Instant {
        let next = self.clock.now() + if self.timed { self.step / 2 } else { CHECK };
        let table = self.lock();
        table.held.values().filter_map(|lease| timing.due(lease)).fold(next, Instant::min)
    }

    /// Returns the leases to extend, if one of them is due now. Unless an answer comes, they are due again soon, because
    /// the connection of the request may be broken.
    fn take_due(
        &self,
        timing: ExtensionTiming,
        now: Instant,
    ) -> Vec<(LeaseId, (Receipt, Duration))> {
        let mut table = self.lock();
        if !table.held.values().any(|lease| timing.due(lease).is_some_and(|due| due <= now)) {
            return Vec::new();
        }
        let repeat = if self.timed { self.step / 4 } else { CHECK };
        let take = |(id, lease): (&LeaseId, &mut Lease)| {
            let extension = (lease.receipt.clone(), timing.extension(lease, now)?);
            lease.not_before = now + repeat;
            Some((*id, extension))
        };
        table.held.iter_mut().filter_map(take).collect()
    }

    /// Records an answer. Returns the lost leases.
    fn extended(
        &self,
        ExtensionResult { requested, leases, answer }: ExtensionResult,
    ) -> Vec<LeaseId> {
        let mut table = self.lock();
        let lost = match answer {
            Ok(lost) => lost.into_iter().collect::<FxHashSet<_>>(),
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "cannot extend {} leases, retrying", leases.len());
                let not_before = self.clock.now() + self.step / 8;
                for (id, _) in leases {
                    table.held.entry(id).and_modify(|lease| lease.not_before = not_before);
                }
                return Vec::new();
            }
        };
        let mut ended = Vec::new();
        for (id, (receipt, duration)) in leases {
            if lost.contains(&receipt) {
                ended.extend(table.held.remove(&id).map(|_| id));
            } else if self.timed
                && let Some(lease) = table.held.get_mut(&id)
            {
                // An answer to an earlier request may arrive later.
                lease.until = lease.until.max(Some(requested + duration));
            }
        }
        ended
    }

    fn first_end(&self) -> Option<Instant> {
        self.lock().look_for_first_end()
    }

    fn take_lapsed(&self) -> Vec<LeaseId> {
        let now = self.clock.now();
        let mut table = self.lock();
        let lapsed =
            table.held.extract_if(|_, lease| lease.has_lapsed(now)).map(|(id, _)| id).collect();
        table.look_for_first_end();
        lapsed
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder of the lock panics")
    }
}

/// Extends leases. An answer that takes longer than a step comes too late.
async fn extend(
    tasks: Arc<dyn Queue>,
    requested: Instant,
    leases: Vec<(LeaseId, (Receipt, Duration))>,
    step: Duration,
) -> ExtensionResult {
    let extensions: Vec<_> = leases.iter().map(|(_, extension)| extension.clone()).collect();
    let answer =
        timeout(step, tasks.extend(&extensions)).await.context("the queue does not answer");
    ExtensionResult {
        requested,
        leases,
        answer: answer.and_then(|answer| answer.map_err(Into::into)),
    }
}

impl Table {
    fn look_for_first_end(&mut self) -> Option<Instant> {
        self.first_end = self.held.values().filter_map(|lease| lease.until).min();
        self.first_end
    }
}

#[cfg(test)]
mod tests;
