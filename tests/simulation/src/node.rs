//! A simulated node: the production code's driver, with simulated provisioning and agents.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use protocol::{JobSpec, Offer};
use queue::{Broker, Queue};
use storage::{TargetStore, WORKER_PERIOD};
use telemetry::Health;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};
use worker::simulation_api::{
    AgentLink, Allocations, Driver, JobAccess, NodeBackend, NodeConfig, ProvisioningFailure,
    ProvisioningObstacle, UnfinishedMiniBatches,
};
use worker::{NodeLock, Stop, StopSender, Timing};

use crate::actor::{Actor, StopRequest};
use crate::agent::{Agent, PATIENCE};
use crate::agent_allocations::GpusInUse;
use crate::job::BROKEN;
use crate::weather::Bug;
use crate::witness::Witness;

const MEMORY_EVERY: Duration = Duration::from_secs(60);
/// Failures to provision a job in one life of a node: fewer than it reports to the job.
const ACCIDENTS_MAX: u32 = 2;

/// What one life of a node works with.
#[derive(Clone)]
pub(crate) struct Node {
    pub actor: Actor,
    pub witness: Arc<Witness>,
    pub target: TargetStore,
    pub broker: Arc<dyn Broker>,
    pub bug: Option<Bug>,
    pub accidents: Arc<AtomicU32>,
    pub offer: Offer,
    pub gpus: GpusInUse,
    pub node_lock: NodeLock,
    /// Since when it has had no work; `None`: it has some.
    pub idle_since: Arc<Mutex<Option<Instant>>>,
}

impl Node {
    /// Works until it is told to stop, or has been idle for long enough.
    pub async fn live(self) {
        let actor = &self.actor;
        let weather = actor.weather();
        let config = NodeConfig {
            node: actor.name().to_owned(),
            build: String::new(),
            offer: self.offer.clone(),
            process_count: None,
            notice_time: weather.spot_time.saturating_sub(Duration::from_secs(20)),
            idle_exit: weather.idle_exit.filter(|_| !self.has(Bug::StaysIdle)),
            entry_lasts: 3 * WORKER_PERIOD,
        };
        let driver = Driver {
            backend: self.clone(),
            config,
            target: self.target.clone(),
            broker: self.broker.clone(),
            timing: Timing { patience: PATIENCE, ..Timing::default() },
            tick: weather.pace.tick,
            memory_every: MEMORY_EVERY,
            health: Health::default(),
        };
        let stop = StopSender::default();
        let (notify, noticed) = oneshot::channel();
        let telling = async {
            match actor.told().await {
                StopRequest::Drain => stop.raise(Stop::Drain),
                StopRequest::SpotNotice if self.has(Bug::IgnoresSpotNotices) => {}
                StopRequest::SpotNotice => drop(notify.send("simulated".to_owned())),
            }
            pending::<()>().await
        };
        let spot_notice =
            async { if let Ok(notice) = noticed.await { notice } else { pending().await } };
        tokio::select! {
            biased;
            () = telling => unreachable!("it waits for ever"),
            _ = driver.run(stop.subscribe(), spot_notice) => {}
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn has_accident(&self) -> bool {
        let may_fail = self.accidents.load(Ordering::SeqCst) < ACCIDENTS_MAX;
        let fails = may_fail && self.actor.happens(|weather| weather.accident / 2.0);
        self.accidents.fetch_add(u32::from(fails), Ordering::SeqCst);
        fails
    }
}

impl NodeBackend for Node {
    type Ready = Arc<JobSpec>;
    type Remains = ();

    async fn provision(
        self,
        JobAccess { job_id, .. }: JobAccess,
        spec: JobSpec,
    ) -> Result<Self::Ready, ProvisioningFailure> {
        let has_accident = self.has_accident();
        let time = self.actor.dice().time(self.actor.weather().provision_max);
        sleep(time).await;
        if self.witness.of(&job_id).job.is_broken {
            return Err(ProvisioningFailure {
                reason: BROKEN.to_owned(),
                obstacle: ProvisioningObstacle::Lasting,
            });
        }
        match has_accident {
            true => Err(ProvisioningFailure {
                reason: "bad weather".to_owned(),
                obstacle: ProvisioningObstacle::SilentStore,
            }),
            false => Ok(Arc::new(spec)),
        }
    }

    async fn work(
        self,
        JobAccess { job_id, store, results }: JobAccess,
        tasks: Arc<dyn Queue>,
        spec: Self::Ready,
        stop: watch::Receiver<Stop>,
        agent_link: AgentLink,
    ) -> (anyhow::Result<UnfinishedMiniBatches>, ()) {
        let Self { actor, bug, gpus, node_lock, .. } = self;
        let (witness, node) = (self.witness.of(&job_id).clone(), actor.name().to_owned());
        if let Some(lacks) = self.offer.lacks(&witness.spec.requires) {
            witness.report("a job runs only on nodes that it fits", format!("{node}: {lacks}"));
        }
        let node_lock = node_lock.enter(&job_id);
        let agent = Agent {
            actor,
            witness: witness.clone(),
            runs: self.witness.runs.clone(),
            store: store.clone(),
            tasks,
            results,
            spec,
            bug,
            gpus: gpus.clone(),
            node_lock,
        };
        let held = agent.work(stop, agent_link).await;
        gpus.all_ended(&job_id);
        held.iter()
            .flatten()
            .for_each(|(receipt, descriptor)| witness.returned(Some(receipt), descriptor));
        (held, ())
    }

    async fn clean_up((): ()) {}

    fn memory_is_short(&self) -> bool {
        self.actor.happens(|weather| weather.accident / 2.0)
    }

    async fn handles(&self) {
        self.actor.alive().await;
    }

    fn handled(&self, allocations: &Allocations, has_looked: bool) {
        let (witness, name) = (&self.witness, self.actor.name());
        witness.visits(name, allocations.jobs());
        let mut idle_since = self.idle_since.lock().expect("no holder panics");
        if allocations.has_work() {
            *idle_since = None;
            return;
        }
        let idle_for = idle_since.get_or_insert_with(Instant::now).elapsed();
        let is_too_long =
            self.actor.weather().idle_exit.is_some_and(|idle_exit| idle_for > idle_exit);
        if has_looked && !allocations.is_stopping() && is_too_long {
            witness.report("an idle node ends", name.to_owned());
        }
    }
}
