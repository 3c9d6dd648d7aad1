//! What is true of a job that has ended: whether it completed, and whether its output is still its own.

use std::path::Path;

use protocol::{JobState, OutputAction};

use crate::FoundJob;

/// Whether a job has completed.
pub(crate) fn has_completed(job: &FoundJob) -> bool {
    job.result.as_ref().is_some_and(|result| result.state == JobState::Completed)
}

/// Whether nothing has written to the output since the job ended, as far as this machine can see it.
pub(crate) async fn is_untouched(output: &str, job: &FoundJob) -> bool {
    let Ok(Some(ended)) = job.store.changed_at().await else { return false };
    let is_url = output.contains("://");
    let changed = match is_url {
        // The script of such a job has written the files, if there are any.
        true if job.spec.output.action == OutputAction::SummaryOnly => return true,
        true => job.store.stores().modified(output).await.ok(),
        false => Path::new(output).metadata().and_then(|found| found.modified()).ok().map(Into::into),
    };
    changed.is_some_and(|changed| changed <= ended || job.spec.output.action == OutputAction::SummaryOnly)
}
