//! A Python process: its life, and the mini-batches in its pipe.

use std::time::{Duration, Instant};

use protocol::{AttemptStatus, Ending, SlotPhase};

use super::pipe::Pipe;

/// Failed mini-batches after which a process is replaced, because its state may be corrupt.
pub(super) const FAILURES_MAX: u32 = 10;

/// Names one process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// Its slot, which its successor takes over.
    pub slot: usize,
    /// Number among all processes that the node has ever started.
    pub number: u32,
}

impl ProcessId {
    /// Returns `processNNN`.
    pub fn name(self) -> String {
        format!("process{:03}", self.number)
    }
}

/// Room for one process.
#[derive(Debug)]
pub(super) enum Slot {
    /// No process; the next one starts at this time, or never.
    Empty { start_at: Option<Instant> },
    /// A process whose resources are not released.
    Taken(Box<Process>),
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: ProcessId,
    pub(super) name: String,
    pub(super) life: Life,
    pub(super) pipe: Pipe,
    /// Mini-batches that have failed.
    pub(super) failures: u32,
    pub(super) started: Instant,
    /// When a long phase was last reported.
    pub(super) noticed: Option<Instant>,
    /// A request for its stacks.
    pub(super) stacks: Option<StacksFor>,
}

/// The state of a process between its start and its end.
#[derive(Debug)]
pub(super) enum Life {
    /// `init()` has not returned.
    Starting,
    /// It has reported that the script or `init()` failed, and exits.
    InitFailed,
    /// It accepts mini-batches: busy while its pipe holds any, otherwise idle.
    Working,
    /// It was asked to call `shutdown()` and to exit.
    Finishing { since: Instant },
    /// It was killed.
    Killed(Killed),
    /// It has ended, and the agent examines it.
    Ended(Verdict),
}

/// Why a process was killed.
#[derive(Debug)]
pub(super) enum Killed {
    /// A mini-batch is to blame: it took too long, or damaged the connection.
    Failed(Ending),
    /// It damaged the connection before `init()` had returned.
    Unusable(String),
    /// No mini-batch is to blame: a lost lease, a stop.
    Interrupted,
}

/// The meaning of the end of a process.
#[derive(Debug)]
pub(super) enum Verdict {
    /// A mini-batch failed, with an error if the engine killed the process.
    Failed(Ending),
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
    /// Their use.
    pub(super) then: Then,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    /// Report that the phase takes long.
    Notice { elapsed: Duration },
    /// Kill the process: the hand-over has exceeded its limit.
    Kill,
}

impl Default for Slot {
    fn default() -> Self {
        Self::Empty { start_at: None }
    }
}

impl Slot {
    pub(super) fn process(&self) -> Option<&Process> {
        match self {
            Self::Taken(process) => Some(process),
            Self::Empty { .. } => None,
        }
    }

    pub(super) fn process_mut(&mut self) -> Option<&mut Process> {
        match self {
            Self::Taken(process) => Some(process),
            Self::Empty { .. } => None,
        }
    }

    /// Returns the number of mini-batches that its pipe should hold.
    pub(super) fn depth(&self) -> usize {
        self.process().map_or(1, |process| process.pipe.depth())
    }
}

impl Process {
    pub(super) fn starting(id: ProcessId, started: Instant) -> Self {
        Self {
            id,
            name: id.name(),
            life: Life::Starting,
            pipe: Pipe::default(),
            failures: 0,
            started,
            noticed: None,
            stacks: None,
        }
    }

    pub(super) fn is_starting(&self) -> bool {
        matches!(self.life, Life::Starting)
    }

    /// Returns whether `init()` has not returned, or has failed.
    pub(super) fn is_unready(&self) -> bool {
        matches!(self.life, Life::Starting | Life::InitFailed)
    }

    pub(super) fn is_killed(&self) -> bool {
        matches!(self.life, Life::Killed(_) | Life::Ended(_))
    }

    pub(super) fn is_worn_out(&self) -> bool {
        self.failures > FAILURES_MAX
    }

    /// Returns whether it accepts mini-batches.
    pub(super) fn takes_work(&self) -> bool {
        matches!(self.life, Life::Working) && !self.is_worn_out()
    }

    /// Returns the meaning of its end while the node works. `phase` and `sequence` are its last ones.
    pub(super) fn verdict(&mut self, phase: SlotPhase, sequence: u64) -> Verdict {
        let in_mini_batch = matches!(phase, SlotPhase::Load | SlotPhase::Run | SlotPhase::Report);
        match std::mem::replace(&mut self.life, Life::Ended(Verdict::Expected)) {
            Life::Starting => Verdict::NotStarted { reason: None },
            Life::Killed(Killed::Unusable(reason)) => Verdict::NotStarted { reason: Some(reason) },
            Life::Killed(Killed::Failed(ending)) => Verdict::Failed(ending),
            Life::Working | Life::Finishing { .. } if in_mini_batch => {
                Verdict::Failed(Ending { sequence, status: AttemptStatus::ProcessDied, ..Ending::empty() })
            }
            Life::Working => Verdict::DiedIdle,
            Life::InitFailed | Life::Finishing { .. } | Life::Killed(Killed::Interrupted) | Life::Ended(_) => {
                Verdict::Expected
            }
        }
    }
}
