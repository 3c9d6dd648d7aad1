//! `gristmill rejects`: shows the rejected items of a job, grouped by cause. Reads only the store.

use anyhow::Result;
use engine::words::{clause, counted};
use engine::{Jobs, Purpose, RejectSummary};
use protocol::JobResult;
use reducer::RejectGroup;

use crate::remedies::flags;
use crate::{Exit, TargetFlags, complete};

#[derive(Debug, clap::Args)]
pub struct RejectsArguments {
    /// Id of a job, the beginning of an id, or a name: the running or newest job of that name.
    #[arg(add = complete::jobs())]
    job: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub target: TargetFlags,
}

pub async fn rejects(arguments: &RejectsArguments, jobs: &Jobs) -> Result<Exit> {
    let job = jobs.find(&arguments.job, Purpose::Look).await?;
    let summary = job.rejects().await?;
    if arguments.json {
        say!(out, "{}", serde_json::to_string(&summary).expect("plain data always serialises"));
    } else if summary.items == 0 {
        let status = jobs.status(&summary.job_id).await?;
        let items = status
            .result
            .map(|result| result.items)
            .or(status.progress.map(|progress| progress.items));
        let left =
            items.map_or(0, |items| items.total.saturating_sub(items.succeeded + items.failed));
        let and = match left {
            0 => String::new(),
            1 => ", and 1 item has not ended".to_owned(),
            _ => format!(", and {left} items have not ended"),
        };
        say!(err, "job {} has no rejects{and}", summary.job_id);
    } else {
        say!(out, "{}", shown(&summary, job.result.is_some()));
        let to_retry = job.result.as_ref().map_or(0, JobResult::rejects_to_retry);
        if to_retry > 0 {
            let them = match to_retry < summary.items {
                true => format!("{to_retry} of them"),
                false => "them".to_owned(),
            };
            let (job_id, flags) = (&summary.job_id, flags(jobs.target()));
            say!(out, "  run {them} again with: gristmill retry {job_id}{flags}");
        }
    }
    Ok(Exit::Done)
}

fn shown(summary: &RejectSummary, has_ended: bool) -> String {
    let (items, mini_batches) =
        (counted(summary.items, "rejected item"), counted(summary.mini_batches, "mini-batch"));
    let mut lines = vec![format!("job {}: {items} in {mini_batches}", summary.job_id)];
    lines.extend(summary.groups.iter().map(line));
    lines.push(match &summary.tables {
        Some(tables) => format!("  each item: {} and {}", tables.csv, tables.parquet),
        None if has_ended => {
            "  the table of all items could not be written, or has been removed".to_owned()
        }
        None => "  the table of all items is written when the job ends".to_owned(),
    });
    lines.join("\n")
}

/// Returns one line for the rejects of one cause.
fn line(group: &RejectGroup) -> String {
    let RejectGroup { items, first, .. } = group;
    let error = group.error();
    let error = clause(&error);
    let log =
        if first.log.is_empty() { String::new() } else { format!("; open logs/{}", first.log) };
    format!("  {items} × {error}, first: {} (mini-batch {}){log}", first.detail, first.mini_batch)
}
