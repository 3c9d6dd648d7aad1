//! The contract of every queue, with the limits of RabbitMQ as flags.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue::contract::{Capabilities, Harness, OldReceipt};
use queue::{Fairness, Queue, RabbitOptions, RabbitQueue};

use crate::{Deleted, PATIENCE, unused_queue};

struct Rabbit {
    queue: Arc<RabbitQueue>,
    lanes: usize,
    _deleted: Deleted,
}

impl Rabbit {
    async fn new(lanes: usize) -> Self {
        let (options, deleted) = unused_queue();
        let options = RabbitOptions { lanes, ..options };
        let queue = Arc::new(RabbitQueue::open(options).await.expect("opens"));
        Self { queue, lanes, _deleted: deleted }
    }
}

pub fn capabilities(fairness: Fairness) -> Capabilities {
    Capabilities {
        time_unit: Duration::from_millis(20),
        wait_max: PATIENCE,
        timed_lease: false,
        old_receipt: OldReceipt::Lost,
        delay: false,
        exact_counts: false,
        first_in_first_out: true,
        fairness,
        dropped_receive_returns: true,
        message_bytes_max: Some(16 << 20),
    }
}

#[async_trait]
impl Harness for Rabbit {
    fn queue(&self) -> Arc<dyn Queue> {
        self.queue.clone()
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(match self.lanes {
            1 => Fairness::None,
            lanes => Fairness::Lanes(lanes - 2),
        })
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

mod rabbit_queue {
    use super::Rabbit;

    queue::queue_contract!(Rabbit::new(1).await);
}

mod rabbit_queue_with_lanes {
    use super::Rabbit;

    queue::queue_contract!(Rabbit::new(8).await);
}
