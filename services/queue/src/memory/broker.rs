//! Queues of jobs in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use super::{MemoryOptions, MemoryQueue};
use crate::{Broker, Error, JobQueues};

/// The queues of jobs in memory, for tests.
#[derive(Debug, Default)]
pub struct MemoryBroker {
    options: MemoryOptions,
    queues: Mutex<BTreeMap<String, [Arc<MemoryQueue>; 2]>>,
    /// Queues that it has created. No two of them have equal receipts.
    created: AtomicU32,
}

impl MemoryBroker {
    /// Has no queues yet.
    pub fn new(options: MemoryOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Returns the names whose queues exist, in order.
    pub fn names(&self) -> Vec<String> {
        self.queues().keys().cloned().collect()
    }

    /// Returns the queues of tasks and of results, if they exist.
    pub fn pair(&self, name: &str) -> Option<[Arc<MemoryQueue>; 2]> {
        self.queues().get(name).cloned()
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<String, [Arc<MemoryQueue>; 2]>> {
        self.queues.lock().expect("no holder panics")
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    async fn create(&self, name: &str) -> Result<JobQueues, Error> {
        let queue = || {
            let number = self.created.fetch_add(1, Ordering::SeqCst);
            Arc::new(MemoryQueue::lane(self.options.clone(), number))
        };
        self.queues().entry(name.to_owned()).or_insert_with(|| [queue(), queue()]);
        self.open(name).await
    }

    async fn open(&self, name: &str) -> Result<JobQueues, Error> {
        match self.pair(name) {
            Some([tasks, results]) => Ok(JobQueues { tasks, results }),
            None => Err(Error::Absent { queue: name.to_owned() }),
        }
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        for queue in self.queues().remove(name).into_iter().flatten() {
            queue.delete(name);
        }
        Ok(())
    }

    async fn target(&self) -> Result<crate::TargetQueues, Error> {
        let q = || Arc::new(MemoryQueue::new(MemoryOptions::default()));
        Ok(crate::TargetQueues { control: q(), dead_letters: q(), are_new: false })
    }

    fn jobs_max(&self) -> u32 {
        u32::MAX
    }

    async fn close(&self) {}
}
