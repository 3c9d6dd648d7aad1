//! The rules of every schedule that a reducer commits: it keeps to the limits of jobs, gives nothing twice, and divides
//! each node fairly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use protocol::{Allocation, Schedule};
use tokio::time::Instant;

use super::JobWitness;
use super::items::hash_of;
use crate::job::SLOTS;

type Jobs = BTreeMap<String, Arc<JobWitness>>;

#[derive(Debug)]
pub(super) struct Schedules {
    /// Whether owners have limits in flight, which delay what a job gains.
    has_limits_in_flight: bool,
    /// How old what a planner knows may be.
    lag: Duration,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    last: Schedule,
    hashes: BTreeMap<u64, u64>,
    /// When each role first read that the plan of a job is complete.
    plans: BTreeMap<(String, String), Instant>,
}

impl Schedules {
    pub fn new(has_limits_in_flight: bool, lag: Duration) -> Self {
        Self { has_limits_in_flight, lag, known: Mutex::default() }
    }

    /// Returns the last schedule.
    pub fn last(&self) -> Schedule {
        self.known.lock().expect("no holder panics").last.clone()
    }

    /// A role has read that the plan of a job is complete.
    pub fn has_read_plan(&self, role: &str, job_id: &str) {
        let mut known = self.known.lock().expect("no holder panics");
        known.plans.entry((role.to_owned(), job_id.to_owned())).or_insert_with(Instant::now);
    }

    /// A role has committed a schedule. Returns the rule that it breaks.
    pub fn committed(&self, bytes: &[u8], by: &str, jobs: &Jobs) -> Option<(&'static str, String)> {
        let schedule: Schedule = serde_json::from_slice(bytes).expect("a schedule");
        let mut known = self.known.lock().expect("no holder panics");
        tracing::info!("schedule {} by {by}: {}", schedule.number, words(&schedule));
        let former = known.hashes.insert(schedule.number, hash_of(bytes));
        if former.is_some_and(|former| former != hash_of(bytes)) {
            return Some((
                "a schedule is committed once",
                format!("{} was overwritten", schedule.number),
            ));
        }
        let broken = gives_too_much(&schedule, jobs).or_else(|| {
            let knows_plan = |job_id: &str| {
                let key = (by.to_owned(), job_id.to_owned());
                known.plans.get(&key).is_some_and(|at| at.elapsed() > self.lag)
            };
            let (one, other) =
                unfair(&schedule, jobs, knows_plan).filter(|_| !self.has_limits_in_flight)?;
            let detail = format!("{one} has too little beside {other}: {:?}", schedule.allocations);
            Some(("jobs with work divide a node by weight", detail))
        });
        if schedule.number > known.last.number {
            known.last = schedule;
        }
        broken
    }
}

/// Returns the limit that a schedule exceeds.
fn gives_too_much(schedule: &Schedule, jobs: &Jobs) -> Option<(&'static str, String)> {
    let mut gpus = BTreeSet::new();
    let mut given = BTreeSet::new();
    let mut slots: BTreeMap<&str, u32> = BTreeMap::new();
    let mut nodes: BTreeMap<&str, u32> = BTreeMap::new();
    for allocation in &schedule.allocations {
        let Allocation { node, job_id, processes, gpus: own } = allocation;
        let job = &jobs[job_id].job;
        *slots.entry(node).or_default() += processes;
        *nodes.entry(job_id).or_default() += 1;
        let rule = if own.iter().any(|gpu| !gpus.insert((node, *gpu))) {
            "a schedule gives each GPU to one job"
        } else if *processes > job.processes_max() {
            "a job has no more of a node than its max_share"
        } else if job.node_count.is_some_and(|count| nodes[job_id.as_str()] > count) {
            "a job has no more nodes than its node_count"
        } else if !given.insert((node, job_id)) || slots[node.as_str()] > SLOTS {
            "a schedule gives nothing twice"
        } else {
            continue;
        };
        return Some((rule, format!("{allocation:?} in {:?}", schedule.allocations)));
    }
    None
}

/// Returns a job that has too little by its weight on a node that it could use more of, and one that has too much.
fn unfair<'a>(
    schedule: &'a Schedule,
    jobs: &Jobs,
    knows_plan: impl Fn(&str) -> bool,
) -> Option<(&'a str, &'a str)> {
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for allocation in &schedule.allocations {
        *totals.entry(&allocation.job_id).or_default() += u64::from(allocation.processes);
    }
    for own in &schedule.allocations {
        let (job, total) = (&jobs[&own.job_id], totals[own.job_id.as_str()]);
        let has_enough = own.processes >= job.job.processes_max() || job.untried() <= total;
        // GPUs and failures may leave a job less of a node.
        if has_enough || job.job.gpus > 0 || !knows_plan(&own.job_id) {
            continue;
        }
        for other in schedule.allocations.iter().filter(|other| other.node == own.node) {
            let of_other = totals[other.job_id.as_str()];
            let weight = |job_id: &str| u64::from(jobs[job_id].job.priority.weight());
            let has_too_much =
                weight(&own.job_id) * (2 * of_other - 1) > weight(&other.job_id) * (2 * total + 1);
            if own.job_id != other.job_id && of_other > 1 && has_too_much {
                return Some((&own.job_id, &other.job_id));
            }
        }
    }
    None
}

/// Returns what a schedule says, for the log.
fn words(schedule: &Schedule) -> String {
    let given = schedule.allocations.iter().map(|Allocation { node, job_id, processes, gpus }| {
        let gpus = if gpus.is_empty() { String::new() } else { format!(" {gpus:?}") };
        format!("{job_id} has {processes}{gpus} of {node}")
    });
    let waiting = schedule
        .jobs
        .iter()
        .filter_map(|job| Some(format!("{} waits: {}", job.job_id, job.waits_for.as_ref()?)));
    given.chain(waiting).collect::<Vec<_>>().join("; ")
}
