//! Why a call failed, sorted by what the caller does next.

/// A call to a queue failed. Losing a lease is not an error, see [`Queue`](crate::Queue).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The queue does not answer now and may later: call again, after a pause that grows.
    #[error("queue {queue} does not answer: {reason}")]
    Unavailable {
        /// Path or address.
        queue: String,
        /// What happened, and what may help.
        reason: String,
    },
    /// No call will succeed until somebody changes something: stop, and show this.
    #[error("queue {queue} cannot be used: {reason}")]
    Misconfigured {
        /// Path or address.
        queue: String,
        /// What is wrong, and what to do about it.
        reason: String,
    },
    /// A message is larger than the queue carries, and none of its batch was sent: send a reference instead.
    #[error("a message of {bytes} bytes is larger than the {bytes_max} that queue {queue} carries")]
    TooLarge {
        /// Path or address.
        queue: String,
        /// Size of the largest body.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
}

impl Error {
    /// Which error it is, in a word for machines.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "unavailable",
            Self::Misconfigured { .. } => "misconfigured",
            Self::TooLarge { .. } => "too_large",
        }
    }
}

/// Fails if a body is larger than `bytes_max`.
pub(crate) fn check_sizes(messages: &[crate::Message], bytes_max: usize, queue: &str) -> Result<(), Error> {
    match messages.iter().map(|message| message.body.len()).max() {
        Some(bytes) if bytes > bytes_max => Err(Error::TooLarge { queue: queue.to_owned(), bytes, bytes_max }),
        _ => Ok(()),
    }
}
