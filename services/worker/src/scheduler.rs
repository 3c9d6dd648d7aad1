//! All decisions about one job on one node, as a state machine: events in, actions out. Pure: no I/O, no clock, no
//! channels.
//!
//! The agent reports each [`Event`] with the time, executes every resulting [`Action`], and calls
//! [`Scheduler::schedule`] after it has reported all pending events. `tests/simulation` does the same in virtual time,
//! with simulated processes.
//!
//! A mini-batch is in one `Stage` from its delivery until the agent announces its outcome or returns it. A Python
//! process is in one `Life` from its start to its end.
//!
//! | file | decisions |
//! |---|---|
//! | `deliveries` | receiving, preparing, handing over; lost leases |
//! | `mini_batch` | the stages of a mini-batch |
//! | `pipe` | how many mini-batches a process holds |
//! | `process` | the life of a process |
//! | `answers` | reactions to frames and to the end of a process |
//! | `attempt` | the record of an attempt, and whether another try follows |
//! | `starts` | whether another process starts |
//! | `deadlines` | timeouts: stacks, kills, recalls, notices |
//! | `stop` | draining, finishing, killing, giving up |

mod answers;
mod attempt;
mod deadlines;
mod deliveries;
mod mini_batch;
mod pipe;
mod process;
mod starts;
mod stop;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::{
    Chance, Descriptor, ErrorReport, JobSpec, MiniBatchFrame, ProcessEvent, ResultEvent, SlotPhase, Waiting,
};
use rustc_hash::FxHashMap;

use crate::lease::LeaseId;
use crate::memory_files::MemoryFile;
use crate::prepare::Preparation;
pub use crate::stop::Stop;
pub use attempt::{Attempted, Outcome, Worker, conclude};
pub use deadlines::{NOTICE_AFTER_MAX, NOTICE_AGAIN, wait_of_node};
use mini_batch::MiniBatch;
pub use mini_batch::{deliveries_lost, lost_too_often};
pub use process::ProcessId;
use process::{Process, Slot};
use starts::Starts;

/// A moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Measures durations.
    pub instant: Instant,
    /// Wall clock, milliseconds since the epoch.
    pub milliseconds: u64,
}

/// The constants of all decisions.
#[derive(Clone, Debug)]
pub struct Config {
    /// The job.
    pub spec: Arc<JobSpec>,
    /// Node id.
    pub node: String,
    /// Python processes to run.
    pub processes: u32,
    /// Number of the first process.
    pub first_process: u32,
    /// Bytes of tables and downloads that may be ready at once.
    pub prefetch_bytes_max: u64,
    /// How long a draining agent waits for `run()`.
    pub grace: Duration,
    /// Longest lease that the queue allows; `None`: no limit.
    pub lease_max: Option<Duration>,
}

/// A delivery that the agent has leased.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// Its lease.
    pub lease: LeaseId,
    /// The mini-batch.
    pub descriptor: Descriptor,
    /// Deliveries of this message, including this one.
    pub receive_count: u32,
    /// Expected memory of the prepared mini-batch.
    pub bytes: u64,
}

/// The status page of a live process, at one moment.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// The process.
    pub process: ProcessId,
    /// Its phase.
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
pub struct Findings {
    /// Why it ended, as far as the agent can tell, with its last output.
    pub death: ErrorReport,
    /// The cause, if it ended before `init()` had returned.
    pub early: String,
    /// The chance that another process starts.
    pub chance: Chance,
}

/// An event that the agent reports.
#[derive(Debug)]
pub enum Event {
    /// The agent received a stop.
    Stop(Stop),
    /// Some time has passed.
    Tick(Vec<Sighting>),
    /// The queue has answered [`Action::Receive`].
    Received(Vec<Delivered>),
    /// The answer to [`Action::Prepare`]. In the descriptor, the mini-batch replaces a pointer into the plan.
    Prepared {
        /// The delivery.
        lease: LeaseId,
        /// The mini-batch.
        descriptor: Box<Descriptor>,
        /// The result.
        preparation: Preparation,
    },
    /// Other nodes may have these deliveries now.
    LeasesLost {
        /// The deliveries.
        leases: Vec<LeaseId>,
        /// The status pages at this moment.
        sightings: Vec<Sighting>,
    },
    /// [`Action::Start`] failed.
    NotStarted {
        /// The process.
        process: ProcessId,
        /// The cause.
        message: String,
        /// The chance that another start succeeds.
        chance: Chance,
    },
    /// A process has sent a frame.
    Frame {
        /// The process.
        process: ProcessId,
        /// The frame.
        frame: ProcessEvent,
        /// Rows of a success.
        rows: Bytes,
    },
    /// The answer to [`Action::Recall`], reported before any other event.
    RecallAnswered {
        /// The process.
        process: ProcessId,
        /// The process has started none of the hand-overs and never will. If `false`, it answers each of them.
        in_time: bool,
    },
    /// A process sent an invalid frame.
    ConnectionDamaged {
        /// The process.
        process: ProcessId,
        /// Its phase.
        phase: SlotPhase,
        /// What is invalid.
        how: String,
    },
    /// A process and all its descendants have ended.
    Exited {
        /// The process.
        process: ProcessId,
        /// Exit status, or minus the signal.
        code: i32,
        /// Its last phase.
        phase: SlotPhase,
        /// Its last hand-over.
        sequence: u64,
    },
    /// The answer to [`Action::Examine`].
    Examined {
        /// The process.
        process: ProcessId,
        /// The facts.
        findings: Box<Findings>,
    },
}

/// An action for the agent.
#[derive(Debug)]
pub enum Action {
    /// Request messages from the task queue. There is one request at a time.
    Receive {
        /// Most messages.
        messages_max: usize,
    },
    /// Cancel the request.
    StopReceiving,
    /// Prepare a mini-batch.
    Prepare {
        /// The delivery.
        lease: LeaseId,
        /// The mini-batch.
        descriptor: Box<Descriptor>,
    },
    /// Start a process.
    Start(ProcessId),
    /// Send mini-batches to a process.
    HandOver {
        /// The process.
        process: ProcessId,
        /// The mini-batches, in order.
        frames: Vec<MiniBatchFrame>,
        /// Their tables, in order.
        files: Vec<Arc<OwnedFd>>,
    },
    /// Limit a lease to the deadline of the attempt, which starts now.
    Begin {
        /// The delivery.
        lease: LeaseId,
        /// The last moment of the lease.
        deadline: Instant,
    },
    /// Recall hand-overs that a process has not started.
    Recall {
        /// The process.
        process: ProcessId,
        /// The hand-overs.
        sequences: Range<u64>,
    },
    /// Ask a process for its Python stacks.
    DumpStacks {
        /// The process.
        process: ProcessId,
        /// How long it may take to write them.
        patience: Duration,
    },
    /// Ask a process to call `shutdown()` and to exit.
    Finish(ProcessId),
    /// Kill a process and its descendants.
    Kill(ProcessId),
    /// Find out how a process ended.
    Examine {
        /// The process.
        process: ProcessId,
        /// Exit status, or minus the signal.
        code: i32,
        /// Its last phase.
        phase: SlotPhase,
        /// The hand-over whose output to quote; 0: that of `init()`.
        sequence: u64,
        /// When that output began.
        since: Instant,
    },
    /// Release the resources of a process.
    Forget(ProcessId),
    /// Reuse the memory of a table.
    ReuseTable(MemoryFile),
    /// Send an announcement.
    Announce(Announcement),
    /// Report a long wait to the reducer and the log.
    Notice {
        /// The slow process; `None`: the node itself.
        process: Option<ProcessId>,
        /// The wait.
        waiting: Box<Waiting>,
    },
    /// Write to the log of the node.
    Log {
        /// `INFO`, `WARNING` or `ERROR`.
        level: &'static str,
        /// The sentence.
        message: String,
    },
    /// Write to the error file of a process that can no longer write to it.
    UserError {
        /// The process.
        process: ProcessId,
        /// `None`: the error is not part of a mini-batch.
        mini_batch: Option<u64>,
        /// The error.
        error: Box<ErrorReport>,
    },
}

/// A message to the reducer, or a mini-batch to return.
#[derive(Debug)]
pub enum Announcement {
    /// The outcome of an attempt.
    Outcome(Box<Outcome>),
    /// Another event.
    Event(ResultEvent),
    /// Return a mini-batch: publish it again unchanged, for other nodes.
    Return {
        /// The delivery. If its lease is lost by now, another node has it already.
        lease: LeaseId,
        /// The descriptor to publish.
        descriptor: Box<Descriptor>,
    },
}

/// The state of one job on one node.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    actions: VecDeque<Action>,
    stop: Stop,
    /// When the time for an orderly stop is over.
    stop_deadline: Option<Instant>,
    /// The cause, once the node starts no more processes.
    gave_up: Option<String>,
    /// The reducer knows that this node stops.
    has_announced_stop: bool,
    is_receiving: bool,
    mini_batches: FxHashMap<LeaseId, MiniBatch>,
    /// Mini-batches that await preparation, are being prepared, and await a process, each in order.
    waiting: VecDeque<LeaseId>,
    preparing: Vec<LeaseId>,
    ready: VecDeque<LeaseId>,
    /// When a slow preparation was last reported.
    preparing_noticed: Option<Instant>,
    slots: Vec<Slot>,
    next_process: u32,
    starts: Starts,
}

impl Scheduler {
    /// Starts the processes.
    pub fn new(config: Config, now: Moment) -> Self {
        let mut scheduler = Self {
            slots: (0..config.processes).map(|_| Slot::default()).collect(),
            next_process: config.first_process,
            config,
            actions: VecDeque::new(),
            stop: Stop::No,
            stop_deadline: None,
            gave_up: None,
            has_announced_stop: false,
            is_receiving: false,
            mini_batches: FxHashMap::default(),
            waiting: VecDeque::new(),
            preparing: Vec::new(),
            ready: VecDeque::new(),
            preparing_noticed: None,
            starts: Starts::default(),
        };
        (0..scheduler.slots.len()).for_each(|slot| scheduler.start_process(slot, now));
        scheduler
    }

    /// Handles an event, and decides its direct consequences.
    pub fn handle(&mut self, event: Event, now: Moment) {
        match event {
            Event::Stop(stop) => self.stop(stop, now),
            Event::Tick(sightings) => self.tick(sightings, now),
            Event::Received(deliveries) => self.received(deliveries, now),
            Event::Prepared { lease, descriptor, preparation } => self.prepared(lease, *descriptor, preparation, now),
            Event::LeasesLost { leases, sightings } => {
                leases.into_iter().for_each(|lease| self.lease_lost(lease, &sightings));
            }
            Event::NotStarted { process, message, chance } => {
                self.slots[process.slot] = Slot::default();
                self.could_not_start(process, message, chance, String::new(), now);
            }
            Event::Frame { process, frame, rows } => self.frame(process, frame, rows, now),
            Event::RecallAnswered { process, in_time } => self.recall_answered(process, in_time, now),
            Event::ConnectionDamaged { process, phase, how } => self.connection_damaged(process, phase, &how),
            Event::Exited { process, code, phase, sequence } => self.exited(process, code, phase, sequence, now),
            Event::Examined { process, findings } => self.examined(process, *findings, now),
        }
    }

    /// Decides which mini-batches the node returns, prepares, hands over and receives next.
    pub fn schedule(&mut self, now: Moment) {
        self.finish_idle_processes(now);
        self.return_waiting();
        self.prepare_next(now);
        self.hand_over(now);
        self.receive();
    }

    /// Returns the next action to execute, oldest first.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the lease and the start of an unanswered hand-over.
    pub fn hand_over_of(&self, process: ProcessId, sequence: u64) -> Option<(LeaseId, Moment)> {
        let handed = self.process(process)?.pipe.get(sequence)?;
        Some((handed.lease, handed.began))
    }

    /// Returns the time limit for loading, running and reporting one mini-batch.
    fn limit(&self) -> Duration {
        let spec = &self.config.spec;
        Duration::from_secs(spec.run_invocation_timeout_seconds + spec.task_overhead_timeout_seconds)
    }

    /// Returns the process, unless another has replaced it.
    fn process(&self, id: ProcessId) -> Option<&Process> {
        self.slots[id.slot].process().filter(|process| process.id == id)
    }

    fn process_mut(&mut self, id: ProcessId) -> Option<&mut Process> {
        self.slots[id.slot].process_mut().filter(|process| process.id == id)
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.slots.iter().filter_map(Slot::process)
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
