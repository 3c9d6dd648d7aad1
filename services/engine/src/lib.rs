//! The life of a job, as a library: check, run, submit, retry, follow, cancel, list and remove jobs, on this machine and
//! on compute targets; check machines and targets themselves.
//!
//! Values in, values out: [`Settings`] describe the use of this machine, [`Event`]s report what happens, a job ends with a
//! [`JobResult`](protocol::JobResult), an [`Error`] is a condition that callers may react to, and a [`Remedy`] is what people
//! can do about it. The engine reads no variable of Gristmill (`storage` and the AWS SDK read those of cloud vendors), prints
//! nothing, names no command, and has no exit statuses; the command line is one caller of it.
//!
//! # A whole job
//!
//! ```
//! # use std::fs::write;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! # std::fs::create_dir(folder.join("in"))?;
//! # write(folder.join("in/a.txt"), "1")?;
//! # write(folder.join("in/b.txt"), "2")?;
//! use engine::{Document, Engine, Event, Settings, StopRequest, events};
//!
//! write(folder.join("double.py"), "def run(files):\n    return [2 * int(open(file).read()) for file in files]\n")?;
//! let job = "{name: double, entry_script: double.py, inputs: [{name: numbers, type: file, path: in}], \
//!             output_action: append_row, output: out}";
//!
//! let mut settings = Settings::new(folder.join("home"));
//! // Any folder that holds the Python packages of this version.
//! settings.package = std::env::var_os("GRISTMILL_PYTHON_PACKAGE").map(Into::into);
//! // What scripts get.
//! settings.environment = std::env::vars_os().collect();
//! let engine = Engine::new(settings);
//!
//! let (sender, mut stream) = events();
//! let mut parsed = engine.read(&Document::new(folder.join("job.yaml"), job), &sender)?;
//! let check = engine.check(&mut parsed, &Default::default(), true, &sender)?;
//! let result = engine.run(parsed, check, false, &StopRequest::default(), &sender).await?;
//! drop(sender);
//! while let Some(event) = stream.recv().await {
//!     if let Event::Notice(notice) = event {
//!         println!("{notice:?}");
//!     }
//! }
//! assert_eq!(result.items.succeeded, 2, "{result:?}");
//! assert_eq!(std::fs::read_to_string(result.output.expect("a file of rows"))?, "2\n4\n");
//! # Ok(()) }) }
//! ```

mod busy;
mod cancel;
mod check;
mod clean;
pub mod cost;
pub mod crash;
mod dead_letters;
mod decisions;
mod diagnosis;
pub mod doctor;
mod ended;
mod error;
mod event;
mod execute;
mod fit;
mod follow;
mod functions;
pub mod history;
mod home;
mod index;
mod job_id;
mod jobs;
mod list;
mod logs;
mod own_paths;
mod printed;
mod priority;
mod publisher;
mod register;
mod rejects;
mod remedy;
mod retry;
mod reuse;
mod roles;
mod round;
mod rows;
mod run;
mod separate_run;
mod settings;
mod source;
mod state;
mod status;
mod steps;
mod submit;
pub mod targets;
mod unfinished;

pub use busy::Busy;
pub use cancel::Canceled;
pub use check::{Check, Document};
pub use clean::{Candidate, CleanReport, CleanUp, KeptReason, OldJobs};
pub use dead_letters::{DeadLetter, DeadLetterAction, DeadLetters, Moved};
pub use decisions::{Decisions, TextDecisions};
pub use diagnosis::{Blocker, Diagnosis, Heartbeat, Hint, Since};
pub use error::{Error, Result};
pub use event::{Event, Events, NewJobReason, Notice, UrlUse, events};
pub use execute::StopRequest;
pub use follow::{FollowEnd, follow};
pub use home::Home;
pub use job_file::{AzureNames, arguments_of};
pub use job_id::{name_of, newest_first, started_at};
pub use jobs::{FoundJob, Jobs, OpenJobs, Purpose};
pub use list::{Activity, READS_AT_ONCE, Summary, rate};
pub use logs::{FirstError, NewLines, OVERVIEW, Tail, TailEnd};
pub use printed::Printed;
pub use priority::Reprioritised;
pub use reducer::BegunRound;
pub use rejects::RejectSummary;
pub use remedy::{Fixable, Remedy};
pub use retry::{NothingMissing, Retry, RetryOptions};
pub use roles::{NAME_LENGTH_MAX, NodeFolders, ReducingOptions, is_node_name, new_node_name};
pub use separate_run::{SeparateRun, can_run_alone};
pub use settings::{PREFETCH_BYTES, Settings};
pub use source::{ScriptSource, SourceFile};
pub use state::{Selection, State};
pub use status::{Status, StatusDocument, StatusReader};
pub use steps::{CheckedSteps, StepResult};
pub use submit::{PlannedJob, Submission};
pub use unfinished::Continuation;

// What callers find in values of the engine: the objects of a job, and what its ledger says.
pub use reducer::{FailureGroup, MiniBatchState, RejectedMiniBatch, Tally};
pub use storage::{Error as StoreError, JobStore, LogFile, Reuses, RoundRequest, SeenWorker};
pub use tables::first_rows;

// Words that reports, commands and pages share.
pub use protocol::words;

// Names that many modules of this crate share.
use home::Lock;
use index::Index;
use job_id::{is_named, name_with, new_job_id, started};
use targets::{QueueAddress, Queues, Target, TargetRef};
use unfinished::Unfinished;

/// Runs jobs on this machine and on compute targets.
#[derive(Clone, Debug)]
pub struct Engine {
    settings: Settings,
    home: Home,
}

impl Engine {
    /// Creates an engine with these settings. It creates no folder before it needs one.
    pub fn new(settings: Settings) -> Self {
        let home = Home::new(settings.home.clone());
        Self { settings, home }
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the folder of local jobs.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Returns the jobs of this machine.
    pub fn jobs(&self) -> Jobs {
        Jobs::Here(self.home.clone())
    }

    /// Returns the jobs of a target, or of this machine. Opens no queue.
    pub async fn jobs_of(&self, target: Option<&Target>) -> Result<Jobs> {
        Ok(match target {
            Some(target) => target.jobs(target.open_store().await?),
            None => self.jobs(),
        })
    }
}
