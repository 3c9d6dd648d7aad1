//! SQS passes the contract, as far as two emulators can show: LocalStack, and for leases moto, whose times are more
//! exact.

use std::sync::Arc;
use std::time::Duration;

use queue::Queue;
use queue::contract::{Capabilities, Harness, OldReceipt};

use crate::{Deleted, localstack, messages, moto, open, receive, unused_name, unused_queue};

struct Aws {
    queue: Deleted,
}

impl Harness for Aws {
    fn queue(&self) -> Arc<dyn Queue> {
        Arc::new(self.queue.clone())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            time_unit: Duration::from_secs(1),
            wait_max: Duration::from_secs(60),
            timed_lease: true,
            // AWS promises neither; the emulators always delete.
            old_receipt: OldReceipt::Either,
            delay: true,
            exact_counts: false,
            first_in_first_out: false,
            dropped_receive_returns: true,
            message_bytes_max: Some(self.queue.limits().message_bytes_max),
        }
    }
}

async fn over(endpoint: String) -> Aws {
    Aws { queue: unused_queue(&endpoint).await }
}

mod on_localstack {
    use super::{localstack, over};
    queue::queue_contract!(over(localstack()).await);
}

/// Only the tests of times. LocalStack runs the rest, because moto is slow and busy-waits during a receive.
mod on_moto {
    use super::{moto, over};

    queue::queue_contract! { over(moto()).await =>
        expired_lease_makes_message_visible
        extension_lengthens_lease
        extension_shortens_lease
        expired_lease_cannot_be_extended
        lost_receipts_of_a_batch_are_returned
        acknowledged_message_is_never_delivered_again
        old_receipt_does_not_affect_new_lease
        released_message_is_visible_immediately
        delayed_message_is_hidden_until_its_time
        depth_counts_visible_leased_and_delayed_messages
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_can_be_opened_by_url() {
    for endpoint in [localstack(), moto()] {
        let name = unused_name();
        let queue = Deleted(open(&endpoint, &name, true).await.expect("creates"));
        queue.send(messages(1)).await.expect("sends");
        let arn = queue.attributes().await.expect("exists").arn;
        let account = arn.split(':').nth(4).expect("an account");
        let by_url =
            open(&endpoint, &format!("{endpoint}/{account}/{name}"), false).await.expect("opens");
        receive(&by_url, 1).await;
    }
}
