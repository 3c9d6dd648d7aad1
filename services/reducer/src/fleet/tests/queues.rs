//! Queues that one reducer creates while another one deletes them.

use async_trait::async_trait;
use object_store::memory::InMemory;
use object_store::path::Path;
use queue::{Error, MemoryBroker, MemoryOptions, TargetQueues};

use super::super::*;

const NAME: &str = "job.1";

/// A broker before whose call of `create` or `remove` another reducer acts.
#[derive(Debug)]
struct Interrupted {
    broker: Arc<MemoryBroker>,
    target: TargetStore,
    /// Whether the other one creates the queues after this one has first deleted them.
    creates: bool,
}

#[async_trait]
impl Broker for Interrupted {
    async fn create(&self, name: &str) -> Result<JobQueues, Error> {
        known([name]).delete_unused(&later(), Duration::ZERO, &self.target, &*self.broker).await;
        self.broker.create(name).await
    }

    async fn open(&self, name: &str) -> Result<JobQueues, Error> {
        self.broker.open(name).await
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        let is_first = self.target.queues().await.is_ok_and(|names| !names.is_empty());
        self.broker.delete(name).await?;
        if self.creates && is_first {
            create(&self.target, &*self.broker, name).await.expect("memory is always there");
        }
        Ok(())
    }

    async fn target(&self) -> Result<TargetQueues, Error> {
        self.broker.target().await
    }

    fn name_of_tasks(&self, name: &str) -> String {
        self.broker.name_of_tasks(name)
    }

    fn jobs_max(&self) -> u32 {
        u32::MAX
    }

    async fn close(&self) {}
}

fn known<const COUNT: usize>(names: [&str; COUNT]) -> KnownQueues {
    KnownQueues(names.into_iter().map(|name| (name.to_owned(), None)).collect())
}

/// A schedule that does not list the job any more.
fn later() -> Schedule {
    Schedule { number: 2, ..Schedule::default() }
}

fn interrupted(creates: bool) -> Interrupted {
    let target = TargetStore::new(Arc::new(InMemory::new()), Path::default());
    Interrupted { broker: Arc::new(MemoryBroker::new(MemoryOptions::default())), target, creates }
}

#[tokio::test]
async fn queues_that_are_created_late_are_noted() {
    let late = interrupted(false);
    create(&late.target, &late, NAME).await.expect("memory is always there");
    assert_eq!(late.broker.names(), [NAME]);
    assert_eq!(
        late.target.queues().await.expect("readable"),
        [NAME],
        "so that somebody deletes them"
    );
}

#[tokio::test]
async fn queues_that_are_created_during_their_deletion_are_deleted() {
    let early = interrupted(true);
    create(&early.target, &*early.broker, NAME).await.expect("memory is always there");
    let mut queues = known([NAME]);
    queues.delete_unused(&later(), Duration::ZERO, &early.target, &early).await;
    assert!(queues.0.is_empty());
    assert_eq!(
        (early.broker.names(), early.target.queues().await.expect("readable")),
        (vec![], vec![])
    );
}
