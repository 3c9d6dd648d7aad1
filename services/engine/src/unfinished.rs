//! Finds the mini-batches of a job that must still be published.

use std::collections::{BTreeMap, HashMap};

use partitioner::Pending;
use protocol::JobSpec;
use reducer::{BegunRound, Tally};

/// Mini-batches that must still be published, with the tries that they have used.
#[derive(Debug)]
pub struct Unfinished {
    /// Whether a mini-batch needs no message, for those with an attempt. A byte for each is little beside the tally.
    ended: Vec<bool>,
    /// Others that have used tries or lost deliveries, or run again.
    pending: BTreeMap<u64, Pending>,
    interrupted: u64,
    retrying: u64,
    /// Mini-batches of the whole job; `None`: not all are known.
    planned: Option<u64>,
}

impl Unfinished {
    /// Returns everything, for a new job. `planned`: the number of its mini-batches, if it is known.
    pub fn all(planned: Option<u64>) -> Self {
        Self { ended: vec![], pending: BTreeMap::new(), interrupted: 0, retrying: 0, planned }
    }

    /// Returns the number of mini-batches that have not ended, if it is known.
    pub fn count(&self) -> Option<u64> {
        self.planned.map(|planned| planned - self.ended_before(planned))
    }

    fn ended_before(&self, end: u64) -> u64 {
        self.ended.iter().zip(0..end).filter(|(ended, _)| **ended).count() as u64
    }

    /// Returns the mini-batches that have not ended by the tally. `interrupted`: those that lost nodes were running, with
    /// their lost deliveries.
    pub fn new(tally: &Tally, interrupted: HashMap<u64, u32>) -> Self {
        let mut unfinished = Self::all(tally.planned().map(|planned| planned.mini_batches));
        let seen = tally.seen();
        unfinished.ended = (0..seen).map(|seen| tally.state(seen).has_ended()).collect();
        let open = (0..seen).filter(|seen| !tally.state(*seen).has_ended());
        let unseen = interrupted.keys().copied().filter(|mini_batch| *mini_batch >= seen);
        for mini_batch in open.chain(unseen) {
            unfinished.add(tally, mini_batch, interrupted.get(&mini_batch).copied());
        }
        unfinished
    }

    /// Adds a mini-batch that has not ended, unless it is as planned. `lost`: its lost deliveries if a lost node was running
    /// it.
    fn add(&mut self, tally: &Tally, mini_batch: u64, lost: Option<u32>) {
        let pending = Pending {
            tries_spent: tally.tries_spent(mini_batch),
            deliveries_lost: lost.unwrap_or_else(|| tally.deliveries_lost(mini_batch)),
            again: tally.again(mini_batch),
        };
        if pending.again.is_none() && (pending.tries_spent > 0 || pending.deliveries_lost > 0) {
            self.interrupted += u64::from(lost.is_some());
            self.retrying += u64::from(lost.is_none());
        }
        if pending != Pending::default() {
            self.pending.insert(mini_batch, pending);
        }
    }

    /// Returns what the message of a mini-batch adds to its plan; `None`: it needs no message.
    pub fn pending(&self, mini_batch: u64) -> Option<Pending> {
        let has_ended = usize::try_from(mini_batch).ok().and_then(|at| self.ended.get(at));
        let needs_message = !has_ended.copied().unwrap_or_default();
        needs_message.then(|| self.pending.get(&mini_batch).cloned().unwrap_or_default())
    }

    /// Counts the mini-batches of an earlier run that are kept, and those that run again. `round`: the failed ones and rejected
    /// items that run again.
    pub fn explain(
        &self,
        tally: &Tally,
        spec: &JobSpec,
        round: Option<BegunRound>,
    ) -> Continuation {
        let named = self.ended_before(u64::MAX) + self.pending.len() as u64;
        let mini_batches = tally.mini_batches();
        let begun = round.as_ref().map(|_| tally.rounds());
        let of_earlier_rounds = |is_partial: bool| {
            let again = self.pending.values().filter_map(|pending| pending.again.as_ref());
            let left = again.filter(|again| Some(u64::from(again.round)) != begun);
            left.filter(|again| again.kept.is_some() == is_partial).count() as u64
        };
        Continuation {
            job_id: spec.job_id.clone(),
            committed: mini_batches.succeeded,
            failed: mini_batches.failed,
            interrupted: self.interrupted,
            retrying: self.retrying,
            again: of_earlier_rounds(false),
            partial: of_earlier_rounds(true),
            others: self.planned.map(|planned| planned.saturating_sub(named)),
            round: round.unwrap_or_default(),
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
    /// Failed, and do not run again.
    pub failed: u64,
    /// Interrupted with their node.
    pub interrupted: u64,
    /// Failed a try, and have tries left.
    pub retrying: u64,
    /// An earlier round has begun to run them again.
    pub again: u64,
    /// An earlier round has begun to run their rejected items again.
    pub partial: u64,
    /// All others, without an attempt that has ended; `None`: not all are planned.
    pub others: Option<u64>,
    /// The ended work that runs again.
    pub round: BegunRound,
    /// Number of times that a mini-batch may be lost with its node.
    pub lost_delivery_max: u32,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::{AttemptStatus, Planned, ResultEvent};

    use super::*;
    use crate::history::tests::attempt;

    /// Mini-batches of the jobs of these tests: more than a chunk of the plan has.
    const MINI_BATCHES: u64 = 600;

    /// An attempt of a mini-batch: its number, the number of the try, lost deliveries, and whether it succeeds.
    fn attempts() -> impl Strategy<Value = Vec<(u64, u32, u32, bool)>> {
        proptest::collection::vec((0..MINI_BATCHES, 1u32..4, 0u32..3, any::<bool>()), 0..60)
    }

    fn tally(attempts: &[(u64, u32, u32, bool)], planned: bool) -> Tally {
        let mut tally = Tally::default();
        for &(mini_batch, try_number, deliveries_lost, succeeds) in attempts {
            let status = if succeeds { AttemptStatus::Succeeded } else { AttemptStatus::RunRaised };
            let is_final = succeeds || try_number == 3;
            let attempt = attempt(mini_batch, try_number, status, is_final);
            tally.apply(&ResultEvent::Attempt(Box::new(protocol::Attempt {
                deliveries_lost,
                ..attempt
            })));
        }
        if planned {
            tally.apply(&ResultEvent::Planned(Planned { mini_batches: MINI_BATCHES, items: None }));
        }
        tally
    }

    proptest! {
        #[test]
        fn every_open_mini_batch_needs_a_message(
            attempts in attempts(),
            planned in any::<bool>(),
            interrupted in proptest::collection::hash_map(0..MINI_BATCHES, 1u32..4, 0..10),
        ) {
            let tally = tally(&attempts, planned);
            let unfinished = Unfinished::new(&tally, interrupted.clone());
            let has_ended = |one: u64| tally.state(one).has_ended();
            let model = |one: u64| {
                let lost = interrupted.get(&one).copied();
                let pending = Pending {
                    tries_spent: tally.tries_spent(one),
                    deliveries_lost: lost.unwrap_or_else(|| tally.deliveries_lost(one)),
                    again: None,
                };
                (!has_ended(one)).then_some(pending)
            };
            let all = 0..MINI_BATCHES + 2;
            for one in all.clone() {
                prop_assert_eq!(unfinished.pending(one), model(one), "mini-batch {}", one);
            }
            let known = planned.then(|| all.clone().filter(|one| *one < MINI_BATCHES && !has_ended(*one)).count() as u64);
            prop_assert_eq!(unfinished.count(), known);
            let spec = JobSpec::example();
            let told = unfinished.explain(&tally, &spec, None);
            let has_used = |one: &u64| model(*one).is_some_and(|pending| pending != Pending::default());
            let is_interrupted = |one: &u64| has_used(one) && interrupted.contains_key(one);
            prop_assert_eq!(told.interrupted, all.clone().filter(is_interrupted).count() as u64);
            prop_assert_eq!(told.interrupted + told.retrying, all.clone().filter(has_used).count() as u64);
        }
    }
}
