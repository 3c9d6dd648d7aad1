//! What is true of a job that has ended: whether it completed, and whether its output is still its own.

use std::path::Path;

use protocol::{JobState, OutputAction};

use crate::{FoundJob, Home};

/// Whether a job has completed.
pub(crate) fn has_completed(job: &FoundJob) -> bool {
    job.result.as_ref().is_some_and(|result| result.state == JobState::Completed)
}

/// Whether nothing has written to the output since the job ended.
pub(crate) fn is_untouched(output: &Path, job: &FoundJob, home: &Home) -> bool {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    match (modified(output), modified(&home.job_folder(&job.spec.job_id).join("result.json"))) {
        (Some(output), Some(ended)) => output <= ended || job.spec.output.action == OutputAction::SummaryOnly,
        _ => false,
    }
}
