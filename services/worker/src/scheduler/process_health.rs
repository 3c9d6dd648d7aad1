//! Decides when a process is worn out: after a number of runs or failures, above a limit of memory,
//! or without its GPU. Pure.

use protocol::{GpuSet, JobSpec, Wear};

use super::gpu_fault::GpuFault;

/// A process with more failed mini-batches is replaced, because its state may be corrupt.
pub(super) const FAILURES_MAX: u32 = 10;
/// Failures in a row after which it is replaced, if another process of the node has succeeded in the meantime.
pub(super) const FAILURES_IN_A_ROW_MAX: u32 = 5;

/// How much a process may do and occupy before it is worn out.
#[derive(Clone, Copy, Debug)]
pub(super) struct WearLimits {
    runs: u64,
    /// Resident memory.
    bytes: u64,
}

impl WearLimits {
    pub(super) fn of(spec: &JobSpec) -> Self {
        let limit = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        Self { runs: limit(spec.process_max_runs), bytes: limit(spec.process_max_memory) }
    }
}

/// The runs, failures and memory of a process.
#[derive(Debug)]
pub(super) struct ProcessHealth {
    limits: WearLimits,
    /// Mini-batches that it has answered.
    runs: u64,
    failures: u32,
    failures_in_a_row: u32,
    /// Another process of the node has succeeded since the first of these.
    others_work: bool,
    /// Mini-batches in a row for which the memory of its GPU was too small.
    gpu_full: u32,
    /// Resident memory, as last measured.
    bytes: u64,
    /// The process exceeded the limit of memory before its first run, so a new process would be no
    /// smaller.
    is_exempt: bool,
    wear: Option<Wear>,
}

impl ProcessHealth {
    pub(super) fn new(limits: WearLimits) -> Self {
        Self {
            limits,
            runs: 0,
            failures: 0,
            failures_in_a_row: 0,
            others_work: false,
            gpu_full: 0,
            bytes: 0,
            is_exempt: false,
            wear: None,
        }
    }

    /// Returns why it is worn out.
    pub(super) fn wear(&self) -> Option<&Wear> {
        self.wear.as_ref()
    }

    /// Returns the number of mini-batches that it may still answer.
    pub(super) fn runs_left(&self) -> usize {
        usize::try_from(self.limits.runs.saturating_sub(self.runs)).unwrap_or(usize::MAX)
    }

    /// Returns its resident memory, as last measured, and the limit.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [self.bytes, self.limits.bytes]
    }

    /// Notes its resident memory.
    pub(super) fn measured(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// Notes an answer.
    pub(super) fn answered(&mut self, succeeded: bool) {
        self.runs += 1;
        if succeeded {
            (self.gpu_full, self.failures_in_a_row, self.others_work) = (0, 0, false);
        }
        if self.runs >= self.limits.runs {
            self.wear.get_or_insert(Wear::Runs { runs: self.runs });
        }
        if !succeeded {
            self.failed();
        }
    }

    /// Notes a failure that may be the fault of the process.
    pub(super) fn failed(&mut self) {
        self.failures += 1;
        self.failures_in_a_row += 1;
        self.judge();
    }

    /// Notes that another process of the node has succeeded.
    pub(super) fn other_succeeded(&mut self) {
        if self.failures_in_a_row > 0 {
            self.others_work = true;
            self.judge();
        }
    }

    fn judge(&mut self) {
        let is_worse = self.others_work && self.failures_in_a_row >= FAILURES_IN_A_ROW_MAX;
        if is_worse || self.failures > FAILURES_MAX {
            self.wear.get_or_insert(Wear::Failures { failures: self.failures });
        }
    }

    /// Notes a failure of its GPUs. What the process has kept may fill their memory, so the second such failure in
    /// a row wears it out, and any other failure at once.
    pub(super) fn gpu_failed(&mut self, gpus: GpuSet, fault: GpuFault, is_out: bool) {
        self.gpu_full += u32::from(fault == GpuFault::Memory);
        if is_out || fault != GpuFault::Memory || self.gpu_full > 1 {
            self.wear.get_or_insert(Wear::Gpu { gpus });
        }
    }

    /// Notes that `init()` has returned. Returns whether the process exceeds the limit of memory already.
    pub(super) fn started(&mut self) -> bool {
        self.is_exempt = self.bytes > self.limits.bytes;
        self.is_exempt
    }

    /// Returns whether the memory has worn it out.
    pub(super) fn outgrows(&mut self) -> bool {
        let outgrows = self.bytes > self.limits.bytes && !self.is_exempt && self.wear.is_none();
        if outgrows {
            self.wear =
                Some(Wear::Memory { bytes: self.bytes, limit: self.limits.bytes, runs: self.runs });
        }
        outgrows
    }
}
