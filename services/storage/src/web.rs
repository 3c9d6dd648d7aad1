//! Files on web servers, which may redirect a request anywhere.
//!
//! The metadata service of a node gives the node's credentials to any process there. A URL that redirects or resolves
//! to it must not turn its answer into an input.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use object_store::client::{ClientOptions, HttpClient, HttpConnector};
use object_store::http::HttpBuilder;
use object_store::{ClientConfigKey, ObjectStore};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use url::{Host, Position, Url};

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The longest time without a byte. The whole file has no time limit.
const READ_TIME: Duration = Duration::from_secs(30);
const REDIRECTS_MAX: usize = 10;

/// The names of metadata services.
const METADATA_NAMES: &[&str] =
    &["metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"];
/// The addresses of metadata services that are not link-local: IPv6 of AWS and Google, and Alibaba.
const METADATA_ADDRESSES: &[IpAddr] = &[
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
];

#[derive(Debug, thiserror::Error)]
#[error("{0} is an address of this machine, such as its metadata service, and cannot be an input")]
struct Forbidden(String);

/// Opens the web server of an `http` or `https` URL as a store.
pub(crate) fn open(url: &Url) -> object_store::Result<Box<dyn ObjectStore>> {
    if let Some(host) = url.host().filter(is_metadata) {
        let source = Box::new(Forbidden(host.to_string()));
        return Err(object_store::Error::Generic { store: "HTTP", source });
    }
    let is_plain = url.scheme() == "http";
    let store = HttpBuilder::new()
        .with_url(&url[..Position::BeforePath])
        // An explicit `http` is intentional.
        .with_config(ClientConfigKey::AllowHttp, is_plain.to_string())
        .with_http_connector(Connector { is_plain })
        .build()?;
    Ok(Box::new(store))
}

#[derive(Debug)]
struct Connector {
    is_plain: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIME)
            .read_timeout(READ_TIME)
            .https_only(!self.is_plain)
            .redirect(Policy::custom(|attempt| {
                let is_other_host =
                    attempt.previous().first().map(Url::host) != Some(attempt.url().host());
                let forbidden = attempt
                    .url()
                    .host()
                    .filter(|host| is_metadata(host) || is_other_host && is_this_machine(host));
                match forbidden.map(|host| host.to_string()) {
                    Some(host) => attempt.error(Forbidden(host)),
                    None if attempt.previous().len() > REDIRECTS_MAX => {
                        attempt.error("the server redirects too often")
                    }
                    None => attempt.follow(),
                }
            }))
            .dns_resolver(Arc::new(Resolver))
            .build();
        let client = client.map_err(|error| object_store::Error::Generic {
            store: "HTTP",
            source: Box::new(error),
        })?;
        Ok(HttpClient::new(client))
    }
}

/// The system's resolver, without the addresses of metadata services.
#[derive(Debug)]
struct Resolver;

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> = found
                .iter()
                .copied()
                .filter(|address| !is_metadata_address(&address.ip()))
                .collect();
            match allowed.is_empty() && !found.is_empty() {
                true => Err(Forbidden(name.as_str().to_owned()).into()),
                false => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

fn is_metadata<T: AsRef<str>>(host: &Host<T>) -> bool {
    match host {
        Host::Domain(name) => {
            let name = name.as_ref().trim_end_matches('.');
            METADATA_NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
        }
        Host::Ipv4(address) => is_metadata_address(&(*address).into()),
        Host::Ipv6(address) => is_metadata_address(&(*address).into()),
    }
}

fn is_metadata_address(address: &IpAddr) -> bool {
    let address = address.to_canonical();
    METADATA_ADDRESSES.contains(&address)
        || match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
}

fn is_this_machine<T: AsRef<str>>(host: &Host<T>) -> bool {
    match host {
        Host::Domain(name) => {
            let name = name.as_ref().trim_end_matches('.').to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
        Host::Ipv4(address) => address.is_loopback() || address.is_unspecified(),
        Host::Ipv6(address) => {
            IpAddr::from(*address).to_canonical().is_loopback() || address.is_unspecified()
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::Stores;

    /// Starts a web server that gives this answer to every request.
    async fn server(answer: String) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = Url::parse(&format!("http://{}", listener.local_addr().expect("bound")))
            .expect("a URL");
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let _ = connection.read(&mut request).await;
                let _ = connection.write_all(answer.as_bytes()).await;
            }
        });
        url
    }

    fn redirect(to: &str) -> String {
        format!(
            "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
    }

    #[tokio::test]
    async fn metadata_service_is_rejected() {
        for url in [
            "http://169.254.169.254/latest/meta-data/iam/security-credentials/role",
            "http://2852039166/latest/meta-data",
            "http://0xa9.0xfe.0xa9.0xfe/latest/meta-data",
            "http://169.254.170.2/v2/credentials/x",
            "http://[fd00:ec2::254]/latest/meta-data",
            "http://[::ffff:169.254.169.254]/latest",
            "http://[fe80::1]/x",
            "http://metadata.google.internal/computeMetadata/v1/",
            "http://METADATA.google.internal./computeMetadata/v1/",
            "https://100.100.100.200/latest/meta-data",
        ] {
            let error = format!("{:#}", Stores::default().size(url).await.expect_err(url));
            assert!(
                error.contains("its metadata service, and cannot be an input"),
                "{url}: {error}"
            );
        }
    }

    #[tokio::test]
    async fn redirect_to_this_machine_or_its_metadata_is_rejected() {
        for to in [
            "http://169.254.169.254/latest/meta-data/",
            "http://[::1]:1/",
            "http://localhost:1/",
            "file:///etc/shadow",
        ] {
            let url = server(redirect(to)).await;
            let error =
                Stores::default().read(&format!("{url}data.csv"), None, 0..1).await.expect_err(to);
            let error = format!("{error:#}");
            let is_named = ["cannot be an input", "302", "redirect", "scheme"]
                .iter()
                .any(|part| error.contains(part));
            assert!(
                is_named && !error.contains("refused") && !error.contains("root:"),
                "{to}: {error}"
            );
        }
    }

    #[tokio::test]
    async fn other_redirects_are_followed() {
        let there = server(
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nrows".to_owned(),
        )
        .await;
        // Both servers are on this machine, and the redirect stays on the same host.
        let here = server(redirect(&format!("{there}data.csv"))).await;
        let store = open(&here).expect("it can be opened");
        let read =
            store.get(&"data.csv".into()).await.expect("there").bytes().await.expect("whole");
        assert_eq!(&read[..], b"rows");
    }

    #[tokio::test]
    async fn resolver_rejects_only_addresses_of_metadata_services() {
        let name: Name = "localhost".parse().expect("a name");
        assert!(Resolver.resolve(name).await.expect("it resolves").count() > 0);
        assert!(is_metadata_address(&"169.254.1.1".parse().expect("an address")));
        assert!(!is_metadata_address(&"10.0.0.1".parse().expect("an address")));
    }
}
