//! `gristmill jobs | status | logs | cancel`: looking at jobs, from any terminal.

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use protocol::{Counts, JobResult, JobState};

use crate::home::{FoundJob, Home};
use crate::progress::{duration, summary, wait_line};

/// How long `cancel` waits for the job to stop.
const CANCEL_TIME: Duration = Duration::from_secs(30);
/// Lines of a log that `logs` shows of the overview.
const OVERVIEW_LINES: usize = 10;

/// Lists jobs, newest first.
pub async fn jobs(home: &Home) -> Result<ExitCode> {
    say!(out, "{:<52} {:<12} {:>14} {:>14}", "JOB", "STATE", "MINI-BATCHES", "ITEMS");
    let ids = home.job_ids()?;
    if ids.is_empty() {
        say!(err, "there are no jobs below {}", home.job_folder("").display());
    }
    for id in ids {
        let line = match home.job(&id).await {
            Ok(Some(job)) => {
                let (mini_batches, items) = counts(&job).await?;
                let fraction = |counts: Counts| format!("{}/{}", counts.succeeded, counts.total);
                let state = state_word(home, &job)?;
                format!("{id:<52} {state:<12} {:>14} {:>14}", fraction(mini_batches), fraction(items))
            }
            Ok(None) => format!("{id:<52} cut off before it began"),
            Err(error) => format!("{id:<52} {error:#}"),
        };
        say!(out, "{line}");
    }
    Ok(ExitCode::SUCCESS)
}

async fn counts(job: &FoundJob) -> Result<(Counts, Counts)> {
    if let Some(result) = &job.result {
        return Ok((result.mini_batches, result.items));
    }
    let progress = job.store.progress().await?;
    Ok(progress.map_or_else(Default::default, |progress| (progress.mini_batches, progress.items)))
}

fn state_word(home: &Home, job: &FoundJob) -> Result<&'static str> {
    Ok(match &job.result {
        Some(JobResult { state: JobState::Completed, .. }) => "Completed",
        Some(JobResult { state: JobState::Failed, .. }) => "Failed",
        Some(JobResult { state: JobState::Canceled, .. }) => "Canceled",
        Some(JobResult { state: JobState::Running, .. }) => "Running",
        None if home.is_running(&job.spec.job_id)? => "Running",
        None => "Interrupted",
    })
}

/// Shows one job.
pub async fn status(home: &Home, wanted: &str, json: bool) -> Result<ExitCode> {
    let job = home.find(wanted).await?;
    let state = state_word(home, &job)?;
    let progress = job.store.progress().await?;
    if json {
        let json = serde_json::json!({
            "job_id": job.spec.job_id, "state": state, "result": job.result, "progress": progress,
            "logs": job.folder().join("logs"),
        });
        say!(out, "{json}");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(result) = &job.result {
        say!(out, "{}", summary(result));
        return Ok(ExitCode::SUCCESS);
    }
    say!(out, "job {} is {}", job.spec.job_id, state.to_lowercase());
    if let Some(progress) = progress {
        let elapsed = (progress.at - progress.started_at.min(progress.at)) as f64 / 1000.0;
        let total = if progress.planned { progress.mini_batches.total.to_string() } else { "an unknown number".into() };
        say!(
            out,
            "  mini-batches: {} of {total} succeeded, {} failed, after {}",
            progress.mini_batches.succeeded,
            progress.mini_batches.failed,
            duration(elapsed)
        );
        say!(out, "  items: {} succeeded, {} failed", progress.items.succeeded, progress.items.failed);
        say!(out, "  processes: {}; retries: {}", progress.processes, progress.retries);
        for waiting in &progress.waiting {
            say!(out, "  {}", wait_line(waiting));
        }
    }
    if state == "Interrupted" {
        say!(out, "  the process that ran it is gone; continue with: gristmill retry {}", job.spec.job_id);
    }
    say!(out, "  logs: {}", job.folder().join("logs").display());
    Ok(ExitCode::SUCCESS)
}

/// Lists the logs of a job, or prints one.
pub async fn logs(home: &Home, wanted: &str, path: Option<&Path>) -> Result<ExitCode> {
    let job = home.find(wanted).await?;
    let logs = job.folder().join("logs");
    let Some(path) = path else {
        say!(out, "{}", logs.display());
        let mut files = Vec::new();
        collect(&logs, &mut files)?;
        files.sort();
        for file in &files {
            let bytes = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
            say!(out, "  {:>10}  {}", bytes, file.strip_prefix(&logs).unwrap_or(file).display());
        }
        let overviews = files.iter().filter(|file| {
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("job_progress_overview"))
        });
        if let Some(overview) = overviews.max() {
            say!(out, "");
            let text = std::fs::read_to_string(overview).with_context(|| format!("read {}", overview.display()))?;
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(OVERVIEW_LINES)..] {
                say!(out, "{line}");
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    if path.components().any(|component| !matches!(component, Component::Normal(_) | Component::CurDir)) {
        bail!("{}: name a file below {}", path.display(), logs.display());
    }
    let file = logs.join(path);
    if file.is_dir() {
        let mut files = Vec::new();
        collect(&file, &mut files)?;
        files.sort();
        for file in files {
            say!(out, "{}", file.strip_prefix(&logs).unwrap_or(&file).display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut from = std::fs::File::open(&file)
        .with_context(|| format!("open {}; `gristmill logs {wanted}` lists what there is", file.display()))?;
    match std::io::copy(&mut from, &mut std::io::stdout()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("read {}", folder.display())),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Stops a job.
pub async fn cancel(home: &Home, wanted: &str) -> Result<ExitCode> {
    let job = home.find(wanted).await?;
    let id = &job.spec.job_id;
    if let Some(result) = &job.result {
        say!(out, "job {id} has ended already");
        say!(out, "{}", summary(result));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(_lock) = home.try_lock_job(id)? {
        let progress = job.store.progress().await?;
        let result = JobResult {
            job_id: id.clone(),
            state: JobState::Canceled,
            cause: Some("canceled by the user after the process that ran it was gone".to_owned()),
            output: None,
            logs: job.folder().join("logs").display().to_string(),
            mini_batches: progress.as_ref().map_or_else(Counts::default, |progress| progress.mini_batches),
            items: progress.as_ref().map_or_else(Counts::default, |progress| progress.items),
            elapsed_seconds: 0.0,
            warnings: 0,
            duplicates_dropped: 0,
            failed_mini_batches: vec![],
            reused: false,
        };
        job.store.create_result(&result).await?;
        say!(out, "{}", summary(&result));
        return Ok(ExitCode::SUCCESS);
    }
    job.store.request_cancel("canceled by the user").await?;
    say!(err, "asked job {id} to stop; waiting for what runs, {} s at most", CANCEL_TIME.as_secs());
    let asked = Instant::now();
    while asked.elapsed() < CANCEL_TIME {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(result) = job.store.result().await? {
            say!(out, "{}", summary(&result));
            return Ok(ExitCode::SUCCESS);
        }
    }
    say!(out, "job {id} has been asked to stop and will, as soon as what runs has ended");
    Ok(ExitCode::SUCCESS)
}
