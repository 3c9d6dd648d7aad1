//! The limits of SQS: sizes, times and counts.

use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use queue::{Depth, Error, Message, Queue, Receive, SqsQueue};

use crate::faults::behind;
use crate::proxy::{Fate, Proxy};
use crate::{
    Deleted, PATIENCE, client, localstack, moto, name_of, open, receive, unused_name, unused_queue,
    url_of,
};

const HOUR: Duration = Duration::from_secs(3600);

async fn receive_one(queue: &SqsQueue, visibility: Duration) -> queue::Delivery {
    let request = Receive { messages_max: 1, visibility, wait: PATIENCE };
    queue.receive(request).await.expect("receives").remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn largest_body_fits_with_any_content() {
    let service = client(&localstack()).await;
    let (name, size) = (unused_name(), QueueAttributeName::MaximumMessageSize);
    service
        .create_queue()
        .queue_name(&name)
        .attributes(size, "2048")
        .send()
        .await
        .expect("creates");
    let queue = Deleted(open(&localstack(), &name, false).await.expect("opens"));
    let bytes_max = queue.limits().message_bytes_max;
    assert_eq!(bytes_max, 1530, "three quarters, less the marker of the encoding");
    let bodies = [vec![0xff; bytes_max], vec![b'x'; bytes_max], vec![b'\n'; bytes_max]];
    queue.send(bodies.iter().map(|body| Message::new(body.clone())).collect()).await.expect("fits");
    let refused = queue.send(vec![Message::new(vec![b'x'; bytes_max + 1])]).await;
    assert!(
        matches!(refused, Err(Error::TooLarge { bytes: 1531, bytes_max: 1530, .. })),
        "{refused:?}"
    );
    let mut received: Vec<_> =
        receive(&queue, 3).await.into_iter().map(|delivery| delivery.body).collect();
    received.sort();
    assert_eq!(received, [vec![b'\n'; bytes_max], vec![b'x'; bytes_max], vec![0xff; bytes_max]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_respect_the_size_limit_of_requests() {
    let (_direct, queue, proxy) = behind(|_| Fate::Pass).await;
    assert_eq!(queue.limits().message_bytes_max, 786_426);
    // Three encoded bodies fit into a mebibyte.
    let bodies: Vec<Vec<u8>> =
        (0..30u8).map(|number| [vec![0xff, number], vec![0; 200_000]].concat()).collect();
    queue
        .send(bodies.iter().map(|body| Message::new(body.clone())).collect())
        .await
        .expect("sends");
    assert_eq!(proxy.count("SendMessageBatch"), 10);
    let mut received: Vec<_> =
        receive(&queue, 30).await.into_iter().map(|delivery| delivery.body).collect();
    received.sort();
    assert!(received == bodies, "bodies differ");
}

#[tokio::test(flavor = "multi_thread")]
async fn times_are_rounded_up_to_seconds() {
    let (_direct, queue, proxy) = behind(|_| Fate::Pass).await;
    let message = |delay| Message { delay, ..Message::new("a") };
    queue
        .send([0, 1, 1001, 20 * 60_000].map(|delay| message(Duration::from_millis(delay))).to_vec())
        .await
        .expect("sends");
    let request = Receive {
        messages_max: 1,
        visibility: Duration::from_millis(30_001),
        wait: Duration::from_millis(10),
    };
    let receipt = loop {
        if let Some(delivery) = queue.receive(request).await.expect("receives").pop() {
            break delivery.receipt;
        }
    };
    assert!(
        queue
            .extend(&[(receipt, Duration::from_millis(59_999))])
            .await
            .expect("extends")
            .is_empty()
    );
    let body = |action: &str| {
        let mut requests = proxy.requests().into_iter().filter(|request| request.action == action);
        requests.next().expect("was made").body
    };
    let sent = body("SendMessageBatch");
    let sent = sent["Entries"].as_array().expect("entries");
    let delays: Vec<_> =
        sent.iter().map(|entry| entry["DelaySeconds"].as_u64().expect("a number")).collect();
    assert_eq!(delays, [0, 1, 2, 900]);
    let received = body("ReceiveMessage");
    assert_eq!(
        (&received["VisibilityTimeout"], &received["WaitTimeSeconds"]),
        (&31.into(), &1.into())
    );
    assert_eq!(body("ChangeMessageVisibilityBatch")["Entries"][0]["VisibilityTimeout"], 60);
}

/// Moto rejects leases beyond 12 hours, as AWS does.
#[tokio::test(flavor = "multi_thread")]
async fn extension_ends_twelve_hours_after_the_receive() {
    let direct = unused_queue(&moto()).await;
    let name = name_of(&direct).await;
    let proxy = Proxy::start(&moto(), |_| Fate::Pass);
    let queue = open(&proxy.endpoint, &name, false).await.expect("opens");
    queue.send(vec![Message::new("a")]).await.expect("sends");
    let delivery = receive_one(&queue, 13 * HOUR).await;
    for _ in 0..2 {
        let lost = queue
            .extend(&[(delivery.receipt.clone(), 13 * HOUR)])
            .await
            .expect("is shortened to the remaining time");
        assert!(lost.is_empty());
    }
    let entries: Vec<_> =
        proxy.requests().iter().flat_map(|request| request.entries().to_vec()).collect();
    let timeouts = entries.iter().filter_map(|entry| entry["VisibilityTimeout"].as_u64());
    assert!(timeouts.clone().all(|seconds| (43_180..=43_195).contains(&seconds)), "{timeouts:?}");

    // The service rejects a longer extension.
    let service = client(&moto()).await;
    let url = url_of(&service, &name).await;
    queue.send(vec![Message::new("b")]).await.expect("sends");
    let received = loop {
        let received = service
            .receive_message()
            .queue_url(&url)
            .wait_time_seconds(5)
            .send()
            .await
            .expect("receives");
        if !received.messages().is_empty() {
            break received;
        }
    };
    let handle = received.messages()[0].receipt_handle().expect("a handle");
    let request = service
        .change_message_visibility()
        .queue_url(&url)
        .receipt_handle(handle)
        .visibility_timeout(43_200);
    tokio::time::sleep(Duration::from_millis(10)).await;
    let refused = request.send().await.expect_err("refuses");
    assert!(format!("{refused:?}").contains("beyond the limit"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_and_depth_are_counted() {
    for endpoint in [localstack(), moto()] {
        let queue = unused_queue(&endpoint).await;
        let mut messages: Vec<_> = ["a", "b", "c"].map(Message::new).to_vec();
        messages.push(Message { delay: Duration::from_secs(600), ..Message::new("later") });
        queue.send(messages).await.expect("sends");
        for count in 1..=3 {
            let delivery = receive_one(&queue, Duration::from_secs(60)).await;
            // Released messages are delivered in a different order from new ones.
            assert!((1..=count).contains(&delivery.receive_count), "{delivery:?}");
            queue.release(&[delivery.receipt]).await.expect("releases");
        }
        let taken = receive(&queue, 2).await;
        assert_eq!(
            queue.depth().await.expect("depth"),
            Depth { visible: 1, in_flight: 2, delayed: 1 }
        );
        let rest = receive(&queue, 1).await;
        let counts: u32 = taken.iter().chain(&rest).map(|delivery| delivery.receive_count).sum();
        assert_eq!(
            counts,
            3 + 3,
            "three messages were released once each, or one of them several times"
        );
    }
}
