//! Groups have lanes: each gets its part of the deliveries, and a request never holds more than its messages.

use std::time::Duration;

use lapin::options::QueueDeleteOptions;
use queue::{Delivery, Error, Message, Queue, RabbitOptions, RabbitQueue, Receive};

use crate::{Deleted, bodies, receipts, receive, receive_all, receive_one, request, shared_url, unused_queue};

const LANES: usize = 8;

fn unused_lanes() -> (RabbitOptions, Deleted) {
    let (options, deleted) = unused_queue();
    (RabbitOptions { lanes: LANES, ..options }, deleted)
}

async fn open(options: &RabbitOptions) -> RabbitQueue {
    RabbitQueue::open(options.clone()).await.expect("opens")
}

async fn send(queue: &RabbitQueue, group: &str, count: usize) {
    let messages = (0..count).map(|number| Message::new(format!("{group}-{number:04}"), group));
    queue.send(messages.collect()).await.expect("send");
}

fn count(deliveries: &[Delivery], group: &str) -> usize {
    deliveries.iter().filter(|delivery| delivery.body.starts_with(group.as_bytes())).count()
}

/// Returns the number of ready messages of one lane.
async fn ready(options: &RabbitOptions, lane: usize) -> u64 {
    let one = RabbitOptions { lanes: 1, name: options.queue_names()[lane].clone(), ..options.clone() };
    open(&one).await.depth().await.expect("depth").visible
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lone_group_uses_the_queue_of_earlier_builds() {
    let (options, _deleted) = unused_lanes();
    let earlier = open(&RabbitOptions { lanes: 1, ..options.clone() }).await;
    send(&earlier, "old", 3).await;
    let queue = open(&options).await;
    assert_eq!(receive(&queue, 3).await.len(), 3, "messages of an earlier build");
    send(&queue, "new", 3).await;
    let deliveries = receive(&earlier, 3).await;
    assert_eq!(count(&deliveries, "new"), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_keeps_the_lane_with_the_fewest_messages() {
    let (options, _deleted) = unused_lanes();
    let publisher = open(&options).await;
    send(&publisher, "large", 100).await;
    send(&publisher, "small", 5).await;
    send(&publisher, "large", 10).await;
    send(&publisher, "small", 1).await;
    assert_eq!((ready(&options, 0).await, ready(&options, 1).await), (110, 6));
    for number in 2..LANES {
        send(&publisher, &format!("g{number}"), 40).await;
    }
    let ninth = open(&options).await;
    send(&ninth, "ninth", 1).await;
    assert_eq!(ready(&options, LANES - 1).await, 2 + 2 + 1, "the first messages of groups without a lane of their own");
    assert_eq!(
        (ready(&options, LANES - 2).await, ready(&options, 1).await),
        (30 + 30, 6 + 8 + 8),
        "the next, the rest"
    );
    assert_eq!(publisher.depth().await.expect("depth").visible, 110 + 6 + 1 + 40 * (LANES as u64 - 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_sends_to_the_lane_from_which_it_received() {
    let (options, _deleted) = unused_lanes();
    let publisher = open(&options).await;
    send(&publisher, "large", 50).await;
    send(&publisher, "small", 30).await;
    let worker = open(&options).await;
    let deliveries = receive(&worker, 20).await;
    assert!(count(&deliveries, "large") > 0);
    // Returned messages are sent before the delivery is acknowledged, to a lane that is not the shortest.
    let before = ready(&options, 0).await;
    send(&worker, "large", 7).await;
    assert_eq!(ready(&options, 0).await, before + 7);
    assert!(worker.acknowledge(&receipts(&deliveries)).await.expect("acknowledge").is_empty());
    assert_eq!(receive_all(&worker, 67).await.len(), 67);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_group_begins_while_a_receiver_works_on_a_large_one() {
    let (options, _deleted) = unused_lanes();
    let publisher = open(&options).await;
    send(&publisher, "large", 3000).await;
    let worker = open(&options).await;
    let mut held = receive(&worker, 16).await;
    send(&publisher, "small", 10).await;
    // A node settles some of its messages and requests as many, so its request is always satisfied at once.
    let (mut small, mut large) = (0, 0);
    while small < 10 {
        let done: Vec<Delivery> = held.drain(..2).collect();
        assert!(worker.acknowledge(&receipts(&done)).await.expect("acknowledge").is_empty());
        let more = receive(&worker, 2).await;
        small += count(&more, "small");
        large += count(&more, "large");
        held.extend(more);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(large < 2000, "{small} of 10 messages of the small group came with {large} of the large one");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_of_single_messages_serves_all_groups() {
    let (options, _deleted) = unused_lanes();
    let publisher = open(&options).await;
    for group in ["a", "b", "c"] {
        send(&publisher, group, 200).await;
    }
    let worker = open(&options).await;
    let mut held = Vec::new();
    for _ in 0..30 {
        held.push(receive_one(&worker).await);
    }
    assert_eq!(["a", "b", "c"].map(|group| count(&held, group)), [10, 10, 10]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_for_one_message_leaves_the_other_lanes_to_others() {
    let (options, _deleted) = unused_lanes();
    let one = open(&options).await;
    let waiting = tokio::spawn(async move {
        let delivery = receive_one(&one).await;
        (one, delivery)
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    // All lanes listen for the waiting request, and each gets a message.
    let publisher = open(&options).await;
    for number in 0..LANES {
        send(&publisher, &format!("g{number}"), 2).await;
    }
    let (one, delivery) = waiting.await.expect("no panic");
    let other = open(&options).await;
    let rest = receive(&other, 2 * LANES - 1).await;
    assert_eq!(bodies(&[vec![delivery.clone()], rest.clone()].concat()).len(), 2 * LANES);
    // The broker counts a message that it sends while its consumer ends, and no other.
    assert!(rest.iter().all(|delivery| delivery.receive_count <= 2), "{rest:?}");
    let counted = rest.iter().filter(|delivery| delivery.receive_count == 2).count();
    assert!(counted < LANES - 1, "returned messages were counted: {rest:?}");
    assert!(one.acknowledge(&[delivery.receipt]).await.expect("acknowledge").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_delivered_once_while_requests_grow_and_shrink() {
    const MESSAGES: usize = 10_000;
    let (options, _deleted) = unused_lanes();
    send(&open(&options).await, "lone", MESSAGES).await;
    let worker = open(&options).await;
    let (mut held, mut settled) = (Vec::new(), 0);
    for requested in [2, 500, 20, 300, 40].into_iter().cycle() {
        let received = worker.receive(request(requested)).await.expect("receive");
        let again = received.iter().filter(|delivery| delivery.receive_count > 1).count();
        assert_eq!(again, 0, "delivered a second time, after {settled} messages");
        // A node settles what its processes have done meanwhile: sometimes nearly all, sometimes little.
        held.extend(received);
        let done: Vec<Delivery> = held.drain(..held.len() - requested.min(held.len())).collect();
        settled += done.len();
        assert!(worker.acknowledge(&receipts(&done)).await.expect("acknowledge").is_empty());
        if settled + held.len() == MESSAGES {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_receive_gets_messages_of_every_lane() {
    let (options, _deleted) = unused_lanes();
    let publisher = open(&options).await;
    let worker = open(&options).await;
    for number in 0..LANES {
        // A backlog of another lane moves the next group. The first group without a lane has messages in both short ones.
        send(&publisher, &format!("g{number}"), if number == LANES - 2 { 3 } else { 1 }).await;
    }
    assert_eq!(receive(&worker, LANES + 2).await.len(), LANES + 2);
    for number in (0..LANES).rev() {
        let group = format!("g{number}");
        let (one, ()) = tokio::join!(receive_one(&worker), async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            send(&publisher, &group, 1).await;
        });
        assert_eq!(count(&[one], &group), 1);
    }
    let nothing = worker.receive(Receive { wait: Duration::from_millis(50), ..request(1) }).await.expect("receive");
    assert!(nothing.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purge_empties_every_lane() {
    let (options, _deleted) = unused_lanes();
    let queue = open(&options).await;
    for group in ["a", "b", "c"] {
        send(&queue, group, 5).await;
    }
    assert_eq!(queue.depth().await.expect("depth").visible, 15);
    queue.purge().await.expect("purge");
    assert_eq!(queue.depth().await.expect("depth").total(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_lane_is_not_recreated_silently() {
    let (options, _deleted) = unused_lanes();
    let queue = open(&options).await;
    let connection = lapin::Connection::connect(&shared_url(), lapin::ConnectionProperties::default()).await;
    let connection = connection.expect("connects");
    let channel = connection.create_channel().await.expect("a channel");
    let lane = options.queue_names()[5].as_str().into();
    channel.queue_delete(lane, QueueDeleteOptions::default()).await.expect("deleted");
    for error in [
        queue.send(vec![Message::new("more", "job")]).await.expect_err("a lane was deleted"),
        queue.receive(request(1)).await.expect_err("a lane was deleted"),
    ] {
        assert!(
            matches!(error, Error::Misconfigured { .. }) && format!("{error:#}").contains("it was deleted"),
            "{error:#}"
        );
    }
    open(&options).await.send(vec![Message::new("more", "job")]).await.expect("opening creates it again");
}

#[test]
fn task_queue_of_a_target_has_lanes() {
    let [tasks, results, dead_letters] = RabbitOptions::target("amqp://host", "p");
    assert_eq!(tasks.queue_names().len(), LANES);
    assert_eq!((tasks.queue_names()[0].as_str(), tasks.queue_names()[7].as_str()), ("p-tasks", "p-tasks-8"));
    assert_eq!((results.queue_names(), dead_letters.queue_names().len()), (vec!["p-results".to_owned()], 1));
}
