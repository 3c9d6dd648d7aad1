//! The reason why a job cannot run now.

use std::path::PathBuf;

use protocol::ReachedQuota;

use crate::{Error, TargetRef};

/// The reason why a job cannot run now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// Another process works on the job.
    #[error("job {0} is running")]
    Running(String),
    /// Another job writes the same output.
    #[error("{} has not ended and writes the same output, {}", name(job_id), output.display())]
    SameOutput {
        /// The other job, if it is known.
        job_id: Option<String>,
        /// The output.
        output: PathBuf,
        /// The target of both jobs.
        target: TargetRef,
    },
    /// The quotas of the target do not let the job run now, and the caller did not want to wait.
    #[error("{} has no room for the job: {full}", of_target(target))]
    Full {
        /// The target.
        target: TargetRef,
        /// The limit.
        full: ReachedQuota,
    },
}

impl Busy {
    /// Returns the reason why the job cannot run, if that is why a request failed.
    pub fn of(error: &anyhow::Error) -> Option<&Self> {
        match error.downcast_ref() {
            Some(Error::Busy(busy)) => Some(busy),
            Some(Error::Other(error)) => Self::of(error),
            Some(_) => None,
            None => error.downcast_ref(),
        }
    }

    /// Returns the conflicting job, if it is known.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_found_in_errors_of_the_engine() {
        let busy = Busy::Running("a-1".to_owned());
        for error in [anyhow::Error::from(busy.clone()), Error::Busy(busy.clone()).into()] {
            assert_eq!(Busy::of(&error), Some(&busy));
        }
        assert_eq!(Busy::of(&Error::Refused("a-1".to_owned()).into()), None);
    }
}
