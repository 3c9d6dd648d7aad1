//! Mini-batches whose process tries item by item, and names those that fail.

use protocol::Isolate;

use super::isolations::{announced, isolating, of_files, with_isolation};
use super::*;

/// Returns the frame of a mini-batch of files that a process gets at once.
fn handed_over(node: &mut Node, delivered: LeasedDelivery) -> MiniBatchFrame {
    node.scheduler.handle(Event::Received(vec![delivered]), node.now);
    node.scheduler.schedule(node.now, false);
    let frames =
        std::iter::from_fn(|| node.scheduler.next_action()).find_map(|action| match action {
            Action::HandOver { frames, .. } => Some(frames),
            _ => None,
        });
    frames.expect("handed over").remove(0)
}

#[test]
fn items_that_were_tried_one_by_one_are_not_run_again() {
    let mut node = isolating(1, 4);
    let failed = Ending::failed(AttemptStatus::RunRaised, error("ValueError", ""));
    let ending = Ending { sequence: 1, items_tried: true, ..failed };
    let (attempt, _) = announced(&mut node, answered(0, ending));
    assert_eq!(
        (attempt.status, attempt.is_final, attempt.extra_runs),
        (AttemptStatus::RunRaised, true, 0)
    );
}

#[test]
fn node_doubts_items_after_three_attempts_that_gave_up_until_one_succeeds() {
    let mut node = with_isolation(1, |config| Arc::make_mut(&mut config.spec).run_max_try = 2);
    let doubted = |node: &mut Node, number| handed_over(node, of_files(number, 20)).doubted;
    let gave_up = |sequence| {
        let ending = Ending::failed(AttemptStatus::RunRaised, ErrorReport::default());
        answered(0, Ending { sequence, gave_up: true, ..ending })
    };
    for number in 0..3 {
        assert!(!doubted(&mut node, number), "before {number}");
        let attempt = node.attempt(gave_up(number + 1));
        assert_eq!(attempt.warnings.len(), usize::from(number == 2), "it warns once");
    }
    for number in 3..6 {
        assert!(doubted(&mut node, number));
        let failed = if number == 4 { raised(0, number + 1) } else { gave_up(number + 1) };
        assert!(node.attempt(failed).warnings.is_empty());
    }
    assert!(doubted(&mut node, 6));
    node.after(done(0, 7));
    assert!(!doubted(&mut node, 7));
}

#[test]
fn only_the_last_try_names_items_that_fail() {
    for (isolate, run_max_try, gpus, named) in [
        (Isolate::Items, 2, 0, [false, true]),
        (Isolate::Halves, 1, 0, [true, true]),
        (Isolate::Items, 1, 1, [false, false]),
        (Isolate::Off, 1, 0, [false, false]),
    ] {
        for (number, named) in (0..).zip(named) {
            let spec = JobSpec { run_max_try, isolate, ..JobSpec::example() };
            let mut node =
                starting_with(1, |config| (config.spec, config.gpus) = (spec.into(), gpus));
            node.ready(0);
            let mut delivered = of_files(number, 4);
            delivered.descriptor.tries_spent = u32::try_from(number).expect("small");
            let frame = handed_over(&mut node, delivered);
            assert_eq!(frame.names_failed_items, named, "{isolate:?}, try {}", number + 1);
        }
    }
}
