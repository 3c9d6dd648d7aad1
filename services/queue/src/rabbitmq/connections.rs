//! Living connections to a broker, which the sessions of queues share.
//!
//! A session has a [`SessionPermit`] on a connection, and asks for another one when its connection broke. The first to ask connects,
//! and the others wait for the same connection, or for the same error. A connection takes as many sessions as the broker
//! allows channels, up to a limit that keeps the loss of one connection bearable; beyond that there is another one, and
//! also when its numbers for channels have all been used.

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

/// Sessions on one connection. Each has two channels, and a broker allows 2047 by default.
const SESSIONS_MAX: usize = 500;
const CLOSED: &str = "this process has closed its connection";
/// Channels that are left for short questions, and for those which the broker is about to close.
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
    /// Channels so far, and how many numbers there are for them. No number is used twice: the client remembers the error
    /// with which the broker closed a channel, and answers with it on the next one that has its number.
    channels: AtomicUsize,
    channels_max: usize,
    leases: Mutex<Vec<Weak<Leases>>>,
}

impl Link {
    fn is_alive(&self) -> bool {
        self.connection.status().connected()
    }

    /// Whether there are numbers left for the channels of another session.
    fn has_numbers(&self) -> bool {
        self.channels.load(Ordering::Relaxed) + CHANNELS_SPARE <= self.channels_max
    }

    fn has_room(&self) -> bool {
        self.sessions.load(Ordering::Relaxed) < self.sessions_max && self.has_numbers()
    }

    /// Ends the leases of all sessions: the client does not tell their consumers when it closes the connection itself.
    fn end_leases(&self) {
        let held = std::mem::take(&mut *self.leases.lock().expect("no holder panics"));
        held.iter().filter_map(Weak::upgrade).for_each(|leases| leases.end(CLOSED, false));
    }

    /// Returns why it broke, as far as a session knows.
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
        // This queues the request.
        drop(queued(Box::pin(self.connection.close(200, "dropped".into()))));
    }
}

/// The place of a session on a connection.
#[derive(Debug)]
pub(super) struct SessionPermit(Arc<Link>);

impl SessionPermit {
    fn on(link: &Arc<Link>) -> Self {
        link.sessions.fetch_add(1, Ordering::Relaxed);
        Self(link.clone())
    }

    /// Lets the leases of the session end when this process closes the connection.
    pub fn hold(&self, leases: &Arc<Leases>) {
        let mut held = self.0.leases.lock().expect("no holder panics");
        held.retain(|leases| leases.strong_count() > 0);
        held.push(Arc::downgrade(leases));
    }

    pub fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// Returns whether the broker accepts nothing because it is short of memory or disk.
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

/// A channel. Dropping it closes it, and leaves the connection to others.
///
/// The client closes a dropped channel at once. If the broker closes the channel at the same time, because an abandoned
/// request has failed, the client treats that as an error of the whole connection. Dropping therefore sends another request
/// first, and closes the channel only if that succeeds.
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
                    // It is closed either way.
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

    /// Returns the number of living connections.
    pub fn count(&self) -> usize {
        self.links().iter().filter(|link| link.is_alive()).count()
    }

    /// Returns a seat on a live connection, and connects if there is none. With `is_patient`, retries until `until`.
    pub async fn seat(
        &self,
        address: &Address,
        until: Instant,
        is_patient: bool,
    ) -> Result<SessionPermit, Error> {
        if let Some(seat) = self.free_seat(address)? {
            return Ok(seat);
        }
        let called = Instant::now();
        let mut failed = self.connecting.lock().await;
        if let Some(seat) = self.free_seat(address)? {
            return Ok(seat);
        }
        if let Some((_, error)) = failed.as_ref().filter(|(when, _)| *when > called) {
            return Err(address.sharing(error.clone()));
        }
        let may_pass =
            |error: &Error| matches!(error, Error::Unavailable { .. }) && !self.has_ended();
        let link = (|| self.connect(address, until))
            .retry(while_others_wait(None))
            .when(|error| is_patient && may_pass(error) && Instant::now() < until)
            .await
            .inspect_err(|error| *failed = Some((Instant::now(), error.clone())))?;
        let link = Arc::new(link);
        let mut links = self.links();
        // Otherwise the link is dropped.
        if self.has_ended() {
            return Err(Self::closed(address));
        }
        let seat = SessionPermit::on(&link);
        links.push(link);
        self.forget_broken(&mut links);
        Ok(seat)
    }

    fn closed(address: &Address) -> Error {
        address.unavailable(CLOSED)
    }

    /// Returns a seat on a connection that has one left.
    fn free_seat(&self, address: &Address) -> Result<Option<SessionPermit>, Error> {
        let mut links = self.links();
        if self.has_ended() {
            return Err(Self::closed(address));
        }
        let mut is_first = true;
        // An empty connection stays only if it is the only one.
        links.retain(|link| {
            let is_useful =
                link.sessions.load(Ordering::Relaxed) > 0 || is_first && link.has_numbers();
            is_first &= !(link.is_alive() && is_useful);
            is_useful
        });
        let seat =
            links.iter().find(|link| link.is_alive() && link.has_room()).map(SessionPermit::on);
        if seat.is_some() {
            self.forget_broken(&mut links);
        }
        Ok(seat)
    }

    /// Logs each broken connection once another one is alive, and forgets it.
    fn forget_broken(&self, links: &mut Vec<Arc<Link>>) {
        for link in links.extract_if(.., |link| !link.is_alive()) {
            let reason = link.reason().unwrap_or_default();
            tracing::warn!(error = %reason, "{}: connected again; all leases of the broken connection are lost", self.name);
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

    /// Returns whether this process has closed all connections for good.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Closes all connections after all frames written before, and opens no other.
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
