//! Mini-batches that have failed for good, and of which what the script has handed back counts.

use protocol::{Attempt, Isolate, JobSpec, OutputAction};

use super::isolations::{announced, of_files, rejected_items, with_isolation};
use super::*;

/// Returns a failure after which results of some of its items are kept.
fn failed(sequence: u64) -> Event {
    let failed = Ending::failed(AttemptStatus::RunRaised, error("ValueError", "bad"));
    answered(0, Ending { sequence, has_checkpoints: true, ..failed })
}

/// Returns the answer with what is kept of four items: all but the last two.
fn kept(sequence: u64) -> Event {
    let failed_items = [2, 3].map(|item| failed_item(item, AttemptStatus::RunRaised)).into();
    let ending = Ending {
        sequence,
        returned: 2,
        items_kept: 2,
        has_checkpoints: true,
        failed_items,
        pieces: vec![(0, 4)],
        ..Ending::empty()
    };
    answered_with(0, ending, "a\nb\n")
}

fn nothing_kept(sequence: u64) -> Event {
    let failed = Ending::failed(AttemptStatus::IllegalResult, error("NothingKept", ""));
    answered(0, Ending { sequence, ..failed })
}

/// Returns a node with a mini-batch of four files that have one partition key, so that it is not divided.
fn of_partition(change: impl FnOnce(&mut JobSpec)) -> Node {
    let mut node = with_isolation(1, |config| {
        let spec = Arc::make_mut(&mut config.spec);
        (spec.isolate, spec.partition_keys) = (Isolate::Off, vec!["store".into()]);
        change(spec);
    });
    node.after(Event::Received(vec![of_files(0, 4)]));
    node
}

fn rejects(attempt: &Attempt) -> Vec<(u64, AttemptStatus, String)> {
    let rejected = attempt.rejected.iter();
    rejected.map(|rejected| (rejected.item, rejected.status, rejected.error.sentence())).collect()
}

#[test]
fn what_was_handed_back_counts_where_the_mini_batch_is_not_divided() {
    let mut node = of_partition(|_| ());
    assert_eq!(node.after(failed(1)), "0 gets 0[kept of 0..4]");
    let (attempt, rows) = announced(&mut node, kept(2));
    assert_eq!(
        (attempt.status, attempt.succeeded, attempt.failed(), &rows[..]),
        (AttemptStatus::Succeeded, 2, 2, &b"a\nb\n"[..])
    );
    assert_eq!((attempt.items_kept, attempt.extra_runs, attempt.pieces.len()), (2, 0, 1));
    let bad = |item| (item, AttemptStatus::RunRaised, "ValueError: bad.".to_owned());
    assert_eq!(rejects(&attempt), [bad(2), bad(3)], "with the error of the last try");
    assert!(attempt.failed_in_part());
}

#[test]
fn mini_batch_of_which_nothing_can_be_read_fails_with_its_own_error() {
    let mut node = of_partition(|_| ());
    node.after(failed(1));
    let (attempt, _) = announced(&mut node, nothing_kept(2));
    let error = attempt.error.as_deref().map(ErrorReport::sentence);
    assert_eq!(
        (attempt.status, error.as_deref()),
        (AttemptStatus::RunRaised, Some("ValueError: bad."))
    );
}

#[test]
fn mini_batch_fails_as_a_whole_where_the_job_asks_for_it_or_collects_no_rows() {
    let whole: [fn(&mut JobSpec); 2] =
        [|spec| spec.partition_keys.clear(), |spec| spec.output.action = OutputAction::SummaryOnly];
    for change in whole {
        assert_eq!(of_partition(change).after(failed(1)), "0 RunRaised");
    }
    let mut node = of_partition(|spec| spec.run_max_try = 2);
    assert_eq!(node.after(failed(1)), "0 RunRaised, again", "another try gets what is left");
}

#[test]
fn item_whose_result_was_handed_back_before_its_process_died_succeeds() {
    let mut node = with_isolation(1, |_| ());
    node.after(Event::Received(vec![of_files(0, 1)]));
    assert_eq!(node.after(exited(0, SlotPhase::Run, 1)), "examine 0 in 1");
    assert_eq!(node.after(examined_with(0, true)), "forget 0, start 1");
    assert_eq!(node.after(in_first_slot(frame(1, started()))), "1 gets 0[kept of 0..1]");
    let ending = Ending {
        sequence: 1,
        returned: 1,
        items_kept: 1,
        has_checkpoints: true,
        ..Ending::empty()
    };
    let (attempt, _) = announced(&mut node, in_first_slot(answered_with(1, ending, "a\n")));
    assert_eq!(
        (attempt.status, attempt.failed(), attempt.rejected.len()),
        (AttemptStatus::Succeeded, 0, 0)
    );
    let [warning] = &attempt.warnings[..] else { panic!("{:?}", attempt.warnings) };
    assert!(
        warning.message.ends_with("its items, whose results count: ProcessDied: it died."),
        "{}",
        warning.message
    );
}

#[test]
fn half_that_fails_keeps_what_it_has_handed_back() {
    let mut node =
        with_isolation(1, |config| Arc::make_mut(&mut config.spec).isolate = Isolate::Halves);
    node.after(Event::Received(vec![of_files(0, 8)]));
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..4]");
    assert_eq!(node.after(failed(2)), "0 gets 0[kept of 0..4]");
    assert_eq!(node.after(kept(3)), "0 gets 0[4..8]");
    let (attempt, _) = announced(&mut node, raised(0, 4));
    assert_eq!(rejected_items(&attempt), [(2, 1), (3, 1), (4, 4)]);
    assert_eq!(attempt.extra_runs, 2);
}
