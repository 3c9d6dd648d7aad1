//! A queue of RabbitMQ passes the contract of queues within its capabilities.

use std::sync::Arc;
use std::time::Duration;

use queue::contract::{Capabilities, Harness, OldReceipt};
use queue::{Broker as _, JobQueues, Queue};

use crate::{Deleted, PATIENCE, connect, numbered, receive, send, unused_queues};

/// The queue of a job beside others on the same connection. This process holds messages of one of them.
struct Beside {
    queue: Arc<dyn Queue>,
    others: JobQueues,
    _deleted: Deleted,
}

impl Beside {
    async fn new() -> Self {
        let (options, deleted) = unused_queues();
        let broker = connect(&options).await;
        let others = broker.create("other").await.expect("creates");
        send(&others.tasks, numbered(20)).await;
        receive(&others.tasks, 5).await;
        let queue = broker.create("job").await.expect("creates").tasks;
        assert_eq!(broker.connections(), 1);
        Self { queue, others, _deleted: deleted }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let depth = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(self.others.tasks.depth())
        });
        if !std::thread::panicking() {
            assert_eq!(
                depth.expect("depth").total(),
                20,
                "the other queue has lost or got messages"
            );
        }
    }
}

impl Harness for Beside {
    fn queue(&self) -> Arc<dyn Queue> {
        self.queue.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            time_unit: Duration::from_millis(20),
            wait_max: PATIENCE,
            timed_lease: false,
            old_receipt: OldReceipt::Lost,
            delay: false,
            exact_counts: false,
            first_in_first_out: true,
            dropped_receive_returns: true,
            message_bytes_max: Some(16 << 20),
        }
    }
}

mod queue_beside_others {
    use super::Beside;

    queue::queue_contract!(Beside::new().await);
}
