//! The mini-batches of a job that must still be published, and why.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use partitioner::Pending;
use protocol::JobSpec;
use reducer::{MiniBatchState, Tally};

/// Mini-batches that must still be published, with the tries that they have used.
#[derive(Debug)]
pub struct Unfinished {
    /// Mini-batches that are not simply pending; `None`: needs no message.
    known: BTreeMap<u64, Option<Pending>>,
    interrupted: usize,
    retrying: usize,
    /// Mini-batches of the whole job; `None`: not all are known.
    planned: Option<u64>,
    /// Which of them; `None`: all.
    needed: Option<Needed>,
}

/// Mini-batches that need a message.
#[derive(Debug, Default)]
pub struct Needed {
    /// This one and all later ones
    pub from: u64,
    /// except for these,
    pub except: HashSet<u64>,
    /// and these.
    pub others: BTreeSet<u64>,
}

impl Unfinished {
    /// Returns everything, for a new job.
    pub fn all() -> Self {
        Self { known: BTreeMap::new(), interrupted: 0, retrying: 0, planned: None, needed: None }
    }

    /// Returns nothing, for a job without mini-batches that need a message.
    pub fn none() -> Self {
        Self { needed: Some(Needed { from: u64::MAX, ..Needed::default() }), ..Self::all() }
    }

    /// Leaves out all others, which are in flight.
    pub fn publish_only(&mut self, needed: Needed) {
        self.needed = Some(needed);
    }

    /// Sets the number of all mini-batches, which the reducer may not know yet.
    pub fn expect(&mut self, mini_batches: u64) {
        self.planned.get_or_insert(mini_batches);
    }

    /// Returns the mini-batches that have not ended, as far as they are known.
    pub fn unended(&self) -> impl Iterator<Item = u64> {
        let ended = |mini_batch: &u64| self.known.get(mini_batch).is_some_and(Option::is_none);
        (0..self.planned.unwrap_or(0)).filter(move |mini_batch| !ended(mini_batch))
    }

    /// Returns the number of mini-batches that have not ended, if it is known.
    pub fn count(&self) -> Option<u64> {
        self.planned.map(|_| self.unended().count() as u64)
    }

    /// Returns the mini-batches that have not ended by the tally. `interrupted`: those that lost nodes were running, with
    /// their lost deliveries.
    pub fn new(tally: &Tally, interrupted: HashMap<u64, u32>) -> Self {
        let mut unfinished = Self { planned: tally.planned().map(|planned| planned.mini_batches), ..Self::all() };
        let seen = unfinished.planned.unwrap_or(0);
        let seen = seen.max(tally.seen()).max(interrupted.keys().max().map_or(0, |last| last + 1));
        for mini_batch in 0..seen {
            let pending = match tally.state(mini_batch) {
                MiniBatchState::Succeeded | MiniBatchState::Failed => None,
                MiniBatchState::Pending | MiniBatchState::Retrying => {
                    let lost = interrupted.get(&mini_batch).copied();
                    let pending = Pending {
                        tries_spent: tally.tries_spent(mini_batch),
                        deliveries_lost: lost.unwrap_or_else(|| tally.deliveries_lost(mini_batch)),
                    };
                    if pending == Pending::default() {
                        continue;
                    }
                    unfinished.interrupted += usize::from(lost.is_some());
                    unfinished.retrying += usize::from(lost.is_none());
                    Some(pending)
                }
            };
            unfinished.known.insert(mini_batch, pending);
        }
        unfinished
    }

    pub fn pending(&self, mini_batch: u64) -> Option<Pending> {
        if let Some(Needed { from, except, others }) = &self.needed
            && !others.contains(&mini_batch)
            && (mini_batch < *from || except.contains(&mini_batch))
        {
            return None;
        }
        self.known.get(&mini_batch).copied().unwrap_or(Some(Pending::default()))
    }

    /// Counts the mini-batches of an earlier run that are kept, and those that run again.
    pub fn explain(&self, spec: &JobSpec, committed: u64, announced: u64, failed: u64, reopened: bool) -> Continuation {
        let named = self.known.len() as u64 + if reopened { failed } else { 0 };
        Continuation {
            job_id: spec.job_id.clone(),
            committed,
            announced,
            failed,
            reopened,
            incomplete: 0,
            interrupted: self.interrupted as u64,
            retrying: self.retrying as u64,
            untried: self.planned.map(|planned| planned.saturating_sub(named)),
            none_tried: named == 0,
            lost_delivery_max: spec.lost_delivery_max,
        }
    }
}

/// How a job continues an earlier run, in numbers of mini-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The job.
    pub job_id: String,
    /// Succeeded and committed.
    pub committed: u64,
    /// Succeeded in the earlier run, and committed only now.
    pub announced: u64,
    /// Failed.
    pub failed: u64,
    /// The failed ones run again.
    pub reopened: bool,
    /// Succeeded without some of their items, and run again, because the job would fail again at once otherwise.
    pub incomplete: u64,
    /// Interrupted with their node.
    pub interrupted: u64,
    /// Failed a try, and have tries left.
    pub retrying: u64,
    /// Not tried yet; `None`: not all are planned.
    pub untried: Option<u64>,
    /// No mini-batch has been tried.
    pub none_tried: bool,
    /// Number of times that a mini-batch may be lost with its node.
    pub lost_delivery_max: u32,
}

impl Continuation {
    /// Adds successes that run again.
    pub(crate) fn with_incomplete(self, incomplete: u64) -> Self {
        let untried = self.untried.map(|untried| untried.saturating_sub(incomplete));
        Self { incomplete, untried, none_tried: self.none_tried && incomplete == 0, ..self }
    }
}
