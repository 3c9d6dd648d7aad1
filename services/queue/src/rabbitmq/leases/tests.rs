//! Frames that settle, lost receipts, and how a subscription should change.

use super::*;

fn leases(arrived: u64) -> Arc<Leases> {
    let leases = Arc::new(Leases::new(7, Arc::new(Lanes::new("tasks", 1))));
    (1..=arrived).for_each(|tag| arrive(&leases, tag, 0, 0));
    leases
}

fn arrive(leases: &Leases, tag: u64, lane: usize, consumer: u32) {
    leases.arrive(tag, Source { lane, consumer }, Incoming { receive_count: 1, ..Incoming::default() });
}

/// Carries out a division as the subscription would. Returns the consumers that it has added, by lane.
fn subscribe(leases: &Leases, consumers: &mut Vec<(usize, u32)>, ready: &[usize]) -> Vec<usize> {
    let changes = leases.divide(ready);
    for (lane, change) in changes.iter().enumerate() {
        consumers.retain(|(of, number)| {
            let stays = *of != lane || !change.cancel;
            if !stays {
                leases.remove_consumer(*number);
            }
            stays
        });
        if change.add > 0 {
            consumers.push((lane, leases.add_consumer(lane, change.add)));
        }
    }
    changes.iter().map(|change| change.add).collect()
}

fn receipts(tags: impl IntoIterator<Item = i64>) -> Vec<Receipt> {
    tags.into_iter().map(|tag| Receipt::numbered(tag, 7)).collect()
}

#[test]
fn one_frame_settles_all_tags_without_open_predecessors() {
    let leases = leases(10);
    leases.take(8);
    assert_eq!(leases.settle(&receipts([2, 4])), (vec![(2, false), (4, false)], vec![]));
    assert_eq!(leases.settle(&receipts([1, 3, 6])), (vec![(3, true), (6, false)], vec![]));
    assert_eq!(leases.settle(&receipts([5])), (vec![(5, true)], vec![]));
    assert_eq!(leases.settle(&receipts([8])), (vec![(8, false)], vec![]));
    assert_eq!(leases.settle(&receipts([7])), (vec![(7, true)], vec![]));
    assert_eq!(leases.settle_arrived(), [(10, true)]);
}

#[test]
fn receipt_is_valid_once_and_on_its_connection() {
    let leases = leases(3);
    leases.take(2);
    let other = Receipt::numbered(1, 6);
    let unseen = Receipt::numbered(3, 7);
    let asked = [receipts([1, 1]), vec![other.clone(), unseen.clone()]].concat();
    assert_eq!(leases.settle(&asked), (vec![(1, true)], vec![other, unseen]));
    assert_eq!(leases.settle(&receipts([1])), (vec![], receipts([1])));
    assert_eq!(leases.lost(receipts([1, 2]).iter()), receipts([1]));
    leases.end("cut", false);
    assert_eq!(leases.lost(receipts([2]).iter()), receipts([2]));
}

#[test]
fn subscription_fits_held_and_requested_messages() {
    let (leases, mut consumers, ready) = (leases(0), Vec::new(), [usize::MAX]);
    assert_eq!(leases.fit(), Fit::Right);
    let wish = leases.want(8);
    assert_eq!(leases.fit(), Fit::Divide);
    assert_eq!(subscribe(&leases, &mut consumers, &ready), [8]);
    (1..=8).for_each(|tag| arrive(&leases, tag, 0, 1));
    assert_eq!(leases.take(8).len(), 8);
    drop(wish);
    assert_eq!(leases.fit(), Fit::Idle(IDLE_MAX), "a consumer without a receiver ends");
    let wish = leases.want(2);
    assert_eq!(leases.fit(), Fit::Divide);
    assert_eq!(subscribe(&leases, &mut consumers, &ready), [2]);
    leases.settle(&receipts(1..=8));
    assert_eq!(leases.fit(), Fit::Divide, "the broker would send ten");
    assert_eq!(subscribe(&leases, &mut consumers, &ready), [2]);
    assert_eq!(consumers.len(), 1);
    assert_eq!(leases.fit(), Fit::Right);
    drop(wish);
    arrive(&leases, 9, 0, 3);
    assert_eq!(leases.fit(), Fit::Idle(IDLE_MAX));
    leases.want_no_more();
    assert_eq!(leases.fit(), Fit::Stop);
}

#[test]
fn unrequested_messages_of_other_lanes_return_at_once() {
    let leases = Arc::new(Leases::new(7, Arc::new(Lanes::new("tasks", 4))));
    let mut consumers = Vec::new();
    let wish = leases.want(1);
    assert_eq!(subscribe(&leases, &mut consumers, &[0; 4]), [1; 4]);
    assert_eq!(leases.fit(), Fit::Right, "each lane can send, so nothing is asked again");
    arrive(&leases, 1, 2, 3);
    assert_eq!(leases.take(1).len(), 1);
    drop(wish);
    assert_eq!(leases.fit(), Fit::Idle(LISTEN_MAX));
    arrive(&leases, 2, 0, 1);
    assert_eq!(leases.fit(), Fit::Stop);
    consumers.iter().for_each(|(_, number)| leases.remove_consumer(*number));
    assert_eq!(leases.take_arrived().len(), 1);
    assert_eq!(leases.fit(), Fit::Right);
}

#[tokio::test(start_paused = true)]
async fn lanes_are_divided_again_while_messages_arrive() {
    let leases = Arc::new(Leases::new(7, Arc::new(Lanes::new("tasks", 2))));
    let mut consumers = Vec::new();
    let wish = leases.want(4);
    assert_eq!(subscribe(&leases, &mut consumers, &[100, 0]), [4, 0]);
    assert_eq!(leases.fit(), Fit::DivideAt(Instant::now() + LOOK_PAUSE), "the other lane cannot send");
    (1..=4).for_each(|tag| arrive(&leases, tag, 0, 1));
    leases.take(4);
    drop(wish);
    tokio::time::advance(DIVIDE_EVERY).await;
    leases.settle(&receipts([1]));
    arrive(&leases, 5, 0, 1);
    let wish = leases.want(1);
    assert_eq!(leases.take(1).len(), 1, "the request is satisfied at once");
    drop(wish);
    assert_eq!(leases.fit(), Fit::Divide);
    assert_eq!(subscribe(&leases, &mut consumers, &[96, 10]), [0, 0]);
    assert!(consumers.is_empty(), "the first lane no longer refills itself");
    leases.settle(&receipts([2, 3]));
    let _wish = leases.want(2);
    assert_eq!(leases.fit(), Fit::Divide);
    assert_eq!(subscribe(&leases, &mut consumers, &[96, 10]), [0, 2]);
}

#[test]
fn group_of_an_arrival_keeps_its_lane() {
    let leases = Leases::new(7, Arc::new(Lanes::new("tasks", 4)));
    let message = Incoming { group: Some("job".to_owned()), ..Incoming::default() };
    leases.arrive(1, Source { lane: 1, consumer: 1 }, message);
    assert_eq!(leases.lanes.of("job"), Some(1));
}
