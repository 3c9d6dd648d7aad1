//! What is due while a job is provisioned or worked on: looks at the job, renewals of its seat, and the reasons to leave.

use std::time::Duration;

use tokio::time::Instant;

use super::visit::{IDLE_AFTER, PASS_ON_PERIOD, Stage, Visit};
use super::{Errand, Periods, Roster, Standing, VisitId};
use crate::stop::Stop;

/// Looks for a request to cancel, for each look whether a busy job has ended.
const LOOKS_PER_RESULT: u32 = 5;

impl Roster {
    /// Does what is due for a visit.
    pub(super) fn tick_visit(&mut self, id: VisitId, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        match visit.stage {
            Stage::TurningAway { at: Some(at) } if at <= now => {
                visit.stage = Stage::TurningAway { at: None };
                // The queue has no delays, or the node has already held the messages for longer than a delay.
                let delay = Duration::ZERO;
                self.run(id, Errand::GiveBack { delay });
            }
            Stage::Provisioning | Stage::Ready | Stage::Working => {
                if visit.stage == Stage::Provisioning && visit.pass_on_at.is_some_and(|at| at <= now) {
                    visit.pass_on_at = Some(now + PASS_ON_PERIOD);
                    self.run(id, Errand::PassOn);
                }
                if self.tick_wait(id, now) {
                    return;
                }
                self.tick_seat(id, now);
                self.look(id, now);
            }
            _ => {}
        }
    }

    fn tick_seat(&mut self, id: VisitId, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let Some(seat) = &mut visit.seat else { return };
        if seat.is_lost(now, self.config.periods.seat_lapse) {
            self.leave(id, "another node has its seat", Stop::Drain);
        } else if let Some(epoch) = seat.renew(now) {
            let number = seat.number;
            self.run(id, Errand::ClaimSeat { number, epoch });
        }
    }

    /// Looks at the job, with as few requests as cancelling within seconds allows.
    fn look(&mut self, id: VisitId, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        if visit.look_at.take_if(|at| *at <= now).is_some() {
            visit.looks += 1;
            let with_result = visit.quiet_since.is_some() || visit.looks.is_multiple_of(LOOKS_PER_RESULT);
            self.run(id, Errand::Watch { with_result });
        }
    }

    pub(super) fn watched(&mut self, id: VisitId, standing: Standing, now: Instant) {
        let Periods { watch, job_idle, .. } = self.config.periods;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        visit.look_at = Some(now + watch);
        let quiet_since = visit.quiet_since;
        match standing {
            Standing::Canceled => self.leave(id, "it was canceled", Stop::Kill),
            // The result of what still runs would be dropped.
            Standing::Ended if quiet_since.is_none() => self.leave(id, "it has ended", Stop::Kill),
            Standing::Ended => self.leave(id, "it has ended", Stop::Finish),
            Standing::Open if quiet_since.is_some_and(|since| now - since >= job_idle) => {
                self.leave(id, "no message of it has arrived for a while", Stop::Finish);
            }
            Standing::Open => {}
        }
    }

    /// Takes down the processes of the job that has had no work for the longest time. Waits until they have ended, which
    /// may be enough.
    pub(super) fn relieve(&mut self, now: Instant) {
        let idle = |visit: &Visit| {
            visit.quiet_since.filter(|since| visit.stage == Stage::Working && now - *since >= IDLE_AFTER)
        };
        let idle: Vec<_> = self.visits.iter().filter_map(|(id, visit)| Some((idle(visit)?, *id, visit.stop))).collect();
        if let Some((_, id, Stop::No)) = idle.iter().min_by_key(|(since, _, stop)| (*stop == Stop::No, *since)) {
            self.leave(*id, "the memory of this node is short, and the job has no work here", Stop::Finish);
        }
    }

    pub(super) fn leave(&mut self, id: VisitId, why: &str, stop: Stop) {
        let Some(visit) = self.visits.get(&id) else { return };
        match visit.stage {
            Stage::Working if visit.stop < stop => {
                self.log(id, false, format!("leaving the job: {why}"));
                self.stop_agent(id, stop);
            }
            Stage::Provisioning => {
                self.log(id, false, format!("this node does not need the job any more: {why}"));
                self.leave_seat(id);
            }
            Stage::Ready => {
                self.log(id, false, format!("the job waits no longer on this node: {why}"));
                self.end_wait(id);
            }
            _ => {}
        }
    }
}
