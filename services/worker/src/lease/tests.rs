//! Leases over a queue in memory, in virtual time.

use queue::{ManualSleep, MemoryOptions, MemoryQueue, Message};
use tokio::sync::mpsc;
use tokio::time::{advance, sleep, sleep_until};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

async fn receive(tasks: &MemoryQueue) -> Vec<Delivery> {
    let request = Receive { messages_max: 100, visibility: LEASE_STEP, wait: Duration::ZERO };
    tasks.receive(request).await.expect("memory is always there")
}

/// A queue, and a lease of its message.
struct Node {
    tasks: Arc<MemoryQueue>,
    leases: Leases,
    id: LeaseId,
    lost: mpsc::UnboundedReceiver<LeaseId>,
    guard: AbortOnDropHandle<()>,
    machine: ManualSleep,
}

impl Node {
    /// Receives another message and holds it.
    async fn hold(&self) -> LeaseId {
        self.tasks.send(vec![Message::new("x")]).await.expect("memory is always there");
        let delivery = receive(&self.tasks).await.remove(0);
        self.leases.hold(delivery.receipt, delivery.leased_at)
    }
}

async fn with_one_message() -> Arc<MemoryQueue> {
    let tasks = Arc::new(MemoryQueue::new(MemoryOptions::default()));
    tasks.send(vec![Message::new("x")]).await.expect("memory is always there");
    tasks
}

async fn node() -> Node {
    let (tasks, machine) = (with_one_message().await, ManualSleep::default());
    let leases = Leases::new(LEASE_STEP, true).by(LeaseClock::Manual(machine.clone()));
    let delivery = receive(&tasks).await.remove(0);
    let id = leases.hold(delivery.receipt, delivery.leased_at);
    let (sender, lost) = mpsc::unbounded_channel();
    let guard = leases.keep(tasks.clone(), move |id| sender.send(id).expect("the test listens"));
    Node { tasks, leases, id, lost, guard, machine }
}

#[tokio::test(start_paused = true)]
async fn receiving_waits_for_the_queue() {
    let (tasks, leases) = (with_one_message().await, Leases::new(LEASE_STEP, true));
    tasks.fail_next(3);
    let deliveries = leases.receive(&*tasks, 10).await.expect("available in the end");
    assert_eq!((deliveries.len(), deliveries[0].leased_at), (1, Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn guard_extends_leases_until_it_is_dropped() {
    let mut node = node().await;
    sleep(10 * LEASE_STEP).await;
    assert!(receive(&node.tasks).await.is_empty());
    assert!(node.lost.try_recv().is_err(), "no lease is lost");
    drop(node.guard);
    sleep(2 * LEASE_STEP).await;
    assert_eq!(receive(&node.tasks).await.len(), 1, "the queue redelivers without the guard");
}

#[tokio::test(start_paused = true)]
async fn another_node_gets_the_mini_batches_of_a_dead_one_within_ten_seconds() {
    for killed_after in 0..40 {
        let node = node().await;
        sleep(killed_after * SECOND / 3).await;
        drop(node.guard);
        let killed = Instant::now();
        let request = Receive { messages_max: 1, visibility: LEASE_STEP, wait: 60 * SECOND };
        assert_eq!(node.tasks.receive(request).await.expect("memory is always there").len(), 1);
        assert!(
            killed.elapsed() <= 10 * SECOND,
            "killed after {killed_after}/3 s: {:?}",
            killed.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn quick_mini_batches_cost_no_extension() {
    let node = node().await;
    node.leases.end(node.id);
    for _ in 0..100 {
        let ids = [node.hold().await, node.hold().await];
        sleep(3 * SECOND).await;
        ids.into_iter().for_each(|id| node.leases.end(id));
    }
    assert_eq!(node.tasks.extended(), 0);
}

#[tokio::test(start_paused = true)]
async fn slow_mini_batch_costs_an_extension_every_half_lease() {
    let node = node().await;
    sleep(600 * SECOND).await;
    assert!((149..=151).contains(&node.tasks.extended()), "{}", node.tasks.extended());
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_due_at_about_the_same_time_are_extended_together() {
    let node = node().await;
    sleep(SECOND).await;
    let second = node.hold().await;
    sleep(2 * SECOND).await;
    node.hold().await;
    let rhythm = node.leases.timing(None);
    let due = |seconds| {
        let due = node.leases.take_due(rhythm, Instant::now() + seconds * SECOND);
        let mut ids: Vec<_> = due.into_iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(due(0), [0; 0]);
    assert_eq!(due(1), [node.id, second], "the third has a whole lease before it");
}

#[tokio::test(start_paused = true)]
async fn lease_is_not_extended_past_its_deadline_and_its_loss_is_reported() {
    let mut node = node().await;
    node.leases.start(node.id, Instant::now() + 45 * SECOND);
    sleep(44 * SECOND).await;
    assert!(receive(&node.tasks).await.is_empty());
    sleep(3 * SECOND).await;
    assert_eq!(receive(&node.tasks).await.len(), 1, "redelivered at the deadline");
    assert_eq!(node.lost.recv().await, Some(node.id));
    assert_eq!(node.leases.receipt(node.id), None);
}

#[tokio::test(start_paused = true)]
async fn mini_batch_that_waits_for_another_run_keeps_its_lease() {
    let node = node().await;
    node.leases.start(node.id, Instant::now() + 5 * SECOND);
    sleep(7 * SECOND).await;
    // Until then its lease was to end with the deadline.
    node.leases.wait(node.id);
    sleep(10 * LEASE_STEP).await;
    assert!(node.leases.receipt(node.id).is_some());
}

#[tokio::test(start_paused = true)]
async fn lease_that_cannot_be_extended_is_lost_at_its_end() {
    let (mut node, leased) = (node().await, Instant::now());
    node.tasks.fail_next(1000);
    sleep_until(leased + LEASE_STEP - Duration::from_millis(1)).await;
    assert!(node.leases.receipt(node.id).is_some(), "held until then");
    assert_eq!(node.lost.recv().await, Some(node.id));
    assert_eq!((leased.elapsed(), node.leases.count()), (LEASE_STEP, 0));
}

#[tokio::test(start_paused = true)]
async fn queue_that_fails_for_a_while_costs_no_lease() {
    let mut node = node().await;
    sleep(LEASE_STEP / 2 - SECOND / 2).await;
    node.tasks.fail_next(3);
    sleep(10 * LEASE_STEP).await;
    assert!(node.leases.receipt(node.id).is_some());
    assert!(node.lost.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn unanswered_extension_is_repeated() {
    let mut node = node().await;
    node.tasks.stall_next_extensions(1);
    sleep(10 * LEASE_STEP).await;
    assert!(node.leases.receipt(node.id).is_some());
    assert!(node.lost.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn suspended_node_detects_the_loss_without_the_queue() {
    let mut node = node().await;
    // No other task runs in the meantime, and the queue would still extend the lease afterwards.
    advance(LEASE_STEP).await;
    assert_eq!(node.leases.receipt(node.id), None);
    assert_eq!(node.lost.recv().await, Some(node.id));
}

#[tokio::test(start_paused = true)]
async fn leases_count_the_time_for_which_the_machine_sleeps() {
    let node = node().await;
    node.machine.suspend(LEASE_STEP);
    assert_eq!(node.leases.receipt(node.id), None, "nothing is announced after it");
    assert_eq!(node.leases.lapsed(), [node.id]);
    assert_eq!(node.leases.lapsed(), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn short_sleep_brings_the_next_extension_forward() {
    let mut node = node().await;
    sleep(3 * SECOND).await;
    node.machine.suspend(3 * SECOND);
    assert!(node.leases.receipt(node.id).is_some());
    sleep(SECOND + SECOND / 2).await;
    assert_eq!(node.tasks.extended(), 1);
    sleep(2 * LEASE_STEP).await;
    assert!(node.lost.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn sleep_does_not_shorten_the_time_of_an_attempt() {
    let node = node().await;
    node.leases.start(node.id, Instant::now() + 45 * SECOND);
    sleep(3 * SECOND).await;
    // Shorter than its lease, and it did not run meanwhile.
    node.machine.suspend(SECOND);
    let rhythm = node.leases.timing(None);
    assert_eq!(
        rhythm.end(&node.leases.lock().held[&node.id]),
        Some(node.leases.clock.now() + 42 * SECOND)
    );
}

#[tokio::test(start_paused = true)]
async fn lapsed_leases_are_removed_once_and_in_order() {
    let (tasks, leases) = (with_one_message().await, Leases::new(LEASE_STEP, true));
    let receipt = receive(&tasks).await.remove(0).receipt;
    let hold = || leases.hold(receipt.clone(), Instant::now());
    let early = [hold(), hold()];
    advance(LEASE_STEP / 2).await;
    let late = hold();
    assert!(leases.lapsed().is_empty());
    advance(LEASE_STEP / 2).await;
    assert_eq!(leases.lapsed(), early);
    assert!(leases.lapsed().is_empty());
    advance(LEASE_STEP / 2).await;
    assert_eq!(leases.lapsed(), [late]);
}

#[tokio::test(start_paused = true)]
async fn delivery_after_a_long_wait_is_extended_immediately() {
    let mut node = node().await;
    sleep(5 * SECOND).await;
    node.tasks.send(vec![Message::new("x")]).await.expect("memory is always there");
    let receipt = receive(&node.tasks).await.remove(0).receipt;
    let id = node.leases.hold(receipt, Instant::now() + SECOND - LEASE_STEP);
    sleep(2 * LEASE_STEP).await;
    assert!(node.leases.receipt(id).is_some());
    assert!(node.lost.try_recv().is_err());
}
