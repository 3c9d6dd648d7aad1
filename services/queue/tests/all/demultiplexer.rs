//! The demultiplexer, beyond the contract of its views.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue::{
    Arrival, Delivery, Demultiplexer, DemultiplexerOptions, Depth, Error, MemoryOptions, MemoryQueue, Message, Queue,
    Receive, Refusal, ReturnBy, Unreadable, View,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

const LEASE: Duration = Duration::from_secs(30);

/// Bodies are `group:rest`.
fn group_of(body: &Bytes) -> Result<String, Unreadable> {
    let text = std::str::from_utf8(body).map_err(|error| Unreadable(error.to_string()))?;
    text.split_once(':').map(|(group, _)| group.to_owned()).ok_or_else(|| Unreadable("no colon".to_owned()))
}

fn options() -> DemultiplexerOptions {
    DemultiplexerOptions {
        group_of,
        return_by: ReturnBy::Republish(|delivery| {
            let lost = delivery.receive_count - 1;
            if lost == 0 { delivery.body.clone() } else { [&delivery.body[..], b"+lost"].concat().into() }
        }),
        lease: LEASE,
        poll_wait: Duration::from_secs(20),
        idle_wish: 10,
        hold_max: Some(Duration::from_secs(10)),
        look_every: None,
    }
}

struct Target {
    shared: Arc<MemoryQueue>,
    demultiplexer: Demultiplexer,
    arrivals: mpsc::Receiver<Arrival>,
}

fn target(options: DemultiplexerOptions) -> Target {
    target_with(MemoryOptions::default(), options)
}

fn target_with(memory: MemoryOptions, options: DemultiplexerOptions) -> Target {
    let shared = Arc::new(MemoryQueue::new(memory));
    let (demultiplexer, arrivals) = Demultiplexer::start(shared.clone(), options);
    Target { shared, demultiplexer, arrivals }
}

impl Target {
    async fn send(&self, bodies: &[&'static str]) {
        let message = |body: &&'static str| Message::new(*body, body.split(':').next().unwrap_or_default());
        self.shared.send(bodies.iter().map(message).collect()).await.expect("memory is always there");
    }

    async fn new_group(&mut self) -> String {
        match self.arrivals.recv().await {
            Some(Arrival::NewGroup(group)) => group,
            other => panic!("not a new group: {other:?}"),
        }
    }

    async fn depth(&self) -> Depth {
        self.shared.depth().await.expect("memory is always there")
    }

    /// Returns the bodies that another receiver would get now.
    async fn bodies(&self) -> Vec<Bytes> {
        let request = Receive { messages_max: 100, visibility: LEASE, wait: Duration::ZERO };
        let deliveries = self.shared.receive(request).await.expect("memory is always there");
        deliveries.into_iter().map(|delivery| delivery.body).collect()
    }
}

async fn receive(view: &View, messages_max: usize) -> Vec<Delivery> {
    let request = Receive { messages_max, visibility: LEASE, wait: Duration::from_secs(1) };
    view.receive(request).await.expect("memory is always there")
}

fn bodies(deliveries: &[Delivery]) -> Vec<&[u8]> {
    deliveries.iter().map(|delivery| &delivery.body[..]).collect()
}

#[tokio::test(start_paused = true)]
async fn view_gets_only_its_group_and_each_group_is_reported_once() {
    let mut target = target(options());
    target.send(&["a:1", "b:1", "a:2"]).await;
    assert_eq!((target.new_group().await, target.new_group().await), ("a".into(), "b".into()));
    let (a, b) = (target.demultiplexer.view("a"), target.demultiplexer.view("b"));
    assert_eq!(bodies(&receive(&b, 10).await), [b"b:1"]);
    assert_eq!(bodies(&receive(&a, 10).await), [b"a:1", b"a:2"]);
    target.send(&["b:2"]).await;
    assert_eq!(bodies(&receive(&b, 10).await), [b"b:2"]);
    assert!(target.arrivals.is_empty());
}

#[tokio::test(start_paused = true)]
async fn delivery_without_view_stays_leased() {
    let mut target = target(options());
    target.send(&["a:1"]).await;
    target.new_group().await;
    sleep(10 * LEASE).await;
    assert!(target.bodies().await.is_empty(), "another receiver got it");
    let view = target.demultiplexer.view("a");
    let deliveries = receive(&view, 10).await;
    assert_eq!((deliveries.len(), deliveries[0].receive_count), (1, 1));
    assert!(deliveries[0].leased_at.elapsed() <= LEASE / 2, "the reader would have to extend it at once");
    sleep_until(deliveries[0].leased_at + LEASE - Duration::from_secs(1)).await;
    assert!(target.bodies().await.is_empty(), "the lease is shorter than the reader requested");
    sleep(Duration::from_secs(2)).await;
    let again = receive(&view, 10).await;
    assert_eq!((again.len(), again[0].receive_count), (1, 2), "only the reader extends it from then on");
}

#[tokio::test(start_paused = true)]
async fn refused_group_is_dropped_or_returned_as_new_message() {
    let mut target = target(options());
    target.send(&["a:1"]).await;
    target.new_group().await;
    let before = Instant::now();
    sleep(Duration::from_secs(1)).await;
    target.send(&["a:2"]).await;
    while target.depth().await.in_flight < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    // The owner looks up deliveries that arrived after the look-up began once more.
    let after_first = Refusal::Drop { received_before: before + Duration::from_millis(1) };
    target.demultiplexer.refuse("a", after_first).await.expect("memory is always there");
    assert_eq!(target.new_group().await, "a");
    assert_eq!(target.depth().await, Depth { visible: 0, in_flight: 1, delayed: 0 });

    let back = Refusal::GiveBack { delay: Duration::from_secs(5) };
    target.demultiplexer.pause(Duration::from_secs(60));
    target.demultiplexer.refuse("a", back).await.expect("memory is always there");
    // One receive was in progress when the pause began.
    sleep(Duration::from_secs(4)).await;
    assert_eq!(target.depth().await, Depth { visible: 0, in_flight: 0, delayed: 1 });
    sleep(Duration::from_secs(2)).await;
    assert_eq!(target.new_group().await, "a");
    let deliveries = receive(&target.demultiplexer.view("a"), 1).await;
    assert_eq!((bodies(&deliveries), deliveries[0].receive_count), (vec![&b"a:2"[..]], 1));
}

#[tokio::test(start_paused = true)]
async fn unfetched_delivery_returns_with_its_count() {
    let mut target = target(options());
    target.send(&["a:1", "a:2"]).await;
    target.new_group().await;
    let view = target.demultiplexer.view("a");
    // A node that held both has died.
    let first = receive(&view, 2).await;
    let receipts: Vec<_> = first.into_iter().map(|delivery| delivery.receipt).collect();
    view.release(&receipts).await.expect("memory is always there");
    // The reader of another group requests two and gets none.
    assert!(receive(&target.demultiplexer.view("b"), 2).await.is_empty());
    let taken = receive(&view, 1).await;
    assert_eq!((&taken[0].body[..], taken[0].receive_count), (&b"a:1"[..], 2));
    sleep(Duration::from_secs(25)).await;
    assert_eq!(target.bodies().await, [&b"a:2+lost"[..]]);
}

#[tokio::test(start_paused = true)]
async fn copies_of_a_message_return_as_one() {
    let mut target = target(options());
    target.send(&["a:1", "a:2", "a:1", "a:1"]).await;
    assert_eq!(target.new_group().await, "a");
    target
        .demultiplexer
        .refuse("a", Refusal::GiveBack { delay: Duration::ZERO })
        .await
        .expect("memory is always there");
    assert_eq!(target.depth().await.total(), 2);
}

#[tokio::test(start_paused = true)]
async fn closed_view_with_waiting_deliveries_is_reported_as_new_group() {
    let mut target = target(options());
    target.send(&["a:1"]).await;
    target.new_group().await;
    let view = target.demultiplexer.view("a");
    target.demultiplexer.close("a");
    drop(view);
    assert_eq!(target.new_group().await, "a");
    assert_eq!(receive(&target.demultiplexer.view("a"), 1).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn closing_a_view_releases_what_its_reader_held_where_leases_do_not_expire() {
    for timed_lease in [true, false] {
        let mut target = target_with(MemoryOptions { timed_lease, ..MemoryOptions::default() }, options());
        target.send(&["a:1", "a:2"]).await;
        target.new_group().await;
        let view = target.demultiplexer.view("a");
        assert_eq!(receive(&view, 10).await.len(), 2);
        target.demultiplexer.close("a");
        drop(view);
        if !timed_lease {
            assert_eq!(target.new_group().await, "a");
            let again = receive(&target.demultiplexer.view("a"), 10).await;
            assert_eq!(again.iter().map(|delivery| delivery.receive_count).collect::<Vec<_>>(), [2, 2]);
        } else {
            sleep(Duration::from_millis(100)).await;
            assert_eq!(target.depth().await.in_flight, 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn drain_returns_everything_that_no_reader_holds() {
    let mut target = target(options());
    target.send(&["a:1", "a:2", "b:1"]).await;
    target.new_group().await;
    target.new_group().await;
    let view = target.demultiplexer.view("a");
    let held = receive(&view, 1).await;
    target.demultiplexer.drain().await.expect("memory is always there");
    assert_eq!(target.depth().await, Depth { visible: 2, in_flight: 1, delayed: 0 });
    assert!(receive(&view, 10).await.is_empty(), "it still receives");
    assert!(view.acknowledge(&[held[0].receipt.clone()]).await.expect("memory is always there").is_empty());
    let mut left = target.bodies().await;
    left.sort();
    assert_eq!(left, [&b"a:2"[..], b"b:1"]);
}

#[tokio::test(start_paused = true)]
async fn unreadable_message_is_left_to_the_owner() {
    let mut target = target(options());
    target.send(&["hello"]).await;
    let Some(Arrival::Unreadable { delivery, reason }) = target.arrivals.recv().await else { panic!("not reported") };
    assert_eq!((&delivery.body[..], &*reason), (&b"hello"[..], "no colon"));
    target.shared.acknowledge(&[delivery.receipt]).await.expect("memory is always there");
    assert_eq!(target.depth().await, Depth::default());
}

#[tokio::test(start_paused = true)]
async fn quiet_since_the_last_delivery_ended() {
    let mut target = target(options());
    assert!(target.demultiplexer.quiet_since().is_some());
    target.send(&["a:1"]).await;
    target.new_group().await;
    assert_eq!(target.demultiplexer.quiet_since(), None);
    let view = target.demultiplexer.view("a");
    let held = receive(&view, 1).await;
    assert_eq!((target.demultiplexer.quiet_since(), view.quiet_since()), (None, None));
    sleep(Duration::from_secs(7)).await;
    let acknowledged_at = Instant::now();
    view.acknowledge(&[held[0].receipt.clone()]).await.expect("memory is always there");
    let quiet_since = Some(acknowledged_at);
    assert_eq!((target.demultiplexer.quiet_since(), view.quiet_since()), (quiet_since, quiet_since));
}

#[tokio::test(start_paused = true)]
async fn reader_gets_the_error_of_the_queue_and_its_messages_later() {
    let target = target(DemultiplexerOptions { idle_wish: 0, ..options() });
    let view = target.demultiplexer.view("a");
    target.send(&["a:1"]).await;
    target.shared.fail_next(1);
    let request = Receive { messages_max: 1, visibility: LEASE, wait: Duration::from_secs(5) };
    let failed = view.receive(request).await;
    assert!(matches!(failed, Err(Error::Unavailable { .. })), "{failed:?}");
    assert_eq!(view.receive(request).await.expect("answers again").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_group_does_not_starve_another() {
    let mut target = target(DemultiplexerOptions { idle_wish: 1, ..options() });
    target.send(&["a:1", "a:2", "a:3", "b:1"]).await;
    assert_eq!(target.new_group().await, "a");
    // Group `a` has no view yet; `b` is served nevertheless.
    assert_eq!(bodies(&receive(&target.demultiplexer.view("b"), 5).await), [b"b:1"]);
}

#[tokio::test(start_paused = true)]
async fn excess_of_one_reader_does_not_starve_another() {
    let target = target(DemultiplexerOptions { idle_wish: 0, ..options() });
    let (a, b) = (target.demultiplexer.view("a"), target.demultiplexer.view("b"));
    target.send(&["a:1", "a:2", "a:3", "b:1"]).await;
    assert_eq!(bodies(&receive(&b, 1).await), [b"b:1"]);
    assert_eq!(bodies(&receive(&a, 10).await), [b"a:1", b"a:2", b"a:3"]);
}

#[tokio::test(start_paused = true)]
async fn search_for_the_messages_of_one_reader_holds_few_of_others() {
    let target = target(DemultiplexerOptions { idle_wish: 0, ..options() });
    let (_a, b) = (target.demultiplexer.view("a"), target.demultiplexer.view("b"));
    target.send(&["a:1"; 100]).await;
    assert!(receive(&b, 1).await.is_empty());
    assert_eq!(target.depth().await.in_flight, 64);
}

#[tokio::test(start_paused = true)]
async fn reader_with_enough_does_not_hide_other_groups() {
    let look_every = Some(Duration::from_secs(5));
    let mut target = target(DemultiplexerOptions { idle_wish: 0, look_every, ..options() });
    let a = target.demultiplexer.view("a");
    target.send(&["a:1"]).await;
    assert_eq!(bodies(&receive(&a, 1).await), [b"a:1"]);
    target.send(&["a:2", "b:1"]).await;
    assert_eq!(target.new_group().await, "b");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(target.depth().await, Depth { visible: 1, in_flight: 2, delayed: 0 }, "other receivers can have `a:2`");
    assert_eq!(bodies(&receive(&a, 1).await), [b"a:2"]);
}

#[tokio::test(start_paused = true)]
async fn lease_is_extended_for_the_reader_if_less_than_half_of_it_is_left() {
    // (wait for the view, whether it is extended)
    for (waits, is_extended) in [(14, false), (16, true)] {
        let mut target = target(DemultiplexerOptions { hold_max: None, lease: 10 * LEASE, ..options() });
        let request = Receive { messages_max: 1, visibility: LEASE, wait: Duration::from_secs(1) };
        let (a, b) = (target.demultiplexer.view("a"), target.demultiplexer.view("b"));
        let reading = tokio::spawn(async move { a.receive(request).await });
        target.send(&["b:1"]).await;
        reading.await.expect("no panic").expect("memory is always there");
        sleep(Duration::from_secs(waits) - Duration::from_secs(1)).await;
        let received = b.receive(request).await.expect("memory is always there");
        assert_eq!((received.len(), target.shared.extended()), (1, usize::from(is_extended)), "after {waits} s");
        assert!(target.arrivals.try_recv().is_err());
    }
}
