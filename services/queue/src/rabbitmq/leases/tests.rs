//! Tests of frames that settle, lost receipts, and changes of a subscription.

use super::*;

fn leases(arrived: u64) -> Arc<Leases> {
    let leases = Arc::new(Leases::new(7));
    (1..=arrived).for_each(|tag| arrive(&leases, tag, 0));
    leases
}

fn arrive(leases: &Leases, tag: u64, set: ConsumerSet) {
    leases.arrive(tag, set, Incoming { receive_count: 1, ..Incoming::default() });
}

fn receipts(tags: impl IntoIterator<Item = i64>) -> Vec<Receipt> {
    tags.into_iter().map(|tag| Receipt::numbered(tag, 7)).collect()
}

#[test]
fn one_frame_settles_all_tags_before_the_first_unsettled_one() {
    let leases = leases(10);
    leases.take(8);
    assert_eq!(leases.settle(&receipts([2, 4])), (vec![(2, false), (4, false)], vec![]));
    assert_eq!(leases.settle(&receipts([1, 3, 6])), (vec![(3, true), (6, false)], vec![]));
    assert_eq!(leases.settle(&receipts([5])), (vec![(5, true)], vec![]));
    assert_eq!(leases.settle(&receipts([8])), (vec![(8, false)], vec![]));
    assert_eq!(leases.settle(&receipts([7])), (vec![(7, true)], vec![]));
    let waiting = leases.take_arrived().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(leases.settle_tags(&waiting), [(10, true)]);
}

#[test]
fn receipt_is_valid_once_and_on_its_connection() {
    let leases = leases(3);
    leases.take(2);
    let other = Receipt::numbered(1, 6);
    let unseen = Receipt::numbered(3, 7);
    let settled = [receipts([1, 1]), vec![other.clone(), unseen.clone()]].concat();
    assert_eq!(leases.settle(&settled), (vec![(1, true)], vec![other, unseen]));
    assert_eq!(leases.settle(&receipts([1])), (vec![], receipts([1])));
    assert_eq!(leases.lost(receipts([1, 2]).iter()), receipts([1]));
    leases.end("cut", false);
    assert_eq!(leases.lost(receipts([2]).iter()), receipts([2]));
}

#[test]
fn broker_sends_what_is_held_and_requested() {
    let leases = leases(0);
    assert_eq!(leases.required_change(), ConsumerChange::Unchanged);
    let request = leases.request(8);
    assert_eq!(leases.required_change(), ConsumerChange::More(8));
    let set = leases.add_consumer(8);
    assert_eq!(leases.required_change(), ConsumerChange::Unchanged);
    (1..=8).for_each(|tag| arrive(&leases, tag, set));
    assert_eq!(leases.take(8).len(), 8);
    drop(request);
    assert_eq!(
        leases.required_change(),
        ConsumerChange::Idle,
        "a consumer without a receiver ends"
    );
    let request = leases.request(2);
    assert_eq!(leases.required_change(), ConsumerChange::More(2));
    leases.add_consumer(2);
    assert_eq!(leases.required_change(), ConsumerChange::Unchanged);
    drop(request);
    arrive(&leases, 9, set);
    assert_eq!(leases.required_change(), ConsumerChange::Idle);
    leases.stop();
    assert_eq!(leases.required_change(), ConsumerChange::Stop);
    leases.remove_consumers();
    assert_eq!(
        leases.required_change(),
        ConsumerChange::Idle,
        "the message that has arrived returns"
    );
    assert_eq!(leases.take_arrived().len(), 1);
    assert_eq!(leases.required_change(), ConsumerChange::Unchanged);
}

#[test]
fn settled_message_makes_room_for_another() {
    let leases = leases(0);
    let _request = leases.request(4);
    let set = leases.add_consumer(4);
    (1..=4).for_each(|tag| arrive(&leases, tag, set));
    leases.take(3);
    assert_eq!(leases.required_change(), ConsumerChange::More(3));
    leases.settle(&receipts(1..=3));
    assert_eq!(leases.required_change(), ConsumerChange::Unchanged);
    assert!(leases.may_arrive());
}

#[test]
fn consumers_that_get_too_many_messages_are_replaced() {
    let leases = leases(0);
    let request = leases.request(10);
    let set = leases.add_consumer(10);
    (1..=10).for_each(|tag| arrive(&leases, tag, set));
    leases.take(10);
    drop(request);
    leases.settle(&receipts(1..=8));
    let _request = leases.request(2);
    assert_eq!(leases.required_change(), ConsumerChange::Replace, "the broker would send ten");
    assert_eq!(leases.remove_consumers(), set);
    assert_eq!(leases.required_change(), ConsumerChange::More(2));
    let next = leases.add_consumer(2);
    assert_ne!(next, set);
    leases.settle(&receipts(9..=10));
    arrive(&leases, 11, next);
    assert_eq!(
        leases.required_change(),
        ConsumerChange::Unchanged,
        "settling messages of former consumers makes no room"
    );
}

#[test]
fn many_consumers_become_one() {
    let leases = leases(0);
    for tag in 1..=CONSUMERS_MAX as u64 {
        let _request = leases.request(1);
        assert_eq!(leases.required_change(), ConsumerChange::More(1));
        arrive(&leases, tag, leases.add_consumer(1));
        leases.take(1);
    }
    let _request = leases.request(1);
    assert_eq!(leases.required_change(), ConsumerChange::Replace);
    leases.remove_consumers();
    assert_eq!(leases.required_change(), ConsumerChange::More(1));
}
