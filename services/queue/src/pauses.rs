//! The pauses between tries of a request that a service has not answered: one schedule for what a caller must not give up,
//! and one for what it can do without.
//!
//! Jitter adds up to the same time again to each pause, so that processes that have lost a service together do not come
//! back together.

use std::time::Duration;

use backon::ExponentialBuilder;

const FIRST: Duration = Duration::from_millis(100);

/// Tries again until the service answers: after 100 ms, 200 ms, …, and then every 10 seconds, without end. A caller that
/// has a deadline sets it with `with_total_delay`.
pub const UNTIL_IT_ANSWERS: ExponentialBuilder = ExponentialBuilder::new()
    .with_jitter()
    .with_min_delay(FIRST)
    .with_max_delay(Duration::from_secs(10))
    .without_max_times();

/// Eight more tries within 9 to 18 seconds, at most 2 to 4 seconds apart: for a request whose caller can go on without an
/// answer.
pub const FOR_SECONDS: ExponentialBuilder = ExponentialBuilder::new()
    .with_jitter()
    .with_min_delay(FIRST)
    .with_max_delay(Duration::from_secs(2))
    .with_max_times(8);

/// As often as [`FOR_SECONDS`] until `patience` is over (`None`: without end), while others wait for what the caller holds.
pub fn while_others_wait(patience: Option<Duration>) -> ExponentialBuilder {
    FOR_SECONDS.without_max_times().with_total_delay(patience)
}

#[cfg(test)]
mod tests {
    use backon::BackoffBuilder;

    use super::*;

    fn total(pauses: impl Iterator<Item = Duration>) -> f64 {
        pauses.map(|pause| pause.as_secs_f64()).sum()
    }

    #[test]
    fn pauses_last_as_long_as_documented() {
        for _ in 0..20 {
            let seconds = total(FOR_SECONDS.build());
            assert!((9.0..19.0).contains(&seconds), "{seconds}");
            assert!(FOR_SECONDS.build().all(|pause| pause <= Duration::from_secs(4)));
            assert!(
                UNTIL_IT_ANSWERS.build().take(1000).all(|pause| pause <= Duration::from_secs(20))
            );
            assert_eq!(UNTIL_IT_ANSWERS.build().take(1000).count(), 1000);
            assert_eq!(while_others_wait(None).build().take(1000).count(), 1000);
            let seconds = total(while_others_wait(Some(Duration::from_secs(60))).build());
            assert!((50.0..61.0).contains(&seconds), "{seconds}");
        }
    }
}
