//! Keeps the share that a node has of the limits of its job, in the book of the job.
//!
//! A node without need of the service reads and writes nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use protocol::RateLimits;
use queue::LeaseClock;
use storage::{Commit, JobStore, LimitBook};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Limiter;
use super::book::{LAPSE, Need, Share, Sharing};

/// Time between two renewals of an entry.
const PERIOD: Duration = Duration::from_secs(4);
/// Time between two looks at a book in which other nodes are about to lower their shares.
const LOOK: Duration = Duration::from_secs(1);
/// A write that took longer may have used a version that was removed meanwhile.
const WRITE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the versions of a node remain, so that writers that are slower than allowed cannot create them again.
const REMAIN: Duration = Duration::from_secs(60);
/// Writes that may be lost to other nodes before the node pauses.
const TRIES_MAX: u32 = 6;
/// Longest time for the last write of a node.
const LEAVE_TIME: Duration = Duration::from_secs(3);

/// Keeps the share of a node until it is dropped.
pub struct Keeper {
    need: Arc<Notify>,
    end: Arc<Notify>,
    task: AbortOnDropHandle<()>,
}

impl Keeper {
    pub fn start(
        store: JobStore,
        node: String,
        limits: RateLimits,
        limiter: Arc<Mutex<Limiter>>,
        clock: LeaseClock,
    ) -> Self {
        let (need, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let sharing = Sharing::new(JobStore::limit_id(), node, limits, clock.now().into_std());
        let keeping = Keeping {
            store,
            sharing,
            limiter,
            clock,
            version: 0,
            book: LimitBook::default(),
            own_versions: VecDeque::new(),
        };
        let task = tokio::spawn(keeping.run(need.clone(), end.clone()));
        Self { need, end, task: AbortOnDropHandle::new(task) }
    }

    /// Says that the node needs more than it has.
    pub fn wake(&self) {
        self.need.notify_one();
    }

    /// Gives the share of the node to the others.
    pub async fn leave(self) {
        self.end.notify_one();
        let _ = timeout(LEAVE_TIME, self.task).await;
    }
}

struct Keeping {
    store: JobStore,
    sharing: Sharing,
    limiter: Arc<Mutex<Limiter>>,
    clock: LeaseClock,
    /// The last version that was read or written.
    version: u64,
    book: LimitBook,
    /// Versions that this node has written and not removed, with the time of the write.
    own_versions: VecDeque<(u64, Instant)>,
}

impl Keeping {
    fn now(&self) -> Instant {
        self.clock.now().into_std()
    }

    async fn run(mut self, need: Arc<Notify>, end: Arc<Notify>) {
        loop {
            let pause = tokio::select! {
                biased;
                () = end.notified() => break,
                pause = self.round() => pause,
            };
            tokio::select! {
                biased;
                () = end.notified() => break,
                () = need.notified(), if pause.is_none() => {}
                () = sleep(pause.unwrap_or(PERIOD)), if pause.is_some() => {}
            }
        }
        let _ = self.write(Need::default()).await;
    }

    /// Reads the book and renews the entry of the node. Returns the time until the next round; `None`: until it needs
    /// a share.
    async fn round(&mut self) -> Option<Duration> {
        let now = self.now();
        let need = self.limiter.lock().expect("no holder panics").need(now);
        match timeout(LAPSE / 2, self.write(need)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("cannot renew the share of the limits, trying again: {error:#}"),
            Err(_) => tracing::debug!("the store is too slow to renew the share of the limits, trying again"),
        }
        match need {
            Need { want: 0, held: 0, .. } => None,
            _ if self.sharing.is_short() => Some(LOOK),
            _ => Some(PERIOD),
        }
    }

    async fn write(&mut self, need: Need) -> storage::Result<()> {
        for _ in 0..TRIES_MAX {
            let began = self.now();
            self.read().await?;
            let now = self.now();
            let Some(next) = self.sharing.next(&self.book, need, now) else {
                self.set(Share { parts: 0, others: 1, until: began });
                break;
            };
            if began.checked_sub(PERIOD * 3 / 4).is_some_and(|since| self.sharing.may_skip(&next, since)) {
                break;
            }
            // A share is lowered before others may take the rest.
            self.set(self.sharing.meanwhile(&next));
            let sent_at = self.now();
            let commit = self.store.create_limit_book(self.version + 1, &next).await?;
            if commit == Commit::Committed && self.now() - began < WRITE_TIME_MAX {
                (self.version, self.book) = (self.version + 1, next);
                self.own_versions.push_back((self.version, sent_at));
                let share = self.sharing.written(&self.book, sent_at);
                self.set(share);
                break;
            }
            // Nodes that began together do not try again together.
            sleep(Duration::from_millis(JobStore::limit_id() % 100)).await;
        }
        let now = self.now();
        while let Some((version, _)) = self.own_versions.pop_front_if(|(_, at)| now - *at > REMAIN) {
            // In other stores workers lack the permission, as for seats.
            if version < self.version && self.store.folder().is_some() {
                let _ = self.store.remove_limit_book(version).await;
            }
        }
        Ok(())
    }

    async fn read(&mut self) -> storage::Result<()> {
        let (version, book) = self.store.limit_book(self.version).await?;
        if version >= self.version {
            (self.version, self.book) = (version, book);
        }
        Ok(())
    }

    fn set(&self, share: Share) {
        let Share { parts, others, until } = share;
        self.limiter.lock().expect("no holder panics").set_share(parts, others, Some(until), self.now());
    }
}
