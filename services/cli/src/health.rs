//! `gristmill health`: requests the health of a role on this machine; the health check of containers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Exit;

const ANSWER_TIME: Duration = Duration::from_secs(4);
/// Maximum size of an answer, which is one line.
const ANSWER_BYTES_MAX: u64 = 8 * 1024;

pub async fn health(address: SocketAddr) -> Exit {
    let address = SocketAddr::new(reachable(address.ip()), address.port());
    let answered = timeout(ANSWER_TIME, healthz(address)).await;
    let answered =
        answered.unwrap_or_else(|_| bail!("no answer within {} s", ANSWER_TIME.as_secs()));
    match answered {
        Ok((200, line)) => {
            say!(out, "{line}");
            Exit::Done
        }
        Ok((_, line)) => {
            say!(err, "{line}");
            Exit::Error
        }
        Err(error) => {
            say!(err, "the role at http://{address}/healthz does not answer: {error:#}");
            Exit::Error
        }
    }
}

/// Returns the address at which a role on this machine can be reached.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Returns status and first line of the answer.
async fn healthz(address: SocketAddr) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(
            format!("GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
        .await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is incomplete")?;
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let status = status.context("the answer is not HTTP")?;
    Ok((status, body.lines().next().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_address_means_this_machine() {
        for (listens, asked) in [
            ("0.0.0.0", "127.0.0.1"),
            ("::", "::1"),
            ("127.0.0.2", "127.0.0.2"),
            ("10.1.2.3", "10.1.2.3"),
        ] {
            assert_eq!(
                reachable(listens.parse().expect("an address")),
                asked.parse::<IpAddr>().expect("an address")
            );
        }
    }
}
