//! Whether the output of a job that has ended is still its own.

use std::path::Path;

use protocol::OutputAction;

use crate::FoundJob;

/// Whether the output is unchanged since the job wrote it, as far as this machine can see.
pub(crate) async fn is_untouched(output: &str, job: &FoundJob) -> bool {
    if job.spec.output.action == OutputAction::SummaryOnly {
        // The script has written the files, if there are any.
        return output.contains("://") || Path::new(output).exists();
    }
    let written = job.result.as_ref().and_then(|result| result.output_version.as_ref());
    written.is_some() && job.store.stores().version(output).await.ok().as_ref() == written
}

/// Returns the file that a job has written on this machine, whether or not it still exists.
pub(crate) fn written_here(job: &FoundJob) -> Option<&str> {
    let result = job.result.as_ref().filter(|result| result.output_version.is_some())?;
    result.output.as_deref().filter(|output| !output.contains("://"))
}

/// Whether another program has changed or removed that file.
pub(crate) async fn is_output_changed(job: &FoundJob) -> bool {
    match written_here(job) {
        Some(output) => !is_untouched(output, job).await,
        None => false,
    }
}
