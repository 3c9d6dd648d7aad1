//! Replaces processes that are worn out ([`ProcessHealth`](super::process_health::ProcessHealth)). Pure.
//!
//! A worn-out process gets no more mini-batches. The scheduler takes back those that it has not started, for other
//! processes, and asks it to exit once it has answered the rest. So a replacement interrupts no run, spends no try, and
//! loses nothing that was prepared.

use protocol::{Wear, memory};

use super::process::{Process, ProcessState};
use super::{ProcessId, Scheduler};

impl Process {
    /// Whether it is worn out, and another process is to start now. `has_work`: the node holds work that no process has.
    pub(super) fn is_to_be_replaced(&self, has_work: bool) -> bool {
        match self.health.wear() {
            None => false,
            // The last process of a job needs no replacement.
            Some(Wear::Runs { .. } | Wear::Memory { .. }) => has_work,
            // Its mini-batch is tried again.
            Some(Wear::Failures { .. } | Wear::Gpu { .. } | Wear::Other) => true,
        }
    }

    /// Returns the number of mini-batches to hand over now.
    pub(super) fn wanted(&self) -> usize {
        self.pipe.wanted().min(self.health.runs_left().saturating_sub(self.pipe.len()))
    }

    /// Returns the number of mini-batches that the process should hold.
    pub(super) fn depth(&self) -> usize {
        self.pipe.depth().min(self.health.runs_left()).max(1)
    }
}

impl Scheduler {
    /// Notes the resident memory of a process, before the frames that it has sent.
    pub(super) fn measured(&mut self, id: ProcessId, bytes: u64) {
        let Some(process) = self.processes.get_mut(id) else { return };
        process.health.measured(bytes);
        if matches!(process.state, ProcessState::Working) && process.health.outgrows() {
            self.recall(id);
        }
    }

    /// Notes that `init()` of a process has returned. If even this process exceeds the limit of memory, replacing it
    /// would not end: returns what to tell users, once for a node.
    pub(super) fn fresh(&mut self, id: ProcessId) -> String {
        let Some(process) = self.processes.get_mut(id) else { return String::new() };
        if !process.health.started() || !self.notices.low_memory_limit() {
            return String::new();
        }
        let [occupied, limit] = process.health.bytes();
        let notice = format!(
            "process_max_memory is {}, and {} occupies {} after init() already: a new process would be no smaller, so \
             node {} does not replace such processes; raise process_max_memory",
            memory(limit),
            id.name(),
            memory(occupied),
            self.config.node
        );
        self.log("WARNING", notice.clone());
        notice
    }
}

/// Returns the log level for the replacement of a process.
pub(super) fn level(wear: &Wear) -> &'static str {
    match wear {
        // The limit leaves no room for the work of one mini-batch.
        Wear::Memory { runs: 0..=1, .. } => "WARNING",
        Wear::Runs { .. } | Wear::Memory { .. } => "INFO",
        Wear::Failures { .. } | Wear::Gpu { .. } | Wear::Other => "WARNING",
    }
}
