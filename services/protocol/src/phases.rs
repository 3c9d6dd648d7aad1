//! The phases of an attempt: it waited, was prepared, loaded, ran, and was reported.
//!
//! A record has the first three, the duration from hand-over to end, and that of `run()`; the last phase is what is left.

use serde::{Deserialize, Serialize};

use crate::is_default;

/// The durations of the phases of an attempt before `run()`, to the microsecond. All are zero if
/// they were not measured. Half the size of `f64`, because millions of attempts are in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phases {
    /// From the receipt of the message by the node, or from the end of the try before on the same node, to the hand-over
    /// to the process; without preparation.
    #[serde(skip_serializing_if = "is_default")]
    pub waited_seconds: f32,
    /// Reading a table, or a download.
    #[serde(skip_serializing_if = "is_default")]
    pub prepared_seconds: f32,
    /// In the process, until `run()` began or could not begin.
    #[serde(skip_serializing_if = "is_default")]
    pub loaded_seconds: f32,
}

impl Phases {
    /// Creates them from seconds. An invalid duration becomes zero.
    pub fn new(waited: f64, prepared: f64, loaded: f64) -> Self {
        Self::of_microseconds(
            [waited, prepared, loaded].map(|seconds| (seconds * 1e6).round() as u64),
        )
    }

    /// Whether they were measured.
    pub fn are_known(self) -> bool {
        self != Self::default()
    }

    /// Returns them, or none if one of them is no duration: workers may claim anything.
    pub fn checked(self) -> Self {
        let all = [self.waited_seconds, self.prepared_seconds, self.loaded_seconds];
        if all.iter().all(|seconds| seconds.is_finite() && *seconds >= 0.0) {
            self
        } else {
            Self::default()
        }
    }

    /// Returns the duration from the end of `run()` to the answer: formatting of rows, and the ways between agent and
    /// process. The arguments are the durations of the attempt and of `run()`.
    pub fn reported_seconds(self, elapsed_seconds: f64, run_seconds: f64) -> f64 {
        let loaded = f64::from(self.loaded_seconds);
        let rest = elapsed_seconds - run_seconds - loaded;
        // A remainder of rounding is not a duration.
        if rest > 1e-6 + loaded * f64::from(f32::EPSILON) { rest } else { 0.0 }
    }

    pub(crate) fn microseconds(self) -> [u64; 3] {
        let Self { waited_seconds, prepared_seconds, loaded_seconds } = self;
        [waited_seconds, prepared_seconds, loaded_seconds]
            .map(|seconds| (f64::from(seconds) * 1e6).round() as u64)
    }

    pub(crate) fn of_microseconds(microseconds: [u64; 3]) -> Self {
        let [waited_seconds, prepared_seconds, loaded_seconds] =
            microseconds.map(|count| (count as f64 / 1e6) as f32);
        Self { waited_seconds, prepared_seconds, loaded_seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_phase_is_the_remaining_time() {
        let phases = Phases::new(9.0, 4.0, 0.5);
        assert_eq!(phases.reported_seconds(2.0, 1.25), 0.25);
        assert_eq!(
            phases.reported_seconds(1.0, 0.75),
            0.0,
            "the clocks of agent and process differ"
        );
        for loaded in [0.1, 100.3, 86_400.7] {
            assert_eq!(
                Phases::new(0.0, 0.0, loaded).reported_seconds(loaded + 0.2, 0.2),
                0.0,
                "{loaded}"
            );
        }
    }

    #[test]
    fn invalid_durations_count_as_missing() {
        assert_eq!(Phases::new(f64::NAN, -1.0, 0.0), Phases::default());
        let wild = |loaded_seconds| Phases { loaded_seconds, ..Phases::new(1.0, 1.0, 0.0) };
        assert_eq!(
            [-1.0, f32::INFINITY, 2.0].map(|loaded| wild(loaded).checked().are_known()),
            [false, false, true]
        );
        assert!(!Phases::new(4e-7, 0.0, 0.0).are_known());
        assert!(Phases::new(6e-7, 0.0, 0.0).are_known());
    }
}
