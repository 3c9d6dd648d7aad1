//! Errors in a job or its inputs that the user must correct before the job can be planned.

use std::error::Error as StdError;
use std::fmt::{self, Display, Formatter};

use protocol::ItemPath;
use storage::ErrorSource;

/// The reason why a job cannot be planned. Failures of the queue and of storage have their own types.
///
/// `{}` prints the problem; `{:#}` appends the cause, as `anyhow` does.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The job file or the data must be corrected. The message says what was found, where, and what to do.
    BadInput {
        /// Name of the input.
        input: String,
        /// One line.
        message: String,
        /// The error of the store or the system, if there is one.
        source: Option<ErrorSource>,
    },
    /// A table cannot be read as the job file says.
    BadTable {
        /// Name of the input.
        input: String,
        /// The error, which names the file.
        source: tables::Error,
    },
    /// An unfinished job cannot continue: its inputs have changed since it was planned.
    InputsChanged {
        /// Name of the input.
        input: String,
        /// The stored plan, and the plan now.
        difference: String,
    },
}

/// The result of planning.
pub type Result<T> = std::result::Result<T, Error>;

impl Display for Error {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadInput { input, message, .. } => {
                write!(formatter, "input '{input}': {message}")?
            }
            Self::BadTable { input, .. } => write!(formatter, "input '{input}'")?,
            Self::InputsChanged { input, difference } => write!(
                formatter,
                "input '{input}' has changed since the job was planned: {difference}; restore it, or run the \
                 whole job anew"
            )?,
        }
        if formatter.alternate() { write!(formatter, "{}", Causes(self)) } else { Ok(()) }
    }
}

/// The causes of an error, each after a colon.
struct Causes<'a>(&'a Error);

impl Display for Causes<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let mut causes = std::iter::successors(self.0.source(), |cause| (*cause).source());
        causes.try_for_each(|cause| write!(formatter, ": {cause}"))
    }
}

impl Error {
    /// Returns the problem and its causes without the name of the input.
    pub fn problem(&self) -> String {
        match self {
            Self::BadInput { message, .. } => format!("{message}{}", Causes(self)),
            Self::BadTable { source, .. } => format!("{source:#}"),
            Self::InputsChanged { .. } => self.to_string(),
        }
    }

    /// Creates the error of a path, which `message` continues, such as "is not a file".
    pub(crate) fn bad_path(input: &str, path: &ItemPath, message: impl Display) -> Self {
        Self::bad_input(input, format_args!("{} {message}", path.display()))
    }

    pub(crate) fn bad_input(input: &str, message: impl Display) -> Self {
        Self::BadInput { input: input.to_owned(), message: message.to_string(), source: None }
    }

    pub(crate) fn bad_table(input: &str, source: tables::Error) -> Self {
        Self::BadTable { input: input.to_owned(), source }
    }

    /// Adds the cause of a bad input.
    pub(crate) fn because(self, cause: impl Into<ErrorSource>) -> Self {
        match self {
            Self::BadInput { input, message, .. } => {
                Self::BadInput { input, message, source: Some(cause.into()) }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn cause_is_kept_and_shown_once() {
        let path = ItemPath::from("/data/a.csv");
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let file = Error::bad_path("sales", &path, "cannot be read").because(denied());
        let table = tables::Error::Unreadable { path: "/data/a.csv".to_owned(), source: denied() };
        for error in [file, Error::bad_table("sales", table)] {
            let text = "input 'sales': /data/a.csv cannot be read: permission denied";
            assert_eq!(format!("{error:#}"), text);
            assert_eq!(format!("{:#}", anyhow::Error::from(error)), text);
        }
        let error = Error::bad_path("sales", &path, "cannot be read").because(denied());
        assert_eq!(error.problem(), "/data/a.csv cannot be read: permission denied");
        let kind = storage::deepest_cause(&error).downcast_ref().map(io::Error::kind);
        assert_eq!(kind, Some(io::ErrorKind::PermissionDenied));
    }
}
