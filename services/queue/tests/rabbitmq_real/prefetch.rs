//! The broker sends only as many messages as receivers request, so that other nodes get the rest.

use queue::Delivery;

use crate::{
    bodies, lost, numbered, open, receipts, receive, receive_all, receive_one, request, send,
    unused_queues,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_holds_requested_messages_and_leaves_the_rest() {
    let (options, _deleted) = unused_queues();
    let one = open(&options).await;
    let other = open(&options).await;
    send(&one, numbered(100)).await;
    let mut held = Vec::new();
    for messages in [3, 1, 10, 6] {
        held.extend(receive(&one, messages).await);
    }
    let rest = receive_all(&other, 100 - held.len()).await;
    assert_eq!(held.len() + rest.len(), 100, "the other queue gets everything else");
    assert_eq!(bodies(&[held, rest].concat()).len(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_delivered_once_while_requests_grow_and_shrink() {
    const MESSAGES: usize = 10_000;
    let (options, _deleted) = unused_queues();
    let queue = open(&options).await;
    send(&queue, numbered(MESSAGES)).await;
    let (mut held, mut settled) = (Vec::new(), 0);
    for requested in [2, 500, 20, 300, 40].into_iter().cycle() {
        let received = queue.receive(request(requested)).await.expect("receive");
        let again = received.iter().filter(|delivery| delivery.receive_count > 1).count();
        assert_eq!(again, 0, "delivered a second time, after {settled} messages");
        // A node settles the messages that its processes have finished: sometimes nearly all, sometimes few.
        held.extend(received);
        let done: Vec<Delivery> = held.drain(..held.len() - requested.min(held.len())).collect();
        settled += done.len();
        assert!(queue.acknowledge(&receipts(&done)).await.expect("acknowledge").is_empty());
        if settled + held.len() == MESSAGES {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefetched_messages_return_after_the_last_request() {
    let (options, _deleted) = unused_queues();
    let one = open(&options).await;
    let other = open(&options).await;
    send(&one, numbered(30)).await;
    let held = receive(&one, 10).await;
    // Acknowledging makes room, so the broker sends more messages, which no receive requests.
    one.acknowledge(&receipts(&held[..5])).await.expect("acknowledge");
    assert!(one.receive(request(0)).await.expect("receive").is_empty());
    let rest = receive(&other, 20).await;
    assert!(
        rest.iter().all(|delivery| delivery.receive_count == 1),
        "a returned message was counted: {rest:?}"
    );
    assert!(lost(&one, &receipts(&held[5..])).await.is_empty(), "a lease was lost");
    one.release(&receipts(&held[5..])).await.expect("release");
    let again = receive_one(&one).await;
    assert_eq!(again.receive_count, 2, "a released message counts its delivery");
}
