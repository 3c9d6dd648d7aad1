//! Spot notices: the metadata address of a spot instance of EC2 says two minutes before that EC2 will take the machine
//! away.
//!
//! Absent on purpose: the recommendation to rebalance, which may come earlier, and does not say
//! that EC2 will take the machine away. A node that ended because of it would restart on the same
//! machine, and find the recommendation again. Two minutes are enough to return everything.

use std::time::Duration;

use anyhow::{Result, anyhow};
use aws_config::imds::Client;
use aws_config::imds::client::error::ImdsError;

/// Exists once EC2 will stop or terminate the instance.
const INSTANCE_ACTION: &str = "/latest/meta-data/spot/instance-action";

/// How long runs may last after the notice: the two minutes, less the time to see the notice and to
/// end.
const PATIENCE: Duration = Duration::from_secs(100);

/// The source of notices.
#[derive(Clone, Debug)]
pub struct SpotNotice {
    client: Client,
    period: Duration,
    /// How long runs may last after a notice, whatever other limits allow.
    pub(super) patience: Duration,
}

impl SpotNotice {
    /// Asks every `period` at `address`; `None`: at the usual address, or `AWS_EC2_METADATA_SERVICE_ENDPOINT`.
    pub fn new(address: Option<&str>, period: Duration) -> Result<Self> {
        // The next period retries.
        let mut builder = Client::builder().max_attempts(1);
        if let Some(address) = address {
            let invalid =
                |error| anyhow!("invalid address of the instance metadata {address:?}: {error}");
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
                // There is no notice.
                Err(ImdsError::ErrorResponse(_)) => {}
                Err(error) if !has_complained => {
                    has_complained = true;
                    tracing::warn!(
                        "cannot see spot notices, because the instance metadata does not answer (a container with a \
                         network of its own needs a hop limit of 2): {error}"
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

    use super::*;
    use crate::node::tests::{serve, unused_address};

    /// Stands in for the metadata address: requires a token, and has a notice once `is_given` is set.
    pub(in crate::node) async fn metadata(
        is_given: Arc<AtomicBool>,
        asked: Arc<AtomicUsize>,
    ) -> String {
        let answer = move |request: &str| {
            let request = request.to_lowercase();
            let has_token = request.contains("x-aws-ec2-metadata-token: the-token");
            match request.split_whitespace().collect::<Vec<_>>()[..2] {
                ["put", "/latest/api/token"] => ("200 OK", "the-token"),
                ["get", path] if path == INSTANCE_ACTION && has_token => {
                    asked.fetch_add(1, Ordering::SeqCst);
                    match is_given.load(Ordering::SeqCst) {
                        true => {
                            ("200 OK", r#"{"action": "terminate", "time": "2026-11-21T08:22:00Z"}"#)
                        }
                        false => ("404 Not Found", ""),
                    }
                }
                _ => ("401 Unauthorized", ""),
            }
        };
        serve(move |request| request.ends_with("\r\n\r\n").then(|| answer(request))).await
    }

    #[tokio::test]
    async fn notice_is_returned_once_it_is_given() {
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
    async fn without_metadata_there_is_no_notice() {
        let spot = SpotNotice::new(Some(&unused_address().await), Duration::from_millis(1))
            .expect("an address");
        tokio::time::timeout(Duration::from_millis(200), spot.given())
            .await
            .expect_err("there is no notice");
    }
}
