//! A simulated node: the production code's event loop, with simulated provisioning and agents.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use protocol::{JobSpec, Offer, Priority, Requirements};
use queue::{Delivery, Fairness, Queue, View};
use storage::{TargetStore, WORKER_PERIOD};
use telemetry::Health;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinError;
use tokio::time::{Instant, sleep};
use worker::parts::{Allotment, Errands, EventLoop, Held, Host, attended};
use worker::roster::{
    Capacity, Config, Errand, Event, Found, Obstacle, Periods, Roster, Standing, Step, Unprovisioned,
};
use worker::{Solitude, Stop, StopSender, Timing};

use crate::actor::{Actor, Told};
use crate::agent::{Agent, PATIENCE};
use crate::job::{BROKEN, PROCESSES};
use crate::queue_layer::QueueLayer;
use crate::shares::Shares;
use crate::weather::Bug;
use crate::witness::Witness;

/// Longer than in production: looking around is most of the work of the simulation.
const TICK: Duration = Duration::from_secs(4);
const MEMORY_EVERY: Duration = Duration::from_secs(60);
/// Each job wants two processes, so that two jobs cannot both have what they want.
const PROCESS_COUNT: u32 = 3;
/// Failures to provision a job in one life of a node: fewer than it reports to the job.
const ACCIDENTS_MAX: u32 = 2;

/// What one life of a node works with.
#[derive(Clone)]
pub(crate) struct Node {
    pub actor: Actor,
    pub witness: Arc<Witness>,
    pub target: TargetStore,
    pub tasks: Arc<QueueLayer>,
    pub results: Arc<QueueLayer>,
    pub bug: Option<Bug>,
    pub accidents: Arc<AtomicU32>,
    pub offer: Offer,
    pub shares: Shares,
    pub solitude: Solitude,
    /// Since when it has had no job; `None`: it has one.
    pub idle_since: Arc<Mutex<Option<Instant>>>,
}

/// The entry of a node in the list of workers. It counts for some time after a death: the store does not date it by virtual
/// time.
pub(crate) struct Entry {
    pub memory: Arc<InMemory>,
    pub name: String,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let (memory, path) = (self.memory.clone(), Path::from(format!("workers/{}", self.name)));
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            sleep(3 * WORKER_PERIOD).await;
            // The node may have removed it.
            let _ = memory.delete(&path).await;
        });
    }
}

impl Node {
    /// Works until it is told to stop, or has been idle for long enough.
    pub async fn live(self) {
        let Self { actor, witness, target, tasks, results, .. } = &self;
        witness.in_flight.node_began(actor.name());
        let weather = actor.weather();
        let idle_exit = weather.idle_exit.filter(|_| !self.has(Bug::StaysIdle));
        let (places, places_of_newcomers) = self.places();
        let config = Config {
            node: actor.name().to_owned(),
            offer: self.offer.clone(),
            idle_wish: 2,
            capacity: self.capacity(),
            places: if self.has(Bug::IgnoresPlaces) { usize::MAX } else { places },
            places_of_newcomers: if self.has(Bug::IgnoresNewcomers) { 0 } else { places_of_newcomers },
            delay_max: tasks.limits().delay_max,
            groups_take_turns: tasks.limits().fairness == Fairness::Groups,
            notice_time: weather.spot_time.saturating_sub(Duration::from_secs(20)),
            periods: Periods { idle_exit, job_idle: weather.job_idle, watch: weather.pace.watch, ..Periods::default() },
        };
        let event_loop = EventLoop {
            host: self.clone(),
            config,
            target: target.clone(),
            queues: [tasks.clone(), results.clone()],
            timing: Timing { patience: PATIENCE, ..Timing::default() },
            tick: TICK,
            memory_every: MEMORY_EVERY,
            health: Health::default(),
        };
        let stop = StopSender::default();
        let (notify, noticed) = oneshot::channel();
        let telling = async {
            match actor.told().await {
                Told::Drain => stop.raise(Stop::Drain),
                Told::SpotNotice if self.has(Bug::IgnoresSpotNotices) => {}
                Told::SpotNotice => drop(notify.send("simulated".to_owned())),
            }
            pending::<()>().await
        };
        let spot_notice = async { if let Ok(notice) = noticed.await { notice } else { pending().await } };
        let ended = tokio::select! {
            biased;
            () = telling => unreachable!("it waits for ever"),
            ended = event_loop.run(stop.subscribe(), spot_notice) => ended,
        };
        match ended {
            Ok(_) => {}
            Err(error) if error.is::<JoinError>() => {
                witness.report("no role panics", format!("{}: {error:#}", actor.name()));
            }
            Err(error) => witness.report("a node can read every message", format!("{error:#}")),
        }
    }

    fn gpus(&self) -> u32 {
        self.witness.jobs().map(|job| job.job.gpus).max().unwrap_or(0)
    }

    fn capacity(&self) -> Capacity {
        Capacity { process_count: None, process_count_default: PROCESS_COUNT, gpus: self.gpus() }
    }

    /// Returns how many jobs the node works on at a time, and how many of these places are for newcomers.
    fn places(&self) -> (usize, usize) {
        let capacity = self.capacity();
        match self.actor.weather().places {
            0 => (capacity.places(), capacity.places_of_newcomers()),
            // Half of them: there are few jobs.
            places => (places, if self.gpus() > 0 { 0 } else { places / 2 }),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns what a node with a bug takes a job for.
    fn mistaken(&self, spec: JobSpec) -> JobSpec {
        match self.bug {
            Some(Bug::IgnoresPriorities) => JobSpec { priority: Priority::Normal, ..spec },
            Some(Bug::IgnoresMaxShare) => JobSpec { max_share: None, ..spec },
            Some(Bug::IgnoresRequires) => JobSpec { requires: Requirements::default(), ..spec },
            _ => spec,
        }
    }

    fn has_accident(&self) -> bool {
        let may_fail = self.accidents.load(Ordering::SeqCst) < ACCIDENTS_MAX;
        let fails = may_fail && self.actor.happens(|weather| weather.accident / 2.0);
        self.accidents.fetch_add(u32::from(fails), Ordering::SeqCst);
        fails
    }
}

impl Host for Node {
    type Ready = Arc<JobSpec>;
    type Remains = ();

    async fn run(self, errands: Errands, errand: Errand) -> Event {
        let visit = errands.visit;
        match errand {
            Errand::GiveBack { .. } => {
                let (begun, demultiplexer, job_id) =
                    (Instant::now(), errands.demultiplexer.clone(), errands.job_id.clone());
                let event = match self.has(Bug::KeepsWhatItTurnsAway) {
                    true => Event::GivenBack { visit, is_quiet: false },
                    false => errands.run(errand).await,
                };
                if demultiplexer.unviewed_since(&job_id).is_some_and(|since| since < begun) {
                    self.witness
                        .report("a node returns what it turns away", format!("{}, {job_id}", self.actor.name()));
                }
                event
            }
            Errand::Watch { .. } if self.has(Bug::StaysOnEndedJobs) => {
                Event::Watched { visit, standing: Standing::Open, priority: None }
            }
            Errand::LookUp => match errands.run(errand).await {
                Event::LookedUp { visit, looked_at, found: Ok(Found::Open(spec)) } => {
                    let spec = Box::new(self.mistaken(*spec));
                    Event::LookedUp { visit, looked_at, found: Ok(Found::Open(spec)) }
                }
                event => event,
            },
            Errand::Tell { .. } if self.has(Bug::TellsNoReason) => Event::Done { visit, step: Step::Tell },
            errand => errands.run(errand).await,
        }
    }

    async fn provision(
        self,
        Errands { job_id, store, .. }: Errands,
        spec: JobSpec,
    ) -> Result<Self::Ready, Unprovisioned> {
        let has_accident = self.has_accident();
        let time = self.actor.dice().time(self.actor.weather().provision_max);
        attended(&store, self.actor.name(), self.actor.weather().pace.beat, sleep(time)).await;
        if self.witness.of(&job_id).job.is_broken {
            return Err(Unprovisioned { reason: BROKEN.to_owned(), obstacle: Obstacle::Lasting });
        }
        match has_accident {
            true => Err(Unprovisioned { reason: "bad weather".to_owned(), obstacle: Obstacle::SilentStore }),
            false => Ok(Arc::new(spec)),
        }
    }

    async fn work(
        self,
        Errands { job_id, store, results, .. }: Errands,
        spec: Self::Ready,
        tasks: Arc<View>,
        stop: watch::Receiver<Stop>,
        allotment: Allotment,
    ) -> (anyhow::Result<Held>, ()) {
        let Self { actor, bug, shares, solitude, .. } = self;
        let (witness, node) = (self.witness.of(&job_id).clone(), actor.name().to_owned());
        if let Some(lacks) = self.offer.lacks(&witness.spec.requires) {
            witness.report("a job runs only on nodes that it fits", format!("{node}: {lacks}"));
        }
        let percent = witness.spec.max_share.unwrap_or(100);
        let claim = (witness.job.priority, (PROCESS_COUNT * percent / 100).clamp(1, PROCESSES));
        shares.begin(&job_id, claim, tasks.clone(), stop.clone(), allotment.watched());
        let beat = actor.weather().pace.beat;
        let tenant = solitude.enter(&job_id);
        let (gpus, in_flight) = (shares.gpus.clone(), self.witness.in_flight.clone());
        let agent = Agent {
            actor,
            witness: witness.clone(),
            in_flight,
            store: store.clone(),
            tasks,
            results,
            spec,
            bug,
            gpus,
            tenant,
        };
        let held = attended(&store, &node, beat, agent.work(stop, allotment)).await;
        shares.end(&job_id);
        held.iter().flatten().for_each(|(receipt, descriptor)| witness.returned(Some(receipt), descriptor));
        (held.context("the agent failed"), ())
    }

    async fn clean_up((): ()) {}

    async fn bury(self, unreadable: Vec<(Delivery, String)>) {
        self.witness.report("a node can read every message", format!("{unreadable:?}"));
    }

    fn memory_is_short(&self) -> bool {
        false
    }

    async fn handles(&self) {
        self.actor.alive().await;
    }

    fn handled(&self, roster: &Roster, has_looked: bool) {
        let (witness, name) = (&self.witness, self.actor.name());
        // A job may wait for GPUs that processes of others have not left.
        let unfair = self.shares.unfair(PROCESS_COUNT).filter(|_| has_looked && self.gpus() == 0);
        if let Some((rule, detail)) = unfair.filter(|_| !roster.is_stopping()) {
            witness.report(rule, detail);
        }
        let (at_work, (places, _)) = (self.shares.jobs(), self.places());
        if at_work > places {
            let detail = format!("{name} works on {at_work} jobs, and has {places} places");
            witness.report("a node works on no more jobs than it has places", detail);
        }
        witness.visits(name, roster.jobs());
        // It may wait for a seat to lapse.
        let idle_max = self.actor.weather().idle_exit.map(|time| time + Periods::default().seat_lapse);
        let mut idle_since = self.idle_since.lock().expect("no holder panics");
        if roster.jobs() > 0 {
            *idle_since = None;
            return;
        }
        let idle_for = idle_since.get_or_insert_with(Instant::now).elapsed();
        if has_looked && !roster.is_stopping() && idle_max.is_some_and(|time| idle_for > time) {
            witness.report("an idle node ends", name.to_owned());
        }
    }
}
