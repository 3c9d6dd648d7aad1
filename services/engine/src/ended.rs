//! Whether the output of a job that has ended is still its own, and what the next job with this output may replace.

use std::path::Path;

use protocol::{OutputAction, Replaceable};

use crate::{FoundJob, Jobs};

/// Whether the output is unchanged since the job wrote it, as far as this machine can see.
pub(crate) async fn is_untouched(output: &str, job: &FoundJob) -> bool {
    if job.spec.output.action == OutputAction::SummaryOnly {
        // The script has written the files, if there are any.
        return output.contains("://") || Path::new(output).exists();
    }
    let written = job.result.as_ref().and_then(|result| result.output_version.as_ref());
    written.is_some() && job.store.stores().version(output).await.ok().as_ref() == written
}

/// Returns the file that a new job may replace with its output: the one that the last job with this output wrote, or could
/// replace. `last`: the id of that job, if it is known.
pub(crate) async fn replaceable(jobs: &Jobs, last: Option<String>) -> Replaceable {
    // Without the record of the last job, whatever is there is kept.
    replaceable_after(jobs, last).await.unwrap_or(Replaceable::Nothing)
}

async fn replaceable_after(jobs: &Jobs, last: Option<String>) -> anyhow::Result<Replaceable> {
    let Some(last) = last else { return Ok(Replaceable::Anything) };
    let Some(job) = jobs.job(&last).await? else { return Ok(Replaceable::Anything) };
    let (written, rounds) = match job.result {
        Some(result) if result.output_version.is_some() || result.rounds.is_empty() => {
            (result.output_version, result.rounds)
        }
        // The last round has not written the output. The ledger knows what an earlier one wrote.
        _ => {
            let tally = reducer::tally_of(&job.store, &job.spec.job_id).await?;
            let mut rounds = tally.round_results();
            rounds.pop();
            (tally.written().cloned(), rounds)
        }
    };
    Ok(match written {
        None => job.spec.output.replaceable,
        // A new job has the rows of one script.
        Some(_) if rounds.iter().any(|round| round.has_other_script) => Replaceable::Nothing,
        Some(version) => Replaceable::Version(version),
    })
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
