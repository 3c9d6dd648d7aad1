//! The embedded queue: one SQLite file, nothing to install, shared by any number of processes of one machine.
//!
//! [`store`] holds the statements, [`thread`] shares commits between callers, [`failure`] finds the words when
//! something breaks.

mod failure;
mod store;
mod thread;

use std::fmt::{self, Debug, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;

use self::failure::{misconfigured, unavailable};
use self::store::Store;
use self::thread::{Call, Mailbox, QueueThread, Receiver};
use crate::clock::deadline;
use crate::error::check_sizes;
use crate::{Clock, Delivery, Depth, Error, Limits, Message, Queue, Receipt, Receive};

/// What a power cut may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A killed process loses nothing. A power cut may lose the last calls that returned `Ok` (about the last second
    /// under load), never the file.
    #[default]
    Normal,
    /// Neither loses anything: every commit waits for the disk. Calls made at the same time share a commit.
    Full,
}

/// How to open a queue file.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// What a power cut may take.
    pub durability: Durability,
    /// Ends leases and delays. Every process that opens the file must use the same one.
    pub clock: Clock,
    /// How long another process may keep the file locked before calls fail with [`Error::Unavailable`]. A healthy one
    /// needs milliseconds.
    pub lock_wait_max: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { durability: Durability::default(), clock: Clock::System, lock_wait_max: Duration::from_secs(10) }
    }
}

/// A queue in a SQLite file, in WAL mode: beside `tasks.db` there are `tasks.db-wal` and `tasks.db-shm`, and the three
/// belong together. The file must be on a local disk; network file systems do not carry the locks.
///
/// Messages are delivered first in, first out; those that come back after a lapsed lease or a delay come after all new
/// ones, and released ones in their old place. One receive returns no more than about 16 MiB, whatever number it asks
/// for. Groups are ignored.
///
/// Each open queue has a thread. Calls that arrive while it is busy are run together and share a commit, so many
/// callers are cheap; still, one call with a hundred messages costs far less than a hundred calls. If a commit fails,
/// every call that shared it fails, without effect.
///
/// Dropping the queue waits for the calls already made. Its leases stay.
pub struct SqliteQueue {
    path: PathBuf,
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

/// The largest body: SQLite's own limit is near 1 GB, and a body passes through memory more than once.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

impl SqliteQueue {
    /// Opens the queue in `path`; creates the file, but not its folder.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let store = Store::open(&path, options)?;
        let mailbox = Arc::new(Mailbox::default());
        let thread = QueueThread { store, path: path.clone(), mailbox: mailbox.clone(), waiting: Vec::new() };
        let thread = std::thread::Builder::new().name("queue".to_owned()).spawn(move || thread.run());
        let thread = thread.map_err(|error| misconfigured(&path, &format!("cannot start its thread ({error})")))?;
        Ok(Self { path, mailbox, thread: Some(thread) })
    }

    /// The deliveries that are leased at this moment, with their receive counts: what the nodes of a stopped run had in
    /// hand.
    pub async fn in_flight(&self) -> Result<Vec<(Bytes, u32)>, Error> {
        self.call(Store::in_flight).await
    }

    /// Ends all leases, because whoever held them is known to be dead: the messages are visible again at once, and
    /// their receive counts stay. Returns how many there were.
    pub async fn release_all(&self) -> Result<usize, Error> {
        self.call(Store::release_all).await
    }

    /// Deletes all messages, leased or not.
    pub async fn purge(&self) -> Result<(), Error> {
        self.call(Store::purge).await
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl FnMut(&Store) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (job, answered) = Call::prepare(work);
        self.mailbox.push(job);
        answered.await.unwrap_or_else(|_| Err(self.thread_ended()))
    }

    fn thread_ended(&self) -> Error {
        unavailable(&self.path, "its thread has ended unexpectedly; open it again")
    }
}

#[async_trait]
impl Queue for SqliteQueue {
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        check_sizes(&messages, MESSAGE_BYTES_MAX, &self.path.to_string_lossy())?;
        self.call(move |store| store.send(&messages)).await
    }

    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        if request.messages_max == 0 {
            return Ok(Vec::new());
        }
        let (answer, answered) = oneshot::channel();
        let deadline = deadline(request.wait).into_std();
        self.mailbox.push_receiver(Receiver { request, deadline, answer });
        let claimed = answered.await.unwrap_or_else(|_| Err(self.thread_ended()))?;
        Ok(claimed.take())
    }

    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        let leases = leases.to_vec();
        self.call(move |store| store.extend(&leases)).await
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        let receipts = receipts.to_vec();
        self.call(move |store| store.acknowledge(&receipts)).await
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        let receipts = receipts.to_vec();
        self.call(move |store| store.release(&receipts)).await
    }

    async fn depth(&self) -> Result<Depth, Error> {
        self.call(Store::depth).await
    }

    fn limits(&self) -> Limits {
        Limits { message_bytes_max: MESSAGE_BYTES_MAX, lease_max: None, delay_max: Duration::MAX, timed_lease: true }
    }
}

impl Debug for SqliteQueue {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SqliteQueue").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for SqliteQueue {
    fn drop(&mut self) {
        self.mailbox.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and its callers have had their errors.
            let _ = thread.join();
        }
    }
}
