//! `gristmill jobs | status | logs | cancel`: looking at jobs, from any terminal. All of it works from storage alone.

use std::io::{IsTerminal, Write};
use std::path::{Component, Path};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use protocol::{Counts, JobResult, JobState, Progress};
use tokio::task::JoinSet;

use crate::home::Home;
use crate::jobs::{FoundJob, Jobs};
use crate::printed::printable;
use crate::progress::{duration, summary, wait_line};

/// How long `cancel` waits for the job to stop.
const CANCEL_TIME: Duration = Duration::from_secs(30);
/// Lines of a log that `logs` shows of the overview.
const OVERVIEW_LINES: usize = 10;
/// Between two looks of `status --watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Jobs that `jobs` reads at the same time.
const READS_AT_ONCE: usize = 16;

/// Lists jobs, newest first.
pub async fn jobs(jobs: &Jobs) -> Result<ExitCode> {
    say!(out, "{:<52} {:<12} {:>14} {:>14}", "JOB", "STATE", "MINI-BATCHES", "ITEMS");
    let ids = jobs.ids().await?;
    if ids.is_empty() {
        say!(err, "there are no jobs below {}", jobs.place());
    }
    for ids in ids.chunks(READS_AT_ONCE) {
        let mut lines = JoinSet::new();
        for (position, id) in ids.iter().cloned().enumerate() {
            let jobs = jobs.clone();
            lines.spawn(async move { (position, line(&jobs, &id).await) });
        }
        let mut lines = lines.join_all().await;
        lines.sort();
        for (_, line) in lines {
            say!(out, "{line}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn line(jobs: &Jobs, id: &str) -> String {
    match jobs.job(id).await {
        Ok(Some(job)) => {
            let described = async {
                let progress = job.store.progress().await?;
                let state = jobs.standing(&job, progress.as_ref()).await?.word;
                let (mini_batches, items) = counts(&job, progress.as_ref());
                let fraction = |counts: Counts| format!("{}/{}", counts.succeeded, counts.total);
                Ok(format!("{id:<52} {state:<12} {:>14} {:>14}", fraction(mini_batches), fraction(items)))
            };
            described.await.unwrap_or_else(|error: anyhow::Error| format!("{id:<52} {error:#}"))
        }
        Ok(None) => format!("{id:<52} cut off before it began"),
        Err(error) => format!("{id:<52} {error:#}"),
    }
}

fn counts(job: &FoundJob, progress: Option<&Progress>) -> (Counts, Counts) {
    match (&job.result, progress) {
        (Some(result), _) => (result.mini_batches, result.items),
        (None, Some(progress)) => (progress.mini_batches, progress.items),
        (None, None) => Default::default(),
    }
}

/// Shows one job; with `watch` again and again until it has ended.
pub async fn status(jobs: &Jobs, wanted: &str, json: bool, watch: bool) -> Result<ExitCode> {
    let mut job = jobs.find(wanted).await?;
    let redraws = watch && !json && std::io::stdout().is_terminal();
    loop {
        let progress = job.store.progress().await?;
        let text = if json {
            status_json(jobs, &job, progress.as_ref()).await?
        } else {
            status_text(jobs, &job, progress.as_ref()).await?
        };
        // On a terminal the former picture is overwritten, elsewhere the pictures follow each other.
        let clear = if redraws { "\x1b[2J\x1b[H" } else { "" };
        let text = printable(&text);
        if writeln!(std::io::stdout(), "{clear}{text}").is_err() || !watch || job.result.is_some() {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(WATCH_EVERY).await;
        let id = job.spec.job_id.clone();
        job = jobs.job(&id).await?.with_context(|| format!("job {id} is gone"))?;
    }
}

async fn status_json(jobs: &Jobs, job: &FoundJob, progress: Option<&Progress>) -> Result<String> {
    let standing = jobs.standing(job, progress).await?;
    let json = serde_json::json!({
        "job_id": job.spec.job_id, "state": standing.word, "hint": standing.hint, "result": job.result,
        "progress": progress, "logs": job.store.shown("logs"),
    });
    Ok(json.to_string())
}

async fn status_text(jobs: &Jobs, job: &FoundJob, progress: Option<&Progress>) -> Result<String> {
    if let Some(result) = &job.result {
        return Ok(summary(result, &jobs.flag()));
    }
    let standing = jobs.standing(job, progress).await?;
    let mut lines = vec![format!("job {} is {}", job.spec.job_id, standing.word.to_lowercase())];
    if let Some(progress) = progress {
        let elapsed = (progress.at - progress.started_at.min(progress.at)) as f64 / 1000.0;
        let total = if progress.planned { progress.mini_batches.total.to_string() } else { "an unknown number".into() };
        let (succeeded, failed) = (progress.mini_batches.succeeded, progress.mini_batches.failed);
        let elapsed = duration(elapsed);
        lines.push(format!("  mini-batches: {succeeded} of {total} succeeded, {failed} failed, after {elapsed}"));
        lines.push(format!("  items: {} succeeded, {} failed", progress.items.succeeded, progress.items.failed));
        lines.push(format!("  processes: {}; retries: {}", progress.processes, progress.retries));
        lines.extend(progress.trouble.iter().map(|trouble| format!("  trouble: {trouble}")));
        lines.extend(progress.waiting.iter().map(|waiting| format!("  {}", wait_line(waiting))));
    }
    lines.extend(standing.hint.map(|hint| format!("  {hint}")));
    lines.push(format!("  logs: {}", job.store.shown("logs")));
    Ok(lines.join("\n"))
}

/// Lists the logs of a job, or prints one.
pub async fn logs(jobs: &Jobs, wanted: &str, path: Option<&Path>) -> Result<ExitCode> {
    let job = jobs.find(wanted).await?;
    let logs = job.store.shown("logs");
    let files = job.store.logs().await?;
    let Some(path) = path else {
        say!(out, "{logs}");
        for file in &files {
            say!(out, "  {:>10}  {}", file.bytes, file.path);
        }
        let overviews = files.iter().filter(|file| {
            let name = file.path.rsplit('/').next().unwrap_or_default();
            name.starts_with("job_progress_overview")
        });
        if let Some(overview) = overviews.max() {
            say!(out, "");
            let text = job.store.log(&overview.path).await?;
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(OVERVIEW_LINES)..] {
                say!(out, "{line}");
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    if path.components().any(|component| !matches!(component, Component::Normal(_) | Component::CurDir)) {
        bail!("{}: name a file below {logs}", path.display());
    }
    let normal = path.components().filter(|component| matches!(component, Component::Normal(_)));
    let name = normal.collect::<std::path::PathBuf>().to_string_lossy().into_owned();
    if !files.iter().any(|file| file.path == name) {
        let below: Vec<_> = files.iter().filter(|file| Path::new(&file.path).starts_with(&name)).collect();
        if below.is_empty() {
            bail!("there is no {logs}/{name}; `gristmill logs {wanted}{}` lists what there is", jobs.flag());
        }
        for file in below {
            say!(out, "{}", file.path);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let text = job.store.log(&name).await?;
    let mut stdout = std::io::stdout();
    // A file gets the bytes as they are.
    let written = match stdout.is_terminal() {
        true => stdout.write_all(printable(&String::from_utf8_lossy(&text)).as_bytes()),
        false => stdout.write_all(&text),
    };
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Stops a job.
pub async fn cancel(jobs: &Jobs, wanted: &str) -> Result<ExitCode> {
    let job = jobs.find(wanted).await?;
    let id = &job.spec.job_id;
    if let Some(result) = &job.result {
        say!(out, "job {id} has ended already");
        say!(out, "{}", summary(result, &jobs.flag()));
        return Ok(ExitCode::SUCCESS);
    }
    if let Jobs::Here(home) = jobs
        && let Some(canceled) = cancel_interrupted(home, &job).await?
    {
        say!(out, "{}", summary(&canceled, ""));
        return Ok(ExitCode::SUCCESS);
    }
    job.store.request_cancel("canceled by the user").await?;
    if let Jobs::There { .. } = jobs
        && let Some(hint) = jobs.lacks_reducer(job.store.progress().await?.as_ref())
    {
        say!(out, "job {id} has been asked to stop, and ends when a reducer looks at it");
        say!(out, "  {hint}");
        return Ok(ExitCode::SUCCESS);
    }
    say!(err, "asked job {id} to stop; waiting for what runs, {} s at most", CANCEL_TIME.as_secs());
    let asked = Instant::now();
    while asked.elapsed() < CANCEL_TIME {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(result) = job.store.result().await? {
            say!(out, "{}", summary(&result, &jobs.flag()));
            return Ok(ExitCode::SUCCESS);
        }
    }
    let who = if matches!(jobs, Jobs::Here(_)) { "" } else { ", and a reducer looks at it" };
    say!(out, "job {id} has been asked to stop and will, as soon as what runs has ended{who}");
    Ok(ExitCode::SUCCESS)
}

/// A local job whose process is gone has nobody to stop it: it is ended here. `None`: it runs.
async fn cancel_interrupted(home: &Home, job: &FoundJob) -> Result<Option<JobResult>> {
    let Some(_lock) = home.try_lock_job(&job.spec.job_id)? else { return Ok(None) };
    let progress = job.store.progress().await?;
    let (mini_batches, items) = counts(job, progress.as_ref());
    let result = JobResult {
        job_id: job.spec.job_id.clone(),
        state: JobState::Canceled,
        cause: Some("canceled by the user after the process that ran it was gone".to_owned()),
        output: None,
        logs: job.store.shown("logs"),
        mini_batches,
        items,
        elapsed_seconds: 0.0,
        warnings: 0,
        duplicates_dropped: 0,
        failed_mini_batches: vec![],
        reused: false,
    };
    job.store.create_result(&result).await?;
    Ok(Some(result))
}
