//! Classifies failures of requests by what the caller should do next, and explains them.

use std::error::Error as StdError;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;

use crate::Error;
use crate::error::{Cause, MissingQueue};

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The service is throttling, out of order or unreachable: the same request may succeed later.
    Transient(Cause),
    /// The queue does not exist.
    NoQueue,
    /// No request succeeds until a person changes something.
    Permanent(Cause),
}

impl Failure {
    /// Returns the failure as an error of the queue.
    pub fn explain(self, queue: &str, region: &str) -> Error {
        let queue = queue.to_owned();
        match self {
            Self::Transient(source) => Error::Unavailable { queue, source },
            Self::Permanent(source) => Error::Misconfigured { queue, source },
            Self::NoQueue => {
                let words = format!(
                    "it does not exist in region {region}; create it, or check the queue's name, the region and the \
                     account"
                );
                Error::Misconfigured { queue, source: Cause::new(words, MissingQueue) }
            }
        }
    }

    /// Returns the failure as an error of the queue of a job, which may be deleted at any time.
    pub fn explain_of_job(self, queue: &str, region: &str) -> Error {
        match self {
            Self::NoQueue => Error::Absent { queue: queue.to_owned() },
            failure => failure.explain(queue, region),
        }
    }
}

/// The outcome of one failed entry of a batch.
#[derive(Clone, Debug)]
pub(super) enum EntryOutcome {
    /// Its receipt is no longer valid.
    Lost,
    Failed(Failure),
}

/// Classifies the failure of one request.
pub(super) fn of_request<E, R>(action: &str, error: SdkError<E, R>) -> Failure
where
    E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    R: std::fmt::Debug + Http + Send + Sync + 'static,
{
    let (is_permanent, words) = match &error {
        // The cause quotes the service but does not keep its error, whose debug form may contain the signed request.
        SdkError::ServiceError(answer) => {
            let (code, words) = (
                answer.err().code().unwrap_or_default(),
                answer.err().message().unwrap_or_default(),
            );
            return of_answer(action, answer.raw().status(), code, words);
        }
        SdkError::ResponseError(answer) => {
            let status = answer.raw().status();
            return Failure::Transient(
                format!("{action} got an unreadable answer with HTTP status {status}").into(),
            );
        }
        SdkError::TimeoutError(_) => (false, format!("{action} was not answered in time")),
        SdkError::DispatchFailure(_) | SdkError::ConstructionFailure(_) => {
            match credentials_error(&error) {
                Some(CredentialsError::CredentialsNotLoaded(_)) => {
                    let remedy = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role";
                    (true, format!("there are no AWS credentials; {remedy}"))
                }
                Some(error) if matches!(error, CredentialsError::InvalidConfiguration(_)) => {
                    (true, format!("the AWS settings cannot be used: {}", one_line(&chain(error))))
                }
                Some(error) => {
                    (false, format!("cannot load AWS credentials: {}", one_line(&chain(error))))
                }
                None if matches!(error, SdkError::ConstructionFailure(_)) => {
                    let shown = DisplayErrorContext(&error).to_string();
                    (
                        true,
                        format!(
                            "the request cannot be made: {}; check the AWS settings",
                            one_line(&shown)
                        ),
                    )
                }
                None => {
                    // The last cause says what happened; the layers above only say where.
                    let cause = causes(&error).last().map_or(String::new(), ToString::to_string);
                    (false, format!("cannot connect: {}", one_line(&cause)))
                }
            }
        }
        _ => (false, one_line(&chain(&error))),
    };
    let cause = Cause::new(words, error);
    if is_permanent { Failure::Permanent(cause) } else { Failure::Transient(cause) }
}

/// The status of a response of any type.
pub(super) trait Http {
    fn status(&self) -> u16;
}

impl Http for aws_sdk_sqs::config::http::HttpResponse {
    fn status(&self) -> u16 {
        self.status().as_u16()
    }
}

/// Classifies the failure of one entry of a batch.
pub(super) fn of_entry(action: &str, entry: &BatchResultErrorEntry) -> EntryOutcome {
    let (code, words) = (entry.code(), entry.message().unwrap_or_default());
    let is_receipt = matches!(action, EXTEND | DELETE);
    match bare(code) {
        // The service answers with these codes to an extension beyond 12 hours, and to a receipt of a removed message.
        "ReceiptHandleIsInvalid"
        | "MessageNotInflight"
        | "InvalidParameterValue"
        | "InvalidIdFormat"
            if is_receipt =>
        {
            EntryOutcome::Lost
        }
        _ => EntryOutcome::Failed(of_answer(
            action,
            if entry.sender_fault() { 400 } else { 500 },
            code,
            words,
        )),
    }
}

/// Names of actions as the service and its policies spell them.
pub(super) const SEND: &str = "SendMessage";
pub(super) const EXTEND: &str = "ChangeMessageVisibility";
pub(super) const DELETE: &str = "DeleteMessage";

fn of_answer(action: &str, status: u16, code: &str, words: &str) -> Failure {
    let permanent = |words: String| Failure::Permanent(words.into());
    match bare(code) {
        "NonExistentQueue" | "QueueDoesNotExist" => Failure::NoQueue,
        "AccessDenied" | "OptInRequired" | "InvalidSecurity" => permanent(format!(
            "access denied; allow these credentials sqs:{action} on the queue, or use other credentials ({})",
            one_line(words)
        )),
        // The text omits the service's own words, because they may quote the signed request with its session token.
        "InvalidClientTokenId"
        | "UnrecognizedClient"
        | "SignatureDoesNotMatch"
        | "InvalidSignature"
        | "IncompleteSignature"
        | "MissingAuthenticationToken"
        | "AuthFailure"
        | "InvalidAccessKeyId"
        | "NotAuthorized" => permanent(format!(
            "AWS does not accept the credentials ({code}); check AWS_PROFILE, AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY"
        )),
        "ExpiredToken" | "TokenRefreshRequired" => {
            permanent(format!("the AWS credentials have expired ({code}); sign in again"))
        }
        "RequestTimeTooSkewed" | "RequestExpired" => {
            permanent(format!("the clock of this machine is wrong ({code}); set it"))
        }
        _ if is_transient(status, code) => {
            let words =
                if words.is_empty() { String::new() } else { format!(": {}", one_line(words)) };
            let code =
                if code.is_empty() { format!("HTTP status {status}") } else { code.to_owned() };
            Failure::Transient(format!("{action} failed with {code}{words}").into())
        }
        code if code.starts_with("Kms") => permanent(format!(
            "the KMS key of the queue cannot be used; allow these credentials kms:GenerateDataKey and \
             kms:Decrypt on it, and check that it exists and is enabled ({code}: {})",
            one_line(words)
        )),
        // A gateway before the service answers without a code of the service.
        _ if matches!(status, 401 | 403) => permanent(format!(
            "access denied to sqs:{action} (HTTP status {status} {code}); check the credentials and what they allow"
        )),
        _ => permanent(format!("SQS rejected {action}: {code} {}", one_line(words))),
    }
}

fn is_transient(status: u16, code: &str) -> bool {
    let codes = [
        "RequestThrottled",
        "Throttling",
        "ThrottledException",
        "KmsThrottled",
        "TooManyRequests",
        "RequestLimitExceeded",
        "SlowDown",
        "RequestTimeout",
        // Too many messages of the queue are leased; the queue is being purged; it was deleted less than a minute ago.
        "OverLimit",
        "PurgeQueueInProgress",
        "QueueDeletedRecently",
    ];
    status >= 500 || status == 429 || status == 408 || codes.contains(&bare(code))
}

/// Returns the last part of a code such as `AWS.SimpleQueueService.NonExistentQueue` or
/// `com.amazonaws.sqs#ThrottlingException`.
fn bare(code: &str) -> &str {
    let code = code.rsplit(['.', '#']).next().unwrap_or(code);
    code.strip_suffix("Exception").unwrap_or(code)
}

fn credentials_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a CredentialsError> {
    causes(error).find_map(|error| error.downcast_ref())
}

/// Returns the error and its causes.
fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// Returns the error and its causes in one text, without repetition.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in causes(error) {
        let text = cause.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

/// Returns the first line, up to a limit of characters.
fn one_line(words: &str) -> String {
    const CHARACTERS_MAX: usize = 400;
    words.lines().next().unwrap_or_default().chars().take(CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(action: &str, code: &str, sender_fault: bool) -> EntryOutcome {
        let entry = BatchResultErrorEntry::builder()
            .id("0")
            .code(code)
            .sender_fault(sender_fault)
            .message("why");
        of_entry(action, &entry.build().expect("is whole"))
    }

    #[test]
    fn every_code_for_an_invalid_receipt_is_a_loss() {
        for code in [
            "ReceiptHandleIsInvalid",
            "MessageNotInflight",
            "AWS.SimpleQueueService.MessageNotInflight",
            "InvalidParameterValue",
            "InvalidParameterValueException",
        ] {
            assert!(matches!(verdict(EXTEND, code, true), EntryOutcome::Lost), "{code}");
            assert!(matches!(verdict(DELETE, code, false), EntryOutcome::Lost), "{code}");
            assert!(!matches!(verdict(SEND, code, true), EntryOutcome::Lost), "{code}");
        }
    }

    #[test]
    fn failed_entry_is_transient_or_permanent() {
        assert!(matches!(
            verdict(SEND, "InternalError", false),
            EntryOutcome::Failed(Failure::Transient(_))
        ));
        assert!(matches!(
            verdict(SEND, "RequestThrottled", true),
            EntryOutcome::Failed(Failure::Transient(_))
        ));
        assert!(matches!(
            verdict(SEND, "InvalidMessageContents", true),
            EntryOutcome::Failed(Failure::Permanent(_))
        ));
        assert!(matches!(
            verdict(DELETE, "AccessDenied", true),
            EntryOutcome::Failed(Failure::Permanent(_))
        ));
    }

    #[test]
    fn kms_denial_names_the_missing_permissions() {
        let Failure::Permanent(reason) = of_answer(SEND, 400, "KmsAccessDenied", "no") else {
            panic!("is permanent")
        };
        assert!(reason.to_string().contains("kms:GenerateDataKey"), "{reason}");
        assert!(matches!(of_answer(SEND, 400, "KmsThrottled", ""), Failure::Transient(_)));
    }

    #[test]
    fn signed_content_is_not_shown() {
        let words = "The Canonical String should have been 'POST x-amz-security-token:abc123'";
        let Failure::Permanent(reason) = of_answer(SEND, 403, "SignatureDoesNotMatch", words)
        else {
            panic!("is permanent")
        };
        assert!(!format!("{reason} {reason:?}").contains("abc123"), "{reason}");
    }

    #[test]
    fn missing_queue_differs_from_a_failing_service() {
        for code in ["AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"] {
            assert!(matches!(of_answer(SEND, 400, code, ""), Failure::NoQueue), "{code}");
        }
        assert!(matches!(of_answer(SEND, 503, "", ""), Failure::Transient(_)));
        assert!(matches!(
            of_answer(SEND, 400, "com.amazonaws.sqs#ThrottlingException", ""),
            Failure::Transient(_)
        ));
    }

    #[test]
    fn only_a_missing_queue_can_be_created() {
        let error = |code| of_answer(SEND, 400, code, "").explain("q", "eu-west-1");
        assert!(error("NonExistentQueue").is_of_missing_queue());
        assert!(!error("ExpiredToken").is_of_missing_queue());
    }
}
