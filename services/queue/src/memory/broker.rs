//! The queues of a target in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use async_trait::async_trait;

use super::{MemoryOptions, MemoryQueue};
use crate::{Broker, Error, JobQueues, TargetQueues};

/// The queues of a target in memory, for tests.
#[derive(Debug, Default)]
pub struct MemoryBroker {
    options: MemoryOptions,
    target: OnceLock<[Arc<MemoryQueue>; 2]>,
    queues: Mutex<BTreeMap<String, [Arc<MemoryQueue>; 2]>>,
    /// The number of queues that it has created. It numbers them, so that no two have equal receipts.
    created: AtomicU32,
}

impl MemoryBroker {
    /// Creates a broker without queues.
    pub fn new(options: MemoryOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Returns the control queue and the dead-letter queue.
    pub fn target_pair(&self) -> [Arc<MemoryQueue>; 2] {
        self.target.get_or_init(|| self.new_pair()).clone()
    }

    /// Returns the names of the jobs whose queues exist, in order.
    pub fn names(&self) -> Vec<String> {
        self.queues().keys().cloned().collect()
    }

    /// Returns the task queue and the result queue of a job, if they exist.
    pub fn pair(&self, name: &str) -> Option<[Arc<MemoryQueue>; 2]> {
        self.queues().get(name).cloned()
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<String, [Arc<MemoryQueue>; 2]>> {
        self.queues.lock().expect("no holder panics")
    }

    fn new_pair(&self) -> [Arc<MemoryQueue>; 2] {
        [(); 2].map(|()| {
            let number = self.created.fetch_add(1, Ordering::SeqCst);
            Arc::new(MemoryQueue::numbered(self.options.clone(), number))
        })
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    async fn target(&self) -> Result<TargetQueues, Error> {
        let are_new = self.target.get().is_none();
        let [control, dead_letters] = self.target_pair();
        Ok(TargetQueues { control, dead_letters, are_new })
    }

    async fn create(&self, name: &str) -> Result<JobQueues, Error> {
        self.queues().entry(name.to_owned()).or_insert_with(|| self.new_pair());
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

    fn name_of_tasks(&self, name: &str) -> String {
        name.to_owned()
    }

    fn jobs_max(&self) -> u32 {
        u32::MAX
    }

    async fn close(&self) {}
}
