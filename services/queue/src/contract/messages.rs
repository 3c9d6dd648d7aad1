//! Properties of sending, receiving and waiting.

use super::*;

/// A body may have any bytes, and any size from 0 to 200 kB or the queue's limit.
pub async fn bodies_are_delivered_unchanged(harness: &dyn Harness) {
    let test = Tester::new(harness);
    let large = 200_000.min(test.capabilities.message_bytes_max.unwrap_or(usize::MAX));
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let mut bodies = vec![
        Bytes::new(),
        Bytes::from_static(b"plain"),
        Bytes::from_static("größer als ASCII \u{0}".as_bytes()),
        Bytes::from_static(b"\xff\xfe not UTF-8"),
        Bytes::from(every_byte.iter().copied().cycle().take(large).collect::<Vec<u8>>()),
        Bytes::from(every_byte),
    ];
    let messages = bodies.iter().map(|body| Message::new(body.clone())).collect();
    test.queue.send(messages).await.expect("send");
    let deliveries = test.take(bodies.len()).await;
    bodies.sort();
    assert!(sorted_bodies(&deliveries) == bodies, "bodies differ");
    assert_eq!(receipts(&deliveries).into_iter().collect::<HashSet<_>>().len(), bodies.len());
}

/// One call sends or acknowledges any number of messages, from none to thousands.
pub async fn batch_of_any_size_is_sent_completely(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&[]).await;
    test.assert_none_visible().await;
    let bodies: Vec<String> = (0..2500).map(|number| format!("{number:04}")).collect();
    test.send(&bodies.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let deliveries = test.take(bodies.len()).await;
    assert_eq!(sorted_bodies(&deliveries), bodies);
    assert!(test.acknowledge(&receipts(&deliveries)).await.is_empty());
    assert!(test.acknowledge(&[]).await.is_empty());
    assert!(test.queue.extend(&[]).await.expect("extend").is_empty());
    test.queue.release(&[]).await.expect("release");
}

/// The queue rejects a message over the limit, names the limit, and sends no message of the batch.
pub async fn oversized_message_is_rejected_with_its_batch(harness: &dyn Harness) {
    let test = Tester::new(harness);
    let Some(bytes_max) = test.capabilities.message_bytes_max else { return };
    let largest = Message::new(vec![b'x'; bytes_max]);
    let too_large = Message::new(vec![b'x'; bytes_max + 1]);
    let refused = test.queue.send(vec![largest.clone(), too_large]).await;
    assert!(
        matches!(refused, Err(Error::TooLarge { bytes, bytes_max: limit, .. }) if (bytes, limit) == (bytes_max + 1, bytes_max)),
        "{refused:?}"
    );
    test.assert_none_visible().await;
    test.queue.send(vec![largest]).await.expect("the limit itself is allowed");
    assert_eq!(test.take_one().await.body.len(), bytes_max);
}

/// `messages_max` is a limit, 0 included.
pub async fn receive_respects_its_limit(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a", "b", "c"]).await;
    assert!(
        test.receive(Receive { wait: test.capabilities.wait_max, ..test.request(0) })
            .await
            .is_empty()
    );
    let first = test.receive(Receive { wait: test.capabilities.wait_max, ..test.request(2) }).await;
    assert!((1..=2).contains(&first.len()), "{first:?}");
    let rest = test.take(3 - first.len()).await;
    assert_eq!(sorted_bodies(&[first, rest].concat()), ["a", "b", "c"]);
}

/// New messages are delivered in the order of sending, where the backend promises it.
pub async fn new_messages_are_delivered_in_order(harness: &dyn Harness) {
    let test = Tester::new(harness);
    if !test.capabilities.first_in_first_out {
        return;
    }
    test.send(&["a", "b"]).await;
    test.send(&["c", "d", "e"]).await;
    let mut deliveries = test.take(2).await;
    deliveries.extend(test.take(3).await);
    let bodies: Vec<&[u8]> = deliveries.iter().map(|delivery| &delivery.body[..]).collect();
    assert_eq!(bodies, [b"a", b"b", b"c", b"d", b"e"]);
}

/// A waiting receive returns when a message is sent.
pub async fn send_wakes_waiting_receive(harness: &dyn Harness) {
    let test = Tester::new(harness);
    for body in ["a", "b", "c"] {
        let deliveries = test.receive_while(test.send(&[body])).await;
        assert_eq!(sorted_bodies(&deliveries), [body]);
    }
}

/// A waiting receive returns when a lease expires or is released.
pub async fn expired_lease_wakes_waiting_receive(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a"]).await;
    let first = test.take_one().await;
    let second = test.receive_while(test.release(&first.receipt)).await;
    assert_eq!(sorted_bodies(&second), ["a"]);
    if test.capabilities.timed_lease {
        let third = test.receive_while(test.pass(LEASE_UNITS + 1)).await;
        assert_eq!(sorted_bodies(&third), ["a"]);
        test.assert_count(&third[0], 3);
    }
}

/// A receive returns an empty list if no message arrives while it waits.
pub async fn waiting_receive_times_out_empty(harness: &dyn Harness) {
    let test = Tester::new(harness);
    let request = Receive { wait: test.units(1), ..test.request(10) };
    assert!(test.receive(request).await.is_empty());
    let (one, other) = tokio::join!(test.receive(request), test.receive(request));
    assert!(one.is_empty() && other.is_empty());
}

/// A dropped receive loses no message, whether it is dropped before the message arrives, just as it arrives, or after
/// the claim but before the return.
pub async fn dropped_receive_loses_no_message(harness: &dyn Harness) {
    let test = Tester::new(harness);
    for round in 0..30 {
        let mut waiting =
            test.queue.receive(Receive { wait: test.capabilities.wait_max, ..test.request(10) });
        tokio::select! {
            biased;
            deliveries = &mut waiting => panic!("the queue is empty: {deliveries:?}"),
            () = std::future::ready(()) => {}
        }
        if round % 3 == 0 {
            drop(waiting);
            test.send(&["a"]).await;
        } else {
            test.send(&["a"]).await;
            if round % 3 == 1 {
                test.queue.depth().await.expect("depth");
            }
            drop(waiting);
        }
        if !test.capabilities.dropped_receive_returns {
            test.pass(LEASE_UNITS + 1).await;
        }
        let delivery = test.take_one().await;
        if test.capabilities.dropped_receive_returns {
            test.assert_count(&delivery, 1);
        }
        test.acknowledge(&[delivery.receipt]).await;
    }
}

/// A message with a delay is received only after the delay.
pub async fn delayed_message_is_hidden_until_its_time(harness: &dyn Harness) {
    let test = Tester::new(harness);
    if !test.capabilities.delay {
        return;
    }
    let delayed = Message { delay: test.units(3 + LATE_UNITS), ..Message::new("later") };
    test.queue.send(vec![delayed, Message::new("now")]).await.expect("send");
    assert_eq!(sorted_bodies(&test.take(1).await), ["now"]);
    test.pass(3).await;
    test.assert_none_visible().await;
    let deliveries = test.receive_while(test.pass(LATE_UNITS + 1)).await;
    assert_eq!(sorted_bodies(&deliveries), ["later"]);
    test.assert_count(&deliveries[0], 1);
}

/// The limits that the queue reports are those that the other tests assume.
pub async fn limits_agree_with_capabilities(harness: &dyn Harness) {
    let test = Tester::new(harness);
    let limits = test.queue.limits();
    assert_eq!(limits.timed_lease, test.capabilities.timed_lease);
    assert_eq!(!limits.delay_max.is_zero(), test.capabilities.delay);
    if let Some(bytes_max) = test.capabilities.message_bytes_max {
        assert_eq!(limits.message_bytes_max, bytes_max);
    }
}

/// Depth counts visible, leased and delayed messages separately.
pub async fn depth_counts_visible_leased_and_delayed_messages(harness: &dyn Harness) {
    let test = Tester::new(harness);
    assert_eq!(test.queue.depth().await.expect("depth"), Depth::default());
    test.send(&["a", "b", "c", "d", "e"]).await;
    let deliveries = test.take(2).await;
    if test.capabilities.delay {
        let delayed = Message { delay: test.units(5), ..Message::new("later") };
        test.queue.send(vec![delayed]).await.expect("send");
    }
    let depth = test.queue.depth().await.expect("depth");
    if test.capabilities.exact_counts {
        let delayed = u64::from(test.capabilities.delay);
        assert_eq!(depth, Depth { visible: 3, in_flight: 2, delayed });
        assert_eq!(depth.total(), 5 + delayed);
        test.acknowledge(&receipts(&deliveries)[..1]).await;
        test.release(&deliveries[1].receipt).await;
        assert_eq!(
            test.queue.depth().await.expect("depth"),
            Depth { visible: 4, in_flight: 0, delayed }
        );
    }
}
