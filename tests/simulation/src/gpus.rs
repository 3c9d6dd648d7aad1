//! The GPUs of a simulated node: what fails on them, and whether the scheduler draws the right conclusions.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{Ending, MiniBatchFrame, ProcessEvent};
use worker::scheduler::ProcessId;

use crate::process::GPU_GONE;

/// Different mini-batches that may fail on a GPU before it is taken out of use.
const FAILURES_MAX: usize = 3;

/// What an agent knows about GPUs, to check its scheduler.
#[derive(Default)]
pub(crate) struct Gpus {
    /// The GPU on which every run fails.
    broken: Option<u32>,
    /// Failures do not tell the scheduler about their GPU.
    hides_troubles: bool,
    of: BTreeMap<ProcessId, u32>,
    /// Processes that are about to end.
    leaving: BTreeSet<ProcessId>,
    /// Processes whose answers the scheduler no longer takes, such as after a lost lease.
    killed: BTreeSet<ProcessId>,
    /// The mini-batch of each hand-over.
    handed: BTreeMap<(ProcessId, u64), u64>,
    /// The GPU on which a mini-batch has failed.
    failed_on: BTreeMap<u64, u32>,
    /// Mini-batches that have failed on the broken GPU.
    failed: BTreeSet<u64>,
}

impl Gpus {
    pub fn new(broken: Option<u32>, hides_troubles: bool) -> Self {
        Self { broken, hides_troubles, ..Self::default() }
    }

    pub fn started(&mut self, process: ProcessId, gpu: Option<u32>) {
        self.of.extend(gpu.map(|gpu| (process, gpu)));
    }

    /// The process is about to end.
    pub fn leaves(&mut self, process: ProcessId) {
        self.leaving.insert(process);
    }

    pub fn killed(&mut self, process: ProcessId) {
        self.leaves(process);
        self.killed.insert(process);
    }

    /// Notes a frame before the scheduler gets it.
    pub fn sent(&mut self, process: ProcessId, frame: &mut ProcessEvent) {
        if self.killed.contains(&process) {
            return;
        }
        match frame {
            ProcessEvent::InitFailed { .. } => self.leaves(process),
            ProcessEvent::Answered(Ending { sequence, error: None, .. }) => {
                if let Some(mini_batch) = self.handed.get(&(process, *sequence)) {
                    self.failed_on.remove(mini_batch);
                }
            }
            ProcessEvent::Answered(Ending { sequence, error: Some(error), .. })
                if error.message == GPU_GONE =>
            {
                self.died(process, *sequence, &mut error.message);
            }
            _ => {}
        }
    }

    /// Notes that a process has failed in a hand-over, or died (0: in none), and completes the text of the failure.
    pub fn died(&mut self, process: ProcessId, sequence: u64, text: &mut String) {
        let Some(gpu) = self.of.get(&process).copied() else { return };
        let mini_batch = self.handed.get(&(process, sequence)).copied();
        self.failed_on.extend(mini_batch.map(|mini_batch| (mini_batch, gpu)));
        if self.broken == Some(gpu) {
            self.failed.extend(mini_batch);
            let told = if self.hides_troubles { "" } else { GPU_GONE };
            told.clone_into(text);
        }
    }

    /// Notes a hand-over, and returns the rule that it breaks.
    pub fn handed(&mut self, process: ProcessId, frame: &MiniBatchFrame) -> Option<&'static str> {
        let gpu = self.of.get(&process).copied()?;
        self.handed.insert((process, frame.sequence), frame.mini_batch);
        if self.broken == Some(gpu) && self.failed.len() >= FAILURES_MAX {
            return Some("a GPU that keeps failing is taken out of use");
        }
        let has_failed_here = self.failed_on.get(&frame.mini_batch) == Some(&gpu);
        let has_another =
            |(id, other): (&ProcessId, &u32)| *other != gpu && !self.leaving.contains(id);
        let is_broken = has_failed_here && self.of.iter().any(has_another);
        is_broken.then_some("a mini-batch that failed on a GPU is tried elsewhere next")
    }
}
