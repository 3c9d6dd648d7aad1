//! The state of a job that has not ended, and what it waits for. Read from the store alone, so that it holds no matter
//! where workers and reducers run.

use std::time::{Duration, Instant};

use anyhow::Result;
use protocol::{JobResult, Progress, Unfit, milliseconds_since_epoch};
use storage::TurnState;

use crate::{FoundJob, Jobs, OpenJobs, State, TargetRef};

/// A reducer writes the progress of each job every four seconds; after this silence it has ended.
const SILENCE: Duration = Duration::from_secs(10);
/// The most by which the clocks of two machines differ: one of them takes the local time of any zone for UTC. A longer
/// silence needs no second look.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(14 * 3600);

/// The state of a job, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The state.
    pub state: State,
    /// What it waits for, if that is known.
    pub hint: Option<Hint>,
}

/// What a job of this place waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The job.
    pub job_id: String,
    /// Its target.
    pub target: TargetRef,
    /// What it lacks.
    pub lack: Lack,
}

/// What a job lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No reducer has looked at it yet.
    FirstReducer,
    /// A reducer has been silent. Results wait in the queue.
    Reducer(Since),
    /// No worker has started.
    FirstWorker,
    /// No process works on it, and a node has it.
    Node {
        /// The node.
        node: String,
        /// How long it has waited.
        seconds: u64,
        /// What it waits for.
        detail: String,
    },
    /// Workers have been silent.
    Worker {
        /// Their last sign of life.
        since: Since,
        /// Whether all mini-batches are published.
        planned: bool,
    },
    /// The quotas of the target do not let it run yet, for this reason.
    Turn(String),
    /// The schedule of the target gives it no process, for this reason.
    Schedule(String),
    /// No worker works on it, and those that run do not have what it requires.
    FittingWorker(Unfit),
    /// The process that runs the local job has been silent: it is stopped, or its disk does not answer.
    Progress(Since),
    /// The process that ran the local job has ended.
    Process,
    /// The job was interrupted before anything was published.
    Publication,
}

/// A moment of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// By the clock on the wall, in milliseconds since 1970.
    pub at: u64,
    /// Time since then, by this process's own clock where possible.
    pub age: Duration,
}

/// The time of the last write to `progress.json`, as one reader sees it: by the clock of the store, or else by the
/// clocks of two machines at the first look and by its own clock from then on.
#[derive(Clone, Copy, Debug)]
pub struct Pulse {
    at: u64,
    seen: Instant,
    age: Duration,
    is_exact: bool,
}

impl Pulse {
    /// Begins with a first look.
    pub fn new(progress: &Progress) -> Self {
        let by_clocks = || Duration::from_millis(milliseconds_since_epoch().saturating_sub(progress.at));
        let age = progress.age.unwrap_or_else(by_clocks);
        Self { at: progress.at, seen: Instant::now(), age, is_exact: progress.age.is_some() }
    }

    /// Takes note of another look.
    pub fn look(&mut self, progress: &Progress) {
        if progress.at != self.at {
            *self = Self { at: progress.at, seen: Instant::now(), age: Duration::ZERO, is_exact: true };
        }
    }

    fn age(&self) -> Duration {
        self.age + self.seen.elapsed()
    }

    /// Whether the silence may be a difference of clocks, which only another look can tell.
    fn is_doubtful(&self) -> bool {
        !self.is_exact && (SILENCE..CLOCKS_DIFFER_MAX).contains(&self.age())
    }
}

impl Jobs {
    /// Returns the state of a job. `pulse`: the result of earlier looks; `None`: this is the only one.
    pub async fn standing(
        &self,
        job: &FoundJob,
        progress: Option<&Progress>,
        pulse: Option<Pulse>,
    ) -> Result<Standing> {
        let open = if job.result.is_none() { self.open_jobs().await? } else { OpenJobs::default() };
        self.standing_among(job, progress, pulse, &open).await
    }

    /// Returns the state of a job, given the jobs that have not ended.
    pub async fn standing_among(
        &self,
        job: &FoundJob,
        progress: Option<&Progress>,
        pulse: Option<Pulse>,
        open: &OpenJobs,
    ) -> Result<Standing> {
        let id = &job.spec.job_id;
        let interrupted = |lack| Standing { state: State::Interrupted, hint: Some(self.hint(id, lack)) };
        match (&job.result, self) {
            (Some(result), _) => Ok(ended(result)),
            (None, Self::Here(home)) if home.is_running(id)? => Ok(self.waits(id, progress, pulse)),
            (None, Self::Here(_)) => Ok(interrupted(Lack::Process)),
            (None, Self::There { .. }) => {
                if !open.contains(id) {
                    // It may have ended since it was read.
                    return Ok(match job.store.result().await? {
                        Some(result) => ended(&result),
                        None => interrupted(Lack::Publication),
                    });
                }
                if job.store.cancel_requested().await?.is_some() {
                    return Ok(Standing { state: State::Canceling, hint: self.lacks_reducer(id, progress, pulse) });
                }
                let standing = self.waits(id, progress, pulse);
                if let Some(reason) = open.waits_for(id).filter(|_| !lacks_someone_to_ask(&standing, progress)) {
                    let state = match progress {
                        Some(progress) if progress.nodes > 0 => State::Waiting,
                        _ => State::Queued,
                    };
                    return Ok(Standing { state, hint: Some(self.hint(id, Lack::Schedule(reason.to_owned()))) });
                }
                if open.waits(id) { self.turn(id, standing).await } else { Ok(standing) }
            }
        }
    }

    /// Returns the state of an open job of a target that may wait for its turn, given what it waits for otherwise.
    pub(crate) async fn turn(&self, job_id: &str, standing: Standing) -> Result<Standing> {
        let lack = standing.hint.as_ref().map(|hint| &hint.lack);
        match self {
            // Without a reducer, no turn comes.
            Self::There { store, .. } if !matches!(lack, Some(Lack::FirstReducer | Lack::Reducer(_))) => {
                if store.turn_state(job_id).await? != Some(TurnState::Waits) {
                    return Ok(standing);
                }
                let reason = store.job(job_id).wait_reason().await?.unwrap_or_else(|| "it has just come".to_owned());
                Ok(Standing { state: State::Queued, hint: Some(self.hint(job_id, Lack::Turn(reason))) })
            }
            _ => Ok(standing),
        }
    }

    /// Returns what an open job waits for, without a request to the store.
    pub fn waits(&self, job_id: &str, progress: Option<&Progress>, pulse: Option<Pulse>) -> Standing {
        let seen = seen(progress, pulse);
        let (state, lack) = match self {
            Self::Here(_) => here(seen),
            Self::There { .. } => there(seen),
        };
        Standing { state, hint: lack.map(|lack| self.hint(job_id, lack)) }
    }

    /// Whether the silence may be a difference of clocks or an engine that has just started, which only another look can
    /// tell.
    pub fn is_doubtful(&self, job_id: &str, progress: &Progress, pulse: Pulse) -> Result<bool> {
        match self {
            Self::Here(_) => Ok(here(Some((progress, pulse.age()))).1.is_some() && !self.is_abandoned(job_id)?),
            Self::There { .. } => Ok(pulse.is_doubtful()),
        }
    }

    /// Whether the process that ran a local job has ended. Of a job of a target this is unknown.
    pub fn is_abandoned(&self, job_id: &str) -> Result<bool> {
        match self {
            Self::Here(home) => Ok(!home.is_running(job_id)?),
            Self::There { .. } => Ok(false),
        }
    }

    /// Returns the hint that no reducer serves the job, if so.
    pub fn lacks_reducer(&self, job_id: &str, progress: Option<&Progress>, pulse: Option<Pulse>) -> Option<Hint> {
        lacks_reducer(seen(progress, pulse)).map(|lack| self.hint(job_id, lack))
    }

    fn hint(&self, job_id: &str, lack: Lack) -> Hint {
        Hint { job_id: job_id.to_owned(), target: self.target().clone(), lack }
    }
}

/// Whether no reducer is there that would give the job processes. One that has not begun with the job, which waits, is no sign
/// of that.
fn lacks_someone_to_ask(standing: &Standing, progress: Option<&Progress>) -> bool {
    let lack = standing.hint.as_ref().map(|hint| &hint.lack);
    progress.is_some() && matches!(lack, Some(Lack::Reducer(_)))
}

/// Progress, and its age.
type Seen<'a> = Option<(&'a Progress, Duration)>;

fn seen(progress: Option<&Progress>, pulse: Option<Pulse>) -> Seen<'_> {
    progress.map(|progress| (progress, pulse.unwrap_or_else(|| Pulse::new(progress)).age()))
}

fn ended(result: &JobResult) -> Standing {
    Standing { state: result.state.into(), hint: None }
}

/// Returns what an open job of a compute target waits for.
fn there(seen: Seen<'_>) -> (State, Option<Lack>) {
    let lack = lacks_reducer(seen);
    let Some((progress, age)) = seen else { return (State::Queued, lack) };
    // The reducer has written both times.
    let since = |at: u64| Since { at, age: age + Duration::from_millis(progress.at.saturating_sub(at)) };
    let has_started = progress.nodes > 0;
    let (state, lack) = match progress.silent_since {
        _ if lack.is_some() => (if has_started { State::Waiting } else { State::Queued }, lack),
        _ if progress.step.is_some() => (State::Running, None),
        _ if !has_started => (State::Queued, Some(Lack::FirstWorker)),
        Some(at) => (State::Waiting, Some(Lack::Worker { since: since(at), planned: progress.planned })),
        None => (State::Running, None),
    };
    let is_for_worker = matches!(lack, Some(Lack::FirstWorker | Lack::Worker { .. }));
    let unfit = progress.unfit.clone().filter(|_| is_for_worker);
    let waits = progress.waiting.iter().find(|waiting| waiting.process.is_empty() && !waiting.detail.is_empty());
    let on_node = waits.filter(|_| is_for_worker).map(|waiting| Lack::Node {
        node: waiting.node.clone(),
        seconds: waiting.seconds,
        detail: waiting.detail.clone(),
    });
    (state, unfit.map(Lack::FittingWorker).or(on_node).or(lack))
}

fn lacks_reducer(seen: Seen<'_>) -> Option<Lack> {
    let Some((progress, age)) = seen else { return Some(Lack::FirstReducer) };
    (age > SILENCE).then_some(Lack::Reducer(Since { at: progress.at, age }))
}

/// Returns what a local job waits for whose engine holds its lock.
fn here(seen: Seen<'_>) -> (State, Option<Lack>) {
    match seen {
        Some((progress, age)) if age > SILENCE => {
            (State::Waiting, Some(Lack::Progress(Since { at: progress.at, age })))
        }
        _ => (State::Running, None),
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Counts, Requirements, SlotPhase, Waiting};
    use reducer::Reducer;

    use super::*;

    fn progress() -> Progress {
        let mini_batches = Counts { total: 20, succeeded: 3, failed: 0 };
        Progress { planned: true, mini_batches, processes: 2, nodes: 1, ..Reducer::no_progress() }
    }

    fn waits(progress: &Progress, seconds: u64) -> (State, Option<Lack>) {
        there(Some((progress, Duration::from_secs(seconds))))
    }

    #[test]
    fn job_without_workers_waits_for_one() {
        // An hour behind.
        let at = milliseconds_since_epoch() - 3_600_000;
        let since = at - 22_000;
        let silent = Progress { at, silent_since: Some(since), ..progress() };
        let waits_for = |progress: &Progress| match waits(progress, 3) {
            (State::Waiting, Some(Lack::Worker { since, planned })) => (since.at, since.age.as_secs(), planned),
            other => panic!("{other:?}"),
        };
        assert_eq!(waits_for(&silent), (since, 25, true));
        assert_eq!(waits_for(&Progress { planned: false, ..silent }), (since, 25, false));
        let new = Progress { nodes: 0, ..progress() };
        assert_eq!(waits(&new, 3), (State::Queued, Some(Lack::FirstWorker)));
        assert_eq!(waits(&progress(), 3), (State::Running, None));
    }

    #[test]
    fn job_that_no_worker_takes_says_why() {
        let requires = Requirements { gpus: 1, ..Requirements::default() };
        let unfit = Unfit { requires, nodes: 1, nearest: "a".into(), lacks: "it has no GPU".into() };
        let lacks = Some(Lack::FittingWorker(unfit.clone()));
        let new = Progress { nodes: 0, unfit: Some(unfit), ..progress() };
        assert_eq!(waits(&new, 3), (State::Queued, lacks.clone()));
        let left = Progress { nodes: 1, silent_since: Some(0), ..new.clone() };
        assert_eq!(waits(&left, 3), (State::Waiting, lacks));
        assert_eq!(waits(&Progress { nodes: 1, ..new.clone() }, 3), (State::Running, None), "a worker has come");
        assert!(matches!(waits(&new, 12).1, Some(Lack::Reducer(_))), "an old list may be wrong");
    }

    #[test]
    fn job_that_waits_on_a_node_says_for_what() {
        let waiting = Waiting {
            node: "a".into(),
            process: String::new(),
            mini_batch: None,
            phase: SlotPhase::Starting,
            seconds: 12,
            since: 0,
            detail: "other jobs use the GPU of this node".into(),
            stack: String::new(),
            printed: String::new(),
        };
        let (node, detail) = ("a".to_owned(), waiting.detail.clone());
        let new = Progress { nodes: 0, waiting: vec![waiting], ..progress() };
        assert_eq!(waits(&new, 3), (State::Queued, Some(Lack::Node { node, seconds: 12, detail })));
        assert_eq!(waits(&Progress { nodes: 1, ..new }, 3), (State::Running, None), "another node works on it");
    }

    #[test]
    fn job_without_reducer_waits_for_one() {
        let has_lost_its_worker = Progress { silent_since: Some(0), ..progress() };
        let has_no_worker_yet = Progress { nodes: 0, ..progress() };
        for progress in [progress(), has_lost_its_worker, has_no_worker_yet] {
            let lacks_reducer = |seconds| matches!(waits(&progress, seconds).1, Some(Lack::Reducer(_)));
            assert_eq!((lacks_reducer(9), lacks_reducer(12)), (false, true), "{progress:?}");
        }
        assert_eq!(waits(&progress(), 12).0, State::Waiting);
        assert_eq!(there(None), (State::Queued, Some(Lack::FirstReducer)));
    }

    #[test]
    fn job_whose_output_is_being_written_needs_no_workers() {
        let silent = Progress { silent_since: Some(0), step: Some("writing the output".into()), ..progress() };
        assert_eq!(waits(&silent, 3), (State::Running, None));
        assert!(matches!(waits(&silent, 11).1, Some(Lack::Reducer(_))));
    }

    #[test]
    fn difference_of_clocks_is_not_silence() {
        let late = Progress { at: milliseconds_since_epoch() - 60_000, ..progress() };
        let mut pulse = Pulse::new(&late);
        assert!(pulse.is_doubtful());
        let later = Progress { at: late.at + 3000, ..late.clone() };
        pulse.look(&later);
        assert!(!pulse.is_doubtful() && pulse.age() < SILENCE);
        let early = Progress { at: milliseconds_since_epoch() + 60_000, ..progress() };
        assert!(!Pulse::new(&early).is_doubtful());
        let gone = Progress { at: 1000, ..progress() };
        assert!(!Pulse::new(&gone).is_doubtful(), "no clock is wrong by 50 years");
    }

    #[test]
    fn age_counts_by_the_clock_of_the_store() {
        let hour = 3_600_000;
        for at in [milliseconds_since_epoch() - hour, milliseconds_since_epoch() + hour] {
            let written = |seconds| Progress { at, age: Some(Duration::from_secs(seconds)), ..progress() };
            let lack = |progress: &Progress| there(seen(Some(progress), None)).1;
            assert_eq!(lack(&written(3)), None, "it has just been written");
            let silent = written(20);
            assert!(matches!(lack(&silent), Some(Lack::Reducer(since)) if since.age.as_secs() == 20), "{silent:?}");
            assert!(!Pulse::new(&silent).is_doubtful(), "no second look is needed");
        }
    }
}
