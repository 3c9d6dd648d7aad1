//! The phases of an attempt: waited, prepared, loaded, ran, reported.

use protocol::Attempt;
use serde::Serialize;

/// One part of an attempt.
#[derive(Debug, PartialEq, Serialize)]
pub struct Phase {
    pub name: &'static str,
    pub seconds: f64,
}

/// Returns the phases of an attempt in their order, without those that took no time.
pub fn phases(attempt: &Attempt) -> Vec<Phase> {
    let elapsed = valid_seconds(attempt.elapsed_seconds);
    let run = valid_seconds(attempt.run_seconds).min(elapsed);
    let phases = attempt.phases;
    let [waited, prepared, loaded] =
        [phases.waited_seconds, phases.prepared_seconds, phases.loaded_seconds]
            .map(|seconds| valid_seconds(seconds.into()));
    // The ranges of a mini-batch wait for a process, too.
    let rest = if attempt.extra_runs > 0 { "reported, or waited between runs" } else { "reported" };
    let reported = valid_seconds(phases.reported_seconds(elapsed, run));
    let all = [
        ("waited", waited),
        ("prepared", prepared),
        ("loaded", loaded),
        ("ran", run),
        (rest, reported),
    ];
    let took_time = all.into_iter().filter(|(_, seconds)| *seconds > 0.0);
    took_time.map(|(name, seconds)| Phase { name, seconds }).collect()
}

/// Returns a time that a worker reports, without what is no time.
pub fn valid_seconds(seconds: f64) -> f64 {
    if seconds.is_finite() { seconds.max(0.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use protocol::AttemptStatus::{LostTooOften, Succeeded};
    use protocol::Phases;

    use super::*;
    use crate::fixtures::tried;

    fn told(attempt: &Attempt) -> Vec<(&'static str, f64)> {
        phases(attempt).iter().map(|phase| (phase.name, phase.seconds)).collect()
    }

    #[test]
    fn all_five_phases_are_shown() {
        let attempt = tried(1, 1, Succeeded);
        let before = [("waited", 0.0625), ("prepared", 0.25), ("loaded", 0.09375), ("ran", 0.375)];
        let expected = [&before[..], &[("reported", 0.03125)]].concat();
        assert_eq!(told(&attempt), expected);
        let isolated = Attempt { extra_runs: 2, ..attempt.clone() };
        assert_eq!(told(&isolated)[4].0, "reported, or waited between runs");
        let mut hostile = attempt;
        hostile.phases =
            Phases { waited_seconds: f32::NAN, prepared_seconds: -1.0, loaded_seconds: 9.0 };
        assert_eq!(told(&hostile), [("loaded", 9.0), ("ran", 0.375)]);
    }

    #[test]
    fn attempt_without_times_has_no_phases() {
        let lost = Attempt {
            phases: Phases::default(),
            elapsed_seconds: f64::NAN,
            run_seconds: -1.0,
            ..tried(1, 1, LostTooOften)
        };
        assert!(phases(&lost).is_empty());
    }
}
