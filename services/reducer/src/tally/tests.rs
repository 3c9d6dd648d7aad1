//! The tally is the same for any order of events and any duplicates.

use proptest::prelude::*;
use protocol::{
    ColumnType, Kept, Planned, Rejected, Rerun, Round, RoundResult, Warning, WarningKind,
};

use super::*;
use crate::batch::Batch;
use crate::fixtures::{attempt, event, failed, fold, rejected, succeeded};

fn ended(state: JobState) -> ResultEvent {
    ResultEvent::Ended { state, cause: None, error: None }
}

#[test]
fn entry_takes_20_bytes() {
    assert_eq!(size_of::<MiniBatchCounts>(), 20);
}

#[test]
fn warning_kinds_are_counted_and_quote_the_lowest_mini_batch() {
    let warned = |mini_batch, column: &str, count, column_type| {
        let kind = WarningKind {
            column: Some(column.to_owned()),
            problem: "not a truth value, read as missing".to_owned(),
            count,
            first: format!("line {mini_batch}"),
            remedy: format!("set {column_type:?}"),
            column_type: Some(column_type),
        };
        event(Attempt {
            warning_kinds: vec![kind],
            warnings_total: count,
            ..succeeded(mini_batch, 1, 1, 1)
        })
    };
    let tally = fold(&[
        warned(2, "a", 5, ColumnType::Integer),
        warned(3, "b", 1, ColumnType::Integer),
        warned(1, "a", 2, ColumnType::Text),
        warned(1, "a", 9, ColumnType::Text),
        warned(4, "a", 1, ColumnType::Float),
    ]);
    let kinds = tally.warnings().kinds();
    let shown: Vec<_> =
        kinds.iter().map(|kind| (kind.count, kind.first.as_str(), kind.remedy.as_str())).collect();
    assert_eq!(shown, [(8, "line 1", "set Text"), (1, "line 3", "set Integer")]);
    assert_eq!(tally.warnings().count(), 9, "an attempt that is announced twice warns once");
}

#[test]
fn records_that_cannot_be_read_count_once_in_all_rounds() {
    let kind = WarningKind {
        column: Some("a".to_owned()),
        problem: "not a number".to_owned(),
        count: 3,
        first: "line 7".to_owned(),
        remedy: String::new(),
        column_type: None,
    };
    let attempt =
        Attempt { warning_kinds: vec![kind.clone()], warnings_total: 3, ..succeeded(0, 1, 10, 7) };
    let mut tally = fold(&[event(attempt.clone())]);
    tally.apply(&round(false, &[], &[0]));
    tally.apply(&of_round(1, attempt));
    assert_eq!((tally.warnings().count(), tally.warnings().kinds()), (3, vec![kind]));
}

#[test]
fn warnings_of_a_mini_batch_that_fails_count_once_until_it_runs_again() {
    let warned = |attempt: Attempt| {
        let kind = WarningKind {
            column: Some("a".to_owned()),
            problem: "not a number, read as missing".to_owned(),
            count: 1,
            first: format!("line {}", attempt.mini_batch),
            remedy: String::new(),
            column_type: None,
        };
        let warnings =
            vec![Warning { message: kind.to_string() }, Warning { message: "slow".to_owned() }];
        event(Attempt { warning_kinds: vec![kind], warnings, warnings_total: 2, ..attempt })
    };
    let mut tally = fold(&[
        warned(failed(1, 1, false, 4)),
        warned(failed(1, 2, true, 4)),
        warned(failed(1, 2, true, 4)),
        warned(succeeded(3, 1, 4, 4)),
        event(failed(5, 2, true, 4)),
    ]);
    let shown = |tally: &Tally| {
        let kinds = tally
            .warnings()
            .kinds()
            .iter()
            .map(|kind| (kind.count, kind.first.clone()))
            .collect::<Vec<_>>();
        (tally.warnings().count(), tally.warnings().first().collect::<Vec<_>>(), kinds)
    };
    assert_eq!(
        shown(&tally),
        (4, vec!["mini-batch 1: slow".to_owned()], vec![(2, "line 1".to_owned())])
    );
    tally.apply(&warned(succeeded(1, 1, 4, 4)));
    assert_eq!(shown(&tally).0, 4, "its copy has succeeded");
    tally.apply(&round(true, &[], &[]));
    assert_eq!(
        shown(&tally),
        (2, vec!["mini-batch 3: slow".to_owned()], vec![(1, "line 3".to_owned())])
    );
}

#[test]
fn rejected_items_are_failed_items_of_a_success() {
    let rejected = Rejected {
        detail: "/data/3.png".into(),
        error: *failed(0, 1, true, 1).error.expect("failed"),
        ..rejected(3)
    };
    let isolated =
        event(Attempt { rejected: vec![rejected], extra_runs: 6, ..succeeded(0, 3, 10, 9) });
    let mut tally = fold(&[
        event(failed(0, 2, false, 10)),
        isolated.clone(),
        isolated,
        event(succeeded(1, 1, 10, 10)),
    ]);
    assert_eq!(tally.items(), Counts { total: 20, succeeded: 19, failed: 1 });
    assert_eq!(
        (tally.mini_batches().failed, tally.effort().extra_runs, tally.items_rejected()),
        (0, 6, 1)
    );
    assert_eq!(tally.failures().groups()[0].count, 2, "the failed try, and the item");
    assert_eq!(tally.failures().given_up_first().count(), 0);
    tally.apply(&ResultEvent::RowsLost { mini_batches: vec![0] });
    assert_eq!((tally.items().failed, tally.items_rejected()), (0, 0));
}

#[test]
fn first_success_counts_and_later_attempts_change_nothing() {
    let mut tally = Tally::default();
    assert_eq!(tally.apply(&event(succeeded(0, 1, 10, 7))), Effect::Won);
    assert_eq!(tally.apply(&event(succeeded(0, 2, 10, 10))), Effect::Nothing);
    tally.apply(&event(failed(0, 2, true, 10)));
    assert_eq!(tally.items(), Counts { total: 10, succeeded: 7, failed: 3 });
    assert_eq!(tally.mini_batches(), Counts { total: 0, succeeded: 1, failed: 0 });
}

#[test]
fn late_success_replaces_failure() {
    let tally = fold(&[event(failed(3, 3, true, 10)), event(succeeded(3, 1, 10, 10))]);
    assert_eq!(tally.state(3), MiniBatchState::Succeeded);
    assert_eq!(tally.items(), Counts { total: 10, succeeded: 10, failed: 0 });
    assert_eq!(tally.mini_batches().failed, 0);
    assert_eq!(tally.failures().given_up_first().count(), 0);
}

#[test]
fn failed_first_try_counts_as_failed_until_the_next_succeeds() {
    let mut tally = fold(&[event(failed(0, 1, false, 10))]);
    assert_eq!((tally.currently_failed(), tally.ended(), tally.retries()), (1, 0, 1));
    assert_eq!(tally.items().failed, 0);
    tally.apply(&event(succeeded(0, 2, 10, 10)));
    assert_eq!((tally.currently_failed(), tally.ended(), tally.retries()), (0, 1, 1));
}

#[test]
fn reopening_makes_failures_pending_and_keeps_successes() {
    let mut tally = fold(&[
        event(succeeded(0, 1, 2, 1)),
        event(failed(1, 3, true, 5)),
        event(failed(2, 1, false, 5)),
        ResultEvent::Planned(Planned { mini_batches: 3, items: None }),
    ]);
    assert!(!tally.is_complete());
    tally.apply(&round(true, &[], &[]));
    assert_eq!((tally.state(1), tally.tries_spent(1)), (MiniBatchState::Pending, 0));
    assert_eq!((tally.state(2), tally.tries_spent(2)), (MiniBatchState::Pending, 0));
    assert_eq!(
        tally.items(),
        Counts { total: 7, succeeded: 1, failed: 1 },
        "those of the failed one are known"
    );
    assert_eq!((tally.currently_failed(), tally.ended()), (0, 1));
    tally.apply(&event(succeeded(1, 1, 5, 5)));
    tally.apply(&event(failed(2, 3, true, 5)));
    assert!(tally.is_complete());
}

fn round(failed: bool, rejects: &[u64], whole: &[u64]) -> ResultEvent {
    let (rejects, whole) = (rejects.to_vec(), whole.to_vec());
    ResultEvent::Round(Round { id: "a".into(), failed, rejects, whole, ..Round::default() })
}

fn of_round(round: u32, attempt: Attempt) -> ResultEvent {
    event(Attempt { round, ..attempt })
}

#[test]
fn mini_batch_that_runs_its_rejects_again_keeps_its_other_items() {
    let first = event(succeeded(0, 1, 10, 7));
    let mut tally = fold(&[first.clone(), event(succeeded(1, 1, 10, 10)), round(true, &[0], &[])]);
    let again = Rerun { round: 1, kept: Some(Kept::name(0, "a")) };
    assert_eq!(
        (tally.state(0), tally.again(0), tally.again(1)),
        (MiniBatchState::Pending, Some(again), None)
    );
    assert_eq!(
        (tally.mini_batches().succeeded, tally.items()),
        (1, Counts { total: 20, succeeded: 17, failed: 0 })
    );
    assert_eq!(tally.apply(&first), Effect::Nothing, "it was counted in the first round");
    assert_eq!(tally.apply(&of_round(1, succeeded(0, 1, 10, 9))), Effect::Won);
    assert_eq!(
        (tally.mini_batches().succeeded, tally.items()),
        (2, Counts { total: 20, succeeded: 19, failed: 1 })
    );
    assert_eq!(tally.apply(&of_round(1, succeeded(0, 1, 10, 9))), Effect::Nothing);
}

#[test]
fn rounds_tell_what_they_ran_and_what_came_of_it() {
    let mut tally = fold(&[event(succeeded(0, 1, 10, 7)), event(failed(1, 3, true, 5))]);
    assert_eq!(tally.round_results(), []);
    tally.apply(&ResultEvent::Round(Round {
        at: 3,
        failed: true,
        rejects: vec![0],
        items: 2,
        has_other_script: true,
        ..Round::default()
    }));
    tally.apply(&of_round(1, succeeded(0, 1, 10, 9)));
    tally.apply(&ResultEvent::Round(Round { at: 4, goes_on: true, ..Round::default() }));
    tally.apply(&of_round(1, failed(1, 3, true, 5)));
    tally.apply(&ended(JobState::Failed));
    tally.apply(&ResultEvent::Round(Round {
        at: 5,
        rejects: vec![0],
        items: 1,
        is_live: true,
        ..Round::default()
    }));
    let told: Vec<_> = tally.round_results().iter().map(RoundResult::sentence).collect();
    assert_eq!(
        told,
        [
            "ran the job, and was interrupted: 7 of 15 items succeeded",
            "ran 1 failed mini-batch and 2 rejected items again, with another script, and was interrupted: 9 of 15 items \
             succeeded",
            "went on after an interruption, and failed: 9 of 15 items succeeded",
            "ran 1 rejected item again: 9 of 15 items succeeded so far",
        ]
    );
    let planned = ResultEvent::Planned(Planned { mini_batches: 7, items: None });
    let mut tally = fold(&[planned, event(succeeded(0, 1, 10, 10)), event(failed(1, 3, true, 5))]);
    tally.apply(&ended(JobState::Canceled));
    tally.apply(&ResultEvent::Round(Round { at: 3, failed: true, ..Round::default() }));
    let told = tally.round_results().pop().map(|round| round.sentence());
    let said = "ran 1 failed mini-batch again, and 5 mini-batches that had not ended: 10 of 15 items succeeded so far";
    assert_eq!(told.as_deref(), Some(said));
}

#[test]
fn round_with_nothing_to_run_had_only_the_output_to_write() {
    let planned = ResultEvent::Planned(Planned { mini_batches: 1, items: None });
    let mut tally = fold(&[planned, event(succeeded(0, 1, 5, 5)), round(true, &[], &[])]);
    let told = |tally: &Tally| {
        tally.round_results().iter().skip(1).map(RoundResult::sentence).collect::<Vec<_>>()
    };
    assert!(tally.round_results()[1].only_output);
    tally.apply(&ResultEvent::Round(Round { at: 3, failed: true, ..Round::default() }));
    let failed = "had only the output to write, and failed: 5 of 5 items succeeded";
    assert_eq!(told(&tally), [failed, "wrote the output: 5 of 5 items succeeded"]);
    tally.apply(&ResultEvent::Round(Round { at: 4, goes_on: true, ..Round::default() }));
    let interrupted = "had only the output to write, and was interrupted: 5 of 5 items succeeded";
    let goes_on = "went on after an interruption: 5 of 5 items succeeded";
    assert_eq!(told(&tally), [failed, interrupted, goes_on]);
}

#[test]
fn round_that_begins_while_the_job_runs_leaves_what_runs_alone() {
    let mut tally = fold(&[
        event(failed(0, 1, false, 5)),
        event(failed(1, 3, true, 5)),
        event(succeeded(2, 1, 5, 4)),
    ]);
    let live = Round { failed: true, rejects: vec![2], is_live: true, ..Round::default() };
    tally.apply(&ResultEvent::Round(live));
    assert_eq!(
        (tally.state(0), tally.tries_spent(0), tally.retrying()),
        (MiniBatchState::Retrying, 1, 1)
    );
    assert_eq!((tally.run_again_since(0), tally.run_again_since(1)), (vec![1, 2], vec![]));
    tally.apply(&of_round(1, succeeded(1, 1, 5, 5)));
    assert_eq!(tally.run_again_since(0), [2]);
    tally.apply(&round(true, &[], &[]));
    assert_eq!(
        (tally.run_again_since(0), tally.retrying()),
        (vec![], 0),
        "the whole job is published"
    );
}

#[test]
fn interrupted_round_goes_on_with_the_tries_that_it_has_spent() {
    let mut tally = fold(&[event(failed(0, 1, false, 5))]);
    tally.apply(&ResultEvent::Round(Round { goes_on: true, ..Round::default() }));
    assert_eq!((tally.state(0), tally.tries_spent(0)), (MiniBatchState::Retrying, 1));
    tally.apply(&round(false, &[], &[]));
    assert_eq!((tally.state(0), tally.tries_spent(0)), (MiniBatchState::Pending, 0));
}

#[test]
fn mini_batch_that_fails_in_a_later_round_has_what_it_had() {
    let mut tally = fold(&[event(succeeded(0, 1, 10, 7)), round(true, &[], &[0])]);
    assert_eq!(tally.again(0), Some(Rerun { round: 1, kept: None }));
    tally.apply(&of_round(1, failed(0, 1, false, 10)));
    assert_eq!((tally.state(0), tally.currently_failed()), (MiniBatchState::Retrying, 1));
    let last = of_round(1, failed(0, 2, true, 10));
    tally.apply(&last);
    assert_eq!((tally.state(0), tally.again(0)), (MiniBatchState::Succeeded, None));
    assert_eq!(tally.items(), Counts { total: 10, succeeded: 7, failed: 3 });
    assert_eq!((tally.mini_batches().succeeded, tally.currently_failed()), (1, 0));
    let first = tally.unimproved().first.clone().expect("one");
    assert_eq!((tally.unimproved().count, first.0), (1, 0));
    tally.apply(&last);
    assert_eq!(
        (tally.unimproved().count, tally.items().failed),
        (1, 3),
        "its message is delivered again"
    );
}

#[test]
fn what_a_failed_round_has_not_run_is_rejected_as_before() {
    let before = [
        event(succeeded(0, 1, 10, 7)),
        event(succeeded(1, 1, 10, 8)),
        event(failed(2, 3, true, 5)),
    ];
    let mut tally = fold(&before);
    tally.apply(&round(true, &[0, 1], &[]));
    tally.apply(&of_round(1, failed(0, 1, false, 10)));
    assert_eq!(
        (tally.items(), tally.retrying()),
        (Counts { total: 25, succeeded: 15, failed: 0 }, 1)
    );
    tally.apply(&ended(JobState::Failed));
    assert_eq!(
        (tally.items(), tally.retrying()),
        (Counts { total: 25, succeeded: 15, failed: 5 }, 0)
    );
    assert_eq!((tally.state(0), tally.state(1), tally.state(2)), {
        (MiniBatchState::Succeeded, MiniBatchState::Succeeded, MiniBatchState::Pending)
    });
    assert_eq!((tally.again(0), tally.unimproved().count), (None, 0));
    tally.apply(&round(true, &[0, 1], &[]));
    assert_eq!(tally.apply(&of_round(1, succeeded(0, 1, 10, 10))), Effect::Nothing, "it is late");
    tally.apply(&of_round(2, succeeded(0, 1, 10, 10)));
    assert_eq!(tally.items(), Counts { total: 25, succeeded: 18, failed: 0 });
}

#[test]
fn round_that_begins_before_the_last_one_has_ended_continues_it() {
    let mut tally =
        fold(&[event(succeeded(0, 1, 10, 7)), round(true, &[0], &[]), round(true, &[0], &[])]);
    assert_eq!(tally.again(0).expect("pending").round, 1);
    tally.apply(&of_round(1, succeeded(0, 1, 10, 10)));
    assert_eq!(tally.items(), Counts { total: 10, succeeded: 10, failed: 0 });
}

#[test]
fn lost_rows_of_an_earlier_round_are_not_kept() {
    let mut tally = fold(&[event(succeeded(0, 1, 10, 7)), round(true, &[0], &[])]);
    tally.apply(&ResultEvent::RowsLost { mini_batches: vec![0] });
    assert_eq!((tally.items().succeeded, tally.again(0).expect("pending").kept), (0, None));
    tally.apply(&of_round(1, failed(0, 3, true, 10)));
    assert_eq!((tally.state(0), tally.items().failed), (MiniBatchState::Failed, 10));
}

#[test]
fn failed_mini_batches_stay_if_a_round_does_not_run_them() {
    let mut tally = fold(&[
        event(failed(0, 3, true, 5)),
        event(succeeded(1, 1, 5, 4)),
        round(false, &[1], &[]),
    ]);
    assert_eq!((tally.state(0), tally.mini_batches().failed), (MiniBatchState::Failed, 1));
    tally.apply(&of_round(1, succeeded(1, 1, 5, 5)));
    assert_eq!(tally.items(), Counts { total: 10, succeeded: 5, failed: 5 });
}

#[test]
fn only_causes_of_what_runs_again_are_forgotten() {
    let cause = |mini_batch, is_final, message: &str| {
        let mut attempt = failed(mini_batch, 1 + u32::from(is_final), is_final, 5);
        attempt.error.as_mut().expect("failed").message = message.into();
        attempt
    };
    let isolated = |of: Attempt| {
        let error = *of.error.expect("failed");
        let rejected = vec![Rejected { error, ..rejected(3) }];
        Attempt { rejected, ..succeeded(of.mini_batch, 2, 5, 4) }
    };
    let errors = |tally: &Tally| {
        let causes = tally.failures().causes().into_iter();
        causes.map(|cause| (cause.error, cause.mini_batches)).collect::<Vec<_>>()
    };
    let stays = || ("ValueError: it stays".to_owned(), vec![0]);
    let begun = [
        event(cause(0, false, "it has passed")),
        event(cause(0, true, "it stays")),
        event(cause(1, false, "no total")),
        event(isolated(cause(1, false, "no total"))),
    ];
    let mut other = fold(&begun);
    other.apply(&round(true, &[], &[]));
    other.apply(&of_round(1, succeeded(0, 1, 5, 5)));
    let no_total = [("ValueError: no total".to_owned(), vec![1])];
    assert_eq!(errors(&other), no_total, "the rejected item does not run again");
    other.apply(&round(true, &[], &[]));
    assert_eq!(errors(&other), no_total, "nothing does");
    let mut tally = fold(&begun);
    tally.apply(&round(false, &[1], &[]));
    assert_eq!(errors(&tally), [stays()], "also the failed try of the success is forgotten");
    assert_eq!(tally.failures().kinds(), ["ValueError: it stays"]);
    assert_eq!(tally.failures().first().map(|first| first.mini_batch), Some(0));
    tally.apply(&of_round(1, isolated(cause(1, false, "no price"))));
    assert_eq!(errors(&tally), [stays(), ("ValueError: no price".to_owned(), vec![1])]);
    tally.apply(&round(false, &[1], &[]));
    tally.apply(&of_round(2, succeeded(1, 1, 5, 5)));
    assert_eq!(errors(&tally), [stays()], "a second retry forgets what the first has found");
    tally.apply(&round(true, &[], &[]));
    tally.apply(&of_round(3, succeeded(0, 1, 5, 5)));
    assert!(errors(&tally).is_empty());
}

#[test]
fn tries_and_lost_deliveries_are_counted_separately() {
    let mut lost = failed(0, 2, false, 1);
    lost.deliveries_lost = 4;
    let tally = fold(&[event(lost.clone()), event(lost)]);
    assert_eq!((tally.tries_spent(0), tally.deliveries_lost(0)), (2, 4));
    assert_eq!((tally.retries(), tally.deliveries_lost_total()), (2, 4));
}

#[test]
fn memory_for_all_mini_batches_is_reserved_once() {
    let planned = |mini_batches| ResultEvent::Planned(Planned { mini_batches, items: None });
    let mut tally = fold(&[event(succeeded(2, 1, 1, 1)), planned(1000)]);
    let room = tally.entries.capacity();
    tally.apply(&event(succeeded(999, 1, 1, 1)));
    assert_eq!((room, tally.entries.capacity()), (1000, 1000));

    let mut tally = fold(&[planned(u64::MAX)]);
    assert_eq!(tally.apply(&event(succeeded(5, 1, 1, 1))), Effect::Won);
}

#[test]
fn mini_batch_outside_the_plan_is_ignored() {
    let mut tally = fold(&[ResultEvent::Planned(Planned { mini_batches: 1, items: Some(1) })]);
    assert_eq!(tally.apply(&event(succeeded(u64::MAX, 1, 1, 1))), Effect::Nothing);
}

/// Generates attempts like those of real jobs: all attempts of a mini-batch agree on its items, the successful ones on
/// the number of successes, and the third try is final.
fn attempts() -> impl Strategy<Value = Vec<ResultEvent>> {
    let one = (0..12u64, 1..=3u32, prop::bool::weighted(0.4), 0..3u32).prop_map(
        |(mini_batch, number, good, lost)| {
            let total = mini_batch % 4;
            let status = if good { AttemptStatus::Succeeded } else { AttemptStatus::RunRaised };
            let succeeded = if good { total / 2 } else { 0 };
            let mut attempt =
                attempt(mini_batch, number, status, good || number == 3, total, succeeded);
            attempt.deliveries_lost = lost;
            event(attempt)
        },
    );
    prop::collection::vec(one, 0..60)
}

type Standing = (Counts, Counts, u64, u64, u64, Vec<(MiniBatchState, u32, u32)>);

fn standing(tally: &Tally) -> Standing {
    (
        tally.mini_batches(),
        tally.items(),
        tally.currently_failed(),
        tally.retries(),
        tally.deliveries_lost_total(),
        (0..12)
            .map(|id| (tally.state(id), tally.tries_spent(id), tally.deliveries_lost(id)))
            .collect(),
    )
}

proptest! {
    #[test]
    fn order_and_duplicates_do_not_matter(
        (events, shuffled) in attempts().prop_flat_map(|events| {
            let twice: Vec<_> = events.iter().chain(&events).cloned().collect();
            (Just(events), Just(twice).prop_shuffle())
        })
    ) {
        prop_assert_eq!(standing(&fold(&events)), standing(&fold(&shuffled)));
    }

    #[test]
    fn known_event_changes_nothing(events in attempts()) {
        let mut tally = Tally::default();
        let mut filtered = Tally::default();
        for event in events.iter().chain(&events) {
            let (known, before) = (tally.is_known_event(event), standing(&tally));
            let effect = tally.apply(event);
            if known {
                prop_assert_eq!((effect, standing(&tally)), (Effect::Nothing, before));
            }
            if !filtered.is_known_event(event) {
                filtered.apply(event);
            }
        }
        prop_assert_eq!(standing(&tally), standing(&filtered));
        prop_assert!(events.iter().all(|event| tally.is_known_event(event)), "all have been delivered");
    }

    /// The compact form and the JSON form have the same effects.
    #[test]
    fn compact_success_counts_like_its_json_form(events in attempts()) {
        let mut batch = Batch::default();
        events.iter().for_each(|event| batch.add_event(event));
        let mut read = Tally::default();
        let mut effects = Vec::new();
        batch.retain_in_segment(|record, _| {
            let known = read.is_known(record.event);
            effects.push((known, read.apply_record(record)));
            true
        });
        let mut tally = Tally::default();
        let expected: Vec<_> =
            events.iter().map(|event| (tally.is_known_event(event), tally.apply(event))).collect();
        prop_assert_eq!(effects, expected);
        prop_assert_eq!(standing(&read), standing(&tally));
    }

    #[test]
    fn items_and_mini_batches_are_conserved(events in attempts()) {
        let tally = fold(&events);
        let states: Vec<_> = (0..12).map(|id| tally.state(id)).collect();
        let count = |wanted| states.iter().filter(|state| **state == wanted).count() as u64;
        prop_assert_eq!(count(MiniBatchState::Succeeded), tally.mini_batches().succeeded);
        prop_assert_eq!(count(MiniBatchState::Failed), tally.mini_batches().failed);
        prop_assert_eq!(count(MiniBatchState::Retrying), tally.retrying());
        let ended = (0..12u64).zip(&states);
        let items: u64 = ended
            .map(|(id, state)| match state {
                MiniBatchState::Succeeded => id % 4,
                MiniBatchState::Failed => (id % 4).max(1),
                MiniBatchState::Pending | MiniBatchState::Retrying => 0,
            })
            .sum();
        prop_assert_eq!(tally.items().succeeded + tally.items().failed, items);
    }

    #[test]
    fn exactly_one_attempt_of_each_success_wins(events in attempts()) {
        let mut tally = Tally::default();
        let won = events.iter().filter(|event| tally.apply(event) == Effect::Won).count() as u64;
        prop_assert_eq!(won, tally.mini_batches().succeeded);
    }

    #[test]
    fn lost_success_can_succeed_again(events in attempts()) {
        let mut tally = fold(&events);
        let (before, won) = (standing(&tally), tally.mini_batches().succeeded);
        let lost: Vec<u64> = (0..12).filter(|&id| tally.state(id) == MiniBatchState::Succeeded).collect();
        tally.apply(&ResultEvent::RowsLost { mini_batches: (0..12).collect() });
        prop_assert_eq!(tally.mini_batches().succeeded, 0);
        prop_assert_eq!(tally.items().succeeded, 0);
        prop_assert!(lost.iter().all(|&id| tally.state(id) == MiniBatchState::Pending));
        let again = events.iter().filter(|event| tally.apply(event) == Effect::Won).count() as u64;
        prop_assert_eq!((again, standing(&tally)), (won, before));
    }

    #[test]
    fn reopening_leaves_only_successes(events in attempts()) {
        let mut tally = fold(&events);
        let succeeded = tally.mini_batches().succeeded;
        let items = tally.items().succeeded;
        tally.apply(&round(true, &[], &[]));
        prop_assert_eq!(tally.mini_batches(), Counts { total: 0, succeeded, failed: 0 });
        prop_assert_eq!(tally.items().succeeded, items);
        prop_assert_eq!(tally.currently_failed(), 0);
        let again = fold(&events.iter().cloned().chain([round(true, &[], &[])]).collect::<Vec<_>>());
        prop_assert_eq!(standing(&tally), standing(&again));
    }
}
