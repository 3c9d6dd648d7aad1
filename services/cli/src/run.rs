//! `gristmill run` and `gristmill retry`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use engine::targets::TargetRef;
use engine::{Engine, Events, Followed};
use protocol::JobResult;
use storage::StoreOptions;

use crate::exit::Exit;
use crate::job_file_arguments::{JobFileArguments, refuse};
use crate::settings::Settings;
use crate::show::Show;
use crate::signals::stop_on_signals;
use crate::summary::summary;
use crate::target_flags::TargetFlags;
use crate::{complete, enqueue};

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct RunArguments {
    #[command(flatten)]
    job: JobFileArguments,
    /// Print one JSON object at the end, and nothing else, on standard output.
    #[arg(long)]
    pub json: bool,
    /// Start a new job instead of continuing an unfinished one or reusing a result.
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    target: TargetFlags,
}

/// Arguments of `retry`.
#[derive(Debug, clap::Args)]
pub struct RetryArguments {
    /// Job id, its beginning, or a job name.
    #[arg(add = complete::jobs())]
    pub job: String,
    /// Print one JSON object, and nothing else, on standard output.
    #[arg(long)]
    pub json: bool,
    /// With a compute target: follow the job to its end. On this machine `retry` always does.
    #[arg(long)]
    pub wait: bool,
    /// Where the job is.
    #[command(flatten)]
    pub target: TargetFlags,
}

/// How a run ended, and where later commands find the job.
struct Run {
    result: Option<Box<JobResult>>,
    target: TargetRef,
}

/// Runs a job file.
pub async fn run(arguments: RunArguments, engine: &Engine, settings: &Settings) -> Result<ExitCode> {
    let ran = Show::during(async |events| run_job(&arguments, engine, settings, events).await).await;
    match ran {
        Ok(Run { result: Some(result), target }) => {
            if result.reused && !arguments.json {
                say!(
                    note,
                    "reused the result of job {}: same script, settings and inputs (allow_reuse: false runs it again)",
                    result.job_id
                );
            }
            Ok(report(&result, arguments.json, &target))
        }
        Ok(Run { result: None, .. }) => {
            Ok(Exit::Canceled.because("this command was stopped twice, before the job ended", arguments.json))
        }
        Err(error) => refuse(error, arguments.json),
    }
}

async fn run_job(
    arguments: &RunArguments,
    engine: &Engine,
    settings: &Settings,
    events: &Events,
) -> engine::Result<Run> {
    let mut parsed = arguments.job.read(Some(&arguments.target), engine, settings, events)?;
    let named = parsed.compute_target.clone();
    let target = arguments.target.find(named.as_deref(), settings).with_context(|| match &named {
        Some(named) => format!("compute_target {named}"),
        None => "compute target".to_owned(),
    });
    let Some(target) = target.map_err(|error| arguments.job.invalid(format!("{error:#}")))? else {
        let check = engine.check(&mut parsed, &StoreOptions::default(), true, events)?;
        let (stop, _signals) = stop_on_signals();
        let result = engine.run(parsed, check, arguments.fresh, &stop, events).await?;
        return Ok(Run { result: Some(Box::new(result)), target: TargetRef::ThisMachine });
    };
    engine.check(&mut parsed, &target.store_options(), false, events)?.finish()?;
    let (stop, _signals) = stop_on_signals();
    let result = match engine.run_on(parsed, &target, &stop, events).await? {
        Followed::Ended(result) => Some(result),
        Followed::Stopped | Followed::Interrupted => None,
    };
    Ok(Run { result, target: target.reference() })
}

/// Continues a job that has stopped.
pub async fn retry(arguments: RetryArguments, engine: &Engine, settings: &Settings) -> Result<ExitCode> {
    if let Some(target) = arguments.target.find(None, settings)? {
        return enqueue::retry(arguments, &target, engine).await;
    }
    let (stop, _signals) = stop_on_signals();
    match Show::during(async |events| engine.retry(&arguments.job, &stop, events).await).await {
        Ok(result) => Ok(report(&result, arguments.json, &TargetRef::ThisMachine)),
        Err(error) => refuse(error, arguments.json),
    }
}

/// Prints the result of a job: one JSON object, or a summary.
pub fn report(result: &JobResult, json: bool, target: &TargetRef) -> ExitCode {
    if json {
        say!(out, "{}", serde_json::to_string(result).expect("results always serialise"));
    } else {
        say!(out, "{}", summary(result, target));
    }
    Exit::of(result.state).into()
}
