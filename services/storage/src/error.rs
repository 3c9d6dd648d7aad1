//! The errors of objects and stores, by what the caller should do next.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::{self, Debug, Display, Formatter};
use std::io;

use protocol::FORMAT;

use crate::Result;

/// The cause of an error.
pub type Source = Box<dyn StdError + Send + Sync>;

/// Codes of S3 for credentials that were valid once.
pub(crate) const EXPIRED: [&str; 2] = ["ExpiredToken", "InvalidToken"];

/// The failure of a call. Every message names the object.
///
/// `{}` names the object and the problem; `{:#}` adds the cause, as `anyhow` does.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object, or its bucket, does not exist.
    NotFound {
        /// Name of the object.
        object: String,
    },
    /// The store rejects the credentials or denies access: retries fail until a person corrects the credentials or
    /// rights.
    Denied {
        /// Name of the object.
        object: String,
        /// The answer of the store.
        source: Source,
    },
    /// The object has another version than the requested one: it has been overwritten since.
    Changed {
        /// Name of the object.
        object: String,
        /// The requested version, for people: `ETag "…", 17 bytes`.
        expected: String,
        /// The current version, for people.
        found: String,
    },
    /// Another writer has finished the object, and has removed the parts of this writer.
    Superseded {
        /// Name of the object.
        object: String,
    },
    /// Reading or writing failed: retry later, or correct the cause (disk full, address, network).
    Unavailable {
        /// Name of the object.
        object: String,
        /// The answer of the store or the system.
        source: Source,
    },
    /// The content of the object is invalid.
    Damaged {
        /// Name of the object.
        object: String,
        /// The error of the decoder.
        source: Source,
    },
    /// Another build has written the object, in a format that this build does not read: use one build on both sides.
    Foreign {
        /// Name of the object.
        object: String,
        /// Its format.
        format: u32,
    },
    /// The source of a snapshot exceeds the limit: leave something out.
    TooLarge {
        /// The size that exceeds the limit.
        found: String,
        /// The limit, and what to do.
        allowed: String,
    },
}

impl Display for Error {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { object } => write!(formatter, "{object} does not exist")?,
            Self::Denied { object, .. } => {
                write!(
                    formatter,
                    "{object}: access denied; check the credentials and what they allow"
                )?;
            }
            Self::Changed { object, expected, found } => {
                write!(formatter, "{object} has changed: it was {expected}, and is {found} now")?;
            }
            Self::Superseded { object } => {
                write!(formatter, "another writer has finished {object} meanwhile")?
            }
            Self::Unavailable { object, .. } => write!(formatter, "{object}")?,
            Self::Damaged { object, .. } => write!(formatter, "{object} is damaged")?,
            Self::Foreign { object, format } => write!(
                formatter,
                "{object} has format {format}, and this build reads format {FORMAT}: another build has written it; use \
                 that build"
            )?,
            Self::TooLarge { found, allowed } => {
                write!(formatter, "found {found}; allowed: {allowed}")?
            }
        }
        match self.source() {
            Some(cause) if formatter.alternate() => write!(formatter, ": {cause}"),
            _ => Ok(()),
        }
    }
}

impl Error {
    pub(crate) fn from_store(object: &str, error: object_store::Error) -> Self {
        let object = object.to_owned();
        match error {
            object_store::Error::NotFound { .. } => Self::NotFound { object },
            error @ (object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. }) => {
                Self::Denied { object, source: Answer(error).into() }
            }
            // S3 sends these codes with status 400.
            error
                if element(&deepest_cause(&error).to_string(), "Code")
                    .is_some_and(|code| EXPIRED.contains(&code)) =>
            {
                Self::Denied { object, source: Answer(error).into() }
            }
            error => Self::Unavailable { object, source: Answer(error).into() },
        }
    }

    /// Returns whether the same call may succeed later without a correction: the store does not answer or is
    /// overloaded, or another writer removed an unfinished upload. Returns `false`, for example, if rights or a bucket
    /// are missing, or a disk is full.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Superseded { .. } => true,
            Self::Unavailable { source, .. } => may_pass(&**source),
            Self::NotFound { .. }
            | Self::Denied { .. }
            | Self::Changed { .. }
            | Self::Damaged { .. }
            | Self::Foreign { .. }
            | Self::TooLarge { .. } => false,
        }
    }

    pub(crate) fn unavailable(object: &str, source: impl Into<Source>) -> Self {
        Self::Unavailable { object: object.to_owned(), source: source.into() }
    }

    pub(crate) fn damaged(object: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Damaged { object: object.into(), source: source.into() }
    }
}

/// Returns `None` if the object does not exist.
pub(crate) fn optional<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the answer of a store about an object; `None` if the object does not exist.
pub(crate) fn found<T>(answer: object_store::Result<T>, object: &str) -> Result<Option<T>> {
    optional(answer.map_err(|error| Error::from_store(object, error)))
}

/// Returns whether the cause of an unavailable object may end by itself.
fn may_pass(source: &(dyn StdError + Send + Sync + 'static)) -> bool {
    if let Some(failed) = source.downcast_ref::<RequestFailure>() {
        return failed.may_pass;
    }
    let answer = match source.downcast_ref::<Answer<object_store::Error>>() {
        Some(Answer(
            object_store::Error::InvalidPath { .. }
            | object_store::Error::NotSupported { .. }
            | object_store::Error::NotImplemented { .. }
            | object_store::Error::UnknownConfigurationKey { .. },
        )) => return false,
        Some(Answer(error)) => deepest_cause(error),
        None => deepest_cause(source),
    };
    match answer.downcast_ref::<io::Error>() {
        Some(error) => !is_permanent(error.kind()),
        None => !answer.is::<url::ParseError>(),
    }
}

/// Returns whether a person must correct the cause of an error of the system.
fn is_permanent(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::*;
    matches!(
        kind,
        NotFound
            | PermissionDenied
            | AlreadyExists
            | NotADirectory
            | IsADirectory
            | DirectoryNotEmpty
            | ReadOnlyFilesystem
            | StorageFull
            | QuotaExceeded
            | FileTooLarge
            | InvalidFilename
            | InvalidInput
            | Unsupported
    )
}

/// An error of a client library, shown in one line by its deepest cause.
///
/// The layers of the library repeat that cause and each other. So, like [`std::io::Error`], an answer ends the chain of
/// [`source`](StdError::source), and the error of the library is its field.
#[derive(Debug)]
pub struct Answer<E>(pub E);

impl<E: StdError + 'static> Display for Answer<E> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&short_message(&self.0))
    }
}

impl<E: StdError + 'static> StdError for Answer<E> {}

/// Returns the deepest cause of an error. It says what happened ("No space left on device"), and the layers above only
/// where.
pub fn deepest_cause<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    std::iter::successors(Some(error), |error| (*error).source()).last().expect("the error itself")
}

/// Returns the deepest cause in one line. For an answer in XML, this is its message and code.
pub(crate) fn short_message(error: &(dyn StdError + 'static)) -> String {
    let text = deepest_cause(error).to_string();
    let short = match (element(&text, "Code"), element(&text, "Message")) {
        (Some(code), Some(message)) => Cow::Owned(format!("{message} ({code})")),
        _ => Cow::Borrowed(text.as_str()),
    };
    short.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the content of an element of an answer in XML.
fn element<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(value, _)| value)
}

/// The failure of a request, in the words of the service or of the deepest cause.
#[derive(Debug)]
pub(crate) struct RequestFailure {
    pub words: String,
    /// Whether the same request may succeed later.
    pub may_pass: bool,
    /// The error that the words quote.
    #[expect(dead_code, reason = "part of the debug form")]
    pub error: Box<dyn Debug + Send + Sync>,
}

impl Display for RequestFailure {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.words)
    }
}

impl std::error::Error for RequestFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_in_xml_becomes_one_line() {
        let body = "403 Forbidden: <?xml version=\"1.0\"?>\n<Error><Code>InvalidAccessKeyId</Code>\n\
                    <Message>The AWS Access Key Id you provided\ndoes not exist in our records.</Message></Error>";
        assert_eq!(
            short_message(&io::Error::other(body)),
            "The AWS Access Key Id you provided does not exist in our records. (InvalidAccessKeyId)"
        );
        let full = "No space left on device";
        assert_eq!(short_message(&io::Error::other(full)), full);
    }

    #[test]
    fn only_errors_that_end_by_themselves_may_pass() {
        let generic = |source| object_store::Error::Generic { store: "S3", source };
        let of_system =
            |kind: io::ErrorKind| Error::from_store("rows", generic(io::Error::from(kind).into()));
        let of_store = |may_pass| {
            Error::unavailable(
                "rows",
                RequestFailure { words: "upload".into(), may_pass, error: Box::new(()) },
            )
        };
        for error in [
            of_system(io::ErrorKind::ConnectionRefused),
            of_system(io::ErrorKind::TimedOut),
            Error::from_store("rows", generic("Server returned 503".into())),
            of_store(true),
            Error::Superseded { object: "rows".into() },
        ] {
            assert!(error.may_pass(), "{error:#}");
        }
        for error in [
            of_system(io::ErrorKind::StorageFull),
            of_system(io::ErrorKind::PermissionDenied),
            of_store(false),
            Error::from_store(
                "rows",
                object_store::Error::NotSupported { source: "append".into() },
            ),
            Error::unavailable("rows", url::ParseError::EmptyHost),
            Error::NotFound { object: "rows".into() },
        ] {
            assert!(!error.may_pass(), "{error:#}");
        }
    }

    #[test]
    fn cause_is_kept_and_shown_once() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error =
            object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(full) };
        let error = Error::from_store("plan/0", error);
        assert_eq!(error.to_string(), "plan/0");
        assert_eq!(format!("{error:#}"), "plan/0: no storage space");
        let chain = std::iter::successors(Some(&error as &dyn StdError), |error| (*error).source());
        assert_eq!(
            chain.map(ToString::to_string).collect::<Vec<_>>().join(": "),
            format!("{error:#}")
        );
        let answer =
            error.source().and_then(|source| source.downcast_ref::<Answer<object_store::Error>>());
        let full =
            deepest_cause(&answer.expect("the answer of the store").0).downcast_ref::<io::Error>();
        assert_eq!(full.expect("the system's error").kind(), io::ErrorKind::StorageFull);
    }
}
