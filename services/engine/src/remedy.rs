//! What people can do next, as a value. A caller words it in its own terms: commands and flags, buttons, functions.

use crate::TargetRef;

/// A step that solves a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Remedy {
    /// Continue a job of this place.
    Retry { job_id: String, target: TargetRef },
    /// Run the rejected items of a job of this place again.
    Replay { job_id: String, target: TargetRef },
    /// List the jobs of this place.
    ListJobs(TargetRef),
    /// Stop a job that has not ended.
    Cancel,
    /// Create the missing queues of a target.
    CreateQueues(TargetRef),
    /// Name a compute target; without a file of targets, name that as well.
    NameTarget { without_file: bool },
    /// Give the request this key of a target.
    GiveKey(&'static str),
    /// Name another folder for local jobs.
    SetHome,
    /// Remove old jobs, or name another folder for local jobs.
    FreeHome,
    /// Name the folder of the Python packages.
    SetPackage,
    /// Name another default interpreter.
    SetPython,
    /// Check for a certain job.
    CheckForJob,
}

/// An error that people can do something about.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct Fixable {
    problem: String,
    /// What to do.
    pub remedy: Remedy,
    #[source]
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Fixable {
    pub(crate) fn error(problem: impl Into<String>, remedy: Remedy) -> anyhow::Error {
        Self { problem: problem.into(), remedy, cause: None }.into()
    }

    /// Returns the first fixable error in a chain of causes.
    pub fn of(error: &anyhow::Error) -> Option<&Self> {
        error.chain().find_map(|cause| cause.downcast_ref())
    }

    pub(crate) fn caused(problem: impl Into<String>, remedy: Remedy, cause: anyhow::Error) -> anyhow::Error {
        Self { problem: problem.into(), remedy, cause: Some(cause.into()) }.into()
    }
}
