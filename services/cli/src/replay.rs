//! `gristmill replay`: runs the rejected items of an ended job again, or one mini-batch of any job.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use engine::targets::{Target, TargetRef};
use engine::words::counted;
use engine::{Events, ReplayOptions, Retry};

use crate::outcome::report;
use crate::retry::RetryArguments;
use crate::{Exit, Settings, Show, follow, refuse, stop_on_signals};

#[derive(Debug, clap::Args)]
pub struct ReplayArguments {
    /// Write the rows to a file of their own, in the folder of the new job, and leave the output of JOB as it is.
    #[arg(long)]
    separate: bool,
    /// Run the entry script of this folder instead: a corrected copy of the folder that JOB ran.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    source_directory: Option<PathBuf>,
    /// Run only this mini-batch, whether or not it failed. The new job reads the same items, has one try and an output
    /// of its own; JOB does not change.
    #[arg(long, value_name = "NUMBER", conflicts_with = "separate")]
    mini_batch: Option<u64>,
    /// Write the rows of this mini-batch to a new Parquet file, and run nothing. A job on that file gets the same rows
    /// with the same types.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, requires = "mini_batch")]
    #[arg(conflicts_with_all = ["source_directory", "json", "wait"])]
    rows: Option<PathBuf>,
    #[command(flatten)]
    pub retry: RetryArguments,
}

pub async fn replay(arguments: ReplayArguments, settings: &Settings) -> Result<Exit> {
    let ReplayArguments { retry, separate, source_directory, mini_batch, rows } = arguments;
    let absolute = |folder: PathBuf| std::path::absolute(&folder).with_context(|| format!("find {}", folder.display()));
    let source_directory = source_directory.map(absolute).transpose()?;
    if let (Some(mini_batch), Some(rows)) = (mini_batch, &rows) {
        let target = retry.target.find(None, settings)?;
        let jobs = match &target {
            Some(target) => target.jobs(target.open_store().await?),
            None => settings.engine.jobs(),
        };
        let count = jobs.write_rows(&retry.job, mini_batch, rows).await?;
        say!(out, "{}: {}", rows.display(), counted(count, "row"));
        return Ok(Exit::Done);
    }
    if let Some(mini_batch) = mini_batch {
        return replay_one(&retry, mini_batch, source_directory.as_deref(), settings).await;
    }
    let options = ReplayOptions { separate, source_directory };
    if let Some(target) = retry.target.find(None, settings)? {
        let (events, show) = Show::start();
        let replay = settings.engine.replay_on(&retry.job, &options, &target, &events).await;
        return publish(replay, &retry, &target, events, show).await;
    }
    let (stop, _signals) = stop_on_signals();
    match Show::during(async |events| settings.engine.replay(&retry.job, &options, &stop, events).await).await {
        Ok(result) => Ok(report(&result, retry.json, &TargetRef::ThisMachine)),
        Err(error) => refuse(error, retry.json),
    }
}

/// Publishes a job of a target, or prints why it cannot.
async fn publish(
    described: engine::Result<Retry>,
    arguments: &RetryArguments,
    target: &Target,
    events: Events,
    show: Show,
) -> Result<Exit> {
    match described {
        Ok(retry) => follow::publish(retry, arguments.follows(), target, events, show).await,
        Err(error) => {
            show.finish(events).await;
            refuse(error, arguments.json)
        }
    }
}

/// Runs one mini-batch alone.
async fn replay_one(
    retry: &RetryArguments,
    mini_batch: u64,
    source_directory: Option<&Path>,
    settings: &Settings,
) -> Result<Exit> {
    let (engine, job) = (&settings.engine, &retry.job);
    if let Some(target) = retry.target.find(None, settings)? {
        let (events, show) = Show::start();
        let again = engine.run_again_on(job, mini_batch, source_directory, &target, &events).await;
        return publish(again, retry, &target, events, show).await;
    }
    let (stop, _signals) = stop_on_signals();
    let ran =
        Show::during(async |events| engine.run_again(job, mini_batch, source_directory, &stop, events).await).await;
    match ran {
        Ok(result) => Ok(report(&result, retry.json, &TargetRef::ThisMachine)),
        Err(error) => refuse(error, retry.json),
    }
}
