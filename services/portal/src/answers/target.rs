//! The compute target: its queues, its dead letters and their redrive, the workers and reducers of
//! its open jobs, and its checks.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use engine::doctor::{CheckState, Report};
use engine::targets::{LOCAL, QueueDepth, Queues};
use engine::words::counted;
use engine::{DeadLetter, DeadLetterAction, DeadLetters, Jobs, SeenWorker};
use futures::{StreamExt, stream};
use protocol::{Offer, milliseconds_since_epoch};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::actions::to_its_end;
use super::jobs::target_name;
use crate::Shared;
use crate::SharedState;
use crate::document::Document;
use crate::error::{Answer, Refusal};

const THIS_MACHINE: &str = "this machine";
/// A target may be slow to answer; the rest of the page need not wait.
const QUEUE_TIME: Duration = Duration::from_secs(20);
/// Reading the dead letters leases them for a moment, and costs requests.
const DEAD_LETTERS_EVERY: Duration = Duration::from_secs(30);
/// Reading the list of workers costs a request for each.
const WORKERS_EVERY: Duration = Duration::from_secs(5);
/// Jobs whose queues are shown; each costs a request.
const QUEUES_OF_JOBS_MAX: usize = 20;
const OPEN_JOBS_MAX: usize = 100;
const READS_AT_ONCE: usize = 16;
/// After this time without a report a reducer counts as silent.
const SILENCE_MILLISECONDS: u64 = 10_000;
/// The longest job for which the retention of the queues is checked.
const JOB_LENGTH: Duration = Duration::from_secs(24 * 3600);

/// The known state of the queues of the target.
#[derive(Debug, Default)]
pub struct Connection {
    queues: Option<Queues>,
    letters: Option<(Instant, DeadLetterCount)>,
}

#[derive(Clone, Debug, Default)]
struct DeadLetterCount {
    letters: Vec<DeadLetter>,
    is_partial: bool,
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct TargetDocument {
    name: String,
    store: String,
    queue: Option<String>,
    queues: Vec<QueueDepth>,
    dead_letters: Vec<DeadLetter>,
    dead_letters_partial: bool,
    dead_letters_problem: Option<String>,
    workers: Vec<Worker>,
    workers_problem: Option<String>,
    reducers: Vec<Reducer>,
    now: u64,
}

#[derive(Debug, Serialize)]
struct Worker {
    node: String,
    /// An open job that it prepares or works on.
    job_id: Option<String>,
    last_at: u64,
    offer: Offer,
}

#[derive(Debug, Serialize)]
struct Reducer {
    job_id: String,
    last_at: u64,
    silent: bool,
}

pub async fn targets(State(shared): SharedState) -> Document<Value> {
    let options = &shared.options;
    let current = target_name(options.jobs.target());
    let mut targets = vec![json!({ "name": THIS_MACHINE, "current": current.is_none() })];
    let names = options.targets.iter().filter(|name| *name != LOCAL);
    targets.extend(
        names.map(|name| json!({ "name": name, "current": current.as_ref() == Some(name) })),
    );
    if let Some(current) = current.filter(|current| !options.targets.contains(current)) {
        targets.push(json!({ "name": current, "current": true }));
    }
    Document(json!({ "targets": targets }))
}

pub async fn target(State(shared): SharedState) -> Answer<Document<TargetDocument>> {
    let options = &shared.options;
    let (listed, workers_problem) = match listed_workers(&shared).await {
        Ok(listed) => (listed, None),
        // The portal may not be allowed to read the list.
        Err(error) => (Vec::new(), Some((options.words.error)(&error))),
    };
    let open = options.jobs.open_ids().await?;
    let workers = workers(listed, &open);
    let reducers = reducers(&options.jobs, open).await;
    let name = target_name(options.jobs.target()).unwrap_or_else(|| THIS_MACHINE.to_owned());
    let queue = options.target.as_ref().and_then(|target| Some(target.queue().ok()?.to_string()));
    let (queues, letters) = match &queue {
        Some(_) => tokio::time::timeout(QUEUE_TIME, depths(&shared)).await.unwrap_or_else(|_| {
            let problem = format!("the queues did not answer within {} s", QUEUE_TIME.as_secs());
            (vec![QueueDepth::unknown(problem)], DeadLetterCount::default())
        }),
        None => (Vec::new(), DeadLetterCount::default()),
    };
    Ok(Document(TargetDocument {
        name,
        store: options.jobs.place(),
        queue,
        queues,
        dead_letters: letters.letters,
        dead_letters_partial: letters.is_partial,
        dead_letters_problem: letters.problem,
        workers,
        workers_problem,
        reducers,
        now: milliseconds_since_epoch(),
    }))
}

async fn depths(shared: &Shared) -> (Vec<QueueDepth>, DeadLetterCount) {
    let Some(target) = &shared.options.target else {
        return (Vec::new(), DeadLetterCount::default());
    };
    let mut connection = shared.connection.lock().await;
    let opened = match connection.queues.clone() {
        Some(queues) => Ok(queues),
        None => target.open_queues(false).await,
    };
    let queues = match opened {
        Ok(queues) => queues,
        Err(error) => {
            let problem = (shared.options.words.error)(&error);
            return (vec![QueueDepth::unknown(problem)], DeadLetterCount::default());
        }
    };
    connection.queues = Some(queues.clone());
    let mut of_jobs = shared.options.jobs.queues().await.unwrap_or_default();
    of_jobs.truncate(QUEUES_OF_JOBS_MAX);
    let found = queues.depths(&of_jobs).await;
    if found.iter().any(|queue| queue.problem.is_some()) {
        // The connection may be lost.
        connection.queues = None;
    }
    if let Some((_, letters)) =
        connection.letters.as_ref().filter(|(at, _)| at.elapsed() < DEAD_LETTERS_EVERY)
    {
        return (found, letters.clone());
    }
    let letters = match target.dead_letters().await {
        Ok(DeadLetters { letters, is_partial, failure }) => DeadLetterCount {
            letters,
            is_partial,
            problem: failure.map(|error| format!("{error:#}")),
        },
        Err(error) => DeadLetterCount {
            problem: Some((shared.options.words.error)(&error)),
            ..DeadLetterCount::default()
        },
    };
    connection.letters = Some((Instant::now(), letters.clone()));
    (found, letters)
}

/// Returns the list of workers, as of a moment ago.
async fn listed_workers(shared: &Shared) -> anyhow::Result<Vec<SeenWorker>> {
    let mut known = shared.workers.lock().await;
    if let Some((_, listed)) = known.as_ref().filter(|(at, _)| at.elapsed() < WORKERS_EVERY) {
        return Ok(listed.clone());
    }
    let listed = shared.options.jobs.workers().await?;
    *known = Some((Instant::now(), listed.clone()));
    Ok(listed)
}

/// Returns a row for each job of each worker, and one for each worker without jobs.
fn workers(listed: Vec<SeenWorker>, open: &[String]) -> Vec<Worker> {
    let rows = listed.into_iter().flat_map(|SeenWorker { state, seen_at: last_at }| {
        let row = move |job_id| Worker {
            node: state.name.clone(),
            job_id,
            last_at,
            offer: state.offer.clone(),
        };
        // The entry of a worker that was killed stays for a while.
        let jobs: Vec<_> =
            state.jobs.keys().filter(|job_id| open.contains(job_id)).cloned().map(Some).collect();
        let jobs = if jobs.is_empty() { vec![None] } else { jobs };
        jobs.into_iter().map(row).collect::<Vec<_>>()
    });
    let mut workers: Vec<Worker> = rows.collect();
    workers.sort_by(|one, other| (&one.node, &one.job_id).cmp(&(&other.node, &other.job_id)));
    workers
}

/// Returns the last heartbeats of reducers for open jobs.
async fn reducers(jobs: &Jobs, mut open: Vec<String>) -> Vec<Reducer> {
    open.truncate(OPEN_JOBS_MAX);
    let now = milliseconds_since_epoch();
    let jobs = jobs.clone();
    stream::iter(open)
        .map(move |job_id| (jobs.store(&job_id), job_id))
        .map(|(store, job_id)| async move {
            let progress = store.ok()?.progress().await.ok().flatten()?;
            let silent = now.saturating_sub(progress.at) > SILENCE_MILLISECONDS;
            Some(Reducer { job_id, last_at: progress.at, silent })
        })
        .buffered(READS_AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await
}

/// Sends the dead letters to the queues of their jobs again.
pub async fn redrive(State(shared): SharedState) -> Answer<Document<Value>> {
    dispose(&shared, DeadLetterAction::Redrive).await
}

/// Deletes the dead letters.
pub async fn delete(State(shared): SharedState) -> Answer<Document<Value>> {
    dispose(&shared, DeadLetterAction::Delete).await
}

async fn dispose(shared: &Shared, disposal: DeadLetterAction) -> Answer<Document<Value>> {
    let Some(target) = &shared.options.target else {
        return Err(Refusal::conflict("jobs of this machine have no dead letters"));
    };
    let (done, left) = target
        .dispose_of_dead_letters(disposal, None)
        .await
        .map_err(|error| Refusal::conflict((shared.options.words.error)(&error)))?;
    shared.connection.lock().await.letters = None;
    let how = match disposal {
        DeadLetterAction::Redrive => "sent again",
        DeadLetterAction::Delete => "deleted",
    };
    let mut message = format!("{} {how}", counted(done.len() as u64, "message"));
    if left > 0 {
        message +=
            &format!("; {left} left: not whole messages of Gristmill, or of jobs without queues");
    }
    Ok(Document(json!({ "done": done.len(), "left": left, "message": message })))
}

pub async fn doctor(State(shared): SharedState) -> Answer<Document<Value>> {
    // If the request ended it, the queues of its test would stay.
    to_its_end(examine(shared)).await
}

async fn examine(shared: Arc<Shared>) -> Answer<Document<Value>> {
    let Ok(_turn) = shared.examining.try_lock() else {
        return Err(Refusal::conflict("another check is running; wait for its end"));
    };
    let mut report = Report::new(|_| ());
    match &shared.options.target {
        Some(target) => {
            target
                .check(
                    None,
                    JOB_LENGTH,
                    false,
                    &shared.options.engine.settings().build,
                    &mut report,
                )
                .await
        }
        None => {
            let engine = shared.options.engine.clone();
            report = tokio::task::spawn_blocking(move || {
                engine.check_machine(None, &mut report);
                report
            })
            .await?;
        }
    }
    let ok = report.count(CheckState::Failed) == 0;
    let remedy = shared.options.words.remedy;
    let checks = report.checks.iter().map(|check| {
        let message = check.remedy.as_ref().map_or_else(
            || check.message.clone(),
            |found| format!("{}; {}", check.message, remedy(found)),
        );
        json!({ "check": check.check, "state": check.state, "message": message })
    });
    Ok(Document(json!({ "ok": ok, "checks": checks.collect::<Vec<_>>() })))
}

#[cfg(test)]
mod tests {
    use protocol::{NodeState, Running};

    use super::*;

    #[test]
    fn every_worker_is_listed_with_its_jobs() {
        let seen = |name: &str, gpus, jobs: &[&str]| {
            let jobs = jobs.iter().map(|job| ((*job).to_owned(), Running::default())).collect();
            let offer = Offer { gpus, ..Offer::default() };
            SeenWorker {
                state: NodeState { name: name.to_owned(), offer, jobs, ..NodeState::default() },
                seen_at: 8,
            }
        };
        let found = workers(
            vec![seen("b", 2, &["x", "ended", "w"]), seen("a", 1, &[])],
            &["w".to_owned(), "x".to_owned()],
        );
        let shown: Vec<_> = found
            .iter()
            .map(|one| (&*one.node, one.job_id.as_deref(), one.last_at, one.offer.gpus))
            .collect();
        assert_eq!(shown, [("a", None, 8, 1), ("b", Some("w"), 8, 2), ("b", Some("x"), 8, 2)]);
    }
}
