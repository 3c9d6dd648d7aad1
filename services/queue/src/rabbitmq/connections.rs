//! The connections to a broker, which the sessions of queues share.
//!
//! A session has a [`SessionPermit`] on a connection, and acquires another one when its connection breaks. The first
//! session to do so connects, and the others wait for the same connection, or for the same error. A connection takes as
//! many sessions as its channels allow, up to a limit that bounds how many leases the loss of one connection ends.
//! Further sessions open another connection, as they do once all channel numbers of a connection have been used.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use backon::Retryable;
use futures::future::join_all;
use lapin::options::BasicQosOptions;
use lapin::{Channel, Connection, ConnectionBuilder, ConnectionProperties};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use super::address::Address;
use super::failure::{Operation, explain};
use super::frames::queued;
use super::leases::Leases;
use crate::Error;
use crate::pauses::while_others_wait;

/// The largest number of sessions on one connection. Each has two channels, and a broker allows 2047 by default.
const SESSIONS_MAX: usize = 500;
const CLOSED: &str = "this process has closed its connection";
/// The number of channels that are spared for short requests, and for channels that the broker is about to close.
const CHANNELS_SPARE: usize = 16;

/// The connections of a process to one broker.
#[derive(Debug)]
pub(super) struct Connections {
    /// The name that the broker shows.
    name: String,
    links: Mutex<Vec<Arc<Link>>>,
    /// Held while connecting: the last failure, and its time.
    connecting: tokio::sync::Mutex<Option<(Instant, Error)>>,
    has_ended: AtomicBool,
}

/// One connection. Dropping it closes it.
#[derive(Debug)]
struct Link {
    connection: Connection,
    sessions: AtomicUsize,
    sessions_max: usize,
    /// The number of channels so far. No channel number is used twice: the client remembers the error with which the
    /// broker closed a channel, and returns it for the next channel with that number.
    channels: AtomicUsize,
    /// The number of channel numbers.
    channels_max: usize,
    leases: Mutex<Vec<Weak<Leases>>>,
}

impl Link {
    fn is_alive(&self) -> bool {
        self.connection.status().connected()
    }

    /// Returns whether there are numbers left for the channels of another session.
    fn has_numbers(&self) -> bool {
        self.channels.load(Ordering::Relaxed) + CHANNELS_SPARE <= self.channels_max
    }

    fn has_room(&self) -> bool {
        self.sessions.load(Ordering::Relaxed) < self.sessions_max && self.has_numbers()
    }

    /// Ends the leases of all sessions. The client does not notify their consumers when it closes the connection
    /// itself.
    fn end_leases(&self) {
        let held = std::mem::take(&mut *self.leases.lock().expect("no holder panics"));
        held.iter().filter_map(Weak::upgrade).for_each(|leases| leases.end(CLOSED, false));
    }

    /// Returns why the connection broke, if a session knows.
    fn reason(&self) -> Option<String> {
        let held = self.leases.lock().expect("no holder panics");
        held.iter()
            .filter_map(Weak::upgrade)
            .find_map(|leases| leases.ended())
            .map(|ended| ended.reason)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Polling once queues the request.
        drop(queued(Box::pin(self.connection.close(200, "dropped".into()))));
    }
}

/// The permit of a session to use a connection.
#[derive(Debug)]
pub(super) struct SessionPermit(Arc<Link>);

impl SessionPermit {
    fn on(link: &Arc<Link>) -> Self {
        link.sessions.fetch_add(1, Ordering::Relaxed);
        Self(link.clone())
    }

    /// Registers the leases of the session, which end when this process closes the connection.
    pub fn register(&self, leases: &Arc<Leases>) {
        let mut held = self.0.leases.lock().expect("no holder panics");
        held.retain(|leases| leases.strong_count() > 0);
        held.push(Arc::downgrade(leases));
    }

    pub fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// Returns whether the broker accepts no messages because it is short of memory or disk.
    pub fn is_blocked(&self) -> bool {
        self.0.connection.status().blocked()
    }

    pub async fn create_channel(&self) -> lapin::Result<OwnChannel> {
        self.0.channels.fetch_add(1, Ordering::Relaxed);
        let channel = self.0.connection.create_channel().await?;
        Ok(OwnChannel { channel, runtime: Handle::current() })
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A channel. Dropping it closes the channel, but not its connection.
///
/// The client itself closes a dropped channel at once. If the broker closes the channel at the same time, because an
/// abandoned request has failed, the client treats that as an error of the whole connection. Dropping therefore sends
/// another request first, and closes the channel only if that request succeeds.
#[derive(Debug)]
pub(super) struct OwnChannel {
    channel: Channel,
    runtime: Handle,
}

impl Deref for OwnChannel {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl Drop for OwnChannel {
    fn drop(&mut self) {
        if self.channel.status().connected() {
            let channel = self.channel.clone();
            self.runtime.spawn(async move {
                if channel.basic_qos(1, BasicQosOptions::default()).await.is_ok() {
                    // The channel is closed even if the request fails.
                    let _ = channel.close(200, "dropped".into()).await;
                }
            });
        }
    }
}

impl Connections {
    pub fn new(name: String) -> Self {
        Self {
            name,
            links: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            has_ended: AtomicBool::new(false),
        }
    }

    fn links(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
        self.links.lock().expect("no holder panics")
    }

    /// Returns the number of live connections.
    pub fn count(&self) -> usize {
        self.links().iter().filter(|link| link.is_alive()).count()
    }

    /// Returns a permit on a live connection, and connects if none has room. With `is_patient`, retries until `until`.
    pub async fn acquire(
        &self,
        address: &Address,
        until: Instant,
        is_patient: bool,
    ) -> Result<SessionPermit, Error> {
        if let Some(permit) = self.try_acquire(address)? {
            return Ok(permit);
        }
        let called = Instant::now();
        let mut failed = self.connecting.lock().await;
        if let Some(permit) = self.try_acquire(address)? {
            return Ok(permit);
        }
        if let Some((_, error)) = failed.as_ref().filter(|(when, _)| *when > called) {
            return Err(address.sharing(error.clone()));
        }
        let is_transient =
            |error: &Error| matches!(error, Error::Unavailable { .. }) && !self.has_ended();
        let link = (|| self.connect(address, until))
            .retry(while_others_wait(Some(until.saturating_duration_since(Instant::now()))))
            .when(|error| is_patient && is_transient(error) && Instant::now() < until)
            .await
            .inspect_err(|error| *failed = Some((Instant::now(), error.clone())))?;
        let link = Arc::new(link);
        let mut links = self.links();
        // If the broker was closed meanwhile, dropping the link closes the new connection.
        if self.has_ended() {
            return Err(Self::closed(address));
        }
        let permit = SessionPermit::on(&link);
        links.push(link);
        self.forget_broken(&mut links);
        Ok(permit)
    }

    fn closed(address: &Address) -> Error {
        address.unavailable(CLOSED)
    }

    /// Returns a permit on a live connection that has room.
    fn try_acquire(&self, address: &Address) -> Result<Option<SessionPermit>, Error> {
        let mut links = self.links();
        if self.has_ended() {
            return Err(Self::closed(address));
        }
        let mut is_first = true;
        // A connection without sessions stays only if it is the first usable one.
        links.retain(|link| {
            let is_useful =
                link.sessions.load(Ordering::Relaxed) > 0 || is_first && link.has_numbers();
            is_first &= !(link.is_alive() && is_useful);
            is_useful
        });
        let permit =
            links.iter().find(|link| link.is_alive() && link.has_room()).map(SessionPermit::on);
        if permit.is_some() {
            self.forget_broken(&mut links);
        }
        Ok(permit)
    }

    /// Logs and removes broken connections. The caller has found a live one.
    fn forget_broken(&self, links: &mut Vec<Arc<Link>>) {
        for link in links.extract_if(.., |link| !link.is_alive()) {
            let reason = link.reason().unwrap_or_default();
            tracing::warn!(error = %reason, "{}: reconnected; all leases of the broken connection are lost", self.name);
        }
    }

    async fn connect(&self, address: &Address, until: Instant) -> Result<Link, Error> {
        let explained = |error| explain(address, Operation::Connecting, error);
        let runtime = lapin::runtime::default_runtime().map_err(explained)?;
        let properties =
            ConnectionProperties::default().with_connection_name(self.name.as_str().into());
        let builder = ConnectionBuilder::new_with_runtime(runtime).with_uri(address.uri.clone());
        let builder = builder.with_tls_config(address.tls()?).with_properties(properties);
        let silent =
            || address.unavailable("it does not answer on a new connection; is it the right port?");
        let connection =
            timeout_at(until, builder.connect()).await.map_err(|_| silent())?.map_err(explained)?;
        // Zero: the broker sets no limit.
        let channels_max = match connection.configuration().channel_max() {
            0 => usize::MAX,
            channels => channels.into(),
        };
        let sessions_max = SESSIONS_MAX.min(channels_max.saturating_sub(CHANNELS_SPARE) / 2).max(1);
        let (sessions, channels) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(Link {
            connection,
            sessions,
            sessions_max,
            channels,
            channels_max,
            leases: Mutex::default(),
        })
    }

    /// Returns whether this process has closed all connections permanently.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Closes all connections permanently, after the frames that are already queued.
    pub async fn end(&self, wait_max: Duration) {
        let links = {
            let mut links = self.links();
            self.has_ended.store(true, Ordering::Relaxed);
            std::mem::take(&mut *links)
        };
        links.iter().for_each(|link| link.end_leases());
        let closed = links.iter().filter(|link| link.is_alive()).map(async |link| {
            let closed = timeout(wait_max, link.connection.close(200, "done".into())).await;
            if !matches!(closed, Ok(Ok(()))) {
                tracing::warn!(
                    "{}: the broker did not confirm the end of a connection: {closed:?}",
                    self.name
                );
            }
        });
        join_all(closed).await;
    }
}
