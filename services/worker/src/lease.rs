//! What this node holds of the task queue, and the duty to say so in time.
//!
//! Every held delivery is extended in short steps, so that a dead node is noticed within one step. One that runs is
//! never extended past its deadline, so that the queue itself takes it back from a node that hangs. A lease that was
//! not extended in time is lost: whoever works under it must stop, and may announce nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use queue::{Queue, Receipt};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

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
    /// Set from the moment the mini-batch starts to load and run.
    deadline: Option<Instant>,
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
    table: Arc<Mutex<Table>>,
}

impl Leases {
    /// None yet.
    pub fn new(step: Duration) -> Self {
        Self { step, table: Arc::default() }
    }

    /// Takes note of a delivery.
    pub fn hold(&self, receipt: Receipt) -> LeaseId {
        let mut table = self.lock();
        let id = table.next;
        table.next += 1;
        table.held.insert(id, Lease { receipt, since: Instant::now(), deadline: None });
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
        self.lock().held.get(&id).map(|lease| lease.receipt.clone())
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
        let heartbeat = self.step / HEARTBEATS_PER_STEP;
        let heartbeat = if tasks.limits().timed_lease { heartbeat } else { heartbeat.min(CHECK) };
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                tokio::time::sleep(heartbeat).await;
                for id in leases.extend(&*tasks).await {
                    lost(id);
                }
            }
        }))
    }

    async fn extend(&self, tasks: &dyn Queue) -> Vec<LeaseId> {
        let now = Instant::now();
        let lease_max = tasks.limits().lease_max.map(|lease_max| lease_max.saturating_sub(LEASE_MAX_MARGIN));
        let extensions: Vec<(Receipt, Duration)> = self
            .lock()
            .held
            .values()
            .map(|lease| {
                let ends = [lease.deadline, lease_max.map(|lease_max| lease.since + lease_max)];
                let end = ends.into_iter().flatten().min();
                let left = end.map_or(self.step, |end| end.saturating_duration_since(now));
                (lease.receipt.clone(), left.min(self.step).max(EXTENSION_MIN))
            })
            .collect();
        if extensions.is_empty() {
            return Vec::new();
        }
        let lapsed = match tasks.extend(&extensions).await {
            Ok(lapsed) => lapsed,
            Err(error) => {
                tracing::warn!("cannot extend {} leases, trying again: {error}", extensions.len());
                return Vec::new();
            }
        };
        let mut table = self.lock();
        let lost: Vec<LeaseId> =
            table.held.iter().filter(|(_, lease)| lapsed.contains(&lease.receipt)).map(|(id, _)| *id).collect();
        for id in &lost {
            table.held.remove(id);
        }
        lost
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
        let leases = Leases::new(LEASE_STEP);
        leases.hold(receive(&tasks).await.remove(0).receipt);
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
        let leases = Leases::new(LEASE_STEP);
        let id = leases.hold(receive(&tasks).await.remove(0).receipt);
        leases.start(id, Instant::now() + Duration::from_secs(45));
        let (sender, mut lost) = mpsc::unbounded_channel();
        let _guard = leases.keep(tasks.clone(), move |id| sender.send(id).expect("the test listens"));
        tokio::time::sleep(Duration::from_secs(48)).await;
        assert_eq!(receive(&tasks).await.len(), 1, "redelivered at the deadline");
        assert_eq!(lost.recv().await, Some(id));
        assert_eq!(leases.receipt(id), None);
    }
}
