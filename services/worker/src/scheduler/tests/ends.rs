//! Processes that end or do not start, lost leases, and a node that stops.

use super::*;

#[test]
fn death_in_a_run_fails_only_that_mini_batch() {
    let mut node = working(2, 2);
    node.after(done(0, 1));
    node.after(Event::Received((10..13).map(delivered).collect()));
    assert_eq!(node.after(exited(0, SlotPhase::Run, 2)), "examine 0 in 2");
    let actions = node.after(examined(0));
    assert_eq!(actions, "10 ProcessDied, again, forget 0, start 2", "11 waits for a process");
    node.runs(1, 1);
    assert!(node.after(done(1, 1)).starts_with("1 Succeeded, 1 gets 11"));
}

#[test]
fn three_idle_deaths_per_process_end_the_node() {
    let mut node = starting(1);
    for death in 0..3 {
        node.after(in_first_slot(frame(death, started())));
        let exited = in_first_slot(exited(death, SlotPhase::Idle, 0));
        assert_eq!(node.after(exited), format!("examine {death} in 0"));
        let actions = node.after(in_first_slot(examined(death)));
        let stops =
            actions.contains("stopped: 3 processes in a row ended between two mini-batches");
        assert_eq!(stops, death == 2, "{actions}");
        if !stops {
            assert_eq!(
                node.tick(Duration::from_secs(1)),
                format!("start {}", death + 1),
                "after a pause"
            );
        }
    }
    assert!(node.scheduler.is_over(node.now));
}

#[test]
fn damaged_connection_fails_the_oldest_mini_batch() {
    let mut node = working(1, 2);
    let damaged = || Event::ConnectionDamaged {
        process: id(0),
        phase: SlotPhase::Run,
        how: "an invalid frame".into(),
    };
    assert_eq!(node.after(damaged()), "kill 0");
    assert_eq!(node.after(damaged()), "", "once");
    assert_eq!(node.after(exited(0, SlotPhase::Run, 1)), "examine 0 in 1");
    assert_eq!(node.after(examined(0)), "0 ProcessDied, again, forget 0, start 1");
}

#[test]
fn damaged_connection_is_named_after_the_phase_that_damaged_it() {
    for (mut node, expected) in
        [(starting(1), "damaged in init()"), (working(1, 1), "damaged in run()")]
    {
        // The process went on before the engine read what it had written.
        let damaged = Event::ConnectionDamaged {
            process: id(0),
            phase: SlotPhase::Idle,
            how: "an invalid frame".into(),
        };
        let is_named =
            |action| matches!(action, Action::Log { message, .. } if message.contains(expected));
        assert!(node.handled(damaged).into_iter().any(is_named), "{expected}");
    }
}

#[test]
fn frame_without_an_end_damages_the_connection() {
    for (phase, seconds, expected) in
        [(SlotPhase::Run, 1, ""), (SlotPhase::Run, 3, "kill 0"), (SlotPhase::Report, 3, "")]
    {
        let mut node = working(1, 1);
        node.doing[0] = (phase, 1, Duration::ZERO);
        let mut snapshots = node.snapshots();
        snapshots[0].frame_incomplete_for = Some(Duration::from_secs(seconds));
        assert_eq!(node.after(Event::Tick(snapshots)), expected, "{phase:?} for {seconds} s");
    }
}

#[test]
fn script_that_cannot_start_ends_the_node_immediately() {
    let mut node = starting(2);
    let failed =
        ProcessEvent::InitFailed { error: ErrorReport::default(), chance: RestartChance::Never };
    node.after(frame(0, failed));
    assert_eq!(node.after(exited(0, SlotPhase::Import, 0)), "forget 0, kill 1");
    let actions = node.after(exited(1, SlotPhase::Import, 0));
    assert!(actions.starts_with("forget 1, stopped: the script cannot start"), "{actions}");
    assert!(node.scheduler.is_over(node.now));
}

#[test]
fn death_in_init_waits_for_the_other_processes_before_the_next_start() {
    let mut node = starting(2);
    assert_eq!(node.after(exited(0, SlotPhase::Init, 0)), "examine 0 in 0");
    assert_eq!(node.after(examined(0)), "forget 0", "the other process may succeed");
    assert_eq!(node.tick(Duration::from_secs(1)), "");
    node.ready(1);
    assert_eq!(node.tick(Duration::from_millis(50)), "start 2");
}

#[test]
fn process_that_cannot_be_spawned_is_a_failed_start() {
    let mut node = starting(1);
    let not_started = |number| {
        let (process, message) = (ProcessId { slot: 0, number }, "x".to_owned());
        Event::NotStarted { process, message, chance: RestartChance::Likely }
    };
    assert_eq!(node.after(not_started(0)), "");
    assert_eq!(node.tick(Duration::from_millis(50)), "");
    assert_eq!(node.tick(Duration::from_millis(60)), "start 1");
    assert_eq!(node.after(not_started(1)), "");
    assert_eq!(node.tick(Duration::from_millis(210)), "start 2");
    assert_eq!(
        node.after(not_started(2)),
        "stopped: 3 starts in a row failed, the last one with: ProcessDied: x. Open logs/user/error/0/process002.txt."
    );
}

#[test]
fn lost_lease_kills_only_its_run() {
    let mut node = working(2, 2);
    node.runs(0, 1);
    assert_eq!(node.lost(1), "", "its process has not started it");
    assert_eq!(node.lost(0), "kill 0");
    assert_eq!(
        node.after(exited(0, SlotPhase::Run, 1)),
        "forget 0, start 2",
        "no mini-batch is to blame"
    );
}

#[test]
fn mini_batch_with_lost_lease_is_not_handed_over_again() {
    let mut node = with_one_behind_a_run();
    assert_eq!(node.lost(11), "", "it waits behind another");
    assert_eq!(node.tick(Duration::from_millis(60)), "recall 3..4 from 0");
    node.after(Event::RecallAnswered { process: id(0), in_time: true });
    assert_eq!(node.after(done(1, 1)), "1 Succeeded");
}

#[test]
fn waiting_mini_batch_leaves_with_its_lease() {
    let mut node = starting(1);
    node.after(Event::Received(vec![delivered(0), table(1, 60), table(2, 60)]));
    for lease in 0..3 {
        node.lost(lease);
    }
    assert_eq!(node.scheduler.close(), vec![]);
}

#[test]
fn delivery_that_would_outlive_its_lease_is_returned() {
    let mut node = starting_with(1, |config| config.lease_max = Some(3 * LIMIT));
    node.doing[0].0 = SlotPhase::Idle;
    node.after(Event::Received(vec![delivered(0)]));
    assert_eq!(node.tick(2 * LIMIT), "");
    assert_eq!(node.tick(Duration::from_secs(1)), "return 0");
}

#[test]
fn drain_returns_waiting_mini_batches_and_finishes_running_ones() {
    let mut node = with_one_behind_a_run();
    let actions = node.after(Event::Stop(Stop::Drain));
    assert_eq!(actions, "stop receiving, recall 3..4 from 0");
    let actions = node.after(Event::RecallAnswered { process: id(0), in_time: true });
    assert_eq!(actions, "return 11");
    assert_eq!(node.after(done(0, 2)), "10 Succeeded, finish 0");
    assert_eq!(node.after(exited(0, SlotPhase::Idle, 0)), "forget 0", "no process is started");
    assert_eq!(node.after(Event::Received(vec![delivered(20)])), "return 20");
    assert!(!node.scheduler.is_over(node.now));
    node.pass(GRACE + Duration::from_secs(1));
    assert!(node.scheduler.is_over(node.now), "the grace period is over");
    let held: Vec<_> = node.scheduler.close().into_iter().map(|(lease, _)| lease).collect();
    assert_eq!((held, node.actions()), (vec![1], "kill 1, forget 1, stopped: ".into()));
}

#[test]
fn finish_shuts_down_idle_processes_and_kills_those_in_init() {
    let mut node = starting(2);
    node.ready(0);
    let actions = node.after(Event::Stop(Stop::Finish));
    assert_eq!(actions, "stop receiving, finish 0, kill 1");
    node.after(exited(0, SlotPhase::Idle, 0));
    assert!(!node.scheduler.is_over(node.now));
    node.after(exited(1, SlotPhase::Init, 0));
    assert!(node.scheduler.is_over(node.now));
}

#[test]
fn kill_ends_immediately_and_returns_all_mini_batches() {
    let mut node = working(1, 2);
    assert_eq!(node.after(Event::Stop(Stop::Kill)), "kill 0");
    assert!(node.scheduler.is_over(node.now));
    assert_eq!(node.after(Event::Stop(Stop::Drain)), "", "a smaller stop has no effect");
    assert_eq!(node.scheduler.close().len(), 2);
}

#[test]
fn returned_descriptor_keeps_its_lost_deliveries() {
    let mut node = starting(1);
    node.after(Event::Received(vec![LeasedDelivery { receive_count: 3, ..delivered(0) }]));
    let held = node.scheduler.close();
    assert_eq!(held[0].1.deliveries_lost, 2);
    assert_eq!(held[0].1.tries_spent, 0);
}

#[test]
fn report_of_a_forgotten_process_changes_nothing() {
    let mut node = working(2, 2);
    node.after(exited(0, SlotPhase::Idle, 0));
    node.after(examined(0));
    for event in [done(0, 1), exited(0, SlotPhase::Run, 1), examined(0)] {
        assert_eq!(node.after(event), "");
    }
}

#[test]
fn outcome_names_its_try() {
    let mut node = working(1, 1);
    let attempt = node.outcome(raised(0, 1)).attempt;
    assert_eq!(
        (attempt.status, attempt.try_number, attempt.process.as_str()),
        (AttemptStatus::RunRaised, 1, "process000")
    );
}
