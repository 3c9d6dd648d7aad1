//! Why the engine could not do what a caller asked for.

use std::path::PathBuf;

use job_file::Problem;

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
}

impl Busy {
    /// Returns the job that is in the way, if it is known.
    pub fn job_id(&self) -> Option<&str> {
        match self {
            Self::Running(job_id) => Some(job_id),
            Self::SameOutput { job_id, .. } => job_id.as_deref(),
        }
    }
}

fn name(job_id: &Option<String>) -> String {
    job_id.as_ref().map_or_else(|| "another job".to_owned(), |id| format!("job {id}"))
}
