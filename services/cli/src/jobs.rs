//! `gristmill jobs`: lists jobs, newest first. Reads only those that it shows and the open ones, because ids contain the time.

use anyhow::Result;
use chrono::Utc;
use engine::words::duration;
use engine::{Jobs, OpenJobs, READS_AT_ONCE, Summary};
use protocol::Counts;
use storage::NOT_A_STORE;

use crate::filter::Filter;
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
    ids.retain(|id| selection.has_name(id));
    let width = ids.iter().take(limit).map(String::len).max().unwrap_or(0).max(3);
    let open = jobs.open_jobs().await?;
    let unfinished = jobs.unfinished(&open).await?;
    let of_target = matches!(jobs, Jobs::There { .. });
    let mut shown = Vec::new();
    let (mut looked_at, mut hidden) = (0, 0);
    for chunk in ids.chunks(READS_AT_ONCE.min(limit)) {
        for row in read(jobs, chunk, &unfinished, &open)
            .await
            .into_iter()
            .filter(|job| selection.has_state(job.state))
        {
            if shown.is_empty() && !json {
                say!(out, "{}", header(width, of_target));
            }
            if shown.len() == limit {
                hidden += 1;
                continue;
            }
            if !json {
                say!(out, "{}", line(&row, width, of_target));
            }
            shown.push(row);
        }
        looked_at += chunk.len();
        if shown.len() >= limit {
            break;
        }
    }
    if shown.is_empty() && !jobs.has_store() {
        say!(err, "{} {NOT_A_STORE}", jobs.place());
    }
    if json {
        say!(out, "{}", serde_json::to_string(&shown).expect("plain data always serialises"));
    } else if shown.is_empty() && jobs.has_store() {
        match jobs.ids().await?.is_empty() {
            true => say!(err, "there are no jobs in {}", jobs.place()),
            false => say!(err, "these flags select no job in {}", jobs.place()),
        }
    }
    hidden += ids.len() - looked_at;
    if hidden > 0 {
        let are = if hidden == 1 { "job is" } else { "jobs are" };
        say!(err, "{hidden} older {are} not shown; --limit 0 shows all");
    }
    Ok(Exit::Done)
}

/// Returns jobs in the order of their ids. `unfinished`: the ones that have already been read.
async fn read(
    jobs: &Jobs,
    ids: &[String],
    unfinished: &[Summary],
    open: &OpenJobs,
) -> Vec<Summary> {
    let known = |id: &String| unfinished.iter().find(|job| job.job_id == *id);
    let others: Vec<String> = ids.iter().filter(|id| known(id).is_none()).cloned().collect();
    let others = jobs.summaries(&others, open).await;
    let found =
        |id: &String| known(id).or_else(|| others.iter().find(|job| job.job_id == *id)).cloned();
    ids.iter().filter_map(found).collect()
}

fn header(width: usize, of_target: bool) -> String {
    let place = match of_target {
        true => format!(
            "{:<12}  {:<8}  {:>10}  {:>12}  {:>12}  ",
            "OWNER", "PRIORITY", "SHARE", "WAITED", "ETA"
        ),
        false => String::new(),
    };
    format!(
        "{:<width$}  {:<11}  {place}{:>12}  {:>12}  {:>13}  {:>13}",
        "JOB", "STATE", "AGE", "DURATION", "MINI-BATCHES", "ITEMS"
    )
}

fn line(row: &Summary, width: usize, of_target: bool) -> String {
    // The totals of an unfinished job may still grow.
    let of = |Counts { total, succeeded, .. }: Counts, is_final| match is_final {
        true => format!("{succeeded}/{total}"),
        false => succeeded.to_string(),
    };
    let is_planned = row.mini_batches.total >= row.mini_batches.ended();
    let mini_batches = of(row.mini_batches, is_planned);
    let items = of(row.items, !row.state.is_open());
    let age = row.started_at.map(|at| duration((Utc::now() - at).num_seconds() as f64));
    let took = row.elapsed_seconds.map(duration);
    let waits_for = row.activity.as_ref().and_then(|activity| activity.waits_for.as_deref());
    let waits_for = waits_for.map_or_else(String::new, |reason| format!("  {reason}"));
    let rest = match &row.problem {
        Some(problem) => problem.replace('\n', " "),
        None => format!("{mini_batches:>13}  {items:>13}{waits_for}"),
    };
    let [age, took] = [age, took].map(|text| text.unwrap_or_else(|| "-".to_owned()));
    let place = if of_target { placed(row) } else { String::new() };
    format!("{:<width$}  {:<11}  {place}{age:>12}  {took:>12}  {rest}", row.job_id, row.state)
}

/// Returns the columns of a job on a target: owner, priority, processes and their share, the wait for the first
/// process, and the remaining time.
fn placed(row: &Summary) -> String {
    let (owner, priority) = (row.owner.as_deref().unwrap_or("-"), row.priority.word());
    let activity = row.activity.as_ref();
    let share = activity.and_then(|activity| {
        Some(format!("{} ({:.0}%)", activity.processes, 100.0 * activity.share?))
    });
    let waited = activity.and_then(|activity| activity.waited_seconds).map(duration);
    let left = activity
        .and_then(|activity| activity.remaining_seconds)
        .map(|seconds| duration(seconds as f64));
    let [share, waited, left] =
        [share, waited, left].map(|text| text.unwrap_or_else(|| "-".to_owned()));
    format!("{owner:<12}  {priority:<8}  {share:>10}  {waited:>12}  {left:>12}  ")
}

#[cfg(test)]
mod tests {
    use engine::{Activity, State};
    use protocol::Priority;

    use super::*;

    #[test]
    fn job_of_a_target_has_columns_of_the_target() {
        let activity = Activity {
            waited_seconds: Some(192.0),
            processes: 3,
            share: Some(0.75),
            ..Activity::default()
        };
        let counts = Counts { total: 9, succeeded: 2, failed: 0 };
        let row = Summary {
            owner: Some("ana".to_owned()),
            priority: Priority::High,
            activity: Some(Activity { remaining_seconds: Some(75), ..activity.clone() }),
            elapsed_seconds: Some(20.0),
            mini_batches: counts,
            items: counts,
            ..Summary::empty("a".to_owned(), State::Running)
        };
        let words =
            |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(line(&row, 1, true)),
            "a Running ana high 3 (75%) 3 min 12 s 1 min 15 s - 20 s 2/9 2"
        );
        assert_eq!(words(line(&row, 1, false)), "a Running - 20 s 2/9 2");
        assert_eq!(header(3, true).len(), line(&row, 3, true).len());
        let waits_for = Some("owner ana may run 1 job at a time, and runs 1".to_owned());
        let waiting =
            Summary { activity: Some(Activity { waits_for, share: None, ..activity }), ..row };
        assert!(
            line(&waiting, 1, true).ends_with("  owner ana may run 1 job at a time, and runs 1")
        );
    }
}
