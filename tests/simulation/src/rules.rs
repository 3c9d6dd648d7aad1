//! The rules for a job that has ended.

use protocol::{JobResult, JobState};

use crate::weather::Weather;
use crate::witness::{JobWitness, Violation};

fn broken(rule: &'static str, detail: String) -> Result<(), Violation> {
    Err(Violation { rule, detail })
}

/// Whether the job failed because messages of it have vanished.
pub(crate) fn stood_still(result: &JobResult, weather: &Weather) -> bool {
    let counts = result.mini_batches;
    weather.vanish > 0.0 && result.state == JobState::Failed && counts.succeeded + counts.failed < counts.total
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
    let succeeded = witness.succeeded();
    if !succeeded.is_empty() && result.state != JobState::Completed {
        return broken("while queue and store keep their promises, a job is completed", format!("{result:?}"));
    }
    let expected: std::collections::HashSet<u64> =
        (0..job.mini_batches).filter(|&mini_batch| job.succeeds(mini_batch)).collect();
    if job.is_certain() && succeeded != expected {
        return broken("the same rows as in an undisturbed run", format!("{succeeded:?} instead of {expected:?}"));
    }
    if job.poison.is_some_and(|poison| succeeded.contains(&poison)) {
        return broken(
            "lost deliveries have a limit",
            "a mini-batch that always kills its node has succeeded".to_owned(),
        );
    }
    let counts = result.mini_batches;
    let done = succeeded.len() as u64;
    if (counts.total, counts.succeeded, counts.failed) != (job.mini_batches, done, job.mini_batches - done) {
        return broken(
            "every mini-batch counts once",
            format!("{counts:?}, and {done} of {} succeeded; {:?}", job.mini_batches, result.cause),
        );
    }
    if result.state != JobState::Completed {
        return Ok(());
    }
    let output = std::fs::read(&witness.output).unwrap_or_default();
    if output != job.output(|mini_batch| succeeded.contains(&mini_batch)) {
        return broken(
            "every row once, in order",
            format!("{:?}", String::from_utf8_lossy(&output[..output.len().min(500)])),
        );
    }
    Ok(())
}
