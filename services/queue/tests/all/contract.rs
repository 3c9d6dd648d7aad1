//! Every backend passes the contract.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue::contract::{Capabilities, Harness, OldReceipt};
use queue::{
    Clock, Demultiplexer, DemultiplexerOptions, Fairness, ManualClock, MemoryLanes, MemoryOptions, MemoryQueue, Queue,
    ReturnBy, SqliteOptions, SqliteQueue,
};
use tempfile::TempDir;

const LANES: u32 = 8;

struct Local {
    queue: Arc<dyn Queue>,
    clock: ManualClock,
    capabilities: Capabilities,
    _folder: Option<TempDir>,
    _demultiplexer: Option<Demultiplexer>,
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
        fairness: Fairness::None,
        dropped_receive_returns: true,
        message_bytes_max: None,
    }
}

fn sqlite() -> Local {
    let clock = ManualClock::new();
    let folder = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    let queue = SqliteQueue::open(folder.path().join("queue.db"), options).expect("opens");
    let capabilities = Capabilities { fairness: Fairness::Groups, ..capabilities() };
    Local { queue: Arc::new(queue), clock, capabilities, _folder: Some(folder), _demultiplexer: None }
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
    let capabilities = Capabilities { old_receipt, message_bytes_max: Some(message_bytes_max), ..capabilities() };
    Local { queue: Arc::new(MemoryQueue::new(options)), clock, capabilities, _folder: None, _demultiplexer: None }
}

fn memory_with_lanes() -> Local {
    let clock = ManualClock::new();
    let options = MemoryOptions { clock: Clock::Manual(clock.clone()), ..MemoryOptions::default() };
    let queues = (0..LANES).map(|lane| Arc::new(MemoryQueue::lane(options.clone(), lane))).collect();
    let capabilities = Capabilities { fairness: Fairness::Lanes(LANES as usize - 2), ..capabilities() };
    Local { queue: Arc::new(MemoryLanes::new(queues)), clock, capabilities, _folder: None, _demultiplexer: None }
}

/// Wraps a shared queue in the view of its only group.
fn view(shared: Local) -> Local {
    let lease = shared.capabilities.time_unit * 20;
    let options = DemultiplexerOptions {
        group_of: |_| Ok("job".to_owned()),
        return_by: ReturnBy::Release,
        lease,
        poll_wait: Duration::from_secs(20),
        idle_wish: 0,
        hold_max: None,
        look_every: None,
    };
    let (demultiplexer, _arrivals) = Demultiplexer::start(shared.queue.clone(), options);
    let queue = demultiplexer.view("job");
    Local { queue, _demultiplexer: Some(demultiplexer), ..shared }
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

mod memory_queue_with_lanes {
    queue::queue_contract!(super::memory_with_lanes());
}

mod view_of_a_sqlite_queue {
    queue::queue_contract!(super::view(super::sqlite()));
}

mod view_of_a_memory_queue {
    queue::queue_contract!(super::view(super::memory(false)));
}
