//! The leases of this node in the task queue.
//!
//! The node extends every lease in short steps, so the queue redelivers the mini-batches of a dead node within one
//! step. It never extends the lease of a running mini-batch past the deadline, so the queue redelivers it if the node
//! hangs. A lease that was not extended in time is lost: the node stops the work under it and announces nothing.
//!
//! A suspended node, or one whose queue is unavailable, would learn of a loss too late. So the node also keeps the end
//! of each timed lease, counted from before the call that granted it. After that end the lease counts as lost.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;
use queue::{Delivery, Queue, Receipt, Receive};
use rustc_hash::FxHashMap;
use telemetry::metrics;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::retry::while_unavailable;

/// How long a request to the queue waits for the first message.
const RECEIVE_WAIT: Duration = Duration::from_secs(20);
/// Extensions in one step: two may fail before a lease lapses.
const HEARTBEATS_PER_STEP: u32 = 3;
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
    /// Its end, unless it is extended; `None`: it does not end by time.
    until: Option<Instant>,
    /// Reported as lost: an extension that succeeds later is ignored.
    lapsed: bool,
    /// Set when the attempt starts.
    deadline: Option<Instant>,
}

impl Lease {
    fn has_lapsed(&mut self, now: Instant) -> bool {
        self.lapsed |= self.until.is_some_and(|until| until <= now);
        self.lapsed
    }
}

#[derive(Debug, Default)]
struct Table {
    next: LeaseId,
    held: FxHashMap<LeaseId, Lease>,
    /// No lease ends before this time; `None`: none ends by time.
    first_end: Option<Instant>,
}

/// Messages that the queue has leased to this node for one step.
#[derive(Debug)]
pub struct Received {
    /// When the node requested them. The leases began at this moment or later.
    pub requested: Instant,
    /// The messages.
    pub deliveries: Vec<Delivery>,
}

/// All leases of one agent. Clones share one table.
#[derive(Clone, Debug)]
pub struct Leases {
    /// Duration of one extension.
    step: Duration,
    timed: bool,
    table: Arc<Mutex<Table>>,
    /// Notified when a lease must be extended before the next round.
    urgent: Arc<Notify>,
}

impl Leases {
    /// Creates an empty table. `timed`: as in the limits of the queue.
    pub fn new(step: Duration, timed: bool) -> Self {
        Self { step, timed, table: Arc::default(), urgent: Arc::default() }
    }

    /// Requests messages, and retries without end while the queue is unavailable.
    pub async fn receive(&self, tasks: &dyn Queue, messages_max: usize) -> Result<Received> {
        let request = Receive { messages_max, visibility: self.step, wait: RECEIVE_WAIT };
        let receive = || async {
            let requested = Instant::now();
            tasks.receive(request).await.map(|deliveries| Received { requested, deliveries })
        };
        while_unavailable("receive from the task queue", None, receive).await
    }

    /// Adds a delivery, which was requested at `requested` and is leased for one step.
    pub fn hold(&self, receipt: Receipt, requested: Instant) -> LeaseId {
        let now = Instant::now();
        let until = self.timed.then(|| requested + self.step);
        // It arrived at the end of a long wait, and its lease may have begun with the request.
        if until.is_some_and(|until| until < now + self.heartbeat() * (HEARTBEATS_PER_STEP - 1)) {
            self.urgent.notify_one();
        }
        let mut table = self.lock();
        let id = table.next;
        table.next += 1;
        table.first_end = [table.first_end, until].into_iter().flatten().min();
        table.held.insert(id, Lease { receipt, since: now, until, lapsed: false, deadline: None });
        id
    }

    /// Notes that the attempt starts and must end by `deadline`.
    pub fn start(&self, id: LeaseId, deadline: Instant) {
        if let Some(lease) = self.lock().held.get_mut(&id) {
            lease.deadline = Some(deadline);
        }
    }

    /// Notes that the mini-batch waits for another run, after one that has ended.
    pub fn wait(&self, id: LeaseId) {
        let next_round = Instant::now() + self.heartbeat();
        if let Some(lease) = self.lock().held.get_mut(&id) {
            lease.deadline = None;
            if lease.until.is_some_and(|until| until < next_round) {
                self.urgent.notify_one();
            }
        }
    }

    /// Returns the receipt, unless the lease is lost.
    pub fn receipt(&self, id: LeaseId) -> Option<Receipt> {
        let mut table = self.lock();
        let lease = table.held.get_mut(&id)?;
        (!lease.has_lapsed(Instant::now())).then(|| lease.receipt.clone())
    }

    /// Removes and returns the lapsed leases, in order. Costs little if none has lapsed.
    pub fn lapsed(&self) -> Vec<LeaseId> {
        if self.lock().first_end.is_none_or(|end| end > Instant::now()) {
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
    pub fn keep(&self, tasks: Arc<dyn Queue>, lost: impl Fn(LeaseId) + Send + 'static) -> AbortOnDropHandle<()> {
        let leases = self.clone();
        let heartbeat = if self.timed { self.heartbeat() } else { self.heartbeat().min(CHECK) };
        let keeping = async move {
            let mut next = Instant::now() + heartbeat;
            loop {
                tokio::select! {
                    () = sleep_until(leases.first_end().map_or(next, |end| end.min(next))) => {}
                    () = leases.urgent.notified() => {}
                }
                let (extended, mut ended) = leases.extend(&*tasks).await;
                ended.sort_unstable();
                // While the queue is unavailable, leases get closer to their end, so the next try comes sooner.
                next = Instant::now() + if extended { heartbeat } else { heartbeat / HEARTBEATS_PER_STEP };
                metrics().leases_lost.inc_by(ended.len() as u64);
                for id in ended {
                    lost(id);
                }
            }
        };
        AbortOnDropHandle::new(tokio::spawn(keeping.in_current_span()))
    }

    fn heartbeat(&self) -> Duration {
        self.step / HEARTBEATS_PER_STEP
    }

    fn first_end(&self) -> Option<Instant> {
        self.lock().look_for_first_end()
    }

    fn take_lapsed(&self) -> Vec<LeaseId> {
        let now = Instant::now();
        let mut table = self.lock();
        let lapsed = table.held.extract_if(|_, lease| lease.has_lapsed(now)).map(|(id, _)| id).collect();
        table.look_for_first_end();
        lapsed
    }

    /// Extends all leases. Returns whether the queue answered, and the lost leases.
    async fn extend(&self, tasks: &dyn Queue) -> (bool, Vec<LeaseId>) {
        let mut lost = self.take_lapsed();
        let now = Instant::now();
        let lease_max = tasks.limits().lease_max.map(|lease_max| lease_max.saturating_sub(LEASE_MAX_MARGIN));
        let extensions: FxHashMap<LeaseId, (Receipt, Duration)> = self
            .lock()
            .held
            .iter()
            .map(|(id, lease)| {
                let ends = [lease.deadline, lease_max.map(|lease_max| lease.since + lease_max)];
                let end = ends.into_iter().flatten().min();
                let left = end.map_or(self.step, |end| end.saturating_duration_since(now));
                (*id, (lease.receipt.clone(), left.min(self.step).max(EXTENSION_MIN)))
            })
            .collect();
        if extensions.is_empty() {
            return (true, lost);
        }
        let requested: Vec<_> = extensions.values().cloned().collect();
        let answer = tasks.extend(&requested).await;
        if let Ok(lapsed) = &answer {
            let mut table = self.lock();
            lost.extend(table.held.extract_if(|_, lease| lapsed.contains(&lease.receipt)).map(|(id, _)| id));
            for (id, (_, duration)) in &extensions {
                if let Some(lease) = table.held.get_mut(id).filter(|_| self.timed) {
                    lease.until = Some(now + *duration);
                }
            }
        }
        if let Err(error) = &answer {
            tracing::warn!(error = %format!("{error:#}"), "cannot extend {} leases, retrying", extensions.len());
        }
        lost.extend(self.take_lapsed());
        (answer.is_ok(), lost)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder of the lock panics")
    }
}

impl Table {
    fn look_for_first_end(&mut self) -> Option<Instant> {
        self.first_end = self.held.values().filter_map(|lease| lease.until).min();
        self.first_end
    }
}

#[cfg(test)]
mod tests {
    use queue::{MemoryOptions, MemoryQueue, Message, Receive};
    use tokio::sync::mpsc;

    use super::*;

    const LEASE_STEP: Duration = Duration::from_secs(30);

    async fn receive(tasks: &MemoryQueue) -> Vec<queue::Delivery> {
        let request = Receive { messages_max: 10, visibility: LEASE_STEP, wait: Duration::ZERO };
        tasks.receive(request).await.expect("memory is always there")
    }

    /// A queue, and a lease of its message.
    struct Node {
        tasks: Arc<MemoryQueue>,
        leases: Leases,
        id: LeaseId,
        lost: mpsc::UnboundedReceiver<LeaseId>,
        guard: AbortOnDropHandle<()>,
    }

    async fn with_one_message() -> Arc<MemoryQueue> {
        let tasks = Arc::new(MemoryQueue::new(MemoryOptions::default()));
        tasks.send(vec![Message::new("x", "job")]).await.expect("memory is always there");
        tasks
    }

    async fn node() -> Node {
        let (tasks, leases) = (with_one_message().await, Leases::new(LEASE_STEP, true));
        let id = leases.hold(receive(&tasks).await.remove(0).receipt, Instant::now());
        let (sender, lost) = mpsc::unbounded_channel();
        let guard = leases.keep(tasks.clone(), move |id| sender.send(id).expect("the test listens"));
        Node { tasks, leases, id, lost, guard }
    }

    #[tokio::test(start_paused = true)]
    async fn lease_counts_from_the_request_that_succeeded() {
        let (tasks, leases) = (with_one_message().await, Leases::new(LEASE_STEP, true));
        tasks.fail_next(3);
        let began = Instant::now();
        let Received { requested, deliveries } = leases.receive(&*tasks, 10).await.expect("available in the end");
        assert_eq!((deliveries.len(), requested), (1, Instant::now()));
        assert!(requested > began, "pauses between requests");
    }

    #[tokio::test(start_paused = true)]
    async fn guard_extends_leases_until_it_is_dropped() {
        let mut node = node().await;
        tokio::time::sleep(10 * LEASE_STEP).await;
        assert!(receive(&node.tasks).await.is_empty());
        assert!(node.lost.try_recv().is_err(), "no lease is lost");
        drop(node.guard);
        tokio::time::sleep(2 * LEASE_STEP).await;
        assert_eq!(receive(&node.tasks).await.len(), 1, "the queue redelivers without the guard");
    }

    #[tokio::test(start_paused = true)]
    async fn lease_is_not_extended_past_its_deadline_and_its_loss_is_reported() {
        let mut node = node().await;
        node.leases.start(node.id, Instant::now() + Duration::from_secs(45));
        tokio::time::sleep(Duration::from_secs(48)).await;
        assert_eq!(receive(&node.tasks).await.len(), 1, "redelivered at the deadline");
        assert_eq!(node.lost.recv().await, Some(node.id));
        assert_eq!(node.leases.receipt(node.id), None);
    }

    #[tokio::test(start_paused = true)]
    async fn lease_that_cannot_be_extended_is_lost_at_its_end() {
        let (mut node, requested) = (node().await, Instant::now());
        node.tasks.fail_next(1000);
        tokio::time::sleep_until(requested + LEASE_STEP - Duration::from_millis(1)).await;
        assert!(node.leases.receipt(node.id).is_some(), "held until then");
        assert_eq!(node.lost.recv().await, Some(node.id));
        assert_eq!((requested.elapsed(), node.leases.count()), (LEASE_STEP, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn suspended_node_detects_the_loss_without_the_queue() {
        let mut node = node().await;
        // No other task runs in the meantime, and the queue would still extend the lease afterwards.
        tokio::time::advance(LEASE_STEP).await;
        assert_eq!(node.leases.receipt(node.id), None);
        assert_eq!(node.lost.recv().await, Some(node.id));
    }

    #[tokio::test(start_paused = true)]
    async fn lapsed_leases_are_removed_once_and_in_order() {
        let (tasks, leases) = (with_one_message().await, Leases::new(LEASE_STEP, true));
        let receipt = receive(&tasks).await.remove(0).receipt;
        let hold = || leases.hold(receipt.clone(), Instant::now());
        let early = [hold(), hold()];
        tokio::time::advance(LEASE_STEP / 2).await;
        let late = hold();
        assert!(leases.lapsed().is_empty());
        tokio::time::advance(LEASE_STEP / 2).await;
        assert_eq!(leases.lapsed(), early);
        assert!(leases.lapsed().is_empty());
        tokio::time::advance(LEASE_STEP / 2).await;
        assert_eq!(leases.lapsed(), [late]);
    }

    #[tokio::test(start_paused = true)]
    async fn delivery_after_a_long_wait_is_extended_immediately() {
        let tasks = with_one_message().await;
        let leases = Leases::new(LEASE_STEP, true);
        let (sender, mut lost) = mpsc::unbounded_channel();
        let _guard = leases.keep(tasks.clone(), move |id| sender.send(id).expect("the test listens"));
        tokio::time::sleep(Duration::from_secs(25)).await;
        let requested = Instant::now() - Duration::from_secs(29);
        let id = leases.hold(receive(&tasks).await.remove(0).receipt, requested);
        tokio::time::sleep(2 * LEASE_STEP).await;
        assert!(leases.receipt(id).is_some());
        assert!(lost.try_recv().is_err());
    }
}
