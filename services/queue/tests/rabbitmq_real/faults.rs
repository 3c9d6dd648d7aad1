//! If the broker restarts, the network fails, or a lease lasts too long, the queue loses no message and reports every
//! lease as lost.

use std::collections::BTreeSet;
use std::time::Duration;

use queue::{Broker as _, Error, Message, RabbitOptions};

use crate::broker::Broker;
use crate::proxy::Proxy;
use crate::{
    PATIENCE, bodies, connect, log, lost, numbered, open, options, receipts, receive, receive_all,
    receive_one, request, send, shared_url, unused_queues, wait_until_lost,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_broker_loses_nothing() {
    let mut broker = Broker::start("");
    let queue = open(&options(broker.url(), "demo")).await;
    send(&queue, numbered(300)).await;
    let held = receive(&queue, 50).await;
    let done = receive(&queue, 20).await;
    assert!(queue.acknowledge(&receipts(&done)).await.expect("acknowledge").is_empty());
    // The broker answers this after the acknowledgements.
    assert_eq!(queue.depth().await.expect("depth").in_flight, held.len() as u64);
    assert!(lost(&queue, &receipts(&held)).await.is_empty());
    broker.wait_until_recorded("demo-job-tasks").await;
    broker.kill();
    wait_until_lost(&queue, &receipts(&held)).await;
    assert_eq!(queue.acknowledge(&receipts(&held)).await.expect("acknowledge"), receipts(&held));
    queue.release(&receipts(&held)).await.expect("release");
    broker.restart();
    let again = receive_all(&queue, 300 - done.len()).await;
    assert_eq!(bodies(&again).len(), again.len(), "a message was duplicated");
    // A broker confirms no acknowledgement, and one that is killed may forget it.
    let expected: BTreeSet<_> = bodies(&done).into_iter().chain(bodies(&again)).collect();
    assert_eq!(expected.len(), 300, "a message was lost");
    for delivery in &again {
        let before = bodies(&held).contains(std::str::from_utf8(&delivery.body).expect("text"));
        assert!(delivery.receive_count > u32::from(before), "{delivery:?}");
    }
    assert_eq!(lost(&queue, &receipts(&held)).await, receipts(&held), "old receipts stay lost");
    assert!(queue.acknowledge(&receipts(&again)).await.expect("acknowledge").is_empty());
    assert!(receive_all(&queue, 0).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_receive_survives_a_restart() {
    let mut broker = Broker::start("");
    let queue = open(&options(broker.url(), "demo")).await;
    let receiver = queue.clone();
    let waiting = tokio::spawn(async move { receive_one(&receiver).await });
    for queue in ["demo-job-tasks", "demo-job-results"] {
        broker.wait_until_recorded(queue).await;
    }
    broker.kill();
    broker.restart();
    let other =
        connect(&options(broker.url(), "demo")).await.open("job").await.expect("opens").tasks;
    send(&other, ["late".to_owned()]).await;
    assert_eq!(waiting.await.expect("no panic").body, "late");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_sent_over_broken_connections_arrive() {
    let (mut options, _deleted) = unused_queues();
    let proxy = Proxy::start(broker_port()).await;
    options.url = through(&proxy);
    let queue = open(&options).await;
    let sender = queue.clone();
    let sending = tokio::spawn(async move {
        for body in numbered(400) {
            while let Err(error) = sender.send(vec![Message::new(body.clone())]).await {
                assert!(matches!(error, Error::Unavailable { .. }), "{error:#}");
            }
        }
    });
    let mut held = Vec::new();
    for _ in 0..5 {
        held = queue.receive(request(40)).await.expect("receive");
        proxy.cut();
        wait_until_lost(&queue, &receipts(&held)).await;
    }
    sending.await.expect("no panic");
    let all = receive_all(&queue, 400).await;
    assert_eq!(bodies(&all).into_iter().collect::<Vec<_>>(), numbered(400));
    assert!(!held.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_network_ends_leases() {
    let (mut options, _deleted) = unused_queues();
    let proxy = Proxy::start(broker_port()).await;
    options.url = format!("{}?heartbeat=1", through(&proxy));
    options.answer_wait_max = Duration::from_secs(5);
    options.connect_wait_max = Duration::from_secs(5);
    let queue = open(&options).await;
    send(&queue, numbered(10)).await;
    let held = receive(&queue, 10).await;
    proxy.stall();
    wait_until_lost(&queue, &receipts(&held)).await;
    let refused = queue.send(vec![Message::new("more")]).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    proxy.resume();
    // Until the queue has reconnected, calls may fail, because the test has shortened its waits.
    let reconnected = async {
        loop {
            match queue.receive(request(10)).await {
                Ok(deliveries) => return deliveries,
                Err(error) => assert!(matches!(error, Error::Unavailable { .. }), "{error:#}"),
            }
        }
    };
    let mut again = tokio::time::timeout(PATIENCE, reconnected).await.expect("it connects again");
    again.extend(receive(&queue, 10 - again.len()).await);
    assert_eq!(bodies(&again).len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_beyond_the_consumer_timeout_is_lost_with_all_others() {
    log::collect();
    let broker = Broker::start("consumer_timeout = 5000");
    let options = RabbitOptions {
        consumer_timeout: Some(Duration::from_secs(5)),
        ..options(broker.url(), "slow")
    };
    let queue = open(&options).await;
    assert_eq!(queue.limits().lease_max, Some(Duration::from_secs(5)));
    send(&queue, numbered(20)).await;
    let held = queue.receive(request(20)).await.expect("receive");
    wait_until_lost(&queue, &receipts(&held)).await;
    assert_eq!(queue.acknowledge(&receipts(&held)).await.expect("acknowledge"), receipts(&held));
    // On a busy machine further leases may be lost, so each delivery is acknowledged as it arrives.
    let mut acknowledged = BTreeSet::new();
    while acknowledged.len() < 20 {
        let again = queue.receive(request(20)).await.expect("receive");
        assert!(!again.is_empty(), "a message was lost: {acknowledged:?}");
        for delivery in &again {
            // The first receive may have returned before the broker delivered all messages.
            let before = bodies(&held).contains(std::str::from_utf8(&delivery.body).expect("text"));
            assert!(delivery.receive_count > u32::from(before), "{delivery:?}");
        }
        let lost = queue.acknowledge(&receipts(&again)).await.expect("acknowledge");
        let kept: Vec<_> =
            again.into_iter().filter(|delivery| !lost.contains(&delivery.receipt)).collect();
        acknowledged.extend(bodies(&kept));
    }
    assert_eq!(acknowledged.into_iter().collect::<Vec<_>>(), numbered(20));
    assert!(log::count(&["slow-job-tasks", "reopened"]) > 0);
    assert_eq!(log::count(&["gristmill slow"]), 0, "the connection has not broken");
}

fn broker_port() -> u16 {
    url::Url::parse(&shared_url()).expect("a URL").port().unwrap_or(5672)
}

/// Returns the address of the shared broker behind the proxy.
fn through(proxy: &Proxy) -> String {
    let mut url = url::Url::parse(&shared_url()).expect("a URL");
    url.set_host(Some("127.0.0.1")).expect("a host");
    url.set_port(Some(proxy.port)).expect("a port");
    url.to_string()
}
