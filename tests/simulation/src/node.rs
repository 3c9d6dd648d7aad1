//! A simulated node: the production code's executor, with simulated provisioning and agents.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use protocol::{JobSpec, Offer, Priority, Requirements};
use queue::{Fairness, Queue, View};
use storage::TargetStore;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use worker::parts::{Allotment, Errands, Executor, Held, Host, Trouble, attended};
use worker::roster::{Capacity, Config, Errand, Event, Found, Obstacle, Periods, Standing, Step, Unprovisioned};
use worker::{Stop, Timing};

use crate::actor::{Actor, Told};
use crate::agent::{Agent, PATIENCE};
use crate::job::{BROKEN, PROCESSES};
use crate::queue_layer::QueueLayer;
use crate::shares::Shares;
use crate::weather::Bug;
use crate::witness::Witness;

/// Longer than in production: looking around is most of the work of the simulation.
const TICK: Duration = Duration::from_secs(4);
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
}

impl Node {
    /// Works until it is told to stop, or has been idle for long enough.
    pub async fn live(self) {
        let Self { actor, witness, target, tasks, results, .. } = &self;
        let weather = actor.weather();
        let gpus = witness.jobs().map(|job| job.job.gpus).max().unwrap_or(0);
        let idle_exit = weather.idle_exit.filter(|_| !self.has(Bug::StaysIdle));
        let capacity = Capacity { process_count: None, process_count_default: PROCESS_COUNT, gpus };
        let (places, of_newcomers) = match weather.places {
            0 => (capacity.places(), capacity.places_of_newcomers()),
            // Half of them: there are few jobs.
            places => (places, if gpus > 0 { 0 } else { places / 2 }),
        };
        let config = Config {
            node: actor.name().to_owned(),
            offer: self.offer.clone(),
            idle_wish: 2,
            capacity,
            places: if self.has(Bug::IgnoresPlaces) { usize::MAX } else { places },
            places_of_newcomers: if self.has(Bug::IgnoresNewcomers) { 0 } else { of_newcomers },
            delay_max: tasks.limits().delay_max,
            groups_take_turns: tasks.limits().fairness == Fairness::Groups,
            notice_time: weather.spot_time.saturating_sub(Duration::from_secs(20)),
            periods: Periods { idle_exit, job_idle: weather.job_idle, watch: weather.pace.watch, ..Periods::default() },
        };
        let timing = Timing { patience: PATIENCE, ..Timing::default() };
        let queues: [Arc<dyn Queue>; 2] = [tasks.clone(), results.clone()];
        let mut executor = Executor::start(self.clone(), config, target.clone(), queues, timing).await;
        let mut told = std::pin::pin!(actor.told());
        let mut has_heard = false;
        let mut tick_at = Instant::now() + TICK;
        let mut idle_since = Instant::now();
        while !executor.roster.is_over() {
            let event = tokio::select! {
                biased;
                told = &mut told, if !has_heard => {
                    has_heard = true;
                    match told {
                        Told::Drain => Some(Event::Stop(Stop::Drain)),
                        Told::SpotNotice if self.has(Bug::IgnoresSpotNotices) => continue,
                        Told::SpotNotice => Some(Event::SpotNotice),
                    }
                }
                event = executor.next() => match event {
                    Ok(event) => Some(event),
                    Err(Trouble::Panicked(error)) => {
                        witness.report("no role panics", format!("{}: {error}", actor.name()));
                        continue;
                    }
                    Err(trouble) => {
                        witness.report("a node can read every message", format!("{trouble:?}"));
                        continue;
                    }
                },
                // However many other events there are.
                () = sleep_until(tick_at) => {
                    tick_at = Instant::now() + TICK;
                    None
                }
            };
            actor.alive().await;
            // It may wait for a seat to lapse.
            let idle_max = weather.idle_exit.map(|time| time + Periods::default().seat_lapse);
            let should_end = event.is_none() && idle_max.is_some_and(|time| idle_since.elapsed() > time);
            let has_looked = event.is_none();
            let event = event.unwrap_or_else(|| executor.tick());
            executor.handle(event).await;
            // A job may wait for GPUs that processes of others have not left.
            let unfair = self.shares.unfair(PROCESS_COUNT).filter(|_| has_looked && gpus == 0);
            if let Some((rule, detail)) = unfair.filter(|_| !executor.roster.is_stopping()) {
                witness.report(rule, detail);
            }
            let at_work = self.shares.jobs();
            if at_work > places {
                let detail = format!("{} works on {at_work} jobs, and has {places} places", actor.name());
                witness.report("a node works on no more jobs than it has places", detail);
            }
            witness.visits(actor.name(), executor.roster.jobs());
            if executor.roster.jobs() > 0 {
                idle_since = Instant::now();
            } else if should_end && !executor.roster.is_stopping() {
                witness.report("an idle node ends", actor.name().to_owned());
            }
        }
        executor.drain().await;
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
    ) -> (Option<Held>, ()) {
        let Self { actor, bug, shares, .. } = self;
        let (witness, node) = (self.witness.of(&job_id).clone(), actor.name().to_owned());
        if let Some(lacks) = self.offer.lacks(&witness.spec.requires) {
            witness.report("a job runs only on nodes that it fits", format!("{node}: {lacks}"));
        }
        let percent = witness.spec.max_share.unwrap_or(100);
        let claim = (witness.job.priority, (PROCESS_COUNT * percent / 100).clamp(1, PROCESSES));
        shares.begin(&job_id, claim, tasks.clone(), stop.clone(), allotment.watched());
        let beat = actor.weather().pace.beat;
        let gpus = shares.gpus.clone();
        let agent = Agent { actor, witness: witness.clone(), store: store.clone(), tasks, results, spec, bug, gpus };
        let held = attended(&store, &node, beat, agent.work(stop, allotment)).await;
        shares.end(&job_id);
        held.iter().flatten().for_each(|(receipt, descriptor)| witness.returned(Some(receipt), descriptor));
        (held, ())
    }

    async fn clean_up((): ()) {}
}
