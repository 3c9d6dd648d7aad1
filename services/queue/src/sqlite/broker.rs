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
use crate::broker::Naming;
use crate::error::Cause;
use crate::{Broker, CONTROL, DEAD_LETTERS, Error, JobQueues, TargetQueues};

/// How many jobs may have queues at a time: each has two, and an open queue costs a thread and three files.
const JOBS_MAX: u32 = 100;
/// The names that file systems allow: 255 bytes, less `.db-wal`.
const NAMING: Naming = Naming { characters_max: 248, marks: "-_." };
/// The files of a queue. The database comes first, because SQLite ignores the others without it.
const ENDINGS: [&str; 3] = ["", "-wal", "-shm"];

/// The queues of a target in a folder, which any number of processes on one machine share. It must be on a local disk.
///
/// Callers in one process share an open queue, because each open queue has a thread. A queue exists while its file
/// does. Calls on a deleted queue fail, and a waiting receive notices the deletion within milliseconds.
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
    /// Creates a broker with the queues in this folder. The first queue creates the folder.
    pub fn new(folder: PathBuf, options: SqliteOptions) -> Self {
        Self { shared: Arc::new(Shared { folder, options, open: Mutex::default() }) }
    }

    /// Runs file operations on a thread where they block no task.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce(&Shared) -> T + Send + 'static) -> T {
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || work(&shared)).await.expect("it does not panic")
    }
}

impl Shared {
    fn path(&self, queue: &str) -> PathBuf {
        self.folder.join(format!("{queue}.db"))
    }

    fn paths_of_job(&self, name: &str) -> [PathBuf; 2] {
        NAMING.names(name).map(|queue| self.path(&queue))
    }

    fn create_folder(&self) -> Result<(), Error> {
        fs::create_dir_all(&self.folder).map_err(|error| {
            misconfigured(
                &self.folder,
                Cause::new(format!("the folder cannot be created ({error})"), error),
            )
        })
    }

    fn target(&self) -> Result<TargetQueues, Error> {
        self.create_folder()?;
        let [control, dead_letters] = [CONTROL, DEAD_LETTERS].map(|queue| self.path(queue));
        let are_new = !control.exists();
        Ok(TargetQueues {
            control: self.open_queue(control, true)?,
            dead_letters: self.open_queue(dead_letters, true)?,
            are_new,
        })
    }

    fn open(&self, name: &str, create: bool) -> Result<JobQueues, Error> {
        let [tasks, results] = self.paths_of_job(name);
        let tasks = self.open_queue(tasks, create)?;
        Ok(JobQueues { tasks, results: self.open_queue(results, create)? })
    }

    fn open_queue(&self, path: PathBuf, create: bool) -> Result<Arc<SqliteQueue>, Error> {
        let mut open = self.open.lock().expect("no holder panics");
        if let Some(queue) = open.get(&path).and_then(Weak::upgrade).filter(|queue| queue.exists())
        {
            return Ok(queue);
        }
        let queue = Arc::new(SqliteQueue::open_file(&path, self.options.clone(), create)?);
        open.retain(|_, queue| queue.strong_count() > 0);
        open.insert(path, Arc::downgrade(&queue));
        Ok(queue)
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        for path in self.paths_of_job(name) {
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
        self.work(move |shared| shared.create_folder().and_then(|()| shared.open(&name, true)))
            .await
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
        let [tasks, _] = self.shared.paths_of_job(name);
        tasks.display().to_string()
    }

    fn jobs_max(&self) -> u32 {
        JOBS_MAX
    }

    async fn close(&self) {}
}

/// The identity of a file, which distinguishes it from a later file of the same name.
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
