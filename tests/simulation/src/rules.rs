//! The rules for a job that has ended.

use protocol::{JobResult, JobState};

use crate::job::{BROKEN, Job};
use crate::weather::Weather;
use crate::witness::{JobWitness, Violation};

fn broken(rule: &'static str, detail: String) -> Result<(), Violation> {
    Err(Violation { rule, detail })
}

/// Whether the job failed because messages of it have vanished.
pub(crate) fn stood_still(job: &Job, result: &JobResult, weather: &Weather) -> bool {
    let counts = result.mini_batches;
    let is_incomplete = counts.succeeded + counts.failed < counts.total;
    weather.vanish > 0.0 && result.state == JobState::Failed && is_incomplete && !job.is_broken
}

/// Checks how the job ended against its script, and against what was committed.
pub(crate) fn check(witness: &JobWitness, result: &JobResult) -> Result<(), Violation> {
    if let Some(violation) = witness.violation() {
        return Err(violation);
    }
    let job = &witness.job;
    if job.canceled_after.is_some() && result.state == JobState::Canceled {
        return Ok(());
    }
    if job.is_broken {
        let is_named = result.cause.as_ref().is_some_and(|cause| cause.contains(BROKEN));
        return if is_named {
            Ok(())
        } else {
            broken("nodes tell why they cannot work", format!("{result:?}"))
        };
    }
    let succeeded = witness.succeeded();
    if !succeeded.is_empty() && result.state != JobState::Completed {
        return broken(
            "while queue and store keep their promises, a job is completed",
            format!("{result:?}"),
        );
    }
    let expected: std::collections::HashSet<u64> =
        (0..job.mini_batches).filter(|&mini_batch| job.succeeds(mini_batch)).collect();
    if job.is_certain() && succeeded != expected {
        return broken(
            "the same rows as in an undisturbed run",
            format!("{succeeded:?} instead of {expected:?}"),
        );
    }
    if job.poison.is_some_and(|poison| succeeded.contains(&poison)) {
        return broken(
            "lost deliveries have a limit",
            "what always kills its node has succeeded".to_owned(),
        );
    }
    let counts = result.mini_batches;
    let done = succeeded.len() as u64;
    if (counts.total, counts.succeeded, counts.failed)
        != (job.mini_batches, done, job.mini_batches - done)
    {
        let detail =
            format!("{counts:?}, and {done} of {} succeeded; {:?}", job.mini_batches, result.cause);
        return broken("every mini-batch counts once", detail);
    }
    if result.state != JobState::Completed {
        return Ok(());
    }
    let output = std::fs::read(&witness.output).unwrap_or_default();
    if output != job.output(|mini_batch| succeeded.contains(&mini_batch)) {
        let beginning = String::from_utf8_lossy(&output[..output.len().min(500)]);
        return broken("every row once, in order", format!("{beginning:?}"));
    }
    Ok(())
}
