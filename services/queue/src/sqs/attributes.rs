//! Finds, creates and describes queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName;
use tokio_util::task::TaskTracker;

use super::failure::Failure;
use super::leases::Leases;
use super::service::{REQUEST_TIME, Retries, answer, with_retries};
use super::{Inner, SqsOptions, SqsQueue, region};
use crate::{Depth, Error};

/// How long SQS keeps a message: its maximum, because a job may wait for its fleet.
const RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);
/// The default lease. All receivers of this crate request their own.
const VISIBILITY: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(20);
/// How long SQS uses one data key before it requests another from KMS, which charges each request.
const DATA_KEY_REUSE: Duration = Duration::from_secs(3600);
/// The number of receives after which SQS itself moves a message to the dead letters. The engine limits lost deliveries
/// much earlier, by its own count, so this limit concerns only messages that it never reads.
pub(super) const RECEIVES_MAX: u32 = 100;
/// The assumed size limit of messages if the service reports none.
const MESSAGE_BYTES_DEFAULT: usize = 256 << 10;

/// The attributes of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqsAttributes {
    /// Its full name.
    pub arn: String,
    /// How long the service keeps an unacknowledged message.
    pub retention: Duration,
    /// The largest encoded body.
    pub message_bytes_max: usize,
    /// The destination of messages that are received too often.
    pub redrive: Option<Redrive>,
}

/// The destination of messages that are received too often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redrive {
    /// The full name of the queue that gets them.
    pub dead_letters_arn: String,
    /// The number of receives after which a message moves.
    pub receive_count_max: u32,
}

impl SqsQueue {
    /// Opens a queue, or creates it if it does not exist and the options say so. Returns whether it was created.
    pub(super) async fn open_with(
        client: Client,
        options: &SqsOptions,
        receives: &TaskTracker,
    ) -> Result<(Self, bool), Error> {
        let queue = options.queue.as_str();
        let name = queue.rsplit('/').next().unwrap_or(queue).to_owned();
        let explained = |failure: Failure| failure.explain(&name, region(&client));
        check_region(&client, &name)?;
        if name.ends_with(".fifo") {
            let source = "it is a FIFO queue, which delivers messages one after the other; use a standard queue".into();
            return Err(Error::Misconfigured { queue: name, source });
        }
        let found = if is_url(queue) {
            describe(&client, queue).await.map(|_| queue.to_owned())
        } else {
            find(&client, queue).await
        };
        let (url, created) = match found {
            Err(Failure::NoQueue) if options.create => {
                (create(&client, &name, options, None).await, true)
            }
            found => (found, false),
        };
        let url = url.map_err(explained)?;
        Ok((Self::at(client, receives, name, url, created, false).await?, created))
    }

    /// Opens the queue of a job. With `create`, creates it with that redrive policy if it does not exist.
    pub(super) async fn open_of_job(
        client: Client,
        name: String,
        options: &SqsOptions,
        create: Option<&Redrive>,
        receives: &TaskTracker,
    ) -> Result<Self, Error> {
        let url = match create {
            Some(redrive) => self::create(&client, &name, options, Some(redrive)).await,
            None => find(&client, &name).await,
        };
        let url = url.map_err(|failure| failure.explain_of_job(&name, region(&client)))?;
        Self::at(client, receives, name, url, create.is_some(), true).await
    }

    /// Opens the queue with this URL, which may be new.
    async fn at(
        client: Client,
        receives: &TaskTracker,
        name: String,
        url: String,
        created: bool,
        of_job: bool,
    ) -> Result<Self, Error> {
        let mut inner = Inner {
            client,
            receives: receives.clone(),
            name,
            url,
            of_job,
            message_bytes_max: 0,
            leases: Mutex::new(Leases::default()),
        };
        let mut retries = Retries::new();
        let attributes = loop {
            match describe(&inner.client, &inner.url).await {
                Ok((attributes, _)) => break attributes,
                // A new queue takes a moment to become known everywhere.
                Err(Failure::NoQueue) if created => {
                    let unknown =
                        Failure::Transient("SQS has created it, but does not find it yet".into());
                    retries.pause(unknown).await.map_err(|failure| inner.error(failure))?;
                }
                Err(failure) => return Err(inner.error(failure)),
            }
        };
        inner.message_bytes_max = attributes.message_bytes_max;
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// Fails if the AWS settings name no region.
pub(super) fn check_region(client: &Client, queue: &str) -> Result<(), Error> {
    if client.config().region().is_some() {
        return Ok(());
    }
    let source =
        "there is no AWS region; set AWS_REGION, `region` of the target, or a region in the AWS profile".into();
    Err(Error::Misconfigured { queue: queue.to_owned(), source })
}

fn is_url(queue: &str) -> bool {
    queue.starts_with("https://") || queue.starts_with("http://")
}

pub(super) async fn find(client: &Client, name: &str) -> Result<String, Failure> {
    let request =
        || answer("GetQueueUrl", REQUEST_TIME, client.get_queue_url().queue_name(name).send());
    let found = with_retries(request).await?;
    found.queue_url.ok_or_else(|| Failure::Permanent("GetQueueUrl returned no URL".into()))
}

async fn create(
    client: &Client,
    name: &str,
    options: &SqsOptions,
    redrive: Option<&Redrive>,
) -> Result<String, Failure> {
    let seconds = |duration: Duration| duration.as_secs().to_string();
    let mut attributes = HashMap::from([
        (QueueAttributeName::MessageRetentionPeriod, seconds(RETENTION)),
        (QueueAttributeName::VisibilityTimeout, seconds(VISIBILITY)),
        (QueueAttributeName::ReceiveMessageWaitTimeSeconds, seconds(WAIT)),
    ]);
    if let Some(Redrive { dead_letters_arn, receive_count_max }) = redrive {
        let policy = serde_json::json!({
            "deadLetterTargetArn": dead_letters_arn,
            "maxReceiveCount": receive_count_max.to_string(),
        });
        attributes.insert(QueueAttributeName::RedrivePolicy, policy.to_string());
    }
    if let Some(key) = &options.kms_key {
        attributes.insert(QueueAttributeName::KmsMasterKeyId, key.clone());
        attributes
            .insert(QueueAttributeName::KmsDataKeyReusePeriodSeconds, seconds(DATA_KEY_REUSE));
    }
    // A request with tags needs the permission sqs:TagQueue, even if the tags are empty.
    let tags = (!options.tags.is_empty()).then(|| options.tags.clone().into_iter().collect());
    let request = || {
        let request = client.create_queue().queue_name(name);
        let request = request.set_attributes(Some(attributes.clone())).set_tags(tags.clone());
        answer("CreateQueue", REQUEST_TIME, request.send())
    };
    match with_retries(request).await {
        Ok(created) => created
            .queue_url
            .ok_or_else(|| Failure::Permanent("CreateQueue returned no URL".into())),
        // Another process may have created the queue with other attributes, which fails this request.
        Err(failure) => find(client, name).await.map_err(|_| failure),
    }
}

pub(super) async fn delete(client: &Client, url: &str) -> Result<(), Failure> {
    let request =
        || answer("DeleteQueue", REQUEST_TIME, client.delete_queue().queue_url(url).send());
    with_retries(request).await.map(drop)
}

/// Requests the attributes and depth of a queue.
pub(super) async fn describe(
    client: &Client,
    url: &str,
) -> Result<(SqsAttributes, Depth), Failure> {
    use QueueAttributeName as Name;
    let request = || {
        let request = client.get_queue_attributes().queue_url(url).attribute_names(Name::All);
        answer("GetQueueAttributes", REQUEST_TIME, request.send())
    };
    let values = with_retries(request).await?.attributes.unwrap_or_default();
    let text = |name: Name| values.get(&name).cloned().unwrap_or_default();
    let number = |name: Name| text(name).parse::<u64>().ok();
    let seconds = |name: Name| Duration::from_secs(number(name).unwrap_or_default());
    let message_bytes_max =
        number(Name::MaximumMessageSize).and_then(|bytes| usize::try_from(bytes).ok());
    let attributes = SqsAttributes {
        arn: text(Name::QueueArn),
        retention: seconds(Name::MessageRetentionPeriod),
        message_bytes_max: message_bytes_max.unwrap_or(MESSAGE_BYTES_DEFAULT),
        redrive: redrive(&text(Name::RedrivePolicy)),
    };
    let depth = Depth {
        visible: number(Name::ApproximateNumberOfMessages).unwrap_or_default(),
        in_flight: number(Name::ApproximateNumberOfMessagesNotVisible).unwrap_or_default(),
        delayed: number(Name::ApproximateNumberOfMessagesDelayed).unwrap_or_default(),
    };
    Ok((attributes, depth))
}

/// Parses a redrive policy. Services write the count as a number or as text.
fn redrive(policy: &str) -> Option<Redrive> {
    let policy: serde_json::Value = serde_json::from_str(policy).ok()?;
    let count = policy.get("maxReceiveCount")?;
    let count = count.as_u64().or_else(|| count.as_str()?.parse().ok())?;
    Some(Redrive {
        dead_letters_arn: policy.get("deadLetterTargetArn")?.as_str()?.to_owned(),
        receive_count_max: count.try_into().ok()?,
    })
}
