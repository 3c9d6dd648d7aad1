//! Properties of leases and their receipts.

use super::*;

/// A lease hides its message until it expires; the next delivery has a new receipt and continues the count.
pub async fn expired_lease_makes_message_visible(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a"]).await;
    let first = test.take_one().await;
    test.assert_count(&first, 1);
    test.assert_none_visible().await;
    if !test.capabilities.timed_lease {
        return;
    }
    test.pass(LEASE_UNITS - LATE_UNITS).await;
    test.assert_none_visible().await;
    test.pass(LATE_UNITS + 1).await;
    let second = test.take_one().await;
    assert_eq!(second.body, first.body);
    assert_ne!(second.receipt, first.receipt);
    test.assert_count(&second, 2);
    test.assert_none_visible().await;
}

/// The last extension determines the end of a lease.
pub async fn extension_lengthens_lease(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a"]).await;
    let delivery = test.take_one().await;
    for _ in 0..3 {
        test.pass(LEASE_UNITS - LATE_UNITS).await;
        assert!(test.extend(&delivery.receipt, LEASE_UNITS).await);
    }
    test.assert_none_visible().await;
    assert!(test.acknowledge(std::slice::from_ref(&delivery.receipt)).await.is_empty());
}

/// An extension counts from now, so it can also shorten a lease.
pub async fn extension_shortens_lease(harness: &dyn Harness) {
    let test = Tester::new(harness);
    if !test.capabilities.timed_lease {
        return;
    }
    test.send(&["a"]).await;
    let delivery = test.take_one().await;
    assert!(test.extend(&delivery.receipt, 2).await);
    test.pass(3).await;
    test.assert_count(&test.take_one().await, 2);
}

/// Extending an expired lease reports the loss, before and after the message is delivered again.
pub async fn expired_lease_cannot_be_extended(harness: &dyn Harness) {
    let test = Tester::new(harness);
    if !test.capabilities.timed_lease {
        return;
    }
    test.send(&["a"]).await;
    let first = test.take_one().await;
    test.pass(LEASE_UNITS + 1).await;
    assert!(!test.extend(&first.receipt, LEASE_UNITS).await);
    let second = test.take_one().await;
    assert!(!test.extend(&first.receipt, LEASE_UNITS).await);
    assert!(test.extend(&second.receipt, LEASE_UNITS).await);
}

/// A call with some lost receipts takes effect for the others, and returns exactly the lost ones.
pub async fn lost_receipts_of_a_batch_are_returned(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a", "b", "c", "d"]).await;
    let first = test.take(4).await;
    test.release(&first[1].receipt).await;
    test.release(&first[3].receipt).await;
    let again = test.take(2).await;
    let leases: Vec<_> =
        receipts(&first).into_iter().map(|receipt| (receipt, test.units(LEASE_UNITS))).collect();
    let lost = test.queue.extend(&leases).await.expect("extend");
    assert_eq!(
        HashSet::from_iter(lost),
        HashSet::from([first[1].receipt.clone(), first[3].receipt.clone()])
    );
    if test.capabilities.old_receipt == OldReceipt::Lost {
        let lost = test.acknowledge(&receipts(&first)).await;
        assert_eq!(
            HashSet::from_iter(lost),
            HashSet::from([first[1].receipt.clone(), first[3].receipt.clone()])
        );
        assert!(test.acknowledge(&receipts(&again)).await.is_empty());
    }
}

/// An acknowledged message does not return, whatever a caller does with its receipt.
pub async fn acknowledged_message_is_never_delivered_again(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a", "b"]).await;
    let deliveries = test.take(2).await;
    assert!(test.acknowledge(&receipts(&deliveries)).await.is_empty());
    test.queue.release(&receipts(&deliveries)).await.expect("release");
    assert!(!test.extend(&deliveries[0].receipt, LEASE_UNITS).await);
    test.acknowledge(&receipts(&deliveries)).await;
    test.pass(LEASE_UNITS + 1).await;
    test.assert_none_visible().await;
}

/// An old receipt never takes the message from its current holder, except that some services remove the message.
pub async fn old_receipt_does_not_affect_new_lease(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a"]).await;
    let old = test.take_one().await.receipt;
    test.release(&old).await;
    let new = test.take_one().await.receipt;
    test.release(&old).await;
    assert!(!test.extend(&old, 1).await);
    test.assert_none_visible().await;
    let ignored = !test.acknowledge(std::slice::from_ref(&old)).await.is_empty();
    match test.capabilities.old_receipt {
        OldReceipt::Lost => assert!(ignored, "the old receipt removed the message"),
        OldReceipt::Deletes => assert!(!ignored, "the old receipt did not remove the message"),
        OldReceipt::Either => {}
    }
    assert_eq!(test.extend(&new, LEASE_UNITS).await, ignored);
    if ignored {
        assert!(test.acknowledge(&[new]).await.is_empty());
    }
}

/// Releasing ends the lease now, and the next delivery continues the count.
pub async fn released_message_is_visible_immediately(harness: &dyn Harness) {
    let test = Tester::new(harness);
    test.send(&["a", "b"]).await;
    let first = test.take(2).await;
    test.queue.release(&receipts(&first)).await.expect("release");
    assert!(!test.extend(&first[0].receipt, LEASE_UNITS).await);
    let second = test.take(2).await;
    assert_eq!(sorted_bodies(&second), ["a", "b"]);
    second.iter().for_each(|delivery| test.assert_count(delivery, 2));
}

/// With many concurrent receivers, every message reaches exactly one of them during its lease.
pub async fn concurrent_receivers_never_share_a_lease(harness: &dyn Harness) {
    let test = Tester::new(harness);
    let bodies: Vec<String> = (0..500).map(|number| format!("{number:03}")).collect();
    let received = Arc::new(Mutex::new(Vec::new()));
    let receivers: Vec<_> = (1..=8)
        .map(|messages_max| {
            let (queue, received, request) =
                (test.queue.clone(), received.clone(), test.request(messages_max));
            tokio::spawn(async move {
                while received.lock().expect("no holder panics").len() < 500 {
                    let deliveries = queue.receive(request).await.expect("receive");
                    received.lock().expect("no holder panics").extend(deliveries);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for batch in bodies.chunks(50) {
        test.send(&batch.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    for receiver in receivers {
        receiver.await.expect("the receiver does not panic");
    }
    let received = received.lock().expect("no holder panics").clone();
    assert_eq!(sorted_bodies(&received), bodies);
    assert!(test.acknowledge(&receipts(&received)).await.is_empty());
}
