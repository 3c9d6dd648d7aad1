//! Mini-batches whose tries are spent and that are run again in ranges.

use protocol::{Attempt, Isolate, WaitTimes};

use super::*;

/// Returns a working node with a mini-batch of files that has one try.
pub(super) fn isolating(processes: u32, files: usize) -> Node {
    let mut node = with_isolation(processes, |_| ());
    node.after(Event::Received(vec![of_files(0, files)]));
    node
}

pub(super) fn with_isolation(processes: u32, change: impl FnOnce(&mut Config)) -> Node {
    let spec = JobSpec { run_max_try: 1, isolate: Isolate::Items, ..JobSpec::example() };
    let mut node = starting_with(processes, |config| {
        config.spec = spec.into();
        change(config);
    });
    (0..processes).for_each(|process| node.ready(process));
    node
}

pub(super) fn of_files(number: u64, files: usize) -> LeasedDelivery {
    let paths = (0..files).map(|file| format!("/in/{file}").as_str().into()).collect();
    let work = Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
    LeasedDelivery { descriptor: descriptor(number, work), ..delivered(number) }
}

/// Returns an answer with these rows, one for each item.
fn with_rows(process: u32, sequence: u64, rows: &'static str) -> Event {
    let returned = rows.lines().count() as u64;
    answered_with(process, Ending { sequence, returned, ..Ending::empty() }, rows)
}

/// Reports an event, and returns the attempt that follows from it, with its rows.
pub(super) fn announced(node: &mut Node, event: Event) -> (Attempt, Bytes) {
    let outcome = node.outcome(event);
    assert!(outcome.next_try.is_none(), "it was the last try");
    (outcome.attempt, outcome.rows)
}

pub(super) fn rejected_items(attempt: &Attempt) -> Vec<(u64, u64)> {
    attempt.rejected.iter().map(|rejected| (rejected.item, rejected.items)).collect()
}

#[test]
fn only_the_item_that_fails_alone_is_rejected() {
    let mut node = isolating(1, 4);
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..2]");
    assert_eq!(
        node.after(with_rows(0, 2, "a\nb\n")),
        "0 gets 0[2..3]",
        "the rest must hold a bad item"
    );
    assert_eq!(node.after(raised(0, 3)), "0 gets 0[3..4]");
    let (attempt, rows) = announced(&mut node, with_rows(0, 4, "d\n"));
    assert_eq!(
        (attempt.status, attempt.is_final, attempt.try_number),
        (AttemptStatus::Succeeded, true, 1)
    );
    assert_eq!((attempt.total, attempt.succeeded, attempt.extra_runs), (4, 3, 3));
    assert_eq!(&rows[..], b"a\nb\nd\n");
    assert_eq!(rejected_items(&attempt), [(2, 1)]);
    assert_eq!(
        (attempt.rejected[0].status, &*attempt.rejected[0].detail),
        (AttemptStatus::RunRaised, "/in/2")
    );
}

#[test]
fn rejected_item_names_the_run_in_which_it_failed_alone() {
    let mut node = isolating(1, 4);
    node.after(raised(0, 1));
    node.pass(Duration::from_secs(1));
    node.after(raised(0, 2));
    assert_eq!(node.after(with_rows(0, 3, "a\n")), "0 gets 0[1..2]");
    node.pass(Duration::from_secs(2));
    assert_eq!(node.after(raised(0, 4)), "0 gets 0[2..4]");
    node.pass(Duration::from_secs(3));
    let ended_at = node.now.milliseconds;
    let (attempt, _) = announced(&mut node, with_rows(0, 5, "c\nd\n"));
    let [rejected] = &attempt.rejected[..] else { panic!("{attempt:?}") };
    let run = rejected.run.as_ref().expect("known");
    assert_eq!(
        (&*run.process, ended_at - run.started_at, ended_at - attempt.started_at),
        ("process000", 5000, 6000)
    );
}

#[test]
fn reducer_hears_of_an_isolation_that_takes_long() {
    let mut node = isolating(1, 4);
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..2]");
    node.pass(Duration::from_secs(14));
    assert_eq!(
        node.after(raised(0, 2)),
        "0 goes on, 0 gets 0[0..1]",
        "a twentieth of 270 seconds has passed"
    );
    assert_eq!(node.after(with_rows(0, 3, "a\n")), "0 gets 0[1..2]");
}

#[test]
fn tries_are_spent_before_a_mini_batch_is_divided() {
    let mut node = with_isolation(1, |config| Arc::make_mut(&mut config.spec).run_max_try = 2);
    node.after(Event::Received(vec![of_files(0, 4)]));
    assert_eq!(node.after(raised(0, 1)), "0 RunRaised, again");
}

#[test]
fn mini_batch_that_cannot_be_divided_fails() {
    for (files, items_max, isolate) in [
        (1, 9, Isolate::Items),
        (4, 3, Isolate::Items),
        (4, 9, Isolate::Off),
        (4, 3, Isolate::Halves),
    ] {
        let mut node = with_isolation(1, |config| {
            let spec = Arc::make_mut(&mut config.spec);
            (spec.isolate, spec.isolate_items_max) = (isolate, items_max);
        });
        node.after(Event::Received(vec![of_files(0, files), delivered(1)]));
        assert_eq!(node.after(raised(0, 1)), "0 RunRaised, 0 gets 1", "{files} files");
        assert_eq!(node.after(raised(0, 2)), "1 RunRaised", "it has no items");
    }
}

#[test]
fn only_a_mini_batch_that_is_too_large_to_be_divided_is_warned_about() {
    for (isolate, warnings) in [(Isolate::Items, 1), (Isolate::Off, 0)] {
        let mut node = with_isolation(1, |config| {
            let spec = Arc::make_mut(&mut config.spec);
            (spec.isolate, spec.isolate_items_max) = (isolate, 3);
        });
        node.after(Event::Received(vec![of_files(0, 4)]));
        let (attempt, _) = announced(&mut node, raised(0, 1));
        let messages: Vec<_> = attempt.warnings.iter().map(|warning| &warning.message).collect();
        assert_eq!(messages.len(), warnings);
        assert!(
            messages
                .iter()
                .all(|message| message.contains("has 4 items, more than isolate_items_max (3)"))
        );
    }
}

#[test]
fn halves_are_not_divided() {
    let mut node =
        with_isolation(1, |config| Arc::make_mut(&mut config.spec).isolate = Isolate::Halves);
    node.after(Event::Received(vec![of_files(0, 5)]));
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..2]");
    assert_eq!(node.after(raised(0, 2)), "0 gets 0[2..5]");
    let (attempt, _) = announced(&mut node, with_rows(0, 3, "c\nd\ne\n"));
    assert_eq!(rejected_items(&attempt), [(0, 2)]);
    assert_eq!(attempt.failed(), 2);
}

#[test]
fn range_that_kills_its_process_is_divided_in_the_next_one() {
    let mut node = isolating(1, 2);
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..1]");
    assert_eq!(node.after(exited(0, SlotPhase::Run, 2)), "examine 0 in 2");
    assert_eq!(node.after(examined(0)), "forget 0, start 1");
    assert_eq!(node.after(in_first_slot(frame(1, started()))), "1 gets 0[1..2]");
    let (attempt, _) = announced(&mut node, in_first_slot(done(1, 1)));
    assert_eq!(
        (attempt.rejected[0].status, &*attempt.rejected[0].error.category),
        (AttemptStatus::ProcessDied, "ProcessDied")
    );
}

#[test]
fn range_of_a_process_that_dies_idle_is_run_again() {
    let mut node = isolating(2, 2);
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..1]");
    assert_eq!(node.after(exited(0, SlotPhase::Idle, 1)), "examine 0 in 0");
    assert_eq!(node.after(examined(0)), "forget 0, 1 gets 0[0..1]");
    assert_eq!(node.after(with_rows(1, 1, "a\n")), "1 gets 0[1..2]");
    let (attempt, _) = announced(&mut node, with_rows(1, 2, "b\n"));
    assert_eq!((attempt.extra_runs, attempt.succeeded, attempt.rejected.len()), (2, 2, 0));
}

#[test]
fn hanging_range_is_killed_and_divided() {
    let mut node = isolating(1, 2);
    node.after(raised(0, 1));
    node.runs(0, 2);
    assert_eq!(node.tick(LIMIT + Duration::from_secs(1)), "stacks of 0");
    assert_eq!(node.stacks(0, "File"), "kill 0");
    node.after(exited(0, SlotPhase::Run, 2));
    assert_eq!(node.after(examined(0)), "0 goes on, forget 0, start 1");
}

#[test]
fn drained_node_returns_a_mini_batch_between_two_ranges() {
    let mut node = isolating(1, 4);
    node.after(raised(0, 1));
    assert_eq!(node.after(Event::Stop(Stop::Drain)), "stop receiving");
    assert_eq!(node.after(with_rows(0, 2, "a\nb\n")), "finish 0, return 0");
}

#[test]
fn ranges_stay_with_the_process_that_has_the_items() {
    let mut node = with_isolation(2, |_| ());
    let received = (0..8).map(|number| of_files(number, 4)).collect();
    assert_eq!(node.after(Event::Received(received)), "0 gets 0, 1 gets 1");
    assert!(node.after(done(0, 1)).starts_with("0 Succeeded, 0 gets 2"), "more wait behind it");
    node.runs(1, 1);
    let actions = node.after(raised(1, 1));
    assert!(actions.starts_with("1 gets 1[0..2]"), "not process 0, which has room: {actions}");
    let actions = node.after(raised(1, 2));
    assert!(
        actions.starts_with("1 gets 1[0..1], 0 gets"),
        "and nothing else waits behind it: {actions}"
    );
    assert_eq!(node.after(with_rows(1, 3, "a\n")), "1 gets 1[1..2]");
}

#[test]
fn quick_ranges_do_not_let_slow_mini_batches_queue_in_their_process() {
    let mut node = with_isolation(1, |_| ());
    let received = (0..8).map(|number| of_files(number, 4)).collect();
    assert_eq!(node.after(Event::Received(received)), "0 gets 0");
    let answer = |sequence, run_seconds, ending| {
        frame(0, ProcessEvent::Answered(Ending { sequence, run_seconds, ..ending }))
    };
    let fails = || Ending::failed(AttemptStatus::RunRaised, ErrorReport::default());
    let works = || Ending { returned: 1, ..Ending::empty() };
    assert_eq!(node.after(answer(1, 5.0, fails())), "0 gets 0[0..2]");
    assert_eq!(node.after(answer(2, 0.000_01, fails())), "0 gets 0[0..1]");
    assert_eq!(node.after(answer(3, 0.000_01, works())), "0 gets 0[1..2]");
    assert_eq!(node.after(answer(4, 0.000_01, fails())), "0 gets 0[2..4]");
    let actions = node.after(answer(5, 0.000_01, Ending { returned: 2, ..works() }));
    assert_eq!(actions, "0 Succeeded, 0 gets 1", "one at a time");
}

#[test]
fn process_is_not_replaced_because_its_items_are_bad() {
    let mut node = with_isolation(1, |_| ());
    let mut sequence = 0;
    for number in 0..20 {
        node.after(Event::Received(vec![of_files(number, 2)]));
        node.after(raised(0, sequence + 1));
        node.after(with_rows(0, sequence + 2, "a\n"));
        assert_eq!(node.after(raised(0, sequence + 3)), format!("{number} Succeeded"));
        sequence += 3;
    }
}

#[test]
fn lost_lease_ends_an_isolation() {
    let mut node = isolating(2, 4);
    node.after(raised(0, 1));
    node.runs(0, 2);
    assert_eq!(node.lost(0), "kill 0");
    assert_eq!(
        node.after(exited(0, SlotPhase::Run, 2)),
        "forget 0, start 2",
        "nothing is announced"
    );
}

#[test]
fn mini_batch_fails_as_a_whole_once_items_everywhere_have_failed_alone() {
    let mut node = isolating(1, 100);
    let mut actions = node.after(raised(0, 1));
    let mut runs = 0;
    while !actions.contains("RunRaised") {
        runs += 1;
        actions = node.after(raised(0, 1 + runs));
    }
    assert_eq!((actions.as_str(), runs < 30), ("0 RunRaised", true), "{runs} runs");
}

#[test]
fn node_gives_isolation_up_after_three_hopeless_mini_batches() {
    let mut node = with_isolation(1, |_| ());
    // No other node could do better.
    node.scheduler.config.is_alone = true;
    let mut sequence = 0;
    for number in 0..5 {
        node.after(Event::Received(vec![of_files(number, 2)]));
        let mut fail = |node: &mut Node| {
            sequence += 1;
            node.after(raised(0, sequence))
        };
        if number < 3 {
            fail(&mut node);
            fail(&mut node);
        }
        assert_eq!(fail(&mut node), format!("{number} RunRaised"));
    }
}

#[test]
fn isolation_that_takes_too_long_rejects_the_rest() {
    let mut node = isolating(1, 8);
    node.after(raised(0, 1));
    assert_eq!(node.after(with_rows(0, 2, "a\nb\nc\nd\n")), "0 gets 0[4..6]");
    node.pass(33 * LIMIT);
    let (attempt, _) = announced(&mut node, raised(0, 3));
    assert_eq!(rejected_items(&attempt), [(4, 1), (5, 1), (6, 2)]);
    assert_eq!((attempt.failed(), attempt.warnings_total), (4, 1));
}

#[test]
fn items_that_did_not_run_alone_say_so() {
    let mut node = isolating(1, 4);
    let hangs = |sequence| failed(0, sequence, error("RunTimeout", "too long"));
    node.after(hangs(1));
    assert_eq!(node.after(hangs(2)), "0 gets 0[0..1]");
    assert_eq!(node.after(with_rows(0, 3, "a\n")), "0 gets 0[1..2]");
    node.pass(33 * LIMIT);
    let (attempt, _) = announced(&mut node, hangs(4));
    assert_eq!(rejected_items(&attempt), [(1, 1), (2, 2)]);
    let causes: Vec<_> =
        attempt.rejected.iter().map(|rejected| rejected.error.sentence()).collect();
    assert_eq!(
        causes,
        [
            "RunTimeout: too long.",
            "NotRunAlone: not run alone, because isolation took too long; together with others: RunTimeout: too long."
        ]
    );
}

#[test]
fn isolation_does_not_end_because_its_ranges_wait() {
    let limited = Event::Limited { process: id(0), time: 33 * LIMIT };
    let rate_limited =
        frame(0, ProcessEvent::RateLimited { sequence: 3, seconds: (33 * LIMIT).as_secs_f64() });
    for wait in [limited, rate_limited] {
        let mut node = isolating(1, 8);
        node.after(raised(0, 1));
        assert_eq!(node.after(with_rows(0, 2, "a\nb\nc\nd\n")), "0 gets 0[4..6]");
        node.after(wait);
        node.pass(33 * LIMIT);
        assert!(node.after(with_rows(0, 3, "e\nf\n")).ends_with("0 gets 0[6..7]"));
        assert_eq!(node.after(with_rows(0, 4, "g\n")), "0 gets 0[7..8]");
        let (attempt, _) = announced(&mut node, with_rows(0, 5, "h\n"));
        assert_eq!((attempt.failed(), rejected_items(&attempt)), (0, vec![]));
        let WaitTimes { limits_milliseconds, services_milliseconds } = attempt.waited;
        assert_eq!(
            u128::from(limits_milliseconds + services_milliseconds),
            (33 * LIMIT).as_millis()
        );
    }
}

#[test]
fn isolation_that_would_outlive_its_lease_ends() {
    let mut node = with_isolation(1, |config| config.lease_max = Some(3 * LIMIT));
    node.after(Event::Received(vec![of_files(0, 4), of_files(1, 4)]));
    node.after(raised(0, 1));
    node.after(with_rows(0, 2, "a\nb\n"));
    assert_eq!(node.after(exited(0, SlotPhase::Idle, 3)), "examine 0 in 0");
    node.after(examined(0));
    assert_eq!(node.tick(2 * LIMIT + Duration::from_secs(1)), "start 1, 0 Succeeded, return 1");
}

// ---- GPUs ------------------------------------------------------------------------------------------------------------

const GONE: &str = "CUDA error: no CUDA-capable device is detected";

/// Reports that a run has failed, because its GPU is gone.
fn without_gpu(process: u32, sequence: u64) -> Event {
    failed(process, sequence, error("", GONE))
}

#[test]
fn mini_batch_whose_gpu_is_gone_is_not_divided() {
    let mut node = with_isolation(1, |config| config.gpus = 1);
    node.after(Event::Received(vec![of_files(0, 4)]));
    assert_eq!(node.after(without_gpu(0, 1)), "0 RunRaised, finish 0");
}

#[test]
fn range_whose_gpu_is_gone_is_run_again_with_another_gpu() {
    let mut node = with_isolation(2, |config| config.gpus = 2);
    node.after(Event::Received(vec![of_files(0, 2)]));
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..1]");
    assert_eq!(node.after(without_gpu(0, 2)), "finish 0, 1 gets 0[0..1]");
    assert_eq!(node.after(with_rows(1, 1, "a\n")), "1 gets 0[1..2]");
    let (attempt, rows) = announced(&mut node, raised(1, 2));
    assert_eq!(
        (attempt.status, attempt.extra_runs, &rows[..]),
        (AttemptStatus::Succeeded, 3, &b"a\n"[..])
    );
    assert_eq!(rejected_items(&attempt), [(1, 1)], "only the item that fails everywhere");
}

#[test]
fn no_item_is_rejected_because_the_only_gpu_is_gone() {
    let mut node = with_isolation(1, |config| config.gpus = 1);
    node.after(Event::Received(vec![of_files(0, 4)]));
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..2]");
    assert_eq!(node.after(with_rows(0, 2, "a\nb\n")), "0 gets 0[2..3]");
    let (attempt, rows) = announced(&mut node, without_gpu(0, 3));
    assert_eq!((attempt.status, attempt.succeeded, rows.len()), (AttemptStatus::RunRaised, 0, 0));
    assert!(attempt.rejected.is_empty());
}
