//! Why the engine could not do what a caller asked for.

use std::path::PathBuf;

use job_file::Problem;
use protocol::Full;

use crate::TargetRef;

/// Result of a request to the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the engine could not do what a caller asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The job file, or something that it names, is invalid. Nothing was started.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
    /// Trying later may work.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// Anything else. Its chain may hold a [`Fixable`](crate::Fixable).
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

/// What keeps a job from running now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// Another process works on the job.
    #[error("job {0} is running")]
    Running(String),
    /// Another job writes the same output.
    #[error("{} is running and writes the same output, {}", name(job_id), output.display())]
    SameOutput {
        /// The other job, if it is known.
        job_id: Option<String>,
        /// The output.
        output: PathBuf,
    },
    /// The quotas of the target do not let the job run now, and it was not to wait.
    #[error("{} has no room for the job: {full}", of_target(target))]
    Full {
        /// The target.
        target: TargetRef,
        /// The limit.
        full: Full,
    },
}

impl Busy {
    /// Returns the job that is in the way, if it is known.
    pub fn job_id(&self) -> Option<&str> {
        match self {
            Self::Running(job_id) => Some(job_id),
            Self::SameOutput { job_id, .. } => job_id.as_deref(),
            Self::Full { .. } => None,
        }
    }
}

fn name(job_id: &Option<String>) -> String {
    job_id.as_ref().map_or_else(|| "another job".to_owned(), |id| format!("job {id}"))
}

fn of_target(target: &TargetRef) -> String {
    match target {
        TargetRef::Named(name) => format!("target {name}"),
        TargetRef::ThisMachine | TargetRef::Addresses { .. } => "the target".to_owned(),
    }
}
