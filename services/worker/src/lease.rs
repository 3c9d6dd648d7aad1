//! What this node holds of the task queue, and the duty to say so in time.
//!
//! Every held delivery is extended in short steps, so that a dead node is noticed within one step. One that runs is
//! never extended past its deadline, so that the queue itself takes it back from a node that hangs. A lease that was
//! not extended in time is lost: whoever works under it must stop, and may announce nothing.
//!
//! A node that was stopped for a while, or whose queue does not answer, hears of a loss too late. So the end of each
//! timed lease is kept here too, reckoned from before the call that granted it, and past it the lease counts as lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use queue::{Queue, Receipt};
use telemetry::metrics;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

/// Extensions in one step: two may fail before a lease lapses.
const HEARTBEATS_PER_STEP: u32 = 3;
/// How often leases are looked at that end with their connection: it costs no call.
const CHECK: Duration = Duration::from_secs(1);
/// The shortest extension.
const EXTENSION_MIN: Duration = Duration::from_secs(1);
/// Before the longest time that the queue allows: a delivery may have been leased a while before it came here.
const LEASE_MAX_MARGIN: Duration = Duration::from_secs(60);

/// Names a held delivery within this node.
pub type LeaseId = u64;

#[derive(Debug)]
struct Lease {
    receipt: Receipt,
    since: Instant,
    /// Until when it is known to be held; `None`: it does not end by time.
    until: Option<Instant>,
    /// Its end has been acted upon: an extension that succeeded after all comes too late.
    lapsed: bool,
    /// Set from the moment the mini-batch starts to load and run.
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
    held: HashMap<LeaseId, Lease>,
}

/// Every lease of one agent. Clones share one table.
#[derive(Clone, Debug)]
pub struct Leases {
    /// How long a delivery stays invisible without news of its node.
    step: Duration,
    timed: bool,
    table: Arc<Mutex<Table>>,
    /// A delivery has come that waits no longer for the next round of extensions.
    urgent: Arc<Notify>,
}

impl Leases {
    /// None yet. `timed`: as in the limits of the queue.
    pub fn new(step: Duration, timed: bool) -> Self {
        Self { step, timed, table: Arc::default(), urgent: Arc::default() }
    }

    /// Takes note of a delivery, which was asked for at `asked`, and is leased for one step.
    pub fn hold(&self, receipt: Receipt, asked: Instant) -> LeaseId {
        let now = Instant::now();
        let until = self.timed.then(|| asked + self.step);
        // It came at the end of a long wait, and nobody knows when its lease began.
        if until.is_some_and(|until| until < now + self.heartbeat() * (HEARTBEATS_PER_STEP - 1)) {
            self.urgent.notify_one();
        }
        let mut table = self.lock();
        let id = table.next;
        table.next += 1;
        table.held.insert(id, Lease { receipt, since: now, until, lapsed: false, deadline: None });
        id
    }

    /// The mini-batch starts to load and run, and must have ended by `deadline`.
    pub fn start(&self, id: LeaseId, deadline: Instant) {
        if let Some(lease) = self.lock().held.get_mut(&id) {
            lease.deadline = Some(deadline);
        }
    }

    /// The receipt, if the lease is still held.
    pub fn receipt(&self, id: LeaseId) -> Option<Receipt> {
        let mut table = self.lock();
        let lease = table.held.get_mut(&id)?;
        (!lease.has_lapsed(Instant::now())).then(|| lease.receipt.clone())
    }

    /// How long it has been held, if it still is.
    pub fn age(&self, id: LeaseId) -> Option<Duration> {
        self.lock().held.get(&id).map(|lease| lease.since.elapsed())
    }

    /// The delivery was acknowledged or given back.
    pub fn end(&self, id: LeaseId) {
        self.lock().held.remove(&id);
    }

    /// Number of held deliveries.
    pub fn count(&self) -> usize {
        self.lock().held.len()
    }

    /// Extends all leases until the guard is dropped. `lost` is called for each one that has lapsed.
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
                let (extended, ended) = leases.extend(&*tasks).await;
                // Leases end while a queue that is away is waited for: it is asked more often.
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
        self.lock().held.values().filter_map(|lease| lease.until).min()
    }

    /// Forgets the leases whose time is over.
    fn take_lapsed(&self) -> Vec<LeaseId> {
        let now = Instant::now();
        self.lock().held.extract_if(|_, lease| lease.has_lapsed(now)).map(|(id, _)| id).collect()
    }

    /// Whether the queue answered, and what was lost.
    async fn extend(&self, tasks: &dyn Queue) -> (bool, Vec<LeaseId>) {
        let mut lost = self.take_lapsed();
        let now = Instant::now();
        let lease_max = tasks.limits().lease_max.map(|lease_max| lease_max.saturating_sub(LEASE_MAX_MARGIN));
        let extensions: HashMap<LeaseId, (Receipt, Duration)> = self
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
        let asked: Vec<_> = extensions.values().cloned().collect();
        let answer = tasks.extend(&asked).await;
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
            tracing::warn!("cannot extend {} leases, trying again: {error}", extensions.len());
        }
        lost.extend(self.take_lapsed());
        (answer.is_ok(), lost)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder of the lock panics")
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use queue::{MemoryOptions, MemoryQueue, Message, Receive};
    use tokio::sync::mpsc;

    use super::*;

    const LEASE_STEP: Duration = Duration::from_secs(30);

    async fn receive(tasks: &MemoryQueue) -> Vec<queue::Delivery> {
        let request = Receive { messages_max: 10, visibility: LEASE_STEP, wait: Duration::ZERO };
        tasks.receive(request).await.expect("memory is always there")
    }

    async fn with_one_message() -> Arc<MemoryQueue> {
        let tasks = Arc::new(MemoryQueue::new(MemoryOptions::default()));
        let message = Message { body: Bytes::from_static(b"x"), group: "job".into(), delay: Duration::ZERO };
        tasks.send(vec![message]).await.expect("memory is always there");
        tasks
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_delivery_stays_ours_while_the_guard_lives() {
        let tasks = with_one_message().await;
        let leases = Leases::new(LEASE_STEP, true);
        leases.hold(receive(&tasks).await.remove(0).receipt, Instant::now());
        let guard = leases.keep(tasks.clone(), |_| panic!("no lease is lost"));
        tokio::time::sleep(10 * LEASE_STEP).await;
        assert!(receive(&tasks).await.is_empty());
        drop(guard);
        tokio::time::sleep(2 * LEASE_STEP).await;
        assert_eq!(receive(&tasks).await.len(), 1, "without the guard the queue takes it back");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_extended_past_its_deadline_and_the_loss_is_told() {
        let tasks = with_one_message().await;
        let leases = Leases::new(LEASE_STEP, true);
        let id = leases.hold(receive(&tasks).await.remove(0).receipt, Instant::now());
        leases.start(id, Instant::now() + Duration::from_secs(45));
        let (sender, mut lost) = mpsc::unbounded_channel();
        let _guard = leases.keep(tasks.clone(), move |id| sender.send(id).expect("the test listens"));
        tokio::time::sleep(Duration::from_secs(48)).await;
        assert_eq!(receive(&tasks).await.len(), 1, "redelivered at the deadline");
        assert_eq!(lost.recv().await, Some(id));
        assert_eq!(leases.receipt(id), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_extended_is_lost_at_its_end_though_nobody_else_has_it() {
        let tasks = with_one_message().await;
        let leases = Leases::new(LEASE_STEP, true);
        let asked = Instant::now();
        let id = leases.hold(receive(&tasks).await.remove(0).receipt, asked);
        tasks.fail_next(1000);
        let (sender, mut lost) = mpsc::unbounded_channel();
        let _guard = leases.keep(tasks.clone(), move |id| sender.send(id).expect("the test listens"));
        tokio::time::sleep_until(asked + LEASE_STEP - Duration::from_millis(1)).await;
        assert!(leases.receipt(id).is_some(), "it is ours until then");
        assert_eq!(lost.recv().await, Some(id));
        assert_eq!(asked.elapsed(), LEASE_STEP);
        assert_eq!(leases.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_was_stopped_knows_before_it_has_asked_the_queue() {
        let tasks = with_one_message().await;
        let leases = Leases::new(LEASE_STEP, true);
        let id = leases.hold(receive(&tasks).await.remove(0).receipt, Instant::now());
        let (sender, mut lost) = mpsc::unbounded_channel();
        let _guard = leases.keep(tasks.clone(), move |id| sender.send(id).expect("the test listens"));
        // Nothing else gets a turn meanwhile, and when it does, the queue would still let the lease be extended.
        tokio::time::advance(LEASE_STEP).await;
        assert_eq!(leases.receipt(id), None);
        assert_eq!(lost.recv().await, Some(id));
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_at_the_end_of_a_long_wait_is_extended_at_once() {
        let tasks = with_one_message().await;
        let leases = Leases::new(LEASE_STEP, true);
        let (sender, mut lost) = mpsc::unbounded_channel();
        let _guard = leases.keep(tasks.clone(), move |id| sender.send(id).expect("the test listens"));
        tokio::time::sleep(Duration::from_secs(25)).await;
        let asked = Instant::now() - Duration::from_secs(29);
        let id = leases.hold(receive(&tasks).await.remove(0).receipt, asked);
        tokio::time::sleep(2 * LEASE_STEP).await;
        assert!(leases.receipt(id).is_some());
        assert!(lost.try_recv().is_err());
    }
}
