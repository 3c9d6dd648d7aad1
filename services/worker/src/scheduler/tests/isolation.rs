//! The ranges of a mini-batch whose tries are spent, apart from the node that runs them.

use std::collections::BTreeSet;

use proptest::collection::btree_set;
use proptest::prelude::*;
use protocol::{FailedRun, Isolate};

use super::super::isolation::{Isolation, IsolationOutcome};
use super::super::pipe::PipedMiniBatch;
use super::*;

fn run() -> FailedRun {
    FailedRun { process: id(0).name().into(), started_at: 0 }
}

fn fails() -> Ending {
    Ending::failed(AttemptStatus::RunRaised, ErrorReport::default())
}

fn returned(items: u64) -> Ending {
    Ending { returned: items, ..Ending::empty() }
}

/// Ends the run of a range.
fn end(isolation: &mut Isolation, ending: Ending, rows: impl Into<Bytes>, now: Timestamp) {
    isolation.ended(ending, rows.into(), run(), now.instant);
}

/// Returns the isolation of a mini-batch with this number of items and this end of its last try.
fn isolation(items: u64, whole: Ending, now: Timestamp) -> Isolation {
    Isolation::new(0..items, Isolate::Items, whole, id(0), [now, now], now.instant + LIMIT)
}

/// Isolates items of which some are bad, in a process that does not know which it works on.
fn isolate(items: u64, bad: &BTreeSet<u64>) -> IsolationOutcome {
    isolate_with(items, bad, |_| None)
}

/// Isolates items, of which runs of the bad ones fail. `suspect`: the item that a failed run of a range names.
fn isolate_with(
    items: u64,
    bad: &BTreeSet<u64>,
    suspect: impl Fn(Range<u64>) -> Option<u64>,
) -> IsolationOutcome {
    isolate_in(&Script::default(), items, bad, suspect).0
}

/// How long the runs of a script take; zero: unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Script {
    run: Duration,
    item: Duration,
    /// Whether it works on all items before it looks at one.
    is_eager: bool,
}

/// Isolates items in the time of a script. Checks that every run is of items that are not decided, and that all are in the
/// end. Returns the number of items that failed runs worked on, too.
fn isolate_in(
    script: &Script,
    items: u64,
    bad: &BTreeSet<u64>,
    suspect: impl Fn(Range<u64>) -> Option<u64>,
) -> (IsolationOutcome, u64) {
    let mut now = moment();
    let fails = |range: Range<u64>| {
        let suspect = suspect(range.clone()).map(|item| item.wrapping_sub(range.start));
        Ending { suspect, ..fails() }
    };
    let mut isolation = isolation(items, fails(0..items), now);
    let mut decided = BTreeSet::new();
    let mut in_vain = 0;
    while let Some(range) = isolation.next() {
        assert!(
            !range.is_empty() && decided.range(range.clone()).next().is_none(),
            "{range:?} was run before"
        );
        let count = range.end - range.start;
        let first_bad = bad.range(range.clone()).next().copied();
        let worked_on =
            first_bad.filter(|_| !script.is_eager).map_or(count, |bad| bad - range.start + 1);
        let took = script.run + script.item * worked_on as u32;
        if took > Duration::ZERO {
            let handed = PipedMiniBatch { began: now, ..handed() };
            now.instant += took;
            isolation.handed(&handed);
        }
        if first_bad.is_none() {
            decided.extend(range.clone());
            let rows: String = range.map(|item| format!("{item}\n")).collect();
            end(&mut isolation, returned(count), rows, now);
        } else {
            if count == 1 {
                decided.insert(range.start);
            } else {
                in_vain += worked_on;
            }
            end(&mut isolation, fails(range), "", now);
        }
    }
    (isolation.finish(|item| item.to_string(), true, now), in_vain)
}

fn handed() -> PipedMiniBatch {
    let (rate_limited, limited, waits_until) = (Duration::ZERO, Duration::ZERO, None);
    PipedMiniBatch { sequence: 1, lease: 0, began: moment(), rate_limited, limited, waits_until }
}

/// The first bad item of a range: the one that a script works on when it fails.
fn first_of(bad: &BTreeSet<u64>) -> impl Fn(Range<u64>) -> Option<u64> {
    |range| bad.range(range).next().copied()
}

/// What a process knows of the item that it works on.
#[derive(Clone, Copy, Debug)]
enum Knows {
    Nothing,
    TheItem,
    SomethingWrong { seed: u64 },
}

impl Knows {
    fn any() -> impl Strategy<Value = Self> {
        let wrong = any::<u64>().prop_map(|seed| Self::SomethingWrong { seed });
        prop_oneof![Just(Self::Nothing), Just(Self::TheItem), wrong]
    }

    fn suspect(self, range: Range<u64>, bad: &BTreeSet<u64>) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::TheItem => first_of(bad)(range),
            // Some lie outside.
            Self::SomethingWrong { seed } => {
                Some(range.start + seed.wrapping_mul(range.end) % (range.end - range.start + 2))
            }
        }
    }
}

impl Script {
    /// A run costs as much as any number of items, from none.
    fn any() -> impl Strategy<Value = Self> {
        (0u64..3, 0u64..300, any::<bool>()).prop_map(|(item, run, is_eager)| Self {
            run: Duration::from_micros(run),
            item: Duration::from_micros(item),
            is_eager,
        })
    }
}

proptest! {
    #[test]
    fn items_are_conserved_in_their_order(
        items in 2u64..200,
        bad in btree_set(0u64..200, 0..24),
        knows in Knows::any(),
        script in Script::any(),
    ) {
        let bad: BTreeSet<u64> = bad.into_iter().filter(|item| *item < items).collect();
        let (isolated, _) = isolate_in(&script, items, &bad, |range| knows.suspect(range, &bad));
        let levels = u64::from(items.next_power_of_two().ilog2());
        let for_one = 2 * levels + 2;
        // Probes divide ranges further.
        let most = for_one * bad.len() as u64 + if bad.len() < 8 { 2 } else { 18 };
        prop_assert!(u64::from(isolated.extra_runs) <= most.max(levels + 3), "{} runs", isolated.extra_runs);
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
fn item_that_the_process_names_costs_few_runs() {
    let now = moment();
    let mut one = isolation(14_000, Ending { suspect: Some(700), ..fails() }, now);
    assert_eq!(one.next(), Some(700..701));
    end(&mut one, fails(), "", now);
    assert_eq!(one.next(), Some(0..700), "it is probably good");
    end(&mut one, returned(700), "", now);
    assert_eq!(one.next(), Some(701..1124), "another may be as far away");
    for bad in [0, 700, 5000, 13_999] {
        let bad = BTreeSet::from([bad]);
        let (known, unknown) = (isolate_with(14_000, &bad, first_of(&bad)), isolate(14_000, &bad));
        assert_eq!(known.ending.returned, 13_999);
        assert!(
            known.extra_runs < 26 && known.extra_runs < unknown.extra_runs,
            "{bad:?}: {}",
            known.extra_runs
        );
    }
    let bad: BTreeSet<u64> = (0..14).map(|number| number * 1000 + number * 379 % 1000).collect();
    let isolated = isolate_with(14_000, &bad, first_of(&bad));
    assert_eq!(isolated.ending.returned, 14_000 - 14);
    assert!(
        isolated.extra_runs < 14 * 6,
        "with one or two ranges between them: {}",
        isolated.extra_runs
    );
}

#[test]
fn what_is_left_behind_a_bad_item_is_part_of_the_next_range() {
    let now = moment();
    let mut isolation = isolation(14_000, Ending { suspect: Some(700), ..fails() }, now);
    let mut runs = Vec::new();
    while let Some(range) = isolation.next().filter(|_| runs.len() < 6) {
        let ending = match range {
            Range { start: 700, .. } => fails(),
            // 1100 is bad, too.
            Range { start: 701, end: 1124 } => Ending { suspect: Some(399), ..fails() },
            Range { start: 1100, .. } => fails(),
            _ => returned(range.end - range.start),
        };
        end(&mut isolation, ending, "", now);
        runs.push(range);
    }
    assert_eq!(runs, [700..701, 0..700, 701..1124, 1100..1101, 701..1100, 1101..1475]);
}

#[test]
fn dear_items_are_hardly_run_twice() {
    let bad: BTreeSet<u64> = (0..14).map(|number| number * 1000 + number * 379 % 1000).collect();
    for is_eager in [false, true] {
        // Microseconds.
        let [(quick_runs, quick_vain), (dear_runs, dear_vain)] =
            [(500, 2), (50, 1000)].map(|(run, item)| {
                let [run, item] = [run, item].map(Duration::from_micros);
                let (isolated, in_vain) =
                    isolate_in(&Script { run, item, is_eager }, 14_000, &bad, first_of(&bad));
                assert_eq!(isolated.ending.returned, 14_000 - 14);
                (u64::from(isolated.extra_runs), in_vain)
            });
        assert!(quick_runs <= 14 * 5 && dear_runs < 14 * 17, "{quick_runs}, {dear_runs} runs");
        assert!(3 * dear_vain < quick_vain, "{quick_vain}, {dear_vain} items in vain");
    }
}

#[test]
fn wrong_suspects_cost_two_runs() {
    let bad = BTreeSet::from([700]);
    let runs_of = |suspect: fn(Range<u64>) -> u64| {
        let isolated = isolate_with(14_000, &bad, |range| Some(suspect(range)));
        assert_eq!((isolated.ending.returned, isolated.rejected.len()), (13_999, 1));
        isolated.extra_runs
    };
    let halves = isolate(14_000, &bad).extra_runs;
    for runs in [
        runs_of(|range| range.start),
        runs_of(|range| range.end - 1),
        runs_of(|range| range.end / 2),
    ] {
        assert!(runs <= halves + 2, "{runs} runs, {halves} without a suspect");
    }
}

#[test]
fn many_bad_items_in_one_place_cost_no_good_one() {
    for (first, knows) in
        [(3, Knows::Nothing), (5000, Knows::Nothing), (13_000, Knows::Nothing), (3, Knows::TheItem)]
    {
        let bad: BTreeSet<u64> = (first..first + 1000).collect();
        let isolated = isolate_with(14_000, &bad, |range| knows.suspect(range, &bad));
        assert!(
            isolated.extra_runs < 1100,
            "hardly more than one for each: {}",
            isolated.extra_runs
        );
        let rejected: u64 = isolated.rejected.iter().map(|rejected| rejected.items).sum();
        assert_eq!((isolated.ending.returned, rejected), (13_000, 1000));
        assert_eq!(isolated.rejected.len(), 1000, "each alone");
    }
}

#[test]
fn failed_items_of_a_range_that_succeeds_are_rejected() {
    let now = moment();
    let mut isolation = isolation(8, fails(), now);
    let status = AttemptStatus::IllegalResult;
    let ending = |failed: &[u64], pieces| {
        let failed_items = failed.iter().map(|item| failed_item(*item, status)).collect();
        Ending { failed_items, pieces, ..returned(3) }
    };
    end(&mut isolation, ending(&[2], vec![(0, 4), (3, 2)]), "a\nb\nd\n", now);
    end(&mut isolation, ending(&[0, 3], vec![(1, 6)]), "f\ng\nh\n", now);
    let isolated = isolation.finish(|item| item.to_string(), true, now);
    let rejected: Vec<_> =
        isolated.rejected.iter().map(|one| (one.item, one.items, one.status)).collect();
    assert_eq!(rejected, [(2, 1, status), (4, 1, status)], "no more than have no result");
    assert_eq!((isolated.ending.returned, &isolated.rows[..]), (6, &b"a\nb\nd\nf\ng\nh\n"[..]));
    assert_eq!(isolated.pieces, [(0, 4), (3, 2), (5, 6)]);
}

#[test]
fn pieces_without_a_reject_between_them_are_one() {
    let now = moment();
    for (failed_items, pieces, all) in [
        // Its last item has failed: the next range is a piece of its own.
        (vec![1], vec![(0, 2)], vec![(0, 2), (2, 2)]),
        (vec![], vec![], vec![(0, 4)]),
        // Which rows are whose is unknown.
        (vec![1], vec![], vec![]),
    ] {
        let mut isolation = isolation(4, fails(), now);
        let failed = |item| failed_item(item, AttemptStatus::RunRaised);
        let failed_items: Vec<_> = failed_items.into_iter().map(failed).collect();
        let count = 2 - failed_items.len() as u64;
        let ending = Ending { failed_items, pieces, ..returned(count) };
        end(&mut isolation, ending, "a\n", now);
        end(&mut isolation, returned(2), "a\n", now);
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
    let mut isolation = isolation(100, fails(), now);
    while let Some(range) = isolation.next() {
        let has_result = range.start == 0 && range.end == 1;
        end(&mut isolation, if has_result { returned(1) } else { fails() }, "", now);
    }
    let isolated = isolation.finish(|_| "/long".repeat(1000), true, now);
    let bytes = serde_json::to_vec(&isolated.rejected).expect("plain data").len();
    assert!(isolated.rejected.len() == 99 && bytes < 128 * 1024, "{bytes} bytes");
    assert_eq!(isolated.rejected[0].error.printed, "last", "whole lines at the end");
}

#[test]
fn ranges_with_other_columns_cannot_be_joined_where_columns_have_no_names() {
    for (by_position, status, warnings) in
        [(true, AttemptStatus::RunRaised, 1), (false, AttemptStatus::Succeeded, 1)]
    {
        let now = moment();
        let mut isolation = isolation(2, fails(), now);
        for name in ["a", "b"] {
            let ending = Ending { columns: Some(vec![name.into()]), ..returned(1) };
            end(&mut isolation, ending, "1\n", now);
        }
        let isolated = isolation.finish(|item| item.to_string(), by_position, now);
        assert_eq!((isolated.ending.status, isolated.warnings_total), (status, warnings));
        assert_eq!(isolated.rows.is_empty(), by_position);
        let warning = isolated.ending.warnings.last().map_or("", |warning| &warning.message);
        let expected =
            if by_position { "all its items failed" } else { "and none of them failed alone" };
        assert!(warning.contains(expected), "{warning}");
    }
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
