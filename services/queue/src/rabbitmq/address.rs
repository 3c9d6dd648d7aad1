//! The address of a queue: the parsed URL, and a label without the password for error messages.

use std::fmt::{self, Debug, Display, Formatter};
use std::path::PathBuf;

use lapin::tcp::OwnedTLSConfig;
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use percent_encoding::percent_decode_str;
use url::Url;

use super::RabbitOptions;
use crate::Error;
use crate::error::Cause;

/// The heartbeat interval. The client gives up a broker that is silent for twice as long. The broker may request a
/// shorter interval.
const HEARTBEAT_SECONDS: u16 = 20;

/// The address of a queue. Its `Debug` and `Display` forms never contain the password.
#[derive(Clone)]
pub(super) struct Address {
    pub uri: AMQPUri,
    /// The name of the queue.
    pub queue: String,
    pub ca_file: Option<PathBuf>,
    /// Whether the queue belongs to a job, so that it may be deleted at any time.
    pub of_job: bool,
    /// Whether this process creates the queue if it is missing. Its later absence is then an error.
    creates: bool,
    label: String,
}

impl Address {
    /// Parses `amqp(s)://user:password@host:port/vhost`, with `?cacertfile=` and `&heartbeat=`. Requires only scheme
    /// and host, and ignores unknown parameters.
    pub fn new(options: &RabbitOptions, queue: &str, of_job: bool) -> Result<Self, Error> {
        let misconfigured =
            |words: String| Error::Misconfigured { queue: queue.to_owned(), source: words.into() };
        let wrong = |reason: &str| {
            let form = "write amqp://user:password@host:5672/vhost, or amqps:// for TLS";
            misconfigured(format!("its URL {reason}; {form}"))
        };
        if queue.is_empty() || queue.len() > 255 {
            return Err(misconfigured(
                "its name must have 1 to 255 bytes; choose another prefix".to_owned(),
            ));
        }
        let url = Url::parse(&options.url)
            .map_err(|error| wrong(&format!("cannot be read ({error})")))?;
        let scheme = match url.scheme() {
            "amqp" => AMQPScheme::AMQP,
            "amqps" => AMQPScheme::AMQPS,
            _ => return Err(wrong("is not a RabbitMQ URL")),
        };
        let host =
            url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| wrong("names no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.port().unwrap_or(if scheme == AMQPScheme::AMQPS { 5671 } else { 5672 });
        let decode = |text: &str| match percent_decode_str(text).decode_utf8() {
            Ok(decoded) => Ok(decoded.into_owned()),
            Err(_) => Err(wrong("has percent-encoded bytes that are not UTF-8")),
        };
        let vhost = match url.path() {
            "" | "/" => "/".to_owned(),
            path => decode(&path[1..])?,
        };
        let (username, password) = match url.username() {
            "" => ("guest".to_owned(), "guest".to_owned()),
            user => (decode(user)?, decode(url.password().unwrap_or_default())?),
        };
        let parameter = |name: &str| {
            url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
        };
        let heartbeat = match parameter("heartbeat").map(|seconds| seconds.parse()) {
            None => HEARTBEAT_SECONDS,
            Some(Ok(seconds)) => seconds,
            Some(Err(_)) => return Err(wrong("has a heartbeat that is not a number of seconds")),
        };
        let ca_file =
            options.ca_file.clone().or_else(|| parameter("cacertfile").map(PathBuf::from));
        let shown_scheme = url.scheme();
        let shown_vhost = if vhost == "/" { "" } else { &vhost };
        let label = format!("{queue} at {shown_scheme}://{host}:{port}/{shown_vhost}");
        let uri = AMQPUri {
            scheme,
            authority: AMQPAuthority { userinfo: AMQPUserInfo { username, password }, host, port },
            vhost,
            query: AMQPQueryString { heartbeat: Some(heartbeat), ..AMQPQueryString::default() },
        };
        Ok(Self { uri, queue: queue.to_owned(), ca_file, of_job, creates: options.create, label })
    }

    pub fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    pub fn encrypted(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    /// Returns the TLS settings: the authorities to trust besides those of the system.
    pub fn tls(&self) -> Result<OwnedTLSConfig, Error> {
        let Some(path) = &self.ca_file else { return Ok(OwnedTLSConfig::default()) };
        let authority = std::fs::read_to_string(path).map_err(|error| {
            let words =
                format!("cannot read the certificate authority {} ({error})", path.display());
            self.misconfigured(Cause::new(words, error))
        })?;
        Ok(OwnedTLSConfig { cert_chain: Some(authority), ..OwnedTLSConfig::default() })
    }

    pub fn misconfigured(&self, cause: impl Into<Cause>) -> Error {
        Error::Misconfigured { queue: self.label.clone(), source: cause.into() }
    }

    /// Returns whether this queue may be absent, because it belongs to a job, or another process creates it.
    pub fn may_be_absent(&self) -> bool {
        self.of_job || !self.creates
    }

    /// Returns the error for a missing queue. If this process had created it, a person must learn of the deletion.
    pub fn absent(&self, cause: impl Into<Cause>) -> Error {
        match self.may_be_absent() {
            true => Error::Absent { queue: self.label.clone() },
            false => self.misconfigured(cause),
        }
    }

    /// Converts an error of a shared connection into one of this queue.
    pub fn sharing(&self, error: Error) -> Error {
        match error {
            Error::Unavailable { source, .. } => self.unavailable(source),
            Error::Misconfigured { source, .. } => self.misconfigured(source),
            error => error,
        }
    }

    pub fn unavailable(&self, cause: impl Into<Cause>) -> Error {
        Error::Unavailable { queue: self.label.clone(), source: cause.into() }
    }
}

impl Display for Address {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.label)
    }
}

impl Debug for Address {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<Address, Error> {
        Address::new(&RabbitOptions::new(url, "demo"), "demo-tasks", true)
    }

    #[test]
    fn url_is_split_into_its_parts() {
        let all = address("amqps://us%40er:p%2Fw@broker:1234/a%2fb?prefix=demo&cacertfile=/etc/ca.pem&heartbeat=5")
            .expect("a URL");
        assert_eq!((all.user(), &*all.uri.authority.userinfo.password), ("us@er", "p/w"));
        assert_eq!(
            (&*all.uri.authority.host, all.uri.authority.port, &*all.uri.vhost),
            ("broker", 1234, "a/b")
        );
        assert_eq!((all.uri.query.heartbeat, all.encrypted()), (Some(5), true));
        assert_eq!(all.ca_file, Some(PathBuf::from("/etc/ca.pem")));
        let least = address("amqp://[::1]").expect("a URL");
        assert_eq!(
            (&*least.uri.authority.host, least.uri.authority.port, &*least.uri.vhost),
            ("::1", 5672, "/")
        );
        assert_eq!((least.user(), least.uri.query.heartbeat), ("guest", Some(HEARTBEAT_SECONDS)));
        assert_eq!(address("amqps://broker/%2f").expect("a URL").uri.authority.port, 5671);
    }

    #[test]
    fn password_is_never_shown() {
        let address = address("amqp://user:sesame@broker/jobs").expect("a URL");
        let shown = format!("{address} {address:?} {:#}", address.unavailable("gone"));
        assert!(!shown.contains("sesame"), "{shown}");
        assert!(shown.starts_with("demo-tasks at amqp://broker:5672/jobs "), "{shown}");
        for wrong in [
            "http://user:sesame@broker",
            "amqp://user:sesame@",
            "amqp://user:sesame@host:port",
            "sesame",
        ] {
            let error = self::address(wrong).expect_err("not a URL");
            assert!(
                matches!(error, Error::Misconfigured { .. })
                    && !format!("{error:#}").contains("sesame"),
                "{error:#}"
            );
        }
    }
}
