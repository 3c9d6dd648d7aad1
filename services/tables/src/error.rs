//! What can go wrong with a table as a whole. A single bad record is a warning or a failed record, not an error.

use std::path::Path;

/// Why a table could not be planned or decoded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened or read. May pass; trying again makes sense.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file, for people.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The content is not what its format says. Trying again does not help.
    #[error("{path}, {place}: {message}")]
    Malformed {
        /// The file, for people.
        path: String,
        /// `line 7`, `byte 1024`, `row group 3`, `footer`.
        place: String,
        /// What was found, and what to do.
        message: String,
    },
    /// The table options do not suit the file, or each other. The user has to change them.
    #[error("{0}")]
    Options(String),
    /// What was planned does not suit the file; it has probably changed since. Plan again.
    #[error("{path} is not as it was planned: {message}")]
    Plan {
        /// The file, for people.
        path: String,
        /// The difference.
        message: String,
    },
    /// The rows do not make a table.
    #[error("the rows cannot be made into a table: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Closure for `map_err` on file operations.
pub(crate) fn unreadable(path: &str) -> impl Fn(std::io::Error) -> Error + '_ {
    move |source| Error::Unreadable { path: path.to_owned(), source }
}

/// A path for people, always one line.
pub(crate) fn display(path: &Path) -> String {
    protocol::ItemPath::from(path).display()
}
