//! Processes that wear out: after a number of runs or failures, or above a limit of memory. Pure.
//!
//! A worn-out process gets no more mini-batches. The scheduler takes back those that it has not started, for other
//! processes, and asks it to exit once it has answered the rest. So a replacement interrupts no run, spends no try, and
//! loses nothing that was prepared.

use protocol::{JobSpec, Wear, memory};

use super::gpus::Trouble;
use super::process::{Life, Process};
use super::{ProcessId, Scheduler};

/// Failed mini-batches after which a process is replaced, because its state may be corrupt.
pub(super) const FAILURES_MAX: u32 = 10;

/// How much a process may do and occupy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    runs: u64,
    /// Resident memory.
    bytes: u64,
}

impl Limits {
    pub(super) fn of(spec: &JobSpec) -> Self {
        let limit = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        Self { runs: limit(spec.process_max_runs), bytes: limit(spec.process_max_memory) }
    }
}

/// What a process has done and occupies.
#[derive(Debug, Default)]
pub(super) struct Condition {
    /// Mini-batches that it has answered.
    runs: u64,
    failures: u32,
    /// Mini-batches in a row for which the memory of its GPU was too small.
    gpu_full: u32,
    /// Resident memory, as last measured.
    bytes: u64,
    /// It exceeded the limit of memory before its first run, so a new process would be no smaller.
    is_exempt: bool,
    wear: Option<Wear>,
}

impl Condition {
    /// Returns why it is worn out.
    pub(super) fn wear(&self) -> Option<&Wear> {
        self.wear.as_ref()
    }

    /// Notes an answer.
    pub(super) fn answered(&mut self, succeeded: bool, limits: Limits) {
        self.runs += 1;
        if succeeded {
            self.gpu_full = 0;
        }
        if self.runs >= limits.runs {
            self.wear.get_or_insert(Wear::Runs { runs: self.runs });
        }
        if !succeeded {
            self.failed();
        }
    }

    /// Notes a failure that may be the fault of the process.
    pub(super) fn failed(&mut self) {
        self.failures += 1;
        if self.failures > FAILURES_MAX {
            self.wear.get_or_insert(Wear::Failures { failures: self.failures });
        }
    }

    /// Notes a failure of its GPU. What the process has kept may fill the memory of the GPU, so the second such failure in
    /// a row wears it out, and any other failure at once.
    pub(super) fn gpu_failed(&mut self, gpu: u32, trouble: Trouble, is_out: bool) {
        self.gpu_full += u32::from(trouble == Trouble::Memory);
        if is_out || trouble != Trouble::Memory || self.gpu_full > 1 {
            self.wear.get_or_insert(Wear::Gpu { gpu });
        }
    }

    /// Notes that `init()` has returned. Returns whether the process exceeds the limit of memory already.
    fn started(&mut self, limits: Limits) -> bool {
        self.is_exempt = self.bytes > limits.bytes;
        self.is_exempt
    }

    /// Returns whether the memory has worn it out.
    fn outgrows(&mut self, limits: Limits) -> bool {
        let outgrows = self.bytes > limits.bytes && !self.is_exempt && self.wear.is_none();
        if outgrows {
            self.wear = Some(Wear::Memory { bytes: self.bytes, limit: limits.bytes, runs: self.runs });
        }
        outgrows
    }
}

impl Process {
    /// Whether it is worn out, and another process is to start now. `has_work`: the node holds work that no process has.
    pub(super) fn is_to_be_replaced(&self, has_work: bool) -> bool {
        match self.condition.wear() {
            None => false,
            // The last process of a job needs no replacement.
            Some(Wear::Runs { .. } | Wear::Memory { .. }) => has_work,
            // Its mini-batch is tried again.
            Some(Wear::Failures { .. } | Wear::Gpu { .. } | Wear::Other) => true,
        }
    }

    /// Returns the number of mini-batches to hand over now.
    pub(super) fn wanted(&self, limits: Limits) -> usize {
        self.pipe.wanted().min(self.runs_left(limits).saturating_sub(self.pipe.len()))
    }

    /// Returns the number of mini-batches that the process should hold.
    pub(super) fn depth(&self, limits: Limits) -> usize {
        self.pipe.depth().min(self.runs_left(limits)).max(1)
    }

    fn runs_left(&self, limits: Limits) -> usize {
        usize::try_from(limits.runs.saturating_sub(self.condition.runs)).unwrap_or(usize::MAX)
    }
}

impl Scheduler {
    /// Notes the resident memory of a process, before the frames that it has sent.
    pub(super) fn measured(&mut self, id: ProcessId, bytes: u64) {
        let limits = self.limits;
        let Some(process) = self.process_mut(id) else { return };
        process.condition.bytes = bytes;
        if matches!(process.life, Life::Working) && process.condition.outgrows(limits) {
            self.recall(id);
        }
    }

    /// Notes that `init()` of a process has returned. If even this process exceeds the limit of memory, replacing it
    /// would not end: returns what to tell users, once for a node.
    pub(super) fn fresh(&mut self, id: ProcessId) -> String {
        let limits = self.limits;
        let Some(process) = self.process_mut(id) else { return String::new() };
        if !process.condition.started(limits) || std::mem::replace(&mut self.has_told_memory, true) {
            return String::new();
        }
        let occupied = self.process(id).map_or(0, |process| process.condition.bytes);
        let notice = format!(
            "process_max_memory is {}, and {} occupies {} after init() already: a new process would be no smaller, so \
             node {} does not replace such processes; raise process_max_memory",
            memory(limits.bytes),
            id.name(),
            memory(occupied),
            self.config.node
        );
        self.log("WARNING", notice.clone());
        notice
    }
}

/// Returns how important it is that a process is replaced.
pub(super) fn level(wear: &Wear) -> &'static str {
    match wear {
        // The limit leaves no room for the work of one mini-batch.
        Wear::Memory { runs: 0..=1, .. } => "WARNING",
        Wear::Runs { .. } | Wear::Memory { .. } => "INFO",
        Wear::Failures { .. } | Wear::Gpu { .. } | Wear::Other => "WARNING",
    }
}
