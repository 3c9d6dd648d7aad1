//! What can go wrong with an object, by what the caller does next.

use std::borrow::Cow;

/// Every message names the object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such object, or no such bucket.
    #[error("{object} does not exist")]
    NotFound {
        /// Which object.
        object: String,
    },
    /// The store knows us not, or does not let us: trying again does not help before credentials or rights are mended.
    #[error("{object}: access denied: {message}; check the credentials, and what they allow")]
    Denied {
        /// Which object.
        object: String,
        /// What the store said.
        message: String,
    },
    /// Another object is there than the one that was asked for: it has been overwritten or removed since.
    #[error("{object} has changed: it was {expected}, and is {found} now")]
    Changed {
        /// Which object.
        object: String,
        /// What was asked for, for people: `ETag "…", 17 bytes`.
        expected: String,
        /// What is there now, for people.
        found: String,
    },
    /// Another writer has finished the object, and has removed what this one had sent of it.
    #[error("{object} has been written by somebody else meanwhile")]
    Superseded {
        /// Which object.
        object: String,
    },
    /// It could not be read or written: try again later, or mend the cause (disk full, address, network).
    #[error("{object}: {message}")]
    Unavailable {
        /// Which object.
        object: String,
        /// What the store said.
        message: String,
    },
    /// It was read but makes no sense.
    #[error("{object} is damaged: {message}")]
    Damaged {
        /// Which object.
        object: String,
        /// What the decoder said.
        message: String,
    },
    /// What is to be packed is larger than it may be: leave something out.
    #[error("found {found}; allowed: {allowed}")]
    TooLarge {
        /// What was counted until the limit was passed.
        found: String,
        /// The limit, and what to do.
        allowed: String,
    },
}

impl Error {
    pub(crate) fn from_store(object: &str, error: object_store::Error) -> Self {
        let object = object.to_owned();
        match error {
            object_store::Error::NotFound { .. } => Self::NotFound { object },
            error @ (object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }) => {
                Self::Denied { object, message: said(&error) }
            }
            error => Self::Unavailable { object, message: said(&error) },
        }
    }

    pub(crate) fn unavailable(object: &str, error: impl std::fmt::Display) -> Self {
        Self::Unavailable { object: object.to_owned(), message: error.to_string() }
    }
}

/// The deepest cause says what happened ("No space left on device"); the layers above only say where. Of an answer in
/// XML people need two elements.
pub(crate) fn said(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let text = deepest.to_string();
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(value, _)| value)
    };
    let short = match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => Cow::Owned(format!("{message} ({code})")),
        _ => Cow::Borrowed(text.as_str()),
    };
    short.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_xml_becomes_one_line() {
        let body = "403 Forbidden: <?xml version=\"1.0\"?>\n<Error><Code>InvalidAccessKeyId</Code>\n\
                    <Message>The AWS Access Key Id you provided\ndoes not exist in our records.</Message></Error>";
        assert_eq!(
            said(&std::io::Error::other(body)),
            "The AWS Access Key Id you provided does not exist in our records. (InvalidAccessKeyId)"
        );
        assert_eq!(said(&std::io::Error::other("No space left on device")), "No space left on device");
    }
}
