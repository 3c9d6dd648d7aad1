//! The thread that owns the connection: it takes all waiting calls, runs them as one transaction, and answers them
//! after the commit.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::broker::FileIdentity;
use super::failure::{absent, explain};
use super::store::Store;
use crate::{Delivery, Error, Receipt, Receive};

/// The interval at which the thread checks, for waiting receivers, for messages of other processes and for expired
/// leases. A send of this process wakes it immediately.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The calls that wait for the thread.
#[derive(Default)]
pub(super) struct Mailbox {
    state: Mutex<MailboxState>,
    changed: Condvar,
}

#[derive(Default)]
struct MailboxState {
    jobs: Vec<Box<dyn Job>>,
    receivers: Vec<Receiver>,
    closed: bool,
}

impl Mailbox {
    pub(super) fn push(&self, job: Box<dyn Job>) {
        self.change(|state| state.jobs.push(job));
    }

    pub(super) fn push_receiver(&self, receiver: Receiver) {
        self.change(|state| state.receivers.push(receiver));
    }

    /// Makes the thread end after the waiting calls.
    pub(super) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Makes a change and wakes the thread. A closed mailbox drops new calls, and with them the channels for their
    /// answers.
    fn change(&self, change: impl FnOnce(&mut MailboxState)) {
        let mut state = self.state.lock().expect("no holder panics");
        if !state.closed {
            change(&mut state);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for calls, at most until `until`, and takes all of them.
    fn take(&self, until: Option<Instant>) -> MailboxState {
        let mut state = self.state.lock().expect("no holder panics");
        while state.jobs.is_empty() && state.receivers.is_empty() && !state.closed {
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(state).expect("no holder panics"),
                Some(Duration::ZERO) => break,
                Some(left) => self.changed.wait_timeout(state, left).expect("no holder panics").0,
            };
        }
        let closed = state.closed;
        std::mem::replace(&mut *state, MailboxState { closed, ..MailboxState::default() })
    }
}

/// A call that runs within a transaction and gets its answer afterwards.
pub(super) trait Job: Send {
    fn run(&mut self, store: &Store) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, outcome: Result<(), Error>);
}

/// A call that is a function of the store.
pub(super) struct Call<T, F> {
    work: F,
    value: Option<T>,
    answer: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Call<T, F>
where
    T: Send + 'static,
    F: FnMut(&Store) -> rusqlite::Result<T> + Send + 'static,
{
    pub(super) fn prepare(work: F) -> (Box<dyn Job>, oneshot::Receiver<Result<T, Error>>) {
        let (answer, answered) = oneshot::channel();
        (Box::new(Self { work, value: None, answer }), answered)
    }
}

impl<T, F> Job for Call<T, F>
where
    T: Send + 'static,
    F: FnMut(&Store) -> rusqlite::Result<T> + Send + 'static,
{
    fn run(&mut self, store: &Store) -> rusqlite::Result<()> {
        self.value = Some((self.work)(store)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), Error>) {
        let Self { value, answer, .. } = *self;
        // The caller may have stopped waiting.
        let _ = answer.send(outcome.map(|()| value.expect("a committed job has run")));
    }
}

/// A receive call that waits for messages.
pub(super) struct Receiver {
    pub(super) request: Receive,
    pub(super) deadline: Instant,
    pub(super) answer: oneshot::Sender<Result<Claimed, Error>>,
}

/// Claimed messages on their way to the receiver. If they are dropped because the receiver stopped waiting, they return
/// to the queue.
pub(super) struct Claimed {
    deliveries: Vec<Delivery>,
    mailbox: Arc<Mailbox>,
}

impl Claimed {
    pub(super) fn take(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if !self.deliveries.is_empty() {
            let receipts: Vec<Receipt> =
                self.deliveries.drain(..).map(|delivery| delivery.receipt).collect();
            self.mailbox.push(Call::prepare(move |store| store.unclaim(&receipts)).0);
        }
    }
}

/// The state of the thread.
pub(super) struct QueueThread {
    pub(super) store: Store,
    pub(super) path: PathBuf,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) waiting: Vec<Receiver>,
    /// The file, which may be deleted while the queue is open.
    pub(super) file: FileIdentity,
}

impl QueueThread {
    /// Serves calls until the mailbox is closed.
    pub(super) fn run(mut self) {
        loop {
            let check = Instant::now() + CHECK_INTERVAL;
            let until = self.waiting.iter().map(|receiver| receiver.deadline.min(check)).min();
            let taken = self.mailbox.take(until);
            self.waiting.extend(taken.receivers);
            self.waiting.retain(|receiver| !receiver.answer.is_closed());
            self.serve(taken.jobs);
            self.expire();
            if taken.closed {
                return;
            }
        }
    }

    /// Runs the jobs, then claims visible messages for the waiting receivers.
    fn serve(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        if !self.file.is_at(&self.path) {
            return self.fail_with(jobs, &absent(&self.path));
        }
        let worthwhile = if jobs.is_empty() { self.has_awaited_message() } else { Ok(true) };
        match worthwhile {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.fail(jobs, error),
        }
        let claimed = self.store.in_transaction(|store| {
            for job in &mut jobs {
                job.run(store)?;
            }
            let mut claimed = Vec::new();
            for Receiver { request, .. } in &self.waiting {
                match store.claim(request.messages_max, request.visibility)? {
                    deliveries if deliveries.is_empty() => break,
                    deliveries => claimed.push(deliveries),
                }
            }
            Ok(claimed)
        });
        match claimed {
            Err(error) => self.fail(jobs, error),
            Ok(claimed) => {
                jobs.into_iter().for_each(|job| job.answer(Ok(())));
                for (receiver, deliveries) in self.waiting.drain(..claimed.len()).zip(claimed) {
                    let claimed = Claimed { deliveries, mailbox: self.mailbox.clone() };
                    // If the receiver no longer waits, dropping the claim undoes it.
                    let _ = receiver.answer.send(Ok(claimed));
                }
            }
        }
    }

    /// Returns whether a receiver waits and a message is visible. This needs no write lock, and is usually false.
    fn has_awaited_message(&self) -> rusqlite::Result<bool> {
        Ok(!self.waiting.is_empty() && self.store.has_visible()?)
    }

    /// Answers the receivers whose deadline has passed.
    fn expire(&mut self) {
        let now = Instant::now();
        for receiver in self.waiting.extract_if(.., |receiver| receiver.deadline <= now) {
            let _ = receiver
                .answer
                .send(Ok(Claimed { deliveries: Vec::new(), mailbox: self.mailbox.clone() }));
        }
    }

    fn fail(&mut self, jobs: Vec<Box<dyn Job>>, error: rusqlite::Error) {
        self.fail_with(jobs, &explain(&self.path, error));
    }

    fn fail_with(&mut self, jobs: Vec<Box<dyn Job>>, error: &Error) {
        jobs.into_iter().for_each(|job| job.answer(Err(error.clone())));
        for receiver in self.waiting.drain(..) {
            let _ = receiver.answer.send(Err(error.clone()));
        }
    }
}

impl Drop for QueueThread {
    /// Drops the waiting calls, so that none of them waits for a thread that has ended, even by a panic.
    fn drop(&mut self) {
        self.mailbox.close();
        drop(self.mailbox.take(None));
    }
}
