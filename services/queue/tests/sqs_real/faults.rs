//! Requests that fail in whole or in part.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue::{Error, Queue, Receive, SqsQueue};
use tokio::sync::Notify;

use crate::proxy::{Fate, Proxy, Request};
use crate::{
    Deleted, PATIENCE, localstack, messages, open, receipts, receive, request, sorted_bodies,
    unused_name,
};

const THROTTLED: &str =
    r#"{"__type":"com.amazonaws.sqs#RequestThrottled","message":"Rate exceeded"}"#;
const THROTTLED_OTHERWISE: &str = r#"{"__type":"ThrottlingException","message":"Rate exceeded"}"#;
const BROKEN: &str = r#"{"__type":"com.amazonaws.sqs#InternalFailure"}"#;

/// Opens a queue of LocalStack behind a proxy that calls `decide` for every request.
pub async fn behind(
    decide: impl Fn(&Request) -> Fate + Send + Sync + 'static,
) -> (Deleted, SqsQueue, Proxy) {
    let name = unused_name();
    let direct = Deleted(open(&localstack(), &name, true).await.expect("opens"));
    let proxy = Proxy::start(&localstack(), decide);
    let queue = open(&proxy.endpoint, &name, false).await.expect("opens");
    (direct, queue, proxy)
}

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:05}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_carry_ten_messages_each() {
    let (_direct, queue, proxy) = behind(|_| Fate::Pass).await;
    queue.send(messages(1000)).await.expect("sends");
    let deliveries = receive(&queue, 1000).await;
    assert_eq!(sorted_bodies(&deliveries), expected(1000));
    let receipts = receipts(&deliveries);
    let leases: Vec<_> =
        receipts.iter().map(|receipt| (receipt.clone(), Duration::from_secs(60))).collect();
    assert!(queue.extend(&leases).await.expect("extends").is_empty());
    assert!(queue.acknowledge(&receipts).await.expect("acknowledges").is_empty());
    let requests = proxy.requests();
    for action in ["SendMessageBatch", "ChangeMessageVisibilityBatch", "DeleteMessageBatch"] {
        let sizes = requests
            .iter()
            .filter(|request| request.action == action)
            .map(|request| request.entries().len());
        let sizes: Vec<usize> = sizes.collect();
        // If a busy service answers too late, the queue sends the request again.
        assert!(sizes.len() >= 100 && sizes.iter().all(|size| *size == 10), "{action}: {sizes:?}");
    }
    let polls = requests.iter().filter(|request| request.action == "ReceiveMessage");
    let sizes: Vec<_> = polls
        .map(|request| request.body["MaxNumberOfMessages"].as_u64().expect("a number"))
        .collect();
    assert!(sizes.len() >= 100 && sizes[..100].iter().all(|size| *size == 10), "{sizes:?}");
    assert!(requests.len() < 450, "{} requests", requests.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn nearly_empty_queue_gets_few_requests() {
    let (_direct, queue, proxy) = behind(|_| Fate::Pass).await;
    queue.send(messages(12)).await.expect("sends");
    let (mut received, mut calls) = (0, 0);
    while received < 12 {
        received += queue
            .receive(Receive { wait: PATIENCE, ..request(1000) })
            .await
            .expect("receives")
            .len();
        calls += 1;
    }
    let polls = proxy.count("ReceiveMessage");
    assert!(polls <= 3 * calls, "{polls} requests for {calls} calls");
    assert!(queue.receive(request(1000)).await.expect("receives").is_empty());
    assert_eq!(proxy.count("ReceiveMessage"), polls + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn known_answers_cost_no_request() {
    let (_direct, queue, proxy) = behind(|_| Fate::Pass).await;
    queue.send(messages(1)).await.expect("sends");
    let receipts = receipts(&receive(&queue, 1).await);
    queue.release(&receipts).await.expect("releases");
    let before = proxy.requests().len();
    assert_eq!(
        queue.extend(&[(receipts[0].clone(), Duration::from_secs(9))]).await.expect("extends"),
        receipts
    );
    queue.release(&receipts).await.expect("releases");
    queue.send(Vec::new()).await.expect("sends");
    assert!(queue.receive(request(0)).await.expect("receives").is_empty());
    assert_eq!(proxy.requests().len(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_failed_entries_are_retried() {
    // Entries 1, 4 and 7 of every batch fail once.
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let decide = move |request: &Request| {
        let identity = |entry: &serde_json::Value| {
            let (body, handle) = (entry["MessageBody"].as_str(), entry["ReceiptHandle"].as_str());
            format!("{} {}", request.action, body.or(handle).expect("one of them"))
        };
        let mut seen = seen.lock().expect("no holder panics");
        let first = |entry: &&serde_json::Value| seen.insert(identity(entry));
        let new: Vec<_> = request.entries().iter().filter(first).collect();
        let failing =
            new.iter().filter(|entry| matches!(entry["Id"].as_str(), Some("1" | "4" | "7")));
        match failing
            .map(|entry| entry["Id"].as_str().expect("text").to_owned())
            .collect::<Vec<_>>()
        {
            ids if ids.is_empty() => Fate::Pass,
            ids => request.hold_back(&ids, "InternalError"),
        }
    };
    let (_direct, queue, proxy) = behind(decide).await;
    queue.send(messages(100)).await.expect("sends");
    let deliveries = receive(&queue, 100).await;
    assert_eq!(sorted_bodies(&deliveries), expected(100), "an entry was sent twice");
    let receipts = receipts(&deliveries);
    let leases: Vec<_> =
        receipts.iter().map(|receipt| (receipt.clone(), Duration::from_secs(90))).collect();
    assert!(queue.extend(&leases).await.expect("extends").is_empty());
    assert!(queue.acknowledge(&receipts).await.expect("acknowledges").is_empty());
    for action in ["SendMessageBatch", "ChangeMessageVisibilityBatch", "DeleteMessageBatch"] {
        let requests: Vec<Request> =
            proxy.requests().into_iter().filter(|request| request.action == action).collect();
        let entries: usize = requests.iter().map(|request| request.entries().len()).sum();
        assert_eq!((requests.len(), entries), (20, 130), "{action}");
    }
    assert_eq!(queue.depth().await.expect("depth").total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn throttled_and_broken_requests_are_retried() {
    // Three requests of each action fail, each in a different way.
    let failures = [
        Some((400, THROTTLED)),
        Some((503, "")),
        Some((500, BROKEN)),
        None,
        Some((429, THROTTLED_OTHERWISE)),
    ];
    let left: Mutex<std::collections::HashMap<String, usize>> = Mutex::default();
    let next = AtomicUsize::new(0);
    let decide = move |request: &Request| {
        let mut left = left.lock().expect("no holder panics");
        let left = left.entry(request.action.clone()).or_insert(3);
        match left.checked_sub(1) {
            None => Fate::Pass,
            Some(fewer) => {
                *left = fewer;
                match failures[next.fetch_add(1, Ordering::Relaxed) % failures.len()] {
                    Some((status, answer)) => Fate::Fail(status, answer),
                    None => Fate::Close,
                }
            }
        }
    };
    let (_direct, queue, proxy) = behind(decide).await;
    queue.send(messages(50)).await.expect("sends");
    let deliveries = receive(&queue, 50).await;
    assert_eq!(sorted_bodies(&deliveries), expected(50));
    let receipts = receipts(&deliveries);
    assert!(
        queue
            .extend(&[(receipts[0].clone(), Duration::from_secs(60))])
            .await
            .expect("extends")
            .is_empty()
    );
    assert!(queue.acknowledge(&receipts).await.expect("acknowledges").is_empty());
    assert_eq!(queue.depth().await.expect("depth").total(), 0);
    for (action, needed) in
        [("SendMessageBatch", 5), ("DeleteMessageBatch", 5), ("ChangeMessageVisibilityBatch", 1)]
    {
        let made = proxy.count(action);
        // If a busy service answers too late, the queue sends the request again.
        assert!((needed + 3..needed + 9).contains(&made), "{action}: {made}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lasting_throttling_is_reported_as_unavailable() {
    let decide = |request: &Request| match request.action.as_str() {
        "SendMessageBatch" => Fate::Fail(400, THROTTLED),
        "ReceiveMessage" => Fate::Fail(503, ""),
        _ => Fate::Pass,
    };
    let (_direct, queue, proxy) = behind(decide).await;
    let (sent, received) = tokio::join!(queue.send(messages(1)), queue.receive(request(1)));
    let text = |error: &Error| format!("{error:#}");
    assert!(
        matches!(&sent, Err(error @ Error::Unavailable { .. }) if text(error).contains("RequestThrottled")),
        "{sent:?}"
    );
    assert!(
        matches!(&received, Err(error @ Error::Unavailable { .. }) if text(error).contains("503")),
        "{received:?}"
    );
    assert!(
        (4..=9).contains(&proxy.count("SendMessageBatch")),
        "{}",
        proxy.count("SendMessageBatch")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_request_is_retried() {
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
    let mut deliveries = Vec::new();
    while deliveries.is_empty() {
        deliveries = queue.receive(request(1)).await.expect("receives");
    }
    assert_eq!(sorted_bodies(&deliveries), expected(1));
    assert!(proxy.count("SendMessageBatch") >= 2 && proxy.count("ReceiveMessage") >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answer_may_duplicate_but_loses_nothing() {
    // The first answer to each action is lost: the action took effect, but the queue does not know.
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let decide = move |request: &Request| match request.action.as_str() {
        "SendMessageBatch"
        | "ReceiveMessage"
        | "ChangeMessageVisibilityBatch"
        | "DeleteMessageBatch"
            if seen.lock().expect("no holder panics").insert(request.action.clone()) =>
        {
            Fate::LoseAnswer
        }
        _ => Fate::Pass,
    };
    let (_direct, queue, _proxy) = behind(decide).await;
    queue.send(messages(3)).await.expect("sends");
    let briefly = Receive { visibility: Duration::from_secs(5), wait: PATIENCE, ..request(10) };
    let mut deliveries = Vec::new();
    while deliveries.len() < 6 {
        let more = queue.receive(briefly).await.expect("receives");
        let receipts = receipts(&more);
        let leases: Vec<_> = receipts.iter().map(|receipt| (receipt.clone(), PATIENCE)).collect();
        // A short lease may be lost on a busy machine; its message is delivered again.
        let lost = queue.extend(&leases).await.expect("extends");
        deliveries.extend(more.into_iter().filter(|delivery| !lost.contains(&delivery.receipt)));
    }
    assert_eq!(sorted_bodies(&deliveries), ["00000", "00000", "00001", "00001", "00002", "00002"]);
    assert!(queue.acknowledge(&receipts(&deliveries)).await.expect("acknowledges").is_empty());
    assert_eq!(queue.depth().await.expect("depth").total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_request_does_not_affect_messages_of_others() {
    // After the first request, every second one fails.
    let polls = AtomicUsize::new(0);
    let decide = move |request: &Request| {
        let is_poll = request.action == "ReceiveMessage";
        if is_poll && polls.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            return Fate::Fail(503, "");
        }
        Fate::Pass
    };
    let (_direct, queue, _proxy) = behind(decide).await;
    queue.send(messages(300)).await.expect("sends");
    let mut deliveries = Vec::new();
    while deliveries.len() < 300 {
        deliveries.extend(queue.receive(request(100)).await.expect("receives"));
    }
    assert_eq!(sorted_bodies(&deliveries), expected(300), "a message was lost or duplicated");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_dropped_receive_are_released() {
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
    let again = receive(&direct, 1).await;
    assert_eq!((sorted_bodies(&again), again[0].receive_count), (expected(1), 2));
    assert_eq!(proxy.count("ReceiveMessage"), 1, "the dropped receive still waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_request_of_a_killed_process_gets_no_messages() {
    let name = unused_name();
    let queue = Deleted(open(&localstack(), &name, true).await.expect("opens"));
    queue.send(messages(1)).await.expect("sends");
    let received = Arc::new(Notify::new());
    // A runtime stands for a process: its end closes its connections.
    let process = tokio::runtime::Runtime::new().expect("starts");
    let has_received = received.clone();
    process.spawn(async move {
        let queue = open(&localstack(), &name, false).await.expect("opens");
        let request =
            Receive { messages_max: 1, visibility: Duration::from_secs(5), wait: PATIENCE };
        let held = queue.receive(request).await.expect("receives");
        assert_eq!(held.len(), 1);
        has_received.notify_one();
        queue.receive(request).await.expect("receives");
    });
    received.notified().await;
    // The second request is on its way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    process.shutdown_background();
    let again = receive(&queue, 1).await;
    assert_eq!(
        again[0].receive_count, 2,
        "the abandoned request took the message for another lease"
    );
}
