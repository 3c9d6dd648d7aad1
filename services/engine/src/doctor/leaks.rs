//! Finds queues that belong to no job. Reducers note in the store which queues they have created.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use protocol::{ScheduledJob, job_of_queues};

use super::{CheckState, Report};
use crate::words::counted;
use crate::{Remedy, Target};

const NAMED_MAX: usize = 5;
/// Reducers delete the queues of a job some time after the first schedule that does not list it.
const DELETED_AFTER: Duration = Duration::from_secs(120);

pub async fn check(target: &Target, report: &mut Report) {
    let check = "queues of ended jobs";
    match left(target).await {
        Ok(left) if left.is_empty() => report.ok(check, "all are deleted"),
        Ok(left) => {
            let named: Vec<&str> = left.iter().map(String::as_str).take(NAMED_MAX).collect();
            let more = if left.len() > NAMED_MAX { ", …" } else { "" };
            let message = format!(
                "{} not deleted ({}{more}), which a running reducer does within two minutes",
                counted(left.len() as u64, "queue pair"),
                named.join(", ")
            );
            let remedy = Remedy::StartReducer(target.reference());
            report.add(check, CheckState::Warning, message, remedy);
        }
        Err(error) => report.not_checked(check, format!("{error:#}")),
    }
}

/// Returns the names of the queues of jobs that have ended some time ago.
async fn left(target: &Target) -> Result<Vec<String>> {
    let store = target.open_store().await?;
    let names = store.queues().await?;
    // In this order: a job that is admitted in between is listed.
    let schedule = store.last_schedule().await?.unwrap_or_default();
    if store.age(&schedule) < DELETED_AFTER {
        return Ok(Vec::new());
    }
    let used: HashSet<String> = schedule.jobs.iter().filter_map(ScheduledJob::queues).collect();
    let is_of_job = |name: &String| job_of_queues(name).is_some();
    Ok(names.into_iter().filter(|name| is_of_job(name) && !used.contains(name)).collect())
}
