//! What a demultiplexer does beyond the contract of its views.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue::{
    Arrival, Delivery, Demultiplexer, DemultiplexerOptions, Depth, Error, MemoryOptions, MemoryQueue, Message, Queue,
    Receive, Refusal, ReturnBy, View,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

const LEASE: Duration = Duration::from_secs(30);

/// Bodies are `group:rest`.
fn group_of(body: &Bytes) -> Result<String, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    text.split_once(':').map(|(group, _)| group.to_owned()).ok_or_else(|| "no colon".to_owned())
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
    }
}

struct Fleet {
    shared: Arc<MemoryQueue>,
    demultiplexer: Demultiplexer,
    arrivals: mpsc::Receiver<Arrival>,
}

fn fleet(options: DemultiplexerOptions) -> Fleet {
    let shared = Arc::new(MemoryQueue::new(MemoryOptions::default()));
    let (demultiplexer, arrivals) = Demultiplexer::start(shared.clone(), options);
    Fleet { shared, demultiplexer, arrivals }
}

impl Fleet {
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

    /// What anybody else would receive now.
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
async fn each_group_gets_its_own_and_is_told_once() {
    let mut fleet = fleet(options());
    fleet.send(&["a:1", "b:1", "a:2"]).await;
    assert_eq!((fleet.new_group().await, fleet.new_group().await), ("a".into(), "b".into()));
    let (a, b) = (fleet.demultiplexer.view("a"), fleet.demultiplexer.view("b"));
    assert_eq!(bodies(&receive(&b, 10).await), [b"b:1"]);
    assert_eq!(bodies(&receive(&a, 10).await), [b"a:1", b"a:2"]);
    fleet.send(&["b:2"]).await;
    assert_eq!(bodies(&receive(&b, 10).await), [b"b:2"]);
    assert!(fleet.arrivals.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_view_stays_leased() {
    let mut fleet = fleet(options());
    fleet.send(&["a:1"]).await;
    fleet.new_group().await;
    sleep(10 * LEASE).await;
    assert!(fleet.bodies().await.is_empty(), "somebody else got it");
    let view = fleet.demultiplexer.view("a");
    let deliveries = receive(&view, 10).await;
    assert_eq!((deliveries.len(), deliveries[0].receive_count), (1, 1));
    sleep(LEASE - Duration::from_secs(1)).await;
    assert!(fleet.bodies().await.is_empty(), "the lease is as long as the reader asked for");
    sleep(Duration::from_secs(2)).await;
    let again = receive(&view, 10).await;
    assert_eq!((again.len(), again[0].receive_count), (1, 2), "and from then on the reader's to extend");
}

#[tokio::test(start_paused = true)]
async fn a_refused_group_is_dropped_or_given_back_as_a_new_message() {
    let mut fleet = fleet(options());
    fleet.send(&["a:1"]).await;
    fleet.new_group().await;
    let before = Instant::now();
    sleep(Duration::from_secs(1)).await;
    fleet.send(&["a:2"]).await;
    while fleet.depth().await.in_flight < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    // What arrived after the look-up began is looked up again.
    let after_first = Refusal::Drop { received_before: before + Duration::from_millis(1) };
    fleet.demultiplexer.refuse("a", after_first).await.expect("memory is always there");
    assert_eq!(fleet.new_group().await, "a");
    assert_eq!(fleet.depth().await, Depth { visible: 0, in_flight: 1, delayed: 0 });

    let back = Refusal::GiveBack { delay: Duration::from_secs(5) };
    fleet.demultiplexer.pause(Duration::from_secs(60));
    fleet.demultiplexer.refuse("a", back).await.expect("memory is always there");
    // One receive was under way when the pause began.
    sleep(Duration::from_secs(4)).await;
    assert_eq!(fleet.depth().await, Depth { visible: 0, in_flight: 0, delayed: 1 });
    sleep(Duration::from_secs(2)).await;
    assert_eq!(fleet.new_group().await, "a");
    let deliveries = receive(&fleet.demultiplexer.view("a"), 1).await;
    assert_eq!((bodies(&deliveries), deliveries[0].receive_count), (vec![&b"a:2"[..]], 1));
}

#[tokio::test(start_paused = true)]
async fn what_its_reader_does_not_want_goes_back_with_what_the_queue_had_counted() {
    let mut fleet = fleet(options());
    fleet.send(&["a:1", "a:2"]).await;
    fleet.new_group().await;
    let view = fleet.demultiplexer.view("a");
    // A node that had them both has died.
    let first = receive(&view, 2).await;
    let receipts: Vec<_> = first.into_iter().map(|delivery| delivery.receipt).collect();
    view.release(&receipts).await.expect("memory is always there");
    // Another group asks for two and gets none of its own.
    assert!(receive(&fleet.demultiplexer.view("b"), 2).await.is_empty());
    let taken = receive(&view, 1).await;
    assert_eq!((&taken[0].body[..], taken[0].receive_count), (&b"a:1"[..], 2));
    sleep(Duration::from_secs(25)).await;
    assert_eq!(fleet.bodies().await, [&b"a:2+lost"[..]]);
}

#[tokio::test(start_paused = true)]
async fn a_closed_view_that_something_waits_for_is_told_as_a_new_group() {
    let mut fleet = fleet(options());
    fleet.send(&["a:1"]).await;
    fleet.new_group().await;
    let view = fleet.demultiplexer.view("a");
    fleet.demultiplexer.close("a");
    drop(view);
    assert_eq!(fleet.new_group().await, "a");
    assert_eq!(receive(&fleet.demultiplexer.view("a"), 1).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn draining_gives_everything_back_that_no_reader_has() {
    let mut fleet = fleet(options());
    fleet.send(&["a:1", "a:2", "b:1"]).await;
    fleet.new_group().await;
    fleet.new_group().await;
    let view = fleet.demultiplexer.view("a");
    let held = receive(&view, 1).await;
    fleet.demultiplexer.drain().await.expect("memory is always there");
    assert_eq!(fleet.depth().await, Depth { visible: 2, in_flight: 1, delayed: 0 });
    assert!(receive(&view, 10).await.is_empty(), "nothing is received any more");
    assert!(view.acknowledge(&[held[0].receipt.clone()]).await.expect("memory is always there").is_empty());
    let mut left = fleet.bodies().await;
    left.sort();
    assert_eq!(left, [&b"a:2"[..], b"b:1"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_not_ours_is_the_owners() {
    let mut fleet = fleet(options());
    fleet.send(&["hello"]).await;
    let Some(Arrival::Unreadable { delivery, reason }) = fleet.arrivals.recv().await else { panic!("not told") };
    assert_eq!((&delivery.body[..], &*reason), (&b"hello"[..], "no colon"));
    fleet.shared.acknowledge(&[delivery.receipt]).await.expect("memory is always there");
    assert_eq!(fleet.depth().await, Depth::default());
}

#[tokio::test(start_paused = true)]
async fn quiet_is_when_nobody_holds_anything() {
    let mut fleet = fleet(options());
    assert!(fleet.demultiplexer.quiet_since().is_some());
    fleet.send(&["a:1"]).await;
    fleet.new_group().await;
    assert_eq!(fleet.demultiplexer.quiet_since(), None);
    let view = fleet.demultiplexer.view("a");
    let held = receive(&view, 1).await;
    assert_eq!((fleet.demultiplexer.quiet_since(), view.quiet_since()), (None, None));
    sleep(Duration::from_secs(7)).await;
    let acknowledged_at = Instant::now();
    view.acknowledge(&[held[0].receipt.clone()]).await.expect("memory is always there");
    let quiet_since = Some(acknowledged_at);
    assert_eq!((fleet.demultiplexer.quiet_since(), view.quiet_since()), (quiet_since, quiet_since));
}

#[tokio::test(start_paused = true)]
async fn who_asks_is_told_that_the_queue_does_not_answer_and_gets_its_messages_later() {
    let fleet = fleet(DemultiplexerOptions { idle_wish: 0, ..options() });
    let view = fleet.demultiplexer.view("a");
    fleet.send(&["a:1"]).await;
    fleet.shared.fail_next(1);
    let request = Receive { messages_max: 1, visibility: LEASE, wait: Duration::from_secs(5) };
    let failed = view.receive(request).await;
    assert!(matches!(failed, Err(Error::Unavailable { .. })), "{failed:?}");
    assert_eq!(view.receive(request).await.expect("answers again").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_reader_of_one_group_does_not_starve_another() {
    let mut fleet = fleet(DemultiplexerOptions { idle_wish: 1, ..options() });
    fleet.send(&["a:1", "a:2", "a:3", "b:1"]).await;
    assert_eq!(fleet.new_group().await, "a");
    // Nobody has a view of `a` yet; `b` is served nevertheless.
    assert_eq!(bodies(&receive(&fleet.demultiplexer.view("b"), 5).await), [b"b:1"]);
}
