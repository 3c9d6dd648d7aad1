//! RabbitMQ's management API, and `rabbitmqctl` if it is installed, for facts that AMQP does not provide.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use storage::deepest_cause;
use tokio::time::sleep;
use url::Url;

const PORT: u16 = 15672;
const PORT_TLS: u16 = 15671;
const PATIENCE: Duration = Duration::from_secs(10);
/// The API lists a new queue within some seconds.
const LOOKS_MAX: usize = 6;

#[derive(Clone)]
pub struct Management {
    client: reqwest::Client,
    base: Url,
    user: String,
    password: String,
    vhost: String,
}

/// A queue, as the API describes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QueueFacts {
    /// `quorum`, `classic` or `stream`.
    #[serde(rename = "type")]
    pub kind: String,
    pub arguments: serde_json::Map<String, Value>,
    pub effective_policy_definition: Option<serde_json::Map<String, Value>>,
}

impl QueueFacts {
    /// Returns the setting `name` of a policy, else the argument `x-name`.
    pub fn setting(&self, name: &str) -> Option<&Value> {
        let policy = self.effective_policy_definition.as_ref().and_then(|policy| policy.get(name));
        policy.or_else(|| self.arguments.get(&format!("x-{name}")))
    }

    pub fn time(&self, name: &str) -> Option<Duration> {
        self.setting(name).and_then(Value::as_u64).map(Duration::from_millis)
    }
}

impl Management {
    /// Connects to the API at `address`, by default at its usual port on the broker's host.
    pub fn new(broker: &Url, address: Option<&str>) -> Result<Self> {
        let address = address.map_or_else(
            || {
                let (scheme, port) =
                    if broker.scheme() == "amqps" { ("https", PORT_TLS) } else { ("http", PORT) };
                format!("{scheme}://{}:{port}", broker.host_str().unwrap_or("localhost"))
            },
            str::to_owned,
        );
        let base =
            Url::parse(&address).map_err(|error| anyhow!("{address:?} is not a URL: {error}"))?;
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (user, password) = match broker.username() {
            "" => ("guest".to_owned(), "guest".to_owned()),
            user => (decoded(user), decoded(broker.password().unwrap_or_default())),
        };
        let vhost = match broker.path().trim_start_matches('/') {
            "" => "/".to_owned(),
            vhost => decoded(vhost),
        };
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            .build()
            .map_err(|error| anyhow!("{}", deepest_cause(&error)))?;
        Ok(Self { client, base, user, password, vhost })
    }

    pub async fn version(&self) -> Result<String> {
        #[derive(Deserialize)]
        struct Overview {
            rabbitmq_version: String,
        }
        let overview: Option<Overview> = self.get(&["overview"]).await?;
        Ok(overview.context("the management API has no overview")?.rabbitmq_version)
    }

    /// Returns the facts about a queue. Waits a moment for one that has just been created; `None`: it is not listed.
    pub async fn listed(&self, name: &str) -> Result<Option<QueueFacts>> {
        for _ in 0..LOOKS_MAX {
            let facts: Option<QueueFacts> = self.get(&["queues", &self.vhost, name]).await?;
            if facts.is_some() {
                return Ok(facts);
            }
            sleep(Duration::from_secs(1)).await;
        }
        Ok(None)
    }

    async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Option<T>> {
        let Self { base, user, .. } = self;
        // The deepest cause never repeats the address.
        let silent =
            |error: reqwest::Error| anyhow!("{base} does not answer: {}", deepest_cause(&error));
        let mut url = base.clone();
        url.path_segments_mut()
            .map_err(|()| anyhow!("the management address has no path"))?
            .pop_if_empty()
            .push("api")
            .extend(path);
        let answer = self.client.get(url).basic_auth(user, Some(&self.password)).send().await;
        let answer = answer.map_err(silent)?;
        match answer.status().as_u16() {
            200 => {
                let bytes = answer.bytes().await.map_err(silent)?;
                let read = serde_json::from_slice(&bytes).map(Some);
                read.map_err(|error| anyhow!("the answer of {base} cannot be read: {error}"))
            }
            404 => Ok(None),
            401 | 403 => {
                // Both have the status 401, and only the reason differs.
                if answer.text().await.is_ok_and(|reason| reason.contains("management user")) {
                    bail!("{base} rejects user {user}; give this user the tag `monitoring`");
                }
                bail!(
                    "{base} rejects user {user} and the password; correct them in `queue` of the target"
                )
            }
            status => bail!("{base} answers {status}"),
        }
    }
}

/// Asks `rabbitmqctl` for the server's own consumer timeout, if possible.
pub async fn consumer_timeout_by_ctl() -> Option<ServerTimeout> {
    let eval = tokio::process::Command::new("rabbitmqctl")
        .args(["-q", "eval", "application:get_env(rabbit, consumer_timeout)."])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, eval).await.ok()?.ok()?;
    parse_timeout(&String::from_utf8_lossy(&output.stdout))
}

/// How long the server lets a consumer hold a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerTimeout {
    Off,
    After(Duration),
}

fn parse_timeout(said: &str) -> Option<ServerTimeout> {
    let value = said.trim();
    if value == "undefined" || value == "{ok,undefined}" {
        return Some(ServerTimeout::Off);
    }
    let milliseconds = value.strip_prefix("{ok,")?.strip_suffix('}')?.trim().parse().ok()?;
    Some(ServerTimeout::After(Duration::from_millis(milliseconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn management(broker: &str) -> Management {
        Management::new(&Url::parse(broker).expect("a URL"), None).expect("a place")
    }

    #[test]
    fn default_address_is_on_the_host_of_the_broker() {
        let plain = management("amqp://host/");
        assert_eq!((plain.base.as_str(), plain.vhost.as_str()), ("http://host:15672/", "/"));
        let tls = management("amqps://us%40er:p%2Bw+x@host:1/a%2Fb");
        assert_eq!(tls.base.as_str(), "https://host:15671/");
        assert_eq!((&*tls.user, &*tls.password, &*tls.vhost), ("us@er", "p+w+x", "a/b"));
    }

    #[test]
    fn answer_of_rabbitmqctl_is_parsed() {
        assert_eq!(
            parse_timeout("{ok,1800000}\n"),
            Some(ServerTimeout::After(Duration::from_secs(1800)))
        );
        assert_eq!(parse_timeout("undefined\n"), Some(ServerTimeout::Off));
        assert_eq!(parse_timeout("Error: unable to connect"), None);
    }

    #[test]
    fn policy_takes_precedence_over_argument() {
        let facts: QueueFacts = serde_json::from_str(
            r#"{"type":"quorum","arguments":{"x-delivery-limit":5,"x-consumer-timeout":60000},
                "effective_policy_definition":{"delivery-limit":50}}"#,
        )
        .expect("valid");
        assert_eq!(facts.setting("delivery-limit").and_then(Value::as_u64), Some(50));
        assert_eq!(facts.time("consumer-timeout"), Some(Duration::from_secs(60)));
    }
}
