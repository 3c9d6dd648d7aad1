//! What workers and the partitioner tell the reducer, through the result queue.

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

use crate::trace::lenient;
use crate::{JobState, TraceParent};

/// One event on the result queue. An event that carries rows inline is followed by them in its [`crate::Record`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ResultEvent {
    /// The events that follow belong to this job. First in every result message, because reducers of several jobs
    /// share a queue.
    Job {
        /// The job.
        job_id: String,
    },
    /// A mini-batch was attempted.
    Attempt(Box<Attempt>),
    /// The plan is complete.
    Planned(Planned),
    /// The inputs cannot be listed or planned: the job fails, for this cause.
    PlanFailed {
        /// One line.
        cause: String,
    },
    /// A Python process started.
    ProcessStarted {
        /// Node.
        node: String,
        /// `processNNN`.
        process: String,
        /// Process id on that node.
        pid: u32,
    },
    /// `init()` returned, or there is none.
    ProcessReady {
        /// Node.
        node: String,
        /// `processNNN`.
        process: String,
        /// Duration of import and `init()`.
        init_seconds: f64,
    },
    /// The script could not be imported, or `init()` raised or did not return in time.
    InitFailed {
        /// Node.
        node: String,
        /// `processNNN`.
        process: String,
        /// What happened.
        error: Box<ErrorReport>,
    },
    /// A Python process ended.
    ProcessEnded {
        /// Node.
        node: String,
        /// `processNNN`.
        process: String,
        /// Exit status, or minus the signal.
        return_code: i32,
    },
    /// A node gave up starting processes, or was stopped.
    NodeStopped {
        /// Node.
        node: String,
        /// Why, in one line. `None`: it had nothing more to do.
        cause: Option<String>,
    },
    /// Something takes unusually long.
    Waiting(Box<Waiting>),
    /// The ended job was opened again (`retry`): mini-batches that had failed are pending, their tries unspent.
    Reopened {
        /// Wall clock, milliseconds since the epoch.
        at: u64,
    },
    /// The job ends, and this is how. Only where several reducers may serve a job: what the ledger holds up to here is
    /// what all of them make the same output and the same result of.
    Ended {
        /// How.
        state: JobState,
        /// Why, in one line; `None` when completed.
        cause: Option<String>,
    },
    /// The rows of these mini-batches are gone, although they had succeeded: the machine stopped before their parts were
    /// on its disk. They are pending again.
    RowsLost {
        /// Those of them that nobody has done again since.
        mini_batches: Vec<u64>,
    },
    /// The machine stopped before this segment of the ledger was on its disk. What stands before this is what could be
    /// read of it.
    CutShort,
    /// Attempts that were delivered once more although they were committed. A reducer notes only how many.
    Duplicates {
        /// Since the last such note.
        count: u64,
    },
}

/// The plan is complete: the reducer now knows when it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Number of mini-batches.
    pub mini_batches: u64,
    /// Number of items where the plan knows it (files), else `None` (rows are counted when they are read).
    pub items: Option<u64>,
}

/// One attempt of one mini-batch, as it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Mini-batch.
    pub mini_batch: u64,
    /// Number of this try, from 1.
    pub try_number: u32,
    /// Deliveries lost with their node before this attempt.
    pub deliveries_lost: u32,
    /// Node that worked on it. This and the process are in every outcome: short names, as they are, cost no memory of their
    /// own.
    pub node: CompactString,
    /// `processNNN`; empty when no process saw it.
    pub process: CompactString,
    /// How it ended.
    pub status: AttemptStatus,
    /// Whether no further try follows. Successes are always final.
    pub is_final: bool,
    /// Items of the mini-batch; 0 where they could not be counted.
    pub total: u64,
    /// `min(len(result), total)`.
    pub succeeded: u64,
    /// Where the rows are.
    pub rows: Rows,
    /// Column names of a DataFrame result, for outputs that have a header; `None` for lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// Wall clock at the start, milliseconds since the epoch.
    pub started_at: u64,
    /// From hand-over to the process to its end.
    pub elapsed_seconds: f64,
    /// Processor time of the Python process.
    pub process_seconds: f64,
    /// Duration of `run()`.
    pub run_seconds: f64,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<ErrorReport>>,
    /// What the user should know although it went well. At most 10; `warnings_total` counts all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// Number of warnings, those not carried included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warnings_total: u64,
    /// First item, for people.
    pub detail: String,
    /// The trace that it belongs to; `None` where nobody traces.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Attempt {
    /// Items that did not succeed.
    pub fn failed(&self) -> u64 {
        self.total - self.succeeded.min(self.total)
    }
}

/// Every way an attempt can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptStatus {
    /// `run()` returned a legal value.
    Succeeded,
    /// `run()` raised.
    RunRaised,
    /// `run()` returned something that is no result.
    IllegalResult,
    /// `run()` took longer than `run_invocation_timeout` and the overhead.
    RunTimedOut,
    /// The mini-batch could not be read.
    LoadFailed,
    /// Reading the mini-batch took too long.
    LoadTimedOut,
    /// The Python process ended under it.
    ProcessDied,
    /// It was lost with its node too often.
    LostTooOften,
}

impl AttemptStatus {
    /// As it is written in messages, and for machines everywhere.
    pub fn word(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::RunRaised => "run_raised",
            Self::IllegalResult => "illegal_result",
            Self::RunTimedOut => "run_timed_out",
            Self::LoadFailed => "load_failed",
            Self::LoadTimedOut => "load_timed_out",
            Self::ProcessDied => "process_died",
            Self::LostTooOften => "lost_too_often",
        }
    }

    /// The word in `processed_mini-batches.csv`, as readers of the original know it.
    pub fn report_word(self) -> &'static str {
        match self {
            Self::Succeeded => "RUN_DONE",
            Self::RunRaised | Self::IllegalResult => "RUN_EXCEPTION",
            Self::RunTimedOut => "RUN_TIMEOUT",
            Self::LoadFailed => "LOAD_EXCEPTION",
            Self::LoadTimedOut => "LOAD_TIMEOUT",
            Self::ProcessDied => "PROCESS_DIED",
            Self::LostTooOften => "LOST_TOO_OFTEN",
        }
    }
}

/// Where the rows of a successful attempt are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Rows {
    /// There are none, or they are not wanted (`summary_only`).
    None,
    /// They follow the event in its record.
    Inline,
    /// They are a part in storage.
    Part {
        /// Name below `parts/`.
        name: String,
        /// Size.
        bytes: u64,
    },
}

/// What went wrong, for the person who has to mend it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// `ValueError`, `RunTimeout`, … One word.
    pub category: String,
    /// One line.
    pub message: String,
    /// Python traceback, or the stack at the moment of a timeout. May be empty. At most 16 KiB.
    #[serde(default)]
    pub traceback: String,
    /// File below `logs/` to open next.
    #[serde(default)]
    pub log: String,
}

/// Something that did not fail but that the user should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// One line that names the file, line, column and value where they are known.
    pub message: String,
}

/// A process that has been in one phase for unusually long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// Node.
    pub node: String,
    /// `processNNN`.
    pub process: String,
    /// Mini-batch it works on, if any.
    pub mini_batch: Option<u64>,
    /// What it is doing.
    pub phase: SlotPhase,
    /// For how long.
    pub seconds: u64,
    /// Python stack at this moment.
    pub stack: String,
}

/// What a Python process is doing. The numbers are those of the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum SlotPhase {
    /// The interpreter starts.
    Starting = 0,
    /// Imports the script and runs `init()`.
    Init = 1,
    /// Waits for a mini-batch.
    Idle = 2,
    /// Turns the frame of a mini-batch into the argument of `run()`.
    Load = 3,
    /// In `run()`.
    Run = 4,
    /// Formats and sends the result.
    Report = 5,
    /// In `shutdown()`.
    Shutdown = 6,
}

/// Every phase, by its number.
pub const SLOT_PHASES: [SlotPhase; 7] = [
    SlotPhase::Starting,
    SlotPhase::Init,
    SlotPhase::Idle,
    SlotPhase::Load,
    SlotPhase::Run,
    SlotPhase::Report,
    SlotPhase::Shutdown,
];

impl SlotPhase {
    /// A word for machines.
    pub fn metric_word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Init => "init",
            Self::Idle => "idle",
            Self::Load => "load",
            Self::Run => "run",
            Self::Report => "report",
            Self::Shutdown => "shutdown",
        }
    }

    /// A word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Init => "init()",
            Self::Idle => "idle",
            Self::Load => "loading",
            Self::Run => "run()",
            Self::Report => "reporting",
            Self::Shutdown => "shutdown()",
        }
    }
}
