//! Requests that fail, in whole and in part.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue::{Error, Queue, Receive, SqsQueue};
use tokio::sync::Notify;

use crate::proxy::{Fate, Proxy, Request};
use crate::{Deleted, localstack, messages, open, receipts, receive_all, request, sorted_bodies, unused_name};

const THROTTLED: &str = r#"{"__type":"com.amazonaws.sqs#RequestThrottled","message":"Rate exceeded"}"#;
const THROTTLED_OTHERWISE: &str = r#"{"__type":"ThrottlingException","message":"Rate exceeded"}"#;
const BROKEN: &str = r#"{"__type":"com.amazonaws.sqs#InternalFailure"}"#;

/// A queue of LocalStack behind a proxy that asks `decide`.
pub async fn behind(decide: impl Fn(&Request) -> Fate + Send + Sync + 'static) -> (Deleted, SqsQueue, Proxy) {
    let name = unused_name();
    let direct = Deleted(open(&localstack(), &name, true).await.expect("opens"));
    let proxy = Proxy::start(&localstack(), decide).await;
    let queue = open(&proxy.endpoint, &name, false).await.expect("opens");
    (direct, queue, proxy)
}

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:05}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_messages_take_a_hundred_requests_each_way() {
    let (_direct, queue, proxy) = behind(|_| Fate::Pass).await;
    queue.send(messages(1000)).await.expect("sends");
    let deliveries = queue.receive(request(1000)).await.expect("receives");
    assert_eq!(sorted_bodies(&deliveries), expected(1000));
    let receipts = receipts(&deliveries);
    let leases: Vec<_> = receipts.iter().map(|receipt| (receipt.clone(), Duration::from_secs(60))).collect();
    assert!(queue.extend(&leases).await.expect("extends").is_empty());
    assert!(queue.acknowledge(&receipts).await.expect("acknowledges").is_empty());
    for action in ["SendMessageBatch", "ReceiveMessage", "ChangeMessageVisibilityBatch", "DeleteMessageBatch"] {
        assert_eq!(proxy.count(action), 100, "{action}");
    }
    assert_eq!(proxy.count("GetQueueUrl") + proxy.count("GetQueueAttributes"), 2);
    assert_eq!(proxy.requests().len(), 402);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_little_in_it_is_not_asked_often() {
    let (_direct, queue, proxy) = behind(|_| Fate::Pass).await;
    queue.send(messages(12)).await.expect("sends");
    assert_eq!(queue.receive(request(1000)).await.expect("receives").len(), 12);
    assert_eq!(proxy.count("ReceiveMessage"), 3);
    assert!(queue.receive(request(1000)).await.expect("receives").is_empty());
    assert_eq!(proxy.count("ReceiveMessage"), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_here_costs_no_request() {
    let (_direct, queue, proxy) = behind(|_| Fate::Pass).await;
    queue.send(messages(1)).await.expect("sends");
    let receipts = receipts(&receive_all(&queue).await);
    queue.release(&receipts).await.expect("releases");
    let before = proxy.requests().len();
    assert_eq!(queue.extend(&[(receipts[0].clone(), Duration::from_secs(9))]).await.expect("extends"), receipts);
    queue.release(&receipts).await.expect("releases");
    queue.send(Vec::new()).await.expect("sends");
    assert!(queue.receive(request(0)).await.expect("receives").is_empty());
    assert_eq!(proxy.requests().len(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_the_entries_that_failed_are_sent_again() {
    // Of every batch, entries 1, 4 and 7 fail the first time they are seen.
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let decide = move |request: &Request| {
        let identity = |entry: &serde_json::Value| {
            let (body, handle) = (entry["MessageBody"].as_str(), entry["ReceiptHandle"].as_str());
            format!("{} {}", request.action, body.or(handle).expect("one of them"))
        };
        let mut seen = seen.lock().expect("no holder panics");
        let first = |entry: &&serde_json::Value| seen.insert(identity(entry));
        let new: Vec<_> = request.entries().iter().filter(first).collect();
        let failing = new.iter().filter(|entry| matches!(entry["Id"].as_str(), Some("1" | "4" | "7")));
        match failing.map(|entry| entry["Id"].as_str().expect("text").to_owned()).collect::<Vec<_>>() {
            ids if ids.is_empty() => Fate::Pass,
            ids => Fate::HoldBack(ids, "InternalError"),
        }
    };
    let (_direct, queue, proxy) = behind(decide).await;
    queue.send(messages(100)).await.expect("sends");
    let deliveries = receive_all(&queue).await;
    assert_eq!(sorted_bodies(&deliveries), expected(100), "each is sent once");
    let receipts = receipts(&deliveries);
    let leases: Vec<_> = receipts.iter().map(|receipt| (receipt.clone(), Duration::from_secs(90))).collect();
    assert!(queue.extend(&leases).await.expect("extends").is_empty());
    assert!(queue.acknowledge(&receipts).await.expect("acknowledges").is_empty());
    for action in ["SendMessageBatch", "ChangeMessageVisibilityBatch", "DeleteMessageBatch"] {
        let requests: Vec<Request> = proxy.requests().into_iter().filter(|request| request.action == action).collect();
        let entries: usize = requests.iter().map(|request| request.entries().len()).sum();
        assert_eq!((requests.len(), entries), (20, 130), "{action}");
    }
    assert_eq!(queue.depth().await.expect("depth").total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn throttled_and_broken_requests_are_made_again() {
    // Three requests of each action fail, each in another way.
    let failures =
        [Some((400, THROTTLED)), Some((503, "")), Some((500, BROKEN)), None, Some((429, THROTTLED_OTHERWISE))];
    let left: Mutex<std::collections::HashMap<String, usize>> = Mutex::default();
    let next = AtomicUsize::new(0);
    let decide = move |request: &Request| {
        let mut left = left.lock().expect("no holder panics");
        let left = left.entry(request.action.clone()).or_insert(3);
        match left.checked_sub(1) {
            None => Fate::Pass,
            Some(fewer) => {
                *left = fewer;
                Fate::Fail(failures[next.fetch_add(1, Ordering::Relaxed) % failures.len()])
            }
        }
    };
    let (_direct, queue, proxy) = behind(decide).await;
    queue.send(messages(50)).await.expect("sends");
    let deliveries = receive_all(&queue).await;
    assert_eq!(sorted_bodies(&deliveries), expected(50));
    let receipts = receipts(&deliveries);
    assert!(queue.extend(&[(receipts[0].clone(), Duration::from_secs(60))]).await.expect("extends").is_empty());
    assert!(queue.acknowledge(&receipts).await.expect("acknowledges").is_empty());
    assert_eq!(queue.depth().await.expect("depth").total(), 0);
    assert_eq!(proxy.count("SendMessageBatch"), 5 + 3);
    assert_eq!(proxy.count("DeleteMessageBatch"), 5 + 3);
    assert_eq!(proxy.count("ChangeMessageVisibilityBatch"), 1 + 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_stays_throttled_is_unavailable_in_the_end() {
    let decide = |request: &Request| match request.action.as_str() {
        "SendMessageBatch" => Fate::Fail(Some((400, THROTTLED))),
        "ReceiveMessage" => Fate::Fail(Some((503, ""))),
        _ => Fate::Pass,
    };
    let (_direct, queue, proxy) = behind(decide).await;
    let (sent, received) = tokio::join!(queue.send(messages(1)), queue.receive(request(1)));
    let told = |error: &Error| error.to_string();
    assert!(
        matches!(&sent, Err(error @ Error::Unavailable { .. }) if told(error).contains("RequestThrottled")),
        "{sent:?}"
    );
    assert!(matches!(&received, Err(error @ Error::Unavailable { .. }) if told(error).contains("503")), "{received:?}");
    assert!((4..=9).contains(&proxy.count("SendMessageBatch")), "{}", proxy.count("SendMessageBatch"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_hangs_is_made_again() {
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let decide = move |request: &Request| match request.action.as_str() {
        action @ ("SendMessageBatch" | "ReceiveMessage")
            if seen.lock().expect("no holder panics").insert(action.to_owned()) =>
        {
            Fate::Stall
        }
        _ => Fate::Pass,
    };
    let (_direct, queue, proxy) = behind(decide).await;
    queue.send(messages(1)).await.expect("sends");
    assert_eq!(sorted_bodies(&queue.receive(request(1)).await.expect("receives")), expected(1));
    assert_eq!((proxy.count("SendMessageBatch"), proxy.count("ReceiveMessage")), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_may_send_twice_and_never_loses() {
    // The first answer to each action is lost: what it did is done, and the queue cannot know.
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let decide = move |request: &Request| match request.action.as_str() {
        "SendMessageBatch" | "ReceiveMessage" | "ChangeMessageVisibilityBatch" | "DeleteMessageBatch"
            if seen.lock().expect("no holder panics").insert(request.action.clone()) =>
        {
            Fate::LoseAnswer
        }
        _ => Fate::Pass,
    };
    let (_direct, queue, _proxy) = behind(decide).await;
    queue.send(messages(3)).await.expect("sends");
    let briefly = Receive { visibility: Duration::from_secs(5), wait: Duration::from_secs(20), ..request(10) };
    let mut deliveries = Vec::new();
    while deliveries.len() < 6 {
        let more = queue.receive(briefly).await.expect("receives");
        let receipts = receipts(&more);
        let leases: Vec<_> = receipts.iter().map(|receipt| (receipt.clone(), Duration::from_secs(60))).collect();
        assert!(queue.extend(&leases).await.expect("extends").is_empty());
        deliveries.extend(more);
    }
    assert_eq!(sorted_bodies(&deliveries), ["00000", "00000", "00001", "00001", "00002", "00002"]);
    assert!(queue.acknowledge(&receipts(&deliveries)).await.expect("acknowledges").is_empty());
    assert_eq!(queue.depth().await.expect("depth").total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_failed_request_does_not_take_the_others_messages() {
    // Of the requests that follow the first, every second one fails for good.
    let polls = AtomicUsize::new(0);
    let decide = move |request: &Request| {
        let is_poll = request.action == "ReceiveMessage";
        if is_poll && polls.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            return Fate::Fail(Some((503, "")));
        }
        Fate::Pass
    };
    let (_direct, queue, _proxy) = behind(decide).await;
    queue.send(messages(300)).await.expect("sends");
    let mut deliveries = Vec::new();
    while deliveries.len() < 300 {
        deliveries.extend(queue.receive(request(100)).await.expect("receives"));
    }
    assert_eq!(sorted_bodies(&deliveries), expected(300), "none is lost, none comes twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dropped_receive_was_given_is_released() {
    let (polled, released) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let decide = {
        let (polled, released) = (polled.clone(), released.clone());
        move |request: &Request| {
            match request.action.as_str() {
                "ReceiveMessage" => polled.notify_one(),
                "ChangeMessageVisibilityBatch" => released.notify_one(),
                _ => {}
            }
            Fate::Pass
        }
    };
    let (direct, queue, proxy) = behind(decide).await;
    let hour = Duration::from_secs(3600);
    let waiting = queue.receive(Receive { visibility: hour, wait: hour, ..request(10) });
    tokio::select! {
        received = waiting => panic!("the queue is empty: {received:?}"),
        () = polled.notified() => {}
    }
    direct.send(messages(1)).await.expect("sends");
    released.notified().await;
    let again = direct.receive(Receive { wait: Duration::from_secs(20), ..request(1) }).await.expect("receives");
    assert_eq!((sorted_bodies(&again), again[0].receive_count), (expected(1), 2));
    assert_eq!(proxy.count("ReceiveMessage"), 1, "nobody waits any more");
}
