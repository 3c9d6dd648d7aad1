//! The embedded queue: one SQLite file, which any number of processes on one machine share. Nothing needs to be
//! installed.
//!
//! [`store`] contains the statements, [`thread`] shares commits between callers, [`failure`] explains errors, and
//! [`broker`] has the queues of a target, each in its own file.

mod broker;
mod failure;
mod store;
mod thread;

use std::fmt::{self, Debug, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use self::broker::FileIdentity;
pub use self::broker::SqliteBroker;
use self::failure::{absent, misconfigured, unavailable};
use self::store::Store;
use self::thread::{Call, Mailbox, QueueThread, Receiver};
use crate::clock::deadline;
use crate::error::{Cause, check_sizes};
use crate::{Clock, Delivery, Depth, Error, Limits, Message, Queue, Receipt, Receive};

/// The options for opening a queue file.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The clock that ends leases and delays. Every process that opens the file must use the same clock.
    pub clock: Clock,
    /// How long a call waits while another process locks the file, before it fails with [`Error::Unavailable`]. A
    /// healthy process locks it for milliseconds.
    pub lock_wait_max: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { clock: Clock::System, lock_wait_max: Duration::from_secs(10) }
    }
}

/// A queue in a SQLite file in WAL mode: `NAME.db`, `NAME.db-wal` and `NAME.db-shm` belong together. A killed process
/// loses nothing. A power cut may lose the last successful calls (about the last second under load), but never the
/// file. The file must be on a local disk, because network file systems do not support the locks.
///
/// New messages are delivered first in, first out. Messages that return after an expired lease or a delay follow all
/// new messages; released messages come first again. One receive returns at most about 16 MiB, no matter how many
/// messages it requests.
///
/// Each open queue has a thread, which runs all calls that arrived during one commit as the next transaction. Concurrent
/// callers therefore share the cost of a commit. One call with a hundred messages still costs far less than a hundred
/// calls. If a commit fails, every call in it fails without effect.
///
/// Dropping the queue waits for pending calls. Its leases remain.
pub struct SqliteQueue {
    path: PathBuf,
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
    file: FileIdentity,
}

/// The largest body. SQLite allows nearly 1 GB, but a body is in memory more than once.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

impl SqliteQueue {
    /// Opens the queue in the file `path`. Creates the file if it is absent, but not its folder.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, Error> {
        Self::open_file(path.as_ref(), options, true)
    }

    /// Opens the queue. Without `create`, the file must exist.
    fn open_file(path: &Path, options: SqliteOptions, create: bool) -> Result<Self, Error> {
        if !create && !path.exists() {
            return Err(absent(path));
        }
        // Another process may delete the file while this one opens it.
        let store = Store::open(path, options, create);
        match (FileIdentity::of(path), store) {
            (Some(file), Ok(store)) => Self::start(path, store, file),
            (file, Err(error)) if create || file.is_some() => Err(error),
            _ => Err(absent(path)),
        }
    }

    fn start(path: &Path, store: Store, file: FileIdentity) -> Result<Self, Error> {
        let (path, mailbox) = (path.to_owned(), Arc::new(Mailbox::default()));
        let thread = QueueThread {
            store,
            path: path.clone(),
            mailbox: mailbox.clone(),
            waiting: Vec::new(),
            file,
        };
        let thread =
            std::thread::Builder::new().name("queue".to_owned()).spawn(move || thread.run());
        let thread = thread.map_err(|error| {
            misconfigured(
                &path,
                Cause::new(format!("the system cannot start its thread ({error})"), error),
            )
        })?;
        Ok(Self { path, mailbox, thread: Some(thread), file })
    }

    /// Returns whether the file at the path is still the one that was opened.
    fn exists(&self) -> bool {
        self.file.is_at(&self.path)
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
        unavailable(&self.path, "its thread has ended unexpectedly; open it again".into())
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
        Limits {
            message_bytes_max: MESSAGE_BYTES_MAX,
            lease_max: None,
            delay_max: Duration::MAX,
            timed_lease: true,
            bundle_max: 1,
        }
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
            // The thread has already printed its panic, and its callers have got errors.
            let _ = thread.join();
        }
    }
}
