//! `gristmill jobs`: lists jobs, newest first. Reads only the jobs that it shows, because ids hold the time.

use anyhow::Result;
use chrono::Utc;
use engine::{Jobs, READS_AT_ONCE, Summary};
use protocol::Counts;

use crate::filter::Filter;
use crate::times::compact;
use crate::{Exit, TargetFlags};

#[derive(Debug, clap::Args)]
pub struct JobsArguments {
    #[command(flatten)]
    filter: Filter,
    /// Show at most this many jobs; 0: all.
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    limit: usize,
    /// Print one JSON list.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub target: TargetFlags,
}

pub async fn jobs(arguments: &JobsArguments, jobs: &Jobs) -> Result<Exit> {
    let (selection, json) = (arguments.filter.selection(), arguments.json);
    let limit = if arguments.limit == 0 { usize::MAX } else { arguments.limit };
    let mut ids = if selection.is_open() { jobs.open_ids().await? } else { jobs.ids().await? };
    let there_are_any = !ids.is_empty();
    ids.retain(|id| selection.has_name(id));
    let width = ids.iter().take(limit).map(String::len).max().unwrap_or(0).max(3);
    let open = jobs.open_jobs().await?;
    let mut shown = Vec::new();
    let mut looked_at = 0;
    for chunk in ids.chunks(READS_AT_ONCE.min(limit)) {
        for row in jobs.summaries(chunk, &open).await.into_iter().filter(|job| selection.has_state(job.state)) {
            if shown.is_empty() && !json {
                say!(out, "{}", header(width));
            }
            if shown.len() == limit {
                break;
            }
            if !json {
                say!(out, "{}", line(&row, width));
            }
            shown.push(row);
        }
        looked_at += chunk.len();
        if shown.len() >= limit {
            break;
        }
    }
    if json {
        say!(out, "{}", serde_json::to_string(&shown).expect("plain data always serialises"));
    } else if shown.is_empty() {
        match there_are_any {
            true => say!(err, "these flags select no job in {}", jobs.place()),
            false => say!(err, "there are no jobs in {}", jobs.place()),
        }
    }
    if looked_at < ids.len() {
        let hidden = ids.len() - looked_at;
        let are = if hidden == 1 { "job is" } else { "jobs are" };
        say!(err, "{hidden} older {are} not shown; --limit 0 shows all");
    }
    Ok(Exit::Done)
}

fn header(width: usize) -> String {
    format!(
        "{:<width$}  {:<11}  {:>5}  {:>8}  {:>13}  {:>13}",
        "JOB", "STATE", "AGE", "DURATION", "MINI-BATCHES", "ITEMS"
    )
}

fn line(row: &Summary, width: usize) -> String {
    let fraction = |counts: Counts| format!("{}/{}", counts.succeeded, counts.total);
    let age = row.started_at.map(|at| compact((Utc::now() - at).num_milliseconds() as f64 / 1000.0).0);
    let duration = row.elapsed_seconds.map(|seconds| compact(seconds).1);
    let rest = match &row.problem {
        Some(problem) => problem.replace('\n', " "),
        None => format!("{:>13}  {:>13}", fraction(row.mini_batches), fraction(row.items)),
    };
    let [age, duration] = [age, duration].map(|text| text.unwrap_or_else(|| "-".to_owned()));
    format!("{:<width$}  {:<11}  {age:>5}  {duration:>8}  {rest}", row.job_id, row.state)
}
