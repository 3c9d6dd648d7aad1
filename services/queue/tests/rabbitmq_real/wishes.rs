//! The broker sends what is asked for and no more, so that other nodes get the rest.

use std::time::Duration;

use queue::{Queue, RabbitQueue};

use crate::{bodies, lost, numbered, receipts, receive_all, receive_one, request, send, unused_queue};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_holds_what_was_asked_for_and_leaves_the_rest() {
    let (options, _deleted) = unused_queue();
    let one = RabbitQueue::open(options.clone()).await.expect("opens");
    let other = RabbitQueue::open(options).await.expect("opens");
    send(&one, numbered(100)).await;
    let mut held = Vec::new();
    for messages in [3, 1, 10, 6] {
        while held.len() < messages {
            held.extend(one.receive(request(messages - held.len(), PATIENCE)).await.expect("receive"));
        }
    }
    let rest = receive_all(&other, 100 - held.len()).await;
    assert_eq!(held.len() + rest.len(), 100, "the other one gets everything else");
    assert_eq!(bodies(&[held, rest].concat()).len(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_that_becomes_free_is_filled_until_nothing_more_is_wanted() {
    let (options, _deleted) = unused_queue();
    let one = RabbitQueue::open(options.clone()).await.expect("opens");
    let other = RabbitQueue::open(options).await.expect("opens");
    send(&one, numbered(30)).await;
    let mut held = Vec::new();
    while held.len() < 10 {
        held.extend(one.receive(request(10 - held.len(), PATIENCE)).await.expect("receive"));
    }
    // Acknowledging makes room, which is filled; but nobody asks here any more.
    one.acknowledge(&receipts(&held[..5])).await.expect("acknowledge");
    assert!(one.receive(request(0, PATIENCE)).await.expect("receive").is_empty());
    let mut rest = Vec::new();
    while rest.len() < 20 {
        rest.extend(other.receive(request(20 - rest.len(), PATIENCE)).await.expect("all 20 come here in the end"));
    }
    assert!(rest.iter().all(|delivery| delivery.receive_count == 1), "nobody had them before: {rest:?}");
    assert!(lost(&one, &receipts(&held[5..])).await.is_empty(), "what was handed out stays leased");
    one.release(&receipts(&held[5..])).await.expect("release");
    let again = receive_one(&one).await;
    assert_eq!(again.receive_count, 2, "asking again works");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purging_takes_what_nobody_holds() {
    let (options, _deleted) = unused_queue();
    let queue = RabbitQueue::open(options).await.expect("opens");
    send(&queue, numbered(50)).await;
    let held = queue.receive(request(5, PATIENCE)).await.expect("receive");
    queue.purge().await.expect("purge");
    queue.release(&receipts(&held)).await.expect("release");
    let left = receive_all(&queue, held.len()).await;
    assert_eq!(bodies(&left), bodies(&held));
    queue.close().await.expect("close");
    assert_eq!(lost(&queue, &receipts(&left)).await, receipts(&left), "closing ends the leases");
    assert_eq!(bodies(&receive_all(&queue, held.len()).await), bodies(&held), "and a later call connects again");
}
