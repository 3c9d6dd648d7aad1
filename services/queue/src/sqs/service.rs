//! Requests to SQS: a client with the usual settings, the time limit of a request, and its retries.
//!
//! The retries of the SDK are off. A batch may fail in part, and the retries of its failed entries must share one
//! schedule with the retries of whole requests. The SDK would also stop all retries once concurrent requests had used
//! up its tokens.

use std::collections::HashSet;
use std::fmt::Debug;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;
use aws_types::service_config::ServiceConfigKey;
use backon::{BackoffBuilder, ExponentialBackoff};
use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use crate::Error;
use crate::pauses::FOR_SECONDS;

use super::SqsOptions;
use super::failure::{EntryOutcome, Failure, of_entry, of_request};

/// The largest number of entries in a batch of SQS.
pub(super) const BATCH_MAX: usize = 10;
/// The largest number of concurrent requests of one call.
pub(super) const REQUESTS_MAX: usize = 16;

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The time limit of a request that does not wait for messages.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);
/// The time from the first request to the last retry. It is limited because a caller that holds a lease must learn of
/// the failure before the lease expires.
const RETRY_TIME: Duration = Duration::from_secs(20);

/// Creates a client with the settings that every AWS tool uses: environment, profile, web identity, container,
/// instance. Rejects an invalid endpoint, because the SDK would panic.
pub(super) async fn connect(options: &SqsOptions) -> Result<Client, Error> {
    let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT_TIME).build();
    let mut settings = aws_config::defaults(BehaviorVersion::latest())
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts);
    if let Some(endpoint) = &options.endpoint {
        settings = settings.endpoint_url(endpoint);
    }
    if let Some(region) = &options.region {
        settings = settings.region(Region::new(region.clone()));
    }
    let config = settings.load().await;
    let key = ServiceConfigKey::builder()
        .service_id("SQS")
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build();
    let key = key.expect("all fields are set");
    let of_sqs = config.service_config().and_then(|settings| settings.load_config(key));
    let endpoint =
        options.endpoint.clone().or(of_sqs).or_else(|| config.endpoint_url().map(str::to_owned));
    match endpoint {
        // The message does not quote the endpoint, because it may contain a password.
        Some(endpoint) if !is_endpoint(&endpoint) => Err(Error::Misconfigured {
            queue: options.queue.clone(),
            source: "the endpoint of SQS is not an address such as http://localhost:4566, without user, password or \
                     query; correct `endpoint` of the compute target, AWS_ENDPOINT_URL or AWS_ENDPOINT_URL_SQS, or \
                     endpoint_url of the AWS profile"
                .into(),
        }),
        _ => Ok(Client::new(&config)),
    }
}

fn is_endpoint(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| {
        let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
        is_web && url.username().is_empty() && url.password().is_none() && url.query().is_none()
    })
}

/// Waits for the answer to one request, and classifies its failure.
pub(super) async fn answer<T, E>(
    action: &str,
    time: Duration,
    request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
) -> Result<T, Failure>
where
    E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
{
    match timeout(time, request).await {
        Ok(answer) => answer.map_err(|error| of_request(action, error)),
        Err(_) => Err(Failure::Transient(
            format!("{action} got no answer within {} s", time.as_secs()).into(),
        )),
    }
}

/// The schedule of retries.
pub(super) struct Retries {
    pauses: ExponentialBackoff,
    until: Instant,
}

impl Retries {
    pub fn new() -> Self {
        Self { pauses: FOR_SECONDS.build(), until: Instant::now() + RETRY_TIME }
    }

    /// Waits until the next retry, or returns the failure after the last one.
    pub async fn pause(&mut self, failure: Failure) -> Result<(), Failure> {
        let Failure::Transient(reason) = &failure else { return Err(failure) };
        match self.pauses.next() {
            Some(pause) if Instant::now() + pause < self.until => {
                tracing::debug!("SQS: {reason}; retrying in {pause:?}");
                sleep(pause).await;
                Ok(())
            }
            _ => Err(failure),
        }
    }
}

/// Sends a request, and retries it until it succeeds, fails permanently, or the retries end.
pub(super) async fn with_retries<T, F>(mut request: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut retries = Retries::new();
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(failure) => retries.pause(failure).await?,
        }
    }
}

/// The results of the entries of a batch.
pub(super) struct Batch<E> {
    pub done: Vec<E>,
    /// Entries with invalid receipts.
    pub lost: Vec<E>,
    /// Why the other entries failed.
    pub failure: Option<Failure>,
}

/// Sends batches concurrently, and retries only the failed entries.
pub(super) async fn send_batches<E, F>(
    action: &str,
    batches: Vec<Vec<E>>,
    request: impl Fn(&[E]) -> F,
) -> Vec<Batch<E>>
where
    E: Debug,
    F: Future<Output = Result<Vec<BatchResultErrorEntry>, Failure>>,
{
    let batches = batches.into_iter().map(|entries| send_batch(action, entries, &request));
    futures::stream::iter(batches).buffer_unordered(REQUESTS_MAX).collect().await
}

async fn send_batch<E, F>(
    action: &str,
    mut entries: Vec<E>,
    request: impl Fn(&[E]) -> F,
) -> Batch<E>
where
    F: Future<Output = Result<Vec<BatchResultErrorEntry>, Failure>>,
{
    let mut batch = Batch { done: Vec::new(), lost: Vec::new(), failure: None };
    let mut retries = Retries::new();
    loop {
        let failure = match request(&entries).await {
            Err(failure) => failure,
            Ok(failed) => {
                let (mut retried, mut lost, mut failure) = (HashSet::new(), HashSet::new(), None);
                for entry in &failed {
                    match of_entry(action, entry) {
                        EntryOutcome::Lost => {
                            lost.insert(entry.id().to_owned());
                        }
                        EntryOutcome::Failed(why) => {
                            retried.insert(entry.id().to_owned());
                            // A permanent failure takes precedence, because a retry would not help.
                            if !matches!(failure, Some(Failure::Permanent(_) | Failure::NoQueue)) {
                                failure = Some(why);
                            }
                        }
                    }
                }
                let mut left = Vec::new();
                for (index, entry) in entries.into_iter().enumerate() {
                    let id = index.to_string();
                    if retried.contains(&id) {
                        left.push(entry);
                    } else if lost.contains(&id) {
                        batch.lost.push(entry);
                    } else {
                        batch.done.push(entry);
                    }
                }
                entries = left;
                match failure {
                    Some(failure) => failure,
                    None => return batch,
                }
            }
        };
        if let Err(failure) = retries.pause(failure).await {
            batch.failure = Some(failure);
            return batch;
        }
    }
}
