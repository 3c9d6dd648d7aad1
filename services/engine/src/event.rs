//! What happens to a job while the caller waits: a stream of typed events. The caller decides how to show them.

use std::path::PathBuf;

use job_file::{Difference, Problem};
use protocol::Progress;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::standing::Hint;
use crate::unfinished::Continuation;

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// The job has this id from now on.
    Job(String),
    /// The job reports progress. The receivers always hold the latest.
    Progress {
        /// How far the job is.
        latest: watch::Receiver<Progress>,
        /// What the job waits for.
        hint: watch::Receiver<Option<Hint>>,
    },
    /// No more progress follows.
    ProgressEnded,
    /// Something that people should know.
    Notice(Notice),
}

/// Something that people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The job file, or an input, is read in a way that may not be intended.
    Doubt(Problem),
    /// A decision of the engine about an input; a note of the job, as its result repeats it.
    Decision(String),
    /// A store has not answered, so it is unknown whether the output can be written.
    StoreSilent {
        /// The output.
        url: String,
        /// How long the engine waited.
        seconds: u64,
    },
    /// An interpreter has not answered, so the script is not checked.
    InterpreterSilent {
        /// The interpreter.
        python: PathBuf,
        /// How long the engine waited.
        seconds: u64,
    },
    /// The default interpreter of this machine found problems; the job names none.
    CheckedWithDefault {
        /// The interpreter.
        python: PathBuf,
    },
    /// An unfinished job is not continued, because its inputs have changed.
    InputsChanged {
        /// The unfinished job.
        job_id: String,
    },
    /// An earlier job of the same name is neither continued nor reused.
    NewJob {
        /// The earlier job.
        earlier: String,
        /// The reason.
        reason: NewJobReason,
    },
    /// The job is completed, and no mini-batch failed.
    NothingToDo {
        /// The job.
        job_id: String,
    },
    /// The result of the job cannot be read; the engine determines it again.
    DamagedResult,
    /// The script, its data or its models have changed since the job began.
    ChangedSinceStart {
        /// The script itself has changed.
        script: bool,
        /// The differences, as far as they are known.
        differences: Vec<Difference>,
    },
    /// The script was changed while the job ran.
    ChangedWhileRunning {
        /// The script itself was changed.
        script: bool,
        /// The differences in its side inputs.
        differences: Vec<Difference>,
    },
    /// A power cut has damaged segments of the ledger.
    LedgerMended {
        /// Number of segments.
        segments: u32,
    },
    /// Rows of successes are lost; their mini-batches run again.
    RowsLost {
        /// Number of mini-batches.
        mini_batches: u64,
        /// The first of them.
        first: u64,
    },
    /// The job continues an earlier run.
    Continuing(Continuation),
    /// The script folder holds more than can travel to a target.
    LargeScriptFolder(job_file::Incomplete),
    /// A Python environment is being created.
    CreatingEnvironment {
        /// The file that describes it.
        file: PathBuf,
        /// The folder that keeps it for later jobs.
        folder: PathBuf,
    },
    /// All mini-batches have ended, and Python processes have not.
    WaitingForProcesses,
    /// A job of a compute target waits.
    Waiting(Hint),
    /// A job was asked to stop; the engine waits for it.
    CancelRequested {
        /// The job.
        job_id: String,
        /// How long at most.
        seconds: u64,
    },
    /// Paths of this machine, which other nodes may not have.
    LocalPaths {
        /// Some of them.
        paths: Vec<String>,
        /// How many more there are.
        more: usize,
        /// The queue of the nodes.
        queue: String,
    },
}

/// Why an earlier job is neither continued nor reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewJobReason {
    /// The earlier job is unfinished, and is another job.
    Unfinished(Vec<Difference>),
    /// The earlier job has completed, and is another job.
    Completed(Vec<Difference>),
    /// The earlier job has completed, and its inputs have changed since.
    InputsChanged {
        /// The input, if there is only one.
        input: Option<String>,
    },
    /// The earlier job has completed, and its output is missing or was changed since.
    OutputChanged {
        /// The output.
        output: String,
    },
    /// The earlier job has failed mini-batches.
    Failed,
}

impl Notice {
    /// Returns the notice about successes whose rows are lost, if there are any.
    pub(crate) fn lost_rows(mini_batches: &[u64]) -> Option<Self> {
        let first = *mini_batches.first()?;
        Some(Self::RowsLost { mini_batches: mini_batches.len() as u64, first })
    }

    /// Whether people must see it even if they want a quiet command.
    pub fn is_warning(&self) -> bool {
        let is_note = matches!(
            self,
            Self::Decision(_) | Self::Continuing(_) | Self::CreatingEnvironment { .. } | Self::WaitingForProcesses
        );
        !is_note
    }
}

/// Where the engine sends events.
#[derive(Clone, Debug)]
pub struct Events(Option<UnboundedSender<Event>>);

/// Creates a stream of events. It ends when every [`Events`] is dropped.
pub fn events() -> (Events, UnboundedReceiver<Event>) {
    let (sender, receiver) = unbounded_channel();
    (Events(Some(sender)), receiver)
}

impl Events {
    /// Creates a sender without a receiver.
    pub fn ignored() -> Self {
        Self(None)
    }

    /// Sends an event. A closed stream is not an error.
    pub fn send(&self, event: Event) {
        if let Some(sender) = &self.0 {
            let _ = sender.send(event);
        }
    }

    /// Sends a notice.
    pub fn notice(&self, notice: Notice) {
        self.send(Event::Notice(notice));
    }

    /// Sends the progress of a job until the returned guard is dropped.
    pub(crate) fn progress(
        &self,
        latest: watch::Receiver<Progress>,
        hint: watch::Receiver<Option<Hint>>,
    ) -> ProgressGuard<'_> {
        self.send(Event::Progress { latest, hint });
        ProgressGuard(self)
    }
}

/// Ends the progress of a job when it is dropped.
#[derive(Debug)]
pub(crate) struct ProgressGuard<'a>(&'a Events);

impl Drop for ProgressGuard<'_> {
    fn drop(&mut self) {
        self.0.send(Event::ProgressEnded);
    }
}
