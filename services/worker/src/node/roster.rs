//! Which jobs a node serves, as a state machine: events in, actions out. Pure: no I/O, no clock, no channels.
//!
//! The node reports each [`Event`] with the time, and executes every [`Action`] that follows. `tests/simulation` does
//! the same in virtual time, with simulated agents.
//!
//! A *visit* lasts from the first message of a job until the node leaves the job; it is in one `Stage` at a time. A job
//! has one visit at most. What the node learns of a job survives its visits (`Memory`).
//!
//! | file | what it decides |
//! |---|---|
//! | `visit` | the stages of a visit |
//! | `seat` | which seat a node takes, when it renews the seat, and when the seat counts as lost |
//! | `division` | how many processes and which GPUs each job has, and which job waits for a GPU |
//! | `line` | which jobs have a place on the node, and which wait for one |
//! | `watch` | what is due while a job is provisioned or worked on |

mod division;
mod line;
mod seat;
#[cfg(test)]
pub(super) mod tests;
mod visit;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use protocol::{JobSpec, NodeState, Offer, Priority, Running};
use storage::Commit;
use tokio::time::Instant;

use super::Ended;
pub use super::quotas::Parts;
pub use super::shares::Capacity;
pub use crate::scheduler::{InUse, Share};
use crate::stop::Stop;
use line::TurnedAway;
use seat::Observed;
use visit::{Stage, Visit};

/// What the decisions depend on.
#[derive(Clone, Debug)]
pub struct Config {
    pub node: String,
    /// What the node offers to jobs.
    pub offer: Offer,
    /// Mini-batches that an idle node could start at once.
    pub idle_wish: usize,
    pub capacity: Capacity,
    /// Jobs that the node works on at a time.
    pub places: usize,
    /// Of these, the places for jobs that the node has not worked on yet.
    pub places_of_newcomers: usize,
    /// The longest delay of a message of the task queue; zero: it has no delays.
    pub delay_max: Duration,
    /// Whether a message that returns to the task queue without a delay gets the next turn of its job.
    pub groups_take_turns: bool,
    /// How long anything may run after a spot notice.
    pub notice_time: Duration,
    pub periods: Periods,
}

/// How often a node looks at its jobs, and how long it waits for them.
#[derive(Clone, Copy, Debug)]
pub struct Periods {
    /// The node ends after this long without work; `None`: never.
    pub idle_exit: Option<Duration>,
    /// The node leaves a job after this long without a message of it.
    pub job_idle: Duration,
    /// From one look whether a job was canceled to the next.
    pub watch: Duration,
    /// From one renewal of a seat to the next.
    pub seat: Duration,
    /// A seat that was not renewed for this long is free.
    pub seat_lapse: Duration,
    /// How long the node leaves a job to others after it could not provision the job, or start a process.
    pub rest: Duration,
    /// How long the node holds the messages of a job that waits for a place, which may be free at any moment. Once
    /// returned, they may be behind all others.
    pub hold: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        let [watch, seat, job_idle, seat_lapse, rest, hold] = [4, 20, 30, 60, 60, 8].map(Duration::from_secs);
        Self { idle_exit: None, job_idle, watch, seat, seat_lapse, rest, hold }
    }
}

/// Names a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VisitId(u64);

impl VisitId {
    pub(super) fn new(number: u64) -> Self {
        Self(number)
    }

    #[cfg(test)]
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

/// What the store answers; the error: it did not.
pub type Answer<T> = Result<T, Unanswered>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;

/// What the store says of a job.
#[derive(Clone, Debug)]
pub enum Found {
    /// There may be work.
    Open(Box<JobSpec>),
    /// Its messages are useless, and why.
    Over(&'static str),
}

/// What the store says of a job that has a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Open,
    Canceled,
    Ended,
}

/// Why a job cannot start here.
#[derive(Clone, Debug)]
pub struct Unprovisioned {
    pub reason: String,
    pub obstacle: Obstacle,
}

/// What prevents a job from starting here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It stays until the job or the node is changed.
    Lasting,
    /// The store does not answer.
    SilentStore,
    /// The disk is full. The job waits until there is room, or other nodes take it.
    FullDisk,
}

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// Messages have arrived of a job that no agent here works on.
    Arrived(String),
    /// The node should stop.
    Stop(Stop),
    /// The machine will be taken away.
    SpotNotice,
    /// Whether the memory of the node is short.
    MemoryIsShort(bool),
    /// The node may run this much of each owner from now on.
    Parts(Arc<Parts>),
    /// The machine was suspended for this long, which no other time here includes.
    Slept(Duration),
    /// Time has passed. For each agent: since when it has held no message; `None`: it holds some.
    Tick(Vec<(VisitId, Option<Instant>)>),
    /// The answer to [`Errand::LookUp`], which began at `looked_at`.
    LookedUp { visit: VisitId, looked_at: Instant, found: Answer<Found> },
    /// The answer to [`Errand::ReadSeat`]: the last epoch of the seat; `None`: nobody has taken it.
    SeatRead { visit: VisitId, seat: Answer<Option<storage::Seat>> },
    /// The answer to [`Errand::ClaimSeat`], which was sent at `asked_at`.
    SeatClaimed { visit: VisitId, asked_at: Instant, commit: Answer<Commit> },
    /// The answer to [`Action::Provision`].
    Provisioned { visit: VisitId, result: Result<(), Unprovisioned> },
    /// The answer to [`Errand::Watch`]; the priority, if it was read and has been changed.
    Watched { visit: VisitId, standing: Standing, priority: Option<Priority> },
    /// The processes of the job, or the GPUs that they may use, have changed.
    InUse { visit: VisitId, in_use: InUse },
    /// The agent has ended, and still holds this many mini-batches. `None`: it failed, and the queue delivers again what
    /// it held.
    Worked { visit: VisitId, held: Option<usize> },
    /// The answer to [`Errand::CheckHeld`]: whether the job has ended or was canceled.
    HeldChecked { visit: VisitId, is_over: bool },
    /// The answer to [`Errand::GiveBack`]. Quiet: the node holds no message of any job.
    GivenBack { visit: VisitId, is_quiet: bool },
    /// A step without a result of its own is done, or has failed.
    Done { visit: VisitId, step: Step },
}

/// A step without a result of its own: an errand, or [`Action::LetGo`] or [`Action::CleanUp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Tell,
    Drop,
    PassOn,
    TellWait,
    TellEnd,
    LetGo,
    CleanUp,
    LeaveSeat,
}

/// What a visit needs of the store and the queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Look the job up.
    LookUp,
    /// Read the last epoch of a seat, given one that the node has seen.
    ReadSeat { number: u32, known: u64 },
    /// Take or renew a seat, with this new epoch.
    ClaimSeat { number: u32, epoch: u64 },
    /// Free a seat for others, with this new epoch.
    LeaveSeat { number: u32, epoch: u64 },
    /// See whether the job was canceled and, with the result, whether it has ended, and its priority.
    Watch { with_result: bool },
    /// See whether the mini-batches that an agent still held are useless.
    CheckHeld,
    /// Return the waiting messages to the queue, which hides them for a while.
    GiveBack { delay: Duration },
    /// Return the waiting messages to the queue while the job is provisioned: other nodes may be ready for it.
    PassOn,
    /// Acknowledge the waiting messages, which are useless. Those that came later are left.
    Drop { received_before: Instant },
    /// Tell the job's reducer why this node cannot work on the job.
    Tell { reason: String },
    /// Tell the job's reducer that the job has waited here for so long, and for what.
    TellWait { waited: Duration, detail: String },
    /// Tell the job's reducer that the job does not wait here any more.
    TellEnd,
}

/// What the node has to do.
#[derive(Debug)]
pub enum Action {
    /// A visit begins.
    Open { visit: VisitId, job_id: String },
    /// Ask the store or a queue; the answer is an event.
    Run { visit: VisitId, errand: Errand },
    /// Fetch and make what the job needs.
    Provision { visit: VisitId, spec: Box<JobSpec> },
    /// Tell the agent how many processes it may have. It has been told before it starts.
    Share { visit: VisitId, share: Share },
    /// Start the agent.
    Work(VisitId),
    /// Tell the agent to stop.
    StopAgent { visit: VisitId, stop: Stop },
    /// Return what the agent still held, or drop it if the job is over.
    LetGo { visit: VisitId, is_over: bool },
    /// Upload the last logs, and remove the folders of the job.
    CleanUp(VisitId),
    /// The visit has ended: cancel what still runs for it, and close the view.
    Close(VisitId),
    /// Ask the task queue for nothing for a while.
    Pause(Duration),
    /// Ask the task queue for this many messages of any job.
    Wish(usize),
    /// Stop receiving for good, and return every message that no agent holds.
    Drain,
    /// Write to the log.
    Log { job_id: String, is_warning: bool, message: String },
}

/// What the node knows of a job between visits.
#[derive(Clone, Debug, Default)]
struct Memory {
    observed: Observed,
    /// Until when the node leaves the job to others.
    rests_until: Option<Instant>,
    /// Failures to provision the job, in a row.
    failures: u32,
    /// Since when the disk has no room for the job.
    full_since: Option<Instant>,
    /// The log says that the node does not meet what the job requires.
    is_unfit: bool,
    /// Its place among jobs that want GPUs, while it lets other nodes have its seat.
    turn: Option<u64>,
    /// GPUs on which it keeps failing.
    failing_gpus: BTreeSet<u32>,
    /// It was turned away, and waits.
    turned_away: Option<TurnedAway>,
    /// When its last agent here ended; `None`: it is a newcomer.
    worked_until: Option<Instant>,
}

impl Memory {
    fn is_empty(&self) -> bool {
        let Self {
            observed,
            rests_until,
            failures,
            full_since,
            is_unfit,
            turn,
            failing_gpus,
            turned_away,
            worked_until,
        } = self;
        let waits = rests_until.is_some() || full_since.is_some() || turned_away.is_some() || worked_until.is_some();
        observed.is_empty() && !waits && *failures == 0 && !is_unfit && turn.is_none() && failing_gpus.is_empty()
    }
}

/// The jobs of a node.
pub struct Roster {
    config: Config,
    actions: VecDeque<Action>,
    visits: BTreeMap<VisitId, Visit>,
    next_visit: u64,
    /// The next place among jobs that want GPUs.
    next_turn: u64,
    memories: HashMap<String, Memory>,
    /// What the node may run of each owner.
    parts: Arc<Parts>,
    stop: Stop,
    ended: Ended,
    /// When the machine goes.
    machine_goes: Option<Instant>,
    /// When the node last had work.
    busy_at: Instant,
    memory_is_short: bool,
    /// When the last event happened.
    now: Instant,
    /// The last [`Action::Wish`].
    wish: usize,
}

impl Roster {
    /// Starts without jobs.
    pub fn new(config: Config, now: Instant) -> Self {
        let mut roster = Self {
            config,
            actions: VecDeque::new(),
            visits: BTreeMap::new(),
            next_visit: 0,
            next_turn: 0,
            memories: HashMap::new(),
            parts: Arc::default(),
            stop: Stop::No,
            ended: Ended::Stopped,
            machine_goes: None,
            busy_at: now,
            memory_is_short: false,
            now,
            wish: 0,
        };
        roster.set_wish(roster.config.idle_wish);
        roster
    }

    /// Takes note of an event, and decides what follows.
    pub fn handle(&mut self, event: Event, now: Instant) {
        self.now = now;
        match event {
            Event::Arrived(job_id) => self.arrived(job_id),
            Event::Stop(stop) => self.stop(stop),
            Event::SpotNotice => {
                self.ended = Ended::SpotNotice;
                self.machine_goes.get_or_insert(now + self.config.notice_time);
                self.stop(Stop::Drain);
            }
            Event::MemoryIsShort(is_short) => {
                self.memory_is_short = is_short;
                if is_short {
                    self.relieve(now);
                }
            }
            Event::Parts(parts) => self.take_parts(parts),
            Event::Slept(time) => {
                self.visits.values_mut().filter_map(|visit| visit.seat.as_mut()).for_each(|seat| seat.slept(time))
            }
            Event::Tick(quiet) => self.tick(&quiet, now),
            Event::LookedUp { visit, looked_at, found } => self.looked_up(visit, looked_at, found, now),
            Event::SeatRead { visit, seat } => self.seat_read(visit, seat, now),
            Event::SeatClaimed { visit, asked_at, commit } => self.seat_claimed(visit, asked_at, commit, now),
            Event::Provisioned { visit, result } => self.provisioned(visit, result, now),
            Event::Watched { visit, standing, priority } => {
                self.prioritised(visit, priority);
                self.watched(visit, standing, now);
            }
            Event::InUse { visit, in_use } => self.used(visit, in_use, now),
            Event::Worked { visit, held } => self.worked(visit, held, now),
            Event::HeldChecked { visit, is_over } => self.held_checked(visit, is_over),
            Event::GivenBack { visit, is_quiet } => self.given_back(visit, is_quiet),
            Event::Done { visit, step } => self.done(visit, step, now),
        }
        self.divide(now);
    }

    /// Returns the next action to execute, oldest first.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether the node has stopped, and left every job.
    pub fn is_over(&self) -> bool {
        self.is_stopping() && self.visits.is_empty()
    }

    /// Whether the node begins nothing more.
    pub fn is_stopping(&self) -> bool {
        self.stop != Stop::No
    }

    /// Returns why the node has ended.
    pub fn ended(&self) -> Ended {
        self.ended
    }

    /// Returns what the node has, and what it does.
    pub fn state(&self) -> NodeState {
        let running = |visit: &Visit| Running {
            processes: u32::try_from(visit.processes).unwrap_or(u32::MAX),
            is_ready: visit.served_since.is_some(),
            has_ended_one: visit.has_ended_one,
            failing_gpus: visit.memory.failing_gpus.clone(),
        };
        let at_work = self.visits.values().filter(|visit| visit.processes > 0);
        let rests = |memory: &Memory| memory.failures > 0 && memory.rests_until.is_some_and(|until| until > self.now);
        let unable = self.memories.iter().filter(|(_, memory)| rests(memory));
        NodeState {
            name: self.config.node.clone(),
            offer: self.config.offer.clone(),
            process_count: self.config.capacity.process_count,
            schedule: 0,
            accepts_work: !self.is_stopping(),
            jobs: at_work.map(|visit| (visit.job_id.clone(), running(visit))).collect(),
            unable: unable.map(|(job_id, _)| job_id.clone()).collect(),
        }
    }

    /// Number of jobs that have a visit.
    pub fn jobs(&self) -> usize {
        self.visits.len()
    }

    fn arrived(&mut self, job_id: String) {
        if self.is_stopping() {
            return;
        }
        if let Some(visit) = self.visits.values_mut().find(|visit| visit.job_id == job_id) {
            visit.again = true;
            return;
        }
        let id = VisitId(self.next_visit);
        self.next_visit += 1;
        let memory = self.memories.remove(&job_id).unwrap_or_default();
        self.act(Action::Open { visit: id, job_id: job_id.clone() });
        self.visits.insert(id, Visit { job_id, is_first: id.0 == 0, memory, ..Visit::default() });
        if !self.turn_away_again(id, self.now) {
            self.run(id, Errand::LookUp);
        }
    }

    fn stop(&mut self, stop: Stop) {
        if !self.stop.raise(stop) {
            return;
        }
        for id in self.ids() {
            match self.visits[&id].stage {
                Stage::Working => self.stop_agent(id, stop),
                Stage::Ready => self.end_wait(id),
                Stage::LettingGo | Stage::CleaningUp | Stage::TellingEnd | Stage::LeavingSeat => {}
                // The node itself returns the waiting messages.
                _ => self.leave_seat(id),
            }
        }
        self.act(Action::Drain);
    }

    fn tick(&mut self, quiet: &[(VisitId, Option<Instant>)], now: Instant) {
        for (id, quiet_since) in quiet {
            if let Some(visit) = self.visits.get_mut(id) {
                visit.quiet_since = *quiet_since;
            }
        }
        if self.machine_goes.is_some_and(|at| at <= now) {
            self.stop(Stop::Kill);
        }
        self.ids().into_iter().for_each(|id| self.tick_visit(id, now));
        self.forget(now);
        if !self.is_stopping() {
            self.make_room(now);
            self.fill_places(now);
        }
        let busy_until = self.visits.values().filter_map(|visit| visit.busy_until(now)).max();
        let memories = self.memories.values().chain(self.visits.values().map(|visit| &visit.memory));
        let waits = memories.filter_map(|memory| memory.observed.waits_until(self.config.periods.seat_lapse));
        let waits_until = waits.max().map(|until| until.min(now));
        self.busy_at = [busy_until, waits_until].into_iter().flatten().fold(self.busy_at, Instant::max);
        self.set_wish(if busy_until == Some(now) { 0 } else { self.config.idle_wish });
        if !self.is_stopping() && self.config.periods.idle_exit.is_some_and(|idle_exit| now - self.busy_at >= idle_exit)
        {
            self.ended = Ended::Idle;
            self.stop(Stop::Finish);
        }
    }

    /// Returns the visit if it is in this stage.
    fn visit_in(&mut self, id: VisitId, stage: Stage) -> Option<&mut Visit> {
        self.visits.get_mut(&id).filter(|visit| visit.stage == stage)
    }

    fn ids(&self) -> Vec<VisitId> {
        self.visits.keys().copied().collect()
    }

    fn set_wish(&mut self, messages: usize) {
        if self.wish != messages {
            self.wish = messages;
            self.act(Action::Wish(messages));
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn run(&mut self, visit: VisitId, errand: Errand) {
        self.act(Action::Run { visit, errand });
    }

    fn log(&mut self, visit: VisitId, is_warning: bool, message: String) {
        let job_id = self.visits[&visit].job_id.clone();
        self.act(Action::Log { job_id, is_warning, message });
    }
}
