//! The queues of a target: RabbitMQ passes the contract of brokers, and all queues share one connection, also after it
//! broke.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{join_all, try_join_all};
use queue::contract::brokers::Harness;
use queue::{Broker as _, Error, JobQueues, Message, Queue, RabbitBroker, RabbitOptions};

use crate::broker::Broker;
use crate::proxy::Proxy;
use crate::{
    Deleted, PATIENCE, channel, connect, log, options, receive, receive_one, request, send,
    unused_queues,
};

struct Rabbit {
    options: RabbitOptions,
    broker: Arc<RabbitBroker>,
    _deleted: Deleted,
}

impl Rabbit {
    async fn new() -> Self {
        let (options, deleted) = unused_queues();
        Self { broker: Arc::new(connect(&options).await), options, _deleted: deleted }
    }
}

#[async_trait]
impl Harness for Rabbit {
    fn broker(&self) -> Arc<dyn queue::Broker> {
        self.broker.clone()
    }

    async fn another(&self) -> Arc<dyn queue::Broker> {
        Arc::new(connect(&self.options).await)
    }

    /// A busy broker takes its time.
    fn notice_max(&self) -> Duration {
        Duration::from_secs(10)
    }
}

mod rabbit_broker {
    use super::Rabbit;

    queue::broker_contract!(Rabbit::new().await);
}

/// Receives one message and acknowledges it.
async fn take(queue: &Arc<dyn Queue>) -> String {
    let delivery = receive_one(queue).await;
    assert!(queue.acknowledge(&[delivery.receipt]).await.expect("acknowledges").is_empty());
    String::from_utf8(delivery.body.to_vec()).expect("text was sent")
}

/// Creates the queues of this many jobs.
async fn create(broker: &RabbitBroker, jobs: usize) -> Vec<JobQueues> {
    let names: Vec<String> = (0..jobs).map(|number| number.to_string()).collect();
    try_join_all(names.iter().map(|name| broker.create(name))).await.expect("creates")
}

/// Sends a message through every queue, and receives it.
async fn assert_all_work(jobs: &[JobQueues]) {
    join_all(jobs.iter().flat_map(|job| [&job.tasks, &job.results]).enumerate().map(
        async |(number, queue)| {
            send(queue, [number.to_string()]).await;
            assert_eq!(take(queue).await, number.to_string());
        },
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queues_share_one_connection_also_after_it_broke() {
    log::collect();
    let rabbit = Broker::start("");
    let proxy = Proxy::start(rabbit.port).await;
    let url = format!("amqp://guest:guest@127.0.0.1:{}/%2f", proxy.port);
    let broker = connect(&options(url, "shared")).await;
    let target = broker.target().await.expect("creates");
    let mut jobs = create(&broker, 25).await;
    jobs.push(JobQueues { tasks: target.control, results: target.dead_letters });
    assert_all_work(&jobs).await;
    assert_eq!(broker.connections(), 1);
    for cuts in 1..=3 {
        proxy.cut();
        assert_all_work(&jobs).await;
        assert_eq!(broker.connections(), 1);
        assert_eq!(
            (log::count(&["gristmill shared", "reconnected"]), log::count(&["shared-"])),
            (cuts, 0)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queues_survive_a_restart_of_the_broker() {
    let mut rabbit = Broker::start("");
    let broker = Arc::new(connect(&options(rabbit.url(), "demo")).await);
    let jobs = create(&broker, 5).await;
    for (number, job) in jobs.iter().enumerate() {
        send(&job.tasks, [number.to_string()]).await;
    }
    let held = receive(&jobs[0].tasks, 1).await;
    assert_eq!(held[0].body, "0");
    let waiting = jobs[1].results.clone();
    let waiting = tokio::spawn(async move { take(&waiting).await });
    for number in 0..jobs.len() {
        for role in ["tasks", "results"] {
            rabbit.wait_until_recorded(&format!("demo-{number}-{role}")).await;
        }
    }
    rabbit.kill();
    let sending = tokio::spawn({
        let queue = jobs[2].results.clone();
        async move { queue.send(vec![Message::new("late")]).await }
    });
    rabbit.restart();
    sending.await.expect("no panic").expect("it waits for the broker");
    send(&jobs[1].results, ["sent after the restart".to_owned()]).await;
    assert_eq!(waiting.await.expect("no panic"), "sent after the restart");
    let lost = jobs[0].tasks.acknowledge(&[held[0].receipt.clone()]).await.expect("acknowledges");
    assert_eq!(lost.len(), 1, "the lease ended with the connection");
    let bodies: BTreeSet<String> =
        join_all(jobs.iter().map(|job| take(&job.tasks))).await.into_iter().collect();
    assert_eq!(bodies.len(), 5);
    assert_eq!(broker.connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_connection_is_followed_by_another() {
    let rabbit = Broker::start("channel_max = 36");
    let broker = connect(&options(rabbit.url(), "demo")).await;
    let jobs = create(&broker, 11).await;
    assert_eq!(broker.connections(), 3, "ten queues on each");
    assert_all_work(&jobs).await;
    drop(jobs);
    let reopened = async {
        while broker.connections() > 1 {
            drop(broker.open("0").await.expect("opens"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reopened).await.expect("empty connections are closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_queue_ends_its_leases_and_no_others() {
    let rabbit = Rabbit::new().await;
    let kept = rabbit.broker.create("job").await.expect("creates");
    let dropped = rabbit.broker.open("job").await.expect("opens");
    for body in ["a", "b"] {
        send(&kept.tasks, [body.to_owned()]).await;
    }
    let held = receive(&kept.tasks, 1).await;
    receive_one(&dropped.tasks).await;
    drop(dropped);
    let again = receive(&kept.tasks, 1).await;
    assert_eq!((&*again[0].body, again[0].receive_count), (&b"b"[..], 2));
    let lost = kept
        .tasks
        .acknowledge(&[held[0].receipt.clone(), again[0].receipt.clone()])
        .await
        .expect("acknowledges");
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(rabbit.broker.connections(), 1);
}

/// An open queue leaves messages to other processes soon after its last receive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_queue_has_no_consumer() {
    let rabbit = Rabbit::new().await;
    let idle = rabbit.broker.create("job").await.expect("creates");
    let other = rabbit.broker.open("job").await.expect("opens");
    send(&idle.tasks, ["first".to_owned()]).await;
    // The broker counts a consumer that holds messages even after it has ended.
    assert_eq!(take(&idle.tasks).await, "first");
    let (_connection, channel) = channel().await;
    let consumers = async || {
        let passive = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
        let name = format!("{}-job-tasks", rabbit.options.prefix);
        channel
            .queue_declare(name.into(), passive, Default::default())
            .await
            .expect("exists")
            .consumer_count()
    };
    assert_eq!(consumers().await, 1);
    let ended = async {
        while consumers().await > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    send(&idle.tasks, ["second".to_owned()]).await;
    assert_eq!(take(&other.tasks).await, "second");
}

/// Repeatedly deleting and dropping the queues of a job does not affect other queues. (The broker itself closes the
/// connection if a queue is deleted just as a consumer begins.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_end_no_lease_of_other_queues() {
    let rabbit = Rabbit::new().await;
    let kept = rabbit.broker.create("job").await.expect("creates");
    send(&kept.tasks, ["held".to_owned()]).await;
    let held = receive(&kept.tasks, 1).await;
    for round in 0..30 {
        let other = rabbit.broker.create("other").await.expect("creates");
        send(&other.tasks, ["task".to_owned()]).await;
        take(&other.tasks).await;
        let tasks = other.tasks.clone();
        let receiving = tokio::spawn(async move {
            let request = request(1);
            while tasks.receive(request).await.is_ok() {}
        });
        tokio::time::sleep(Duration::from_millis(round % 7)).await;
        if round % 2 == 0 {
            receiving.abort();
        }
        let (deleted, ()) = tokio::join!(rabbit.broker.delete("other"), async { drop(other) });
        deleted.expect("deletes");
        // The task has been aborted, or ends once a receive fails because the queue is deleted.
        let _ = tokio::time::timeout(PATIENCE, receiving).await.expect("it ends");
        // `open` fails at the first missing queue, and drops the request for the other one; the timeout may drop both.
        let absent = rabbit.broker.open("other").await;
        assert!(matches!(absent, Err(Error::Absent { .. })), "{absent:?}");
        let _ =
            tokio::time::timeout(Duration::from_micros(500 * round), rabbit.broker.open("other"))
                .await;
    }
    let lost = kept.tasks.acknowledge(&[held[0].receipt.clone()]).await.expect("acknowledges");
    assert!(lost.is_empty(), "the connection broke");
    assert_eq!(rabbit.broker.connections(), 1);
}

/// The client would return the error of an earlier channel that had the same number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_queues_leave_no_error_behind() {
    let rabbit = Broker::start("channel_max = 36");
    let broker = connect(&options(rabbit.url(), "demo")).await;
    let kept = broker.create("kept").await.expect("creates");
    for round in 0..60 {
        let absent = broker.open("absent").await;
        assert!(matches!(absent, Err(Error::Absent { .. })), "{absent:?}");
        drop(broker.open("kept").await.unwrap_or_else(|error| panic!("round {round}: {error:#}")));
    }
    assert_all_work(&[kept]).await;
    assert!(broker.connections() <= 3, "{}", broker.connections());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_broker_ends_waiting_receives_and_opens_no_connection() {
    let rabbit = Rabbit::new().await;
    let queues = rabbit.broker.create("job").await.expect("creates");
    let waiting = queues.tasks.clone();
    let waiting = tokio::spawn(async move { waiting.receive(request(1)).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    rabbit.broker.close().await;
    let ended = tokio::time::timeout(Duration::from_secs(10), waiting)
        .await
        .expect("promptly")
        .expect("no panic");
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
    let refused = queues.tasks.send(vec![Message::new("late")]).await.expect_err("it is closed");
    assert!(
        format!("{refused:#}").contains("this process has closed its connection"),
        "{refused:#}"
    );
    assert_eq!(rabbit.broker.connections(), 0);
}
