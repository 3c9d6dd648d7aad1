//! A Python process: its state, and the mini-batches in its pipe.

use std::time::{Duration, Instant};

use protocol::{AttemptStatus, Ending, GpuSet, SlotPhase};

use super::pipe::Pipe;
use super::process_health::{ProcessHealth, WearLimits};

/// Identifies a process of a node by its slot, which its successor takes over, and by its number
/// among all processes that the node has started.
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
    pub(super) state: ProcessState,
    pub(super) pipe: Pipe,
    pub(super) health: ProcessHealth,
    /// The job may have fewer processes now, and no other follows this one.
    pub(super) is_surplus: bool,
    /// The GPUs that it is assigned.
    pub(super) gpus: Option<GpuSet>,
    /// Without one of its own, on a node that jobs share: the GPUs that it sees.
    pub(super) sees: Vec<u32>,
    /// A GPU of it is to go to another job.
    pub(super) is_displaced: bool,
    /// A notice for users at its end.
    pub(super) notice: String,
    /// Exit status, or minus the signal.
    pub(super) code: i32,
    pub(super) started: Instant,
    /// When a long phase was last reported.
    pub(super) noticed: Option<Instant>,
    pub(super) stacks: Option<StackRequest>,
}

/// The state of a process between its start and its end.
pub(super) enum ProcessState {
    /// `init()` has not returned.
    Starting,
    /// It has reported that the script or `init()` failed, and exits.
    InitFailed,
    /// It accepts mini-batches: busy while its pipe holds any, otherwise idle.
    Working,
    /// It was asked to call `shutdown()` and to exit.
    Finishing { since: Instant },
    /// It was killed: a mini-batch took too long, or damaged the connection, or none is to blame.
    Killed(ExitKind),
    /// It has ended, and the agent examines it.
    Ended(ExitKind),
}

/// The kind of an exit of a process.
pub(super) enum ExitKind {
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
pub(super) struct StackRequest {
    pub(super) phase: SlotPhase,
    pub(super) sequence: u64,
    pub(super) then: AfterStacks,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum AfterStacks {
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
            state: ProcessState::Starting,
            pipe: Pipe::default(),
            health: ProcessHealth::new(limits),
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

    /// Records that `init()` has returned or failed.
    pub(super) fn init_ended(&mut self, state: ProcessState) {
        match self.state {
            ProcessState::Starting => self.state = state,
            // Count one failed start, not two.
            ProcessState::Killed(ExitKind::NotStarted { .. }) => {
                self.state = ProcessState::Killed(ExitKind::Expected)
            }
            _ => {}
        }
    }

    pub(super) fn is_killed(&self) -> bool {
        matches!(self.state, ProcessState::Killed(_) | ProcessState::Ended(_))
    }

    pub(super) fn is_worn_out(&self) -> bool {
        self.health.wear().is_some()
    }

    pub(super) fn takes_work(&self) -> bool {
        matches!(self.state, ProcessState::Working)
            && !self.is_worn_out()
            && !self.is_surplus
            && !self.is_displaced
    }

    /// Returns the kind of its exit while the node works. `phase` and `sequence` are its last ones.
    pub(super) fn exit_kind(&mut self, phase: SlotPhase, sequence: u64) -> ExitKind {
        let in_mini_batch = matches!(phase, SlotPhase::Load | SlotPhase::Run | SlotPhase::Report);
        match std::mem::replace(&mut self.state, ProcessState::Ended(ExitKind::Expected)) {
            ProcessState::Starting => ExitKind::NotStarted { reason: None },
            ProcessState::Killed(exit_kind) => exit_kind,
            ProcessState::Working | ProcessState::Finishing { .. } if in_mini_batch => {
                ExitKind::Failed(Box::new(Ending {
                    sequence,
                    status: AttemptStatus::ProcessDied,
                    ..Ending::empty()
                }))
            }
            ProcessState::Working => ExitKind::DiedIdle,
            ProcessState::InitFailed | ProcessState::Finishing { .. } | ProcessState::Ended(_) => {
                ExitKind::Expected
            }
        }
    }
}
