//! The stages of a visit: looked up, seated, provisioned, worked on, and left.

use std::time::Duration;

use protocol::JobSpec;
use storage::Commit;
use tokio::time::Instant;

use super::seat::{Seat, Taking};
use super::watch::Watch;
use super::{Action, Errand, Found, Memory, Roster, Step, Unanswered, Unprovisioned, VisitId};
use crate::stop::Stop;

/// How long the queue hides the messages of a job that this node may not work on, where it can.
const TURNED_AWAY_DELAY: Duration = Duration::from_secs(5);
/// How much longer an idle node then asks for nothing, so that the nodes that may work on the job ask first.
const TURNED_AWAY_PAUSE: Duration = Duration::from_secs(3);
/// How long the node holds the messages instead, where the queue has no delays.
const TURNED_AWAY_HOLD: Duration = Duration::from_secs(2);
/// Messages to receive at once, for a moment, while messages of a job are dropped: usually there are many.
const DROP_WISH: usize = 256;
/// Failures in a row to reach what the job needs, after which the node reports them to the job.
const FAILURES_MAX: u32 = 3;

/// What a visit is waiting for.
#[derive(Debug)]
pub(super) enum Stage {
    /// The store, for the job.
    LookingUp,
    /// The store, for a seat.
    TakingSeat(Taking),
    /// Folders, reference data and interpreter of the job.
    Provisioning,
    /// The result queue, for the reason why the job cannot start here.
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
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) job_id: String,
    pub(super) stage: Stage,
    /// The first visit of this node.
    is_first: bool,
    /// Messages have arrived that this visit may not have seen.
    pub(super) again: bool,
    pub(super) memory: Memory,
    /// The job, until it is provisioned.
    spec: Option<Box<JobSpec>>,
    pub(super) seat: Option<Seat>,
    pub(super) watch: Watch,
    /// Since when the agent has held no message.
    pub(super) quiet_since: Option<Instant>,
    /// What the agent has been told.
    pub(super) stop: Stop,
}

impl Visit {
    pub(super) fn new(job_id: String, is_first: bool, memory: Memory) -> Self {
        Self {
            job_id,
            stage: Stage::LookingUp,
            is_first,
            again: false,
            memory,
            spec: None,
            seat: None,
            watch: Watch::default(),
            quiet_since: None,
            stop: Stop::No,
        }
    }

    /// Returns until when there was work, if there was any.
    pub(super) fn busy_until(&self, now: Instant) -> Option<Instant> {
        match self.stage {
            // A node does not end before a slow store has answered for its first job. Later, jobs that are not for this
            // node are looked up again and again, and are no reason to stay.
            Stage::LookingUp | Stage::TakingSeat(_) | Stage::TurningAway { .. } | Stage::Dropping => {
                self.is_first.then_some(now)
            }
            Stage::Working => Some(self.quiet_since.unwrap_or(now)),
            _ => Some(now),
        }
    }
}

impl Roster {
    pub(super) fn looked_up(
        &mut self,
        id: VisitId,
        looked_at: Instant,
        found: Result<Found, Unanswered>,
        now: Instant,
    ) {
        let Some(visit) = self.visits.get_mut(&id).filter(|visit| matches!(visit.stage, Stage::LookingUp)) else {
            return;
        };
        match found {
            Ok(Found::Open(spec)) => {
                let (seats, rests_until) = (spec.node_count, visit.memory.rests_until);
                visit.spec = Some(spec);
                match seats {
                    _ if rests_until.is_some_and(|until| until > now) => self.turn_away(id, now),
                    None => self.provision(id, now),
                    Some(seats) => self.read_seat(id, Taking::new(seats), now),
                }
            }
            Ok(Found::Over(why)) => {
                visit.stage = Stage::Dropping;
                self.log(id, false, format!("dropping messages of the job: {why}"));
                self.set_wish(DROP_WISH);
                // Messages that came after the look-up belong to a job that may have been opened again.
                self.run(id, Errand::Drop { received_before: looked_at });
            }
            Err(Unanswered) => self.turn_away(id, now),
        }
    }

    // ---- seats -----------------------------------------------------------------------------------------------

    /// Reads the next seat; without any left, leaves the job to others.
    fn read_seat(&mut self, id: VisitId, taking: Taking, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let Some(number) = taking.number() else { return self.turn_away(id, now) };
        let known = visit.memory.observed.known(number);
        visit.stage = Stage::TakingSeat(taking);
        self.run(id, Errand::ReadSeat { number, known });
    }

    pub(super) fn seat_read(&mut self, id: VisitId, seat: Result<Option<storage::Seat>, Unanswered>, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let Stage::TakingSeat(taking) = &mut visit.stage else { return };
        let (Some(number), Ok(seat)) = (taking.number(), seat) else { return self.turn_away(id, now) };
        match visit.memory.observed.free_epoch(number, seat.as_ref(), &self.config.node, self.config.seat_lapse, now) {
            Some(epoch) => {
                taking.claim(epoch);
                self.run(id, Errand::ClaimSeat { number, epoch });
            }
            None => {
                let next = taking.next();
                self.read_seat(id, next, now);
            }
        }
    }

    pub(super) fn seat_claimed(
        &mut self,
        id: VisitId,
        asked_at: Instant,
        commit: Result<Commit, Unanswered>,
        now: Instant,
    ) {
        let period = self.config.seat_period;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        match &mut visit.stage {
            Stage::TakingSeat(taking) => match commit {
                Ok(Commit::Committed) => {
                    visit.seat = Some(taking.taken(asked_at, now + period));
                    self.provision(id, now);
                }
                Ok(Commit::Lost) => {
                    let next = taking.next();
                    self.read_seat(id, next, now);
                }
                Err(Unanswered) => self.turn_away(id, now),
            },
            _ => {
                if let Some(seat) = &mut visit.seat {
                    seat.claimed(asked_at, commit, period, now);
                }
            }
        }
    }

    // ---- before the work -------------------------------------------------------------------------------------

    fn provision(&mut self, id: VisitId, now: Instant) {
        let period = self.config.watch_period;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let Some(spec) = visit.spec.take() else { return };
        visit.stage = Stage::Provisioning;
        visit.watch = Watch::start(now, period);
        self.log(id, false, "provisioning".to_owned());
        self.act(Action::Provision { visit: id, spec });
    }

    pub(super) fn provisioned(&mut self, id: VisitId, result: Result<(), Unprovisioned>, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id).filter(|visit| matches!(visit.stage, Stage::Provisioning)) else {
            return;
        };
        let Err(Unprovisioned { reason, may_pass }) = result else {
            visit.memory.failures = 0;
            visit.stage = Stage::Working;
            return self.act(Action::Work(id));
        };
        visit.memory.failures += 1;
        let is_reported = !may_pass || visit.memory.failures >= FAILURES_MAX;
        if is_reported {
            visit.stage = Stage::Telling;
        }
        self.log(id, true, format!("the job cannot start on this node: {reason}"));
        match is_reported {
            true => self.run(id, Errand::Tell { reason }),
            false => self.turn_away(id, now),
        }
    }

    /// Leaves the waiting messages to other nodes, and does not ask for them again at once.
    fn turn_away(&mut self, id: VisitId, now: Instant) {
        let delay = self.turned_away_delay();
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let at = delay.is_zero().then(|| now + TURNED_AWAY_HOLD);
        visit.stage = Stage::TurningAway { at };
        if at.is_none() {
            self.run(id, Errand::GiveBack { delay });
        }
    }

    pub(super) fn turned_away_delay(&self) -> Duration {
        self.config.delay_max.min(TURNED_AWAY_DELAY)
    }

    pub(super) fn given_back(&mut self, id: VisitId, is_quiet: bool) {
        if !self.visits.get(&id).is_some_and(|visit| matches!(visit.stage, Stage::TurningAway { .. })) {
            return;
        }
        let delay = self.turned_away_delay();
        if is_quiet {
            // An idle node would be the first to ask for them once they are visible again.
            self.act(Action::Pause(delay + TURNED_AWAY_PAUSE));
        } else if delay.is_zero() {
            self.act(Action::Pause(TURNED_AWAY_HOLD / 4));
        }
        self.leave_seat(id);
    }

    // ---- the work --------------------------------------------------------------------------------------------

    pub(super) fn stop_agent(&mut self, id: VisitId, stop: Stop) {
        if self.visits.get_mut(&id).is_some_and(|visit| visit.stop.raise(stop)) {
            self.act(Action::StopAgent { visit: id, stop });
        }
    }

    pub(super) fn worked(&mut self, id: VisitId, held: Option<usize>, now: Instant) {
        let rest = self.config.rest;
        let Some(visit) = self.visits.get_mut(&id).filter(|visit| matches!(visit.stage, Stage::Working)) else {
            return;
        };
        visit.stage = Stage::LettingGo;
        let gave_up = held.is_some() && visit.stop == Stop::No;
        if gave_up {
            visit.memory.rests_until = Some(now + rest);
            self.log(id, true, "no process can start: this node leaves the job to others for a while".to_owned());
        }
        match held {
            Some(1..) => self.run(id, Errand::CheckHeld),
            _ => self.done(id, Step::LetGo, now),
        }
    }

    pub(super) fn held_checked(&mut self, id: VisitId, is_over: bool) {
        if self.visits.get(&id).is_some_and(|visit| matches!(visit.stage, Stage::LettingGo)) {
            self.act(Action::LetGo { visit: id, is_over });
        }
    }

    // ---- afterwards ------------------------------------------------------------------------------------------

    pub(super) fn done(&mut self, id: VisitId, step: Step, now: Instant) {
        let rest = self.config.rest;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        match (&visit.stage, step) {
            (Stage::Telling, Step::Tell) => {
                visit.memory.rests_until = Some(now + rest);
                self.turn_away(id, now);
            }
            (Stage::LettingGo, Step::LetGo) => {
                visit.stage = Stage::CleaningUp;
                self.act(Action::CleanUp(id));
            }
            (Stage::CleaningUp, Step::CleanUp) => self.leave_seat(id),
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
        if memory.is_worth_keeping() {
            self.memories.insert(job_id.clone(), memory);
        }
        self.act(Action::Close(id));
        if again {
            self.arrived(job_id);
        }
    }
}
