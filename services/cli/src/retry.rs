//! `gristmill retry`: runs what the output of a job lacks, or a part of the job in a job of its own.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use engine::targets::{Target, TargetRef};
use engine::words::counted;
use engine::{Events, Retry, RetryOptions, RoundRequest, SeparateRun};
use protocol::{JobState, OutputFormat};
use tokio_util::sync::CancellationToken;

use crate::follow::Followed;
use crate::outcome::report;
use crate::{Exit, Settings, Show, TargetFlags, complete, refuse, stop_on_signals, watch_for_stop};

#[derive(Debug, clap::Args)]
pub struct RetryArguments {
    /// Id of a job, the beginning of an id, or a name.
    #[arg(add = complete::jobs())]
    pub job: String,
    /// Run only this part of the ended work again: rejected items, failed mini-batches, or nothing. Unfinished
    /// mini-batches run in any case.
    #[arg(long, value_name = "WHAT")]
    only: Option<OnlyArgument>,
    /// Run the entry script of this folder from now on: a corrected copy of the folder that the job ran.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    source_directory: Option<PathBuf>,
    /// Run the rejected items in a job of their own, which writes their rows to a file in its folder; JOB does not
    /// change.
    #[arg(long, conflicts_with = "only")]
    separate: bool,
    /// Run one mini-batch, whether or not it failed, in a job of its own. That job reads the same items, has one try
    /// and an output of its own; JOB does not change.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["separate", "only"])]
    mini_batch: Option<u64>,
    /// Write the rows of this mini-batch to a new Parquet file, and run nothing. A job on that file gets the same rows
    /// with the same types.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, requires = "mini_batch")]
    #[arg(conflicts_with_all = ["source_directory", "json", "wait"])]
    rows: Option<PathBuf>,
    /// Write the output in another format: `output_format=csv`, `output_format=jsonl` or `output_format=parquet`. For a
    /// job whose output is in one of these and could not be written; the file gets the extension of the format.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = output_format)]
    #[arg(conflicts_with_all = ["separate", "mini_batch"])]
    format: Option<OutputFormat>,
    /// With a compute target: if the job has not ended, publish every unfinished mini-batch again, because the queue
    /// has lost its messages. Those that it has not lost may run twice; their rows count once.
    #[arg(long, conflicts_with_all = ["separate", "mini_batch"])]
    republish: bool,
    /// Print one JSON object, and nothing else, on standard output.
    #[arg(long)]
    pub json: bool,
    /// With --json: before the result, print one JSON object for each event: `job`, `step`, `warning` and `note`.
    #[arg(long, requires = "json")]
    pub events: bool,
    /// With a compute target: follow the job to its end. On this machine, the command always follows it.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    pub target: TargetFlags,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OnlyArgument {
    Rejects,
    Failed,
    Unfinished,
}

/// Returns the ended work that runs again.
fn round(only: Option<OnlyArgument>) -> RoundRequest {
    match only {
        None => RoundRequest::ALL,
        Some(OnlyArgument::Rejects) => RoundRequest { failed: false, rejects: true },
        Some(OnlyArgument::Failed) => RoundRequest { failed: true, rejects: false },
        Some(OnlyArgument::Unfinished) => RoundRequest::NOTHING,
    }
}

/// Reads the value of `--set`.
fn output_format(text: &str) -> Result<OutputFormat, &'static str> {
    match text {
        "output_format=csv" => Ok(OutputFormat::Csv),
        "output_format=jsonl" => Ok(OutputFormat::Jsonl),
        "output_format=parquet" => Ok(OutputFormat::Parquet),
        _ => Err(
            "a retry keeps the settings of its job, and can set only output_format=csv, output_format=jsonl or \
             output_format=parquet; to change another key, start a new job: gristmill run JOB_FILE --set KEY=VALUE",
        ),
    }
}

pub async fn retry(arguments: RetryArguments, settings: &Settings) -> Result<Exit> {
    let absolute = |folder: &PathBuf| {
        std::path::absolute(folder).with_context(|| format!("find {}", folder.display()))
    };
    let source_directory = arguments.source_directory.as_ref().map(absolute).transpose()?;
    let target = arguments.target.find(None, settings)?;
    let separate_run = match (arguments.mini_batch, &arguments.rows) {
        (Some(mini_batch), Some(rows)) => {
            return write_rows(&arguments.job, mini_batch, rows, target, settings).await;
        }
        (Some(mini_batch), None) => Some(SeparateRun::MiniBatch(mini_batch)),
        (None, _) => arguments.separate.then_some(SeparateRun::Rejects),
    };
    let (engine, job) = (&settings.engine, &arguments.job);
    let (round, format, republish) = (round(arguments.only), arguments.format, arguments.republish);
    let options = RetryOptions { round, source_directory, format, republish };
    let folder = options.source_directory.as_deref();
    if let Some(target) = target {
        let (events, show) = Show::start();
        let retried = match separate_run {
            Some(separate_run) => engine
                .run_separately_on(job, separate_run, folder, &target, &events)
                .await
                .map(Retry::Submission),
            None => engine.retry_on(job, &options, &target, &events).await,
        };
        return carry_out(retried, &arguments, &target, events, show).await;
    }
    let (stop, _signals) = stop_on_signals();
    let ran = Show::during(async |events| match separate_run {
        Some(separate_run) => engine.run_separately(job, separate_run, folder, &stop, events).await,
        None => engine.retry(job, &options, &stop, events).await,
    });
    match ran.await {
        Ok(result) => {
            let exit = report(&result, arguments.json, &TargetRef::ThisMachine);
            // The process that runs the job has begun another round.
            Ok(if result.state == JobState::Running { Exit::Done } else { exit })
        }
        Err(error) => refuse(error, arguments.json),
    }
}

/// Plans what a retry on a target has found, and follows the job if requested; or prints the reason why it cannot.
async fn carry_out(
    retried: engine::Result<Retry>,
    arguments: &RetryArguments,
    target: &Target,
    events: Events,
    show: Show,
) -> Result<Exit> {
    let RetryArguments { wait, json, .. } = *arguments;
    let (submission, is_planned) = match retried {
        Ok(Retry::NothingMissing(submission) | Retry::RoundBegun(submission)) => (submission, true),
        Ok(Retry::Submission(submission)) => (submission, false),
        Ok(Retry::NothingToDo(result)) => {
            show.finish(events).await;
            return Ok(report(&result, json, &target.reference()));
        }
        Err(error) => {
            show.finish(events).await;
            return refuse(error, json);
        }
    };
    let stopped = CancellationToken::new();
    let _signals = watch_for_stop(stopped.clone());
    let job = Followed { submission: &submission, wait, json, stopped, events, show };
    match is_planned {
        true => job.follow().await,
        false => job.plan_and_follow().await,
    }
}

/// Writes the rows of a mini-batch to a file.
async fn write_rows(
    job: &str,
    mini_batch: u64,
    to: &Path,
    target: Option<Target>,
    settings: &Settings,
) -> Result<Exit> {
    let jobs = settings.engine.jobs_of(target.as_ref()).await?;
    let count = jobs.write_rows(job, mini_batch, to).await?;
    say!(out, "{}: {}", to.display(), counted(count, "row"));
    Ok(Exit::Done)
}
