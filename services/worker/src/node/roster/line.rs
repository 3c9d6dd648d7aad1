//! Places of the node, and the line of jobs that wait for one.
//!
//! Each job that the node works on has at least one process, so the node begins no more jobs than it has places. While
//! memory is short, it begins none, unless it works on no other. It turns further jobs away: their messages return to the
//! queue, and the jobs wait in line. A job stands the further ahead in it the longer it has waited, by its weight. So a
//! job of four times the weight waits a quarter of the time, and every job comes to the front at last.
//!
//! While jobs wait in line, a job without work leaves, and so does one that has had its turn, once its runs have ended.
//! A turn is longer for a job of higher priority, and in each at least one attempt ends. Then the job goes to the end of the
//! line.
//!
//! Some places are for newcomers, jobs that this node has not worked on. A newcomer that finds no other place has one of
//! these at once, for a short turn; then it waits in line like everybody else, unless another place is free. So a small job
//! begins, and mostly ends, within seconds, while any number of large ones take turns. It costs each large job one more start
//! of its processes.
//!
//! Jobs whose owner may have no more mini-batches in flight here are turned away too, but do not wait in line.

use std::cmp::Reverse;
use std::time::Duration;

use tokio::time::Instant;

use super::division::TURN;
use super::visit::{IDLE_AFTER, Stage, Visit};
use super::{Errand, Memory, Roster, VisitId};
use crate::scheduler::{NOTICE_AFTER_MAX, NOTICE_AGAIN};
use crate::stop::Stop;

/// A job without a message for this long is not in the way of others: other nodes work on it, or it has ended. Messages
/// that a node has returned are mostly back long before.
const HEARD_WITHIN: Duration = Duration::from_secs(30);
/// The same on a node that has processes without work.
const HEARD_WITHIN_IF_IDLE: Duration = Duration::from_secs(10);
/// A job without a message for this long has lost its place in line.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// How long the node turns a job in line away without asking the store again whether it has ended.
const LOOK_UP_AFTER: Duration = Duration::from_secs(10);

/// How long a newcomer has a place for newcomers, for each unit of its weight: ten seconds for a job of normal priority.
const FIRST_TURN: Duration = Duration::from_millis(2500);

/// Time between two looks whether a job without work has ended, while others wait for its place.
const LOOK_AT_QUIET: Duration = Duration::from_secs(1);

/// What a job lacks that the node turns away for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// A place of this node.
    Place,
    /// A mini-batch in flight, of those that its owner may have.
    Part,
}

/// The places of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Lasting,
    OfNewcomers,
}

/// A job that the node has turned away.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnedAway {
    lack: Lack,
    is_newcomer: bool,
    weight: u32,
    since: Instant,
    heard_at: Instant,
    looked_at: Instant,
    told_at: Option<Instant>,
}

impl TurnedAway {
    fn new(lack: Lack, is_newcomer: bool, weight: u32, now: Instant) -> Self {
        Self { lack, is_newcomer, weight, since: now, heard_at: now, looked_at: now, told_at: None }
    }

    fn is_in_line(&self, within: Duration, now: Instant) -> bool {
        self.lack == Lack::Place && now - self.heard_at < within
    }

    /// Whether it lacks a place of the node, so that the messages of other jobs are no use to look for either.
    pub(super) fn lacks_place(&self) -> bool {
        self.lack == Lack::Place
    }

    /// Returns its rank in line; the highest is next.
    fn rank(&self, now: Instant) -> u128 {
        u128::from(self.weight) * (now - self.since).as_millis()
    }
}

impl Visit {
    /// Whether the job has a place: it takes a seat, is made ready, waits for a GPU, or an agent works on it.
    fn has_place(&self) -> bool {
        self.claim.is_some() || matches!(self.stage, Stage::TakingSeat { .. })
    }

    fn place(&self) -> Option<Place> {
        self.has_place().then_some(if self.is_newcomer { Place::OfNewcomers } else { Place::Lasting })
    }

    /// Whether it will leave its place soon.
    fn is_leaving(&self) -> bool {
        let is_new = matches!(self.stage, Stage::TakingSeat { .. } | Stage::Provisioning | Stage::Ready);
        let stays = is_new || self.stage == Stage::Working;
        self.gives_way || self.stop != Stop::No || !stays
    }
}

impl Roster {
    /// Turns a job away for which the store was asked just now, if it has to wait. Returns whether it has to.
    /// `before`: it was turned away before.
    pub(super) fn holds_off(&mut self, id: VisitId, before: Option<TurnedAway>, weight: u32, now: Instant) -> bool {
        let is_newcomer = self.visits[&id].memory.worked_until.is_none();
        let wait = |lack| {
            let before = before.filter(|before| before.lack == lack);
            let wait = before.unwrap_or(TurnedAway::new(lack, is_newcomer, weight, now));
            TurnedAway { weight, heard_at: now, looked_at: now, ..wait }
        };
        if self.is_above_part(id) {
            self.hold_off(id, wait(Lack::Part), now);
            return true;
        }
        let for_place = wait(Lack::Place);
        match self.place_for(id, &for_place, now) {
            Some(place) => {
                if let Some(visit) = self.visits.get_mut(&id) {
                    visit.is_newcomer = place == Place::OfNewcomers;
                }
                false
            }
            None => {
                self.hold_off(id, for_place, now);
                true
            }
        }
    }

    /// Returns the place that a job can have now, given its own wait so far. Lasting places come first.
    fn place_for(&self, id: VisitId, own: &TurnedAway, now: Instant) -> Option<Place> {
        let others = self.visits.iter().filter(|(other, _)| **other != id).map(|(_, visit)| &visit.memory);
        let within = if self.is_busy() { HEARD_WITHIN } else { HEARD_WITHIN_IF_IDLE };
        let ahead = self.in_line(others, within, now).filter(|other| other.rank(now) > own.rank(now));
        let ahead: Vec<&TurnedAway> = ahead.collect();
        let newcomers_ahead = ahead.iter().filter(|other| other.is_newcomer).count();
        if self.free(Place::Lasting) > ahead.len() {
            Some(Place::Lasting)
        } else if own.is_newcomer && self.free(Place::OfNewcomers) > newcomers_ahead {
            Some(Place::OfNewcomers)
        } else {
            None
        }
    }

    /// Turns a job away, and tells its reducer now and then what it waits for.
    fn hold_off(&mut self, id: VisitId, mut wait: TurnedAway, now: Instant) {
        let detail = match wait.lack {
            Lack::Place => self.why_no_place(id),
            Lack::Part => self.part_in_words(id),
        };
        let waited = now - wait.since;
        let is_due = waited >= NOTICE_AFTER_MAX && wait.told_at.is_none_or(|at| now - at >= NOTICE_AGAIN);
        if waited.is_zero() {
            self.log(id, false, format!("this node leaves the job to others for now: {detail}"));
        }
        if is_due {
            wait.told_at = Some(now);
        }
        let Some(visit) = self.visits.get_mut(&id) else { return };
        visit.memory.turned_away = Some(wait);
        match is_due {
            true => self.tell_wait(id, waited, detail),
            false => self.turn_away(id, now),
        }
    }

    /// Tells the reducer what the job waits for, before the waiting messages return to the queue.
    pub(super) fn tell_wait(&mut self, id: VisitId, waited: Duration, detail: String) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        visit.stage = Stage::Telling;
        self.run(id, Errand::TellWait { waited, detail });
    }

    /// Turns a job away that has to wait in line still. Returns whether it has to.
    pub(super) fn turn_away_again(&mut self, id: VisitId, now: Instant) -> bool {
        let Some(before) = self.visits[&id].memory.turned_away.filter(TurnedAway::lacks_place) else { return false };
        if now - before.looked_at >= LOOK_UP_AFTER || self.place_for(id, &before, now).is_some() {
            return false;
        }
        if let Some(wait) = self.visits.get_mut(&id).and_then(|visit| visit.memory.turned_away.as_mut()) {
            wait.heard_at = now;
        }
        self.turn_away(id, now);
        true
    }

    /// Gives places that are free to jobs in line whose messages are here still, the longest wait first.
    pub(super) fn fill_places(&mut self, now: Instant) {
        let held = self.visits.iter().filter(|(_, visit)| matches!(visit.stage, Stage::TurningAway { at: Some(_) }));
        let in_line =
            held.filter_map(|(id, visit)| Some((*id, visit.memory.turned_away.filter(TurnedAway::lacks_place)?)));
        let mut in_line: Vec<(VisitId, TurnedAway)> = in_line.collect();
        in_line.sort_by_key(|(id, wait)| (Reverse(wait.rank(now)), *id));
        let free = self.free(Place::Lasting) + self.free(Place::OfNewcomers);
        for (id, wait) in in_line.into_iter().take(free) {
            if self.place_for(id, &wait, now).is_some()
                && let Some(visit) = self.visits.get_mut(&id)
            {
                // It may have ended meanwhile.
                visit.stage = Stage::LookingUp;
                self.run(id, Errand::LookUp);
            }
        }
    }

    /// Looks within a second whether jobs without work have ended, because others wait for their places.
    fn look_at_quiet_ones(&mut self, now: Instant) {
        for visit in
            self.visits.values_mut().filter(|visit| visit.stage == Stage::Working && visit.quiet_since.is_some())
        {
            visit.look_at = visit.look_at.map(|at| at.min(now + LOOK_AT_QUIET));
        }
    }

    /// Lets jobs leave that have no work, or have had their turn, as many as wait in line without a place to come.
    pub(super) fn make_room(&mut self, now: Instant) {
        self.end_first_turns(now);
        let here = self.visits.values().map(|visit| &visit.memory);
        let in_line: Vec<&TurnedAway> = self.in_line(here, HEARD_WITHIN, now).collect();
        let newcomers = in_line.iter().filter(|wait| wait.is_newcomer).count();
        let for_lasting = in_line.len() - newcomers.min(self.free(Place::OfNewcomers));
        let of_lasting = || self.visits.iter().filter(|(_, visit)| visit.place() == Some(Place::Lasting));
        let leaving = of_lasting().filter(|(_, visit)| visit.is_leaving()).count();
        let missing = for_lasting.saturating_sub(self.free(Place::Lasting) + leaving);
        if missing == 0 {
            return;
        }
        let staying = of_lasting().filter(|(_, visit)| visit.stage == Stage::Working && !visit.is_leaving());
        // Jobs without work go first, and then those whose turn has lasted longest.
        let ready = staying.filter_map(|(id, visit)| {
            let idle_since = visit.quiet_since.filter(|since| now - *since >= IDLE_AFTER);
            let served_since = || Self::had_its_turn_since(visit, TURN, now);
            Some((idle_since.is_none(), idle_since.or_else(served_since)?, *id))
        });
        let mut ready: Vec<(bool, Instant, VisitId)> = ready.collect();
        ready.sort_unstable();
        for (has_work, _, id) in ready.into_iter().take(missing) {
            self.give_way(id, has_work, "the job has had its turn");
        }
        self.look_at_quiet_ones(now);
    }

    /// Ends first turns. A newcomer moves to a lasting place if one is free and no job waits for it; otherwise it leaves its
    /// place after a short turn.
    fn end_first_turns(&mut self, now: Instant) {
        let working = self.visits.iter().filter(|(_, visit)| visit.stage == Stage::Working && !visit.is_leaving());
        let newcomers: Vec<VisitId> = working.filter(|(_, visit)| visit.is_newcomer).map(|(id, _)| *id).collect();
        for id in newcomers {
            let here = self.visits.values().map(|visit| &visit.memory);
            let has_lasting = self.empty(Place::Lasting) > self.in_line(here, HEARD_WITHIN, now).count();
            let Some(visit) = self.visits.get_mut(&id) else { continue };
            let is_idle = visit.quiet_since.is_some_and(|since| now - since >= IDLE_AFTER);
            if has_lasting {
                visit.is_newcomer = false;
            } else if is_idle || Self::had_its_turn_since(visit, FIRST_TURN, now).is_some() {
                self.give_way(id, !is_idle, "the job has had its first turn, which is short");
            }
        }
    }

    /// Lets the runs of a job end, and then leaves it.
    fn give_way(&mut self, id: VisitId, has_work: bool, why: &str) {
        if !has_work {
            return self.leave(id, "other jobs wait for its place, and it has no work here", Stop::Finish);
        }
        if let Some(visit) = self.visits.get_mut(&id) {
            visit.gives_way = true;
            self.log(id, false, format!("{why}, and makes room for others once its runs have ended"));
        }
    }

    /// Forgets jobs that were turned away, or worked on, long ago.
    pub(super) fn forget(&mut self, now: Instant) {
        self.memories.retain(|_, memory| {
            memory.turned_away.take_if(|wait| now - wait.heard_at >= FORGOTTEN_AFTER);
            // A job that waits in line does not become a newcomer.
            let waits = memory.turned_away.is_some();
            memory.worked_until.take_if(|until| !waits && now - *until >= FORGOTTEN_AFTER);
            !memory.is_empty()
        });
    }

    fn in_line<'a>(
        &'a self,
        here: impl Iterator<Item = &'a Memory>,
        within: Duration,
        now: Instant,
    ) -> impl Iterator<Item = &'a TurnedAway> {
        let memories = here.chain(self.memories.values());
        memories.filter_map(|memory| memory.turned_away.as_ref()).filter(move |wait| wait.is_in_line(within, now))
    }

    /// Returns how many of these places a job can have now.
    fn free(&self, place: Place) -> usize {
        match place {
            _ if !self.memory_is_short => self.empty(place),
            Place::Lasting => usize::from(!self.visits.values().any(Visit::has_place)),
            Place::OfNewcomers => 0,
        }
    }

    fn empty(&self, place: Place) -> usize {
        let places = match place {
            Place::Lasting => self.config.places - self.config.places_of_newcomers,
            Place::OfNewcomers => self.config.places_of_newcomers,
        };
        let taken = self.visits.values().filter(|visit| visit.place() == Some(place)).count();
        places.saturating_sub(taken)
    }

    /// Whether as many jobs have work here as the node has processes.
    fn is_busy(&self) -> bool {
        let at_work = self.visits.values().filter(|visit| visit.has_place() && visit.quiet_since.is_none());
        at_work.count() >= self.config.capacity.processes() as usize
    }

    fn why_no_place(&self, id: VisitId) -> String {
        let jobs = self.visits.iter().filter(|(other, visit)| **other != id && visit.has_place()).count();
        let others = if jobs == 1 { "another job".to_owned() } else { format!("{jobs} other jobs") };
        match (jobs, self.memory_is_short) {
            // It was about to have the place of one that has left.
            (0, _) => "jobs that have waited longer come first on this node".to_owned(),
            (_, false) => format!("this node works on {others}"),
            (_, true) => format!("this node works on {others}, and its memory is short"),
        }
    }
}
