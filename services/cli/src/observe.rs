//! How a role is watched while it works: what it says (`logs`), and what it answers when it is asked over HTTP
//! (`server`). `OBSERVABILITY.md` is the reference for users.

mod ask;
mod logs;
#[cfg(feature = "otlp")]
mod otlp;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use queue::{Observed, Queue};
use telemetry::metrics::{DEAD_LETTERS, DESTINATION, RESULTS, STATE, TASKS};
use telemetry::{Health, Role, Scrape, metrics};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::settings::Settings;
use crate::targets::{Queues, Target};

pub use ask::ask;
pub(crate) use logs::life;
pub use logs::{LIFE, LogFormat, is_json, start_logging, tell_failure};
#[cfg(feature = "otlp")]
pub use otlp::start as start_traces;
use server::{Asked, Server};

/// How often a reducer looks how much is in the queues: three requests each time.
const DEPTH_PERIOD: Duration = Duration::from_secs(15);

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
    role: Role,
    server: Option<Server>,
    /// Looks how much is in the queues.
    looking: Option<AbortOnDropHandle<()>>,
}

impl Watched {
    /// Before the role connects to anything.
    pub fn start(role: Role, target: &Target, listen: &ListenFlag, settings: &Settings) -> Result<Self> {
        let health = Health::new(settings.stall_max);
        let Some(address) = listen.find(settings)? else {
            return Ok(Self { health, role, server: None, looking: None });
        };
        let asked = Asked { health: health.clone(), scrape: Scrape::of(role, target.queue()?.messaging_system()) };
        Ok(Self { health, role, server: Some(Server::start(address, asked)?), looking: None })
    }

    /// Queue and store have answered. From now on the queues tell how they are used.
    pub fn ready(&mut self, queues: &mut Queues) {
        self.health.ready();
        if self.server.is_none() {
            return;
        }
        let observe = |queue, name| Arc::new(Observed::new(queue, name, &self.health));
        queues.tasks = observe(queues.tasks.clone(), TASKS);
        queues.results = observe(queues.results.clone(), RESULTS);
        queues.dead_letters = observe(queues.dead_letters.clone(), DEAD_LETTERS);
        // One role is enough, and there is one reducer at least.
        if self.role == Role::Reducer {
            self.looking = Some(AbortOnDropHandle::new(tokio::spawn(look_into(queues.clone()))));
        }
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

/// Keeps showing how much is in the queues, where they tell.
async fn look_into(queues: Queues) {
    let queues = [(TASKS, queues.tasks), (RESULTS, queues.results), (DEAD_LETTERS, queues.dead_letters)];
    let mut tick = interval(DEPTH_PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        for (name, queue) in &queues {
            show_depth(name, &**queue).await;
        }
    }
}

async fn show_depth(name: &'static str, queue: &dyn Queue) {
    let messages = &metrics().queue_messages;
    let states = ["visible", "in_flight", "delayed"];
    match queue.depth().await {
        Ok(depth) => {
            for (state, count) in states.into_iter().zip([depth.visible, depth.in_flight, depth.delayed]) {
                messages.get_or_create(&[(DESTINATION, name), (STATE, state)]).set(count as i64);
            }
        }
        Err(error) => {
            // An old number would be taken for a new one.
            for state in states {
                messages.remove(&[(DESTINATION, name), (STATE, state)]);
            }
            tracing::debug!(queue.name = name, %error, "nobody can see how much is in the queue");
        }
    }
}
