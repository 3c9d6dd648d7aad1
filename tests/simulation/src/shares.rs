//! What the jobs of a simulated node have of it: whether the node divides its processes by weight, and whether an agent
//! keeps to its share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use protocol::Priority;
use queue::View;
use tokio::sync::watch;
use worker::Stop;
use worker::roster::Share;
use worker::scheduler::ProcessId;

/// A job that an agent works on.
struct Working {
    priority: Priority,
    view: Arc<View>,
    stop: watch::Receiver<Stop>,
    share: watch::Receiver<Share>,
}

/// The jobs of a node. They all want the same number of processes.
#[derive(Clone, Default)]
pub(crate) struct Shares(Arc<Mutex<BTreeMap<String, Working>>>);

impl Shares {
    pub fn begin(
        &self,
        job_id: &str,
        priority: Priority,
        view: Arc<View>,
        stop: watch::Receiver<Stop>,
        share: watch::Receiver<Share>,
    ) {
        let working = Working { priority, view, stop, share };
        self.0.lock().expect("no holder panics").insert(job_id.to_owned(), working);
    }

    pub fn end(&self, job_id: &str) {
        self.0.lock().expect("no holder panics").remove(job_id);
    }

    /// Returns what is unfair, for a node that divides this many processes and has just looked which jobs have work.
    pub fn unfair(&self, processes: u32) -> Option<String> {
        let jobs = self.0.lock().expect("no holder panics");
        let has_work = |job: &&Working| job.view.quiet_since().is_none() && *job.stop.borrow() == Stop::No;
        let shares = jobs.values().filter(has_work).map(|job| (job.priority.weight(), job.share.borrow().processes));
        let shares: Vec<(u32, u32)> = shares.collect();
        let sum: u32 = shares.iter().map(|(_, share)| share).sum();
        let is_behind = |(weight, share): &(u32, u32)| {
            let of_other = |(other, others): &(u32, u32)| {
                weight > other && share < others || weight == other && share + 1 < *others
            };
            *share == 0 || shares.iter().any(of_other)
        };
        let is_unfair = sum > processes.max(shares.len() as u32) || shares.iter().any(is_behind);
        is_unfair.then(|| format!("weights and processes are {shares:?}"))
    }
}

/// The share of one agent.
pub(crate) struct OwnShare {
    received: watch::Receiver<Share>,
    allowed: u32,
    /// Living processes that have been handed a mini-batch under this share.
    handed: BTreeSet<ProcessId>,
}

impl OwnShare {
    pub fn new(mut received: watch::Receiver<Share>) -> Self {
        let allowed = received.borrow_and_update().processes;
        Self { received, allowed, handed: BTreeSet::new() }
    }

    /// Returns the share if it has changed.
    pub fn changed(&mut self) -> Option<Share> {
        if !self.received.has_changed().unwrap_or(false) {
            return None;
        }
        let share = self.received.borrow_and_update().clone();
        self.allowed = share.processes;
        self.handed.clear();
        Some(share)
    }

    /// Waits for a change.
    pub async fn wait(&self) {
        if self.received.clone().changed().await.is_err() {
            std::future::pending().await
        }
    }

    pub fn forget(&mut self, process: ProcessId) {
        self.handed.remove(&process);
    }

    /// Notes a hand-over. Returns whether more processes have mini-batches than may.
    pub fn handed(&mut self, process: ProcessId) -> bool {
        self.handed.insert(process);
        self.handed.len() > self.allowed as usize
    }
}
