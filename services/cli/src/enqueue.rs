//! `gristmill enqueue`, and `gristmill retry` on a compute target.

use anyhow::Result;
use engine::targets::Target;
use engine::{Event, Events, Followed, LOOK_EVERY, Published, Republish, Retry, Submission, follow};
use protocol::JobResult;
use reducer::counted;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::run::{RetryArguments, report, say_reused};
use crate::steps::Several;
use crate::{Exit, JobFileArguments, Settings, Show, TargetFlags, refuse, remedies, watch_for_stop};

#[derive(Debug, clap::Args)]
pub struct EnqueueArguments {
    #[command(flatten)]
    job: JobFileArguments,
    /// Follow the job to its end, as `run` does. The exit status says how it ended.
    #[arg(long)]
    wait: bool,
    /// Reject the job, with exit status 75, if the quotas of the target would let it wait for its turn.
    #[arg(long)]
    refuse_when_full: bool,
    /// Print one JSON object, and nothing else, on standard output: the job id at once, or with --wait the result at the
    /// end.
    #[arg(long)]
    pub json: bool,
    /// With --json: first print what happens, one JSON object for each event: `job`, `step`, `warning` and `note`.
    #[arg(long, requires = "json")]
    pub events: bool,
    /// Start a new job instead of reusing a result.
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    target: TargetFlags,
}

pub async fn enqueue(arguments: EnqueueArguments, settings: &Settings) -> Result<Exit> {
    // Each step needs the output of the one before, so this follows them to their ends.
    let several = Show::during(async |events| {
        let Some(several) = Several::read(&arguments.job, Some(&arguments.target), settings, events)? else {
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
        Ok(Submitted::Reused(result, target)) => {
            show.finish(events).await;
            if !arguments.json {
                say_reused(&result);
            }
            match (arguments.wait, arguments.json) {
                (true, _) => return Ok(report(&result, arguments.json, &target.reference())),
                (false, true) => {
                    say!(out, "{}", json!({ "job_id": result.job_id, "target": target.name, "reused": true }));
                }
                (false, false) => say!(out, "{}", result.job_id),
            }
            Ok(Exit::Done)
        }
        Ok(Submitted::New(submission, target, _signals)) => {
            let wish = Wish { wait: arguments.wait, json: arguments.json, stopped };
            wish.fulfil(&submission, &target, events, show).await
        }
        Err(error) => {
            show.finish(events).await;
            refuse(error, arguments.json)
        }
    }
}

/// What became of a job file.
enum Submitted {
    Reused(Box<JobResult>, Target),
    New(Box<Submission>, Target, AbortOnDropHandle<()>),
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
    if !arguments.fresh
        && let Some(result) = settings.engine.reusable(&parsed, &target, events).await?
    {
        events.send(Event::Reused(result.job_id.clone()));
        return Ok(Submitted::Reused(Box::new(result), target));
    }
    let submission = settings.engine.submit(parsed, &target, false, arguments.refuse_when_full, events).await?;
    submission.warn(events).await;
    Ok(Submitted::New(Box::new(submission), target, signals))
}

pub async fn retry(arguments: RetryArguments, republish: bool, target: &Target, settings: &Settings) -> Result<Exit> {
    let (events, show) = Show::start();
    let republish = if republish { Republish::Unended } else { Republish::Missing };
    let retry = settings.engine.retry_on(&arguments.job, republish, target, &events).await?;
    publish(retry, &arguments, target, events, show).await
}

/// Publishes what `retry` or `replay` found to do, and follows the job if requested.
pub async fn publish(
    retry: Retry,
    arguments: &RetryArguments,
    target: &Target,
    events: Events,
    show: Show,
) -> Result<Exit> {
    match retry {
        Retry::NothingToDo(result) => {
            show.finish(events).await;
            Ok(report(&result, arguments.json, &target.reference()))
        }
        Retry::InFlight(submission) => {
            let stopped = CancellationToken::new();
            let _signals = watch_for_stop(stopped.clone());
            let wish = Wish { wait: arguments.wait, json: arguments.json, stopped };
            wish.name(&submission, target, &events);
            match wish.wait {
                true => wish.follow(&submission, target, events, show).await,
                false => {
                    show.finish(events).await;
                    Ok(Exit::Done)
                }
            }
        }
        Retry::Submission(submission) => {
            let stopped = CancellationToken::new();
            let _signals = watch_for_stop(stopped.clone());
            let wish = Wish { wait: arguments.wait, json: arguments.json, stopped };
            wish.fulfil(&submission, target, events, show).await
        }
    }
}

/// How a command follows a job.
struct Wish {
    wait: bool,
    json: bool,
    stopped: CancellationToken,
}

impl Wish {
    /// Prints the id of a job, publishes the job, and follows it if requested.
    async fn fulfil(&self, submission: &Submission, target: &Target, events: Events, show: Show) -> Result<Exit> {
        self.name(submission, target, &events);
        let job_id = submission.job_id();
        let published = tokio::select! {
            published = submission.publish() => published?,
            () = self.stopped.cancelled() => {
                let message = remedies::after(&format!("job {job_id} is partly published"), Some(&submission.remedy()));
                return Ok(Exit::NotEnded.because(&message, self.json));
            }
        };
        submission.queues.close().await;
        match published {
            Published::All(plan) if !self.wait => {
                let (mini_batches, files) = (counted(plan.mini_batches, "mini-batch"), counted(plan.files, "file"));
                show.finish(events).await;
                say!(note, "planned: {mini_batches} of {files}");
                return Ok(Exit::Done);
            }
            Published::Never(cause) if !self.wait => {
                show.finish(events).await;
                return Ok(Exit::Failed.because(&format!("job {job_id} fails: {cause}"), self.json));
            }
            // The reducer says the same.
            Published::All(_) | Published::Never(_) => {}
        }
        self.follow(submission, target, events, show).await
    }

    fn name(&self, submission: &Submission, target: &Target, events: &Events) {
        let job_id = submission.job_id();
        match (self.wait, self.json) {
            (true, _) => events.send(Event::Job(job_id.to_owned())),
            (false, true) => say!(out, "{}", json!({ "job_id": job_id, "target": target.name })),
            (false, false) => say!(out, "{job_id}"),
        }
    }

    async fn follow(&self, submission: &Submission, target: &Target, events: Events, show: Show) -> Result<Exit> {
        let job_id = submission.job_id();
        let followed = follow(&submission.jobs(), job_id, LOOK_EVERY, &self.stopped, &events).await;
        show.finish(events).await;
        match followed? {
            Followed::Ended(result) => Ok(report(&result, self.json, &target.reference())),
            Followed::Stopped | Followed::Interrupted => {
                let flags = remedies::flags(&target.reference());
                let message = format!(
                    "job {job_id} continues; `gristmill status {job_id}{flags}` shows its progress, `gristmill cancel` \
                     stops it"
                );
                Ok(Exit::NotEnded.because(&message, self.json))
            }
        }
    }
}
