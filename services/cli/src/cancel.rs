//! `gristmill cancel`: stops a job, from any terminal.

use anyhow::Result;
use engine::{Canceled, Jobs};

use crate::summary::summary;
use crate::{Exit, Show, remedies};

pub async fn cancel(jobs: &Jobs, wanted: &str) -> Result<Exit> {
    match Show::during(async |events| jobs.cancel(wanted, events).await).await? {
        Canceled::EndedBefore(result) => {
            say!(out, "job {} has ended already", result.job_id);
            say!(out, "{}", summary(&result, jobs.target()));
        }
        Canceled::Stopped(result) => say!(out, "{}", summary(&result, jobs.target())),
        Canceled::LacksReducer(hint) => {
            say!(
                out,
                "job {} has been asked to stop, and ends as soon as a reducer serves it",
                hint.job_id
            );
            say!(out, "  {}", remedies::hint(&hint));
        }
        Canceled::Requested(job_id) => {
            let reducer =
                if matches!(jobs, Jobs::Here(_)) { "" } else { ", and a reducer serves it" };
            say!(
                out,
                "job {job_id} has been asked to stop; it ends as soon as its running mini-batches have stopped{reducer}"
            );
        }
    }
    Ok(Exit::Done)
}
