//! Tests of bundles, also under random behaviour of receivers.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{Clock, ManualClock, MemoryOptions, MemoryQueue};

const LEASE: Duration = Duration::from_secs(30);

/// A queue in memory, the bundles in it, and the clock of both.
struct Site {
    service: Arc<MemoryQueue>,
    queue: Bundles,
    clock: ManualClock,
}

fn site() -> Site {
    let clock = ManualClock::new();
    let options = MemoryOptions { clock: Clock::Manual(clock.clone()), ..MemoryOptions::default() };
    let service = Arc::new(MemoryQueue::new(options));
    let queue = Bundles::new(service.clone(), |delivery| {
        let count = format!("/{}", delivery.receive_count);
        [&delivery.body[..], count.as_bytes()].concat().into()
    });
    Site { service, queue, clock }
}

/// Returns messages of which up to `bundle_max` may travel together.
fn messages(bodies: impl IntoIterator<Item = u32>, bundle_max: usize) -> Vec<Message> {
    bodies
        .into_iter()
        .map(|body| Message { bundle_max, ..Message::new(body.to_string()) })
        .collect()
}

impl Site {
    async fn send(&self, bodies: impl IntoIterator<Item = u32>, bundle_max: usize) {
        self.queue.send(messages(bodies, bundle_max)).await.expect("sends");
    }

    async fn receive(&self, messages_max: usize) -> Vec<Delivery> {
        let request = Receive { messages_max, visibility: LEASE, wait: Duration::ZERO };
        self.queue.receive(request).await.expect("receives")
    }

    async fn acknowledge(&self, members: &[Delivery]) -> Vec<Receipt> {
        self.queue.acknowledge(&receipts(members)).await.expect("acknowledges")
    }

    async fn left(&self) -> u64 {
        self.service.depth().await.expect("counts").total()
    }
}

fn receipts(members: &[Delivery]) -> Vec<Receipt> {
    members.iter().map(|member| member.receipt.clone()).collect()
}

fn bodies(members: &[Delivery]) -> Vec<String> {
    members.iter().map(|member| String::from_utf8_lossy(&member.body).into_owned()).collect()
}

#[tokio::test]
async fn bundle_is_removed_when_its_last_member_is_acknowledged() {
    let site = site();
    site.send(0..3, 3).await;
    assert_eq!(site.left().await, 1);
    let members = site.receive(1).await;
    assert_eq!(bodies(&members), ["0", "1", "2"]);
    assert!(site.acknowledge(&members[1..]).await.is_empty());
    assert_eq!(site.left().await, 1);
    assert!(site.acknowledge(&members[..1]).await.is_empty());
    assert_eq!(site.left().await, 0);
}

#[tokio::test]
async fn redelivered_members_travel_alone_and_carry_the_count() {
    let site = site();
    site.send(0..3, 3).await;
    let members = site.receive(1).await;
    site.acknowledge(&members[..1]).await;
    site.clock.advance(2 * LEASE);
    assert!(site.receive(1).await.is_empty(), "the second delivery splits the bundle");
    assert_eq!(site.left().await, 3);
    let alone = site.receive(3).await;
    assert_eq!(bodies(&alone), ["0/2", "1/2", "2/2"]);
    assert!(
        alone
            .iter()
            .all(|delivery| delivery.receive_count == 1 && member(&delivery.receipt).is_none())
    );
}

#[tokio::test]
async fn extension_of_one_member_extends_all_and_loss_is_reported_for_each() {
    let site = site();
    site.send(0..3, 3).await;
    let members = site.receive(1).await;
    site.clock.advance(LEASE / 2);
    let leases = [(members[0].receipt.clone(), LEASE), (members[2].receipt.clone(), LEASE / 4)];
    assert!(site.queue.extend(&leases).await.expect("extends").is_empty());
    assert_eq!(site.service.extended(), 1, "one lease of the service");
    site.clock.advance(LEASE * 3 / 4);
    assert!(site.receive(1).await.is_empty(), "the longest extension counts");
    site.clock.advance(LEASE);
    let all: Vec<_> = members.iter().map(|member| (member.receipt.clone(), LEASE)).collect();
    assert_eq!(site.queue.extend(&all).await.expect("answers"), receipts(&members));
}

#[tokio::test]
async fn released_bundle_keeps_its_count_and_released_member_is_sent_alone() {
    let site = site();
    site.send(0..2, 2).await;
    let members = site.receive(1).await;
    site.queue.release(&receipts(&members[1..])).await.expect("releases");
    assert_eq!((bodies(&site.receive(1).await), site.left().await), (vec!["1/1".to_owned()], 2));
    site.send(5..7, 2).await;
    let whole = site.receive(1).await;
    site.queue.release(&receipts(&whole)).await.expect("releases");
    site.receive(1).await;
    assert_eq!(
        bodies(&site.receive(2).await),
        ["5/2", "6/2"],
        "the second delivery splits the bundle"
    );
}

#[tokio::test]
async fn failed_acknowledgement_can_be_repeated() {
    let site = site();
    site.send(0..2, 2).await;
    let members = site.receive(1).await;
    site.service.fail_next(1);
    site.queue.acknowledge(&receipts(&members)).await.expect_err("the service does not answer");
    assert!(site.acknowledge(&members).await.is_empty());
    assert_eq!(site.left().await, 0);
}

#[tokio::test]
async fn receive_expects_bundles_as_large_as_the_last() {
    let site = site();
    site.send(0..40, 10).await;
    assert_eq!(site.receive(1).await.len(), 10);
    assert_eq!(site.receive(11).await.len(), 20, "two messages");
    assert_eq!(site.receive(3).await.len(), 10);
}

#[test]
fn bundles_hold_neighbours_of_one_delay_up_to_the_limits() {
    let mut sent = messages(0..5, 3);
    sent.push(Message::new("alone"));
    sent.push(Message { bundle_max: 3, ..Message::new("a") });
    sent.push(Message { bundle_max: 3, delay: LEASE, ..Message::new("b") });
    let bundled = bundle(sent, usize::MAX);
    let members = |message: &Message| members(&message.body).map_or(1, |members| members.len());
    assert_eq!(bundled.iter().map(members).collect::<Vec<_>>(), [3, 2, 1, 1, 1]);
    let large = HEADER_BYTES_MAX + 2;
    assert_eq!(
        bundle(messages(0..6, 64), large).iter().map(members).collect::<Vec<_>>(),
        [2, 2, 2]
    );
    assert_eq!(bundle(messages(0..200, 1000), usize::MAX).len(), 200usize.div_ceil(MEMBERS_MAX));
}

#[test]
fn body_that_is_not_a_bundle_is_a_message() {
    for body in [
        "",
        "bundle",
        "bundle \n",
        "bundle 1\n",
        "bundle 1 1\na",
        "bundle 1\nab",
        "bundle -1\n",
        "{}",
    ] {
        assert_eq!(members(&Bytes::from(body)), None, "{body:?}");
    }
    assert_eq!(members(&Bytes::from("bundle 2 0\nab")), Some(vec!["ab".into(), "".into()]));
}

/// A call by a client, or a change of its surroundings. `first` and `step` choose among the members that it holds.
#[derive(Clone, Debug)]
enum Step {
    Send { count: u32, bundle_max: usize },
    Receive { messages_max: usize },
    Acknowledge { first: usize, step: usize },
    Release { first: usize, step: usize },
    Extend,
    Expire,
    FailNext,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..20u32, 1..8usize).prop_map(|(count, bundle_max)| Step::Send { count, bundle_max }),
        (1..12usize).prop_map(|messages_max| Step::Receive { messages_max }),
        (0..10usize, 1..4usize).prop_map(|(first, step)| Step::Acknowledge { first, step }),
        (0..10usize, 1..4usize).prop_map(|(first, step)| Step::Release { first, step }),
        Just(Step::Extend),
        Just(Step::Expire),
        Just(Step::FailNext),
    ];
    prop::collection::vec(step, 1..40)
}

/// Returns the number that was sent, without the receive counts behind it.
fn number(delivery: &Delivery) -> u32 {
    let text = std::str::from_utf8(&delivery.body).expect("text");
    text.split('/').next().expect("a first piece").parse().expect("a number")
}

async fn play(steps: Vec<Step>) {
    let site = site();
    let (mut sent, mut acknowledged) = (BTreeSet::new(), BTreeSet::new());
    let mut held: Vec<Delivery> = Vec::new();
    let chosen = |held: &mut Vec<Delivery>, first: usize, step: usize| {
        let mut place = 0;
        let is_chosen = |_: &mut Delivery| {
            place += 1;
            place > first && (place - first).is_multiple_of(step)
        };
        held.extract_if(.., is_chosen).collect::<Vec<_>>()
    };
    for step in steps {
        match step {
            Step::Send { count, bundle_max } => {
                let first = sent.len() as u32;
                // A failed call may have sent a member; it is not repeated here.
                if site.queue.send(messages(first..first + count, bundle_max)).await.is_ok() {
                    sent.extend(first..first + count);
                }
            }
            Step::Receive { messages_max } => {
                let request = Receive { messages_max, visibility: LEASE, wait: Duration::ZERO };
                held.extend(site.queue.receive(request).await.unwrap_or_default());
            }
            Step::Acknowledge { first, step } => {
                let ended = chosen(&mut held, first, step);
                acknowledged.extend(ended.iter().map(number));
                let _ = site.queue.acknowledge(&receipts(&ended)).await;
            }
            Step::Release { first, step } => {
                let released = chosen(&mut held, first, step);
                let _ = site.queue.release(&receipts(&released)).await;
            }
            Step::Extend => {
                let leases: Vec<_> =
                    held.iter().map(|member| (member.receipt.clone(), LEASE)).collect();
                if let Ok(lost) = site.queue.extend(&leases).await {
                    held.retain(|member| !lost.contains(&member.receipt));
                }
            }
            Step::Expire => {
                site.clock.advance(2 * LEASE);
                held.clear();
            }
            Step::FailNext => site.service.fail_next(1),
        }
    }
    site.service.fail_next(0);
    site.clock.advance(2 * LEASE);
    for _ in 0..10 {
        let left = site.receive(1000).await;
        acknowledged.extend(left.iter().map(number));
        site.acknowledge(&left).await;
    }
    assert_eq!(acknowledged, sent);
    assert_eq!(site.left().await, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Checks that every message is delivered until it is acknowledged, and that the service then removes it.
    #[test]
    fn no_message_is_lost(steps in steps()) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("starts").block_on(play(steps));
    }

    #[test]
    fn any_bodies_travel_together(bodies: Vec<Vec<u8>>) {
        let message = |body: &Vec<u8>| Message { bundle_max: MEMBERS_MAX, ..Message::new(body.clone()) };
        let sent = bundle(bodies.iter().map(message).collect(), usize::MAX);
        let arrived = sent.into_iter().flat_map(|message| members(&message.body).unwrap_or(vec![message.body]));
        prop_assert_eq!(arrived.map(|body| body.to_vec()).collect::<Vec<_>>(), bodies);
    }
}
