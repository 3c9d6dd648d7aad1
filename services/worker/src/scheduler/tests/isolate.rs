//! Mini-batches whose tries are spent and that are run again in ranges.

use std::collections::BTreeSet;

use proptest::collection::btree_set;
use proptest::prelude::*;
use protocol::{Attempt, FailedItems, FailedRun, Isolate, Waited};

use super::super::isolation::{Isolated, Isolation};
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

pub(super) fn of_files(number: u64, files: usize) -> Delivered {
    let paths = (0..files).map(|file| format!("/in/{file}").as_str().into()).collect();
    let work = Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
    Delivered { descriptor: descriptor(number, work), ..delivered(number) }
}

/// Returns an answer with these rows, one for each item.
fn with_rows(process: u32, sequence: u64, rows: &'static str) -> Event {
    let returned = rows.lines().count() as u64;
    let ending = Ending { sequence, returned, ..Ending::empty() };
    Event::Frame {
        process: id(process),
        frame: ProcessEvent::Answered(ending),
        rows: Bytes::from_static(rows.as_bytes()),
    }
}

/// Reports an event, and returns the attempt that follows from it, with its rows.
pub(super) fn announced(node: &mut Node, event: Event) -> (Attempt, Bytes) {
    node.scheduler.handle(event, node.now);
    let outcome = std::iter::from_fn(|| node.scheduler.next_action()).find_map(|action| match action {
        Action::Announce(Announcement::Outcome(outcome)) => Some(outcome),
        _ => None,
    });
    let outcome = outcome.expect("announced");
    assert!(outcome.next_try.is_none(), "it was the last try");
    (outcome.attempt, outcome.rows)
}

fn rejected_items(attempt: &Attempt) -> Vec<(u64, u64)> {
    attempt.rejected.iter().map(|rejected| (rejected.item, rejected.items)).collect()
}

#[test]
fn only_the_item_that_fails_alone_is_rejected() {
    let mut node = isolating(1, 4);
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..2]");
    assert_eq!(node.after(with_rows(0, 2, "a\nb\n")), "0 gets 0[2..3]", "the rest must hold a bad item");
    assert_eq!(node.after(raised(0, 3)), "0 gets 0[3..4]");
    let (attempt, rows) = announced(&mut node, with_rows(0, 4, "d\n"));
    assert_eq!((attempt.status, attempt.is_final, attempt.try_number), (AttemptStatus::Succeeded, true, 1));
    assert_eq!((attempt.total, attempt.succeeded, attempt.extra_runs), (4, 3, 3));
    assert_eq!(&rows[..], b"a\nb\nd\n");
    assert_eq!(rejected_items(&attempt), [(2, 1)]);
    assert_eq!((attempt.rejected[0].status, &*attempt.rejected[0].detail), (AttemptStatus::RunRaised, "/in/2"));
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
    assert_eq!((&*run.process, ended_at - run.started_at, ended_at - attempt.started_at), (PROCESS, 5000, 6000));
}

#[test]
fn reducer_hears_of_an_isolation_that_takes_long() {
    let mut node = isolating(1, 4);
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..2]");
    node.pass(Duration::from_secs(14));
    assert_eq!(node.after(raised(0, 2)), "0 goes on, 0 gets 0[0..1]", "a twentieth of 270 seconds has passed");
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
    for (files, items_max, isolate) in
        [(1, 9, Isolate::Items), (4, 3, Isolate::Items), (4, 9, Isolate::Off), (4, 3, Isolate::Halves)]
    {
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
fn halves_are_not_divided() {
    let mut node = with_isolation(1, |config| Arc::make_mut(&mut config.spec).isolate = Isolate::Halves);
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
    let ready =
        ProcessEvent::Ready { import_seconds: 0.1, init_seconds: 0.1, python_version: "3".into(), takes_arrow: false };
    let process = ProcessId { slot: 0, number: 1 };
    assert_eq!(node.after(Event::Frame { process, frame: ready, rows: Bytes::new() }), "1 gets 0[1..2]");
    let ending = Ending { sequence: 1, returned: 1, ..Ending::empty() };
    let event = Event::Frame { process, frame: ProcessEvent::Answered(ending), rows: Bytes::new() };
    let (attempt, _) = announced(&mut node, event);
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
fn lost_lease_ends_an_isolation() {
    let mut node = isolating(2, 4);
    node.after(raised(0, 1));
    node.runs(0, 2);
    assert_eq!(node.lost(0), "kill 0");
    assert_eq!(node.after(exited(0, SlotPhase::Run, 2)), "forget 0, start 2", "nothing is announced");
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
fn items_after_many_bad_ones_are_saved() {
    for items in [9, 17, 100, 1000] {
        for count in [1, 7, 8, items / 2] {
            let isolated = isolate(items, &(0..count).collect());
            assert_eq!(
                (isolated.has_succeeded(), isolated.ending.returned),
                (true, items - count),
                "{count} of {items}"
            );
        }
    }
}

#[test]
fn node_gives_isolation_up_after_three_hopeless_mini_batches() {
    let mut node = with_isolation(1, |_| ());
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
fn isolation_does_not_end_because_its_ranges_wait() {
    let limited = Event::Limited { process: id(0), time: 33 * LIMIT };
    let rate_limited = frame(0, ProcessEvent::RateLimited { sequence: 3, seconds: (33 * LIMIT).as_secs_f64() });
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
        let Waited { limits_milliseconds, services_milliseconds } = attempt.waited;
        assert_eq!(u128::from(limits_milliseconds + services_milliseconds), (33 * LIMIT).as_millis());
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
    assert_eq!(node.tick(2 * LIMIT + Duration::from_secs(1)), "start 1, return 1, 0 Succeeded");
}

const PROCESS: &str = "process000";

fn moment() -> Moment {
    Moment { instant: Instant::now(), milliseconds: 0 }
}

fn run() -> FailedRun {
    FailedRun { process: PROCESS.into(), started_at: 0 }
}

/// Isolates `items` items, of which runs of these fail. Checks that every run is of items that are not decided, and that
/// all are in the end.
fn isolate(items: u64, bad: &BTreeSet<u64>) -> Isolated {
    let now = moment();
    let until = now.instant + Duration::from_secs(60);
    let whole = Ending::failed(AttemptStatus::RunRaised, ErrorReport::default());
    let mut isolation = Isolation::new(0..items, Isolate::Items, whole, PROCESS, [now, now], until);
    let mut decided = BTreeSet::new();
    while let Some(range) = isolation.next() {
        assert!(!range.is_empty() && decided.range(range.clone()).next().is_none(), "{range:?} was run before");
        if bad.range(range.clone()).next().is_none() {
            decided.extend(range.clone());
            let rows: String = range.clone().map(|item| format!("{item}\n")).collect();
            let ending = Ending { returned: range.end - range.start, ..Ending::empty() };
            isolation.ended(ending, rows.into(), run(), now.instant);
        } else {
            if range.end == range.start + 1 {
                decided.insert(range.start);
            }
            let failed = Ending::failed(AttemptStatus::RunRaised, ErrorReport::default());
            isolation.ended(failed, Bytes::new(), run(), now.instant);
        }
    }
    isolation.finish(|item| item.to_string(), true, now)
}

proptest! {
    #[test]
    fn items_are_conserved_in_their_order(items in 2u64..200, bad in btree_set(0u64..200, 0..24)) {
        let bad: BTreeSet<u64> = bad.into_iter().filter(|item| *item < items).collect();
        let isolated = isolate(items, &bad);
        let levels = u64::from(items.next_power_of_two().ilog2());
        // Probes divide ranges further.
        let most = 2 * bad.len() as u64 * levels + if bad.len() < 8 { 0 } else { 16 };
        prop_assert!(u64::from(isolated.extra_runs) <= most.max(levels + 1));
        if !isolated.has_succeeded() {
            prop_assert!(isolated.rejected.is_empty() && isolated.rows.is_empty());
            prop_assert!(bad.len() >= 16 || bad.len() as u64 == items);
            return Ok(());
        }
        let expected: String = (0..items).filter(|item| !bad.contains(item)).map(|item| format!("{item}\n")).collect();
        prop_assert_eq!(&isolated.rows[..], expected.as_bytes());
        prop_assert_eq!(isolated.ending.returned + bad.len() as u64, items);
        let rejected: Vec<_> = isolated.rejected.iter().map(|one| (one.item, one.items)).collect();
        prop_assert_eq!(rejected, bad.iter().map(|item| (*item, 1)).collect::<Vec<_>>());
    }
}

#[test]
fn thousands_of_bad_items_are_rejected_alone() {
    // Every second item, so that something succeeds.
    let bad: BTreeSet<u64> = (0..10_000).filter(|item| item % 2 == 1).collect();
    let isolated = isolate(10_000, &bad);
    assert_eq!(isolated.ending.returned, 5000);
    assert!(isolated.rejected.iter().all(|one| one.items == 1));
    assert!(isolated.rejected.iter().map(|one| one.item).eq(bad));
    assert_eq!(isolated.pieces.len(), 5000);
    assert!(isolated.extra_runs < 2 * 10_000, "bounded by the items: {}", isolated.extra_runs);
}

#[test]
fn bad_items_that_are_far_apart_cost_fewer_runs_than_a_search_for_each() {
    // A search costs 27 runs if it divides 14,000 items into halves.
    let bad: BTreeSet<u64> = (0..14).map(|number| number * 1000 + number * 379 % 1000).collect();
    let isolated = isolate(14_000, &bad);
    assert_eq!(isolated.ending.returned, 14_000 - 14);
    assert!(isolated.extra_runs < 14 * 18, "{}", isolated.extra_runs);
}

#[test]
fn many_bad_items_in_one_place_cost_no_good_one() {
    for first in [3, 5000, 13_000] {
        let bad: BTreeSet<u64> = (first..first + 1000).collect();
        let isolated = isolate(14_000, &bad);
        assert!(isolated.extra_runs < 1100, "hardly more than one for each: {}", isolated.extra_runs);
        let rejected: u64 = isolated.rejected.iter().map(|rejected| rejected.items).sum();
        assert_eq!((isolated.ending.returned, rejected), (13_000, 1000));
        assert_eq!(isolated.rejected.len(), 1000, "each alone");
    }
}

#[test]
fn failed_items_of_a_range_that_succeeds_are_rejected() {
    let now = moment();
    let whole = Ending::failed(AttemptStatus::RunRaised, ErrorReport::default());
    let mut isolation = Isolation::new(0..8, Isolate::Items, whole, PROCESS, [now, now], now.instant + LIMIT);
    let status = AttemptStatus::IllegalResult;
    let failed = |item| FailedItems { item, items: 1, status, error: ErrorReport::default() };
    let [one, two] = [[2].to_vec(), [0, 3].to_vec()].map(|items| items.into_iter().map(failed).collect::<Vec<_>>());
    let pieces = |failed_items, pieces| Ending { returned: 3, failed_items, pieces, ..Ending::empty() };
    isolation.ended(pieces(one, vec![(0, 4), (3, 2)]), Bytes::from_static(b"a\nb\nd\n"), run(), now.instant);
    isolation.ended(pieces(two, vec![(1, 6)]), Bytes::from_static(b"f\ng\nh\n"), run(), now.instant);
    let isolated = isolation.finish(|item| item.to_string(), true, now);
    let rejected: Vec<_> = isolated.rejected.iter().map(|one| (one.item, one.items, one.status)).collect();
    assert_eq!(rejected, [(2, 1, status), (4, 1, status)], "no more than have no result");
    assert_eq!((isolated.ending.returned, &isolated.rows[..]), (6, &b"a\nb\nd\nf\ng\nh\n"[..]));
    assert_eq!(isolated.pieces, [(0, 4), (3, 2), (5, 6)]);
}

#[test]
fn pieces_without_a_reject_between_them_are_one() {
    let now = moment();
    let whole = Ending::failed(AttemptStatus::RunRaised, ErrorReport::default());
    let rows = || Bytes::from_static(b"a\n");
    for (failed_items, pieces, all) in [
        // Its last item has failed: the next range is a piece of its own.
        (vec![1], vec![(0, 2)], vec![(0, 2), (2, 2)]),
        (vec![], vec![], vec![(0, 4)]),
        // Which rows are whose is unknown.
        (vec![1], vec![], vec![]),
    ] {
        let mut isolation =
            Isolation::new(0..4, Isolate::Items, whole.clone(), PROCESS, [now, now], now.instant + LIMIT);
        let failed = |item| FailedItems { item, items: 1, status: whole.status, error: ErrorReport::default() };
        let failed_items: Vec<_> = failed_items.into_iter().map(failed).collect();
        let returned = 2 - failed_items.len() as u64;
        let ending = Ending { returned, failed_items, pieces, ..Ending::empty() };
        isolation.ended(ending, rows(), run(), now.instant);
        isolation.ended(Ending { returned: 2, ..Ending::empty() }, rows(), run(), now.instant);
        assert_eq!(isolation.finish(|item| item.to_string(), true, now).pieces, all);
    }
}

#[test]
fn long_errors_are_shortened() {
    let now = moment();
    let error = ErrorReport {
        message: "ü".repeat(5000),
        traceback: "t".repeat(16_000),
        printed: format!("{}\nlast", "p".repeat(2000)),
        ..ErrorReport::default()
    };
    let fails = || Ending::failed(AttemptStatus::RunRaised, error.clone());
    let mut isolation = Isolation::new(0..100, Isolate::Items, fails(), PROCESS, [now, now], now.instant + LIMIT);
    while let Some(range) = isolation.next() {
        let ending = if range.start == 0 && range.end == 1 { Ending::empty() } else { fails() };
        isolation.ended(ending, Bytes::new(), run(), now.instant);
    }
    let isolated = isolation.finish(|_| "/long".repeat(1000), true, now);
    let bytes = serde_json::to_vec(&isolated.rejected).expect("plain data").len();
    assert!(isolated.rejected.len() == 99 && bytes < 128 * 1024, "{bytes} bytes");
    assert_eq!(isolated.rejected[0].error.printed, "last", "whole lines at the end");
}

#[test]
fn ranges_with_other_columns_cannot_be_joined_where_columns_have_no_names() {
    for (by_position, status, warnings) in [(true, AttemptStatus::RunRaised, 1), (false, AttemptStatus::Succeeded, 0)] {
        let now = moment();
        let whole = Ending::failed(AttemptStatus::RunRaised, ErrorReport::default());
        let mut isolation = Isolation::new(0..2, Isolate::Items, whole, PROCESS, [now, now], now.instant + LIMIT);
        for name in ["a", "b"] {
            let ending = Ending { returned: 1, columns: Some(vec![name.into()]), ..Ending::empty() };
            isolation.ended(ending, Bytes::from_static(b"1\n"), run(), now.instant);
        }
        let isolated = isolation.finish(|item| item.to_string(), by_position, now);
        assert_eq!((isolated.ending.status, isolated.warnings_total), (status, warnings));
        assert_eq!(isolated.rows.is_empty(), by_position);
    }
}

// ---- GPUs ------------------------------------------------------------------------------------------------------------

const GONE: &str = "CUDA error: no CUDA-capable device is detected";

/// Reports that a run has failed, because its GPU is gone.
fn without_gpu(process: u32, sequence: u64) -> Event {
    let error = ErrorReport { message: GONE.into(), ..ErrorReport::default() };
    answered(process, Ending { sequence, ..Ending::failed(AttemptStatus::RunRaised, error) })
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
    assert_eq!((attempt.status, attempt.extra_runs, &rows[..]), (AttemptStatus::Succeeded, 3, &b"a\n"[..]));
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
