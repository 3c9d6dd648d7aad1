//! Notices that this machine will be taken away: a spot instance of EC2 learns of it two minutes before, from the
//! metadata address of the instance.
//!
//! Deliberately absent: the recommendation to rebalance, which may come earlier, and does not say that the machine will
//! go. A node that ended for it would be started again on the very same machine, and find the recommendation again. Two
//! minutes are enough to give everything back.

use std::time::Duration;

use anyhow::{Result, anyhow};
use aws_config::imds::Client;
use aws_config::imds::client::error::ImdsError;

/// What is there once the instance is going to be stopped or terminated, and missing before.
const INSTANCE_ACTION: &str = "/latest/meta-data/spot/instance-action";

/// What a node has left of the two minutes when it has seen the notice, and wants to be gone before they are over.
const PATIENCE: Duration = Duration::from_secs(100);

/// Where notices are announced.
#[derive(Clone, Debug)]
pub struct SpotNotice {
    client: Client,
    period: Duration,
    /// How long after a notice anything may still run, whatever else it would be allowed.
    pub(super) patience: Duration,
}

impl SpotNotice {
    /// Asks at `address`, or where instances of EC2 have it (`AWS_EC2_METADATA_SERVICE_ENDPOINT`), every `period`.
    pub fn new(address: Option<&str>, period: Duration) -> Result<Self> {
        // The next question is the next attempt.
        let mut builder = Client::builder().max_attempts(1);
        if let Some(address) = address {
            let invalid = |error| anyhow!("the address of the instance metadata, {address:?}, is none: {error}");
            builder = builder.endpoint(address).map_err(invalid)?;
        }
        Ok(Self { client: builder.build(), period, patience: PATIENCE })
    }

    /// Waits for a notice, and returns what it says.
    pub(super) async fn given(&self) -> String {
        let mut has_complained = false;
        loop {
            match self.client.get(INSTANCE_ACTION).await {
                Ok(notice) => return notice.as_ref().trim().to_owned(),
                // No notice, says the address.
                Err(ImdsError::ErrorResponse(_)) => {}
                Err(error) if !has_complained => {
                    has_complained = true;
                    tracing::warn!(
                        "spot notices cannot be seen, the instance metadata does not answer (in a container with a \
                         network of its own it does with a hop limit of 2): {error}"
                    );
                }
                Err(_) => {}
            }
            tokio::time::sleep(self.period).await;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Stands in for the metadata address: wants a token, and has a notice once it is given.
    pub(in crate::node) async fn metadata(is_given: Arc<AtomicBool>, asked: Arc<AtomicUsize>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.expect("accepts");
                let (is_given, asked) = (is_given.clone(), asked.clone());
                tokio::spawn(async move {
                    let mut buffer = vec![0; 4096];
                    while let Ok(length @ 1..) = connection.read(&mut buffer).await {
                        let request = String::from_utf8_lossy(&buffer[..length]).to_lowercase();
                        let has_token = request.contains("x-aws-ec2-metadata-token: the-token");
                        let (status, body) = match request.split_whitespace().collect::<Vec<_>>()[..2] {
                            ["put", "/latest/api/token"] => ("200 OK", "the-token"),
                            ["get", path] if path == INSTANCE_ACTION && has_token => {
                                asked.fetch_add(1, Ordering::SeqCst);
                                match is_given.load(Ordering::SeqCst) {
                                    true => ("200 OK", r#"{"action": "terminate", "time": "2026-11-21T08:22:00Z"}"#),
                                    false => ("404 Not Found", ""),
                                }
                            }
                            _ => ("401 Unauthorized", ""),
                        };
                        let head = "content-type: text/plain\r\nx-aws-ec2-metadata-token-ttl-seconds: 21600\r\n";
                        let length = body.len();
                        let answer = format!("HTTP/1.1 {status}\r\n{head}content-length: {length}\r\n\r\n{body}");
                        connection.write_all(answer.as_bytes()).await.expect("the client listens");
                    }
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn a_notice_is_seen_when_it_is_given() {
        let (is_given, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let address = metadata(is_given.clone(), asked.clone()).await;
        let spot = SpotNotice::new(Some(&address), Duration::from_millis(10)).expect("an address");
        let noticed = tokio::spawn(async move { spot.given().await });
        while asked.load(Ordering::SeqCst) < 3 {
            assert!(!noticed.is_finished(), "there is no notice yet");
            tokio::task::yield_now().await;
        }
        is_given.store(true, Ordering::SeqCst);
        assert!(noticed.await.expect("does not panic").contains("terminate"));
    }

    #[tokio::test]
    async fn where_there_is_no_metadata_nothing_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        drop(listener);
        let spot = SpotNotice::new(Some(&address), Duration::from_millis(1)).expect("an address");
        tokio::time::timeout(Duration::from_millis(200), spot.given()).await.expect_err("nobody gave a notice");
    }
}
