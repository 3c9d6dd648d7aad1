//! Remedies, as values. A caller words them in its own terms: commands and flags, buttons,
//! functions.

use crate::{Error, TargetRef};

/// A step that solves a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Continue a job.
    Retry {
        /// The job.
        job_id: String,
        /// Its target.
        target: TargetRef,
    },
    /// Run the job file of a job again.
    RunAgain(TargetRef),
    /// List the jobs of this place.
    ListJobs(TargetRef),
    /// Stop a job that has not ended.
    Cancel,
    /// Create the missing queues of a target.
    CreateQueues(TargetRef),
    /// Start a reducer of a target.
    StartReducer(TargetRef),
    /// Name a compute target.
    NameTarget {
        /// Whether there is no file of targets, so that it must be named as well.
        without_file: bool,
    },
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
    /// Start the container of this process with more shared memory.
    EnlargeSharedMemory,
    /// Check for a certain job.
    CheckForJob,
}

impl Remedy {
    /// Returns the remedy of an error, or of the first of its causes that has one.
    pub fn of(error: &anyhow::Error) -> Option<Self> {
        error.chain().find_map(|cause| match cause.downcast_ref::<Error>() {
            Some(error) => error.remedy(),
            None => cause.downcast_ref::<Fixable>().map(|fixable| fixable.remedy.clone()),
        })
    }
}

/// A problem of this machine or of a target that people can do something about.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct Fixable {
    problem: String,
    /// The remedy.
    pub remedy: Remedy,
    #[source]
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Fixable {
    pub(crate) fn error(problem: impl Into<String>, remedy: Remedy) -> anyhow::Error {
        Self { problem: problem.into(), remedy, cause: None }.into()
    }

    pub(crate) fn caused(
        problem: impl Into<String>,
        remedy: Remedy,
        cause: anyhow::Error,
    ) -> anyhow::Error {
        Self { problem: problem.into(), remedy, cause: Some(cause.into()) }.into()
    }
}
