//! Observability of a running role: its log (`logs`) and its HTTP endpoints (`server`). `OBSERVABILITY.md` is the
//! reference for users.

mod cloudwatch;
mod logs;
mod otlp;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use queue::{CONTROL, JobQueues, Observed, Queue};
use telemetry::metrics::{DEAD_LETTERS, DESTINATION, RESULTS, STATE, TASKS};
use telemetry::{Health, Role, Scrape, metrics};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::Settings;
use engine::targets::{Queues, Target};

pub(crate) use logs::life;
pub use logs::{LIFE, LogFormat, is_json, report_failure, start_logging};
pub use otlp::start as start_traces;
use server::RoleState;

/// Period of a reducer's observations of the dead letters.
const DEPTH_PERIOD: Duration = Duration::from_secs(15);
/// Minimum pause between two observations, as a multiple of the time that one takes.
const DEPTH_PAUSE_MIN: u32 = 100;

#[derive(Clone, Debug, Default, clap::Args)]
pub struct ListenFlag {
    /// Serve /healthz, /readyz and /metrics over HTTP at this address, for example 127.0.0.1:9464 [default: nowhere].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
}

impl ListenFlag {
    /// Returns the address in the flag or the variable, if there is one.
    pub fn find(&self, settings: &Settings) -> Result<Option<SocketAddr>> {
        let Some(text) = self.listen.as_ref().or(settings.listen.as_ref()) else { return Ok(None) };
        let address = text.parse().with_context(|| {
            format!("--listen or GRISTMILL_LISTEN: {text:?} is not an address and port such as 127.0.0.1:9464")
        })?;
        Ok(Some(address))
    }

    /// Works like [`find`](Self::find), for commands that need an address.
    pub fn address(&self, settings: &Settings) -> Result<SocketAddr> {
        match self.find(settings)? {
            Some(address) => Ok(address),
            None => bail!(
                "the address of the role is missing; pass its --listen, or set GRISTMILL_LISTEN"
            ),
        }
    }
}

/// The health of a role, and its HTTP endpoints, if it has any.
#[derive(Debug)]
pub struct ObservedRole {
    pub health: Health,
    role: Role,
    /// The address of the endpoints.
    server: Option<SocketAddr>,
    observing: Vec<AbortOnDropHandle<()>>,
    queues_are_new: bool,
}

impl ObservedRole {
    /// Starts the endpoints, before the role connects to anything.
    pub fn start(
        role: Role,
        target: &Target,
        listen: &ListenFlag,
        settings: &Settings,
    ) -> Result<Self> {
        let health = Health::new(settings.stall_max);
        let mut observing = Vec::new();
        if let Some(namespace) =
            settings.cloudwatch_namespace.clone().filter(|_| role == Role::Reducer)
        {
            let reporting = cloudwatch::report(
                namespace,
                target.queue()?.prefix().unwrap_or(&target.name).to_owned(),
            );
            observing.push(AbortOnDropHandle::new(tokio::spawn(reporting)));
        }
        let server = match listen.find(settings)? {
            Some(address) => {
                let build = &settings.engine.settings().build;
                let scrape = Scrape::of(role, target.queue()?.messaging_system(), build);
                Some(server::start(address, RoleState { health: health.clone(), scrape })?)
            }
            None => None,
        };
        Ok(Self { health, role, server, observing, queues_are_new: false })
    }

    /// Marks the role as ready, and observes its queues from now on.
    pub fn ready(&mut self, queues: &mut Queues) {
        self.health.ready();
        self.queues_are_new = queues.are_new;
        if self.server.is_none() {
            return;
        }
        let health = self.health.clone();
        let observe = move |queue, name| Arc::new(Observed::new(queue, name, &health));
        queues.dead_letters = observe(queues.dead_letters.clone(), DEAD_LETTERS);
        queues.control = observe(queues.control.clone(), CONTROL);
        queues.wrap_jobs(move |JobQueues { tasks, results }| JobQueues {
            tasks: observe(tasks, TASKS),
            results: observe(results, RESULTS),
        });
        // Observation by one role is enough, and every target has a reducer.
        if self.role == Role::Reducer {
            let observing = observe_depth(queues.dead_letters.clone());
            self.observing.push(AbortOnDropHandle::new(tokio::spawn(observing)));
        }
    }

    /// Prints a note if the queues are new, and the address of the endpoints.
    pub fn print_address(&self) {
        if self.queues_are_new {
            life!(
                "created the queues of this target, which did not exist; if other workers use the target, check its prefix"
            );
        }
        if let Some(address) = self.server {
            life!("/healthz, /readyz and /metrics are at http://{address}");
        }
    }

    /// Marks the role as not ready as soon as it must stop.
    pub fn until_ending(&self, stop: CancellationToken) -> AbortOnDropHandle<()> {
        let health = self.health.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            stop.cancelled().await;
            health.ending();
        }))
    }
}

/// Updates the metrics of the depth of the dead letters. SQLite counts millions of messages one by one and blocks
/// meanwhile, so the pauses grow with the time of a count.
async fn observe_depth(dead_letters: Arc<dyn Queue>) {
    loop {
        let began = Instant::now();
        show_depth(DEAD_LETTERS, &*dead_letters).await;
        sleep(DEPTH_PERIOD.max(DEPTH_PAUSE_MIN * began.elapsed())).await;
    }
}

async fn show_depth(name: &'static str, queue: &dyn Queue) {
    let messages = &metrics().queue_messages;
    let states = ["visible", "in_flight", "delayed"];
    match queue.depth().await {
        Ok(depth) => {
            let in_flight = queue.limits().timed_lease.then_some(depth.in_flight);
            let counts = [Some(depth.visible), in_flight, Some(depth.delayed)];
            for (state, count) in states.into_iter().zip(counts) {
                if let Some(count) = count {
                    messages
                        .get_or_create(&[(DESTINATION, name), (STATE, state)])
                        .set(count as i64);
                }
            }
        }
        Err(error) => {
            // A reader would take an old number for the current one.
            for state in states {
                messages.remove(&[(DESTINATION, name), (STATE, state)]);
            }
            tracing::debug!(queue.name = name, error = %format!("{error:#}"), "cannot read the depth of the queue");
        }
    }
}
