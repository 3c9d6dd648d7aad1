//! `gristmill retry`.

use anyhow::Result;
use engine::Republish;
use engine::targets::TargetRef;
use protocol::OutputFormat;

use crate::outcome::report;
use crate::{Exit, Settings, Show, TargetFlags, complete, follow, refuse, stop_on_signals};

#[derive(Debug, clap::Args)]
pub struct RetryArguments {
    /// Id of a job, the beginning of an id, or a name.
    #[arg(add = complete::jobs())]
    pub job: String,
    /// Print one JSON object, and nothing else, on standard output.
    #[arg(long)]
    pub json: bool,
    /// With --json: before the result, print one JSON object for each event: `job`, `step`, `warning` and `note`.
    #[arg(long, requires = "json")]
    pub events: bool,
    /// With a compute target: follow the job to its end. On this machine, the command always follows it.
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub target: TargetFlags,
}

impl RetryArguments {
    /// Whether to follow the job on a compute target, and whether to print JSON.
    pub fn follows(&self) -> (bool, bool) {
        (self.wait, self.json)
    }
}

/// `gristmill retry`, which shares arguments with `replay`.
#[derive(Debug, clap::Args)]
pub struct RetryCommand {
    /// With a compute target: if the job has not ended, publish every unfinished mini-batch again, because the queue has lost
    /// its messages. Those that it has not lost may run twice; their rows count once.
    #[arg(long)]
    pub republish: bool,
    /// Write the output in another format: `output_format=csv`, `output_format=jsonl` or `output_format=parquet`. For a job
    /// whose output is in one of these and could not be written; the file gets the extension of the format.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = output_format)]
    pub format: Option<OutputFormat>,
    #[command(flatten)]
    pub retry: RetryArguments,
}

/// Reads the value of `--set`.
fn output_format(text: &str) -> Result<OutputFormat, &'static str> {
    match text {
        "output_format=csv" => Ok(OutputFormat::Csv),
        "output_format=jsonl" => Ok(OutputFormat::Jsonl),
        "output_format=parquet" => Ok(OutputFormat::Parquet),
        _ => Err("a retry can set output_format=csv, output_format=jsonl or output_format=parquet"),
    }
}

pub async fn retry(command: RetryCommand, settings: &Settings) -> Result<Exit> {
    let RetryCommand { retry: arguments, republish, format } = command;
    let target = arguments.target.find(None, settings)?;
    if let Some(format) = format {
        let jobs = match &target {
            Some(target) => target.jobs(target.open_store().await?),
            None => settings.engine.jobs(),
        };
        if let Err(error) = jobs.change_output_format(&arguments.job, format).await {
            return refuse(error, arguments.json);
        }
    }
    if let Some(target) = target {
        let (events, show) = Show::start();
        let republish = if republish { Republish::Unended } else { Republish::Missing };
        let retry = settings.engine.retry_on(&arguments.job, republish, &target, &events).await?;
        return follow::publish(retry, arguments.follows(), &target, events, show).await;
    }
    let (stop, _signals) = stop_on_signals();
    match Show::during(async |events| settings.engine.retry(&arguments.job, &stop, events).await).await {
        Ok(result) => Ok(report(&result, arguments.json, &TargetRef::ThisMachine)),
        Err(error) => refuse(error, arguments.json),
    }
}
