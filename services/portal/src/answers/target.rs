//! The compute target: its queues, the workers and reducers of its open jobs, and its checks.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use engine::doctor::{CheckState, Report};
use engine::targets::{LOCAL, Queues};
use engine::{Beat, SeenWorker};
use engine::{DeadLetter, DeadLetters, Jobs};
use futures::{StreamExt, stream};
use protocol::{Offer, milliseconds_since_epoch};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

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
const WORKERS_EVERY: Duration = Duration::from_secs(15);
const OPEN_JOBS_MAX: usize = 100;
const READS_AT_ONCE: usize = 16;
/// After this time without a report a reducer counts as silent.
const SILENCE_MILLISECONDS: u64 = 10_000;
/// The longest job for which the retention of the queues is checked.
const JOB_LENGTH: Duration = Duration::from_secs(24 * 3600);

/// What is known about the queues of the target.
#[derive(Debug, Default)]
pub struct Connection {
    queues: Option<Queues>,
    letters: Option<(Instant, Letters)>,
}

#[derive(Clone, Debug, Default)]
struct Letters {
    letters: Vec<DeadLetter>,
    is_partial: bool,
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct TargetDocument {
    name: String,
    store: String,
    queue: Option<String>,
    queues: Vec<Queue>,
    dead_letters: Vec<DeadLetter>,
    dead_letters_partial: bool,
    dead_letters_problem: Option<String>,
    workers: Vec<Worker>,
    workers_problem: Option<String>,
    reducers: Vec<Reducer>,
    now: u64,
}

#[derive(Debug, Serialize)]
struct Queue {
    name: &'static str,
    visible: Option<u64>,
    in_flight: Option<u64>,
    delayed: Option<u64>,
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Worker {
    node: String,
    /// An open job that it works on, if it was the last to give a sign of life to this job.
    job_id: Option<String>,
    last_at: u64,
    /// `None`: it is not on the list of the target's workers.
    offer: Option<Offer>,
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
    targets.extend(names.map(|name| json!({ "name": name, "current": current.as_ref() == Some(name) })));
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
    let (signs, reducers) = roles(&options.jobs).await?;
    let workers = workers(listed, signs);
    let name = target_name(options.jobs.target()).unwrap_or_else(|| THIS_MACHINE.to_owned());
    let queue = options.target.as_ref().and_then(|target| Some(target.queue().ok()?.to_string()));
    let (queues, letters) = match &queue {
        Some(_) => tokio::time::timeout(QUEUE_TIME, depths(&shared)).await.unwrap_or_else(|_| {
            let problem = format!("the queues did not answer within {} s", QUEUE_TIME.as_secs());
            (unknown(&problem), Letters::default())
        }),
        None => (Vec::new(), Letters::default()),
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

const NAMES: [&str; 3] = ["tasks", "results", "dead letters"];

fn unknown(problem: &str) -> Vec<Queue> {
    let queue = |name| Queue { name, visible: None, in_flight: None, delayed: None, problem: Some(problem.to_owned()) };
    NAMES.map(queue).into()
}

async fn depths(shared: &Shared) -> (Vec<Queue>, Letters) {
    let Some(target) = &shared.options.target else { return (Vec::new(), Letters::default()) };
    let mut connection = shared.connection.lock().await;
    let opened = match connection.queues.clone() {
        Some(queues) => Ok(queues),
        None => target.open_queues(false).await,
    };
    let queues = match opened {
        Ok(queues) => queues,
        Err(error) => return (unknown(&(shared.options.words.error)(&error)), Letters::default()),
    };
    connection.queues = Some(queues.clone());
    let mut found = Vec::new();
    for (name, queue) in NAMES.into_iter().zip([&queues.tasks, &queues.results, &queues.dead_letters]) {
        found.push(match queue.depth().await {
            Ok(depth) => Queue {
                name,
                visible: Some(depth.visible),
                in_flight: queue.limits().timed_lease.then_some(depth.in_flight),
                delayed: Some(depth.delayed),
                problem: None,
            },
            Err(error) => {
                // The connection may be lost.
                connection.queues = None;
                Queue { name, visible: None, in_flight: None, delayed: None, problem: Some(error.to_string()) }
            }
        });
    }
    if let Some((_, letters)) = connection.letters.as_ref().filter(|(at, _)| at.elapsed() < DEAD_LETTERS_EVERY) {
        return (found, letters.clone());
    }
    let letters = match target.dead_letters().await {
        Ok(DeadLetters { letters, is_partial, failure }) => {
            Letters { letters, is_partial, problem: failure.map(|error| format!("{error:#}")) }
        }
        Err(error) => Letters { problem: Some((shared.options.words.error)(&error)), ..Letters::default() },
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

/// Returns the workers on the list with the jobs that they have, and those which are not on the list and gave a job a
/// sign of life.
fn workers(listed: Vec<SeenWorker>, signs: Vec<(String, Beat)>) -> Vec<Worker> {
    let mut workers: Vec<Worker> = Vec::new();
    for (job_id, beat) in signs {
        let known = listed.iter().find(|worker| worker.state.name == beat.node);
        let offer = known.map(|worker| worker.state.offer.clone());
        workers.push(Worker { node: beat.node, job_id: Some(job_id), last_at: beat.at, offer });
    }
    for SeenWorker { state, seen_at } in listed {
        let row =
            |job_id| Worker { node: state.name.clone(), job_id, last_at: seen_at, offer: Some(state.offer.clone()) };
        for job_id in state.jobs.keys() {
            let shown = workers.iter_mut().find(|row| row.node == state.name && row.job_id.as_ref() == Some(job_id));
            match shown {
                Some(shown) => shown.last_at = shown.last_at.max(seen_at),
                None => workers.push(row(Some(job_id.clone()))),
            }
        }
        if !workers.iter().any(|worker| worker.node == state.name) {
            workers.push(row(None));
        }
    }
    workers.sort_by(|one, other| (&one.node, &one.job_id).cmp(&(&other.node, &other.job_id)));
    workers
}

/// Returns the last signs of life that workers and reducers gave to open jobs.
async fn roles(jobs: &Jobs) -> Answer<(Vec<(String, Beat)>, Vec<Reducer>)> {
    let mut ids = jobs.open_ids().await?;
    ids.truncate(OPEN_JOBS_MAX);
    let now = milliseconds_since_epoch();
    let jobs = jobs.clone();
    let signs: Vec<_> = stream::iter(ids)
        .map(move |job_id| (jobs.store(&job_id), job_id))
        .map(|(store, job_id)| async move {
            let store = store.ok()?;
            let (beat, progress) = (store.beat().await.ok().flatten(), store.progress().await.ok().flatten());
            let sign = beat.map(|beat| (job_id.clone(), beat));
            let silent = |at: u64| now.saturating_sub(at) > SILENCE_MILLISECONDS;
            let reducer = progress.map(|one| Reducer { job_id, last_at: one.at, silent: silent(one.at) });
            Some((sign, reducer))
        })
        .buffered(READS_AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await;
    let (signs, reducers): (Vec<_>, Vec<_>) = signs.into_iter().unzip();
    Ok((signs.into_iter().flatten().collect(), reducers.into_iter().flatten().collect()))
}

pub async fn doctor(State(shared): SharedState) -> Answer<Document<Value>> {
    let Ok(_turn) = shared.examining.try_lock() else {
        return Err(Refusal::new(StatusCode::CONFLICT, "another check is running; wait for its end"));
    };
    let mut report = Report::new(|_| ());
    match &shared.options.target {
        Some(target) => target.check(None, JOB_LENGTH, false, &mut report).await,
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
        let message = check
            .remedy
            .as_ref()
            .map_or_else(|| check.message.clone(), |found| format!("{}; {}", check.message, remedy(found)));
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
            SeenWorker { state: NodeState { name: name.to_owned(), offer, jobs, ..NodeState::default() }, seen_at: 8 }
        };
        let beat = |job: &str, node: &str| (job.to_owned(), Beat { node: node.to_owned(), count: 1, at: 7 });
        let found = workers(
            vec![seen("a", 1, &[]), seen("b", 2, &["x", "w"])],
            vec![beat("x", "b"), beat("y", "b"), beat("z", "old")],
        );
        let shown: Vec<_> = found
            .iter()
            .map(|one| (&*one.node, one.job_id.as_deref(), one.last_at, one.offer.as_ref().map(|offer| offer.gpus)))
            .collect();
        let expected = [
            ("a", None, 8, Some(1)),
            ("b", Some("w"), 8, Some(2)),
            ("b", Some("x"), 8, Some(2)),
            ("b", Some("y"), 7, Some(2)),
            ("old", Some("z"), 7, None),
        ];
        assert_eq!(shown, expected);
    }
}
