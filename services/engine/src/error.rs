//! The errors of the engine.
//!
//! Each condition that a caller may handle is a variant of [`Error`], with the values that the
//! caller needs. The text of an error names the problem; [`Error::remedy`] returns the remedy.
//! Failures that no caller handles, such as a broken disk, are [`Error::Other`].

use std::path::PathBuf;

use job_file::Problem;
use protocol::words::counted;

use crate::{Busy, Fixable, Remedy, State, TargetRef};

/// Jobs that a message names, of several.
const JOBS_NAMED_MAX: usize = 5;

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
    #[error("there is no job {wanted:?} in {place}{}", nearest(nearest_name))]
    NoSuchJob {
        /// The request of the caller.
        wanted: String,
        /// A similar name of jobs.
        nearest_name: Option<String>,
        /// The folder or URL of the jobs.
        place: String,
        /// Their target.
        target: TargetRef,
    },
    /// Several jobs match.
    #[error("{}", several(wanted, *matches, job_ids))]
    SeveralJobs {
        /// The request of the caller.
        wanted: String,
        /// The common property of these jobs.
        matches: Matches,
        /// Their ids.
        job_ids: Vec<String>,
    },
    /// The process that was to run the job ended before the job was described.
    #[error("job {job_id} was interrupted before it began")]
    NeverBegan {
        /// The job.
        job_id: String,
    },
    /// The job has been removed.
    #[error("job {job_id} has been removed")]
    Removed {
        /// The job.
        job_id: String,
    },
    /// A clean-up is removing the job.
    #[error("job {job_id} cannot be continued, because a clean-up of the target is removing it")]
    BeingRemoved {
        /// The job.
        job_id: String,
    },
    /// Only a job that has not ended has a priority.
    #[error("job {job_id} has ended ({}), so its priority cannot be changed", state.word())]
    Ended {
        /// The job.
        job_id: String,
        /// How it ended.
        state: State,
    },
    /// Only a job of a compute target has a priority.
    #[error(
        "job {job_id} runs on this machine, where a job has its own workers and `priority` has no effect; it divides the \
         workers of a compute target"
    )]
    NoPriority {
        /// The job.
        job_id: String,
    },
    /// The job has not ended.
    #[error("job {job_id} has not ended")]
    NotEnded {
        /// The job.
        job_id: String,
        /// Its target.
        target: TargetRef,
    },
    /// The job has no rejected items that could run again.
    #[error("{}", nothing_rejected(job_id, left_out))]
    NothingRejected {
        /// The job.
        job_id: String,
        /// Rejects that cannot run again, and what to do about them.
        left_out: Vec<String>,
    },
    /// The output of a completed job is missing, and its rows are removed.
    #[error(
        "{output}, the output of job {job_id}, is missing, and the job has ended: run the whole job again"
    )]
    OutputMissing {
        /// The job.
        job_id: String,
        /// The output.
        output: String,
    },
    /// The plan has no such mini-batch.
    #[error(
        "the plan of job {job_id} has no mini-batch {mini_batch}; {}", numbers(*count)
    )]
    NoSuchMiniBatch {
        /// The job.
        job_id: String,
        /// The request of the caller.
        mini_batch: u64,
        /// Number of mini-batches; `None`: the job is being planned.
        count: Option<u64>,
    },
    /// The plan has been removed, or is not written yet.
    #[error(
        "the plan of job {job_id} has been removed, or is not written yet; run the whole job again"
    )]
    NoPlan {
        /// The job.
        job_id: String,
    },
    /// Only the whole job can run a mini-batch that consists of a number.
    #[error(
        "mini-batch {mini_batch} of job {job_id} has no items, only a number, and cannot run alone"
    )]
    NoItems {
        /// The job.
        job_id: String,
        /// The mini-batch.
        mini_batch: u64,
    },
    /// Only mini-batches of tables have rows.
    #[error("mini-batch {mini_batch} of job {job_id} has no rows of a table: it is {detail}")]
    NoRows {
        /// The job.
        job_id: String,
        /// The mini-batch.
        mini_batch: u64,
        /// Its description.
        detail: String,
    },
    /// The request needs a file of this machine.
    #[error("{url} is not a file of this machine; download it, and run a job on the copy")]
    NotHere {
        /// The object.
        url: String,
    },
    /// The target no longer has the script of a job.
    #[error("the target has removed the script of job {job_id}")]
    ScriptRemoved {
        /// The job.
        job_id: String,
        /// The target.
        target: TargetRef,
    },
    /// The job runs a function or a model.
    #[error("job {job_id} has no entry script of its own that another could replace")]
    NoScript {
        /// The job.
        job_id: String,
    },
    /// The folder that was to replace that of the script does not hold it.
    #[error("{} has no file {entry_script}, the entry script of job {job_id}", folder.display())]
    ScriptMissing {
        /// The job.
        job_id: String,
        /// The folder.
        folder: PathBuf,
        /// The name of the script.
        entry_script: String,
    },
    /// An input of a job has changed, so mini-batches cannot be read as they were planned.
    #[error(
        "{} has {change} since job {job_id} was planned, so its rows {}", path.display(), change.consequence()
    )]
    InputChanged {
        /// The job.
        job_id: String,
        /// The file.
        path: PathBuf,
        /// The change.
        change: Change,
    },
    /// Records that no round can read fail the job.
    #[error(
        "job {job_id} would fail again: {} could not be read (first: {first}), and a retry reads them in the same way; \
         correct the input, or change `columns`, `on_type_mismatch` or `error_threshold` in the job file, and run the \
         whole job again", counted(*records, "record")
    )]
    RecordsUnread {
        /// The job.
        job_id: String,
        /// Number of these records.
        records: u64,
        /// The first of them.
        first: String,
    },
    /// There is no compute target of this name.
    #[error("there is no compute target {name:?}{} ({known})", nearest(nearest_name))]
    NoSuchTarget {
        /// The request of the caller.
        name: String,
        /// A similar name.
        nearest_name: Option<String>,
        /// The file of targets, with its targets.
        known: String,
        /// Whether that file is absent.
        without_file: bool,
    },
    /// This machine was chosen, and the request needs another target.
    #[error("a compute target other than this machine is needed ({known})")]
    NeedsTarget {
        /// The file of targets, with its targets.
        known: String,
        /// Whether that file is absent.
        without_file: bool,
    },
    /// The target cannot satisfy a requirement of the job file.
    #[error("{0}")]
    UnsuitableTarget(String),
    /// Another process changes the target at the same time, or the store does not answer: the same
    /// request may succeed later.
    #[error("{0}")]
    TryAgain(String),
    /// Anything else. Its chain may hold a [`Fixable`].
    #[error(transparent)]
    Other(anyhow::Error),
}

/// The common property of several jobs, one of which a caller has to name by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matches {
    /// The beginning of their ids.
    Beginning,
    /// Their name; they are running.
    Running,
    /// Their name; they were interrupted.
    Interrupted,
    /// Their name; the first has ended, and the second was interrupted.
    EndedAndInterrupted,
}

/// A change of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has other content.
    Changed,
    /// It is missing.
    Removed,
    /// It is a folder.
    IsFolder,
}

impl Change {
    /// Returns what cannot be done with the rows of the input.
    fn consequence(self) -> &'static str {
        match self {
            Self::Changed => "cannot be found: run the whole job again",
            Self::Removed | Self::IsFolder => {
                "cannot be read: restore the file, or run the whole job again"
            }
        }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Changed => "changed",
            Self::Removed => "been removed",
            Self::IsFolder => "become a folder",
        })
    }
}

impl Error {
    /// Returns the remedy, if it depends on the values of the error.
    pub fn remedy(&self) -> Option<Remedy> {
        let retry = |job_id: &String, target: &TargetRef| Remedy::Retry {
            job_id: job_id.clone(),
            target: target.clone(),
        };
        Some(match self {
            Self::NoSuchJob { target, .. } => Remedy::ListJobs(target.clone()),
            Self::NeverBegan { .. } => Remedy::RunAgain(TargetRef::ThisMachine),
            Self::ScriptRemoved { target, .. } => Remedy::RunAgain(target.clone()),
            Self::NoPriority { .. } => Remedy::NameTarget { without_file: false },
            Self::NoSuchTarget { without_file, .. } | Self::NeedsTarget { without_file, .. } => {
                Remedy::NameTarget { without_file: *without_file }
            }
            Self::NotEnded { job_id, target } => retry(job_id, target),
            Self::Other(error) => return Remedy::of(error),
            _ => return None,
        })
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

impl From<Fixable> for Error {
    fn from(error: Fixable) -> Self {
        Self::Other(error.into())
    }
}

impl From<storage::Error> for Error {
    fn from(error: storage::Error) -> Self {
        Self::Other(error.into())
    }
}

/// Returns which mini-batches a plan has.
fn numbers(count: Option<u64>) -> String {
    match count {
        None => "it is not complete yet".to_owned(),
        Some(0) => "it has none".to_owned(),
        Some(1) => "it has only mini-batch 0".to_owned(),
        Some(count) => format!("it has mini-batches 0 to {}", count - 1),
    }
}

fn several(wanted: &str, matches: Matches, job_ids: &[String]) -> String {
    let count = job_ids.len();
    let named = job_ids.iter().take(JOBS_NAMED_MAX).map(String::as_str).collect::<Vec<_>>();
    let more = if count > named.len() { ", …" } else { "" };
    let what = match (matches, &named[..]) {
        (Matches::EndedAndInterrupted, [ended, interrupted]) => {
            return format!(
                "{wanted:?} matches {ended}, which has ended, and {interrupted}, which was interrupted; name one by its id"
            );
        }
        (Matches::Running, _) => format!("{count} jobs named {wanted:?} are running"),
        (Matches::Interrupted, _) => format!("{count} jobs named {wanted:?} were interrupted"),
        (Matches::Beginning | Matches::EndedAndInterrupted, _) => {
            format!("{wanted:?} matches {count} jobs")
        }
    };
    format!("{what}: {}{more}; name one by its id", named.join(", "))
}

fn nothing_rejected(job_id: &str, left_out: &[String]) -> String {
    match left_out {
        [] => format!("job {job_id} has no rejected items: nothing runs again"),
        left_out => format!("job {job_id} has no rejects but {}", left_out.join("; and ")),
    }
}

fn nearest(name: &Option<String>) -> String {
    name.as_ref().map_or_else(String::new, |nearest| format!("; did you mean {nearest:?}?"))
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn removed() -> Error {
        Error::Removed { job_id: "a-1".to_owned() }
    }

    #[test]
    fn condition_survives_conversion_to_anyhow() {
        let passed = |error: anyhow::Error| Error::from(error);
        assert!(matches!(passed(removed().into()), Error::Removed { job_id } if job_id == "a-1"));
        assert!(matches!(
            passed(Busy::Running("a-1".to_owned()).into()),
            Error::Busy(Busy::Running(_))
        ));
        let other = passed(Err::<(), _>(removed()).context("read the job").expect_err("an error"));
        assert_eq!(format!("{other:#}"), "read the job: job a-1 has been removed");
    }

    #[test]
    fn remedy_is_found_behind_contexts() {
        let target = || TargetRef::Named("prod".to_owned());
        let retry = Remedy::Retry { job_id: "a-1".to_owned(), target: target() };
        let error = || Error::NotEnded { job_id: "a-1".to_owned(), target: target() };
        let behind = anyhow::Error::from(error()).context("retry the job");
        assert_eq!(Remedy::of(&behind), Some(retry.clone()));
        assert_eq!(Remedy::of(&Error::Other(behind).into()), Some(retry.clone()));
        let fixable = Error::Other(Fixable::error("no queue", retry.clone()));
        assert_eq!(Remedy::of(&fixable.into()), Some(retry));
        assert_eq!(Remedy::of(&removed().into()), None);
    }

    #[test]
    fn some_of_several_jobs_are_named() {
        let several = |matches, count| {
            let job_ids = (0..count).map(|number| format!("a-{number}")).collect();
            Error::SeveralJobs { wanted: "a".to_owned(), matches, job_ids }.to_string()
        };
        assert_eq!(
            several(Matches::Beginning, 2),
            "\"a\" matches 2 jobs: a-0, a-1; name one by its id"
        );
        let expected =
            "7 jobs named \"a\" are running: a-0, a-1, a-2, a-3, a-4, …; name one by its id";
        assert_eq!(several(Matches::Running, 7), expected);
        let expected = "\"a\" matches a-0, which has ended, and a-1, which was interrupted; name one by its id";
        assert_eq!(several(Matches::EndedAndInterrupted, 2), expected);
    }
}
