//! Retries calls of queues.

use std::time::Duration;

use anyhow::{Context, Result};
use backon::Retryable;
use queue::pauses::while_others_wait;

/// Retries a call while the queue is unavailable, for as long as `patience` (`None`: without end).
pub async fn while_unavailable<T, F>(
    what: &'static str,
    patience: Option<Duration>,
    call: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T, queue::Error>>,
{
    call.retry(while_others_wait(patience))
        .when(|error| matches!(error, queue::Error::Unavailable { .. }))
        .notify(|error, pause| {
            let pause = pause.as_secs_f64();
            tracing::warn!(error = %format!("{error:#}"), pause.seconds = pause, "the queue is unavailable, retrying: cannot {what}");
        })
        .await
        .context(what)
}
