//! Pauses of a node: its disk is full, or a store does not answer.

use super::*;

const NO_ROOM: &str = "the disk is full";

fn shared(processes: u32) -> Node {
    starting_with(processes, |config| {
        config.allocation = Some(AgentAllocation { number: 1, processes, gpus: vec![] });
    })
}

fn no_room() -> Event {
    prepared(0, Preparation::NoRoom(error("LoadFailed", NO_ROOM)))
}

#[test]
fn mini_batch_without_room_goes_back_with_those_behind_it_and_costs_no_try() {
    let mut node = shared(1);
    node.ready(0);
    assert_eq!(
        node.after(Event::Received((0..4).map(|number| table(number, 60)).collect())),
        "prepare 0"
    );
    let told = "the node is in starting for 0 s";
    assert_eq!(node.after(no_room()), format!("{told}, return 1, return 2, return 3, return 0"));
    node.requested.clear();
    assert_eq!(node.tick(Duration::from_secs(9)), "");
    assert_eq!(node.requested, [0; 0], "it takes nothing for now");
    assert_eq!(node.tick(Duration::from_secs(2)), "");
    assert!(!node.requested.is_empty(), "it tries again");
    assert_eq!(node.after(Event::Received(vec![table(0, 1)])), "prepare 0");
    assert_eq!(node.after(no_room()), "the node is in starting for 11 s, stop receiving, return 0");
    node.tick(Duration::from_secs(11));
    node.after(Event::Received(vec![table(0, 1)]));
    assert_eq!(node.after(read(0, 1)), "0 gets 0", "there is room again");
}

#[test]
fn process_without_room_starts_later_and_blames_no_script() {
    let mut node = shared(1);
    let (process, message) = (id(0), NO_ROOM.to_owned());
    let told = "the node is in starting for 0 s";
    assert_eq!(node.after(Event::NoRoom { process, message: message.clone() }), told);
    assert_eq!(node.tick(Duration::from_secs(9)), "");
    assert_eq!(node.tick(Duration::from_secs(2)), "start 1");
    for number in 1..9 {
        let process = ProcessId { slot: 0, number };
        let told = format!("the node is in starting for {} s, stop receiving", 11 * number);
        assert_eq!(
            node.after(Event::NoRoom { process, message: message.clone() }),
            told,
            "it never gives up"
        );
        assert_eq!(node.tick(Duration::from_secs(11)), format!("start {}", number + 1));
    }
}

#[test]
fn full_disk_of_a_node_without_other_jobs_fails_as_ever() {
    let mut node = working(1, 0);
    node.after(Event::Received(vec![table(0, 1)]));
    assert_eq!(node.after(no_room()), "0 LoadFailed, again");
}

#[test]
fn store_that_does_not_answer_costs_no_try_however_long_it_is_away() {
    for mut node in [shared(1), starting(1)] {
        node.ready(0);
        for number in 0..20 {
            let received = Event::Received((0..2).map(|number| table(number, 60)).collect());
            assert_eq!(node.after(received), "prepare 0");
            let told = format!("the node is in starting for {} s", 11 * number);
            let unreachable = Preparation::Unreachable(error("LoadFailed", "no answer"));
            let actions = node.after(prepared(0, unreachable));
            assert_eq!(actions, format!("{told}, return 1, return 0"));
            node.requested.clear();
            assert_eq!(node.tick(Duration::from_secs(9)), "");
            assert_eq!(node.requested, [0; 0], "it takes nothing for now");
            node.tick(Duration::from_secs(2));
            assert!(!node.requested.is_empty(), "it tries again");
        }
        node.after(Event::Received(vec![table(0, 1)]));
        assert_eq!(node.after(read(0, 1)), "0 gets 0", "the store answers again");
    }
}
