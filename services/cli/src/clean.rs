//! `gristmill clean`: removes old jobs and caches.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::words::{counted, size};
use engine::{Candidate, CleanReport, CleanUp, Jobs, KeptReason, OldJobs, Remedy, State};
use serde_json::{Value, json};

use crate::filter::Filter;
use crate::{Exit, TargetFlags, remedies, usage};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gristmill clean --older-than 7d --dry-run     show what would be removed
  gristmill clean --keep 20                     keep the 20 newest jobs
  gristmill clean --state failed --name 'test-*'
  gristmill clean --keep-size 10GB --caches")]
pub struct CleanArguments {
    /// Jobs to remove, by id or the beginning of an id, even interrupted ones.
    #[arg(value_name = "JOB", conflicts_with_all = ["states", "name", "older_than", "keep", "keep_size", "all"], add = crate::complete::jobs())]
    jobs: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// Only jobs that have not changed for this long: `45min`, `12h`, `7d`, `2w`.
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,
    /// Keep this many of the selected jobs: the newest ones.
    #[arg(long, value_name = "NUMBER")]
    keep: Option<usize>,
    /// Keep the newest of the selected jobs up to this total size: `500MB`, `10GB` (units of 1024).
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    keep_size: Option<u64>,
    /// Remove every job that has completed, failed or been canceled.
    #[arg(long)]
    all: bool,
    /// Also remove the caches of this machine, unless a job or worker uses them: environments, copies of side inputs,
    /// unpacked snapshots, remembered checks of scripts. Later jobs create them again.
    #[arg(long)]
    caches: bool,
    /// Show what would be removed, without removing it.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub target: TargetFlags,
}

pub async fn clean(arguments: &CleanArguments, jobs: &Jobs) -> Result<Exit> {
    check(arguments, jobs).map_err(usage)?;
    let old = OldJobs {
        named: arguments.jobs.clone(),
        selection: arguments.filter.selection(),
        older_than: arguments.older_than,
        keep: arguments.keep,
        keep_bytes: arguments.keep_size,
    };
    let request = CleanUp {
        jobs: selects_jobs(arguments).then_some(old),
        caches: arguments.caches,
        dry_run: arguments.dry_run,
    };
    let verb = if arguments.dry_run { "would remove" } else { "removed" };
    let show = |Candidate { name, state, bytes }: &Candidate| {
        let state = state.map_or(String::new(), |state| format!("  {state:<11}"));
        say!(out, "{verb}  {name}{state}  {:>9}", size(bytes.unwrap_or_default()));
    };
    let report = jobs
        .clean(&request, |job| {
            if !arguments.json {
                show(job)
            }
        })
        .await?;
    if arguments.json {
        say!(out, "{}", document(&report, arguments.dry_run));
    } else {
        report.caches.iter().for_each(show);
        report
            .kept
            .iter()
            .for_each(|(kept, reason)| say!(err, "kept {}: {}", kept.name, why(reason)));
        let caches = match report.caches.len() {
            0 => String::new(),
            caches => format!(" and {}", counted(caches as u64, "cache")),
        };
        let removed = counted(report.removed.len() as u64, "job");
        say!(out, "{verb} {removed}{caches}, {}", size(report.bytes()));
    }
    Ok(if report.has_failed() { Exit::Error } else { Exit::Done })
}

fn selects_jobs(arguments: &CleanArguments) -> bool {
    let CleanArguments { jobs, filter, older_than, keep, keep_size, all, .. } = arguments;
    let has_filter = !filter.states.is_empty() || filter.name.is_some();
    !jobs.is_empty()
        || has_filter
        || older_than.is_some()
        || keep.is_some()
        || keep_size.is_some()
        || *all
}

/// Rejects requests that select nothing, or jobs that are never removed.
fn check(arguments: &CleanArguments, jobs: &Jobs) -> Result<()> {
    if !selects_jobs(arguments) && !arguments.caches {
        bail!(
            "nothing is selected; pass --older-than 7d, --keep 20, --keep-size 10GB, --state failed, --name NAME, job ids, \
             --all or --caches; add --dry-run to see the effect first"
        );
    }
    if arguments.caches && matches!(jobs, Jobs::There { .. }) {
        bail!("--caches removes caches of this machine; do not combine it with a compute target");
    }
    let runs = |state: &&State| state.is_open() && **state != State::Interrupted;
    if let Some(state) = arguments.filter.states.iter().find(runs) {
        let cancel = remedies::text(&Remedy::Cancel);
        bail!("--state {}: clean never removes a job that has not ended; {cancel}", state.word());
    }
    Ok(())
}

fn why(reason: &KeptReason) -> String {
    match reason {
        KeptReason::NotEnded => format!("it has not ended; {}", remedies::text(&Remedy::Cancel)),
        KeptReason::HoldsOutput(folder) => {
            format!("its output is in its folder, {folder}; copy it, then remove the job by its id")
        }
        KeptReason::Continued => "it has been continued meanwhile".to_owned(),
        KeptReason::UsedByJob(job_id) => format!("job {job_id} is running"),
        KeptReason::UsedByWorker => "a worker of this machine uses them".to_owned(),
        KeptReason::Failed(error) => remedies::message(error),
    }
}

/// Returns the object of `--json`.
fn document(report: &CleanReport, dry_run: bool) -> Value {
    let kept = report.kept.iter().map(|(kept, reason)| {
        let mut kept = json!(kept);
        kept["reason"] = why(reason).into();
        kept
    });
    json!({
        "dry_run": dry_run,
        "removed": report.removed,
        "kept": kept.collect::<Vec<_>>(),
        "bytes": report.bytes(),
        "caches": report.caches,
    })
}

/// Reads a size in units of 1024.
pub fn parse_size(text: &str) -> Result<u64> {
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let factor = match text[digits..].trim().to_ascii_uppercase().as_str() {
        "" | "B" => Some(0),
        "K" | "KB" | "KIB" => Some(1),
        "M" | "MB" | "MIB" => Some(2),
        "G" | "GB" | "GIB" => Some(3),
        "T" | "TB" | "TIB" => Some(4),
        _ => None,
    };
    let bytes = factor
        .and_then(|power| text[..digits].parse::<u64>().ok()?.checked_mul(1024_u64.pow(power)));
    bytes.context("must be a size such as 500MB or 10GB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_shown() {
        for (text, bytes) in
            [("0", 0), ("10", 10), ("2kb", 2048), ("3 MB", 3 << 20), ("1GiB", 1 << 30)]
        {
            assert_eq!(parse_size(text).expect(text), bytes, "{text}");
        }
        for text in ["", "GB", "1.5GB", "-1", "1 XB", "99999999999TB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KB"),
            (1_048_575, "1.0 MB"),
            (5 << 40, "5.0 TB"),
        ] {
            assert_eq!(size(bytes), shown);
        }
    }
}
