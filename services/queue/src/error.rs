//! The errors of calls, by what the caller should do.

use std::error::Error as StdError;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

/// The failure of a call to a queue. Losing a lease is not an error, see [`Queue`](crate::Queue).
///
/// `{}` names the queue and the problem; `{:#}` adds the cause, as `anyhow` does.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The queue does not answer now, but may later: call again after a growing pause.
    Unavailable {
        /// Path or address.
        queue: String,
        /// The problem, and the remedy.
        source: Cause,
    },
    /// No call will succeed until a person changes something: stop, and show the error.
    Misconfigured {
        /// Path or address.
        queue: String,
        /// The problem, and the remedy.
        source: Cause,
    },
    /// The queue was never created, or has been deleted. The queues of a job exist only while it may run.
    Absent {
        /// Its name.
        queue: String,
    },
    /// A message is larger than the queue allows, so the call sent none of its messages: send a reference instead.
    TooLarge {
        /// Path or address.
        queue: String,
        /// Size of the largest body.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
}

impl Display for Error {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { queue, .. } => write!(formatter, "queue {queue} does not answer")?,
            Self::Misconfigured { queue, .. } => write!(formatter, "queue {queue} cannot be used")?,
            Self::Absent { queue } => write!(formatter, "queue {queue} does not exist")?,
            Self::TooLarge { queue, bytes, bytes_max } => {
                write!(
                    formatter,
                    "a message of {bytes} bytes exceeds the limit of queue {queue}, {bytes_max} bytes"
                )?;
            }
        }
        match self.source() {
            Some(cause) if formatter.alternate() => write!(formatter, ": {cause}"),
            _ => Ok(()),
        }
    }
}

impl Error {
    /// Returns whether the queue was never created, or has been deleted.
    pub fn is_of_missing_queue(&self) -> bool {
        match self {
            Self::Absent { .. } => true,
            Self::Misconfigured { source, .. } => {
                source.get_ref().is_some_and(|error| error.is::<MissingQueue>())
            }
            Self::Unavailable { .. } | Self::TooLarge { .. } => false,
        }
    }

    /// Returns the kind of the error in one word, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "unavailable",
            Self::Misconfigured { .. } => "misconfigured",
            Self::Absent { .. } => "absent",
            Self::TooLarge { .. } => "too_large",
        }
    }
}

/// The cause of an error in words for people, and the error of the service or system that it explains.
///
/// The words quote that error. So that no text appears twice, a cause ends the chain of [`source`](StdError::source),
/// like [`std::io::Error`], and [`get_ref`](Self::get_ref) returns the error behind it.
#[derive(Clone, Debug)]
pub struct Cause {
    words: String,
    error: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Cause {
    pub(crate) fn new(
        words: impl Into<String>,
        error: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self { words: words.into(), error: Some(Arc::new(error)) }
    }

    /// Returns the error that the words explain, if a service or the system reported one.
    pub fn get_ref(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.error.as_deref()
    }
}

impl From<String> for Cause {
    fn from(words: String) -> Self {
        Self { words, error: None }
    }
}

impl From<&str> for Cause {
    fn from(words: &str) -> Self {
        Self::from(words.to_owned())
    }
}

impl Display for Cause {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.words)
    }
}

impl StdError for Cause {}

/// Behind the cause of an [`Error::Misconfigured`] about a queue that deployment has not created.
#[derive(Debug, thiserror::Error)]
#[error("the queue does not exist")]
pub(crate) struct MissingQueue;

/// Fails if a body is larger than `bytes_max`.
pub(crate) fn check_sizes(
    messages: &[crate::Message],
    bytes_max: usize,
    queue: &str,
) -> Result<(), Error> {
    match messages.iter().map(|message| message.body.len()).max() {
        Some(bytes) if bytes > bytes_max => {
            Err(Error::TooLarge { queue: queue.to_owned(), bytes, bytes_max })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_is_kept_and_shown_once() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let source = Cause::new(format!("start the broker ({refused})"), refused);
        let error = Error::Unavailable { queue: "tasks".to_owned(), source };
        assert_eq!(error.to_string(), "queue tasks does not answer");
        assert_eq!(
            format!("{error:#}"),
            "queue tasks does not answer: start the broker (connection refused)"
        );
        let chain = std::iter::successors(Some(&error as &dyn StdError), |error| (*error).source());
        assert_eq!(
            chain.map(ToString::to_string).collect::<Vec<_>>().join(": "),
            format!("{error:#}")
        );
        let cause =
            error.source().and_then(|source| source.downcast_ref::<Cause>()).expect("a cause");
        let refused = cause
            .get_ref()
            .and_then(|error| error.downcast_ref::<std::io::Error>())
            .expect("the system's");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
