//! Errors of whole tables. A single bad record is a warning or a failed record, not an error.

use std::error::Error as StdError;
use std::fmt::{self, Display, Formatter};
use std::path::Path;

/// The reason why a table could not be planned or decoded.
///
/// `{}` prints the problem; `{:#}` appends the cause, as `anyhow` does.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened or read. A retry may succeed.
    Unreadable {
        /// The path, as messages show it.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The content does not match its format. A retry fails, too.
    Malformed {
        /// The path, as messages show it.
        path: String,
        /// `line 7`, `byte 1024`, `row group 3`, `footer`.
        place: String,
        /// The problem and the remedy.
        message: String,
    },
    /// The file does not have the format of its name or of the job file. The user must correct one of them.
    Kind {
        /// The path, as messages show it.
        path: String,
        /// The problem and the remedy; continues the path.
        message: String,
    },
    /// The table options do not suit the file, or each other. The user must change them.
    Options(String),
    /// The plan does not match the file, which has probably changed since. Plan again.
    Plan {
        /// The path, as messages show it.
        path: String,
        /// The difference.
        message: String,
    },
    /// The rows do not form a table.
    Arrow(#[from] arrow::error::ArrowError),
}

impl Error {
    /// Creates [`Error::Kind`].
    pub(crate) fn kind(path: &str, message: impl Into<String>) -> Self {
        Self::Kind { path: path.to_owned(), message: message.into() }
    }

    /// Creates [`Error::Plan`].
    pub(crate) fn plan(path: &str, message: impl Into<String>) -> Self {
        Self::Plan { path: path.to_owned(), message: message.into() }
    }
}

impl Display for Error {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, .. } => write!(formatter, "{path} cannot be read")?,
            Self::Malformed { path, place, message } => {
                write!(formatter, "{path}, {place}: {message}")?
            }
            Self::Kind { path, message } => write!(formatter, "{path} {message}")?,
            Self::Options(message) => write!(formatter, "{message}")?,
            Self::Plan { path, message } => {
                write!(formatter, "{path} has changed since the job was planned: {message}")?
            }
            Self::Arrow(_) => write!(formatter, "the rows cannot be turned into a table")?,
        }
        match self.source() {
            Some(cause) if formatter.alternate() => write!(formatter, ": {cause}"),
            _ => Ok(()),
        }
    }
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns a closure for `map_err` on file operations.
pub(crate) fn unreadable(path: &str) -> impl Fn(std::io::Error) -> Error + '_ {
    move |source| Error::Unreadable { path: path.to_owned(), source }
}

/// Returns a path for messages, in one line.
pub(crate) fn display(path: &Path) -> String {
    protocol::ItemPath::from(path).display()
}
