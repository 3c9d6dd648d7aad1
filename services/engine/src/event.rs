//! What happens to a job while the caller waits: a stream of typed events. The caller decides how to show them.

use std::path::PathBuf;

use job_file::{Difference, Problem};
use protocol::{Progress, Unfit};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::{Continuation, Hint, InFlight, Remedy, TargetRef};

/// Something that happened.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Event {
    /// A step of a document begins: its name, its number from 1, and the number of all steps.
    Step { name: String, number: usize, count: usize },
    /// The job has this id from now on.
    Job(String),
    /// Nothing runs, because the job with this id has the result already.
    Reused(String),
    /// The job reports progress. The receivers always hold the latest, and what the job waits for.
    Progress { latest: watch::Receiver<Progress>, hint: watch::Receiver<Option<Hint>> },
    /// No more progress follows.
    ProgressEnded,
    /// Something that people should know.
    Notice(Notice),
}

/// Something that people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Notice {
    /// The job file, or an input, is read in a way that may not be intended.
    Doubt(Problem),
    /// A decision of the engine about an input; a note of the job, as its result repeats it.
    Decision(String),
    /// A store has not answered for this long, so it is unknown whether the job can use this URL.
    StoreSilent { url: String, seconds: u64 },
    /// This machine cannot use a URL, which only roles of the target use.
    UnusableHere { problem: String, how: UrlUse },
    /// An interpreter has not answered for this long, so the script is not checked.
    InterpreterSilent { python: PathBuf, seconds: u64 },
    /// The default interpreter of this machine found problems; the job names none.
    CheckedWithDefault(PathBuf),
    /// This unfinished job is not continued, because its inputs have changed.
    InputsChanged(String),
    /// An earlier job of the same name is neither continued nor reused.
    NewJob { earlier: String, reason: NewJobReason },
    /// This job has completed, and no mini-batch failed. Only a replay runs its rejected items again.
    NothingToDo { job_id: String, rejected: u64, remedy: Option<Remedy> },
    /// This job has not ended, and nothing of it needs to be published. With the numbers of mini-batches that have not ended,
    /// if all are planned, and that have failed so far.
    InFlight { job_id: String, state: InFlight, unended: Option<u64>, failed: u64 },
    /// The result of the job cannot be read; the engine determines it again.
    DamagedResult,
    /// The script itself, its data or its models have changed since the job began; with the differences that are known.
    ChangedSinceStart { script: bool, differences: Vec<Difference> },
    /// The script itself, or its side inputs, were changed while the job ran; with the differences of these.
    ChangedWhileRunning { script: bool, differences: Vec<Difference> },
    /// A power cut has damaged this many segments of the ledger.
    LedgerMended(u32),
    /// Rows of this many successes are lost; their mini-batches run again. A job that had completed has removed them.
    RowsLost { mini_batches: u64, first: u64, had_completed: bool },
    /// The job continues an earlier run.
    Continuing(Continuation),
    /// The script folder holds more than can travel to a target.
    LargeScriptFolder(job_file::Incomplete),
    /// A Python environment is being created from a file, in a folder that keeps it for later jobs.
    CreatingEnvironment { file: PathBuf, folder: PathBuf },
    /// All mini-batches have ended, and Python processes have not.
    WaitingForProcesses,
    /// A job of a compute target waits.
    Waiting(Hint),
    /// A job was asked to stop; the engine waits for it, at most this long.
    CancelRequested { job_id: String, seconds: u64 },
    /// Some paths of this machine, and how many more there are, which the nodes at this queue may not have.
    LocalPaths { paths: Vec<String>, more: usize, queue: String },
    /// No worker of this target that runs now takes the job.
    NoWorkerFits { unfit: Unfit, target: TargetRef },
}

/// What uses a URL of a job, beside its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlUse {
    /// The reducer writes the output.
    Output,
    /// Scripts on workers write it.
    Written,
    /// Workers read it.
    Read,
}

impl UrlUse {
    /// Returns what is wrong if a store rejects it.
    pub(crate) fn rejected(self, url: &str, cause: &str) -> String {
        match self {
            Self::Output | Self::Written => format!("nothing can be written to {url}: {cause}"),
            Self::Read => format!("{url} cannot be read: {cause}"),
        }
    }

    /// Returns which roles of a target use it, as the end of a sentence.
    pub fn by(self) -> &'static str {
        match self {
            Self::Output => "the reducer writes it",
            Self::Written => "the workers write it",
            Self::Read => "the workers read it",
        }
    }
}

/// Why an earlier job is neither continued nor reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewJobReason {
    /// It is unfinished, and is another job.
    Unfinished(Vec<Difference>),
    /// It has completed, and is another job.
    Completed(Vec<Difference>),
    /// It has completed, and its inputs have changed since: this one, if there is only one.
    InputsChanged(Option<String>),
    /// It has completed, and its output, which is here, is missing or was changed since.
    OutputChanged(String),
    /// It has failed mini-batches.
    Failed,
}

impl Notice {
    /// Returns the notice about successes whose rows are lost, if there are any.
    pub(crate) fn lost_rows(mini_batches: &[u64], had_completed: bool) -> Option<Self> {
        let first = *mini_batches.first()?;
        Some(Self::RowsLost { mini_batches: mini_batches.len() as u64, first, had_completed })
    }

    /// Whether people must see it even if they want a quiet command.
    pub fn is_warning(&self) -> bool {
        let is_note = matches!(
            self,
            Self::Decision(_)
                | Self::RowsLost { had_completed: true, .. }
                | Self::Continuing(_)
                | Self::CreatingEnvironment { .. }
                | Self::WaitingForProcesses
        );
        !is_note
    }
}

/// Where the engine sends events.
#[derive(Clone, Debug)]
pub struct Events(UnboundedSender<Event>);

/// Creates a stream of events. It ends when every [`Events`] is dropped.
pub fn events() -> (Events, UnboundedReceiver<Event>) {
    let (sender, receiver) = unbounded_channel();
    (Events(sender), receiver)
}

impl Events {
    /// Sends an event. A closed stream is not an error.
    pub fn send(&self, event: Event) {
        let _ = self.0.send(event);
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
