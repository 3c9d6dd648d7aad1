//! Requests to SQS: a client by the usual settings, how long a request may take, and when it is made again.
//!
//! The SDK's own retries are off. A batch fails in parts, each of which is to be sent again, and that and a request
//! that fails as a whole must share one schedule; besides, the SDK would stop retrying altogether once the requests
//! that run side by side have used up its tokens.

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
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use crate::Error;

use super::SqsOptions;
use super::failure::{Failure, Verdict, of_entry, of_request};

/// What SQS takes in a batch.
pub(super) const BATCH_MAX: usize = 10;
/// Requests of one call that run side by side.
pub(super) const REQUESTS_MAX: usize = 16;

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// One request that does not wait for messages.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);
/// No request is made again this long after the first: a caller who holds a lease wants to know.
const RETRY_TIME: Duration = Duration::from_secs(20);

/// Pauses before a request is made again. Jitter adds up to as much again, so that those who were throttled together
/// do not come back together.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_factor(2.0)
    .with_max_delay(Duration::from_secs(3))
    .with_max_times(8)
    .with_jitter();

/// A client, by the settings that every AWS tool uses: environment, profile, web identity, container, instance. An
/// address of SQS that is none is an error here: the SDK panics.
pub(super) async fn connect(options: &SqsOptions) -> Result<Client, Error> {
    let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT_TIME).build();
    let mut settings =
        aws_config::defaults(BehaviorVersion::latest()).retry_config(RetryConfig::disabled()).timeout_config(timeouts);
    if let Some(endpoint) = &options.endpoint {
        settings = settings.endpoint_url(endpoint);
    }
    if let Some(region) = &options.region {
        settings = settings.region(Region::new(region.clone()));
    }
    let config = settings.load().await;
    let key = ServiceConfigKey::builder().service_id("SQS").env("AWS_ENDPOINT_URL").profile("endpoint_url").build();
    let key = key.expect("all of it is given");
    let of_sqs = config.service_config().and_then(|settings| settings.load_config(key));
    let endpoint = options.endpoint.clone().or(of_sqs).or_else(|| config.endpoint_url().map(str::to_owned));
    match endpoint {
        // It is not repeated: it may hold a password.
        Some(endpoint) if !is_endpoint(&endpoint) => Err(Error::Misconfigured {
            queue: options.queue.clone(),
            reason: "the endpoint of SQS is not an address such as http://localhost:4566, without user, password or \
                     query; mend `endpoint` of the compute target, AWS_ENDPOINT_URL or AWS_ENDPOINT_URL_SQS, or \
                     endpoint_url of the AWS profile"
                .to_owned(),
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

/// Waits for the answer to one request, and sorts it.
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
        Err(_) => Err(Failure::Passing(format!("{action} was not answered in {} s", time.as_secs()))),
    }
}

/// When to make a request again, if at all.
pub(super) struct Retries {
    pauses: ExponentialBackoff,
    until: Instant,
}

impl Retries {
    pub fn new() -> Self {
        Self { pauses: PAUSES.build(), until: Instant::now() + RETRY_TIME }
    }

    /// Waits until the request may be made again, or returns why it is not.
    pub async fn pause(&mut self, failure: Failure) -> Result<(), Failure> {
        let Failure::Passing(reason) = &failure else { return Err(failure) };
        match self.pauses.next() {
            Some(pause) if Instant::now() + pause < self.until => {
                tracing::debug!("SQS: {reason}; trying again in {pause:?}");
                sleep(pause).await;
                Ok(())
            }
            _ => Err(failure),
        }
    }
}

/// Makes a request until it succeeds, or fails for good.
pub(super) async fn persist<T, F>(mut request: impl FnMut() -> F) -> Result<T, Failure>
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

/// What became of the entries of a batch.
pub(super) struct Batch<E> {
    pub done: Vec<E>,
    /// Their receipts are worth nothing any more.
    pub lost: Vec<E>,
    /// Why the others have failed.
    pub failure: Option<Failure>,
}

/// Sends batches side by side, and exactly the entries that failed again.
pub(super) async fn send_batches<E, F>(action: &str, batches: Vec<Vec<E>>, request: impl Fn(&[E]) -> F) -> Vec<Batch<E>>
where
    E: Debug,
    F: Future<Output = Result<Vec<BatchResultErrorEntry>, Failure>>,
{
    let batches = batches.into_iter().map(|entries| send_batch(action, entries, &request));
    futures::stream::iter(batches).buffer_unordered(REQUESTS_MAX).collect().await
}

async fn send_batch<E, F>(action: &str, mut entries: Vec<E>, request: impl Fn(&[E]) -> F) -> Batch<E>
where
    F: Future<Output = Result<Vec<BatchResultErrorEntry>, Failure>>,
{
    let mut batch = Batch { done: Vec::new(), lost: Vec::new(), failure: None };
    let mut retries = Retries::new();
    loop {
        let failure = match request(&entries).await {
            Err(failure) => failure,
            Ok(failed) => {
                let (mut again, mut lost, mut failure) = (HashSet::new(), HashSet::new(), None);
                for entry in &failed {
                    match of_entry(action, entry) {
                        Verdict::Lost => {
                            lost.insert(entry.id().to_owned());
                        }
                        Verdict::Failed(why) => {
                            again.insert(entry.id().to_owned());
                            // What lasts decides: sending again would not help.
                            if !matches!(failure, Some(Failure::Lasting(_) | Failure::NoQueue)) {
                                failure = Some(why);
                            }
                        }
                    }
                }
                let mut left = Vec::new();
                for (index, entry) in entries.into_iter().enumerate() {
                    let id = index.to_string();
                    if again.contains(&id) {
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
