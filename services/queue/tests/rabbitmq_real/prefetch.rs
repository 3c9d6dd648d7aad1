//! The broker sends only as many messages as receivers request, so that other nodes get the rest.

use queue::{Queue, RabbitQueue};

use crate::{bodies, lost, numbered, receipts, receive, receive_all, receive_one, request, send, unused_queue};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_holds_requested_messages_and_leaves_the_rest() {
    let (options, _deleted) = unused_queue();
    let one = RabbitQueue::open(options.clone()).await.expect("opens");
    let other = RabbitQueue::open(options).await.expect("opens");
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
async fn prefetched_messages_return_after_the_last_request() {
    let (options, _deleted) = unused_queue();
    let one = RabbitQueue::open(options.clone()).await.expect("opens");
    let other = RabbitQueue::open(options).await.expect("opens");
    send(&one, numbered(30)).await;
    let held = receive(&one, 10).await;
    // Acknowledging makes room, which the broker fills; but no receive requests these messages here.
    one.acknowledge(&receipts(&held[..5])).await.expect("acknowledge");
    assert!(one.receive(request(0)).await.expect("receive").is_empty());
    let rest = receive(&other, 20).await;
    assert!(rest.iter().all(|delivery| delivery.receive_count == 1), "a returned message was counted: {rest:?}");
    assert!(lost(&one, &receipts(&held[5..])).await.is_empty(), "a lease was lost");
    one.release(&receipts(&held[5..])).await.expect("release");
    let again = receive_one(&one).await;
    assert_eq!(again.receive_count, 2, "a released message counts its delivery");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purge_removes_messages_that_no_consumer_holds() {
    let (options, _deleted) = unused_queue();
    let queue = RabbitQueue::open(options).await.expect("opens");
    send(&queue, numbered(50)).await;
    let held = receive(&queue, 5).await;
    queue.purge().await.expect("purge");
    queue.release(&receipts(&held)).await.expect("release");
    let left = receive_all(&queue, held.len()).await;
    assert_eq!(bodies(&left), bodies(&held));
    queue.close().await.expect("close");
    assert_eq!(lost(&queue, &receipts(&left)).await, receipts(&left), "closing ends the leases");
    assert_eq!(bodies(&receive_all(&queue, held.len()).await), bodies(&held), "a later call connects again");
}
