//! The events of a job while the caller waits, as a typed stream. The caller decides how to show
//! them.

use std::path::PathBuf;

use job_file::{Difference, Problem};
use protocol::{Progress, Unfit};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::{Continuation, Hint, NothingMissing};

/// An event of a request.
#[derive(Debug)]
pub enum Event {
    /// A step of a document begins.
    Step {
        /// Its name.
        name: String,
        /// Its number, from 1.
        number: usize,
        /// The number of all steps.
        count: usize,
    },
    /// The job has this id from now on.
    Job(String),
    /// No job runs, because the job with this id has the result already.
    Reused(String),
    /// The job reports progress.
    Progress {
        /// Holds the latest progress at any time.
        latest: watch::Receiver<Progress>,
        /// Holds the reason why the job waits.
        hint: watch::Receiver<Option<Hint>>,
    },
    /// No more progress follows.
    ProgressEnded,
    /// A notice for people.
    Notice(Notice),
}

/// A notice for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The job file, or an input, is read in a way that may not be intended.
    Doubt(Problem),
    /// A decision of the engine about an input; a note of the job, as its result repeats it.
    Decision(String),
    /// A store has not answered, so it is unknown whether the job can use a URL.
    StoreSilent {
        /// The URL.
        url: String,
        /// How long the check waited.
        seconds: u64,
    },
    /// This machine cannot use a URL, which only roles of the target use.
    UnusableHere {
        /// The problem.
        problem: String,
        /// The user of the URL.
        how: UrlUse,
    },
    /// An interpreter has not answered, so the script is not checked.
    InterpreterSilent {
        /// The interpreter.
        python: PathBuf,
        /// How long the check waited.
        seconds: u64,
    },
    /// The default interpreter of this machine found problems; the job names none.
    CheckedWithDefault(PathBuf),
    /// The engine has moved the files of an earlier run out of a folder of the job.
    SetAside {
        /// The folder.
        folder: PathBuf,
        /// Where its files are.
        to: PathBuf,
    },
    /// This unfinished job is not continued, because its inputs have changed.
    InputsChanged(String),
    /// An earlier job of the same name is neither continued nor reused.
    NewJob {
        /// The earlier job.
        earlier: String,
        /// The reason.
        reason: NewJobReason,
    },
    /// This job has completed, and a retry has nothing to run.
    NothingToDo {
        /// The job.
        job_id: String,
        /// Failed mini-batches and rejected items that were not selected.
        left: (u64, u64),
        /// Items without a result that a retry cannot run, because they are not named.
        unnamed: u64,
    },
    /// This job runs, and starts a round for its failures so far.
    RoundRequested(String),
    /// This job has not ended, and no message of it is missing.
    NothingMissing {
        /// The job.
        job_id: String,
        /// Why no message is missing.
        state: NothingMissing,
        /// Mini-batches that have not ended, if all are planned.
        unended: Option<u64>,
        /// Mini-batches that have failed so far.
        failed: u64,
    },
    /// The result of the job cannot be read; the engine determines it again.
    DamagedResult,
    /// The script, its data or its models have changed since the job began.
    Changed {
        /// Whether they changed while the job ran.
        while_running: bool,
        /// Whether the script itself has changed.
        script: bool,
        /// The differences that are known.
        differences: Vec<Difference>,
    },
    /// A power cut damaged this many segments of the ledger.
    LedgerMended(u32),
    /// Rows of successes are lost; their mini-batches run again.
    RowsLost {
        /// The number of these mini-batches.
        mini_batches: u64,
        /// The first of them.
        first: u64,
    },
    /// The job continues an earlier run.
    Continuing(Continuation),
    /// The script folder holds more than can travel to a target.
    LargeScriptFolder(job_file::Incomplete),
    /// A Python environment is being created from a file, in a folder that keeps it for later jobs.
    CreatingEnvironment {
        /// The file.
        file: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// All mini-batches have ended, and Python processes have not.
    WaitingForProcesses,
    /// A job of a compute target waits.
    Waiting(Hint),
    /// A job was asked to stop, and the engine waits for it.
    CancelRequested {
        /// The job.
        job_id: String,
        /// How long the engine waits at most.
        seconds: u64,
    },
    /// The job names paths of this machine, which the nodes may not have.
    LocalPaths {
        /// Some of them.
        paths: Vec<String>,
        /// How many more there are.
        more: usize,
        /// The queue that these nodes receive from.
        queue: String,
    },
    /// No running worker meets the requirements of the job.
    NoWorkerFits(Unfit),
}

/// The use of a URL of a job that is not an input.
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
    /// Returns the problem if a store rejects it.
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
    /// It is unfinished, and differs from this job.
    Unfinished(Vec<Difference>),
    /// It has completed, and differs from this job.
    Completed(Vec<Difference>),
    /// It has completed, and its inputs have changed since: this one, if there is only one.
    InputsChanged(Option<String>),
    /// It has completed, and its output, which is here, is missing or was changed since.
    OutputChanged(String),
    /// It has completed, and has run several versions of its script or side inputs.
    SeveralVersions,
    /// It has failed, as a whole or in part. It may also differ from this job.
    Failed(Vec<Difference>),
}

impl Notice {
    /// Whether even a quiet command shows it.
    pub fn is_warning(&self) -> bool {
        let is_note = matches!(
            self,
            Self::Decision(_)
                | Self::Continuing(_)
                | Self::RoundRequested(_)
                | Self::CreatingEnvironment { .. }
                | Self::WaitingForProcesses
        );
        !is_note
    }
}

/// The sender of events.
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

    /// Sends the warnings about a job file.
    pub(crate) fn doubts(&self, warnings: &[Problem]) {
        warnings.iter().for_each(|warning| self.notice(Notice::Doubt(warning.clone())));
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
