//! The pauses between retries of a request that a service has not answered: one schedule for requests that must
//! succeed, and one for requests that the caller can do without.
//!
//! Jitter adds up to the same time again to each pause, so that processes that have lost a service at the same time do
//! not all retry at the same time.

use std::time::Duration;

use backon::ExponentialBuilder;

const FIRST: Duration = Duration::from_millis(100);

/// Retries until the service answers: after 100 ms, 200 ms, …, and then every 10 seconds, without end. A caller with a
/// deadline sets it with `with_total_delay`.
pub const UNTIL_IT_ANSWERS: ExponentialBuilder = ExponentialBuilder::new()
    .with_jitter()
    .with_min_delay(FIRST)
    .with_max_delay(Duration::from_secs(10))
    .without_max_times();

/// Retries eight times within 9 to 18 seconds, with pauses of at most 2 to 4 seconds: for a request whose caller can go
/// on without an answer.
pub const FOR_SECONDS: ExponentialBuilder = ExponentialBuilder::new()
    .with_jitter()
    .with_min_delay(FIRST)
    .with_max_delay(Duration::from_secs(2))
    .with_max_times(8);

/// Returns the pauses of [`FOR_SECONDS`], repeated until `patience` has passed (`None`: without end): for a caller on
/// which other tasks wait.
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
