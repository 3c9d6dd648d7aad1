//! A Python process: its life, and the mini-batches in its pipe.

use std::time::{Duration, Instant};

use protocol::{AttemptStatus, Ending, GpuSet, SlotPhase};

use super::condition::{Condition, WearLimits};
use super::pipe::Pipe;

/// Names one process of a node: the slot, which its successor takes over, and the number among all processes that the
/// node has ever started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    pub slot: usize,
    pub number: u32,
}

impl ProcessId {
    pub fn name(self) -> String {
        format!("process{:03}", self.number)
    }
}

pub(super) struct Process {
    pub(super) id: ProcessId,
    pub(super) name: String,
    pub(super) life: Life,
    pub(super) pipe: Pipe,
    pub(super) condition: Condition,
    /// The job may have fewer processes now, and no other follows this one.
    pub(super) is_surplus: bool,
    /// The GPUs that it is assigned.
    pub(super) gpus: Option<GpuSet>,
    /// Without one of its own, on a node that jobs share: the GPUs that it sees.
    pub(super) sees: Vec<u32>,
    /// A GPU of it is to go to another job.
    pub(super) is_displaced: bool,
    /// What users should know about it when it ends.
    pub(super) notice: String,
    /// Exit status, or minus the signal.
    pub(super) code: i32,
    pub(super) started: Instant,
    /// When a long phase was last reported.
    pub(super) noticed: Option<Instant>,
    pub(super) stacks: Option<StacksFor>,
}

/// The state of a process between its start and its end.
pub(super) enum Life {
    /// `init()` has not returned.
    Starting,
    /// It has reported that the script or `init()` failed, and exits.
    InitFailed,
    /// It accepts mini-batches: busy while its pipe holds any, otherwise idle.
    Working,
    /// It was asked to call `shutdown()` and to exit.
    Finishing { since: Instant },
    /// It was killed: a mini-batch took too long, or damaged the connection, or none is to blame.
    Killed(Verdict),
    /// It has ended, and the agent examines it.
    Ended(Verdict),
}

/// The meaning of the end of a process.
pub(super) enum Verdict {
    /// A mini-batch failed, with an error if the engine killed the process.
    Failed(Box<Ending>),
    /// The process did not start, for this reason if the engine killed it.
    NotStarted { reason: Option<String> },
    /// It died between two mini-batches.
    DiedIdle,
    /// The engine ended it, or it has reported the cause.
    Expected,
}

/// A request for the stacks of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct StacksFor {
    pub(super) phase: SlotPhase,
    pub(super) sequence: u64,
    pub(super) then: Then,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    /// Report that the phase takes long.
    Notice { elapsed: Duration },
    /// Kill the process: the hand-over has exceeded its limit.
    Kill,
}

impl Process {
    pub(super) fn starting(
        id: ProcessId,
        gpus: Option<GpuSet>,
        sees: Vec<u32>,
        limits: WearLimits,
        started: Instant,
    ) -> Self {
        Self {
            id,
            name: id.name(),
            life: Life::Starting,
            pipe: Pipe::default(),
            condition: Condition::new(limits),
            is_surplus: false,
            gpus,
            sees,
            is_displaced: false,
            notice: String::new(),
            code: 0,
            started,
            noticed: None,
            stacks: None,
        }
    }

    /// Returns the GPUs that it may use.
    pub(super) fn visible_gpus(&self) -> impl Iterator<Item = &u32> {
        self.gpus.iter().flat_map(GpuSet::numbers).chain(&self.sees)
    }

    /// Takes note that `init()` has returned or failed.
    pub(super) fn init_ended(&mut self, life: Life) {
        match self.life {
            Life::Starting => self.life = life,
            // Count one failed start, not two.
            Life::Killed(Verdict::NotStarted { .. }) => self.life = Life::Killed(Verdict::Expected),
            _ => {}
        }
    }

    pub(super) fn is_killed(&self) -> bool {
        matches!(self.life, Life::Killed(_) | Life::Ended(_))
    }

    pub(super) fn is_worn_out(&self) -> bool {
        self.condition.wear().is_some()
    }

    pub(super) fn takes_work(&self) -> bool {
        matches!(self.life, Life::Working)
            && !self.is_worn_out()
            && !self.is_surplus
            && !self.is_displaced
    }

    /// Returns the meaning of its end while the node works. `phase` and `sequence` are its last ones.
    pub(super) fn verdict(&mut self, phase: SlotPhase, sequence: u64) -> Verdict {
        let in_mini_batch = matches!(phase, SlotPhase::Load | SlotPhase::Run | SlotPhase::Report);
        match std::mem::replace(&mut self.life, Life::Ended(Verdict::Expected)) {
            Life::Starting => Verdict::NotStarted { reason: None },
            Life::Killed(verdict) => verdict,
            Life::Working | Life::Finishing { .. } if in_mini_batch => {
                Verdict::Failed(Box::new(Ending {
                    sequence,
                    status: AttemptStatus::ProcessDied,
                    ..Ending::empty()
                }))
            }
            Life::Working => Verdict::DiedIdle,
            Life::InitFailed | Life::Finishing { .. } | Life::Ended(_) => Verdict::Expected,
        }
    }
}
