//! Whether the output of a job that has ended is still its own.

use std::path::Path;

use protocol::OutputAction;

use crate::FoundJob;

/// Whether the output is still what the job has written, as far as this machine can see it.
pub(crate) async fn is_untouched(output: &str, job: &FoundJob) -> bool {
    if job.spec.output.action == OutputAction::SummaryOnly {
        // The script has written the files, if there are any.
        return output.contains("://") || Path::new(output).exists();
    }
    let written = job.result.as_ref().and_then(|result| result.output_version.as_ref());
    written.is_some() && job.store.stores().version(output).await.ok().as_ref() == written
}

/// Whether something else has written to an output on this machine.
pub(crate) async fn is_output_changed(job: &FoundJob) -> bool {
    let Some(result) = job.result.as_ref() else { return false };
    match (&result.output, &result.output_version) {
        (Some(output), Some(_)) if !output.contains("://") => !is_untouched(output, job).await,
        _ => false,
    }
}
