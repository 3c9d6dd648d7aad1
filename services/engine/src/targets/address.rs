//! Addresses of the queues of a target: `sqs://PREFIX`, `amqp(s)://user:password@host/vhost?prefix=PREFIX`,
//! `sqlite:FOLDER`. No text of this type shows the password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use url::Url;

const ALLOWED: &str =
    "sqs://PREFIX, amqp://USER:PASSWORD@HOST/VHOST?prefix=PREFIX (or amqps://), or sqlite:FOLDER";
/// Prefix of queue names for a RabbitMQ address without one.
const PREFIX_DEFAULT: &str = "gristmill";
/// How long the broker lets a consumer hold a message: its `consumer_timeout`, which every process of a target must know.
const LEASE: &str = "lease_seconds";
/// The shortest lease that a target may have.
pub const LEASE_SECONDS_MIN: u64 = 60;
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
            "sqs" => Ok(Self::Sqs { prefix: prefix(rest.trim_end_matches('/'))? }),
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
            Self::Sqs { prefix } | Self::Rabbit { prefix, .. } => Some(prefix),
            Self::Sqlite { .. } => None,
        }
    }

    /// Returns the name at its service of [`queue::CONTROL`] or [`queue::DEAD_LETTERS`].
    pub fn name(&self, queue: &str) -> String {
        match self {
            Self::Sqs { prefix } | Self::Rabbit { prefix, .. } => format!("{prefix}-{queue}"),
            Self::Sqlite { folder } => {
                folder.join(queue).with_extension("db").display().to_string()
            }
        }
    }
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
            Self::Sqs { prefix } => write!(formatter, "sqs://{prefix}"),
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
