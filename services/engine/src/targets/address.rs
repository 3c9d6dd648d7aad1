//! Addresses of the queues of a target: `sqs://PREFIX?kms_key=KEY&tag.NAME=VALUE`,
//! `amqp(s)://user:password@host/vhost?prefix=PREFIX`, `sqlite:FOLDER`. No text of this type shows the password.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use url::{Url, form_urlencoded};

const ALLOWED: &str =
    "sqs://PREFIX, amqp://USER:PASSWORD@HOST/VHOST?prefix=PREFIX (or amqps://), or sqlite:FOLDER";
/// Prefix of queue names for a RabbitMQ address without one.
const PREFIX_DEFAULT: &str = "gristmill";
/// How long the broker lets a consumer hold a message: its `consumer_timeout`, which every process of a target must know.
const LEASE: &str = "lease_seconds";
/// The shortest lease that a target may have.
pub const LEASE_SECONDS_MIN: u64 = 60;
/// The KMS key of queues that are created.
const KMS_KEY: &str = "kms_key";
/// Before the name of a tag of queues that are created.
const TAG: &str = "tag.";
/// AWS's limits of tags: their number, and the characters of a name and of a value.
const TAGS_MAX: usize = 50;
const TAG_NAME_MAX: usize = 128;
const TAG_VALUE_MAX: usize = 256;
/// SQS allows names of 80 characters. In the name of a queue of a job, the beginning of its id, a digest and `-results` follow
/// the prefix.
const PREFIX_LENGTH_MAX: usize = 40;

/// Where the queues of a target are: its own two, `PREFIX-control` and `PREFIX-dead-letters`, and two for each job that may
/// run.
#[derive(Clone, PartialEq, Eq)]
pub enum QueueAddress {
    /// Amazon SQS, or an emulator at the target's endpoint.
    Sqs {
        /// Beginning of the names of the queues.
        prefix: String,
        /// KMS key of the queues that are created; `None`: SQS's own.
        kms_key: Option<String>,
        /// Tags of the queues that are created.
        tags: BTreeMap<String, String>,
    },
    /// RabbitMQ.
    Rabbit {
        /// The broker with its password, for the client only.
        url: Url,
        /// Beginning of the names of the queues.
        prefix: String,
    },
    /// Files on this machine.
    Sqlite {
        /// The folder that holds `control.db`, `dead-letters.db` and the files of the queues of jobs.
        folder: PathBuf,
    },
}

impl QueueAddress {
    /// Returns OpenTelemetry's name of the service.
    pub fn messaging_system(&self) -> &'static str {
        match self {
            Self::Sqs { .. } => "aws_sqs",
            Self::Rabbit { .. } => "rabbitmq",
            Self::Sqlite { .. } => "sqlite",
        }
    }

    /// Parses an address. A relative folder starts from `folder`. No error repeats the address, which may hold a password.
    pub fn parse(text: &str, folder: &Path) -> Result<Self> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path);
            if path.is_empty() {
                bail!("the address names no folder; allowed: {ALLOWED}");
            }
            return Ok(Self::Sqlite { folder: folder.join(path) });
        }
        let (scheme, rest) = text
            .split_once("://")
            .with_context(|| format!("not an address; allowed: {ALLOWED}"))?;
        match scheme {
            "sqs" => sqs(rest),
            "amqp" | "amqps" => {
                let mut url = Url::parse(text).map_err(|error| {
                    anyhow::anyhow!("{error} (special characters in a password are written as %XX); allowed: {ALLOWED}")
                })?;
                if url.host_str().is_none_or(str::is_empty) {
                    bail!("the address names no host; allowed: {ALLOWED}");
                }
                let pairs = url.query_pairs().into_owned();
                let (given, others): (Vec<_>, Vec<_>) =
                    pairs.partition(|(name, _)| name == "prefix");
                if others
                    .iter()
                    .any(|(name, value)| name == LEASE && lease_seconds(value).is_none())
                {
                    bail!(
                        "`{LEASE}` of the address must be a number of seconds, {LEASE_SECONDS_MIN} or more"
                    );
                }
                url.set_query(None);
                if !others.is_empty() {
                    url.query_pairs_mut().extend_pairs(others);
                }
                Ok(Self::Rabbit {
                    url,
                    prefix: prefix(given.first().map_or(PREFIX_DEFAULT, |(_, given)| given))?,
                })
            }
            other => bail!("\"{other}://\" is not a kind of queue; allowed: {ALLOWED}"),
        }
    }

    /// Returns how long the broker lets a consumer hold a message, if the address says so.
    pub fn lease(&self) -> Option<Duration> {
        let Self::Rabbit { url, .. } = self else { return None };
        let (_, value) = url.query_pairs().find(|(name, _)| name == LEASE)?;
        lease_seconds(&value).map(Duration::from_secs)
    }

    /// Returns the beginning of the names of its queues; `None`: they are files.
    pub fn prefix(&self) -> Option<&str> {
        match self {
            Self::Sqs { prefix, .. } | Self::Rabbit { prefix, .. } => Some(prefix),
            Self::Sqlite { .. } => None,
        }
    }

    /// Returns the name at its service of [`queue::CONTROL`] or [`queue::DEAD_LETTERS`].
    pub fn name(&self, queue: &str) -> String {
        match self {
            Self::Sqs { prefix, .. } | Self::Rabbit { prefix, .. } => format!("{prefix}-{queue}"),
            Self::Sqlite { folder } => {
                folder.join(queue).with_extension("db").display().to_string()
            }
        }
    }
}

fn sqs(rest: &str) -> Result<QueueAddress> {
    let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (mut kms_key, mut tags) = (None, BTreeMap::new());
    for (key, value) in form_urlencoded::parse(query.as_bytes()).into_owned() {
        match key.strip_prefix(TAG) {
            Some(tag) => {
                let length = tag.chars().count();
                if length == 0 || length > TAG_NAME_MAX || tag.to_lowercase().starts_with("aws:") {
                    bail!(
                        "the name of a tag has 1 to {TAG_NAME_MAX} characters and does not begin \
                         with `aws:`; found {tag:?}"
                    );
                }
                if value.chars().count() > TAG_VALUE_MAX {
                    bail!("the tag {tag:?} has more than {TAG_VALUE_MAX} characters");
                }
                tags.insert(tag.to_owned(), value);
            }
            None if key == KMS_KEY && !value.is_empty() => kms_key = Some(value),
            None if key == KMS_KEY => bail!("`{KMS_KEY}` of the address names no key"),
            None => bail!("unknown option {key:?} of the address; allowed: {KMS_KEY}, {TAG}NAME"),
        }
    }
    if tags.len() > TAGS_MAX {
        bail!("the address has {} tags, and AWS allows {TAGS_MAX}", tags.len());
    }
    Ok(QueueAddress::Sqs { prefix: prefix(name.trim_end_matches('/'))?, kms_key, tags })
}

fn lease_seconds(text: &str) -> Option<u64> {
    text.parse().ok().filter(|seconds| *seconds >= LEASE_SECONDS_MIN)
}

fn prefix(text: &str) -> Result<String> {
    let legal =
        |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_');
    if text.is_empty() || text.len() > PREFIX_LENGTH_MAX || !text.chars().all(legal) {
        bail!(
            "the prefix of queue names must have 1 to {PREFIX_LENGTH_MAX} letters, digits, `-` and `_`; found {text:?}"
        );
    }
    Ok(text.to_owned())
}

impl fmt::Display for QueueAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqs { prefix, kms_key, tags } => {
                let key = kms_key.iter().map(|key| (KMS_KEY.to_owned(), key));
                let tags = tags.iter().map(|(name, value)| (format!("{TAG}{name}"), value));
                let mut query = form_urlencoded::Serializer::new(String::new());
                let query = query.extend_pairs(key.chain(tags)).finish();
                let mark = if query.is_empty() { "" } else { "?" };
                write!(formatter, "sqs://{prefix}{mark}{query}")
            }
            Self::Rabbit { url, prefix } => {
                let mut shown = url.clone();
                if shown.password().is_some() {
                    shown
                        .set_password(Some("***"))
                        .expect("an address with a host takes a password");
                }
                shown.query_pairs_mut().append_pair("prefix", prefix);
                write!(formatter, "{shown}")
            }
            Self::Sqlite { folder } => write!(formatter, "sqlite:{}", folder.display()),
        }
    }
}

impl fmt::Debug for QueueAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<QueueAddress> {
        QueueAddress::parse(text, Path::new("/project"))
    }

    #[test]
    fn address_names_the_queues_of_the_target() {
        let names = |text: &str| {
            let address = parse(text).expect("valid");
            [queue::CONTROL, queue::DEAD_LETTERS].map(|queue| address.name(queue))
        };
        assert_eq!(names("sqs://team-a"), ["team-a-control", "team-a-dead-letters"]);
        assert_eq!(names("amqp://guest:guest@localhost/%2f?prefix=b")[0], "b-control");
        assert_eq!(names("amqps://broker.example/")[1], "gristmill-dead-letters");
        assert_eq!(names("sqlite:queues")[0], "/project/queues/control.db");
        assert_eq!(names("sqlite:///var/queues")[1], "/var/queues/dead-letters.db");
    }

    #[test]
    fn password_reaches_only_the_client() {
        let address =
            parse("amqp://someone:s3cr3t%2F@broker/%2f?prefix=b&heartbeat=20").expect("valid");
        let QueueAddress::Rabbit { url, .. } = &address else { panic!("not RabbitMQ: {address}") };
        assert_eq!(url.as_str(), "amqp://someone:s3cr3t%2F@broker/%2f?heartbeat=20");
        for shown in [format!("{address}"), format!("{address:?}")] {
            assert!(!shown.contains("s3cr3t"), "{shown}");
            assert!(shown.contains("someone:***@broker/%2f?heartbeat=20&prefix=b"), "{shown}");
        }
    }

    #[test]
    fn address_says_what_new_queues_of_sqs_get() {
        let key = "arn:aws:kms:eu-west-1:123456789012:key/0a1b";
        let text = format!("sqs://team-a?kms_key={key}&tag.Cost+Center=7+%26+8&tag.Team=");
        let address = parse(&text).expect("valid");
        let QueueAddress::Sqs { prefix, kms_key, tags } = &address else { panic!("{address}") };
        assert_eq!((prefix.as_str(), kms_key.as_deref()), ("team-a", Some(key)));
        let tag = |name: &str| tags.get(name).map(String::as_str);
        assert_eq!((tag("Cost Center"), tag("Team"), tags.len()), (Some("7 & 8"), Some(""), 2));
        assert_eq!(address.name(queue::CONTROL), "team-a-control");
        assert!(parse(&address.to_string()).expect("valid") == address, "{address}");
        let long = format!("sqs://a?tag.{}=x", "n".repeat(129));
        let many: String = (0..51).map(|number| format!("&tag.n{number}=x")).collect();
        for (wrong, part) in [
            ("sqs://a?kms_key=", "names no key"),
            ("sqs://a?tags.Team=x", "unknown option \"tags.Team\""),
            ("sqs://a?tag.=x", "1 to 128 characters"),
            ("sqs://a?tag.AWS:x=x", "`aws:`"),
            (&*long, "1 to 128 characters"),
            (&*format!("sqs://a?{many}"), "51 tags"),
        ] {
            let error = parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn address_carries_the_lease_of_its_broker() {
        let lease = |text: &str| parse(text).expect("valid").lease();
        assert_eq!(
            lease("amqps://b/?prefix=p&lease_seconds=86400"),
            Some(Duration::from_secs(86400))
        );
        assert_eq!(lease("amqps://b/?prefix=p"), None);
        assert_eq!(lease("sqs://p"), None);
        let shown = parse("amqps://b/?lease_seconds=86400&prefix=p").expect("valid").to_string();
        assert_eq!(lease(&shown), Some(Duration::from_secs(86400)), "{shown}");
        for wrong in ["0", "59", "1h", ""] {
            let error =
                parse(&format!("amqps://u:s3cr3t@b/?lease_seconds={wrong}")).expect_err("no lease");
            assert_eq!(
                error.to_string(),
                "`lease_seconds` of the address must be a number of seconds, 60 or more"
            );
        }
    }

    #[test]
    fn invalid_address_is_rejected_without_repeating_it() {
        for text in [
            "",
            "sqlite:",
            "sqs://",
            "sqs://a b",
            "kafka://x",
            "amqp://u:s3cr3t@",
            "amqp://u:s3cr3t@h:x/",
        ] {
            let message = format!("{:#}", parse(text).expect_err("not an address"));
            assert!(!message.contains("s3cr3t"), "{message}");
        }
    }
}
