//! The processes of the job on this node: one in each slot, or none and perhaps the time of the next start. Pure.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use protocol::GpuSet;

use super::gpus::Gpus;
use super::process::{Process, ProcessId, ProcessState};
use super::process_health::WearLimits;
use super::starts::{StartDecision, Starts};
use super::{Config, Timestamp};

/// The processes of a node, of which the job may have some.
pub(super) struct Processes {
    slots: Vec<Slot>,
    /// The number of the next process.
    next_number: u32,
    /// The number that the job may have now.
    allowed: usize,
    /// This number has shrunk, so the node may hold more mini-batches than the processes will soon
    /// need.
    has_shrunk: bool,
    wear_limits: WearLimits,
    /// The results of all starts.
    pub(super) starts: Starts,
}

#[derive(Default)]
enum Slot {
    /// No process follows until the job may have more.
    #[default]
    Empty,
    /// The next process starts then.
    Starts(Instant),
    /// A process whose resources are not released.
    Process(Box<Process>),
}

impl Slot {
    fn process(&self) -> Option<&Process> {
        match self {
            Self::Process(process) => Some(process),
            Self::Empty | Self::Starts(_) => None,
        }
    }

    fn process_mut(&mut self) -> Option<&mut Process> {
        match self {
            Self::Process(process) => Some(process),
            Self::Empty | Self::Starts(_) => None,
        }
    }

    /// Whether it has a process that stays, or gets one.
    fn is_used(&self) -> bool {
        match self {
            Self::Empty => false,
            Self::Starts(_) => true,
            Self::Process(process) => !process.is_surplus,
        }
    }

    /// Returns the loss if the slot is given up: a process with work is worth the most.
    fn worth(&self) -> (u8, bool, u8) {
        let Some(process) = self.process() else { return (0, false, 0) };
        let state = match process.state {
            ProcessState::Starting => 0,
            ProcessState::Working if process.pipe.is_empty() => 1,
            ProcessState::Working => 2,
            ProcessState::InitFailed
            | ProcessState::Finishing { .. }
            | ProcessState::Killed(_)
            | ProcessState::Ended(_) => {
                return (1, false, 0);
            }
        };
        (2, !process.is_displaced, state)
    }
}

impl Processes {
    pub(super) fn new(config: &Config) -> Self {
        let processes = config.processes as usize;
        Self {
            slots: (0..processes).map(|_| Slot::default()).collect(),
            next_number: config.first_process,
            allowed: config
                .allocation
                .as_ref()
                .map_or(processes, |allocation| processes.min(allocation.processes as usize)),
            has_shrunk: false,
            wear_limits: WearLimits::of(&config.spec),
            starts: Starts::default(),
        }
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the process, unless another has replaced it.
    pub(super) fn get(&self, id: ProcessId) -> Option<&Process> {
        self.in_slot(id.slot).filter(|process| process.id == id)
    }

    pub(super) fn get_mut(&mut self, id: ProcessId) -> Option<&mut Process> {
        self.in_slot_mut(id.slot).filter(|process| process.id == id)
    }

    pub(super) fn in_slot(&self, slot: usize) -> Option<&Process> {
        self.slots[slot].process()
    }

    pub(super) fn in_slot_mut(&mut self, slot: usize) -> Option<&mut Process> {
        self.slots[slot].process_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Process> {
        self.slots.iter().filter_map(Slot::process)
    }

    /// Notes a success, with which the failures of others are compared.
    pub(super) fn succeeded(&mut self, id: ProcessId) {
        let others =
            self.slots.iter_mut().filter_map(Slot::process_mut).filter(|process| process.id != id);
        others.for_each(|process| process.health.other_succeeded());
    }

    /// Returns the ids of the processes that match.
    pub(super) fn ids(&self, is_meant: impl Fn(&Process) -> bool) -> Vec<ProcessId> {
        self.iter().filter(|process| is_meant(process)).map(|process| process.id).collect()
    }

    /// Whether none is left.
    pub(super) fn have_ended(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Whether none is left, and none starts later.
    pub(super) fn are_over(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, Slot::Empty))
    }

    /// Returns the number of mini-batches that they should hold.
    pub(super) fn depth(&self) -> usize {
        let used = self.slots.iter().filter(|slot| slot.is_used());
        used.map(|slot| slot.process().map_or(1, Process::depth)).sum()
    }

    /// Begins a process in an empty slot, with GPUs that it is assigned, or without and these that it sees.
    pub(super) fn start(
        &mut self,
        slot: usize,
        gpus: Option<GpuSet>,
        sees: Vec<u32>,
        now: Timestamp,
    ) -> ProcessId {
        let id = ProcessId { slot, number: self.next_number };
        self.next_number += 1;
        self.slots[slot] = Slot::Process(Box::new(Process::starting(
            id,
            gpus,
            sees,
            self.wear_limits,
            now.instant,
        )));
        id
    }

    /// Lets the next process of an empty slot start later.
    pub(super) fn start_later(&mut self, slot: usize, at: Instant) {
        self.slots[slot] = Slot::Starts(at);
    }

    /// Whether the time of the next start in a slot has come.
    pub(super) fn is_due(&self, slot: usize, now: Timestamp) -> bool {
        matches!(self.slots[slot], Slot::Starts(at) if at <= now.instant)
    }

    /// Empties a slot, and returns its process.
    pub(super) fn empty(&mut self, slot: usize) -> Option<Box<Process>> {
        match std::mem::take(&mut self.slots[slot]) {
            Slot::Process(process) => Some(process),
            Slot::Empty | Slot::Starts(_) => None,
        }
    }

    /// Decides for an empty slot, with the pause before the start.
    pub(super) fn next_start(&self) -> (StartDecision, Option<Duration>) {
        let starting =
            self.iter().filter(|process| matches!(process.state, ProcessState::Starting)).count();
        (self.starts.next(self.allowed.max(1) as u32, starting), self.starts.pause())
    }

    pub(super) fn allowed(&self) -> usize {
        self.allowed
    }

    fn used(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_used()).count()
    }

    /// Whether the job has all processes that it may have.
    pub(super) fn are_full(&self) -> bool {
        self.used() >= self.allowed
    }

    /// Sets the number that the job may have. Returns whether it has changed.
    pub(super) fn allow(&mut self, processes: u32) -> bool {
        let allowed = self.slots.len().min(processes as usize);
        std::mem::replace(&mut self.allowed, allowed) != allowed
    }

    /// If the job has more than it may have, makes those that are worth the least surplus, and returns them.
    pub(super) fn shrink(&mut self) -> Option<Vec<ProcessId>> {
        let excess = self.used().checked_sub(self.allowed).filter(|excess| *excess > 0)?;
        self.has_shrunk = true;
        let mut used: Vec<usize> =
            (0..self.slots.len()).filter(|slot| self.slots[*slot].is_used()).collect();
        used.sort_by_key(|slot| (self.slots[*slot].worth(), Reverse(*slot)));
        let mut surplus = Vec::new();
        for slot in used.into_iter().take(excess) {
            match &mut self.slots[slot] {
                Slot::Process(process) => {
                    process.is_surplus = true;
                    surplus.push(process.id);
                }
                planned => *planned = Slot::Empty,
            }
        }
        Some(surplus)
    }

    /// Whether the job has lost processes since the last call.
    pub(super) fn have_shrunk(&mut self) -> bool {
        std::mem::take(&mut self.has_shrunk)
    }

    /// Keeps the first surplus process that matches. Returns whether one did.
    pub(super) fn keep(&mut self, is_meant: impl Fn(&Process) -> bool) -> bool {
        let surplus = self.slots.iter_mut().filter_map(Slot::process_mut);
        let kept = surplus.into_iter().find(|process| process.is_surplus && is_meant(process));
        kept.map(|process| process.is_surplus = false).is_some()
    }

    pub(super) fn first_empty_slot(&self) -> Option<usize> {
        self.slots.iter().position(|slot| matches!(slot, Slot::Empty))
    }

    /// Marks the processes with a GPU that the job has lost. Returns the newly marked ones.
    pub(super) fn displace(&mut self, gpus: &Gpus) -> Vec<ProcessId> {
        let mut displaced = Vec::new();
        for process in self.slots.iter_mut().filter_map(Slot::process_mut) {
            let is_displaced = process.visible_gpus().any(|gpu| !gpus.owns(*gpu));
            if is_displaced && !process.is_displaced {
                displaced.push(process.id);
            }
            process.is_displaced = is_displaced;
        }
        displaced
    }
}
