//! SQS keeps the contract, as far as two emulators of it can tell: LocalStack, and for time moto, which keeps it more exactly.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue::Queue;
use queue::contract::{Capabilities, Harness, OldReceipt};

use crate::{Deleted, localstack, moto, unused_queue};

struct Aws {
    queue: Deleted,
}

#[async_trait]
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

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

async fn over(endpoint: String) -> Aws {
    Aws { queue: unused_queue(&endpoint).await }
}

mod on_localstack {
    use super::{localstack, over};
    queue::queue_contract!(over(localstack()).await);
}

/// What a lease is, in seconds. The rest is left to LocalStack: moto is slow, and spins while a receive waits.
mod on_moto {
    use super::{moto, over};

    queue::queue_contract! { over(moto()).await =>
        a_leased_message_is_hidden_and_comes_back
        extend_prolongs_a_lease
        extend_shortens_a_lease
        a_lapsed_lease_cannot_be_extended
        each_receipt_of_a_batch_is_answered
        an_acknowledged_message_is_gone_for_good
        an_old_receipt_does_not_touch_a_new_lease
        a_released_message_is_visible_at_once
        a_delayed_message_is_hidden_at_first
        depth_counts_each_kind
    }
}
