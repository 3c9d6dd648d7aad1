//! Decides which jobs a node works on: those that the schedule of its target gives it. A state
//! machine without I/O: events in, actions out.
//!
//! A *visit* lasts from the schedule that gives the node a job until the node has left the job; it
//! is in one `Stage` at a time. A job has one visit at most. A `Memory` keeps facts about a job
//! beyond its visits.
//!
//! A node first shrinks, then grows. A job that loses processes lets their runs end, however long they take. A job that gains
//! processes starts them at once: a run may take an hour, and a new job must not wait for it. For a while a node may therefore
//! run more processes than the schedule gives it. Only GPUs never overlap: a job gets a GPU once no process of another job can
//! use it, and in exchange for a GPU that it loses only once none of its own processes uses that one.
//!
//! A node that cannot renew its entry in the store for a while returns the mini-batches that it has not begun, because the
//! schedule gives its jobs to other nodes. It lets its runs end: killing them would lose hours of work at every failure of a
//! store, and the reducer counts each result once in any case.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use protocol::{Allocation, JobSpec, NodeState, Offer, Running, Schedule, one_line};
use tokio::time::Instant;

use super::Ended;
use crate::scheduler::{AgentAllocation, AllocationReport};
use crate::stop::Stop;

/// How long the node leaves a job to others after its agent has failed: the cause may be temporary.
const FAILED_REST: Duration = Duration::from_secs(5);
/// How long the node leaves a job to others after it could not prepare the job, or after the
/// processes of the job did not start.
const REST: Duration = Duration::from_secs(60);
/// Failures in a row to reach what the job needs, after which the node reports them to the job.
const FAILURES_MAX: u32 = 3;
/// The pause before the node asks a silent store again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How often the node asks the store whether a job is over. No schedule says so while no reducer runs.
const OVER_EVERY: Duration = Duration::from_secs(10);
/// The pause before the node looks again for queues that a reducer is about to create.
const OPEN_AGAIN: Duration = Duration::from_millis(300);

/// The constants of the decisions.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the node.
    pub node: String,
    /// Its build.
    pub build: String,
    /// What it offers to jobs.
    pub offer: Offer,
    /// Processes of any job, whatever the job asks for; `None`: as many as it asks for.
    pub process_count: Option<u32>,
    /// How long runs may last after a spot notice.
    pub notice_time: Duration,
    /// The node ends after this long without work; `None`: never.
    pub idle_exit: Option<Duration>,
    /// How long its entry in the store counts after a renewal.
    pub entry_lasts: Duration,
}

/// Identifies a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VisitId(u64);

/// The answer of the store or a queue; the error: there was none.
pub type Answer<T> = Result<T, NoAnswer>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

/// The state of a job in the store.
#[derive(Clone, Debug)]
pub enum JobLookup {
    /// The job is open.
    Open(Box<JobSpec>),
    /// The job has no work, for this reason.
    Over(&'static str),
    /// This build cannot read the job, for this reason.
    Foreign(String),
}

/// Why a job cannot start here.
#[derive(Clone, Debug)]
pub struct ProvisioningFailure {
    pub reason: String,
    pub obstacle: ProvisioningObstacle,
}

/// The kind of a provisioning failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProvisioningObstacle {
    /// Permanent until somebody changes the job or the node.
    Lasting,
    /// The store does not answer.
    SilentStore,
    /// The disk is full. The job waits for free space, or other nodes take it.
    FullDisk,
}

/// An event that the node handles.
#[derive(Debug)]
pub enum Event {
    /// The node has read a schedule.
    Scheduled(Box<Schedule>),
    /// The caller stops the node.
    Stop(Stop),
    /// The cloud reclaims the machine.
    SpotNotice,
    /// Whether the memory of the node is short.
    MemoryIsShort(bool),
    /// Time has passed. Age of the entry of the node in the store; `None`: it has not written one.
    Tick { entry_age: Option<Duration> },
    /// The answer to [`Step::LookUp`].
    LookedUp { visit: VisitId, found: Answer<JobLookup> },
    /// The answer to [`Step::OpenQueues`]; `None`: they do not exist yet.
    Opened { visit: VisitId, opened: Answer<Option<()>> },
    /// The answer to [`Step::Provision`].
    Provisioned { visit: VisitId, result: Result<(), ProvisioningFailure> },
    /// The processes of the job, or the GPUs that they may use, have changed.
    AllocationReport { visit: VisitId, in_use: AllocationReport },
    /// The answer to [`Step::IsOver`]; `None`: the job continues.
    Looked { visit: VisitId, over: Option<JobEnd> },
    /// The answer to [`Step::Work`]: the agent has ended, and still holds this many mini-batches.
    Worked { visit: VisitId, worked: Result<usize, AgentFailed> },
    /// The answer to [`Step::Tell`], [`Step::LetGo`] and [`Step::CleanUp`]: the step has ended,
    /// successfully or not.
    Done { visit: VisitId },
}

/// Why an agent has failed. The queue redelivers its mini-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentFailed {
    /// The queues of the job are deleted: the job has ended, or has other queues now.
    WithoutQueues,
    /// Anything else.
    Otherwise,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// It has ended.
    Ended,
    /// It was canceled.
    Canceled,
}

/// A step of a visit. Steps follow one another, and an event answers each.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Look the job up in the store.
    LookUp,
    /// Open its queues.
    OpenQueues,
    /// Provision the job.
    Provision(Box<JobSpec>),
    /// Run its agent.
    Work,
    /// See whether the job has ended or was canceled.
    IsOver,
    /// Tell the reducer why the job cannot start here.
    Tell(String),
    /// Return the mini-batches that the agent still held.
    LetGo,
    /// Upload the last logs, and remove the folders of the job.
    CleanUp,
}

/// An action that the node performs.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// A visit begins.
    Open { visit: VisitId, job_id: String, queues: String },
    /// Perform a step of a visit.
    Do { visit: VisitId, step: Step },
    /// Send the agent its allocation. The first one precedes its start.
    Allocate { visit: VisitId, allocation: AgentAllocation },
    /// Tell the agent to stop.
    StopAgent { visit: VisitId, stop: Stop },
    /// The visit has ended: cancel its tasks.
    Close(VisitId),
    /// Write to the log, perhaps about a job.
    Log { job_id: Option<String>, is_warning: bool, message: String },
}

/// What a visit waits for.
#[derive(Clone, Debug, Default, PartialEq)]
enum Stage {
    /// The store, for the job.
    #[default]
    LookingUp,
    /// Its queues; from this moment on it looks for them again.
    Opening { spec: Box<JobSpec>, again_at: Option<Instant> },
    /// Folders, reference data and interpreter of the job.
    Provisioning,
    /// GPUs that other jobs leave.
    Ready,
    /// The agent.
    Working,
    /// The queue, to which the node returns mini-batches.
    LettingGo,
    /// The result queue, for the reason why the job cannot start here.
    Telling,
    /// The store, for the last logs.
    CleaningUp,
}

/// One visit of a job to this node.
#[derive(Default)]
struct Visit {
    job_id: String,
    /// Name of the queues.
    queues: String,
    stage: Stage,
    /// Its allocation in the schedule; `None`: it leaves.
    allocation: Option<Allocation>,
    /// The node waits for the store to say whether the job is over.
    is_asking: bool,
    /// When the node asks next; `None`: at once.
    asks_at: Option<Instant>,
    /// The allocation that the agent has been sent.
    agent_allocation: AgentAllocation,
    stop: Stop,
    /// Its processes.
    processes: usize,
    /// GPUs that its processes may use.
    gpus: BTreeSet<u32>,
    is_ready: bool,
    has_ended_one: bool,
    failing_gpus: BTreeSet<u32>,
}

/// Facts about a job that survive its visits.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// Until when the node leaves the job to others, and why.
    rests: Option<(Instant, String)>,
    /// Until when the node does not ask for the job, though others need not know.
    asks_at: Option<Instant>,
    /// Failures to provision the job, in a row.
    failures: u32,
    /// The node has logged that the job has ended, was canceled or does not exist.
    over_is_logged: bool,
}

impl Memory {
    /// Whether the node waits before it takes the job.
    fn waits(&self, now: Instant) -> bool {
        let rests_until = self.rests.as_ref().map(|(until, _)| *until);
        [rests_until, self.asks_at].into_iter().flatten().any(|until| until > now)
    }
}

/// The jobs of a node.
pub struct Allocations {
    config: Config,
    actions: VecDeque<Action>,
    visits: BTreeMap<VisitId, Visit>,
    next_visit: u64,
    memories: HashMap<String, Memory>,
    /// The last schedule: its number, and the allocations of the node by job, with the names of the
    /// queues.
    schedule: u64,
    given: BTreeMap<String, (Allocation, String)>,
    stop: Stop,
    ended: Ended,
    /// When the cloud reclaims the machine.
    machine_goes: Option<Instant>,
    /// When the node last had work.
    busy_at: Instant,
    memory_is_short: bool,
    /// Whether other processes can still see the entry of this node.
    is_seen: bool,
    /// When the last event happened.
    now: Instant,
}

impl Allocations {
    /// Starts without jobs.
    pub fn new(config: Config, now: Instant) -> Self {
        Self {
            config,
            actions: VecDeque::new(),
            visits: BTreeMap::new(),
            next_visit: 0,
            memories: HashMap::new(),
            schedule: 0,
            given: BTreeMap::new(),
            stop: Stop::No,
            ended: Ended::Stopped,
            machine_goes: None,
            busy_at: now,
            memory_is_short: false,
            is_seen: true,
            now,
        }
    }

    /// Handles an event, and decides the resulting actions.
    pub fn handle(&mut self, event: Event, now: Instant) {
        self.now = now;
        match event {
            Event::Scheduled(schedule) => self.scheduled(*schedule),
            Event::Stop(stop) => self.stop(stop),
            Event::SpotNotice => {
                self.ended = Ended::SpotNotice;
                self.machine_goes.get_or_insert(now + self.config.notice_time);
                self.stop(Stop::Drain);
            }
            Event::MemoryIsShort(is_short) => self.memory_is_short = is_short,
            Event::Tick { entry_age } => self.tick(entry_age),
            Event::LookedUp { visit, found } => self.looked_up(visit, found),
            Event::Opened { visit, opened } => self.opened(visit, opened),
            Event::Provisioned { visit, result } => self.provisioned(visit, result),
            Event::AllocationReport { visit, in_use } => self.used(visit, in_use),
            Event::Looked { visit, over } => self.looked(visit, over),
            Event::Worked { visit, worked } => self.worked(visit, worked),
            Event::Done { visit } => self.done(visit),
        }
        self.follow();
    }

    /// Returns the next action to execute, oldest first.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether the node has stopped, and left every job.
    pub fn is_over(&self) -> bool {
        self.is_stopping() && self.visits.is_empty()
    }

    /// Whether the node starts nothing more.
    pub fn is_stopping(&self) -> bool {
        self.stop != Stop::No
    }

    /// Whether the node has a job, or the schedule gives it one.
    pub fn has_work(&self) -> bool {
        !self.visits.is_empty() || !self.given.is_empty()
    }

    /// Returns why the node has ended.
    pub fn ended(&self) -> Ended {
        self.ended
    }

    /// Number of jobs that have a visit.
    pub fn jobs(&self) -> usize {
        self.visits.len()
    }

    /// Returns the state of the node for its entry.
    pub fn state(&self) -> NodeState {
        let running = |visit: &Visit| Running {
            processes: u32::try_from(visit.processes).unwrap_or(u32::MAX),
            is_ready: visit.is_ready,
            has_ended_one: visit.has_ended_one,
            failing_gpus: visit.failing_gpus.clone(),
            ..Running::default()
        };
        let unable = self.memories.iter().filter_map(|(job_id, memory)| {
            let (_, reason) = memory.rests.as_ref().filter(|(until, _)| *until > self.now)?;
            Some((job_id.clone(), reason.clone()))
        });
        NodeState {
            name: self.config.node.clone(),
            build: self.config.build.clone(),
            offer: self.config.offer.clone(),
            process_count: self.config.process_count,
            schedule: self.schedule,
            accepts_work: !self.is_stopping(),
            jobs: self
                .visits
                .values()
                .map(|visit| (visit.job_id.clone(), running(visit)))
                .collect(),
            unable: unable.collect(),
        }
    }

    fn scheduled(&mut self, schedule: Schedule) {
        self.schedule = schedule.number;
        let queues = |job_id: &str| {
            let job = schedule.jobs.iter().find(|job| job.job_id == job_id)?;
            job.queues()
        };
        let own =
            schedule.allocations.iter().filter(|allocation| allocation.node == self.config.node);
        let given =
            own.filter_map(|own| Some((own.job_id.clone(), (own.clone(), queues(&own.job_id)?))));
        self.given = given.collect();
        let given = &self.given;
        self.memories.retain(|job_id, memory| {
            if memory.over_is_logged && !given.contains_key(job_id) {
                // Once a schedule gives it again, it has been opened again.
                (memory.over_is_logged, memory.asks_at) = (false, None);
            }
            memory.waits(self.now)
                || memory.over_is_logged
                || memory.failures > 0 && given.contains_key(job_id)
        });
    }

    fn stop(&mut self, stop: Stop) {
        if !self.stop.raise(stop) {
            return;
        }
        for id in self.ids() {
            match self.visits[&id].stage {
                Stage::Working => self.stop_agent(id, stop),
                Stage::LettingGo | Stage::CleaningUp => {}
                _ => self.close(id),
            }
        }
    }

    fn tick(&mut self, entry_age: Option<Duration>) {
        let now = self.now;
        if self.machine_goes.is_some_and(|at| at <= now) {
            self.stop(Stop::Kill);
        }
        let is_seen = entry_age.is_none_or(|age| age < self.config.entry_lasts);
        if std::mem::replace(&mut self.is_seen, is_seen) != is_seen {
            let message = match is_seen {
                true => "this node takes work again",
                false => {
                    "this node begins nothing more until it can write its entry in the store of the target again"
                }
            };
            self.act(Action::Log { job_id: None, is_warning: true, message: message.to_owned() });
        }
        for id in self.ids() {
            if let Some(Visit { stage: Stage::Opening { again_at, .. }, .. }) =
                self.visits.get_mut(&id)
                && again_at.take_if(|at| *at <= now).is_some()
            {
                self.begin(id, Step::OpenQueues);
            }
        }
        if self.has_work() {
            self.busy_at = now;
        }
        if !self.is_stopping()
            && self.config.idle_exit.is_some_and(|idle_exit| now - self.busy_at >= idle_exit)
        {
            self.ended = Ended::Idle;
            self.stop(Stop::Finish);
        }
    }

    /// Compares the visits with the schedule: leaves jobs, sends agents their allocations, and
    /// visits new jobs.
    fn follow(&mut self) {
        for id in self.ids() {
            let visit = &self.visits[&id];
            let given = self
                .given
                .get(&visit.job_id)
                .filter(|(_, queues)| *queues == visit.queues && self.is_seen);
            let allocation = given.map(|(allocation, _)| allocation.clone());
            if let Some(visit) = self.visits.get_mut(&id) {
                if allocation.is_none() && visit.allocation.is_some() {
                    visit.asks_at = None;
                }
                visit.allocation = allocation;
            }
        }
        self.divide();
        self.ids().into_iter().for_each(|id| self.begin_or_leave(id));
        if self.is_stopping() || !self.is_seen {
            return;
        }
        let new: Vec<(String, String)> = self
            .given
            .iter()
            .filter(|(job_id, _)| !self.visits.values().any(|visit| visit.job_id == **job_id))
            .map(|(job_id, (_, queues))| (job_id.clone(), queues.clone()))
            .collect();
        for (job_id, queues) in new {
            let now = self.now;
            let memory = self.memories.entry(job_id.clone()).or_default();
            if memory.waits(now) {
                continue;
            }
            if self.memory_is_short && !self.visits.is_empty() {
                let reason = "its memory is short".to_owned();
                let message = format!("this node leaves the job to others: {reason}");
                memory.rests = Some((now + REST, reason));
                self.act(Action::Log { job_id: Some(job_id), is_warning: false, message });
                continue;
            }
            self.open(job_id, queues);
        }
    }

    fn open(&mut self, job_id: String, queues: String) {
        let id = VisitId(self.next_visit);
        self.next_visit += 1;
        self.act(Action::Open { visit: id, job_id: job_id.clone(), queues: queues.clone() });
        let allocation = self.given.get(&job_id).map(|(allocation, _)| allocation.clone());
        self.visits.insert(id, Visit { job_id, queues, allocation, ..Visit::default() });
        self.begin(id, Step::LookUp);
    }

    /// Computes the processes and GPUs that each agent may have now.
    fn divide(&mut self) {
        for id in self.ids() {
            let visit = &self.visits[&id];
            let agent_allocation = match &visit.allocation {
                Some(allocation) => {
                    let others = || {
                        self.visits
                            .iter()
                            .filter(|(other, _)| **other != id)
                            .map(|(_, visit)| visit)
                    };
                    let is_free = |gpu: &u32| !others().any(|other| other.gpus.contains(gpu));
                    // A process whose GPU goes to another job finishes its run, and no other
                    // process runs beside it.
                    let room = match visit.stage {
                        Stage::Working => allocation.gpus.len().saturating_sub(visit.gpus.len()),
                        _ => usize::MAX,
                    };
                    let free = allocation.gpus.iter().copied().filter(is_free);
                    let (mut gpus, new): (Vec<u32>, Vec<u32>) =
                        free.partition(|gpu| visit.gpus.contains(gpu));
                    gpus.extend(new.into_iter().take(room));
                    gpus.sort_unstable();
                    let processes = match allocation.gpus.len() {
                        0 => u64::from(allocation.processes),
                        all => u64::from(allocation.processes) * gpus.len() as u64 / all as u64,
                    };
                    AgentAllocation {
                        processes: u32::try_from(processes).unwrap_or(u32::MAX),
                        gpus,
                        number: 0,
                    }
                }
                None => AgentAllocation::default(),
            };
            self.allocate(id, agent_allocation);
        }
    }

    fn allocate(&mut self, id: VisitId, mut agent_allocation: AgentAllocation) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        agent_allocation.number = visit.agent_allocation.number;
        if agent_allocation == visit.agent_allocation {
            return;
        }
        agent_allocation.number += 1;
        if visit.stage == Stage::Working {
            // Others must not have these GPUs until the agent says that no process uses them.
            visit.gpus.extend(&agent_allocation.gpus);
        } else {
            visit.gpus = agent_allocation.gpus.iter().copied().collect();
        }
        visit.agent_allocation = agent_allocation.clone();
        self.act(Action::Allocate { visit: id, allocation: agent_allocation });
    }

    fn begin_or_leave(&mut self, id: VisitId) {
        let now = self.now;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        match (&visit.stage, &visit.allocation) {
            (Stage::Ready, Some(_)) if visit.agent_allocation.processes > 0 => {
                visit.stage = Stage::Working;
                visit.processes = visit.agent_allocation.processes as usize;
                visit.asks_at = Some(now + OVER_EVERY);
                self.begin(id, Step::Work);
            }
            (Stage::Working, allocation) => {
                let ends_by_itself = allocation.is_none() && visit.processes == 0;
                if !visit.is_asking && visit.asks_at.is_none_or(|at| at <= now) {
                    visit.is_asking = true;
                    visit.asks_at = Some(now + OVER_EVERY);
                    self.begin(id, Step::IsOver);
                }
                if ends_by_itself {
                    self.stop_agent(id, Stop::Finish);
                }
            }
            (
                Stage::LookingUp | Stage::Opening { .. } | Stage::Provisioning | Stage::Ready,
                None,
            ) => self.close(id),
            _ => {}
        }
    }

    fn looked_up(&mut self, id: VisitId, found: Answer<JobLookup>) {
        let Some(visit) = self.visit_in(id, &Stage::LookingUp) else { return };
        match found {
            Ok(JobLookup::Open(spec)) => {
                visit.stage = Stage::Opening { spec, again_at: None };
                self.memory(id).over_is_logged = false;
                self.begin(id, Step::OpenQueues);
            }
            Ok(JobLookup::Over(why)) => {
                let asks_at = Some(self.now + OVER_EVERY);
                let memory = self.memory(id);
                memory.asks_at = asks_at;
                if !std::mem::replace(&mut memory.over_is_logged, true) {
                    self.log(id, false, format!("nothing to do for the job: {why}"));
                }
                self.close(id);
            }
            Ok(JobLookup::Foreign(reason)) => {
                self.cannot_start(id, reason, ProvisioningObstacle::Lasting)
            }
            Err(NoAnswer) => self.ask_later(id),
        }
    }

    fn opened(&mut self, id: VisitId, opened: Answer<Option<()>>) {
        let again = self.now + OPEN_AGAIN;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let Stage::Opening { spec, again_at } = &mut visit.stage else { return };
        match opened {
            Ok(Some(())) => {
                let spec = spec.clone();
                visit.stage = Stage::Provisioning;
                self.log(id, false, "provisioning".to_owned());
                self.begin(id, Step::Provision(spec));
            }
            Ok(None) => *again_at = Some(again),
            Err(NoAnswer) => self.ask_later(id),
        }
    }

    fn provisioned(&mut self, id: VisitId, result: Result<(), ProvisioningFailure>) {
        let Some(visit) = self.visit_in(id, &Stage::Provisioning) else { return };
        match result {
            Ok(()) => {
                visit.stage = Stage::Ready;
                self.memory(id).failures = 0;
            }
            Err(ProvisioningFailure { reason, obstacle }) => {
                self.cannot_start(id, reason, obstacle)
            }
        }
    }

    fn cannot_start(&mut self, id: VisitId, reason: String, obstacle: ProvisioningObstacle) {
        let now = self.now;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        visit.stage = Stage::Telling;
        self.log(id, true, format!("the job cannot start on this node: {reason}"));
        let memory = self.memory(id);
        memory.failures += 1;
        memory.rests = Some((now + REST, one_line(&reason)));
        match obstacle == ProvisioningObstacle::Lasting || memory.failures >= FAILURES_MAX {
            true => self.begin(id, Step::Tell(reason)),
            false => self.close(id),
        }
    }

    fn used(&mut self, id: VisitId, in_use: AllocationReport) {
        let AllocationReport { number, processes, is_ready, has_ended_one, gpus, failing } = in_use;
        let Some(visit) = self.visit_in(id, &Stage::Working) else { return };
        visit.failing_gpus = failing;
        visit.has_ended_one |= has_ended_one;
        visit.is_ready = is_ready;
        if visit.agent_allocation.number == number {
            (visit.processes, visit.gpus) = (processes, gpus);
        }
    }

    fn looked(&mut self, id: VisitId, over: Option<JobEnd>) {
        let Some(visit) = self.visit_in(id, &Stage::Working) else { return };
        visit.is_asking = false;
        match over {
            Some(JobEnd::Canceled) => self.stop_agent(id, Stop::Kill),
            // Results are no longer needed, but processes may call `shutdown()`.
            Some(JobEnd::Ended) => self.stop_agent(id, Stop::Finish),
            None => {}
        }
    }

    fn worked(&mut self, id: VisitId, worked: Result<usize, AgentFailed>) {
        let now = self.now;
        let Some(visit) = self.visit_in(id, &Stage::Working) else { return };
        let gave_up = visit.stop == Stop::No;
        visit.stage = Stage::LettingGo;
        visit.gpus.clear();
        visit.processes = 0;
        match worked {
            Ok(_) if gave_up => {
                self.log(
                    id,
                    true,
                    "the agent has given up: this node leaves the job to others for a while"
                        .to_owned(),
                );
                self.memory(id).rests = Some((now + REST, "its agent has given up".to_owned()));
            }
            Ok(_) => {}
            Err(AgentFailed::WithoutQueues) => self.memory(id).asks_at = Some(now + ASK_AGAIN),
            Err(AgentFailed::Otherwise) => {
                self.memory(id).rests =
                    Some((now + FAILED_REST, "its agent has failed".to_owned()));
            }
        }
        match worked {
            Ok(1..) => self.begin(id, Step::LetGo),
            _ => self.done(id),
        }
    }

    fn done(&mut self, id: VisitId) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        match visit.stage {
            Stage::LettingGo => {
                visit.stage = Stage::CleaningUp;
                self.begin(id, Step::CleanUp);
            }
            Stage::Telling | Stage::CleaningUp => self.close(id),
            _ => {}
        }
    }

    /// Ends the visit, and asks again after [`ASK_AGAIN`].
    fn ask_later(&mut self, id: VisitId) {
        let at = self.now + ASK_AGAIN;
        self.memory(id).asks_at = Some(at);
        self.close(id);
    }

    fn stop_agent(&mut self, id: VisitId, stop: Stop) {
        if self.visits.get_mut(&id).is_some_and(|visit| visit.stop.raise(stop)) {
            self.act(Action::StopAgent { visit: id, stop });
        }
    }

    fn close(&mut self, id: VisitId) {
        if self.visits.remove(&id).is_some() {
            self.act(Action::Close(id));
        }
    }

    fn memory(&mut self, id: VisitId) -> &mut Memory {
        self.memories.entry(self.visits[&id].job_id.clone()).or_default()
    }

    /// Returns the visit if it is in this stage.
    fn visit_in(&mut self, id: VisitId, stage: &Stage) -> Option<&mut Visit> {
        self.visits.get_mut(&id).filter(|visit| visit.stage == *stage)
    }

    fn ids(&self) -> Vec<VisitId> {
        self.visits.keys().copied().collect()
    }

    fn begin(&mut self, visit: VisitId, step: Step) {
        self.act(Action::Do { visit, step });
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn log(&mut self, visit: VisitId, is_warning: bool, message: String) {
        let job_id = Some(self.visits[&visit].job_id.clone());
        self.act(Action::Log { job_id, is_warning, message });
    }
}

#[cfg(test)]
mod tests;
