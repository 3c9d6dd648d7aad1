//! The portal: shows jobs in a browser while they run and after they have ended, and serves the same data as JSON below
//! `/api/v1`.
//!
//! It reads through [`engine`] alone, so it shows what `gristmill status` shows, for this machine
//! or for the store of a compute target. It writes nothing into a job, except that its actions
//! cancel and continue jobs through the engine. `README.md` describes permissions, and
//! `openapi.json` the API.
//!
//! | to see | open |
//! |---|---|
//! | access control: token, cookie, `Host`, `Origin` | `access.rs` |
//! | connections, and their limits | `http.rs` |
//! | the paths | `routes.rs` |
//! | the state of each shown job in memory | `watched.rs` |
//! | percentiles and the slowest mini-batches, updated as the history grows | `attempt_statistics.rs` |
//! | the answers, one file each | `answers/` |
//! | their form: JSON, compressed; errors | `document.rs`, `compress.rs`, `error.rs` |
//! | the stream of events | `events.rs` |
//! | the files of the page | `page.rs` |
//! | the same as one file | `report.rs` |

mod access;
mod answers;
mod attempt_statistics;
mod compress;
mod document;
mod error;
mod events;
#[cfg(test)]
mod fixtures;
pub mod http;
mod live;
mod page;
mod report;
mod routes;
#[cfg(test)]
mod tests;
mod watched;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::extract::State;
use engine::targets::{Target, TargetRef};
use engine::{Engine, Hint, Jobs, Remedy, SeenWorker};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use access::{Access, Token};
use answers::target::Connection;
pub use report::{html, report};
use watched::WatchedJobs;

/// The address of a portal, unless the caller names another.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:7780";
/// Ports that are tried if the first one is taken.
const PORTS_TRIED: u16 = 20;

/// The caller's phrases for values of the engine: commands and flags.
#[derive(Clone, Copy, Debug)]
pub struct Phrases {
    /// A hint, why a job waits.
    pub hint: fn(&Hint) -> String,
    /// An error and its remedy, on one line.
    pub error: fn(&anyhow::Error) -> String,
    /// A remedy, as half a sentence.
    pub remedy: fn(&Remedy) -> String,
    /// The flags that name a target, with a blank in front.
    pub flags: fn(&TargetRef) -> String,
}

/// The options of a portal.
#[derive(Debug)]
pub struct Options {
    /// The engine, which continues jobs.
    pub engine: Engine,
    /// The jobs that it shows.
    pub jobs: Jobs,
    /// Their compute target; `None`: this machine.
    pub target: Option<Target>,
    /// The names of all compute targets.
    pub targets: Vec<String>,
    /// The jobs of the command that serves the portal. The page opens with its only job, as soon as that is known.
    pub own_jobs: OwnJobs,
    /// Whether the command runs the steps of a document. The list then shows only the command's jobs.
    pub are_steps: bool,
    /// Whether the portal refuses every change of a job.
    pub is_read_only: bool,
    /// The access rules.
    pub access: Access,
    /// The phrases of the caller.
    pub words: Phrases,
}

impl Options {
    /// Returns the flags of commands that name the target, with a blank in front.
    fn flags(&self) -> String {
        (self.words.flags)(self.jobs.target())
    }
}

/// The jobs that a command has started, in this order.
#[derive(Clone, Debug, Default)]
pub struct OwnJobs(Arc<Mutex<Vec<String>>>);

impl OwnJobs {
    /// Adds a job, unless it has been added before.
    pub fn add(&self, job_id: &str) {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !ids.iter().any(|id| id == job_id) {
            ids.push(job_id.to_owned());
        }
    }

    /// Returns their ids.
    pub fn ids(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A portal.
#[derive(Clone, Debug)]
pub struct Portal(Arc<Shared>);

/// The state that the handler of a request gets.
type SharedState = State<Arc<Shared>>;

/// The state that all requests share.
#[derive(Debug)]
struct Shared {
    options: Options,
    watched: WatchedJobs,
    streams: Arc<tokio::sync::Semaphore>,
    sent: Mutex<events::Sent>,
    connection: tokio::sync::Mutex<Connection>,
    workers: tokio::sync::Mutex<Option<(tokio::time::Instant, Vec<SeenWorker>)>>,
    /// Held by a check of the target.
    examining: tokio::sync::Mutex<()>,
}

impl Portal {
    /// Creates a portal.
    pub fn new(options: Options) -> Self {
        let streams = Arc::new(tokio::sync::Semaphore::new(events::STREAMS_MAX));
        let (watched, sent, connection, workers, examining) = Default::default();
        Self(Arc::new(Shared { options, watched, streams, sent, connection, workers, examining }))
    }

    /// Serves until `stop`.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> Result<()> {
        let address = listener.local_addr()?;
        let router = routes::router(self.0, address.port());
        http::serve(listener, router, http::ServerLimits::default(), stop).await;
        Ok(())
    }
}

/// Listens at this address; if its port is taken and the caller did not choose it, at one of the next ports.
pub async fn listen(address: SocketAddr, is_chosen: bool) -> std::io::Result<TcpListener> {
    let mut tried = address;
    loop {
        match TcpListener::bind(tried).await {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse
                    && !is_chosen
                    && tried.port() - address.port() < PORTS_TRIED =>
            {
                tried.set_port(tried.port() + 1);
            }
            bound => return bound,
        }
    }
}
