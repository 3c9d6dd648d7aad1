//! `gristmill run --target`: a job through the queues and the store of a compute target.

use std::process::ExitCode;

use anyhow::Result;

use crate::enqueue::{describe, end, publish};
use crate::job_file::Parsed;
use crate::targets::Target;
use crate::unfinished::Unfinished;

/// Publishes a job and follows it to its end.
pub async fn run(parsed: Parsed, target: &Target, json: bool) -> Result<ExitCode> {
    let queues = target.open_queues().await?;
    let enqueued = describe(parsed, target, queues).await?;
    say!(err, "job {}", enqueued.spec.job_id);
    let published = publish(&enqueued, Unfinished::all(), target).await;
    end(published, &enqueued, target, true, json).await
}
