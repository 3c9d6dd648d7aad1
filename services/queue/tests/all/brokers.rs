//! The brokers of one machine pass the contract, and the SQLite broker has further tests.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use queue::contract::brokers::Harness;
use queue::{Broker, Error, MemoryBroker, MemoryOptions, Message, SqliteBroker, SqliteOptions};
use tempfile::TempDir;

struct Memory(Arc<MemoryBroker>);

impl Memory {
    fn new() -> Self {
        Self(Arc::new(MemoryBroker::new(MemoryOptions::default())))
    }
}

#[async_trait]
impl Harness for Memory {
    fn broker(&self) -> Arc<dyn Broker> {
        self.0.clone()
    }

    async fn another(&self) -> Arc<dyn Broker> {
        self.0.clone()
    }
}

struct Sqlite {
    folder: TempDir,
    broker: Arc<SqliteBroker>,
}

impl Sqlite {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Arc::new(sqlite(folder.path()));
        Self { folder, broker }
    }
}

fn sqlite(folder: &Path) -> SqliteBroker {
    SqliteBroker::new(folder.join("jobs"), SqliteOptions::default())
}

#[async_trait]
impl Harness for Sqlite {
    fn broker(&self) -> Arc<dyn Broker> {
        self.broker.clone()
    }

    async fn another(&self) -> Arc<dyn Broker> {
        Arc::new(sqlite(self.folder.path()))
    }
}

mod memory_broker {
    queue::broker_contract!(super::Memory::new());
}

mod sqlite_broker {
    queue::broker_contract!(super::Sqlite::new());
}

/// Returns the names of the files of a broker, in order.
fn files(folder: &TempDir) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder.path().join("jobs")) else { return Vec::new() };
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<String> =
        entries.map(|entry| name(entry).into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

#[tokio::test]
async fn only_creation_makes_the_files_of_sqlite_queues() {
    let folder = tempfile::tempdir().expect("a folder");
    let broker = sqlite(folder.path());
    let absent = broker.open("a.b").await.expect_err("it does not exist");
    assert!(
        matches!(&absent, Error::Absent { queue } if queue.ends_with("jobs/a.b-tasks.db")),
        "{absent:?}"
    );
    broker.delete("a.b").await.expect("there is nothing to delete");
    assert_eq!(files(&folder), [""; 0]);
    let queues = broker.create("a.b").await.expect("creates");
    let of = |role: &str| ["", "-shm", "-wal"].map(|ending| format!("a.b-{role}.db{ending}"));
    assert_eq!(files(&folder), [of("results"), of("tasks")].concat());
    std::fs::remove_file(folder.path().join("jobs/a.b-results.db-shm")).expect("removes");
    broker.delete("a.b").await.expect("a missing file is no error");
    assert_eq!(files(&folder), [""; 0]);
    drop(queues);
    assert_eq!(files(&folder), [""; 0], "closing a deleted queue writes nothing");
}

#[tokio::test]
async fn sqlite_queues_of_the_target_are_files_of_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let _target = sqlite(folder.path()).target().await.expect("creates");
    let of = |name: &str| ["", "-shm", "-wal"].map(|ending| format!("{name}.db{ending}"));
    assert_eq!(files(&folder), [of("control"), of("dead-letters")].concat());
}

#[tokio::test]
async fn open_sqlite_queues_are_shared_within_a_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let broker = sqlite(folder.path());
    let first = broker.create("job").await.expect("creates");
    let again = broker.open("job").await.expect("opens");
    assert!(Arc::ptr_eq(&first.tasks, &again.tasks) && Arc::ptr_eq(&first.results, &again.results));
    first.tasks.send(vec![Message::new("kept")]).await.expect("sends");
    drop((first, again));
    let later = broker.open("job").await.expect("opens");
    assert_eq!(later.tasks.depth().await.expect("depth").total(), 1);
}

/// SQLite removes the log of a database by name when it closes it. A new database may have the same name by then.
#[tokio::test]
async fn recreated_sqlite_queue_is_independent_of_the_deleted_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (broker, another) = (sqlite(folder.path()), sqlite(folder.path()));
    let old = broker.create("job").await.expect("creates");
    old.tasks.send(vec![Message::new("old")]).await.expect("sends");
    another.delete("job").await.expect("deletes");
    let new = broker.create("job").await.expect("creates again");
    new.tasks.send(vec![Message::new("new")]).await.expect("sends");
    let refused = old.tasks.send(vec![Message::new("late")]).await;
    assert!(matches!(refused, Err(Error::Absent { .. })), "{refused:?}");
    drop(old);
    assert_eq!(new.tasks.depth().await.expect("depth").total(), 1);
    let seen = another.open("job").await.expect("opens");
    assert_eq!(seen.tasks.depth().await.expect("depth").total(), 1);
    drop((new, seen));
    assert_eq!(
        another.open("job").await.expect("opens").tasks.depth().await.expect("depth").total(),
        1
    );
}

#[tokio::test]
async fn name_cannot_leave_the_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let broker = sqlite(folder.path());
    broker.create("../../escaped").await.expect("creates");
    assert!(
        files(&folder).iter().all(|name| name.starts_with("..-..-escaped-")),
        "{:?}",
        files(&folder)
    );
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}
