//! How many processes each job has, and which GPUs: divided again whenever a job arrives, leaves, gets work or has none
//! any more, and whenever a process leaves a GPU.
//!
//! Jobs that find no GPU wait. While some do, a job that has had GPUs for its turn gets in line behind them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use protocol::Priority;
use tokio::time::Instant;

use super::visit::{IDLE_AFTER, Stage, Visit, Wait};
use super::{Action, Errand, InUse, Parts, Roster, Share, VisitId};
use crate::node::shares::{Claim, Holding};
use crate::scheduler::NOTICE_AGAIN;
use crate::stop::Stop;

/// How long a job has GPUs or a place that others wait for, from the moment that a process of it is ready, for each unit of
/// its weight: two minutes for a job of normal priority.
pub(super) const TURN: Duration = Duration::from_secs(30);

/// How often a node returns the messages of a job that waits for a GPU: they are in the way of other jobs.
const RETURN_EVERY: Duration = Duration::from_secs(2);
/// How long a job waits for a GPU while it has a seat that other nodes may want.
const SEAT_WAIT_MAX: Duration = Duration::from_secs(20);

impl Visit {
    /// Returns what the job claims now; `None`: no agent works on it, or the agent stops, or is about to.
    fn claims(&self, now: Instant) -> Option<Claim> {
        let has_work = self.quiet_since.is_none_or(|since| now - since < IDLE_AFTER);
        let is_here = match self.stage {
            Stage::Working => self.stop == Stop::No && !self.gives_way,
            stage => stage == Stage::Ready,
        };
        self.claim.filter(|_| is_here).map(|claim| Claim { has_work, ..claim })
    }

    fn holding(&self) -> Holding {
        let Share { processes, gpus, .. } = self.share.clone();
        Holding { processes, gpus, in_use: self.in_use.clone(), failing: self.memory.failing_gpus.clone() }
    }
}

impl Roster {
    /// Takes note of a changed priority.
    pub(super) fn prioritised(&mut self, id: VisitId, priority: Option<Priority>) {
        let Some(claim) = self.visits.get_mut(&id).and_then(|visit| visit.claim.as_mut()) else { return };
        let Some(priority) = priority.filter(|priority| priority.weight() != claim.weight) else { return };
        claim.weight = priority.weight();
        self.log(id, false, format!("the priority of the job is {} now", priority.word()));
    }

    /// Takes note of what the node may run of each owner, and leaves jobs for which nothing is left, the last ones first.
    pub(super) fn take_parts(&mut self, parts: Arc<Parts>) {
        self.parts = parts;
        for id in self.ids().into_iter().rev() {
            if self.visits[&id].claim.is_some() && self.is_above_part(id) {
                self.leave(id, "its owner may have no more mini-batches in flight here", Stop::Drain);
            }
        }
    }

    /// Whether earlier jobs of the owner have all the processes that the owner may have on this node.
    pub(super) fn is_above_part(&self, id: VisitId) -> bool {
        let owner = &self.visits[&id].owner;
        let Some(part) = self.parts.of(owner) else { return false };
        // Each job has at least one process.
        let earlier = self.visits.range(..id).filter(|(_, other)| other.claim.is_some() && other.owner == *owner);
        earlier.count() >= part as usize
    }

    /// Returns the part of an owner, with a number that stands for the owner.
    fn part_of(&self, owner: &str) -> Option<(usize, u32)> {
        let part = self.parts.of(owner)?;
        let number = self.visits.values().position(|visit| visit.owner == owner)?;
        Some((number, part))
    }

    /// Takes note of the processes of a job, and of the GPUs that they may use, unless its agent did not know its last share.
    pub(super) fn used(&mut self, id: VisitId, in_use: InUse, now: Instant) {
        let InUse { number, processes, is_ready, has_ended_one, gpus, failing } = in_use;
        let Some(visit) = self.visit_in(id, Stage::Working) else { return };
        visit.memory.failing_gpus = failing;
        visit.has_ended_one |= has_ended_one;
        if visit.share.number == number {
            (visit.processes, visit.in_use) = (processes, gpus);
            visit.served_since = visit.served_since.or(is_ready.then_some(now));
        }
    }

    /// Returns the beginning of a turn that is over. `unit`: how long it lasts for each unit of the weight.
    pub(super) fn had_its_turn_since(visit: &Visit, unit: Duration, now: Instant) -> Option<Instant> {
        let turn = unit * visit.claim?.weight;
        // A job that takes longer to make ready, or to run, would begin again and again.
        visit.served_since.filter(|since| visit.has_ended_one && now - *since >= turn)
    }

    /// Returns what the owner of a job may have in flight here, and that it has it.
    pub(super) fn part_in_words(&self, id: VisitId) -> String {
        let owner = &self.visits[&id].owner;
        let (part, limit) = (self.parts.of(owner).unwrap_or(0), self.parts.limit_of(owner).unwrap_or(0));
        // Earlier versions enqueue jobs without an owner.
        let owner = if owner.is_empty() { "its owner".to_owned() } else { format!("owner {owner}") };
        match part == limit {
            true => format!("{owner} has {part} of its {limit} mini-batches in flight (quota of the target)"),
            false => {
                format!(
                    "{owner} may have {part} of its {limit} mini-batches in flight on this node (quota of the target)"
                )
            }
        }
    }

    /// Tells the agents whose shares have changed, lets jobs begin that have a GPU now, and leaves those that have lost
    /// theirs.
    pub(super) fn divide(&mut self, now: Instant) {
        self.end_turns(now);
        let here = self.visits.iter().filter_map(|(id, visit)| {
            let claim = Claim { of_owner: self.part_of(&visit.owner), ..visit.claims(now)? };
            Some((*id, claim, visit.holding()))
        });
        let (ids, (claims, held)): (Vec<VisitId>, (Vec<Claim>, Vec<Holding>)) =
            here.map(|(id, claim, held)| (id, (claim, held))).unzip();
        let leaving = self.visits.iter().filter(|(id, _)| !ids.contains(id));
        let occupied: BTreeSet<u32> = leaving.flat_map(|(_, visit)| visit.in_use.iter().copied()).collect();
        let shares = self.config.capacity.shares(&claims, &held, &occupied);
        for (id, share) in ids.into_iter().zip(shares) {
            let share = self.within_part(id, share);
            self.share(id, share);
            self.begin_or_leave(id);
        }
        for id in self.ids() {
            if self.visits[&id].gives_way && self.visits[&id].stage == Stage::Working {
                self.share(id, Share::default());
                self.begin_or_leave(id);
            }
        }
    }

    /// Returns the share, without processes that the owner may have only once other jobs of it have fewer.
    fn within_part(&self, id: VisitId, share: Share) -> Share {
        let Visit { owner, share: before, .. } = &self.visits[&id];
        let Some(part) = self.parts.of(owner) else { return share };
        let is_other = |other: &VisitId, visit: &Visit| *other != id && visit.owner == *owner;
        let others =
            self.visits.iter().filter(|(other, visit)| is_other(other, visit) && visit.stage == Stage::Working);
        let has = |visit: &Visit| visit.share.processes.max(u32::try_from(visit.processes).unwrap_or(u32::MAX));
        let of_others = others.map(|(_, visit)| has(visit)).fold(0, u32::saturating_add);
        let processes = share.processes.min(part.saturating_sub(of_others).max(before.processes));
        if processes == 0 { Share::default() } else { Share { processes, ..share } }
    }

    fn share(&mut self, id: VisitId, share: Share) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        let share = Share { number: visit.share.number, ..share };
        if share == visit.share {
            return;
        }
        let share = Share { number: share.number + 1, ..share };
        visit.served_since = visit.served_since.filter(|_| share.processes > 0);
        visit.in_use.extend(&share.gpus);
        visit.share = share.clone();
        self.act(Action::Share { visit: id, share });
    }

    fn begin_or_leave(&mut self, id: VisitId) {
        let Some(visit) = self.visits.get_mut(&id) else { return };
        match visit.stage {
            Stage::Ready if visit.share.processes > 0 => {
                visit.stage = Stage::Working;
                visit.processes = visit.share.processes as usize;
                self.act(Action::Work(id));
            }
            Stage::Ready if !std::mem::replace(&mut visit.wait.is_logged, true) => {
                self.log(id, false, format!("the job waits: {}", self.waits_for(id)));
            }
            Stage::Working if visit.share.processes == 0 && visit.processes == 0 && visit.in_use.is_empty() => {
                let why = if visit.gives_way { "other jobs wait" } else { "other jobs have the GPUs of this node" };
                self.leave(id, why, Stop::Finish);
            }
            _ => {}
        }
    }

    /// Moves jobs that have had GPUs for their turn behind those that wait for one.
    fn end_turns(&mut self, now: Instant) {
        let at_work = || self.visits.iter().filter(|(_, visit)| visit.claims(now).is_some_and(|claim| claim.has_work));
        let waiting = match self.config.capacity.gpus {
            0 => 0,
            gpus => at_work().count().saturating_sub(gpus as usize),
        };
        let over = at_work().filter_map(|(id, visit)| Some((Self::had_its_turn_since(visit, TURN, now)?, *id)));
        let mut over: Vec<(Instant, VisitId)> = over.collect();
        over.sort_unstable();
        for (_, id) in over.into_iter().take(waiting) {
            if let Some(claim) = self.visits.get_mut(&id).and_then(|visit| visit.claim.as_mut()) {
                claim.turn = self.next_turn;
                self.next_turn += 1;
            }
        }
    }

    /// Does what is due while a job waits for a GPU. Returns whether the wait has ended.
    pub(super) fn tick_wait(&mut self, id: VisitId, now: Instant) -> bool {
        let job_idle = self.config.periods.job_idle;
        let Some(visit) = self.visit_in(id, Stage::Ready) else { return false };
        if std::mem::take(&mut visit.again) {
            visit.wait.heard_at = Some(now);
        }
        let Wait { since, heard_at, tell_at, return_at, .. } = visit.wait;
        if visit.seat.is_some() && since.is_some_and(|since| now - since >= SEAT_WAIT_MAX) {
            // Another node may have a GPU for it.
            visit.memory.turn = visit.claim.map(|claim| claim.turn);
            self.turn_away(id, now);
            return true;
        }
        if heard_at.is_some_and(|at| now - at >= job_idle) {
            self.leave(id, "no message of it has arrived for a while", Stop::Finish);
            return true;
        }
        if return_at.is_none_or(|at| at <= now) {
            visit.wait.return_at = Some(now + RETURN_EVERY);
            let delay = self.turned_away_delay();
            self.run(id, Errand::GiveBack { delay });
        }
        if let Some(since) = since.filter(|_| tell_at.is_some_and(|at| at <= now)) {
            let detail = self.waits_for(id);
            if let Some(visit) = self.visits.get_mut(&id) {
                visit.wait.tell_at = Some(now + NOTICE_AGAIN);
                visit.wait.is_told = true;
            }
            self.run(id, Errand::TellWait { waited: now - since, detail });
        }
        false
    }

    /// Ends a wait for processes without any.
    pub(super) fn end_wait(&mut self, id: VisitId) {
        let Some(visit) = self.visit_in(id, Stage::Ready) else { return };
        if visit.wait.is_told {
            visit.stage = Stage::TellingEnd;
            self.run(id, Errand::TellEnd);
        } else {
            self.leave_seat(id);
        }
    }

    /// Returns what a job waits for that is ready and has no processes.
    fn waits_for(&self, id: VisitId) -> String {
        match self.config.capacity.gpus {
            0 => self.part_in_words(id),
            1 => "other jobs use the GPU of this node".to_owned(),
            gpus => format!("other jobs use the {gpus} GPUs of this node"),
        }
    }
}
