//! How a role is watched while it works: what it says (`logs`), and what it answers when it is asked over HTTP
//! (`server`). `OBSERVABILITY.md` is the reference for users.

mod ask;
mod logs;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use queue::Observed;
use telemetry::Health;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::settings::Settings;
use crate::targets::Queues;

pub use ask::ask;
pub(crate) use logs::life;
pub use logs::{LIFE, LogFormat, is_json, start_logging, tell_failure};
use server::Server;

/// Where a role answers HTTP requests.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ListenFlag {
    /// Answer /healthz, /readyz and /metrics over HTTP here: 127.0.0.1:9464, say. By default: nowhere.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
}

impl ListenFlag {
    /// The address that flag or variable names, if one does.
    pub fn find(&self, settings: &Settings) -> Result<Option<SocketAddr>> {
        let Some(text) = self.listen.as_ref().or(settings.listen.as_ref()) else { return Ok(None) };
        let address = text.parse().with_context(|| {
            format!("--listen or GRISTMILL_LISTEN: {text:?} is no address and port such as 127.0.0.1:9464")
        })?;
        Ok(Some(address))
    }

    /// As [`find`](Self::find), for a command that needs it.
    pub fn address(&self, settings: &Settings) -> Result<SocketAddr> {
        match self.find(settings)? {
            Some(address) => Ok(address),
            None => bail!("where does the role listen? Pass what it was given: --listen, or GRISTMILL_LISTEN"),
        }
    }
}

/// A role that may be watched: its health, and the endpoints that tell it if somebody wants to know.
#[derive(Debug)]
pub struct Watched {
    /// How it is.
    pub health: Health,
    server: Option<Server>,
}

impl Watched {
    /// Before the role connects to anything.
    pub fn start(listen: &ListenFlag, settings: &Settings) -> Result<Self> {
        let health = Health::new(settings.stall_max);
        let address = listen.find(settings)?;
        let server = address.map(|address| Server::start(address, health.clone())).transpose()?;
        Ok(Self { health, server })
    }

    /// Queue and store have answered. From now on the queues tell how they are used.
    pub fn ready(&self, queues: &mut Queues) {
        self.health.ready();
        if self.server.is_none() {
            return;
        }
        let observe = |queue, name| Arc::new(Observed::new(queue, name, &self.health));
        queues.tasks = observe(queues.tasks.clone(), "tasks");
        queues.results = observe(queues.results.clone(), "results");
        queues.dead_letters = observe(queues.dead_letters.clone(), "dead-letters");
    }

    /// Says where the endpoints are.
    pub fn tell_where(&self) {
        if let Some(Server { address }) = &self.server {
            life!("/healthz, /readyz and /metrics are at http://{address}");
        }
    }

    /// When the role is told to end, it is not ready any more.
    pub fn until_ending(&self, stop: CancellationToken) -> AbortOnDropHandle<()> {
        let health = self.health.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            stop.cancelled().await;
            health.ending();
        }))
    }
}
