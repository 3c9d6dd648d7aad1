//! What the jobs of a simulated node have of it: whether an agent keeps to its share, and whether a GPU belongs to one job
//! at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use worker::scheduler::{AgentAllocation, AllocationReport, ProcessId};
use worker::simulation_api::AgentLink;

/// The processes of a node that may use GPUs, with their jobs.
#[derive(Clone, Default)]
pub(crate) struct GpusInUse(Arc<Mutex<GpusOfProcesses>>);

/// GPUs by job and process.
type GpusOfProcesses = BTreeMap<(String, ProcessId), Vec<u32>>;

impl GpusInUse {
    /// A process starts. Returns whether a process of another job may use one of its GPUs.
    pub fn started(&self, job_id: &str, process: ProcessId, gpus: Vec<u32>) -> bool {
        let mut processes = self.0.lock().expect("no holder panics");
        let of_others =
            processes.iter().filter(|((other, _), _)| other != job_id).flat_map(|(_, gpus)| gpus);
        let is_shared = of_others.into_iter().any(|gpu| gpus.contains(gpu));
        processes.insert((job_id.to_owned(), process), gpus);
        is_shared
    }

    pub fn ended(&self, job_id: &str, process: ProcessId) {
        self.0.lock().expect("no holder panics").remove(&(job_id.to_owned(), process));
    }

    pub fn all_ended(&self, job_id: &str) {
        self.0.lock().expect("no holder panics").retain(|(job, _), _| job != job_id);
    }
}

/// The share of one agent.
pub(crate) struct CheckedAllocation {
    agent_link: AgentLink,
    received: AgentAllocation,
    /// Living processes that have been handed a mini-batch under this share.
    handed: BTreeSet<ProcessId>,
}

impl CheckedAllocation {
    pub fn new(mut agent_link: AgentLink) -> Self {
        let received = agent_link.allocation();
        Self { agent_link, received, handed: BTreeSet::new() }
    }

    /// Returns the share that was received last.
    pub fn last(&self) -> AgentAllocation {
        self.received.clone()
    }

    /// Returns the share if it has changed.
    pub fn changed(&mut self) -> Option<AgentAllocation> {
        let allocation = self.agent_link.allocation();
        if allocation == self.received {
            return None;
        }
        self.received = allocation.clone();
        self.handed.clear();
        Some(allocation)
    }

    /// Waits for a change.
    pub async fn wait(&self) {
        let changed = self.agent_link.clone().next().await;
        drop(changed);
    }

    pub fn report(&self, in_use: AllocationReport) {
        self.agent_link.report(in_use);
    }

    /// Tells the node how many mini-batches the agent holds.
    pub fn tell_held(&self, held: u64) {
        self.agent_link
            .activity()
            .send_if_modified(|known| std::mem::replace(&mut known.held, held) != held);
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
