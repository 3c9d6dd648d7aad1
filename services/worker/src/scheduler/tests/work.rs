//! The way of a mini-batch through the node, and timeouts.

use protocol::WaitTimes;

use super::*;

#[test]
fn node_requests_twice_what_its_processes_hold_and_once_at_a_time() {
    let mut node = starting(2);
    node.after(Event::Tick(vec![]));
    node.after(Event::Tick(vec![]));
    assert_eq!(node.requested, [4]);
    node.after(Event::Received((0..4).map(delivered).collect()));
    assert_eq!(node.after(frame(0, started())), "0 gets 0");
    assert_eq!(node.requested, [4], "it holds enough");
    assert_eq!(
        node.after(done(0, 1)),
        "0 Succeeded, 0 gets 1 2",
        "fast runs are handed over together"
    );
    assert_eq!(node.requested, [4, 41]);
}

#[test]
fn node_whose_announcements_are_behind_takes_no_work_but_enforces_timeouts_and_stops() {
    let mut node = working(2, 2);
    node.requested.clear();
    let behind = |node: &mut Node, event| {
        node.scheduler.handle(event, node.now);
        node.scheduler.schedule(node.now, true);
        node.actions()
    };
    let received = [delivered(10), table(11, 1)].into();
    assert_eq!(behind(&mut node, Event::Received(received)), "");
    assert_eq!(behind(&mut node, done(0, 1)), "0 Succeeded");
    node.runs(1, 1);
    node.pass(LIMIT + Duration::from_secs(1));
    let snapshots = node.snapshots();
    assert_eq!(behind(&mut node, Event::Tick(snapshots)), "stacks of 1");
    assert_eq!(node.requested, [0; 0], "it requests nothing");
    assert_eq!(
        node.after(Event::Tick(vec![])),
        "prepare 11, 0 gets 10",
        "the announcements have caught up"
    );
    assert_eq!(behind(&mut node, Event::Stop(Stop::Kill)), "stop receiving, kill 0, kill 1");
}

#[test]
fn mini_batch_that_another_node_has_lost_runs_next() {
    let mut node = working(1, 3);
    node.after(Event::Received(vec![
        delivered(3),
        LeasedDelivery { receive_count: 2, ..delivered(4) },
        delivered(5),
    ]));
    assert_eq!(node.after(raised(0, 1)), "0 RunRaised, again, 0 gets 4 1 2 3 5");
}

#[test]
fn waits_and_preparations_are_measured() {
    let seconds = Duration::from_secs;
    let mut node = starting(1);
    node.after(Event::Received(vec![table(0, 1)]));
    node.pass(seconds(2));
    assert_eq!(node.after(read(0, 1)), "", "no process is ready");
    node.pass(seconds(3));
    node.ready(0);
    node.pass(seconds(5));
    assert_eq!(node.attempt(raised(0, 1)).phases, Phases::new(3.0, 2.0, 0.0));

    // The next try waits from the end of this one, unless another node has made one in between.
    for (number, (tries_spent, waited)) in (0..).zip([(1, 4.0), (2, 0.0)]) {
        node.pass(seconds(4));
        let next = Descriptor { tries_spent, ..descriptor(0, Work::Rank) };
        node.after(Event::Received(vec![LeasedDelivery { descriptor: next, ..delivered(number) }]));
        node.pass(seconds(1));
        let attempt = node.attempt(if number == 0 { raised(0, 2) } else { done(0, 3) });
        assert_eq!(
            (attempt.try_number, attempt.phases),
            (tries_spent + 1, Phases::new(waited, 0.0, 0.0))
        );
        let tried = Descriptor { tries_spent: 1, ..descriptor(0, Work::Rank) };
        node.scheduler.tried.ended(&tried, node.now.instant);
    }
}

#[test]
fn phases_of_a_process_that_died_are_those_of_its_status_page() {
    let seconds = Duration::from_secs;
    for (phase, ran, loaded, in_run) in [
        (SlotPhase::Load, None, 7.0, 0.0),
        (SlotPhase::Run, Some(seconds(5)), 2.0, 5.0),
        (SlotPhase::Report, Some(seconds(6)), 1.0, 6.0),
    ] {
        let mut node = working(1, 1);
        node.pass(seconds(7));
        node.after(Event::Exited { process: id(0), code: -9, phase, sequence: 1, ran });
        let attempt = node.attempt(examined(0));
        assert_eq!(attempt.phases, Phases::new(0.0, 0.0, loaded), "{phase:?}");
        assert_eq!((attempt.run_seconds, attempt.elapsed_seconds), (in_run, 7.0), "{phase:?}");
    }
}

#[test]
fn memory_limits_preparations_except_the_first() {
    let mut node = starting(2);
    let tables =
        [60, 60, 300].into_iter().zip(0..).map(|(bytes, number)| table(number, bytes)).collect();
    assert_eq!(node.after(Event::Received(tables)), "prepare 0");
    node.ready(0);
    assert_eq!(node.after(read(0, 60)), "0 gets 0");
    assert_eq!(node.after(Event::Tick(vec![])), "prepare 1", "no other is being prepared or ready");
    assert_eq!(node.after(read(1, 60)), "", "both occupy 120 bytes of 100");
    assert_eq!(node.after(done(0, 1)), "0 Succeeded, 0 gets 1");
    assert_eq!(
        node.after(Event::Tick(vec![])),
        "prepare 2",
        "a table that is too large is prepared alone"
    );
}

#[test]
fn unreadable_or_empty_mini_batch_reaches_no_process() {
    let mut node = working(2, 0);
    node.after(Event::Received(vec![table(0, 1), table(1, 1)]));
    let failed = prepared(0, Preparation::Failed(ErrorReport::default()));
    assert_eq!(node.after(failed), "0 LoadFailed, again");
    let empty = prepared(1, Preparation::Empty(Prepared::new(Payload::Rank, 0).into()));
    assert_eq!(node.after(empty), "1 Succeeded");
}

#[test]
fn slow_preparation_is_reported_and_then_fails() {
    let mut node = starting(2);
    node.doing = vec![(SlotPhase::Idle, 0, Duration::ZERO); 2];
    node.after(Event::Received(vec![table(0, 1)]));
    assert_eq!(node.tick(Duration::from_secs(5)), "");
    assert_eq!(node.tick(Duration::from_secs(5)), "the node is in starting for 10 s");
    assert_eq!(node.tick(Duration::from_secs(5)), "", "once a minute");
    assert_eq!(node.tick(LIMIT), "0 LoadTimedOut, again");
    assert_eq!(node.after(read(0, 1)), "", "too late");
}

#[test]
fn preparations_that_hang_count_until_they_end() {
    let mut node = starting(1);
    node.doing = vec![(SlotPhase::Idle, 0, Duration::ZERO)];
    let tables = |numbers: std::ops::Range<u64>| {
        Event::Received(numbers.map(|number| table(number, 1)).collect())
    };
    assert_eq!(node.after(tables(0..6)), "prepare 0, prepare 1");
    let after = node.tick(LIMIT + Duration::from_secs(1));
    assert_eq!(after, "0 LoadTimedOut, again, 1 LoadTimedOut, again, prepare 2", "one at a time");
    assert_eq!(node.after(Event::Tick(vec![])), "");
    assert_eq!(node.after(read(0, 1)), "", "its reader has ended, too late");
    assert_eq!(node.after(read(1, 1)), "prepare 3");
    node.after(Event::LeasesLost { leases: vec![2, 3], snapshots: vec![] });
    assert_eq!(node.after(Event::Tick(vec![])), "", "2 and 3 are still being read, and 4 is");
}

#[test]
fn mini_batch_lost_too_often_is_not_started() {
    let mut node = working(1, 0);
    node.scheduler.access(crate::node_lock::Access::Exclusive);
    for (receive_count, expected) in [(11, "0 begins alone, 0 gets 0"), (12, "0 LostTooOften")] {
        let actions =
            node.after(Event::Received(vec![LeasedDelivery { receive_count, ..delivered(0) }]));
        assert!(actions.starts_with(expected), "{actions}");
        node.after(done(0, 1));
    }
}

#[test]
fn scarce_mini_batches_are_shared() {
    let mut node = working(2, 2);
    node.after(done(0, 1));
    node.after(done(1, 1));
    assert_eq!(
        node.after(Event::Received((10..14).map(delivered).collect())),
        "0 gets 10 11, 1 gets 12 13"
    );
}

#[test]
fn failed_run_is_retried_and_the_process_continues() {
    let mut node = working(1, 2);
    assert_eq!(node.after(raised(0, 1)), "0 RunRaised, again, 0 gets 1");
}

#[test]
fn answer_out_of_order_kills_the_process() {
    let mut node = working(1, 2);
    assert_eq!(node.after(done(0, 7)), "kill 0");
}

#[test]
fn process_with_too_many_failures_is_replaced_when_idle() {
    let mut node = working(1, 0);
    for number in 0..11 {
        node.after(Event::Received(vec![delivered(number)]));
        let actions = node.after(raised(0, number + 1));
        assert_eq!(
            actions.contains("finish 0"),
            number == 10,
            "after {} failures: {actions}",
            number + 1
        );
    }
    assert_eq!(node.after(Event::Received(vec![delivered(11)])), "", "no further mini-batches");
    assert_eq!(node.after(exited(0, SlotPhase::Idle, 0)), "forget 0, start 1");
}

#[test]
fn timeout_requests_stacks_then_kills_and_retries() {
    let mut node = working(2, 3);
    node.runs(0, 1);
    node.doing[1] = (SlotPhase::Idle, 0, Duration::ZERO);
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, 1 gets 2");
    assert_eq!(node.tick(Duration::from_secs(9)), "stacks of 0", "a slow run is reported");
    assert_eq!(node.stacks(0, "File x"), "0 is in run for 9 s");
    assert_eq!(node.after(done(1, 2)), "2 Succeeded");
    assert_eq!(node.tick(LIMIT), "stacks of 0");
    assert_eq!(node.tick(Duration::from_secs(1)), "", "the stacks are pending");
    assert_eq!(node.stacks(0, "File x"), "kill 0");
    assert_eq!(node.after(exited(0, SlotPhase::Run, 1)), "examine 0 in 1");
    assert_eq!(node.after(examined(0)), "0 RunTimedOut, again, forget 0, start 2");
}

#[test]
fn timeout_during_the_dump_of_a_notice_needs_no_second_dump() {
    let mut node = working(1, 1);
    node.runs(0, 1);
    assert_eq!(node.tick(Duration::from_secs(9)), "stacks of 0", "a slow run is reported");
    assert_eq!(node.tick(LIMIT), "", "the stacks are pending");
    assert_eq!(node.stacks(0, "File x"), "0 is in run for 9 s, kill 0");
}

#[test]
fn run_is_slow_if_it_takes_twice_as_long_as_usual() {
    let mut node = working(1, 3);
    node.pass(Duration::from_secs(12));
    let ending = Ending { sequence: 1, process_seconds: 12.0, ..Ending::empty() };
    assert_eq!(node.after(frame(0, ProcessEvent::Answered(ending))), "0 Succeeded, 0 gets 1");
    node.runs(0, 2);
    assert_eq!(node.tick(Duration::from_secs(23)), "", "usual");
    assert_eq!(node.tick(Duration::from_secs(2)), "stacks of 0");
    assert_eq!(node.stacks(0, "File x"), "0 is in run for 25 s");
}

#[test]
fn wait_for_a_service_does_not_count_towards_the_limit() {
    let limited = |sequence, seconds| frame(0, ProcessEvent::RateLimited { sequence, seconds });
    let mut node = working(1, 1);
    node.runs(0, 1);
    node.after(limited(1, 60.0));
    node.after(limited(1, 40.0));
    node.after(limited(9, 1000.0));
    node.after(limited(1, -1000.0));
    assert_eq!(node.tick(Duration::from_secs(9)), "stacks of 0", "a slow run is reported");
    let asked = "0 is in run for 9 s: a service that limits its rate asked it to wait";
    assert_eq!(node.stacks(0, "File selectors.py"), asked);
    assert_eq!(
        node.tick(LIMIT + Duration::from_secs(80)),
        "stacks of 0",
        "and again after a minute"
    );
    assert_eq!(node.stacks(0, "File x"), "0 is in run for 179 s", "not killed");
    assert_eq!(node.tick(Duration::from_secs(12)), "stacks of 0");
    assert_eq!(node.stacks(0, "File x"), "kill 0", "100 s later than without the waits");
}

#[test]
fn wait_for_the_limits_of_the_job_does_not_count_and_is_reported() {
    let mut node = working(1, 1);
    node.runs(0, 1);
    let limited = |process, seconds| Event::Limited { process, time: Duration::from_secs(seconds) };
    node.after(limited(ProcessId { slot: 0, number: 0 }, 100));
    node.after(limited(ProcessId { slot: 0, number: 9 }, 1000));
    assert_eq!(node.tick(LIMIT + Duration::from_secs(99)), "stacks of 0", "a slow run is reported");
    assert_eq!(
        node.stacks(0, "File x"),
        format!("0 is in run for {} s", LIMIT.as_secs() + 99),
        "not killed"
    );
    let attempt = node.attempt(done(0, 1));
    assert_eq!(
        attempt.waited,
        WaitTimes { limits_milliseconds: 100_000, services_milliseconds: 0 }
    );
    assert!(attempt.warnings.is_empty());
}

#[test]
fn mini_batch_that_waits_for_a_service_goes_on() {
    let mut node = starting_with(1, |config| {
        Arc::make_mut(&mut config.spec).progress_update_timeout_seconds = 40
    });
    node.begin(1, 1);
    node.runs(0, 1);
    let second = Duration::from_secs(1);
    assert_eq!(node.tick(second), "", "a run that waits for nothing says nothing");
    let rate_limited = |seconds| frame(0, ProcessEvent::RateLimited { sequence: 1, seconds });
    assert_eq!(node.after(rate_limited(6.0)), "");
    let told: Vec<String> = (0..7).map(|_| node.tick(second)).collect();
    assert_eq!(
        told,
        ["", "", "0 goes on", "", "0 goes on", "", ""],
        "every 2 s, until the wait is over"
    );
    let limited = Event::Limited { process: ProcessId { slot: 0, number: 0 }, time: second };
    assert_eq!(node.after(limited), "0 goes on");
}

#[test]
fn lease_lasts_as_long_as_the_attempt_that_waits() {
    let mut node = working(1, 1);
    let deadline = |node: &mut Node, seconds| {
        let actions = node.handled(frame(0, ProcessEvent::RateLimited { sequence: 1, seconds }));
        match actions.as_slice() {
            [Action::Begin { lease: 0, deadline }] => *deadline,
            _ => panic!("one lease is extended, not {}", actions.len()),
        }
    };
    let first = deadline(&mut node, 0.0);
    assert_eq!(deadline(&mut node, 5.0), first + Duration::from_secs(5));
}

#[test]
fn answer_while_stacks_are_pending_counts() {
    let mut node = working(1, 1);
    node.runs(0, 1);
    assert_eq!(node.tick(LIMIT + Duration::from_secs(1)), "stacks of 0");
    assert_eq!(node.after(done(0, 1)), "0 Succeeded");
    node.doing[0] = (SlotPhase::Idle, 0, Duration::ZERO);
    assert_eq!(node.stacks(0, "File x"), "");
}

#[test]
fn slow_run_recalls_mini_batches_for_another_process() {
    let mut node = with_one_behind_a_run();
    assert_eq!(node.tick(Duration::from_millis(40)), "");
    assert_eq!(node.tick(Duration::from_millis(20)), "recall 3..4 from 0");
    assert_eq!(
        node.after(Event::RecallAnswered { process: id(0), in_time: true }),
        "",
        "the other process is busy"
    );
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, 1 gets 11");
}

#[test]
fn late_recall_is_answered_by_the_process() {
    let mut node = with_one_behind_a_run();
    assert_eq!(node.tick(Duration::from_millis(60)), "recall 3..4 from 0");
    assert_eq!(node.after(Event::RecallAnswered { process: id(0), in_time: false }), "");
    node.after(done(0, 2));
    assert_eq!(node.after(frame(0, ProcessEvent::Recalled { sequence: 3 })), "0 gets 11");
}

#[test]
fn slow_shutdown_is_killed() {
    for (phase, seconds) in [(SlotPhase::Shutdown, 31), (SlotPhase::Idle, 6)] {
        let mut node = working(1, 0);
        assert!(node.after(Event::Stop(Stop::Finish)).ends_with("finish 0"));
        node.doing[0].0 = phase;
        assert_eq!(node.tick(Duration::from_secs(seconds - 2)), "", "{phase:?}");
        assert_eq!(node.tick(Duration::from_secs(2)), "kill 0", "{phase:?}");
    }
}
