//! Processes that wear out and are replaced.

use protocol::Wear;

use super::*;

const MEGABYTE: u64 = 1 << 20;

/// Returns a node with two ready processes, each with a mini-batch.
fn limited(limit: impl FnOnce(&mut JobSpec)) -> Node {
    let mut node = starting_with(2, |config| limit(Arc::make_mut(&mut config.spec)));
    assert_eq!(node.begin(2, 2), "0 gets 0, 1 gets 1");
    node
}

fn measured(process: u32, megabytes: u64) -> Event {
    Event::Measured { process: id(process), bytes: megabytes * MEGABYTE }
}

/// Returns why the processes that have ended are replaced.
fn wears(node: &mut Node, event: Event) -> Vec<Option<Wear>> {
    let wear = |action| match action {
        Action::Announce(Announcement::Event(ResultEvent::ProcessEnded { wear, .. })) => Some(wear),
        _ => None,
    };
    node.handled(event).into_iter().filter_map(wear).collect()
}

/// Returns the messages of this level.
fn logged(node: &mut Node, event: Event, level: &str) -> Vec<String> {
    let line = |action| match action {
        Action::Log { level: of, message } if of == level => Some(message),
        _ => None,
    };
    node.handled(event).into_iter().filter_map(line).collect()
}

#[test]
fn process_gets_no_more_mini_batches_than_it_may_run() {
    let mut node = limited(|spec| spec.process_max_runs = 3);
    assert_eq!(node.after(done(0, 1)), "0 Succeeded");
    let more = Event::Received((10..16).map(delivered).collect());
    assert_eq!(node.after(more), "0 gets 10 11", "its pipe has room for more");
    assert_eq!(node.after(raised(0, 2)), "10 RunRaised, again", "a failed run counts too");
    assert_eq!(node.after(done(0, 3)), "11 Succeeded, finish 0");
    assert_eq!(wears(&mut node, exited(0, SlotPhase::Idle, 0)), [Some(Wear::Runs { runs: 3 })]);
    node.ready(2);
    assert_eq!(
        node.after(done(2, 1)),
        "12 Succeeded, 2 gets 13 14",
        "what was received waits for the next process"
    );
}

#[test]
fn process_is_replaced_once_there_is_work_for_another_one() {
    let mut node = limited(|spec| spec.process_max_runs = 1);
    assert_eq!(node.after(done(0, 1)), "0 Succeeded");
    assert_eq!(node.after(Event::Received(vec![delivered(10)])), "finish 0");
    assert_eq!(wears(&mut node, exited(0, SlotPhase::Idle, 0)), [Some(Wear::Runs { runs: 1 })]);
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, finish 1", "10 waits for a process");
    node.ready(2);
    assert_eq!(node.after(done(2, 1)), "10 Succeeded");
}

#[test]
fn recalled_mini_batch_is_not_a_run() {
    let mut node = limited(|spec| spec.process_max_runs = 3);
    node.after(done(0, 1));
    node.after(Event::Received((10..12).map(delivered).collect()));
    node.after(Event::Tick(vec![]));
    node.runs(0, 2);
    assert_eq!(node.tick(Duration::from_millis(60)), "recall 3..4 from 0");
    node.after(Event::RecallAnswered { process: id(0), in_time: true });
    assert_eq!(node.after(done(0, 2)), "10 Succeeded, 0 gets 11");
    node.after(Event::Received(vec![delivered(12)]));
    assert_eq!(node.after(done(0, 4)), "11 Succeeded, finish 0");
}

#[test]
fn node_receives_no_more_than_its_processes_may_run() {
    let mut node = limited(|spec| spec.process_max_runs = 2);
    node.requested.clear();
    node.after(done(0, 1));
    node.after(Event::Received(vec![]));
    assert_eq!(
        node.requested,
        [3],
        "one run is left for the quick process; as many again are received ahead"
    );
}

#[test]
fn outgrown_process_keeps_its_run_and_returns_the_rest() {
    let mut node = limited(|spec| spec.process_max_memory = 100 * MEGABYTE);
    assert_eq!(node.after(measured(0, 100)), "");
    node.after(done(0, 1));
    assert_eq!(node.after(Event::Received((10..13).map(delivered).collect())), "0 gets 10 11");
    node.runs(0, 2);
    assert_eq!(node.after(measured(0, 101)), "recall 3..4 from 0");
    assert_eq!(node.after(Event::RecallAnswered { process: id(0), in_time: true }), "");
    assert_eq!(node.after(measured(0, 102)), "", "once");
    assert_eq!(node.after(done(0, 2)), "10 Succeeded, finish 0");
    let (bytes, limit) = (101 * MEGABYTE, 100 * MEGABYTE);
    assert_eq!(
        wears(&mut node, exited(0, SlotPhase::Idle, 0)),
        [Some(Wear::Memory { bytes, limit, runs: 1 })]
    );
    node.ready(2);
    assert_eq!(node.after(done(2, 1)), "11 Succeeded, 2 gets 12");
}

#[test]
fn limit_below_the_memory_of_a_fresh_process_is_reported_once_and_replaces_nothing() {
    let mut node = starting_with(2, |config| {
        Arc::make_mut(&mut config.spec).process_max_memory = 100 * MEGABYTE
    });
    for process in 0..2 {
        node.after(measured(process, 300));
        let warnings = logged(&mut node, frame(process, started()), "WARNING");
        assert_eq!(warnings.len(), usize::from(process == 0), "{warnings:?}");
        let is_named = |line: &String| {
            line.contains("process_max_memory is 100 MB, and process000 occupies 300 MB")
        };
        assert!(warnings.iter().all(is_named), "{warnings:?}");
    }
    node.after(Event::Received((0..2).map(delivered).collect()));
    node.after(measured(0, 900));
    assert_eq!(node.after(done(0, 1)), "0 Succeeded");
}

#[test]
fn death_of_a_worn_out_process_in_a_run_is_a_death() {
    let dying = || {
        let mut node = limited(|spec| spec.process_max_memory = 100 * MEGABYTE);
        node.after(measured(0, 200));
        assert_eq!(node.after(exited(0, SlotPhase::Run, 1)), "examine 0 in 1");
        node
    };
    assert_eq!(wears(&mut dying(), examined(0)), [None]);
    assert_eq!(dying().after(examined(0)), "0 ProcessDied, again, forget 0, start 2");
}
