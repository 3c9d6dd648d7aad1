//! The other nodes of the job: which mini-batches this node leaves to them, and when it leaves the job altogether.
//!
//! A mini-batch that has failed here is tried on another node first, if one works on the job that has not failed it: the
//! descriptor names the nodes that have. This node holds its message for a second and returns it, a few times. A node on
//! which attempts fail in a row is *in doubt*: it does so for as long as others work, and a failure there is not the last
//! one of a mini-batch that another node may still try. If the reducer says that attempts succeed on others, the node
//! stops working on the job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use protocol::{AttemptStatus, Descriptor, Ending, Members};

use super::{Moment, Scheduler, Stop};

/// Different mini-batches in a row that fail on a node in doubt.
const DOUBT: usize = 3;
/// How often a node that is not in doubt leaves the same try of a mini-batch to others.
const LEFT_MAX: u32 = 10;
/// How long a node on which nothing has succeeded waits for others to be known, from its first failure.
const UNKNOWN_FOR: Duration = Duration::from_secs(15);
/// How much longer than an attempt may take a node is believed to be alive: the reducer tells of its attempts with delay.
const SILENCE: Duration = Duration::from_secs(60);

/// What the node knows of others, and of itself.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// The others that work on the job, with their attempts, and since when these have not grown.
    working: BTreeMap<String, (u64, Instant)>,
    /// When the first attempt failed here.
    failed_at: Option<Instant>,
    has_succeeded: bool,
    /// Different mini-batches that have failed here since the last success, a few of them.
    failed: BTreeSet<u64>,
    /// Others may work on the job although none is known.
    may_be_unknown: bool,
}

impl Others {
    /// Notes the end of an attempt here.
    pub(super) fn attempt_ended(&mut self, mini_batch: u64, has_result: bool, is_alone: bool, now: Instant) {
        if has_result {
            (self.has_succeeded, self.may_be_unknown) = (true, false);
            self.failed.clear();
        } else {
            self.may_be_unknown |= self.failed_at.is_none() && !self.has_succeeded && !is_alone;
            self.failed_at.get_or_insert(now);
            if self.failed.len() < DOUBT {
                self.failed.insert(mini_batch);
            }
        }
    }

    fn learn(&mut self, members: Members, node: &str, now: Instant) {
        let others = members.working.into_iter().filter(|(other, _)| other != node);
        let known = std::mem::take(&mut self.working);
        self.working = others
            .map(|(other, ended)| match known.get(&other) {
                Some((before, since)) if *before == ended => (other, (ended, *since)),
                _ => (other, (ended, now)),
            })
            .collect();
    }

    /// Forgets nodes that must be dead.
    pub(super) fn tick(&mut self, limit: Duration, now: Instant) {
        self.working.retain(|_, (_, since)| now.saturating_duration_since(*since) <= limit + SILENCE);
        self.may_be_unknown &= self.failed_at.is_some_and(|at| now.saturating_duration_since(at) <= UNKNOWN_FOR);
    }

    fn is_in_doubt(&self) -> bool {
        self.failed.len() >= DOUBT
    }

    /// Whether a node that has not failed the mini-batch may try it.
    fn may_try(&self, descriptor: &Descriptor) -> bool {
        self.working.keys().any(|other| !descriptor.failed_on.contains(other))
            || self.working.is_empty() && self.may_be_unknown && self.is_in_doubt()
    }
}

impl Scheduler {
    /// Whether the node should read which nodes work on the job: something has failed here.
    pub fn asks_for_members(&self) -> bool {
        self.others.failed_at.is_some() && !self.config.is_alone
    }

    /// Notes which nodes work on the job, and leaves it if this one must not.
    pub(super) fn told_members(&mut self, mut members: Members, now: Moment) {
        let node = self.config.node.clone();
        let excluded = members.excluded.remove(&node);
        self.others.learn(members, &node, now.instant);
        // A success that the reducer has not seen speaks for the node.
        if let Some(why) = excluded.filter(|_| self.stopping.is_working() && !self.others.failed.is_empty()) {
            self.log("ERROR", format!("this node must not work on the job: {why}; leaving it to others"));
            self.stop(Stop::Drain, now);
        }
    }

    /// Notes the end of an attempt, or of the run of a range that is none.
    pub(super) fn compare(&mut self, mini_batch: u64, ending: &Ending, is_range: bool, now: Moment) {
        let has_result =
            ending.status == AttemptStatus::Succeeded && (ending.returned > 0 || ending.failed_items.is_empty());
        // A range fails because of its items. Of a mini-batch lost with other nodes, this one is not to blame.
        if has_result || !is_range && ending.status != AttemptStatus::LostTooOften {
            self.others.attempt_ended(mini_batch, has_result, self.config.is_alone, now.instant);
        }
    }

    /// Whether this node, which is in doubt, leaves the further tries of a mini-batch to others, however many it has spent.
    pub(super) fn leaves_tries_to_others(&self, descriptor: &Descriptor) -> bool {
        !descriptor.copy && self.others.is_in_doubt() && self.others.may_try(descriptor)
    }

    /// Whether another node should try a mini-batch first that this one has received.
    pub(super) fn is_for_another_node(&mut self, descriptor: &Descriptor) -> bool {
        self.stopping.is_working()
            && !descriptor.copy
            && descriptor.failed_on.contains(&self.config.node)
            && !self.has_untried_gpus(descriptor.mini_batch)
            && self.others.may_try(descriptor)
            && (self.others.is_in_doubt() || self.tried.leave(descriptor, LEFT_MAX))
    }
}
