//! What a node leaves to other nodes after failures here.

use protocol::{Isolate, Members};

use super::*;

/// Tells the node which nodes work on the job, with their attempts.
fn told(node: &mut Node, working: &[(&str, u64)]) -> String {
    let working = working.iter().map(|(node, ended)| ((*node).to_owned(), *ended)).collect();
    node.after(Event::Members(Members { working, ..Members::default() }))
}

/// Returns the message of the next try of a mini-batch, which has failed on these nodes.
fn again(mini_batch: u64, tries_spent: u32, failed_on: &[&str]) -> LeasedDelivery {
    let failed_on = failed_on.iter().map(|node| (*node).to_owned()).collect();
    let delivered = delivered(mini_batch);
    LeasedDelivery {
        descriptor: Descriptor { tries_spent, failed_on, ..delivered.descriptor },
        ..delivered
    }
}

fn receive(node: &mut Node, delivered: LeasedDelivery) -> String {
    node.after(Event::Received(vec![delivered]))
}

/// Returns a node with one process on which this many mini-batches have failed, numbered from 0.
fn after_failures(failures: u64, change: impl FnOnce(&mut Config)) -> Node {
    let mut node = starting_with(1, change);
    node.ready(0);
    for mini_batch in 0..failures {
        receive(&mut node, delivered(mini_batch));
        let actions = node.after(raised(0, mini_batch + 1));
        assert_eq!(actions, format!("{mini_batch} RunRaised, again"));
    }
    node
}

/// Lets the node return the mini-batch that it has left to others.
fn returned(node: &mut Node, mini_batch: u64) {
    assert_eq!(
        node.tick(Duration::from_millis(900)),
        "",
        "others may ask for it in vain, so it keeps it for a moment"
    );
    assert_eq!(node.tick(Duration::from_millis(200)), format!("return {mini_batch}"));
}

#[test]
fn next_try_goes_to_another_node_first() {
    let mut node = after_failures(1, |_| ());
    assert!(node.scheduler.asks_for_members());
    node.tick(Duration::from_secs(16));
    told(&mut node, &[("0", 1), ("1", 0)]);
    for _ in 0..10 {
        assert_eq!(receive(&mut node, again(0, 1, &["0"])), "");
        returned(&mut node, 0);
    }
    assert_eq!(
        receive(&mut node, again(0, 1, &["0"])),
        "0 gets 0",
        "the other node has had its chances"
    );
    assert_eq!(node.after(raised(0, 2)), "0 RunRaised, again");
    assert_eq!(
        receive(&mut node, again(0, 2, &["0", "1"])),
        "0 gets 0",
        "it has failed there, too"
    );
}

#[test]
fn lone_node_makes_the_next_try() {
    for others in [&[][..], &[("0", 4)][..]] {
        let mut node = after_failures(1, |_| ());
        told(&mut node, others);
        assert_eq!(receive(&mut node, again(0, 1, &["0"])), "", "others may be known soon");
        returned(&mut node, 0);
        node.tick(Duration::from_secs(15));
        assert_eq!(receive(&mut node, again(0, 1, &["0"])), "0 gets 0");
    }
    let node = after_failures(3, |config| config.is_alone = true);
    assert!(!node.scheduler.asks_for_members());
}

#[test]
fn next_try_names_the_node() {
    let mut node = after_failures(0, |_| ());
    receive(&mut node, again(0, 1, &["1"]));
    let next_try = node.outcome(raised(0, 1)).next_try.expect("another try");
    assert_eq!(next_try.failed_on, ["1", "0"]);
}

#[test]
fn node_in_doubt_leaves_tries_to_others_for_as_long_as_they_work() {
    let mut node = after_failures(3, |_| ());
    for number in 0..30 {
        told(&mut node, &[("1", number)]);
        assert_eq!(receive(&mut node, again(0, 1, &["0"])), "");
        returned(&mut node, 0);
    }
    node.tick(LIMIT + Duration::from_secs(61));
    told(&mut node, &[("1", 29)]);
    assert_eq!(receive(&mut node, again(0, 1, &["0"])), "0 gets 0", "the other node is dead");
}

#[test]
fn node_in_doubt_waits_a_while_for_others_to_be_known() {
    let mut node = after_failures(3, |_| ());
    assert_eq!(receive(&mut node, again(0, 1, &["0"])), "");
    returned(&mut node, 0);
    node.tick(Duration::from_secs(15));
    assert_eq!(receive(&mut node, again(0, 1, &["0"])), "0 gets 0");
    node.after(done(0, 4));
    assert_eq!(receive(&mut node, again(1, 1, &["0"])), "0 gets 1", "it works");
}

#[test]
fn node_in_doubt_does_not_spend_the_last_try() {
    let mut node = after_failures(3, |_| ());
    node.tick(Duration::from_secs(16));
    told(&mut node, &[("1", 0)]);
    receive(&mut node, again(7, 2, &[]));
    assert_eq!(node.after(raised(0, 4)), "7 RunRaised, again");
    receive(&mut node, again(8, 2, &["1"]));
    assert_eq!(node.after(raised(0, 5)), "8 RunRaised", "it has failed on all nodes");
}

#[test]
fn node_in_doubt_leaves_a_last_try_once_to_nodes_that_may_come() {
    let mut node = after_failures(3, |_| ());
    receive(&mut node, again(7, 2, &[]));
    assert_eq!(node.after(raised(0, 4)), "7 RunRaised, again");
    receive(&mut node, again(7, 3, &[]));
    assert_eq!(node.after(raised(0, 5)), "7 RunRaised", "none came");
}

#[test]
fn node_in_doubt_isolates_nothing_that_others_may_try() {
    let mut node =
        after_failures(3, |config| Arc::make_mut(&mut config.spec).isolate = Isolate::Items);
    told(&mut node, &[("1", 0)]);
    let descriptor = Descriptor { tries_spent: 2, ..table(7, 9).descriptor };
    receive(&mut node, LeasedDelivery { descriptor: descriptor.clone(), ..table(7, 9) });
    let ready = Prepared { bytes: 9, ..Prepared::new(Payload::Rank, 3) };
    let (descriptor, preparation) = (descriptor.into(), Preparation::Ready(ready.into()));
    assert_eq!(node.after(Event::Prepared { lease: 7, descriptor, preparation }), "0 gets 7");
    assert_eq!(node.after(raised(0, 4)), "7 RunRaised, again");
}

#[test]
fn excluded_node_returns_what_it_holds_and_ends() {
    let mut node = after_failures(3, |_| ());
    node.after(Event::Received(vec![delivered(10), delivered(11)]));
    let excluded = || {
        let excluded = [("0".to_owned(), "others succeed".to_owned())].into();
        Event::Members(Members { excluded, ..Members::default() })
    };
    assert_eq!(node.after(excluded()), "stop receiving, recall 5..6 from 0");
    let recalled = Event::RecallAnswered { process: id(0), in_time: true };
    assert_eq!(node.after(recalled), "return 11", "what runs may end");
    assert_eq!(node.after(raised(0, 4)), "10 RunRaised, again, finish 0");
    assert_eq!(node.after(exited(0, SlotPhase::Shutdown, 0)), "forget 0");
    assert!(node.scheduler.is_over(node.now));
    assert_eq!(node.scheduler.close(), vec![]);
    assert_eq!(node.actions(), "stopped: ");

    let mut node = after_failures(3, |_| ());
    receive(&mut node, delivered(10));
    node.after(done(0, 4));
    node.after(excluded());
    assert_eq!(
        receive(&mut node, delivered(11)),
        "0 gets 11",
        "the reducer does not know of the success yet"
    );

    let mut node = after_failures(0, |_| ());
    node.after(excluded());
    told(&mut node, &[("1", 0)]);
    node.after(excluded());
    assert_eq!(receive(&mut node, delivered(10)), "0 gets 10", "it tries the job again");
    let actions = node.after(raised(0, 1));
    assert!(
        actions.ends_with("10 RunRaised, again, finish 0"),
        "the first failure is enough: {actions}"
    );
}

#[test]
fn process_that_fails_where_others_succeed_is_replaced() {
    let mut node = starting(2);
    (0..2).for_each(|process| node.ready(process));
    let (mut failed, mut succeeded) = (0, 0);
    let mut round = |node: &mut Node, other_succeeds: bool| {
        failed += 1;
        node.after(Event::Received(vec![delivered(100 + failed), delivered(200 + failed)]));
        if other_succeeds {
            succeeded += 1;
            node.after(done(1, succeeded));
        }
        node.after(raised(0, failed))
    };
    (1..5).for_each(|number| {
        assert_eq!(round(&mut node, true), format!("{} RunRaised, again", 100 + number))
    });
    assert_eq!(round(&mut node, true), "105 RunRaised, again, finish 0");
}
