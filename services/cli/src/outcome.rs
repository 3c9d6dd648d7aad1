//! Prints the end of a job for commands that follow it.

use engine::targets::TargetRef;
use protocol::JobResult;

use crate::Exit;
use crate::summary::summary;

/// Prints a line if the result was reused.
pub fn say_reused(result: &JobResult) {
    if result.reused {
        say!(
            note,
            "reused the result of job {}: same script, settings and inputs (allow_reuse: false runs it again)",
            result.job_id
        );
    }
}

/// Prints the result of a job: one JSON object, or a summary.
pub fn report(result: &JobResult, json: bool, target: &TargetRef) -> Exit {
    if json {
        say!(out, "{}", serde_json::to_string(result).expect("results always serialise"));
    } else {
        say!(out, "{}", summary(result, target));
    }
    Exit::of(result.state)
}
