//! Queues of jobs in files: `NAME-tasks.db` and `NAME-results.db` in one folder.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;

use super::failure::misconfigured;
use super::{SqliteOptions, SqliteQueue};
use crate::broker::{Naming, Part};
use crate::error::Cause;
use crate::{Broker, Error, JobQueues};

/// How many jobs may have queues at a time: an open queue is a thread and three files, and each job has two.
const JOBS_MAX: u32 = 100;
/// The longest file name, less `.db-wal`.
const NAMING: Naming = Naming { characters_max: 248, marks: "-_." };
/// What belongs to a queue, the database first: without it SQLite ignores the others.
const ENDINGS: [&str; 3] = ["", "-wal", "-shm"];

/// The queues of jobs in a folder, shared by any number of processes on one machine. It must be on a local disk.
///
/// Those of this process who open the same queue share it while one of them holds it, because each open queue has a
/// thread. Which queues exist is what files there are; a deleted queue is noticed at the next call, and by those who wait
/// for messages within milliseconds.
#[derive(Clone, Debug)]
pub struct SqliteBroker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    options: SqliteOptions,
    open: Mutex<HashMap<PathBuf, Weak<SqliteQueue>>>,
}

impl SqliteBroker {
    /// Has the queues in this folder, which need not exist before the first job.
    pub fn new(folder: PathBuf, options: SqliteOptions) -> Self {
        Self { shared: Arc::new(Shared { folder, options, open: Mutex::default() }) }
    }

    /// Works with files where that delays no other task.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce(&Shared) -> T + Send + 'static) -> T {
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || work(&shared)).await.expect("it does not panic")
    }
}

impl Shared {
    fn path(&self, name: &str, part: Part) -> PathBuf {
        self.folder.join(format!("{}.db", NAMING.name(name, part)))
    }

    fn open(&self, name: &str, create: bool) -> Result<JobQueues, Error> {
        let tasks = self.open_part(self.path(name, Part::Tasks), create)?;
        let results = self.open_part(self.path(name, Part::Results), create)?;
        Ok(JobQueues { tasks, results })
    }

    fn open_part(&self, path: PathBuf, create: bool) -> Result<Arc<SqliteQueue>, Error> {
        let mut open = self.open.lock().expect("no holder panics");
        if let Some(queue) = open.get(&path).and_then(Weak::upgrade).filter(|queue| queue.exists()) {
            return Ok(queue);
        }
        let queue = Arc::new(SqliteQueue::open_of_job(&path, self.options.clone(), create)?);
        open.retain(|_, queue| queue.strong_count() > 0);
        open.insert(path, Arc::downgrade(&queue));
        Ok(queue)
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        for path in Part::BOTH.map(|part| self.path(name, part)) {
            for ending in ENDINGS {
                let mut file = path.clone().into_os_string();
                file.push(ending);
                remove(Path::new(&file))?;
            }
        }
        Ok(())
    }
}

fn remove(file: &Path) -> Result<(), Error> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(misconfigured(file, Cause::new(format!("the file cannot be deleted ({error})"), error)))
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl Broker for SqliteBroker {
    async fn create(&self, name: &str) -> Result<JobQueues, Error> {
        let name = name.to_owned();
        let create = move |shared: &Shared| {
            fs::create_dir_all(&shared.folder).map_err(|error| {
                misconfigured(&shared.folder, Cause::new(format!("the folder cannot be made ({error})"), error))
            })?;
            shared.open(&name, true)
        };
        self.work(create).await
    }

    async fn open(&self, name: &str) -> Result<JobQueues, Error> {
        let name = name.to_owned();
        self.work(move |shared| shared.open(&name, false)).await
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.work(move |shared| shared.delete(&name)).await
    }

    async fn target(&self) -> Result<crate::TargetQueues, Error> {
        let f = &self.shared.folder;
        let q = |n: &str| SqliteQueue::open(f.join(n), self.shared.options.clone());
        Ok(crate::TargetQueues {
            control: Arc::new(q("control.db")?),
            dead_letters: Arc::new(q("dead-letters.db")?),
            are_new: false,
        })
    }

    fn jobs_max(&self) -> u32 {
        JOBS_MAX
    }

    async fn close(&self) {}
}

/// Tells a file from another one that has its name later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self { device: found.dev(), inode: found.ino() })
    }

    pub fn is_at(self, path: &Path) -> bool {
        Self::of(path) == Some(self)
    }
}
