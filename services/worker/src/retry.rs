//! How the worker retries calls of queues and stores.

use std::time::Duration;

use anyhow::{Context, Result};
use backon::{ExponentialBuilder, Retryable};

/// The pauses between calls.
pub const PAUSES: ExponentialBuilder =
    ExponentialBuilder::new().with_jitter().with_max_delay(Duration::from_secs(2)).with_max_times(6);

/// Retries a call while the queue is unavailable, for as long as `patience` (`None`: without end).
pub async fn while_unavailable<T, F>(
    what: &'static str,
    patience: Option<Duration>,
    call: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T, queue::Error>>,
{
    call.retry(PAUSES.without_max_times().with_total_delay(patience))
        .when(|error| matches!(error, queue::Error::Unavailable { .. }))
        .notify(|error, pause| {
            let pause = pause.as_secs_f64();
            tracing::warn!(error = %format!("{error:#}"), pause.seconds = pause, "the queue is unavailable, retrying: cannot {what}");
        })
        .await
        .context(what)
}
