//! Processes of a job on a node that it shares with other jobs.

use super::*;

fn allocation(processes: u32) -> Event {
    Event::Allocate(AgentAllocation { processes, ..AgentAllocation::default() })
}

#[test]
fn surplus_process_answers_what_it_runs_and_is_not_replaced() {
    let mut node = working(2, 2);
    assert_eq!(node.after(allocation(1)), "");
    assert_eq!(
        node.after(Event::Received(vec![delivered(10)])),
        "",
        "one is busy, and the other gets no more"
    );
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, finish 1");
    assert_eq!(node.after(exited(1, SlotPhase::Idle, 0)), "forget 1");
    assert_eq!(node.after(done(0, 1)), "0 Succeeded, 0 gets 10");
    assert_eq!(node.after(allocation(2)), "start 2");
}

#[test]
fn surplus_process_that_dies_fails_its_mini_batch_and_is_not_replaced() {
    let mut node = working(2, 2);
    node.after(allocation(1));
    assert_eq!(node.after(exited(1, SlotPhase::Run, 1)), "examine 1 in 1");
    assert_eq!(node.after(examined(1)), "1 ProcessDied, again, forget 1");
}

#[test]
fn other_processes_get_what_a_surplus_one_has_not_started() {
    let mut node = working(2, 2);
    node.after(done(1, 1));
    assert_eq!(node.after(Event::Received((10..12).map(delivered).collect())), "1 gets 10");
    assert_eq!(node.after(Event::Tick(vec![])), "1 gets 11");
    node.runs(1, 2);
    assert_eq!(node.after(allocation(1)), "recall 3..4 from 1");
    assert_eq!(node.after(Event::RecallAnswered { process: id(1), in_time: true }), "");
    assert_eq!(node.after(done(1, 2)), "10 Succeeded, finish 1");
    assert_eq!(node.after(done(0, 1)), "0 Succeeded, 0 gets 11");
}

#[test]
fn surplus_process_answers_what_was_recalled_too_late() {
    let mut node = working(2, 2);
    node.after(done(1, 1));
    node.after(Event::Received((10..12).map(delivered).collect()));
    node.after(Event::Tick(vec![]));
    node.after(allocation(1));
    assert_eq!(node.after(Event::RecallAnswered { process: id(1), in_time: false }), "");
    assert_eq!(node.after(done(1, 2)), "10 Succeeded");
    assert_eq!(node.after(done(1, 3)), "11 Succeeded, finish 1");
}

#[test]
fn process_with_work_is_worth_the_most() {
    let mut node = working(2, 2);
    node.after(done(0, 1));
    assert_eq!(node.after(allocation(1)), "finish 0", "it is idle");
    let mut node = starting(2);
    node.ready(1);
    assert_eq!(node.after(allocation(1)), "kill 0", "it is not ready");
    assert_eq!(node.after(exited(0, SlotPhase::Init, 0)), "forget 0");
    assert_eq!(node.after(Event::Received(vec![delivered(10)])), "1 gets 10");
}

#[test]
fn process_whose_gpu_is_for_another_job_ends_first() {
    let mut node = starting_with(2, |config| config.gpus = 2);
    node.begin(2, 2);
    node.after(done(1, 1));
    node.after(Event::Allocate(AgentAllocation { processes: 1, gpus: vec![1], number: 1 }));
    assert_eq!(node.after(done(0, 1)), "0 Succeeded, finish 0");
    assert_eq!(node.after(exited(0, SlotPhase::Idle, 0)), "forget 0");
    assert_eq!(
        node.after(Event::Allocate(AgentAllocation { processes: 2, gpus: vec![1, 0], number: 2 })),
        "start 2 with GPU 0"
    );
}

#[test]
fn process_leaves_the_gpu_of_another_job_and_another_follows_it() {
    let mut node = starting_with(2, |config| {
        config.gpus = 2;
        config.allocation = Some(AgentAllocation { processes: 2, gpus: vec![0], number: 1 });
    });
    (0..2).for_each(|process| node.ready(process));
    let in_use = |node: &mut Node| {
        node.scheduler.in_use().map(|used| (used.number, Vec::from_iter(used.gpus)))
    };
    assert_eq!(in_use(&mut node), Some((1, vec![0])));
    assert_eq!(in_use(&mut node), None, "nothing has changed");
    assert_eq!(node.after(Event::Received((0..2).map(delivered).collect())), "0 gets 0, 1 gets 1");
    assert_eq!(
        node.after(Event::Allocate(AgentAllocation { processes: 2, gpus: vec![1], number: 2 })),
        "",
        "no run is interrupted"
    );
    assert_eq!(in_use(&mut node), Some((2, vec![0, 1])));
    assert_eq!(node.after(done(0, 1)), "0 Succeeded, finish 0");
    assert_eq!(node.after(exited(0, SlotPhase::Idle, 0)), "forget 0, start 2 with GPU 1");
    assert_eq!(
        in_use(&mut node),
        Some((2, vec![0, 1])),
        "a process without a GPU of its own sees those of its job"
    );
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, finish 1");
    assert_eq!(node.after(exited(1, SlotPhase::Idle, 0)), "forget 1, start 3");
    assert_eq!(in_use(&mut node), Some((2, vec![1])));
}

#[test]
fn node_learns_of_processes_and_of_the_first_attempt_that_ends() {
    let mut node = starting_with(1, |config| config.allocation = Some(allocation_of(1, 1)));
    let said = |node: &mut Node| {
        node.scheduler.in_use().map(|it| (it.processes, it.is_ready, it.has_ended_one))
    };
    assert_eq!(said(&mut node), Some((1, false, false)));
    node.ready(0);
    assert_eq!(said(&mut node), Some((1, true, false)));
    node.after(Event::Received(vec![delivered(0)]));
    assert_eq!(said(&mut node), None, "nothing has changed");
    node.after(done(0, 1));
    assert_eq!(said(&mut node), Some((1, true, true)));
    assert_eq!(
        node.after(Event::Allocate(allocation_of(0, 2))),
        "finish 0",
        "it makes room for other jobs"
    );
    assert_eq!(said(&mut node), Some((1, false, true)), "it has not ended yet");
    node.after(exited(0, SlotPhase::Idle, 0));
    assert_eq!(said(&mut node), Some((0, false, true)));
}

fn allocation_of(processes: u32, number: u64) -> AgentAllocation {
    AgentAllocation { processes, gpus: Vec::new(), number }
}

#[test]
fn job_without_a_gpu_has_no_process_and_keeps_no_mini_batch() {
    let mut node = working(2, 2);
    node.after(Event::Received((10..12).map(delivered).collect()));
    assert_eq!(node.after(allocation(0)), "return 11, return 10");
    let asked = node.requested.len();
    assert_eq!(node.after(done(0, 1)), "0 Succeeded, finish 0");
    assert_eq!(node.after(exited(0, SlotPhase::Idle, 0)), "forget 0");
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, finish 1");
    assert_eq!(node.after(exited(1, SlotPhase::Idle, 0)), "forget 1");
    assert_eq!(node.requested.len(), asked, "it asks for nothing more");
    assert_eq!(node.after(allocation(1)), "start 2");
}

#[test]
fn larger_share_keeps_a_surplus_process_that_still_works() {
    let mut node = working(2, 2);
    node.after(allocation(1));
    assert_eq!(node.after(allocation(2)), "");
    node.after(Event::Received(vec![delivered(10)]));
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, 1 gets 10");
}

#[test]
fn larger_share_replaces_a_surplus_process_that_ends() {
    let mut node = working(2, 2);
    node.after(allocation(1));
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, finish 1");
    assert_eq!(node.after(allocation(2)), "");
    assert_eq!(node.after(exited(1, SlotPhase::Idle, 0)), "forget 1, start 2");
}

#[test]
fn node_begins_with_its_share_and_asks_for_as_much() {
    let mut node = starting_with(2, |config| {
        config.allocation = Some(AgentAllocation { processes: 1, ..AgentAllocation::default() })
    });
    node.after(Event::Tick(vec![]));
    assert_eq!(node.requested, [2], "one for its process, and one ahead");
    assert_eq!(node.after(allocation(2)), "start 1");
}

#[test]
fn fewer_processes_return_what_they_will_not_need_soon() {
    let mut node = working(2, 2);
    node.after(Event::Received((10..14).map(delivered).collect()));
    assert_eq!(node.after(allocation(1)), "return 13, return 12, return 11");
    assert_eq!(node.after(done(0, 1)), "0 Succeeded, 0 gets 10");
}

#[test]
fn one_process_gives_up_after_its_own_failures() {
    let mut node = starting_with(2, |config| {
        config.allocation = Some(AgentAllocation { processes: 1, ..AgentAllocation::default() })
    });
    let failed = |process: u32, message: &str| Event::NotStarted {
        process: ProcessId { slot: 0, number: process },
        message: message.into(),
        chance: RestartChance::Likely,
    };
    for process in 0..2 {
        node.after(failed(process, "no memory"));
        assert_eq!(node.tick(Duration::from_secs(5)), format!("start {}", process + 1));
    }
    let end = node.after(failed(2, "no memory"));
    assert!(end.starts_with("stopped: 3 starts in a row failed"), "{end}");
}
