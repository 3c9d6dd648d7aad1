//! Finds the state of a job that has not ended, and why it waits. Reads only the store, so it does
//! not matter where workers and reducers run.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use chrono::{DateTime, Local, Utc};
use protocol::words::{clause, duration};
use protocol::{JobResult, Progress, Waiting, WaitsFor, milliseconds_since_epoch};

use crate::jobs::Scheduled;
use crate::{FoundJob, Jobs, OpenJobs, State, TargetRef};

/// A reducer writes the progress of each job every two seconds; after this silence it has ended.
const SILENCE: Duration = Duration::from_secs(5);
/// The first progress of a job follows the schedule that admits it: queues are created, and the ledger is read.
const FIRST_PROGRESS: Duration = Duration::from_secs(10);
/// A shorter trouble is not reported.
const TROUBLE_MIN: Duration = Duration::from_secs(2);
/// A reducer that cannot serve a job says so every 20 seconds.
const TROUBLE_LASTS: Duration = Duration::from_secs(25);
/// The most by which the clocks of two machines differ: one of them takes the local time of any
/// zone for UTC. A longer silence needs no second read.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(14 * 3600);

/// The state of a job, and why it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// The state.
    pub state: State,
    /// Why it waits, if that is known.
    pub hint: Option<Hint>,
}

/// The reason why a job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The job.
    pub job_id: String,
    /// Its target.
    pub target: TargetRef,
    /// The blocker.
    pub blocker: Blocker,
}

/// The condition that blocks a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// Its reducer cannot continue.
    Trouble {
        /// Why.
        reason: String,
        /// When that began.
        since: Since,
    },
    /// No reducer has read it yet.
    FirstReducer,
    /// A reducer has been silent. Results wait in the queue.
    Reducer(Since),
    /// The schedule of the target gives it no process, for this reason.
    Schedule(WaitsFor),
    /// The schedule gives it processes on these nodes, which have not started it yet.
    Start(Vec<String>),
    /// A node has it, but none of its processes works.
    Node {
        /// The node.
        node: String,
        /// How long it has waited.
        seconds: u64,
        /// The condition for which it waits.
        detail: String,
    },
    /// Workers have been silent.
    Worker {
        /// Their last sign of life.
        since: Since,
        /// Whether all mini-batches are published.
        planned: bool,
    },
    /// The process that runs the local job has been silent: it is stopped, or its disk does not answer.
    Progress(Since),
    /// The process that ran the local job has ended.
    Process,
    /// The job was interrupted before anything was published.
    Publication,
}

/// `no reducer has been heard from since 14:03:12 (25 s ago)`
impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trouble { reason, since } => write!(f, "{}; since {since}", clause(reason)),
            Self::FirstReducer => f.write_str("no reducer has looked at it yet"),
            Self::Reducer(since) => write!(f, "no reducer has been heard from since {since}"),
            Self::Schedule(waits_for) => waits_for.fmt(f),
            Self::Start(nodes) => match &nodes[..] {
                [] => f.write_str("the schedule is about to give it processes"),
                [node] => write!(f, "worker {node} is about to begin with it"),
                nodes => write!(f, "{} workers are about to begin with it", nodes.len()),
            },
            Self::Node { node, seconds, detail } => {
                let time = duration(*seconds as f64);
                write!(f, "no process works on it; node {node} has had it for {time}: {detail}")
            }
            Self::Worker { since, planned } => {
                write!(f, "no worker has been heard from since {since}")?;
                if *planned {
                    Ok(())
                } else {
                    f.write_str(", and not all mini-batches are published")
                }
            }
            Self::Progress(since) => {
                write!(f, "the process that runs it has not been heard from since {since}")
            }
            Self::Process => f.write_str("the process that ran it has ended"),
            Self::Publication => f.write_str("it was interrupted before anything was published"),
        }
    }
}

/// A time in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// Wall clock, in milliseconds since 1970.
    pub at: u64,
    /// Time since then, by this process's own clock where possible.
    pub age: Duration,
}

/// `14:03:12 (25 s ago)`
impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, age } = *self;
        let time = i64::try_from(at)
            .ok()
            .and_then(DateTime::<Utc>::from_timestamp_millis)
            .unwrap_or_default();
        let format =
            if age < Duration::from_secs(12 * 3600) { "%H:%M:%S" } else { "%Y-%m-%d %H:%M" };
        let passed =
            if age.as_secs() < 10 { "seconds".to_owned() } else { duration(age.as_secs() as f64) };
        write!(f, "{} ({passed} ago)", time.with_timezone(&Local).format(format))
    }
}

/// The time of the last write to `progress.json`, as one reader sees it: by the clock of the store,
/// or else by the clocks of two machines at the first read and by the reader's own clock after
/// that.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    at: u64,
    seen: Instant,
    age: Duration,
    is_exact: bool,
}

impl Heartbeat {
    /// Starts with a first read.
    pub fn new(progress: &Progress) -> Self {
        let by_clocks =
            || Duration::from_millis(milliseconds_since_epoch().saturating_sub(progress.at));
        let age = progress.age.unwrap_or_else(by_clocks);
        Self { at: progress.at, seen: Instant::now(), age, is_exact: progress.age.is_some() }
    }

    /// Records another read.
    pub fn look(&mut self, progress: &Progress) {
        if progress.at != self.at {
            *self =
                Self { at: progress.at, seen: Instant::now(), age: Duration::ZERO, is_exact: true };
        }
    }

    fn age(&self) -> Duration {
        self.age + self.seen.elapsed()
    }

    /// Whether the silence may be a difference of clocks, which only another read can show.
    fn is_doubtful(&self) -> bool {
        !self.is_exact && (SILENCE..CLOCKS_DIFFER_MAX).contains(&self.age())
    }
}

impl Jobs {
    /// Returns the state of a job, given the jobs that have not ended. `heartbeat`: that of earlier
    /// reads; `None`: this is the first read.
    pub async fn diagnose(
        &self,
        job: &FoundJob,
        progress: Option<&Progress>,
        heartbeat: Option<Heartbeat>,
        open: &OpenJobs,
    ) -> Result<Diagnosis> {
        let id = &job.spec.job_id;
        let interrupted =
            |blocker| Diagnosis { state: State::Interrupted, hint: Some(self.hint(id, blocker)) };
        match (&job.result, self) {
            (Some(result), _) => Ok(ended(result)),
            (None, Self::Here(home)) if home.is_running(id)? => {
                Ok(self.waits(id, progress, heartbeat, None))
            }
            (None, Self::Here(_)) => Ok(interrupted(Blocker::Process)),
            (None, Self::There { .. }) => {
                if !open.contains(id) {
                    // It may have ended since it was read.
                    return Ok(match job.store.result().await? {
                        Some(result) => ended(&result),
                        None => interrupted(Blocker::Publication),
                    });
                }
                if job.store.cancel_requested().await?.is_some() {
                    return Ok(Diagnosis {
                        state: State::Canceling,
                        hint: self.lacks_reducer(id, progress, heartbeat, open),
                    });
                }
                Ok(self.waits(id, progress, heartbeat, open.scheduled(id)))
            }
        }
    }

    /// Returns why an open job waits, without a request to the store.
    pub(crate) fn waits(
        &self,
        job_id: &str,
        progress: Option<&Progress>,
        heartbeat: Option<Heartbeat>,
        scheduled: Option<&Scheduled>,
    ) -> Diagnosis {
        let seen = seen(progress, heartbeat);
        let (state, blocker) = match self {
            Self::Here(_) => here(seen),
            Self::There { .. } => there(seen, scheduled),
        };
        Diagnosis { state, hint: blocker.map(|blocker| self.hint(job_id, blocker)) }
    }

    /// Whether the silence may be a difference of clocks or an engine that has just started, which
    /// only another read can show.
    pub fn is_doubtful(
        &self,
        job_id: &str,
        progress: &Progress,
        heartbeat: Heartbeat,
    ) -> Result<bool> {
        match self {
            Self::Here(_) => Ok(here(Some((progress, heartbeat.age()))).1.is_some()
                && !self.is_abandoned(job_id)?),
            Self::There { .. } => Ok(heartbeat.is_doubtful()),
        }
    }

    /// Whether the process that ran a local job has ended. Of a job of a target this is unknown.
    pub fn is_abandoned(&self, job_id: &str) -> Result<bool> {
        match self {
            Self::Here(home) => Ok(!home.is_running(job_id)?),
            Self::There { .. } => Ok(false),
        }
    }

    /// Returns a hint if no reducer serves the job.
    pub fn lacks_reducer(
        &self,
        job_id: &str,
        progress: Option<&Progress>,
        heartbeat: Option<Heartbeat>,
        open: &OpenJobs,
    ) -> Option<Hint> {
        lacks_reducer(seen(progress, heartbeat), open.scheduled(job_id))
            .map(|blocker| self.hint(job_id, blocker))
    }

    pub(crate) fn hint(&self, job_id: &str, blocker: Blocker) -> Hint {
        Hint { job_id: job_id.to_owned(), target: self.target().clone(), blocker }
    }
}

/// Progress, and its age.
type Seen<'a> = Option<(&'a Progress, Duration)>;

fn seen(progress: Option<&Progress>, heartbeat: Option<Heartbeat>) -> Seen<'_> {
    progress.map(|progress| (progress, heartbeat.unwrap_or_else(|| Heartbeat::new(progress)).age()))
}

fn ended(result: &JobResult) -> Diagnosis {
    Diagnosis { state: result.state.into(), hint: None }
}

/// Returns why an open job of a compute target waits.
fn there(seen: Seen<'_>, scheduled: Option<&Scheduled>) -> (State, Option<Blocker>) {
    let has_started = seen.is_some_and(|(progress, _)| progress.nodes > 0);
    let waits = if has_started { State::Waiting } else { State::Queued };
    if let Some(trouble) = trouble(seen) {
        return (waits, Some(trouble));
    }
    if let Some(blocker) = lacks_reducer(seen, scheduled) {
        return (waits, Some(blocker));
    }
    let waits_for = scheduled.and_then(|scheduled| scheduled.waits_for.clone());
    let start = || Some(Blocker::Start(scheduled?.nodes.clone()));
    let Some((progress, age)) = seen else {
        return (waits, waits_for.map(Blocker::Schedule).or_else(start));
    };
    if progress.step.is_some() {
        return (State::Running, None);
    }
    // The reducer has written both times.
    let since =
        |at: u64| Since { at, age: age + Duration::from_millis(progress.at.saturating_sub(at)) };
    if progress.silent_since.is_none() && !progress.running.is_empty() {
        // Mini-batches run, whatever blocks the job.
        return (State::Running, None);
    }
    let silent = progress
        .silent_since
        .map(|at| Blocker::Worker { since: since(at), planned: progress.planned });
    match waits_for {
        Some(WaitsFor::Worker(_)) if has_started && silent.is_some() => return (waits, silent),
        Some(waits_for) => return (waits, Some(Blocker::Schedule(waits_for))),
        None => {}
    }
    let on_node = || {
        let of_nodes =
            |waiting: &&Waiting| waiting.process.is_empty() && !waiting.detail.is_empty();
        let Waiting { node, seconds, detail, .. } = progress.waiting.iter().find(of_nodes)?.clone();
        Some(Blocker::Node { node, seconds, detail })
    };
    match (has_started, silent) {
        (false, _) => (waits, on_node().or_else(start)),
        (true, Some(silent)) => (waits, Some(on_node().unwrap_or(silent))),
        (true, None) => (State::Running, None),
    }
}

fn lacks_reducer(seen: Seen<'_>, scheduled: Option<&Scheduled>) -> Option<Blocker> {
    let (last, silence) = match (seen, scheduled) {
        (Some((progress, age)), _) => (Some(Since { at: progress.at, age }), SILENCE),
        (None, Some(scheduled)) => (scheduled.admitted, FIRST_PROGRESS),
        (None, None) => return Some(Blocker::FirstReducer),
    };
    last.filter(|last| last.age > silence).map(Blocker::Reducer)
}

/// Returns the trouble of the reducer, unless it has just begun.
fn trouble(seen: Seen<'_>) -> Option<Blocker> {
    let (progress, age) = seen.filter(|(_, age)| *age <= TROUBLE_LASTS)?;
    let trouble = progress.trouble.as_ref()?;
    // The reducer has written both times.
    let age = age + Duration::from_millis(progress.at.saturating_sub(trouble.since));
    let since = Since { at: trouble.since, age };
    (age >= TROUBLE_MIN).then(|| Blocker::Trouble { reason: trouble.reason.clone(), since })
}

/// Returns why a local job waits whose engine holds its lock.
fn here(seen: Seen<'_>) -> (State, Option<Blocker>) {
    if let Some(trouble) = trouble(seen) {
        return (State::Waiting, Some(trouble));
    }
    match seen {
        Some((progress, age)) if age > SILENCE => {
            (State::Waiting, Some(Blocker::Progress(Since { at: progress.at, age })))
        }
        _ => (State::Running, None),
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Counts, SlotPhase};
    use reducer::Reducer;

    use super::*;

    fn progress() -> Progress {
        let mini_batches = Counts { total: 20, succeeded: 3, failed: 0 };
        Progress { planned: true, mini_batches, processes: 2, nodes: 1, ..Reducer::no_progress() }
    }

    fn waits(progress: &Progress, seconds: u64) -> (State, Option<Blocker>) {
        waits_by(progress, seconds, None)
    }

    fn waits_by(
        progress: &Progress,
        seconds: u64,
        scheduled: Option<&Scheduled>,
    ) -> (State, Option<Blocker>) {
        there(Some((progress, Duration::from_secs(seconds))), scheduled)
    }

    fn without_processes(waits_for: WaitsFor) -> Scheduled {
        Scheduled { waits_for: Some(waits_for), ..Scheduled::default() }
    }

    #[test]
    fn time_of_any_age_is_shown() {
        let shown = |at, age_ms| Since { at, age: Duration::from_millis(age_ms) }.to_string();
        let at = 1_767_225_600_000;
        assert!(shown(at, 0).ends_with(":00 (seconds ago)"));
        assert!(shown(at, 10_500).ends_with("(10 s ago)"));
        assert!(shown(at, 3_700_000).ends_with("(1 h 1 min ago)"));
        assert!(
            shown(0, u64::MAX).contains("1970-01-01") || shown(0, u64::MAX).contains("1969-12-31")
        );
        assert!(shown(u64::MAX, 0).contains("ago"));
    }

    #[test]
    fn job_without_workers_waits_for_one() {
        // An hour behind.
        let at = milliseconds_since_epoch() - 3_600_000;
        let since = at - 22_000;
        let silent = Progress { at, silent_since: Some(since), ..progress() };
        let waits_for = |progress: &Progress| match waits(progress, 3) {
            (State::Waiting, Some(Blocker::Worker { since, planned })) => {
                (since.at, since.age.as_secs(), planned)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(waits_for(&silent), (since, 25, true));
        assert_eq!(waits_for(&Progress { planned: false, ..silent }), (since, 25, false));
        let new = Progress { nodes: 0, ..progress() };
        assert_eq!(waits(&new, 3), (State::Queued, None));
        assert_eq!(waits(&progress(), 3), (State::Running, None));
    }

    #[test]
    fn job_without_processes_says_why_the_schedule_gives_it_none() {
        let ahead = without_processes(WaitsFor::OtherJobs { ahead: 2 });
        let blocker = Some(Blocker::Schedule(WaitsFor::OtherJobs { ahead: 2 }));
        assert_eq!(
            there(None, Some(&ahead)),
            (State::Queued, blocker.clone()),
            "it has no progress before it is admitted"
        );
        assert_eq!(waits_by(&progress(), 3, Some(&ahead)), (State::Waiting, blocker.clone()));
        let new = Progress { nodes: 0, ..progress() };
        assert_eq!(waits_by(&new, 3, Some(&ahead)), (State::Queued, blocker));
        assert!(
            matches!(waits_by(&new, 12, Some(&ahead)).1, Some(Blocker::Reducer(_))),
            "an old schedule may be wrong"
        );
        let no_worker = || WaitsFor::Worker(Default::default());
        let none = without_processes(no_worker());
        let silent = Progress { silent_since: Some(0), ..progress() };
        assert_eq!(
            waits_by(&new, 3, Some(&none)),
            (State::Queued, Some(Blocker::Schedule(no_worker())))
        );
        assert!(matches!(
            waits_by(&silent, 3, Some(&none)),
            (State::Waiting, Some(Blocker::Worker { .. }))
        ));
    }

    #[test]
    fn job_with_processes_that_have_not_begun_names_their_nodes() {
        let given = Scheduled { nodes: vec!["a".to_owned()], ..Scheduled::default() };
        let start = (State::Queued, Some(Blocker::Start(given.nodes.clone())));
        assert_eq!(there(None, Some(&given)), start);
        assert_eq!(waits_by(&Progress { nodes: 0, ..progress() }, 3, Some(&given)), start);
        assert_eq!(waits_by(&progress(), 3, Some(&given)), (State::Running, None));
    }

    #[test]
    fn job_that_waits_on_a_node_says_why() {
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
        assert_eq!(
            waits(&new, 3),
            (State::Queued, Some(Blocker::Node { node, seconds: 12, detail }))
        );
        assert_eq!(
            waits(&Progress { nodes: 1, ..new }, 3),
            (State::Running, None),
            "another node works on it"
        );
    }

    #[test]
    fn job_whose_reducer_cannot_go_on_says_why() {
        let trouble = |since| {
            Some(protocol::ReducerTrouble {
                reason: "the queue does not answer: refused.".into(),
                since,
            })
        };
        let troubled = |since| Progress { at: 10_000, trouble: trouble(since), ..progress() };
        assert_eq!(waits(&troubled(9_500), 1).1, None, "it is away for a moment");
        let (state, blocker) = waits(&troubled(6_000), 1);
        let expected = Since { at: 6_000, age: Duration::from_secs(5) };
        let reason = "the queue does not answer: refused.".to_owned();
        assert_eq!(
            (state, &blocker),
            (State::Waiting, &Some(Blocker::Trouble { reason, since: expected }))
        );
        assert!(
            blocker
                .expect("trouble")
                .to_string()
                .starts_with("the queue does not answer: refused; since ")
        );
        assert!(
            matches!(waits(&troubled(6_000), 26).1, Some(Blocker::Reducer(_))),
            "its reducer has ended"
        );
        assert!(matches!(
            here(Some((&troubled(6_000), Duration::from_secs(1)))).1,
            Some(Blocker::Trouble { .. })
        ));
    }

    #[test]
    fn job_without_reducer_waits_for_one() {
        let has_lost_its_worker = Progress { silent_since: Some(0), ..progress() };
        let has_no_worker_yet = Progress { nodes: 0, ..progress() };
        for progress in [progress(), has_lost_its_worker, has_no_worker_yet] {
            let lacks_reducer =
                |seconds| matches!(waits(&progress, seconds).1, Some(Blocker::Reducer(_)));
            assert_eq!((lacks_reducer(4), lacks_reducer(6)), (false, true), "{progress:?}");
        }
        assert_eq!(waits(&progress(), 12).0, State::Waiting);
        let admitted = |seconds| {
            let made = Since { at: 1000, age: Duration::from_secs(seconds) };
            Scheduled {
                admitted: Some(made),
                ..without_processes(WaitsFor::Worker(Default::default()))
            }
        };
        assert_eq!(
            there(None, Some(&admitted(9))).1,
            Some(Blocker::Schedule(WaitsFor::Worker(Default::default())))
        );
        assert!(matches!(
            there(None, Some(&admitted(12))).1,
            Some(Blocker::Reducer(Since { at: 1000, .. }))
        ));
        let old = without_processes(WaitsFor::OtherJobs { ahead: 1 });
        assert_eq!(
            there(None, Some(&old)).1,
            Some(Blocker::Schedule(WaitsFor::OtherJobs { ahead: 1 })),
            "it is not admitted"
        );
        assert_eq!(there(None, None), (State::Queued, Some(Blocker::FirstReducer)));
    }

    #[test]
    fn job_whose_output_is_being_written_needs_no_workers() {
        let silent = Progress {
            silent_since: Some(0),
            step: Some("writing the output".into()),
            ..progress()
        };
        assert_eq!(waits(&silent, 3), (State::Running, None));
        assert!(matches!(waits(&silent, 11).1, Some(Blocker::Reducer(_))));
    }

    #[test]
    fn difference_of_clocks_is_not_silence() {
        let late = Progress { at: milliseconds_since_epoch() - 60_000, ..progress() };
        let mut heartbeat = Heartbeat::new(&late);
        assert!(heartbeat.is_doubtful());
        let later = Progress { at: late.at + 3000, ..late.clone() };
        heartbeat.look(&later);
        assert!(!heartbeat.is_doubtful() && heartbeat.age() < SILENCE);
        let early = Progress { at: milliseconds_since_epoch() + 60_000, ..progress() };
        assert!(!Heartbeat::new(&early).is_doubtful());
        let gone = Progress { at: 1000, ..progress() };
        assert!(!Heartbeat::new(&gone).is_doubtful(), "no clock is wrong by 50 years");
    }

    #[test]
    fn age_counts_by_the_clock_of_the_store() {
        let hour = 3_600_000;
        for at in [milliseconds_since_epoch() - hour, milliseconds_since_epoch() + hour] {
            let written =
                |seconds| Progress { at, age: Some(Duration::from_secs(seconds)), ..progress() };
            let blocker = |progress: &Progress| there(seen(Some(progress), None), None).1;
            assert_eq!(blocker(&written(3)), None, "it has just been written");
            let silent = written(20);
            assert!(
                matches!(blocker(&silent), Some(Blocker::Reducer(since)) if since.age.as_secs() == 20),
                "{silent:?}"
            );
            assert!(!Heartbeat::new(&silent).is_doubtful(), "no second look is needed");
        }
    }
}
