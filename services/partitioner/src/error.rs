//! What the user has to mend before a job can be planned.

use std::fmt::Display;

use protocol::ItemPath;

/// Why a job cannot be planned. Failures of the queue and of storage are not here: they are passed on as they are.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The job file or the data must be corrected. The message says what was found, where, and what to do.
    #[error("input '{input}': {message}")]
    BadInput {
        /// Name of the input.
        input: String,
        /// One line.
        message: String,
    },
    /// An unfinished job cannot go on: its inputs are no longer those it was planned from.
    #[error(
        "input '{input}' has changed since the job was planned: {difference}; put it back as it was, or start over \
         with --fresh"
    )]
    InputsChanged {
        /// Name of the input.
        input: String,
        /// What was planned then, and what would be planned now.
        difference: String,
    },
}

/// What planning gives.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// `message` goes on after the path: "is not a file".
    pub(crate) fn bad_path(input: &str, path: &ItemPath, message: impl Display) -> Self {
        Self::BadInput { input: input.to_owned(), message: format!("{} {message}", path.display()) }
    }

    pub(crate) fn bad_input(input: &str, message: impl Display) -> Self {
        Self::BadInput { input: input.to_owned(), message: message.to_string() }
    }
}
