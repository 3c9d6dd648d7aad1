//! How many processes each job has: divided again whenever a job arrives, leaves, gets work or has none any more.

use std::sync::Arc;
use std::time::Duration;

use protocol::Priority;
use tokio::time::Instant;

use super::visit::{Stage, Visit};
use super::{Action, Parts, Roster, Share, VisitId};
use crate::node::shares::Claim;
use crate::stop::Stop;

/// A job has no work once no message of it has been here for this long: its next ones may be on their way.
pub(super) const IDLE_AFTER: Duration = Duration::from_secs(10);

impl Visit {
    /// Returns what the job claims now; `None`: no agent works on it, or the agent stops.
    fn claims(&self, now: Instant) -> Option<Claim> {
        let has_work = self.quiet_since.is_none_or(|since| now - since < IDLE_AFTER);
        let is_here = self.stage == Stage::Working && self.stop == Stop::No;
        self.claim.filter(|_| is_here).map(|claim| Claim { has_work, ..claim })
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

    /// Tells the agents whose shares have changed.
    pub(super) fn divide(&mut self, now: Instant) {
        let here = self.visits.iter().filter_map(|(id, visit)| {
            let claim = Claim { of_owner: self.part_of(&visit.owner), ..visit.claims(now)? };
            Some((*id, claim, visit.share.clone()))
        });
        let (ids, claims, before): (Vec<VisitId>, Vec<Claim>, Vec<Share>) = here.collect();
        let shares = self.config.capacity.shares(&claims, &before);
        for ((id, before), share) in ids.into_iter().zip(before).zip(shares) {
            if share != before
                && let Some(visit) = self.visits.get_mut(&id)
            {
                visit.share = share.clone();
                self.act(Action::Share { visit: id, share });
            }
        }
    }
}
