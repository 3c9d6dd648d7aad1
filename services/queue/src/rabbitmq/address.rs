//! Where a queue is: the URL taken apart, and the same without its password, for messages.

use std::fmt::{self, Debug, Display, Formatter};
use std::path::PathBuf;

use lapin::tcp::OwnedTLSConfig;
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use url::Url;

use super::RabbitOptions;
use crate::Error;

/// The broker answers within that many seconds, or is taken for dead after twice as many. The broker may ask for less.
const HEARTBEAT_SECONDS: u16 = 20;

/// A queue's address. Printing it never shows the password.
#[derive(Clone)]
pub(super) struct Address {
    pub uri: AMQPUri,
    pub ca_file: Option<PathBuf>,
    label: String,
}

impl Address {
    /// `amqp(s)://user:password@host:port/vhost`, with `?cacertfile=` and `&heartbeat=`; everything may be left out but
    /// scheme and host, and parameters it does not know are none of its business.
    pub fn new(options: &RabbitOptions) -> Result<Self, Error> {
        let wrong = |reason: &str| Error::Misconfigured {
            queue: options.name.clone(),
            reason: format!("its URL {reason}; write amqp://user:password@host:5672/vhost, or amqps:// for TLS"),
        };
        if options.name.is_empty() || options.name.len() > 255 {
            let reason = "its name must have 1 to 255 bytes; choose another prefix".to_owned();
            return Err(Error::Misconfigured { queue: options.name.clone(), reason });
        }
        let url = Url::parse(&options.url).map_err(|error| wrong(&format!("cannot be read ({error})")))?;
        let scheme = match url.scheme() {
            "amqp" => AMQPScheme::AMQP,
            "amqps" => AMQPScheme::AMQPS,
            _ => return Err(wrong("is not one of RabbitMQ")),
        };
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| wrong("names no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.port().unwrap_or(if scheme == AMQPScheme::AMQPS { 5671 } else { 5672 });
        let decode = |text: &str| decoded(text).ok_or_else(|| wrong("has a % that is not followed by UTF-8 in hex"));
        let vhost = match url.path() {
            "" | "/" => "/".to_owned(),
            path => decode(&path[1..])?,
        };
        let (username, password) = match url.username() {
            "" => ("guest".to_owned(), "guest".to_owned()),
            user => (decode(user)?, decode(url.password().unwrap_or_default())?),
        };
        let parameter =
            |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        let heartbeat = match parameter("heartbeat").map(|seconds| seconds.parse()) {
            None => HEARTBEAT_SECONDS,
            Some(Ok(seconds)) => seconds,
            Some(Err(_)) => return Err(wrong("has a heartbeat that is not a number of seconds")),
        };
        let ca_file = options.ca_file.clone().or_else(|| parameter("cacertfile").map(PathBuf::from));
        let shown_scheme = url.scheme();
        let shown_vhost = if vhost == "/" { "" } else { &vhost };
        let label = format!("{} at {shown_scheme}://{host}:{port}/{shown_vhost}", options.name);
        let uri = AMQPUri {
            scheme,
            authority: AMQPAuthority { userinfo: AMQPUserInfo { username, password }, host, port },
            vhost,
            query: AMQPQueryString { heartbeat: Some(heartbeat), ..AMQPQueryString::default() },
        };
        Ok(Self { uri, ca_file, label })
    }

    pub fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    pub fn encrypted(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    /// Whom to trust besides the system's authorities.
    pub fn tls(&self) -> Result<OwnedTLSConfig, Error> {
        let Some(path) = &self.ca_file else { return Ok(OwnedTLSConfig::default()) };
        let authority = std::fs::read_to_string(path).map_err(|error| {
            self.misconfigured(format!("cannot read the certificate authority {} ({error})", path.display()))
        })?;
        Ok(OwnedTLSConfig { cert_chain: Some(authority), ..OwnedTLSConfig::default() })
    }

    pub fn misconfigured(&self, reason: String) -> Error {
        Error::Misconfigured { queue: self.label.clone(), reason }
    }

    pub fn unavailable(&self, reason: String) -> Error {
        Error::Unavailable { queue: self.label.clone(), reason }
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

/// Undoes percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<Address, Error> {
        Address::new(&RabbitOptions::new(url, "demo-tasks"))
    }

    #[test]
    fn parts_of_a_url() {
        let all = address("amqps://us%40er:p%2Fw@broker:1234/a%2fb?prefix=demo&cacertfile=/etc/ca.pem&heartbeat=5")
            .expect("a URL");
        assert_eq!((all.user(), &*all.uri.authority.userinfo.password), ("us@er", "p/w"));
        assert_eq!((&*all.uri.authority.host, all.uri.authority.port, &*all.uri.vhost), ("broker", 1234, "a/b"));
        assert_eq!((all.uri.query.heartbeat, all.encrypted()), (Some(5), true));
        assert_eq!(all.ca_file, Some(PathBuf::from("/etc/ca.pem")));
        let least = address("amqp://[::1]").expect("a URL");
        assert_eq!((&*least.uri.authority.host, least.uri.authority.port, &*least.uri.vhost), ("::1", 5672, "/"));
        assert_eq!((least.user(), least.uri.query.heartbeat), ("guest", Some(HEARTBEAT_SECONDS)));
        assert_eq!(address("amqps://broker/%2f").expect("a URL").uri.authority.port, 5671);
    }

    #[test]
    fn a_password_is_never_shown() {
        let address = address("amqp://user:sesame@broker/jobs").expect("a URL");
        let shown = format!("{address} {address:?} {}", address.unavailable("gone".to_owned()));
        assert!(!shown.contains("sesame"), "{shown}");
        assert!(shown.starts_with("demo-tasks at amqp://broker:5672/jobs "), "{shown}");
        for wrong in ["http://user:sesame@broker", "amqp://user:sesame@", "amqp://user:sesame@host:port", "sesame"] {
            let error = Address::new(&RabbitOptions::new(wrong, "demo-tasks")).expect_err("not a URL");
            assert!(matches!(error, Error::Misconfigured { .. }) && !error.to_string().contains("sesame"), "{error}");
        }
    }
}
