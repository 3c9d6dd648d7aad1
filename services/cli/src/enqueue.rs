//! `gristmill enqueue`.

use anyhow::{Result, anyhow};
use engine::targets::Target;
use engine::{Event, Events, Submission};
use protocol::JobResult;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::follow::Followed;
use crate::outcome::{report, say_reused};
use crate::steps::StepsDocument;
use crate::{Exit, JobFileArguments, Settings, Show, TargetFlags, refuse, watch_for_stop};

#[derive(Debug, clap::Args)]
pub struct EnqueueArguments {
    #[command(flatten)]
    pub job: JobFileArguments,
    /// Follow the job to its end, as `run` does. The exit status says how it ended.
    #[arg(long)]
    wait: bool,
    /// Reject the job, with exit status 75, if the quotas of the target would make it wait.
    #[arg(long)]
    refuse_when_full: bool,
    /// Print one JSON object, and nothing else, on standard output: the job id at once, or with --wait the result at
    /// the end.
    #[arg(long)]
    pub json: bool,
    /// With --json: before the result, print one JSON object for each event: `job`, `step`, `warning` and `note`.
    #[arg(long, requires = "json")]
    pub events: bool,
    /// Start a new job instead of reusing a result.
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    target: TargetFlags,
}

pub async fn enqueue(arguments: EnqueueArguments, settings: &Settings) -> Result<Exit> {
    // Each step needs the output of the one before, so the command waits for every step.
    let several = Show::during(async |events| {
        let Some(several) =
            StepsDocument::read(&arguments.job, Some(&arguments.target), settings, events)?
        else {
            return Ok(None);
        };
        let target = arguments.target.require(None, settings)?;
        several.run(Some(target), arguments.fresh, settings, events, None).await.map(Some)
    });
    match several.await {
        Ok(None) => {}
        Ok(Some(ran)) => return Ok(ran.report(arguments.json)),
        Err(error) => return refuse(error, arguments.json),
    }
    let (events, show) = Show::start();
    let stopped = CancellationToken::new();
    let submitted = submit(&arguments, &stopped, settings, &events).await;
    match submitted {
        Ok(Submitted::Reused(reused)) => {
            let (result, target) = *reused;
            show.finish(events).await;
            if !arguments.json {
                say_reused(&result);
            }
            match (arguments.wait, arguments.json) {
                (true, _) => return Ok(report(&result, arguments.json, &target.reference())),
                (false, true) => {
                    say!(
                        out,
                        "{}",
                        json!({ "job_id": result.job_id, "target": target.name, "reused": true })
                    );
                }
                (false, false) => say!(out, "{}", result.job_id),
            }
            Ok(Exit::Done)
        }
        Ok(Submitted::New(submission, _signals)) => {
            let (submission, wait, json) = (&*submission, arguments.wait, arguments.json);
            Followed { submission, wait, json, stopped, events, show }.plan_and_follow().await
        }
        Err(error) => {
            show.finish(events).await;
            refuse(error, arguments.json)
        }
    }
}

/// The result of submitting a job file.
enum Submitted {
    Reused(Box<(JobResult, Target)>),
    New(Box<Submission>, AbortOnDropHandle<()>),
}

async fn submit(
    arguments: &EnqueueArguments,
    stopped: &CancellationToken,
    settings: &Settings,
    events: &Events,
) -> engine::Result<Submitted> {
    let mut parsed = arguments.job.read(Some(&arguments.target), settings, events)?;
    let target = arguments.target.require(parsed.compute_target.as_deref(), settings)?;
    settings.engine.check(&mut parsed, &target.store_options(), true, events)?.finish()?;
    let signals = watch_for_stop(stopped.clone());
    let engine = &settings.engine;
    let submitting = async {
        if !arguments.fresh
            && let Some(result) = engine.reusable(&parsed, &target, events).await?
        {
            events.send(Event::Reused(result.job_id.clone()));
            return Ok(Submitted::Reused(Box::new((result, target.clone()))));
        }
        let full = arguments.refuse_when_full;
        let submission = engine.submit(parsed, &target, false, full, events).await?;
        Ok(Submitted::New(Box::new(submission), signals))
    };
    let submitted: engine::Result<_> = tokio::select! {
        submitted = submitting => submitted,
        () = stopped.cancelled() => {
            let list = format!("gristmill jobs --target {}", target.name);
            return Err(anyhow!("stopped before the job was enqueued; `{list}` shows whether it is open").into());
        }
    };
    if let Ok(Submitted::New(submission, ..)) = &submitted {
        submission.warn(arguments.wait, events).await;
    }
    submitted
}
