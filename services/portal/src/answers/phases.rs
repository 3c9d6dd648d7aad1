//! The phases of an attempt: waited, prepared, loaded, ran, reported.
//!
//! Records of earlier builds have only the time of the hand-over to the process, the duration until its answer, and that of
//! `run()`. There, loading and reporting are the rest, and the wait before a hand-over is known for a further try on the
//! same node, because one clock measured the end of the try before it.

use protocol::{Attempt, AttemptStatus, Descriptor, ItemPath, Work};
use serde::Serialize;

/// One part of an attempt.
#[derive(Debug, PartialEq, Serialize)]
pub struct Phase {
    pub name: &'static str,
    pub seconds: f64,
}

/// Returns the phases of an attempt in their order, without those that took no time. `before` is the attempt before it of the
/// same mini-batch.
pub fn phases(
    attempt: &Attempt,
    before: Option<&Attempt>,
    descriptor: Option<&Descriptor>,
) -> Vec<Phase> {
    let elapsed = known(attempt.elapsed_seconds);
    let run = known(attempt.run_seconds).min(elapsed);
    if attempt.phases.are_known() {
        return measured(attempt, elapsed, run);
    }
    let in_process = match attempt.status {
        AttemptStatus::Succeeded | AttemptStatus::RunRaised | AttemptStatus::IllegalResult => {
            vec![("loaded and reported", elapsed - run), ("ran", run)]
        }
        AttemptStatus::LoadFailed | AttemptStatus::LoadTimedOut => vec![("loaded", elapsed)],
        // The process could no longer report when `run()` began.
        AttemptStatus::RunTimedOut | AttemptStatus::ProcessDied => {
            vec![("loaded and ran", elapsed)]
        }
        AttemptStatus::LostTooOften => vec![],
    };
    let waited = before.and_then(|before| waited_seconds(before, attempt));
    let wait =
        if descriptor.is_some_and(needs_no_preparation) { "waited" } else { "waited and prepared" };
    those_that_took_time(waited.map(|seconds| (wait, seconds)).into_iter().chain(in_process))
}

fn measured(attempt: &Attempt, elapsed: f64, run: f64) -> Vec<Phase> {
    let phases = attempt.phases;
    let [waited, prepared, loaded] =
        [phases.waited_seconds, phases.prepared_seconds, phases.loaded_seconds]
            .map(|seconds| known(seconds.into()));
    // The ranges of a mini-batch wait for a process, too.
    let rest = if attempt.extra_runs > 0 { "reported, or waited between runs" } else { "reported" };
    let reported = known(phases.reported_seconds(elapsed, run));
    let all = [
        ("waited", waited),
        ("prepared", prepared),
        ("loaded", loaded),
        ("ran", run),
        (rest, reported),
    ];
    those_that_took_time(all.into_iter())
}

fn those_that_took_time(all: impl Iterator<Item = (&'static str, f64)>) -> Vec<Phase> {
    all.filter(|(_, seconds)| *seconds > 0.0)
        .map(|(name, seconds)| Phase { name, seconds })
        .collect()
}

fn known(seconds: f64) -> f64 {
    if seconds.is_finite() { seconds.max(0.0) } else { 0.0 }
}

/// Returns the time from the end of one try to the hand-over of the next.
fn waited_seconds(before: &Attempt, attempt: &Attempt) -> Option<f64> {
    let follows =
        before.try_number.checked_add(1) == Some(attempt.try_number) && before.node == attempt.node;
    let ended_at = before.started_at as f64 + known(before.elapsed_seconds) * 1000.0;
    follows.then(|| known((attempt.started_at as f64 - ended_at) / 1000.0))
}

/// Whether a worker hands over this mini-batch without preparation.
fn needs_no_preparation(descriptor: &Descriptor) -> bool {
    match &descriptor.work {
        Work::Files { paths, .. } => !paths.iter().any(ItemPath::is_url),
        Work::Rank => true,
        Work::Rows { .. } | Work::Planned { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use protocol::AttemptStatus::{LoadFailed, LostTooOften, ProcessDied, RunRaised, Succeeded};
    use protocol::Phases;

    use super::*;
    use crate::fixtures;

    /// An attempt as earlier builds recorded it.
    fn tried(mini_batch: u64, try_number: u32, status: AttemptStatus) -> Attempt {
        Attempt { phases: Phases::default(), ..fixtures::tried(mini_batch, try_number, status) }
    }

    fn told(phases: &[Phase]) -> Vec<(&str, f64)> {
        phases.iter().map(|phase| (phase.name, phase.seconds)).collect()
    }

    #[test]
    fn all_five_phases_are_shown() {
        let attempt = fixtures::tried(1, 1, Succeeded);
        let before = [("waited", 0.0625), ("prepared", 0.25), ("loaded", 0.09375), ("ran", 0.375)];
        let expected = [&before[..], &[("reported", 0.03125)]].concat();
        assert_eq!(told(&phases(&attempt, None, None)), expected);
        let isolated = Attempt { extra_runs: 2, ..attempt.clone() };
        assert_eq!(phases(&isolated, None, None)[4].name, "reported, or waited between runs");
        let mut hostile = attempt;
        hostile.phases =
            Phases { waited_seconds: f32::NAN, prepared_seconds: -1.0, loaded_seconds: 9.0 };
        assert_eq!(told(&phases(&hostile, None, None)), [("loaded", 9.0), ("ran", 0.375)]);
    }

    #[test]
    fn phases_say_no_more_than_the_record() {
        for (status, expected) in [
            (Succeeded, &[("loaded and reported", 0.125), ("ran", 0.375)][..]),
            (RunRaised, &[("loaded and reported", 0.125), ("ran", 0.375)]),
            (LoadFailed, &[("loaded", 0.5)]),
            (ProcessDied, &[("loaded and ran", 0.5)]),
            (LostTooOften, &[]),
        ] {
            assert_eq!(told(&phases(&tried(1, 1, status), None, None)), expected);
        }
        let odd =
            Attempt { elapsed_seconds: f64::NAN, run_seconds: -1.0, ..tried(1, 1, Succeeded) };
        assert!(phases(&odd, None, None).is_empty());
    }

    #[test]
    fn wait_before_a_further_try_is_known_on_one_node() {
        let first = tried(1, 1, RunRaised);
        let mut second = tried(1, 2, Succeeded);
        second.started_at = first.started_at + 2500;
        let wait = |before: &Attempt, attempt: &Attempt, descriptor| {
            told_first(&phases(attempt, Some(before), descriptor))
        };
        assert_eq!(wait(&first, &second, None), ("waited and prepared", 2.0));
        let line = r#"{"job_id":"example-20260101-000000-0000","mini_batch":1,
            "work":{"kind":"files","input":0,"paths":["/in/a"]}}"#;
        let descriptor: Descriptor = serde_json::from_str(line).expect("valid");
        assert_eq!(wait(&first, &second, Some(&descriptor)), ("waited", 2.0));
        let elsewhere = Attempt { node: "other".into(), ..second.clone() };
        assert_eq!(wait(&first, &elsewhere, None).0, "loaded and reported", "its clock may differ");
        let again = Attempt { try_number: 1, ..second.clone() };
        assert_eq!(
            wait(&first, &again, None).0,
            "loaded and reported",
            "the job was continued between them"
        );
        let earlier = Attempt { started_at: 5, ..second };
        assert_eq!(wait(&first, &earlier, None).0, "loaded and reported", "the clock was set back");
    }

    fn told_first(phases: &[Phase]) -> (&'static str, f64) {
        (phases[0].name, phases[0].seconds)
    }
}
