//! The other nodes of the job. Decides which mini-batches this node leaves to them, and when it
//! leaves the job altogether.
//!
//! A mini-batch that has failed here is tried on another node first, if one works on the job that has not failed it: the
//! descriptor names the nodes that have. This node holds its message for a second and returns it, a few times. A node on
//! which attempts fail in a row is *in doubt*: it does so for as long as others work, and a failure there is not the last
//! one of a mini-batch that another node may still try. If the reducer says that attempts succeed on others, the node
//! stops working on the job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use protocol::{AttemptStatus, Descriptor, Ending, Members};

use super::{Scheduler, Stop, Timestamp};

/// Different mini-batches in a row that fail on a node in doubt.
const DOUBT: usize = 3;
/// How often a node that is not in doubt leaves the same try of a mini-batch to others.
const LEFT_MAX: u32 = 10;
/// How long a node without a success waits until others are known, from its first failure.
const UNKNOWN_FOR: Duration = Duration::from_secs(15);
/// The time beyond the limit of an attempt for which a node counts as alive: the reducer reports
/// its attempts with a delay.
const SILENCE: Duration = Duration::from_secs(60);

/// The facts about other nodes, and about failures here.
#[derive(Debug, Default)]
pub(super) struct PeerNodes {
    /// The others that work on the job.
    working: BTreeMap<String, PeerNode>,
    /// When the first attempt failed here.
    failed_at: Option<Instant>,
    has_succeeded: bool,
    /// Different mini-batches that have failed here since the last success, a few of them.
    failed: BTreeSet<u64>,
    /// Others may soon be known: nothing has succeeded here, and the first failure was a moment ago.
    may_be_unknown: bool,
    /// The reducer has named the nodes that work on the job.
    is_told: bool,
    /// Why this node must not work on the job: it tries it again, until the first failure.
    excluded: Option<String>,
}

#[derive(Debug)]
struct PeerNode {
    /// The number of its attempts, and when that number was reached.
    ended: u64,
    since: Instant,
    /// It must be dead.
    is_silent: bool,
}

impl PeerNodes {
    /// Notes the end of an attempt here.
    pub(super) fn attempt_ended(
        &mut self,
        mini_batch: u64,
        has_result: bool,
        is_alone: bool,
        now: Instant,
    ) {
        if has_result {
            (self.has_succeeded, self.may_be_unknown, self.excluded) = (true, false, None);
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
        let seen = |(other, ended): (String, u64)| {
            let (since, is_silent) = match known.get(&other) {
                Some(before) if before.ended == ended => (before.since, before.is_silent),
                _ => (now, false),
            };
            (other, PeerNode { ended, since, is_silent })
        };
        self.working = others.map(seen).collect();
    }

    /// Notes which nodes must be dead.
    pub(super) fn tick(&mut self, limit: Duration, now: Instant) {
        for other in self.working.values_mut() {
            other.is_silent = now.saturating_duration_since(other.since) > limit + SILENCE;
        }
        self.may_be_unknown &=
            self.failed_at.is_some_and(|at| now.saturating_duration_since(at) <= UNKNOWN_FOR);
    }

    fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    fn is_in_doubt(&self) -> bool {
        self.failed.len() >= DOUBT || self.excluded.is_some()
    }

    /// Returns the number of known nodes that have not failed the mini-batch and may try it.
    fn that_may_try(&self, descriptor: &Descriptor) -> u32 {
        let may = |(name, other): &(&String, &PeerNode)| {
            !other.is_silent && !descriptor.failed_on.contains(name)
        };
        u32::try_from(self.working.iter().filter(may).count()).unwrap_or(u32::MAX)
    }
}

impl Scheduler {
    /// Whether the node should read which nodes work on the job: it has just begun, or something has failed here.
    pub fn asks_for_members(&self) -> bool {
        !self.config.is_alone && (self.others.failed_at.is_some() || !self.others.is_told)
    }

    /// Notes which nodes work on the job, and leaves it if this one must not.
    pub(super) fn set_members(&mut self, mut members: Members, now: Timestamp) {
        let node = self.config.node.clone();
        // The reducer may not know the first success of this node yet.
        let excluded = members
            .excluded
            .remove(&node)
            .filter(|_| !self.others.has_succeeded || self.others.has_failed());
        (self.others.is_told, self.others.excluded) = (true, excluded);
        self.others.learn(members, &node, now.instant);
        self.leave_if_excluded(now);
    }

    /// Stops the work on a job from which this node is excluded, unless nothing has failed since it began.
    fn leave_if_excluded(&mut self, now: Timestamp) {
        if self.stopping.is_working()
            && self.others.has_failed()
            && let Some(why) = &self.others.excluded
        {
            let message =
                format!("this node must not work on the job: {why}; leaving it to others");
            self.log("ERROR", message);
            self.stop(Stop::Drain, now);
        }
    }

    /// Notes the end of an attempt, or of the run of a range, which is no attempt.
    pub(super) fn compare(
        &mut self,
        mini_batch: u64,
        ending: &Ending,
        is_range: bool,
        now: Timestamp,
    ) {
        let has_result = ending.status == AttemptStatus::Succeeded
            && (ending.returned > 0 || ending.failed_items.is_empty());
        // A range fails because of its items. Of a mini-batch lost with other nodes, this one is not to blame.
        if has_result || !is_range && ending.status != AttemptStatus::LostTooOften {
            self.others.attempt_ended(mini_batch, has_result, self.config.is_alone, now.instant);
            self.leave_if_excluded(now);
        }
    }

    /// Whether this node, which is in doubt, leaves the further tries of a mini-batch to others, even if none is left. A
    /// mini-batch gets one more try for each other node that may take it, and one for nodes that may soon be known. The
    /// number has a bound because some of these nodes may be dead.
    pub(super) fn leaves_tries_to_others(&self, descriptor: &Descriptor) -> bool {
        let beyond =
            descriptor.tries_spent.saturating_add(1).saturating_sub(self.config.spec.run_max_try);
        let others = self.others.that_may_try(descriptor) + u32::from(self.others.may_be_unknown);
        !descriptor.copy && self.others.is_in_doubt() && beyond < others
    }

    /// Whether another node should try a mini-batch first that this one has received.
    pub(super) fn is_for_another_node(&mut self, descriptor: &Descriptor) -> bool {
        self.stopping.is_working()
            && !descriptor.copy
            && descriptor.failed_on.contains(&self.config.node)
            && !self.has_untried_gpus(descriptor.mini_batch)
            && (self.others.that_may_try(descriptor) > 0 || self.others.may_be_unknown)
            && (self.others.is_in_doubt()
                || self.others.may_be_unknown
                || self.tried.leave(descriptor, LEFT_MAX))
    }
}
