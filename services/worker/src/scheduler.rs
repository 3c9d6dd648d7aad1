//! All decisions about one job on one node, as a state machine: events in, actions out. Pure: no I/O, no clock, no
//! channels.
//!
//! The agent reports each [`Event`] with the time, executes every resulting [`Action`], and calls
//! [`Scheduler::schedule`] after it has reported all pending events. `tests/simulation` does the same in virtual time,
//! with simulated processes.
//!
//! A mini-batch is in one `Stage` from its delivery until the agent announces its outcome or returns it. A Python
//! process is in one `ProcessState` from its start to its end.
//!
//! | part of the state | keeps |
//! |---|---|
//! | `mini_batches`, `mini_batch` | the mini-batches of the node, and the queues of those that no process has |
//! | `processes`, `process`, `pipe` | the processes, their states, and the mini-batches that each holds |
//! | `starts`, `process_health` | the results of starts; when a process is worn out |
//! | `gpus`, `gpu_fault` | which process has which GPU, and which GPU is out of use |
//! | `attempt` | the tries that have ended here; the record of an attempt, and whether another try follows |
//! | `isolation`, `ranges` | the ranges of a mini-batch whose tries are spent |
//! | `gaps`, `run_cost` | how long these ranges are |
//! | `successful_rows`, `causes`, `rejects` | the rows of ranges that succeed; the causes of failures; the rejected items |
//! | `notices` | which notices are due |
//!
//! | file | decisions |
//! |---|---|
//! | `deliveries` | receiving, preparing, handing over; lost leases |
//! | `answers` | reactions to frames and to the end of a process; starts |
//! | `isolations` | which mini-batches are isolated |
//! | `copies` | speculative runs of slow mini-batches, and the end of the slower run |
//! | `peer_nodes` | which mini-batches the node leaves to other nodes after failures here |
//! | `quarantine` | mini-batches that may kill the node run alone on it |
//! | `allocation` | how many processes and which GPUs the job has on a node with other jobs |
//! | `wear` | replacing worn-out processes |
//! | `deadlines` | timeouts: stacks, kills, recalls, notices |
//! | `pause` | pauses while the disk is full, or a store does not answer |
//! | `stop` | draining, finishing, killing, giving up |
//!
//! Each part of the state changes only through the functions of its file, which keep it consistent.

mod allocation;
mod answers;
mod attempt;
mod causes;
mod copies;
mod deadlines;
mod deliveries;
mod gaps;
mod gpu_fault;
mod gpus;
mod isolation;
mod isolations;
mod mini_batch;
mod mini_batches;
mod notices;
mod pause;
mod peer_nodes;
mod pipe;
mod process;
mod process_health;
mod processes;
mod quarantine;
mod ranges;
mod rejects;
mod run_cost;
mod starts;
mod stop;
mod successful_rows;
#[cfg(test)]
pub(crate) mod tests;
mod wear;

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::{
    Descriptor, ErrorReport, GpuSet, JobSpec, Members, MiniBatchFrame, ProcessEvent, RestartChance,
    ResultEvent, RunningMiniBatch, SlotPhase, Waiting,
};

use crate::held::HeldMiniBatch;
use crate::lease::LeaseId;
use crate::memory_files::MemoryFile;
use crate::prepare::Preparation;
pub use crate::stop::Stop;
pub use allocation::{AgentAllocation, AllocationReport};
pub use attempt::Outcome;
use attempt::PreviousTries;
pub(crate) use attempt::{EndedAttempt, conclude};
pub use deadlines::{NOTICE_AFTER_MAX, NOTICE_AGAIN, wait_of_node};
use gpus::Gpus;
use isolations::Isolations;
pub use mini_batch::{deliveries_lost, lost_too_often};
use mini_batches::MiniBatches;
use notices::Notices;
use pause::Pause;
use peer_nodes::PeerNodes;
pub use process::ProcessId;
use processes::Processes;
use quarantine::Quarantine;
use stop::Stopping;

/// A time on both clocks; `milliseconds`: wall clock, since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    pub instant: Instant,
    pub milliseconds: u64,
}

/// The constants of all decisions.
#[derive(Clone, Debug)]
pub struct Config {
    pub spec: Arc<JobSpec>,
    pub node: String,
    /// Python processes to run.
    pub processes: u32,
    /// The allocation of the job on a node that it shares with others; `None`: all processes.
    pub allocation: Option<AgentAllocation>,
    /// Number of the first process.
    pub first_process: u32,
    /// GPUs of the machine.
    pub gpus: u32,
    /// Bytes of tables and downloads that may be ready at once.
    pub prefetch_bytes_max: u64,
    /// How long a draining agent waits for `run()`.
    pub grace: Duration,
    /// Whether each node has checkpoints of its own.
    pub fetches_checkpoints: bool,
    /// Longest lease that the queue allows; `None`: no limit.
    pub lease_max: Option<Duration>,
    /// Whether no other node works on the job.
    pub is_alone: bool,
}

/// A delivery that the agent has leased.
#[derive(Clone, Debug)]
pub struct LeasedDelivery {
    pub lease: LeaseId,
    pub descriptor: Descriptor,
    /// Deliveries of this message, including this one.
    pub receive_count: u32,
    /// How often a node of this machine has died while it ran only this mini-batch.
    pub deaths: u32,
    /// Expected memory of the prepared mini-batch.
    pub bytes: u64,
}

/// The status page of a live process, as last read.
#[derive(Clone, Debug)]
pub struct ProcessSnapshot {
    pub process: ProcessId,
    pub phase: SlotPhase,
    /// The hand-over that it works on; 0: none.
    pub sequence: u64,
    /// Duration of the phase so far.
    pub elapsed: Duration,
    /// Time since the last byte of a frame whose rest is missing.
    pub frame_incomplete_for: Option<Duration>,
    /// The requested stacks, once they are written or their time is over.
    pub stacks: Option<String>,
}

/// Facts about a process that has ended.
#[derive(Clone, Debug)]
pub struct ExitReport {
    /// Why it ended, as far as the agent can tell, with its last output.
    pub death: ErrorReport,
    /// The cause, if it ended before `init()` had returned.
    pub early: String,
    /// The chance that a restart succeeds.
    pub chance: RestartChance,
    /// Whether scripts of the job have handed back results, so that the mini-batch may have
    /// checkpoints.
    pub has_checkpoints: bool,
}

/// An event that the agent reports.
#[derive(Debug)]
pub enum Event {
    /// The agent is asked to stop.
    Stop(Stop),
    /// The allocation of the job has changed.
    Allocate(AgentAllocation),
    /// Some time has passed.
    Tick(Vec<ProcessSnapshot>),
    /// The queue has answered [`Action::Receive`].
    Received(Vec<LeasedDelivery>),
    /// The answer to [`Action::Prepare`]. In the descriptor, the mini-batch replaces a pointer into the plan.
    Prepared { lease: LeaseId, descriptor: Box<Descriptor>, preparation: Preparation },
    /// These mini-batches were copied and have succeeded: the agent announces nothing more of them.
    Decided(Vec<u64>),
    /// The nodes that work on the job, and those that must not.
    Members(Members),
    /// Other nodes may have these deliveries now.
    LeasesLost { leases: Vec<LeaseId>, snapshots: Vec<ProcessSnapshot> },
    /// [`Action::Start`] failed; with the chance that another start succeeds.
    NotStarted { process: ProcessId, message: String, chance: RestartChance },
    /// [`Action::Start`] failed because the disk of the node is full.
    NoRoom { process: ProcessId, message: String },
    /// The resident memory of a process that has sent frames, reported before them, if the job limits it.
    Measured { process: ProcessId, bytes: u64 },
    /// Processing of a mini-batch waited for the limits of the job for this long.
    Limited { process: ProcessId, time: Duration },
    /// A process has sent a frame, with the rows of a success.
    Frame { process: ProcessId, frame: ProcessEvent, rows: Bytes },
    /// The answer to [`Action::Recall`], reported before any other event. In time: the process has started none of the
    /// hand-overs and never will. Otherwise it answers each of them.
    RecallAnswered { process: ProcessId, in_time: bool },
    /// A process sent an invalid frame in this phase.
    ConnectionDamaged { process: ProcessId, phase: SlotPhase, how: String },
    /// A process and all its descendants have ended: exit status or minus the signal, last phase and last hand-over, and
    /// how long ago its `run()` began; `None`: it had not begun.
    Exited { process: ProcessId, code: i32, phase: SlotPhase, sequence: u64, ran: Option<Duration> },
    /// The answer to [`Action::Examine`].
    Examined { process: ProcessId, findings: Box<ExitReport> },
}

/// An action for the agent.
#[derive(Debug)]
pub enum Action {
    /// Request messages from the task queue. There is one request at a time.
    Receive { messages_max: usize },
    /// Cancel the request.
    StopReceiving,
    /// Prepare a mini-batch. `resumes_since`: when it was received, if other nodes may have checkpoints to fetch.
    Prepare { lease: LeaseId, descriptor: Box<Descriptor>, resumes_since: Option<Instant> },
    /// Start a process, with the GPUs that it is assigned if enough are free. `sees`: the GPUs that
    /// it sees otherwise, on a node that jobs share; `None`: the job has the whole node.
    Start { process: ProcessId, gpus: Option<GpuSet>, sees: Option<Vec<u32>> },
    /// Send mini-batches to a process, in order, with the memory files of their tables.
    HandOver { process: ProcessId, frames: Vec<MiniBatchFrame>, files: Vec<Arc<OwnedFd>> },
    /// Limit a lease to the deadline of the attempt, which starts now.
    Begin { lease: LeaseId, deadline: Instant },
    /// Extend a lease without limit again: its mini-batch waits for another run.
    Wait { lease: LeaseId },
    /// Recall hand-overs that a process has not started.
    Recall { process: ProcessId, sequences: Range<u64> },
    /// Ask a process for its Python stacks, which it must write within `patience`.
    DumpStacks { process: ProcessId, patience: Duration },
    /// Ask a process to call `shutdown()` and to exit.
    Finish(ProcessId),
    /// Kill a process and its descendants.
    Kill(ProcessId),
    /// Find out how a process ended with this exit status, or minus the signal, in its last phase. Quote the output of
    /// the hand-over `sequence` (0: of `init()`), which began at `since`.
    Examine { process: ProcessId, code: i32, phase: SlotPhase, sequence: u64, since: Instant },
    /// Release the resources of a process.
    Forget(ProcessId),
    /// Note on disk that this mini-batch is about to run alone on the node.
    BeginAlone { mini_batch: u64 },
    /// Remove that note: the mini-batch has not killed the node.
    EndAlone { mini_batch: u64 },
    /// Reuse the memory of a table.
    ReuseTable(MemoryFile),
    /// Send an announcement.
    Announce(Announcement),
    /// Report a long wait, of a process or of the node itself, to the reducer and the log.
    Notice { process: Option<ProcessId>, waiting: Box<Waiting> },
    /// Write to the log of the node; levels are `INFO`, `WARNING` and `ERROR`.
    Log { level: &'static str, message: String },
    /// Write to the error file of a process that can no longer write to it. `None`: not in a mini-batch.
    UserError { process: ProcessId, mini_batch: Option<u64>, error: Box<ErrorReport> },
}

/// A message to the reducer, or a mini-batch to return.
#[derive(Debug)]
pub enum Announcement {
    /// The outcome of an attempt.
    Outcome(Box<Outcome>),
    /// Another event.
    Event(ResultEvent),
    /// Publish a mini-batch again unchanged, for other nodes. If its lease is lost by now, another node has it already.
    Return { lease: LeaseId, descriptor: Box<Descriptor> },
    /// Acknowledge a delivery without an outcome: its mini-batch has one, or it is a copy.
    Drop { lease: LeaseId },
}

/// The state of one job on one node.
pub struct Scheduler {
    config: Config,
    actions: VecDeque<Action>,
    stopping: Stopping,
    /// The queue has not answered the request for mini-batches.
    is_receiving: bool,
    mini_batches: MiniBatches,
    processes: Processes,
    gpus: Gpus,
    isolations: Isolations,
    pause: Pause,
    tried: PreviousTries,
    others: PeerNodes,
    quarantine: Quarantine,
    notices: Notices,
}

impl Scheduler {
    /// Starts the processes.
    pub fn new(config: Config, now: Timestamp) -> Self {
        let mut scheduler = Self {
            actions: VecDeque::new(),
            stopping: Stopping::default(),
            is_receiving: false,
            mini_batches: MiniBatches::default(),
            processes: Processes::new(&config),
            gpus: Gpus::new(&config.spec, config.gpus, config.allocation.as_ref()),
            isolations: Isolations::default(),
            pause: Pause::default(),
            tried: PreviousTries::default(),
            others: PeerNodes::default(),
            quarantine: Quarantine::new(now.instant),
            notices: Notices::default(),
            config,
        };
        (0..scheduler.processes.allowed()).for_each(|slot| scheduler.start_process(slot, now));
        scheduler
    }

    /// Handles an event, and decides its direct consequences.
    pub fn handle(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::Stop(stop) => self.stop(stop, now),
            Event::Allocate(allocation) => self.fit(allocation, now),
            Event::Tick(snapshots) => self.tick(snapshots, now),
            Event::Received(deliveries) => self.received(deliveries, now),
            Event::Prepared { lease, descriptor, preparation } => {
                self.prepared(lease, *descriptor, preparation, now)
            }
            Event::Decided(mini_batches) => self.decided(&mini_batches),
            Event::Members(members) => self.set_members(members, now),
            Event::LeasesLost { leases, snapshots } => {
                leases.into_iter().for_each(|lease| self.lease_lost(lease, &snapshots));
            }
            Event::NotStarted { process, message, chance } => {
                let gpus = self.empty(process.slot);
                self.not_started(process, gpus.as_ref(), message, (chance, String::new()), now);
            }
            Event::NoRoom { process, message } if self.shares_disk() => {
                self.empty(process.slot);
                self.no_room_to_start(process, message, now);
            }
            Event::NoRoom { process, message } => {
                let gpus = self.empty(process.slot);
                self.not_started(
                    process,
                    gpus.as_ref(),
                    message,
                    (RestartChance::Likely, String::new()),
                    now,
                );
            }
            Event::Measured { process, bytes } => self.measured(process, bytes),
            Event::Limited { process, time } => self.limited(process, time, now),
            Event::Frame { process, frame, rows } => self.frame(process, frame, rows, now),
            Event::RecallAnswered { process, in_time } => {
                self.recall_answered(process, in_time, now)
            }
            Event::ConnectionDamaged { process, phase, how } => {
                self.connection_damaged(process, phase, &how)
            }
            Event::Exited { process, code, phase, sequence, ran } => {
                self.exited(process, code, (phase, sequence, ran), now);
            }
            Event::Examined { process, findings } => self.examined(process, *findings, now),
        }
    }

    /// Decides which mini-batches the node returns, prepares, hands over and receives next. `is_behind`: the
    /// announcer has too many outcomes left to announce, so processes get no new work.
    pub fn schedule(&mut self, now: Timestamp, is_behind: bool) {
        self.others.tick(self.limit(), now.instant);
        self.finish_idle_processes(now);
        self.return_waiting();
        self.return_excess();
        self.process_quarantine();
        self.process_postponed(now);
        let may_take = !is_behind && !self.is_paused(now);
        if may_take {
            self.prepare_next(now);
        }
        if !is_behind {
            self.hand_over(now);
        }
        if may_take && self.may_work_beside_others() {
            self.receive();
        }
    }

    /// Returns the mini-batches that the node holds, without copies, whose loss costs nothing.
    pub fn held(&self) -> Vec<HeldMiniBatch> {
        let firsts = self.mini_batches.all().filter(|held| !held.descriptor.copy);
        firsts.map(|held| (held.descriptor.mini_batch, held.deliveries_lost)).collect()
    }

    /// Returns the next action to execute, oldest first.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the lease and the start of an unanswered hand-over.
    pub fn hand_over_of(&self, process: ProcessId, sequence: u64) -> Option<(LeaseId, Timestamp)> {
        let handed = self.processes.get(process)?.pipe.get(sequence)?;
        Some((handed.lease, handed.began))
    }

    /// Returns the mini-batches that processes run, as their status pages say.
    pub fn running(&self, snapshots: &[ProcessSnapshot]) -> Vec<RunningMiniBatch> {
        let run_by = |process: &process::Process| {
            let handed = process.pipe.front()?;
            let seen = snapshots.iter().find(|seen| seen.process == process.id)?;
            Some(RunningMiniBatch {
                mini_batch: self.mini_batches.get(handed.lease)?.descriptor.mini_batch,
                node: self.config.node.clone(),
                process: process.name.clone(),
                phase: seen.phase,
                since: handed.began.milliseconds,
            })
        };
        self.processes.iter().filter_map(run_by).collect()
    }

    /// Returns the time limit for loading, running and reporting one mini-batch.
    fn limit(&self) -> Duration {
        let spec = &self.config.spec;
        Duration::from_secs(
            spec.run_invocation_timeout_seconds + spec.task_overhead_timeout_seconds,
        )
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn log(&mut self, level: &'static str, message: String) {
        self.act(Action::Log { level, message });
    }

    fn tell(&mut self, event: ResultEvent) {
        self.act(Action::Announce(Announcement::Event(event)));
    }
}
