//! What the service answers, sorted by what to do next, in words for who has to do it.

use std::error::Error as StdError;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;

use crate::Error;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Throttled, out of order or out of reach: the same request may succeed later.
    Passing(String),
    /// There is no such queue.
    NoQueue,
    /// Nothing helps until somebody changes something.
    Lasting(String),
}

impl Failure {
    /// As an error of the queue.
    pub fn explain(self, queue: &str, region: &str) -> Error {
        let queue = queue.to_owned();
        match self {
            Self::Passing(reason) => Error::Unavailable { queue, reason },
            Self::Lasting(reason) => Error::Misconfigured { queue, reason },
            Self::NoQueue => {
                let reason = format!(
                    "it does not exist in region {region}; create it, or check the queue's name, the region and the \
                     account"
                );
                Error::Misconfigured { queue, reason }
            }
        }
    }
}

/// What became of one entry of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its receipt is worth nothing any more.
    Lost,
    Failed(Failure),
}

/// Sorts the failure of one request.
pub(super) fn of_request<E, R>(action: &str, error: SdkError<E, R>) -> Failure
where
    E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    R: std::fmt::Debug + Http + Send + Sync + 'static,
{
    match &error {
        SdkError::ServiceError(answer) => {
            let (code, words) = (answer.err().code().unwrap_or_default(), answer.err().message().unwrap_or_default());
            of_answer(action, answer.raw().status(), code, words)
        }
        SdkError::ResponseError(answer) => {
            Failure::Passing(format!("{action} was answered with HTTP status {}, unreadable", answer.raw().status()))
        }
        SdkError::TimeoutError(_) => Failure::Passing(format!("{action} was not answered in time")),
        SdkError::DispatchFailure(_) | SdkError::ConstructionFailure(_) => match credentials_error(&error) {
            Some(CredentialsError::CredentialsNotLoaded(_)) => Failure::Lasting(
                "there are no AWS credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
                 give this machine a role"
                    .to_owned(),
            ),
            Some(error) if matches!(error, CredentialsError::InvalidConfiguration(_)) => {
                Failure::Lasting(format!("the AWS settings cannot be used: {}", one_line(&chain(error))))
            }
            Some(error) => Failure::Passing(format!("no AWS credentials now: {}", one_line(&chain(error)))),
            None if matches!(error, SdkError::ConstructionFailure(_)) => Failure::Lasting(format!(
                "the request cannot be made: {}; check the AWS settings",
                one_line(&DisplayErrorContext(&error).to_string())
            )),
            None => Failure::Passing(format!("no connection: {}", one_line(&chain(&error)))),
        },
        _ => Failure::Passing(one_line(&chain(&error))),
    }
}

/// The status line, whatever the type of the response.
pub(super) trait Http {
    fn status(&self) -> u16;
}

impl Http for aws_sdk_sqs::config::http::HttpResponse {
    fn status(&self) -> u16 {
        self.status().as_u16()
    }
}

/// Sorts what the service says about one entry of a batch.
pub(super) fn of_entry(action: &str, entry: &BatchResultErrorEntry) -> Verdict {
    let (code, words) = (entry.code(), entry.message().unwrap_or_default());
    let is_receipt = matches!(action, EXTEND | DELETE);
    match bare(code) {
        // An extension beyond the 12 hours is an invalid parameter, and so is a receipt of a message that is gone.
        "ReceiptHandleIsInvalid" | "MessageNotInflight" | "InvalidParameterValue" | "InvalidIdFormat" if is_receipt => {
            Verdict::Lost
        }
        _ => Verdict::Failed(of_answer(action, if entry.sender_fault() { 400 } else { 500 }, code, words)),
    }
}

/// Names of actions, as the service and its policies spell them.
pub(super) const SEND: &str = "SendMessage";
pub(super) const EXTEND: &str = "ChangeMessageVisibility";
pub(super) const DELETE: &str = "DeleteMessage";

fn of_answer(action: &str, status: u16, code: &str, words: &str) -> Failure {
    match bare(code) {
        "NonExistentQueue" | "QueueDoesNotExist" => Failure::NoQueue,
        "AccessDenied" | "KmsAccessDenied" | "OptInRequired" | "InvalidSecurity" => Failure::Lasting(format!(
            "access denied; allow these credentials sqs:{action} on the queue, or use others ({})",
            one_line(words)
        )),
        // What was signed, and with it a session token, may stand in the service's own words: they are left out.
        "InvalidClientTokenId"
        | "UnrecognizedClient"
        | "SignatureDoesNotMatch"
        | "InvalidSignature"
        | "IncompleteSignature"
        | "MissingAuthenticationToken"
        | "AuthFailure"
        | "InvalidAccessKeyId"
        | "NotAuthorized" => Failure::Lasting(format!(
            "AWS does not accept the credentials ({code}); check AWS_PROFILE, AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY"
        )),
        "ExpiredToken" | "TokenRefreshRequired" => {
            Failure::Lasting(format!("the AWS credentials have expired ({code}); sign in again"))
        }
        "RequestTimeTooSkewed" | "RequestExpired" => {
            Failure::Lasting(format!("the clock of this machine is wrong ({code}); set it"))
        }
        _ if is_passing(status, code) => {
            let words = if words.is_empty() { String::new() } else { format!(": {}", one_line(words)) };
            let code = if code.is_empty() { format!("HTTP status {status}") } else { code.to_owned() };
            Failure::Passing(format!("{action} was answered with {code}{words}"))
        }
        // Said by a gateway on the way, in a language of its own.
        _ if matches!(status, 401 | 403) => Failure::Lasting(format!(
            "access denied to sqs:{action} (HTTP status {status} {code}); check the credentials and what they allow"
        )),
        _ => Failure::Lasting(format!("{action} is refused: {code} {}", one_line(words))),
    }
}

fn is_passing(status: u16, code: &str) -> bool {
    let codes = [
        "RequestThrottled",
        "Throttling",
        "ThrottledException",
        "KmsThrottled",
        "TooManyRequests",
        "RequestLimitExceeded",
        "SlowDown",
        "RequestTimeout",
        // Too many messages of the queue are leased, or it is being purged or was deleted less than a minute ago.
        "OverLimit",
        "PurgeQueueInProgress",
        "QueueDeletedRecently",
    ];
    status >= 500 || status == 429 || status == 408 || codes.contains(&bare(code))
}

/// `AWS.SimpleQueueService.NonExistentQueue` and `com.amazonaws.sqs#ThrottlingException` say it at their end.
fn bare(code: &str) -> &str {
    let code = code.rsplit(['.', '#']).next().unwrap_or(code);
    code.strip_suffix("Exception").unwrap_or(code)
}

fn credentials_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a CredentialsError> {
    std::iter::successors(Some(error), |error| (*error).source()).find_map(|error| error.downcast_ref())
}

/// The causes, without the names of the SDK's own layers.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut causes: Vec<String> = Vec::new();
    for cause in std::iter::successors(Some(error), |error| (*error).source()) {
        let cause = cause.to_string();
        if !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    causes.join(": ")
}

/// The first line, and not much of it.
fn one_line(words: &str) -> String {
    const CHARACTERS_MAX: usize = 400;
    words.lines().next().unwrap_or_default().chars().take(CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(action: &str, code: &str, sender_fault: bool) -> Verdict {
        let entry = BatchResultErrorEntry::builder().id("0").code(code).sender_fault(sender_fault).message("why");
        of_entry(action, &entry.build().expect("is whole"))
    }

    #[test]
    fn receipts_are_lost_by_every_name_of_it() {
        for code in [
            "ReceiptHandleIsInvalid",
            "MessageNotInflight",
            "AWS.SimpleQueueService.MessageNotInflight",
            "InvalidParameterValue",
            "InvalidParameterValueException",
        ] {
            assert_eq!(verdict(EXTEND, code, true), Verdict::Lost, "{code}");
            assert_eq!(verdict(DELETE, code, false), Verdict::Lost, "{code}");
            assert_ne!(verdict(SEND, code, true), Verdict::Lost, "{code}");
        }
    }

    #[test]
    fn an_entry_fails_for_now_or_for_good() {
        assert!(matches!(verdict(SEND, "InternalError", false), Verdict::Failed(Failure::Passing(_))));
        assert!(matches!(verdict(SEND, "RequestThrottled", true), Verdict::Failed(Failure::Passing(_))));
        assert!(matches!(verdict(SEND, "InvalidMessageContents", true), Verdict::Failed(Failure::Lasting(_))));
        assert!(matches!(verdict(DELETE, "AccessDenied", true), Verdict::Failed(Failure::Lasting(_))));
    }

    #[test]
    fn nothing_that_was_signed_is_shown() {
        let words = "The Canonical String should have been 'POST x-amz-security-token:abc123'";
        let Failure::Lasting(reason) = of_answer(SEND, 403, "SignatureDoesNotMatch", words) else { panic!("lasts") };
        assert!(!reason.contains("abc123"), "{reason}");
    }

    #[test]
    fn a_queue_that_is_not_there_is_told_from_one_that_does_not_answer() {
        assert_eq!(of_answer(SEND, 400, "AWS.SimpleQueueService.NonExistentQueue", ""), Failure::NoQueue);
        assert_eq!(of_answer(SEND, 400, "QueueDoesNotExist", ""), Failure::NoQueue);
        assert!(matches!(of_answer(SEND, 503, "", ""), Failure::Passing(_)));
        assert!(matches!(of_answer(SEND, 400, "com.amazonaws.sqs#ThrottlingException", ""), Failure::Passing(_)));
    }
}
