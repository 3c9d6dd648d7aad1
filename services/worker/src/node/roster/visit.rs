//! The stages of a visit: looked up, seated, provisioned, worked on, and left.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::JobSpec;
use storage::Commit;
use tokio::time::Instant;

use super::seat::Seat;
use super::{Action, Answer, Errand, Found, Memory, Obstacle, Roster, Share, Step, Unanswered, Unprovisioned, VisitId};
use crate::node::shares::Claim;
use crate::scheduler::NOTICE_AFTER_MAX;
use crate::stop::Stop;

/// While a job is provisioned, its messages return to the queue this often: other nodes may be ready for it.
pub(super) const PASS_ON_PERIOD: Duration = Duration::from_secs(10);
/// A job has no work once no message of it has been here for this long: its next ones may be on their way.
pub(super) const IDLE_AFTER: Duration = Duration::from_secs(10);
/// How long the queue hides the messages of a job that this node may not work on, where it can.
const TURNED_AWAY_DELAY: Duration = Duration::from_secs(5);
/// How much longer an idle node then asks for nothing, so that the nodes that may work on the job ask first.
const TURNED_AWAY_PAUSE: Duration = Duration::from_secs(3);
/// How long the node holds the messages instead, where the queue has no delays.
const TURNED_AWAY_HOLD: Duration = Duration::from_secs(2);
/// How long a node asks for nothing after it has returned messages that are among the next ones again.
const IN_TURN_PAUSE: Duration = Duration::from_millis(100);
/// Messages to receive at once, for a moment, while messages of a job are dropped: usually there are many.
const DROP_WISH: usize = 256;
/// How long the node leaves a job to others after its agent has failed: the cause may be temporary, or this node's
/// alone.
const FAILED_REST: Duration = Duration::from_secs(5);
/// Failures in a row to reach what the job needs, after which the node reports them to the job.
const FAILURES_MAX: u32 = 3;

/// What a visit is waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Stage {
    /// The store, for the job.
    #[default]
    LookingUp,
    /// The store, for this seat; the epoch to claim.
    TakingSeat { number: u32, epoch: u64 },
    /// Folders, reference data and interpreter of the job.
    Provisioning,
    /// Processes: other jobs use the GPUs of the node, or have what its owner may have in flight.
    Ready,
    /// The result queue, to which it says that the wait has ended.
    TellingEnd,
    /// The result queue, for the reason why the job cannot start here, or waits.
    Telling,
    /// The task queue, which takes the messages back; before that, this moment.
    TurningAway { at: Option<Instant> },
    /// The task queue, which deletes messages of a job that is over.
    Dropping,
    /// The agent.
    Working,
    /// Store and task queue, for what the agent still held.
    LettingGo,
    /// The store, for the last logs.
    CleaningUp,
    /// The store, for the seat.
    LeavingSeat,
}

/// One stay of a job on this node.
#[derive(Default)]
pub(super) struct Visit {
    pub(super) job_id: String,
    pub(super) stage: Stage,
    /// The first visit of this node.
    pub(super) is_first: bool,
    /// Messages have arrived that this visit may not have seen.
    pub(super) again: bool,
    pub(super) memory: Memory,
    /// The job, until it is provisioned.
    pub(super) spec: Option<Box<JobSpec>>,
    pub(super) seat: Option<Seat>,
    /// The owner that the job counts for.
    pub(super) owner: String,
    /// What the job claims of the node while it has work.
    pub(super) claim: Option<Claim>,
    /// What the agent has been told.
    pub(super) share: Share,
    /// Its processes.
    pub(super) processes: usize,
    /// GPUs that its processes may use.
    pub(super) in_use: BTreeSet<u32>,
    /// Since when a process of it has been ready.
    pub(super) served_since: Option<Instant>,
    /// An attempt of it has ended in this visit.
    pub(super) has_ended_one: bool,
    /// It has a place for newcomers, for a short turn.
    pub(super) is_newcomer: bool,
    /// It has had its turn, and leaves once its runs have ended.
    pub(super) gives_way: bool,
    pub(super) wait: Wait,
    /// The next look at the job; `None`: one is under way.
    pub(super) look_at: Option<Instant>,
    pub(super) looks: u32,
    /// When the waiting messages return to the queue while the job is provisioned.
    pub(super) pass_on_at: Option<Instant>,
    /// Since when the agent has held no message.
    pub(super) quiet_since: Option<Instant>,
    /// What the agent has been told.
    pub(super) stop: Stop,
}

/// The wait for processes.
#[derive(Default)]
pub(super) struct Wait {
    pub(super) since: Option<Instant>,
    /// When messages of the job last arrived.
    pub(super) heard_at: Option<Instant>,
    /// When the reducer is told next.
    pub(super) tell_at: Option<Instant>,
    /// When the node returns the messages that it has received since.
    pub(super) return_at: Option<Instant>,
    pub(super) is_logged: bool,
    pub(super) is_told: bool,
}

impl Visit {
    /// Whether the job waits for a place of this node.
    pub(super) fn waits_in_line(&self) -> bool {
        self.memory.turned_away.is_some_and(|wait| wait.lacks_place())
    }

    /// Returns until when there was work, if there was any.
    pub(super) fn busy_until(&self, now: Instant) -> Option<Instant> {
        match self.stage {
            // A node does not end before a slow store has answered for its first job. Later, jobs that are not for this
            // node are looked up again and again, and are no reason to stay.
            Stage::LookingUp
            | Stage::TakingSeat { .. }
            | Stage::Telling
            | Stage::TurningAway { .. }
            | Stage::Dropping => self.is_first.then_some(now),
            Stage::Working => Some(self.quiet_since.unwrap_or(now)),
            _ => Some(now),
        }
    }
}

impl Roster {
    pub(super) fn looked_up(&mut self, id: VisitId, looked_at: Instant, found: Answer<Found>, now: Instant) {
        if let Ok(Found::Open(spec)) = &found
            && let Some(lacks) = self.config.offer.lacks(&spec.requires)
        {
            return self.leave_to_others(id, &lacks, now);
        }
        let Some(visit) = self.visit_in(id, Stage::LookingUp) else { return };
        match found {
            Ok(Found::Open(spec)) => {
                let (seats, weight, rests_until) = (spec.node_count, spec.priority.weight(), visit.memory.rests_until);
                let before = visit.memory.turned_away.take();
                visit.owner.clone_from(&spec.owner);
                visit.spec = Some(spec);
                match seats {
                    _ if rests_until.is_some_and(|until| until > now) => self.turn_away(id, now),
                    _ if self.holds_off(id, before, weight, now) => {}
                    None => self.provision(id, now),
                    Some(_) => self.read_seat(id, 0, now),
                }
            }
            Ok(Found::Over(why)) => {
                visit.stage = Stage::Dropping;
                self.log(id, false, format!("dropping messages of the job: {why}"));
                self.set_wish(DROP_WISH);
                // Messages that came after the look-up belong to a job that may have been opened again.
                self.run(id, Errand::Drop { received_before: looked_at });
            }
            Err(Unanswered) => {
                // The job leaves the line, so that the node does not ask a silent store again at once.
                visit.memory.turned_away = None;
                self.turn_away(id, now);
            }
        }
    }

    /// Turns away a job that requires more than this node has. Its log says so once.
    fn leave_to_others(&mut self, id: VisitId, lacks: &str, now: Instant) {
        let Some(visit) = self.visit_in(id, Stage::LookingUp) else { return };
        if !std::mem::replace(&mut visit.memory.is_unfit, true) {
            self.log(id, false, format!("this node leaves the job to others: {lacks}"));
        }
        self.turn_away(id, now);
    }

    /// Reads a seat; after the last one, leaves the job to others.
    fn read_seat(&mut self, id: VisitId, number: u32, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let seats = visit.spec.as_ref().and_then(|spec| spec.node_count).unwrap_or(0);
        if number >= seats {
            return self.turn_away(id, now);
        }
        visit.stage = Stage::TakingSeat { number, epoch: 0 };
        let known = visit.memory.observed.known(number);
        self.run(id, Errand::ReadSeat { number, known });
    }

    pub(super) fn seat_read(&mut self, id: VisitId, seat: Answer<Option<storage::Seat>>, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let Stage::TakingSeat { number, .. } = visit.stage else { return };
        let Ok(seat) = seat else { return self.turn_away(id, now) };
        let (observed, lapse) = (&mut visit.memory.observed, self.config.periods.seat_lapse);
        match observed.free_epoch(number, seat.as_ref(), &self.config.node, lapse, now) {
            Some(epoch) => {
                visit.stage = Stage::TakingSeat { number, epoch };
                self.run(id, Errand::ClaimSeat { number, epoch });
            }
            None => self.read_seat(id, number + 1, now),
        }
    }

    pub(super) fn seat_claimed(&mut self, id: VisitId, asked_at: Instant, commit: Answer<Commit>, now: Instant) {
        let next_at = now + self.config.periods.seat;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        match (visit.stage, commit) {
            (Stage::TakingSeat { number, epoch }, Ok(Commit::Committed)) => {
                visit.seat = Some(Seat::taken(number, epoch, asked_at, next_at));
                self.provision(id, now);
            }
            (Stage::TakingSeat { number, .. }, Ok(Commit::Lost)) => self.read_seat(id, number + 1, now),
            (Stage::TakingSeat { .. }, Err(Unanswered)) => self.turn_away(id, now),
            (_, commit) => {
                if let Some(seat) = &mut visit.seat {
                    seat.claimed(asked_at, commit, next_at);
                }
            }
        }
    }

    fn provision(&mut self, id: VisitId, now: Instant) {
        let period = self.config.periods.watch;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let Some(spec) = visit.spec.take() else { return };
        let claim = self.config.capacity.claim(&spec);
        visit.stage = Stage::Provisioning;
        visit.claim = Some(Claim { turn: visit.memory.turn.take().unwrap_or(self.next_turn), ..claim });
        self.next_turn += 1;
        (visit.look_at, visit.pass_on_at) = (Some(now + period), Some(now + PASS_ON_PERIOD));
        self.log(id, false, "provisioning".to_owned());
        self.act(Action::Provision { visit: id, spec });
    }

    pub(super) fn provisioned(&mut self, id: VisitId, result: Result<(), Unprovisioned>, now: Instant) {
        let Some(visit) = self.visit_in(id, Stage::Provisioning) else { return };
        let Err(Unprovisioned { reason, obstacle }) = result else {
            visit.memory.failures = 0;
            visit.memory.full_since = None;
            // It begins as soon as it has a share.
            visit.stage = Stage::Ready;
            let tell_at = Some(now + NOTICE_AFTER_MAX);
            visit.wait = Wait { since: Some(now), heard_at: Some(now), tell_at, ..Wait::default() };
            return;
        };
        if obstacle == Obstacle::FullDisk {
            let waited = now - *visit.memory.full_since.get_or_insert(now);
            self.log(id, true, format!("the job waits for room on this node: {reason}"));
            return self.tell_wait(id, waited, reason);
        }
        visit.memory.failures += 1;
        let is_reported = obstacle == Obstacle::Lasting || visit.memory.failures >= FAILURES_MAX;
        visit.stage = Stage::Telling;
        self.log(id, true, format!("the job cannot start on this node: {reason}"));
        match is_reported {
            true => self.run(id, Errand::Tell { reason }),
            false => self.turn_away(id, now),
        }
    }

    /// Leaves the waiting messages to other nodes, and does not ask for them again at once.
    pub(super) fn turn_away(&mut self, id: VisitId, now: Instant) {
        let delay = self.turned_away_delay();
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let hold = match visit.waits_in_line() {
            true => Some(self.config.periods.hold),
            false => delay.is_zero().then_some(TURNED_AWAY_HOLD),
        };
        visit.stage = Stage::TurningAway { at: hold.map(|hold| now + hold) };
        if hold.is_none() {
            self.run(id, Errand::GiveBack { delay });
        }
    }

    pub(super) fn turned_away_delay(&self) -> Duration {
        self.config.delay_max.min(TURNED_AWAY_DELAY)
    }

    pub(super) fn given_back(&mut self, id: VisitId, is_quiet: bool) {
        let Some(visit) = self.visit_in(id, Stage::TurningAway { at: None }) else { return };
        let waits_in_line = visit.waits_in_line();
        let delay = self.turned_away_delay();
        if waits_in_line && self.config.groups_take_turns {
            self.act(Action::Pause(IN_TURN_PAUSE));
        } else if is_quiet && !waits_in_line {
            // An idle node would be the first to ask for them once they are visible again. One without a place may get one
            // at any moment.
            self.act(Action::Pause(delay + TURNED_AWAY_PAUSE));
        } else if delay.is_zero() {
            self.act(Action::Pause(TURNED_AWAY_HOLD / 4));
        }
        self.leave_seat(id);
    }

    pub(super) fn stop_agent(&mut self, id: VisitId, stop: Stop) {
        if self.visits.get_mut(&id).is_some_and(|visit| visit.stop.raise(stop)) {
            self.act(Action::StopAgent { visit: id, stop });
        }
    }

    pub(super) fn worked(&mut self, id: VisitId, held: Option<usize>, now: Instant) {
        let rest = self.config.periods.rest;
        let Some(visit) = self.visit_in(id, Stage::Working) else { return };
        visit.stage = Stage::LettingGo;
        visit.in_use.clear();
        visit.processes = 0;
        visit.memory.worked_until = Some(now);
        if held.is_none() {
            visit.memory.rests_until = Some(now + FAILED_REST);
        }
        let gave_up = held.is_some() && visit.stop == Stop::No;
        if gave_up {
            visit.memory.rests_until = Some(now + rest);
            visit.memory.failing_gpus.clear();
            self.log(id, true, "the agent has given up: this node leaves the job to others for a while".to_owned());
        }
        match held {
            Some(1..) => self.run(id, Errand::CheckHeld),
            _ => self.done(id, Step::LetGo, now),
        }
    }

    pub(super) fn held_checked(&mut self, id: VisitId, is_over: bool) {
        if self.visit_in(id, Stage::LettingGo).is_some() {
            self.act(Action::LetGo { visit: id, is_over });
        }
    }

    pub(super) fn done(&mut self, id: VisitId, step: Step, now: Instant) {
        let rest = self.config.periods.rest;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        match (&visit.stage, step) {
            (Stage::Telling, Step::Tell) => {
                visit.memory.rests_until = Some(now + rest);
                self.turn_away(id, now);
            }
            (Stage::Telling, Step::TellWait) => self.turn_away(id, now),
            (Stage::LettingGo, Step::LetGo) => {
                visit.stage = Stage::CleaningUp;
                self.act(Action::CleanUp(id));
            }
            (Stage::CleaningUp, Step::CleanUp) | (Stage::TellingEnd, Step::TellEnd) => self.leave_seat(id),
            (Stage::Dropping, Step::Drop) | (Stage::LeavingSeat, Step::LeaveSeat) => self.close(id),
            _ => {}
        }
    }

    /// Frees the seat, if the visit has one, and ends the visit.
    pub(super) fn leave_seat(&mut self, id: VisitId) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        match visit.seat.take() {
            None => self.close(id),
            Some(seat) => {
                visit.stage = Stage::LeavingSeat;
                self.run(id, Errand::LeaveSeat { number: seat.number, epoch: seat.epoch + 1 });
            }
        }
    }

    fn close(&mut self, id: VisitId) {
        let Some(Visit { job_id, memory, again, .. }) = self.visits.remove(&id) else { return };
        if !memory.is_empty() {
            self.memories.insert(job_id.clone(), memory);
        }
        self.act(Action::Close(id));
        if again {
            self.arrived(job_id);
        }
    }
}
