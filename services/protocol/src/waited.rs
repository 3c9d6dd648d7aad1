//! Time that mini-batches have waited for what no run of theirs can hasten.

use serde::{Deserialize, Serialize};

use crate::words::duration;

/// Shorter waits are not reported.
const TOLD_MILLISECONDS: u64 = 1000;

/// Milliseconds that attempts have waited, those of all processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitTimes {
    /// For the `limits` of the job.
    pub limits_milliseconds: u64,
    /// For services that limit their rate.
    pub services_milliseconds: u64,
}

impl WaitTimes {
    /// Adds the waits of another attempt.
    pub fn add(&mut self, other: Self) {
        self.limits_milliseconds =
            self.limits_milliseconds.saturating_add(other.limits_milliseconds);
        self.services_milliseconds =
            self.services_milliseconds.saturating_add(other.services_milliseconds);
    }

    /// Returns the waits in words: `waited 12 min for the limits of the job, 3 min for a service`; `None` if there was
    /// none of a second.
    pub fn sentence(&self) -> Option<String> {
        let waits = [
            (self.limits_milliseconds, "the limits of the job"),
            (self.services_milliseconds, "a service"),
        ];
        let told = waits.iter().filter(|(milliseconds, _)| *milliseconds >= TOLD_MILLISECONDS);
        let told: Vec<_> = told
            .map(|(milliseconds, what)| {
                format!("{} for {what}", duration((milliseconds / 1000) as f64))
            })
            .collect();
        (!told.is_empty()).then(|| format!("waited {}", told.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_described_in_words() {
        let told = |limits, services| {
            WaitTimes { limits_milliseconds: limits, services_milliseconds: services }
                .sentence()
                .unwrap_or_default()
        };
        assert_eq!(told(0, 999), "");
        assert_eq!(told(59_999, 0), "waited 59 s for the limits of the job");
        assert_eq!(
            told(725_000, 180_000),
            "waited 12 min 5 s for the limits of the job, 3 min for a service"
        );
        assert_eq!(told(0, 7_500_000), "waited 2 h 5 min for a service");
    }

    #[test]
    fn sum_of_any_waits_is_a_number() {
        let mut sum = WaitTimes { limits_milliseconds: u64::MAX, services_milliseconds: 1 };
        sum.add(WaitTimes { limits_milliseconds: 1, services_milliseconds: 2 });
        assert_eq!(sum, WaitTimes { limits_milliseconds: u64::MAX, services_milliseconds: 3 });
    }
}
