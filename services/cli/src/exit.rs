//! Exit statuses: one number for each meaning, the same for every command. COMMANDS.md has the table for users.

use std::fmt;
use std::process::ExitCode;

use anyhow::Error;
use engine::Busy;
use protocol::JobState;
use serde_json::json;

use crate::{printed, remedies};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Error = 1,
    Invalid = 2,
    Failed = 42,
    /// EX_TEMPFAIL of sysexits.h: try again later.
    Busy = 75,
    /// As timeout(1).
    NotEnded = 124,
    Canceled = 130,
}

impl Exit {
    pub const ALL: [Self; 7] = [
        Self::Done,
        Self::Error,
        Self::Invalid,
        Self::Failed,
        Self::Busy,
        Self::NotEnded,
        Self::Canceled,
    ];

    pub fn number(self) -> u8 {
        self as u8
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Self::Done => "The command succeeded; if it runs or follows a job, the job completed.",
            Self::Error => "The command failed; standard error says why and what to do.",
            Self::Invalid => {
                "The command line, the job file or the compute target is invalid. Nothing was started."
            }
            Self::Failed => "The job failed.",
            Self::Busy => {
                "Another process works on this job, another job writes the same output, or the target is full."
            }
            Self::NotEnded => "The job has not ended; the command stopped waiting for it.",
            Self::Canceled => "The job was canceled, or the command was stopped twice.",
        }
    }

    /// Returns the status of a command that ran or followed a job with this state.
    pub fn of(state: JobState) -> Self {
        match state {
            JobState::Completed => Self::Done,
            JobState::Failed => Self::Failed,
            JobState::Canceled => Self::Canceled,
            JobState::Running => Self::NotEnded,
        }
    }
}

/// An error in the command line, or in what it names: the command ends with [`Exit::Invalid`].
#[derive(Debug)]
struct Usage(Error);

impl fmt::Display for Usage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&remedies::message(&self.0))
    }
}

impl std::error::Error for Usage {}

pub fn usage(error: impl Into<Error>) -> Error {
    Usage(error.into()).into()
}

impl Exit {
    pub fn of_error(error: &Error) -> Self {
        match error {
            error if error.is::<Usage>() => Self::Invalid,
            error if Busy::of(error).is_some() => Self::Busy,
            _ => Self::Error,
        }
    }

    /// Ends a command without the result of a job: prints the reason and, with `json`, the same as one object.
    pub fn because(self, message: &str, json: bool) -> Self {
        self.because_of(message, None, json)
    }

    /// Works like [`Exit::because`], where another job is the reason.
    pub fn because_of(self, message: &str, job_id: Option<&str>, json: bool) -> Self {
        say!(err, "{message}");
        self.print_object(message, job_id, json);
        self
    }

    /// Prints the reason as one JSON object, unless the command has printed an output.
    pub fn print_object(self, message: &str, job_id: Option<&str>, json: bool) {
        if json && !printed::has_output() {
            let mut object = json!({ "error": message, "exit_status": self.number() });
            if let Some(job_id) = job_id {
                object["job_id"] = job_id.into();
            }
            say!(out, "{object}");
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_page_lists_every_exit_status_once() {
        let page = include_str!("../COMMANDS.md");
        let (_, table) =
            page.split_once("| exit status | meaning |").expect("the table is in COMMANDS.md");
        let table = table.split("\n\n").next().expect("a table ends with an empty line");
        let rows = table
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(" |").next()?.parse::<u8>().ok());
        assert_eq!(rows.collect::<Vec<_>>(), Exit::ALL.map(Exit::number));
    }

    #[test]
    fn states_have_different_exit_statuses() {
        let states = [JobState::Completed, JobState::Failed, JobState::Canceled, JobState::Running];
        assert_eq!(states.map(|state| Exit::of(state).number()), [0, 42, 130, 124]);
    }
}
