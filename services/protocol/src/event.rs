//! Events that workers and the partitioner send to the reducer through the result queue, and that reducers add to the
//! ledger.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::words::duration;
use crate::{Attempt, ColumnType, FileVersion, GpuSet, JobState, NO_RESULT, Wear, is_default};

/// One event on the result queue. Rows that travel inline follow the event in its [`crate::Record`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ResultEvent {
    /// The job of the following events. Every result message begins with it, because reducers of several jobs share a
    /// queue.
    Job {
        /// The job.
        job_id: String,
    },
    /// An attempt ended.
    Attempt(Box<Attempt>),
    /// The plan is complete.
    Planned(Planned),
    /// The inputs cannot be listed or planned; the job fails with this cause.
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
        /// The GPUs that it is assigned.
        #[serde(default, rename = "gpu", skip_serializing_if = "Option::is_none")]
        gpus: Option<GpuSet>,
        /// Wall clock of the node, milliseconds since the epoch; 0: unknown.
        #[serde(default)]
        at: u64,
    },
    /// `init()` returned, or the script has no `init()`.
    ProcessReady {
        /// Node.
        node: String,
        /// `processNNN`.
        process: String,
        /// Duration of import and `init()`.
        init_seconds: f64,
        /// The rest of its start, and the share of the import.
        #[serde(default)]
        start: Start,
        /// A notice of the node for users, in one sentence; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        notice: String,
    },
    /// The script could not be imported, or `init()` raised or did not return in time.
    InitFailed {
        /// Node.
        node: String,
        /// `processNNN`.
        process: String,
        /// Error.
        error: Box<ErrorReport>,
    },
    /// A Python process ended.
    ProcessEnded {
        /// Node.
        node: String,
        /// `processNNN`.
        process: String,
        /// Exit status, or the negated number of the signal.
        return_code: i32,
        /// Wall clock of the node, milliseconds since the epoch; 0: unknown.
        #[serde(default)]
        at: u64,
        /// Why the node replaces it although it worked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wear: Option<Wear>,
        /// A notice of the node for users, in one sentence; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        notice: String,
    },
    /// A node stopped.
    NodeStopped {
        /// Node.
        node: String,
        /// Why it gave up, in one line; `None` if it had no work left.
        cause: Option<String>,
    },
    /// A process or node takes unusually long.
    Waiting(Box<Waiting>),
    /// A mini-batch makes progress although no attempt ends: its items run in ranges, or it waits for a service. It counts
    /// for `progress_update_timeout` alone.
    Working {
        /// Node.
        node: String,
        /// Mini-batch.
        mini_batch: u64,
    },
    /// A round of the job begins.
    Round(Round),
    /// The job ends. Each reducer that serves it makes the same output and result from the ledger before this event. The
    /// ledger of a job with one reducer has it only if the job does not complete.
    Ended {
        /// Final state.
        state: JobState,
        /// Why, in one line; `None` when completed.
        cause: Option<String>,
        /// The failure behind the cause, if no other event reports it: a process without progress.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Box<ErrorReport>>,
    },
    /// Reverts the successes of these mini-batches, because the machine stopped before their parts were on its disk, or
    /// because the job is reopened and would fail again at once for want of the items that they lack.
    RowsLost {
        /// Mini-batches that are pending again.
        mini_batches: Vec<u64>,
    },
    /// The machine stopped before this segment of the ledger was on its disk: its records are lost.
    CutShort,
    /// Attempts that were delivered again after their commit. The ledger holds only their number.
    Duplicates {
        /// Number since the last such event.
        count: u64,
    },
}

/// The durations of the parts of a start that [`ResultEvent::ProcessReady`] does not name. 0:
/// unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Start {
    /// From the start of the process until it imports the script.
    pub interpreter_seconds: f64,
    /// Import of the script, a part of `init_seconds`.
    pub import_seconds: f64,
}

/// The ended work that a round of a job runs again. Unfinished mini-batches run in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Wall clock, milliseconds since the epoch.
    pub at: u64,
    /// Names the objects that hold the rows of `rejects`.
    pub id: String,
    /// The output that the job wrote before, unless an earlier round says the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<FileVersion>,
    /// Whether it continues an interrupted round: the tries that mini-batches have spent stay
    /// spent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub goes_on: bool,
    /// Whether it begins while the job runs: then the reducers that serve the job publish its
    /// mini-batches.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_live: bool,
    /// Digest of the script that it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub script: String,
    /// Whether that is another script than that of the round before.
    #[serde(default, skip_serializing_if = "is_default")]
    pub has_other_script: bool,
    /// Failed mini-batches are pending, with all their tries.
    pub failed: bool,
    /// Mini-batches of which the rejected items run again. Their other rows stay, and, if they do not succeed, all that they
    /// have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejects: Vec<u64>,
    /// Number of these items.
    #[serde(default, skip_serializing_if = "is_default")]
    pub items: u64,
    /// Mini-batches that run again as a whole, because nothing says which rows are those of their rejected items. If they do
    /// not succeed, all that they have stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub whole: Vec<u64>,
}

/// The totals of a complete plan: from now on the reducer knows when the job is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Number of mini-batches.
    pub mini_batches: u64,
    /// Number of items if the plan knows it (files); `None` for rows, which are counted when they are read.
    pub items: Option<u64>,
}

/// An error, for the person who fixes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// `ValueError`, `RunTimeout`, … One word.
    pub category: String,
    /// One line.
    pub message: String,
    /// Python traceback, or the stack at the moment of a timeout. May be empty. At most 16 KiB.
    #[serde(default)]
    pub traceback: String,
    /// File below `logs/` to open next. May be empty.
    #[serde(default)]
    pub log: String,
    /// The last lines that the script, native code and child processes printed during the attempt: at most 10 lines
    /// and 2 KiB. May be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub printed: String,
}

impl ErrorReport {
    /// Returns the error of items for which `run()` returned no result.
    pub fn no_result(message: &str) -> Self {
        Self { category: NO_RESULT.to_owned(), message: message.to_owned(), ..Self::default() }
    }

    /// Returns the error and the file to open in whole sentences: `ValueError: bad value. Open logs/user/error/….`
    pub fn sentence(&self) -> String {
        let separator = if self.category.is_empty() || self.message.is_empty() { "" } else { ": " };
        let mut text = format!("{}{separator}{}", self.category, self.message.trim_end());
        if !text.ends_with(['.', '!', '?', '…']) {
            text.push('.');
        }
        if !self.log.is_empty() {
            text.push_str(&format!(" Open logs/{}.", self.log));
        }
        text
    }
}

/// A warning for the user about a mini-batch that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// One line that names file, line, column and value as far as they are known.
    pub message: String,
}

/// Kinds of warnings that are recorded separately; further kinds are only counted.
pub const WARNING_KINDS_MAX: usize = 50;

/// Warnings of one kind, counted. The summary of a job reports each kind in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarningKind {
    /// The column, if the kind concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// Problem and its consequence: `not a truth value, read as missing`.
    pub problem: String,
    /// Number of warnings.
    pub count: u64,
    /// Place and value of the first warning: `data.csv, line 203: "2"`.
    pub first: String,
    /// The remedy: a key to set, or a value to correct.
    pub remedy: String,
    /// The type to give to the column, if that is the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column_type: Option<ColumnType>,
}

/// End of [`WarningKind::problem`] where the record has not reached `run()`.
pub const RECORD_FAILED: &str = "the record failed";

impl WarningKind {
    /// Whether each of the warnings is about a record that has not reached `run()`.
    pub fn loses_records(&self) -> bool {
        self.problem.ends_with(RECORD_FAILED)
    }

    /// Adds the warnings to their kind in `kinds`, or as a new kind while there are fewer than [`WARNING_KINDS_MAX`].
    pub fn add_to(self, kinds: &mut Vec<Self>) {
        match kinds
            .iter()
            .position(|known| known.column == self.column && known.problem == self.problem)
        {
            Some(index) => kinds[index].add(self),
            None if kinds.len() < WARNING_KINDS_MAX => kinds.push(self),
            None => {}
        }
    }

    fn add(&mut self, later: Self) {
        self.count = self.count.saturating_add(later.count);
        // Suggest the type that can hold more values.
        if later.column_type > self.column_type {
            (self.column_type, self.remedy) = (later.column_type, later.remedy);
        }
    }
}

impl fmt::Display for WarningKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { column, problem, count, first, remedy, .. } = self;
        if let Some(column) = column {
            write!(formatter, "column {column:?}: ")?;
        }
        match count {
            1 => write!(formatter, "{problem} (once: {first}); {remedy}"),
            _ => write!(formatter, "{problem} ({count} times; first: {first}); {remedy}"),
        }
    }
}

/// A process or node that has been in one phase for unusually long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// Node.
    pub node: String,
    /// `processNNN`; empty for the node itself, whose `detail` names the activity.
    pub process: String,
    /// Current mini-batch, if any.
    pub mini_batch: Option<u64>,
    /// Current phase.
    pub phase: SlotPhase,
    /// Duration of the phase until this report.
    pub seconds: u64,
    /// Wall clock at the start of the phase, milliseconds since the epoch; 0: unknown.
    #[serde(default)]
    pub since: u64,
    /// The activity, if the phase does not name it: `installing the packages of requirements.txt`, or the facts known
    /// about a process whose Python stack cannot be read. One line, may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Current Python stack, the main thread first. May be empty.
    pub stack: String,
    /// The last lines that the current mini-batch, or the start of the process, has printed until this report. Bounded like
    /// [`ErrorReport::printed`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub printed: String,
}

/// `mini-batch 7 on node 0, process001, in run() for 16 s, at "score.py", line 5 in run`
impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, process, phase, detail, .. } = self;
        let time = duration(self.seconds as f64);
        if process.is_empty() {
            write!(f, "node {node} for {time}")?;
            return if detail.is_empty() { Ok(()) } else { write!(f, ": {detail}") };
        }
        if let Some(mini_batch) = self.mini_batch {
            write!(f, "mini-batch {mini_batch} on ")?;
        }
        write!(f, "node {node}, {process}, in {} for {time}", phase.word())?;
        if !detail.is_empty() {
            write!(f, ", {detail}")?;
        }
        match innermost_frame(&self.stack) {
            Some(frame) => write!(f, ", at {frame}"),
            None => Ok(()),
        }
    }
}

/// Returns the current frame of a Python stack: the first line that names a file in a dump of `faulthandler` ("most
/// recent call first"), or the last such line in a traceback.
fn innermost_frame(stack: &str) -> Option<String> {
    let mut frames = stack.lines().map(str::trim).filter(|line| line.starts_with("File "));
    let frame =
        if stack.contains("most recent call first") { frames.next() } else { frames.next_back() };
    frame.map(|frame| one_line(frame.trim_start_matches("File ")))
}

/// The phase that a Python process is in. The numbers are those of the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum SlotPhase {
    /// The interpreter starts.
    Starting = 0,
    /// In `init()`.
    Init = 1,
    /// Waits for a mini-batch.
    Idle = 2,
    /// Builds the argument of `run()` from the frame of a mini-batch.
    Load = 3,
    /// In `run()`.
    Run = 4,
    /// Formats and sends a result.
    Report = 5,
    /// In `shutdown()`.
    Shutdown = 6,
    /// Imports the entry script.
    Import = 7,
    /// In `run()` of the script that runs a command. Only nodes report it.
    Command = 8,
}

/// Every phase of a process, indexed by its number.
pub const SLOT_PHASES: [SlotPhase; 8] = [
    SlotPhase::Starting,
    SlotPhase::Init,
    SlotPhase::Idle,
    SlotPhase::Load,
    SlotPhase::Run,
    SlotPhase::Report,
    SlotPhase::Shutdown,
    SlotPhase::Import,
];

impl SlotPhase {
    /// Returns the word for machines.
    pub fn metric_word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Init => "init",
            Self::Idle => "idle",
            Self::Load => "load",
            Self::Run => "run",
            Self::Report => "report",
            Self::Shutdown => "shutdown",
            Self::Import => "import",
            Self::Command => "command",
        }
    }

    /// Returns the word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Starting => "the start of the interpreter",
            Self::Init => "init()",
            Self::Idle => "idle",
            Self::Load => "loading",
            Self::Run => "run()",
            Self::Report => "reporting",
            Self::Shutdown => "shutdown()",
            Self::Import => "the import of the entry script",
            Self::Command => "the command",
        }
    }
}

/// Returns the first line. A long line loses its middle, because the end often names the remedy.
pub fn one_line(text: &str) -> String {
    const BEGINNING: usize = 600;
    const END: usize = 300;
    let line = text.trim().lines().next().unwrap_or_default();
    let count = line.chars().count();
    if count <= BEGINNING + END {
        return line.to_owned();
    }
    let at = |position| line.char_indices().nth(position).map_or(line.len(), |(at, _)| at);
    format!("{} … {}", &line[..at(BEGINNING)], &line[at(count - END)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> Waiting {
        Waiting {
            node: "a".into(),
            process: "process003".into(),
            mini_batch: Some(7),
            phase: SlotPhase::Run,
            seconds: 192,
            since: 0,
            detail: String::new(),
            stack: "Current thread 0x1 (most recent call first):\n  File \"a.py\", line 3 in wait\n  File \"b.py\", line 9 in run".into(),
            printed: String::new(),
        }
    }

    #[test]
    fn wait_of_a_process_names_mini_batch_phase_and_line() {
        let expected = r#"mini-batch 7 on node a, process003, in run() for 3 min 12 s, at "a.py", line 3 in wait"#;
        assert_eq!(waiting().to_string(), expected);
        let asked = Waiting {
            detail: "asked to wait".into(),
            stack: String::new(),
            mini_batch: None,
            ..waiting()
        };
        assert_eq!(asked.to_string(), "node a, process003, in run() for 3 min 12 s, asked to wait");
        let command = Waiting { phase: SlotPhase::Command, ..asked };
        assert_eq!(
            command.to_string(),
            "node a, process003, in the command for 3 min 12 s, asked to wait"
        );
    }

    #[test]
    fn wait_of_a_node_says_for_what() {
        let detail = "other jobs use the GPU of this node";
        let node = Waiting {
            process: String::new(),
            mini_batch: None,
            detail: detail.into(),
            ..waiting()
        };
        assert_eq!(node.to_string(), "node a for 3 min 12 s: other jobs use the GPU of this node");
    }

    #[test]
    fn error_report_makes_whole_sentences() {
        let sentence = |category: &str, message: &str, log: &str| {
            ErrorReport {
                category: category.into(),
                message: message.into(),
                log: log.into(),
                ..Default::default()
            }
            .sentence()
        };
        assert_eq!(
            sentence("ValueError", "bad value", "a.txt"),
            "ValueError: bad value. Open logs/a.txt."
        );
        assert_eq!(sentence("ValueError", "bad value. ", ""), "ValueError: bad value.");
        assert_eq!(sentence("RunTimeout", "", "a.txt"), "RunTimeout. Open logs/a.txt.");
        assert_eq!(sentence("", "is it there?", ""), "is it there?");
    }

    #[test]
    fn long_line_keeps_its_beginning_and_its_end() {
        let line = format!("beginning {} end", "ü".repeat(5000));
        let short = one_line(&line);
        assert!(
            short.starts_with("beginning ü")
                && short.ends_with("ü end")
                && short.chars().count() < 1000,
            "{short}"
        );
        assert_eq!(one_line("two\nlines"), "two");
    }
}
