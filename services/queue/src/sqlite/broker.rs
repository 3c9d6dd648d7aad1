//! The queues of a target in files of one folder: `control.db`, `dead-letters.db`, and `NAME-tasks.db` and
//! `NAME-results.db` for each job.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;

use super::failure::misconfigured;
use super::{SqliteOptions, SqliteQueue};
use crate::broker::{Naming, QueueRole};
use crate::error::Cause;
use crate::{Broker, CONTROL, DEAD_LETTERS, Error, JobQueues, TargetQueues};

/// How many jobs may have queues at a time: an open queue is a thread and three files, and each job has two.
const JOBS_MAX: u32 = 100;
/// The longest file name, less `.db-wal`.
const NAMING: Naming = Naming { characters_max: 248, marks: "-_." };
/// The files of a queue, the database first: without it SQLite ignores the others.
const ENDINGS: [&str; 3] = ["", "-wal", "-shm"];

/// The queues of a target in a folder, shared by any number of processes on one machine. It must be on a local disk.
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
    /// Has the queues in this folder, which is made with the first queue.
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
    fn path(&self, queue: &str) -> PathBuf {
        self.folder.join(format!("{queue}.db"))
    }

    fn path_of_job(&self, name: &str, part: QueueRole) -> PathBuf {
        self.path(&NAMING.name(name, part))
    }

    fn make_folder(&self) -> Result<(), Error> {
        fs::create_dir_all(&self.folder).map_err(|error| {
            misconfigured(
                &self.folder,
                Cause::new(format!("the folder cannot be made ({error})"), error),
            )
        })
    }

    fn target(&self) -> Result<TargetQueues, Error> {
        self.make_folder()?;
        let [control, dead_letters] = [CONTROL, DEAD_LETTERS].map(|queue| self.path(queue));
        let are_new = !control.exists();
        Ok(TargetQueues {
            control: self.open_queue(control, true)?,
            dead_letters: self.open_queue(dead_letters, true)?,
            are_new,
        })
    }

    fn open(&self, name: &str, create: bool) -> Result<JobQueues, Error> {
        let tasks = self.open_queue(self.path_of_job(name, QueueRole::Tasks), create)?;
        let results = self.open_queue(self.path_of_job(name, QueueRole::Results), create)?;
        Ok(JobQueues { tasks, results })
    }

    fn open_queue(&self, path: PathBuf, create: bool) -> Result<Arc<SqliteQueue>, Error> {
        let mut open = self.open.lock().expect("no holder panics");
        if let Some(queue) = open.get(&path).and_then(Weak::upgrade).filter(|queue| queue.exists())
        {
            return Ok(queue);
        }
        let queue = Arc::new(SqliteQueue::open_deletable(&path, self.options.clone(), create)?);
        open.retain(|_, queue| queue.strong_count() > 0);
        open.insert(path, Arc::downgrade(&queue));
        Ok(queue)
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        for path in QueueRole::BOTH.map(|part| self.path_of_job(name, part)) {
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
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(misconfigured(
            file,
            Cause::new(format!("the file cannot be deleted ({error})"), error),
        )),
        _ => Ok(()),
    }
}

#[async_trait]
impl Broker for SqliteBroker {
    async fn target(&self) -> Result<TargetQueues, Error> {
        self.work(Shared::target).await
    }

    async fn create(&self, name: &str) -> Result<JobQueues, Error> {
        let name = name.to_owned();
        self.work(move |shared| shared.make_folder().and_then(|()| shared.open(&name, true))).await
    }

    async fn open(&self, name: &str) -> Result<JobQueues, Error> {
        let name = name.to_owned();
        self.work(move |shared| shared.open(&name, false)).await
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.work(move |shared| shared.delete(&name)).await
    }

    fn name_of_tasks(&self, name: &str) -> String {
        self.shared.path_of_job(name, QueueRole::Tasks).display().to_string()
    }

    fn jobs_max(&self) -> u32 {
        JOBS_MAX
    }

    async fn close(&self) {}
}

/// Distinguishes a file from another one that has its name later.
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
