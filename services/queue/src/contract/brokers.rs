//! The contract of [`Broker`] as tests, one function per property, which every backend passes.
//!
//! A backend implements [`Harness`] and calls [`broker_contract!`](crate::broker_contract) with an expression that
//! creates a harness.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep, timeout};

use crate::{Broker, Delivery, Error, JobQueues, Message, Queue, Receipt, Receive, TargetQueues};

/// A broker under test.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Returns the broker, which has no queues at first and no other users. It may create the queues of the target.
    fn broker(&self) -> Arc<dyn Broker>;

    /// Returns another broker with the same queues, as another process would have it.
    async fn another(&self) -> Arc<dyn Broker>;

    /// Returns how long a waiting receive may take to notice that its queue was deleted.
    fn notice_max(&self) -> Duration {
        Duration::from_secs(5)
    }
}

/// Returns the names of all jobs whose queues a test may leave behind.
pub fn names() -> Vec<String> {
    [vec!["job".to_owned(), "other".to_owned(), "next".to_owned()], unusual_names()].concat()
}

/// Returns names that some services cannot use unchanged.
fn unusual_names() -> Vec<String> {
    let long = |last: &str| format!("2026-11-27.T12_00{}{last}", "x".repeat(183 - last.len()));
    vec!["a.b".to_owned(), "a-b".to_owned(), "a_b".to_owned(), long("1"), long("2")]
}

/// Creates one `#[tokio::test]` for each property. Each test evaluates `$harness`.
#[macro_export]
macro_rules! broker_contract {
    ($harness:expr) => {
        $crate::broker_contract! { $harness =>
            queues_of_the_target_are_created_once
            queues_of_the_target_outlive_those_of_jobs
            absent_queues_cannot_be_opened
            creating_again_keeps_messages
            queues_are_separate_within_a_job_and_between_jobs
            handles_to_one_queue_share_its_messages
            deletion_removes_messages
            deleted_queue_ends_a_waiting_receive
            calls_of_a_deleted_queue_fail_or_find_nothing
            unusual_names_work_and_differ
            closing_ends_leases
        }
    };
    ($harness:expr => $($property:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $property() {
                $crate::contract::brokers::$property(&$harness).await;
            }
        )*
    };
}

/// The longest time that a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A lease that no test outlives.
const LEASE: Duration = Duration::from_secs(600);

async fn target(broker: &dyn Broker) -> TargetQueues {
    broker.target().await.expect("opens")
}

async fn create(broker: &dyn Broker, name: &str) -> JobQueues {
    broker.create(name).await.expect("creates")
}

async fn open(broker: &dyn Broker, name: &str) -> JobQueues {
    broker.open(name).await.expect("opens")
}

async fn assert_absent(broker: &dyn Broker, name: &str) {
    let opened = broker.open(name).await;
    assert!(matches!(opened, Err(Error::Absent { .. })), "{opened:?}");
}

async fn send(queue: &Arc<dyn Queue>, body: &str) {
    queue.send(vec![Message::new(body.to_owned())]).await.expect("sends");
}

/// Receives one message.
async fn take(queue: &Arc<dyn Queue>) -> Delivery {
    let until = Instant::now() + PATIENCE;
    loop {
        let request = Receive { messages_max: 1, visibility: LEASE, wait: Duration::from_secs(5) };
        if let Some(delivery) = queue.receive(request).await.expect("receives").pop() {
            return delivery;
        }
        assert!(Instant::now() < until, "no message arrived");
    }
}

async fn acknowledge(queue: &Arc<dyn Queue>, receipt: Receipt) {
    assert!(
        queue.acknowledge(&[receipt]).await.expect("acknowledges").is_empty(),
        "the lease was lost"
    );
}

/// Asserts that the queue has exactly one message, which has this body, and acknowledges it.
async fn assert_holds(queue: &Arc<dyn Queue>, body: &str) {
    let delivery = take(queue).await;
    assert_eq!(delivery.body, body.as_bytes());
    acknowledge(queue, delivery.receipt).await;
    assert_none(queue).await;
}

async fn assert_none(queue: &Arc<dyn Queue>) {
    let request = Receive { messages_max: 10, visibility: LEASE, wait: Duration::from_millis(100) };
    let deliveries = queue.receive(request).await.expect("receives");
    assert!(deliveries.is_empty(), "{deliveries:?}");
}

/// The first broker to open the queues of the target creates them, and all others get the same ones.
pub async fn queues_of_the_target_are_created_once(harness: &dyn Harness) {
    let (broker, another) = (harness.broker(), harness.another().await);
    let first = target(&*broker).await;
    assert!(first.are_new, "there were none");
    send(&first.control, "news").await;
    send(&first.dead_letters, "letter").await;
    assert!(!target(&*broker).await.are_new);
    let again = target(&*another).await;
    assert!(!again.are_new);
    assert_holds(&again.control, "news").await;
    assert_holds(&again.dead_letters, "letter").await;
}

/// The queues of the target are independent of those of its jobs.
pub async fn queues_of_the_target_outlive_those_of_jobs(harness: &dyn Harness) {
    let broker = harness.broker();
    let (target, job) = (target(&*broker).await, create(&*broker, "job").await);
    send(&job.tasks, "task").await;
    assert_none(&target.control).await;
    assert_none(&target.dead_letters).await;
    send(&target.control, "news").await;
    send(&target.dead_letters, "letter").await;
    broker.delete("job").await.expect("deletes");
    assert_holds(&target.control, "news").await;
    assert_holds(&target.dead_letters, "letter").await;
}

/// Queues that were never created or have been deleted cannot be opened, and opening creates none.
pub async fn absent_queues_cannot_be_opened(harness: &dyn Harness) {
    let (broker, another) = (harness.broker(), harness.another().await);
    for _ in 0..2 {
        assert_absent(&*broker, "job").await;
    }
    broker.delete("job").await.expect("it is no error if they do not exist");
    drop(create(&*broker, "job").await);
    open(&*broker, "job").await;
    open(&*another, "job").await;
    assert_absent(&*broker, "other").await;
    another.delete("job").await.expect("deletes");
    assert_absent(&*broker, "job").await;
    assert_absent(&*another, "job").await;
}

/// Creating queues that exist opens them.
pub async fn creating_again_keeps_messages(harness: &dyn Harness) {
    let (broker, another) = (harness.broker(), harness.another().await);
    let first = create(&*broker, "job").await;
    send(&first.tasks, "task").await;
    send(&first.results, "result").await;
    let again = create(&*another, "job").await;
    assert_holds(&again.tasks, "task").await;
    assert_holds(&again.results, "result").await;
}

/// The task queue and the result queue of a job are separate, and so are the queues of two jobs.
pub async fn queues_are_separate_within_a_job_and_between_jobs(harness: &dyn Harness) {
    let broker = harness.broker();
    let (job, other) = (create(&*broker, "job").await, create(&*broker, "other").await);
    send(&job.tasks, "task").await;
    send(&other.results, "result").await;
    assert_none(&job.results).await;
    assert_none(&other.tasks).await;
    broker.delete("other").await.expect("deletes");
    assert_holds(&job.tasks, "task").await;
}

/// Several handles to one queue share its messages.
pub async fn handles_to_one_queue_share_its_messages(harness: &dyn Harness) {
    let (broker, another) = (harness.broker(), harness.another().await);
    create(&*broker, "job").await;
    let opened =
        [open(&*broker, "job").await, open(&*broker, "job").await, open(&*another, "job").await];
    for (number, queues) in opened.iter().enumerate() {
        send(&queues.tasks, &number.to_string()).await;
        let receiver = &opened[(number + 1) % opened.len()];
        let delivery = take(&receiver.tasks).await;
        assert_eq!(delivery.body, number.to_string());
        assert_none(&queues.tasks).await;
        acknowledge(&receiver.tasks, delivery.receipt).await;
    }
}

/// Deleting queues removes all messages, leased or not, and may be repeated.
pub async fn deletion_removes_messages(harness: &dyn Harness) {
    let broker = harness.broker();
    let queues = create(&*broker, "job").await;
    for body in ["a", "b"] {
        send(&queues.tasks, body).await;
    }
    take(&queues.tasks).await;
    send(&queues.results, "result").await;
    drop(queues);
    for _ in 0..2 {
        broker.delete("job").await.expect("deletes");
        assert_absent(&*broker, "job").await;
    }
    let next = create(&*broker, "next").await;
    assert_none(&next.tasks).await;
    assert_none(&next.results).await;
    assert_eq!(next.tasks.depth().await.expect("depth").total(), 0);
    send(&next.tasks, "new").await;
    assert_holds(&next.tasks, "new").await;
}

/// A waiting receive ends when this process or another one deletes the queue.
pub async fn deleted_queue_ends_a_waiting_receive(harness: &dyn Harness) {
    let (broker, another) = (harness.broker(), harness.another().await);
    for (name, deleter) in [("job", &broker), ("other", &another)] {
        let queues = create(&*broker, name).await;
        let waiting = tokio::spawn(async move {
            let request =
                Receive { messages_max: 10, visibility: LEASE, wait: Duration::from_secs(3600) };
            queues.tasks.receive(request).await
        });
        sleep(Duration::from_millis(300)).await;
        assert!(!waiting.is_finished(), "nothing was sent");
        deleter.delete(name).await.expect("deletes");
        let received =
            timeout(harness.notice_max(), waiting).await.expect("it notices").expect("no panic");
        assert!(
            matches!(&received, Err(Error::Absent { .. }))
                || received.as_ref().is_ok_and(Vec::is_empty),
            "{received:?}"
        );
    }
}

/// Calls of a deleted queue fail with [`Error::Absent`], or do nothing.
pub async fn calls_of_a_deleted_queue_fail_or_find_nothing(harness: &dyn Harness) {
    let (broker, another) = (harness.broker(), harness.another().await);
    let queues = create(&*broker, "job").await;
    send(&queues.tasks, "held").await;
    let held = [take(&queues.tasks).await.receipt];
    another.delete("job").await.expect("deletes");
    let assert_absent = |error: Error| assert!(matches!(error, Error::Absent { .. }), "{error:?}");
    // A service may take a moment to notice.
    let until = Instant::now() + harness.notice_max();
    let error = loop {
        match queues.tasks.send(vec![Message::new("late")]).await {
            Err(error) => break error,
            Ok(()) => assert!(Instant::now() < until, "the queue still accepts messages"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert_absent(error);
    let request = Receive { messages_max: 10, visibility: LEASE, wait: Duration::ZERO };
    match queues.tasks.receive(request).await {
        Ok(deliveries) => assert!(deliveries.is_empty(), "{deliveries:?}"),
        Err(error) => assert_absent(error),
    }
    match queues.tasks.acknowledge(&held).await {
        Ok(lost) => assert_eq!(lost, held),
        Err(error) => assert_absent(error),
    }
    match queues.tasks.extend(&[(held[0].clone(), LEASE)]).await {
        Ok(lost) => assert_eq!(lost, held),
        Err(error) => assert_absent(error),
    }
    if let Err(error) = queues.tasks.release(&held).await {
        assert_absent(error);
    }
    match queues.results.depth().await {
        Ok(depth) => assert_eq!(depth.total(), 0),
        Err(error) => assert_absent(error),
    }
}

/// Names with dots and names of 200 characters work, and different names lead to different queues.
pub async fn unusual_names_work_and_differ(harness: &dyn Harness) {
    let (broker, another) = (harness.broker(), harness.another().await);
    let names = unusual_names();
    assert_eq!(names[3].len(), 200);
    for name in &names {
        let queues = create(&*broker, name).await;
        send(&queues.tasks, name).await;
        send(&queues.results, name).await;
    }
    for name in &names {
        let queues = open(&*another, name).await;
        assert_holds(&queues.tasks, name).await;
        assert_holds(&queues.results, name).await;
    }
    another.delete(&names[3]).await.expect("deletes");
    assert_absent(&*broker, &names[3]).await;
    open(&*broker, &names[4]).await;
}

/// Closing a broker ends leases that belong to its connection, but loses no acknowledgement and no message.
pub async fn closing_ends_leases(harness: &dyn Harness) {
    let (broker, another) = (harness.broker(), harness.another().await);
    let queues = create(&*broker, "job").await;
    for body in ["done", "held"] {
        send(&queues.tasks, body).await;
    }
    let [first, second] = [take(&queues.tasks).await, take(&queues.tasks).await];
    let (done, held) = if first.body == "done" { (first, second) } else { (second, first) };
    acknowledge(&queues.tasks, done.receipt).await;
    let news = target(&*broker).await.control;
    send(&news, "news").await;
    take(&news).await;
    broker.close().await;
    let (opened, news) = (open(&*another, "job").await, target(&*another).await.control);
    if queues.tasks.limits().timed_lease {
        assert_none(&opened.tasks).await;
        assert_none(&news).await;
        return;
    }
    timeout(harness.notice_max(), take(&news)).await.expect("the lease ends promptly");
    let again =
        timeout(harness.notice_max(), take(&opened.tasks)).await.expect("the lease ends promptly");
    assert_eq!((&again.body, again.receive_count), (&held.body, 2));
    acknowledge(&opened.tasks, again.receipt).await;
    assert_none(&opened.tasks).await;
}
