//! Runs of user code in progress on all nodes, against `max_in_flight` of their owners and `node_count` of their jobs.
//!
//! The limits hold for nodes that the others can see by their entries in the store. A node that could not renew its entry,
//! or was frozen, ends the runs that it has begun beside those of the nodes that have got its processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use protocol::Quotas;
use storage::WORKER_PERIOD;
use tokio::time::Instant;

use crate::job::Job;

/// How long an entry counts.
const ENTRY_LASTS: Duration = WORKER_PERIOD.saturating_mul(3);

#[derive(Debug, Default)]
pub(crate) struct Runs {
    quotas: Quotas,
    /// How long after it is seen again a node counts: a planner may have looked before.
    slack: Duration,
    fleet: Mutex<Fleet>,
}

#[derive(Debug, Default)]
struct Fleet {
    entries: BTreeMap<String, Entry>,
    runs: BTreeMap<u64, Running>,
    last_run: u64,
}

/// The entry of a node.
#[derive(Debug)]
struct Entry {
    written_at: Instant,
    /// When it was written after it had not counted for a while.
    seen_again_at: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    job: u64,
    owner: String,
    node: String,
    began: Instant,
}

/// A run in progress, until this is dropped.
#[derive(Debug)]
pub(crate) struct Run {
    of: Arc<Runs>,
    number: u64,
}

impl Runs {
    pub fn new(quotas: Quotas, slack: Duration) -> Arc<Self> {
        Arc::new(Self { quotas, slack, fleet: Mutex::default() })
    }

    fn fleet(&self) -> MutexGuard<'_, Fleet> {
        self.fleet.lock().expect("no holder panics")
    }

    /// A node has written its entry.
    pub fn entered(&self, node: &str) {
        let (mut fleet, now) = (self.fleet(), Instant::now());
        let entry = fleet
            .entries
            .entry(node.to_owned())
            .or_insert(Entry { written_at: now, seen_again_at: None });
        if now - entry.written_at >= ENTRY_LASTS {
            entry.seen_again_at = Some(now);
        }
        entry.written_at = now;
    }

    /// The entry of a node was removed.
    pub fn left(&self, node: &str) {
        self.fleet().entries.remove(node);
    }

    /// A job has ended. What still runs of it is of no use, and counts no longer.
    pub fn ended(&self, job: &Job) {
        self.fleet().runs.retain(|_, run| run.job != job.number);
    }

    /// A run begins. Returns the limit that it exceeds.
    pub fn began(self: &Arc<Self>, job: &Job, node: &str) -> (Run, Option<(&'static str, String)>) {
        let mut fleet = self.fleet();
        fleet.last_run += 1;
        let number = fleet.last_run;
        let run = Running {
            job: job.number,
            owner: job.owner.clone(),
            node: node.to_owned(),
            began: Instant::now(),
        };
        fleet.runs.insert(number, run);
        let in_flight = fleet.seen(self.slack).filter(|run| run.owner == job.owner).count();
        let nodes: BTreeSet<&String> = fleet
            .seen(self.slack)
            .filter(|run| run.job == job.number)
            .map(|run| &run.node)
            .collect();
        let too_many =
            self.quotas.of(&job.owner).max_in_flight.filter(|limit| in_flight > *limit as usize);
        let broken = if let Some(limit) = too_many {
            let detail = format!("{} may have {limit}: {:?}", job.owner, fleet.runs);
            Some(("no more of an owner is in flight than its quota", detail))
        } else if job.node_count.is_some_and(|count| nodes.len() > count as usize) {
            Some((
                "a job runs on no more nodes than its node_count",
                format!("{} runs on {nodes:?}", job.id()),
            ))
        } else {
            None
        };
        (Run { of: self.clone(), number }, broken)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.of.fleet().runs.remove(&self.number);
    }
}

impl Fleet {
    /// Returns the runs that began on nodes while the others could see these.
    fn seen(&self, slack: Duration) -> impl Iterator<Item = &Running> {
        self.runs.values().filter(move |run| {
            self.entries.get(&run.node).is_some_and(|entry| {
                entry.written_at.elapsed() < ENTRY_LASTS
                    && entry
                        .seen_again_at
                        .is_none_or(|seen_again_at| run.began >= seen_again_at + slack)
            })
        })
    }
}
