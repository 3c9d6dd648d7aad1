//! The errors of the engine.
//!
//! Each condition that callers treat in a way of its own is a variant of [`Error`], with the values
//! that they need. The text of an error names the problem; [`Error::remedy`] returns the remedy.
//! Failures that no caller handles, such as a broken disk, are [`Error::Other`].

use job_file::Problem;

use crate::{Busy, Remedy, TargetRef};

/// Result of a request to the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// The errors of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The job file, or something that it names, is invalid. Nothing was started.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
    /// A later attempt may succeed.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// No job has this id, begins with it, or has this name.
    #[error("{problem}")]
    NoSuchJob {
        /// What the caller requested, and where.
        problem: String,
        /// The target of the jobs.
        target: TargetRef,
    },
    /// This job has been removed.
    #[error("job {0} has been removed")]
    Removed(String),
    /// The job, its inputs or its target do not allow the request, for this reason.
    #[error("{0}")]
    Refused(String),
    /// Anything else. Its chain may hold a [`Fixable`](crate::Fixable).
    #[error(transparent)]
    Other(anyhow::Error),
}

impl Error {
    /// Returns the remedy, if it depends on the values of the error.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::NoSuchJob { target, .. } => Some(Remedy::ListJobs(target.clone())),
            Self::Other(error) => Remedy::of(error),
            _ => None,
        }
    }
}

/// Restores an error of the engine that has passed through code that handles only `anyhow::Error`.
impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Self {
        // With a context, the error would lose its variant.
        match error.chain().next() {
            Some(cause) if cause.is::<Self>() => error.downcast().unwrap_or_else(Self::Other),
            Some(cause) if cause.is::<Busy>() => {
                error.downcast().map_or_else(Self::Other, Self::Busy)
            }
            _ => Self::Other(error),
        }
    }
}

impl From<storage::Error> for Error {
    fn from(error: storage::Error) -> Self {
        Self::Other(error.into())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;
    use crate::Fixable;

    fn removed() -> Error {
        Error::Removed("a-1".to_owned())
    }

    #[test]
    fn condition_survives_conversion_to_anyhow() {
        let passed = |error: anyhow::Error| Error::from(error);
        assert!(matches!(passed(removed().into()), Error::Removed(job_id) if job_id == "a-1"));
        assert!(matches!(
            passed(Busy::Running("a-1".to_owned()).into()),
            Error::Busy(Busy::Running(_))
        ));
        let other = passed(Err::<(), _>(removed()).context("read the job").expect_err("an error"));
        assert_eq!(format!("{other:#}"), "read the job: job a-1 has been removed");
    }

    #[test]
    fn remedy_is_found_behind_contexts() {
        let target = TargetRef::Named("prod".to_owned());
        let retry = Remedy::Retry { job_id: "a-1".to_owned(), target };
        let error = || Fixable::error("job a-1 has not ended", retry.clone());
        let behind = error().context("retry the job");
        assert_eq!(Remedy::of(&behind), Some(retry.clone()));
        assert_eq!(Remedy::of(&Error::Other(behind).into()), Some(retry.clone()));
        assert_eq!(Remedy::of(&Error::Other(error()).into()), Some(retry));
        assert_eq!(Remedy::of(&removed().into()), None);
    }
}
