//! What is due while a job is provisioned or worked on: looks at the job, renewals of its seat, and the reasons to leave.

use std::time::Duration;

use tokio::time::Instant;

use super::visit::Stage;
use super::{Errand, Roster, Standing, VisitId};
use crate::stop::Stop;

/// While a job is provisioned, its messages return to the queue this often: other nodes may be ready for it.
const PASS_ON_PERIOD: Duration = Duration::from_secs(10);
/// Looks for a request to cancel, for each look whether a busy job has ended.
const LOOKS_PER_RESULT: u32 = 5;

/// When what is due.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The next look at the job; `None`: one is under way.
    look_at: Option<Instant>,
    pass_on_at: Option<Instant>,
    looks: u32,
}

impl Watch {
    pub(super) fn start(now: Instant, period: Duration) -> Self {
        Self { look_at: Some(now + period), pass_on_at: Some(now + PASS_ON_PERIOD), looks: 0 }
    }
}

/// Why a node leaves a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Canceled,
    Ended,
    SeatLost,
    Idle,
}

impl Reason {
    fn in_words(self) -> &'static str {
        match self {
            Self::Canceled => "it was canceled",
            Self::Ended => "it has ended",
            Self::SeatLost => "another node has its seat",
            Self::Idle => "no message of it has arrived for a while",
        }
    }

    fn stop(self, is_quiet: bool) -> Stop {
        match self {
            Self::Canceled => Stop::Kill,
            Self::Ended if is_quiet => Stop::Finish,
            // The result of what still runs would be dropped.
            Self::Ended => Stop::Kill,
            Self::SeatLost => Stop::Drain,
            Self::Idle => Stop::Finish,
        }
    }
}

impl Roster {
    /// Does what is due for a visit.
    pub(super) fn tick_visit(&mut self, id: VisitId, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        match &mut visit.stage {
            Stage::TurningAway { at } if at.is_some_and(|at| at <= now) => {
                *at = None;
                let delay = self.turned_away_delay();
                self.run(id, Errand::GiveBack { delay });
            }
            Stage::Provisioning => {
                if visit.watch.pass_on_at.is_some_and(|at| at <= now) {
                    visit.watch.pass_on_at = Some(now + PASS_ON_PERIOD);
                    self.run(id, Errand::PassOn);
                }
                self.tick_seat(id, now);
                self.look(id, now);
            }
            Stage::Working => {
                self.tick_seat(id, now);
                self.look(id, now);
            }
            _ => {}
        }
    }

    fn tick_seat(&mut self, id: VisitId, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let Some(seat) = &mut visit.seat else { return };
        if seat.is_lost(now, self.config.seat_lapse) {
            self.leave(id, Reason::SeatLost);
        } else if let Some(epoch) = seat.renew(now) {
            let number = seat.number;
            self.run(id, Errand::ClaimSeat { number, epoch });
        }
    }

    /// Looks at the job, with as few requests as cancelling within seconds allows.
    fn look(&mut self, id: VisitId, now: Instant) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        if visit.watch.look_at.is_none_or(|at| at > now) {
            return;
        }
        visit.watch.look_at = None;
        visit.watch.looks += 1;
        let with_result = visit.quiet_since.is_some() || visit.watch.looks.is_multiple_of(LOOKS_PER_RESULT);
        self.run(id, Errand::Watch { with_result });
    }

    pub(super) fn watched(&mut self, id: VisitId, standing: Standing, now: Instant) {
        let period = self.config.watch_period;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        visit.watch.look_at = Some(now + period);
        match standing {
            Standing::Canceled => self.leave(id, Reason::Canceled),
            Standing::Ended => self.leave(id, Reason::Ended),
            Standing::Open if visit.quiet_since.is_some_and(|since| now - since >= self.config.job_idle) => {
                self.leave(id, Reason::Idle);
            }
            Standing::Open => {}
        }
    }

    fn leave(&mut self, id: VisitId, reason: Reason) {
        let Some(visit) = self.visits.get(&id) else { return };
        let stop = reason.stop(visit.quiet_since.is_some());
        match visit.stage {
            Stage::Working if visit.stop < stop => {
                self.log(id, false, format!("leaving the job: {}", reason.in_words()));
                self.stop_agent(id, stop);
            }
            Stage::Provisioning => {
                self.log(id, false, format!("this node does not need the job any more: {}", reason.in_words()));
                self.leave_seat(id);
            }
            _ => {}
        }
    }
}
