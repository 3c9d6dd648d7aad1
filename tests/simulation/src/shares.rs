//! What the jobs of a simulated node have of it: whether the node divides its processes by weight, whether an agent
//! keeps to its share, and whether a GPU belongs to one job at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use protocol::Priority;
use queue::View;
use tokio::sync::watch;
use worker::Stop;
use worker::parts::Allotment;
use worker::roster::Share;
use worker::scheduler::{InUse, ProcessId};

/// A job that an agent works on.
struct Working {
    priority: Priority,
    /// Processes of a node that it may have.
    most: u32,
    view: Arc<View>,
    stop: watch::Receiver<Stop>,
    share: watch::Receiver<Share>,
}

/// The jobs of a node. They all want the same number of processes.
#[derive(Clone, Default)]
pub(crate) struct Shares {
    working: Arc<Mutex<BTreeMap<String, Working>>>,
    pub gpus: GpusInUse,
}

/// The processes of a node that may use GPUs, with their jobs.
#[derive(Clone, Default)]
pub(crate) struct GpusInUse(Arc<Mutex<GpusOfProcesses>>);

/// GPUs by job and process.
type GpusOfProcesses = BTreeMap<(String, ProcessId), Vec<u32>>;

impl GpusInUse {
    /// A process starts. Returns whether a process of another job may use one of its GPUs.
    pub fn started(&self, job_id: &str, process: ProcessId, gpus: Vec<u32>) -> bool {
        let mut processes = self.0.lock().expect("no holder panics");
        let of_others = processes.iter().filter(|((other, _), _)| other != job_id).flat_map(|(_, gpus)| gpus);
        let is_shared = of_others.into_iter().any(|gpu| gpus.contains(gpu));
        processes.insert((job_id.to_owned(), process), gpus);
        is_shared
    }

    pub fn ended(&self, job_id: &str, process: ProcessId) {
        self.0.lock().expect("no holder panics").remove(&(job_id.to_owned(), process));
    }

    fn all_ended(&self, job_id: &str) {
        self.0.lock().expect("no holder panics").retain(|(job, _), _| job != job_id);
    }
}

impl Shares {
    pub fn begin(
        &self,
        job_id: &str,
        (priority, most): (Priority, u32),
        view: Arc<View>,
        stop: watch::Receiver<Stop>,
        share: watch::Receiver<Share>,
    ) {
        let working = Working { priority, most, view, stop, share };
        self.working.lock().expect("no holder panics").insert(job_id.to_owned(), working);
    }

    pub fn end(&self, job_id: &str) {
        self.working.lock().expect("no holder panics").remove(job_id);
        self.gpus.all_ended(job_id);
    }

    /// Returns the number of jobs that agents work on.
    pub fn jobs(&self) -> usize {
        self.working.lock().expect("no holder panics").len()
    }

    /// Returns what is unfair, for a node that divides this many processes and has just looked which jobs have work: a rule
    /// and what breaks it.
    pub fn unfair(&self, processes: u32) -> Option<(&'static str, String)> {
        let jobs = self.working.lock().expect("no holder panics");
        let has_work = |job: &&Working| job.view.quiet_since().is_none() && *job.stop.borrow() == Stop::No;
        let share = |job: &Working| (job.priority.weight(), job.share.borrow().processes, job.most);
        let shares = jobs.values().filter(has_work).map(share);
        // A job that makes room for others has none.
        let shares: Vec<(u32, u32, u32)> = shares.filter(|(_, share, _)| *share > 0).collect();
        let sum: u32 = shares.iter().map(|(_, share, _)| share).sum();
        let is_behind = |(weight, share, most): &(u32, u32, u32)| {
            let of_other = |(other, others, _): &(u32, u32, u32)| {
                weight > other && share < others || weight == other && share + 1 < *others
            };
            share < most && shares.iter().any(of_other)
        };
        let is_unfair = sum > processes.max(shares.len() as u32) || shares.iter().any(is_behind);
        let rule = if shares.iter().any(|(_, share, most)| share > most) {
            "a job has no more of a node than its max_share"
        } else if is_unfair {
            "jobs with work divide a node by weight"
        } else {
            return None;
        };
        Some((rule, format!("weights, processes and the most are {shares:?}")))
    }
}

/// The share of one agent.
pub(crate) struct OwnShare {
    allotment: Allotment,
    received: Share,
    /// Living processes that have been handed a mini-batch under this share.
    handed: BTreeSet<ProcessId>,
}

impl OwnShare {
    pub fn new(mut allotment: Allotment) -> Self {
        let received = allotment.share();
        Self { allotment, received, handed: BTreeSet::new() }
    }

    /// Returns the share that was received last.
    pub fn last(&self) -> Share {
        self.received.clone()
    }

    /// Returns the share if it has changed.
    pub fn changed(&mut self) -> Option<Share> {
        let share = self.allotment.share();
        if share == self.received {
            return None;
        }
        self.received = share.clone();
        self.handed.clear();
        Some(share)
    }

    /// Waits for a change.
    pub async fn wait(&self) {
        let changed = self.allotment.clone().next().await;
        drop(changed);
    }

    pub fn report(&self, in_use: InUse) {
        self.allotment.report(in_use);
    }

    pub fn forget(&mut self, process: ProcessId) {
        self.handed.remove(&process);
    }

    /// Notes a hand-over. Returns whether more processes have mini-batches than may.
    pub fn handed(&mut self, process: ProcessId) -> bool {
        self.handed.insert(process);
        self.handed.len() > self.received.processes as usize
    }
}
