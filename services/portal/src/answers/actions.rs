//! Actions that change or start a job, through the engine: cancel, retry, and one mini-batch again.

use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use engine::targets::{LOCAL, Target};
use engine::{Canceled, Engine, Events, Retry, RetryOptions, SeparateRun, Submission};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::Shared;
use crate::SharedState;
use crate::document::Document;
use crate::error::{Answer, Refusal};
use crate::watched::View;

/// How long a request waits for the end of a job that it canceled.
const CANCEL_TIME: Duration = Duration::from_secs(3);
/// How long a request waits for an early end of a command that continues a job.
const START_TIME: Duration = Duration::from_millis(1500);
/// Exit statuses of a command whose job completed, failed or was canceled: it did start.
const JOB_RAN: [i32; 3] = [0, 42, 130];

pub async fn cancel(State(shared): SharedState, view: View) -> Answer<Document<Value>> {
    let (jobs, job_id) = (shared.options.jobs.clone(), view.job_id().to_owned());
    // The request to the engine ends by itself, even if this answer does not wait for it.
    let canceling = tokio::spawn(async move {
        let (events, _stream) = engine::events();
        jobs.cancel(&job_id, &events).await
    });
    let answer = match tokio::time::timeout(CANCEL_TIME, canceling).await {
        Err(_) => {
            json!({ "state": "requested", "message": "the job stops, and so do its running mini-batches" })
        }
        Ok(canceled) => match canceled?? {
            Canceled::EndedBefore(result) => {
                let message = format!(
                    "the job has ended already: {}",
                    engine::State::from(result.state).word()
                );
                json!({ "state": "ended", "message": message })
            }
            Canceled::Stopped(_) => {
                json!({ "state": "canceled", "message": "the job has stopped" })
            }
            Canceled::LacksReducer(hint) => {
                let message = format!(
                    "the job ends as soon as a reducer serves it: {}",
                    (shared.options.words.hint)(&hint)
                );
                json!({ "state": "requested", "message": message })
            }
            Canceled::Requested(_) => {
                let message = "the job stops as soon as a reducer serves it";
                json!({ "state": "requested", "message": message })
            }
        },
    };
    Ok(Document(answer))
}

/// Retries a job.
pub async fn retry(
    State(shared): SharedState,
    view: View,
) -> Answer<(StatusCode, Document<Value>)> {
    let job_id = view.job_id().to_owned();
    let message = to_its_end(async move {
        match shared.options.target.is_some() {
            true => publish_again(&shared, &job_id).await,
            false => start_again(&shared, &job_id).await,
        }
    });
    let message = message.await?;
    Ok((StatusCode::ACCEPTED, Document(json!({ "message": message }))))
}

/// Starts a job of one mini-batch of another job, which does not change.
pub async fn run_again(
    State(shared): SharedState,
    view: View,
    Path((_, number)): Path<(String, u64)>,
) -> Answer<(StatusCode, Document<Value>)> {
    let wanted = view.job_id().to_owned();
    let job_id = to_its_end(async move {
        match shared.options.target.is_some() {
            true => run_again_on(&shared, &wanted, number).await,
            false => run_again_here(&shared, &wanted, number).await,
        }
    });
    let job_id = job_id.await?;
    let message = format!("job {job_id} runs mini-batch {number} again");
    Ok((StatusCode::ACCEPTED, Document(json!({ "message": message, "job_id": job_id }))))
}

/// Completes an action even if its request ends first: at its time limit, or because the user closes the page.
pub async fn to_its_end<T: Send + 'static>(
    action: impl Future<Output = Answer<T>> + Send + 'static,
) -> Answer<T> {
    tokio::spawn(action).await?
}

/// Starts a job of one mini-batch in a process of this machine. Returns its id.
async fn run_again_here(shared: &Shared, job_id: &str, number: u64) -> Answer<String> {
    let options = &shared.options;
    let described =
        options.jobs.describe_separate_run(job_id, SeparateRun::MiniBatch(number)).await;
    let job_id =
        described.map_err(|error| Refusal::conflict((options.words.error)(&error.into())))?;
    start_again(shared, &job_id).await?;
    Ok(job_id)
}

/// Opens a job of one mini-batch on a compute target. Returns its id.
async fn run_again_on(shared: &Shared, job_id: &str, number: u64) -> Answer<String> {
    let job_id = job_id.to_owned();
    let opened = on_target(shared, async move |engine, target, events| {
        engine
            .run_separately_on(&job_id, SeparateRun::MiniBatch(number), None, target, events)
            .await
    });
    let submission = opened.await?;
    let job_id = submission.job_id().to_owned();
    plan(submission);
    Ok(job_id)
}

/// Retries a job of a compute target: publishes the missing mini-batches. Workers and reducers do
/// the rest.
async fn publish_again(shared: &Shared, job_id: &str) -> Answer<&'static str> {
    let job_id = job_id.to_owned();
    let retried = on_target(shared, async move |engine, target, events| {
        engine.retry_on(&job_id, &RetryOptions::default(), target, events).await
    });
    match retried.await? {
        Retry::NothingToDo(_) => {
            Err(Refusal::conflict("the job is completed, and has nothing that could run again"))
        }
        Retry::NothingMissing(_) => Err(Refusal::conflict(
            "the job has not ended: its mini-batches are in its queue or at a worker",
        )),
        Retry::RoundBegun(_) => Ok("the job runs what has failed so far again"),
        Retry::Submission(submission) => {
            plan(submission);
            Ok("the job continues: what its output lacks is being published")
        }
    }
}

/// Opens a job of the compute target.
async fn on_target<T: Send + 'static>(
    shared: &Shared,
    open: impl AsyncFnOnce(&Engine, &Target, &Events) -> engine::Result<T> + Send + 'static,
) -> Answer<T> {
    let options = &shared.options;
    let target = options.target.clone().context("a compute target")?;
    let (engine, runtime) = (options.engine.clone(), Handle::current());
    // Reading the ledger of a large job is much work.
    let opening = tokio::task::spawn_blocking(move || {
        let (events, _stream) = engine::events();
        runtime.block_on(open(&engine, &target, &events))
    });
    opening.await?.map_err(|error| Refusal::conflict((options.words.error)(&error.into())))
}

/// Completes the plan of a job, and tells the reducers about the job.
fn plan(submission: Box<Submission>) {
    tokio::spawn(async move {
        if let Err(error) = submission.plan().await {
            tracing::error!("cannot continue job {}: {error:#}", submission.job_id());
        }
    });
}

/// Runs `retry` for a local job in a process of its own, which outlives the portal.
async fn start_again(shared: &Shared, job_id: &str) -> Answer<&'static str> {
    let executable = shared.options.engine.settings().executable.clone();
    let executable = executable.ok_or_else(|| {
        Refusal::conflict("the portal does not know the command that continues jobs")
    })?;
    let home = shared.options.engine.settings().home.clone();
    let mut errors = tempfile::tempfile().context("keep what the command says")?;
    let mut command = Command::new(executable);
    command.args(["retry", job_id, "--target", LOCAL]).env("GRISTMILL_HOME", home);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors.try_clone().context("keep what the command says")?);
    // Signals of the portal's terminal are not for the job.
    command.process_group(0);
    let mut process = command.spawn().context("start the command that continues the job")?;
    let began = Instant::now();
    while began.elapsed() < START_TIME {
        sleep(Duration::from_millis(50)).await;
        if let Some(status) = process.try_wait().context("wait for the command")? {
            let mut text = String::new();
            let _ = errors.rewind().and_then(|()| errors.read_to_string(&mut text));
            let last = text
                .lines()
                .rev()
                .find(|line| !line.trim().is_empty())
                .unwrap_or("it gave no reason");
            return match status.code() {
                Some(status) if JOB_RAN.contains(&status) => Ok("the job has ended again"),
                _ => Err(Refusal::conflict(last.trim_start_matches("gristmill: "))),
            };
        }
    }
    std::thread::spawn(move || process.wait());
    Ok("the job continues in a process of its own")
}
