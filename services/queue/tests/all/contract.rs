//! The queues of one machine pass the contract.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue::contract::{Capabilities, Harness, OldReceipt};
use queue::{Clock, ManualClock, MemoryOptions, MemoryQueue, Queue, SqliteOptions, SqliteQueue};
use tempfile::TempDir;

struct Local {
    queue: Arc<dyn Queue>,
    clock: ManualClock,
    capabilities: Capabilities,
    _folder: Option<TempDir>,
}

#[async_trait]
impl Harness for Local {
    fn queue(&self) -> Arc<dyn Queue> {
        self.queue.clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        time_unit: Duration::from_millis(20),
        wait_max: Duration::from_secs(3600),
        timed_lease: true,
        old_receipt: OldReceipt::Lost,
        delay: true,
        exact_counts: true,
        first_in_first_out: true,
        dropped_receive_returns: true,
        message_bytes_max: None,
    }
}

fn sqlite() -> Local {
    let clock = ManualClock::new();
    let folder = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    let queue = SqliteQueue::open(folder.path().join("queue.db"), options).expect("opens");
    Local { queue: Arc::new(queue), clock, capabilities: capabilities(), _folder: Some(folder) }
}

fn memory(old_receipt_deletes: bool) -> Local {
    let clock = ManualClock::new();
    let message_bytes_max = 256 << 10;
    let options = MemoryOptions {
        clock: Clock::Manual(clock.clone()),
        old_receipt_deletes,
        message_bytes_max,
        ..MemoryOptions::default()
    };
    let old_receipt = if old_receipt_deletes { OldReceipt::Deletes } else { OldReceipt::Lost };
    let capabilities =
        Capabilities { old_receipt, message_bytes_max: Some(message_bytes_max), ..capabilities() };
    Local { queue: Arc::new(MemoryQueue::new(options)), clock, capabilities, _folder: None }
}

mod sqlite_queue {
    queue::queue_contract!(super::sqlite());
}

mod memory_queue {
    queue::queue_contract!(super::memory(false));
}

mod memory_queue_with_deleting_old_receipts {
    queue::queue_contract!(super::memory(true));
}
