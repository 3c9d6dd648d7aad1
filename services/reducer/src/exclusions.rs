//! Decides which nodes must not work on a job, because their attempts fail where those of others
//! succeed. Pure, and part of the tally: a restarted reducer decides the same.
//!
//! A node is compared with each other node over the attempts since its own last success. It is
//! excluded if ten different mini-batches have failed on it in a row, and if a node that is no
//! worse than the other would almost never have all the failures and none of the successes. A
//! mini-batch that has failed on another node, too, counts against neither, because its data may be
//! to blame, until it succeeds on a third one. So a job that fails everywhere excludes no node, nor
//! does a lone node exclude itself, and of several nodes at least one remains: while it alone has
//! attempts, no other can outdo it.

use std::collections::{BTreeMap, BTreeSet};

use protocol::Members;

/// Different mini-batches in a row that must have failed on a node.
const FAILURES_MIN: usize = 10;
/// More failures add no evidence.
const FAILURES_MAX: usize = 64;
/// Mini-batches that have failed on several nodes, of which these are remembered.
const FAILED_ON_SEVERAL_MAX: usize = 10_000;
/// The chance with which a node is excluded although it is no worse than another. It is so small because a reducer asks
/// after each attempt, of each pair of nodes.
const CHANCE: f64 = 1e-6;

/// The nodes whose latest attempts have failed, with the attempts of other nodes in the meantime.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exclusions {
    /// By node.
    streaks: BTreeMap<String, Streak>,
    /// Attempts that have ended on each node while any had a streak.
    ended: BTreeMap<String, u64>,
    /// The nodes on which a mini-batch has failed, if there are several. Of very many, some count against no node.
    failed_on_several: BTreeMap<u64, BTreeSet<String>>,
}

/// The failures of a node since its last success.
#[derive(Clone, Debug, Default)]
struct Streak {
    /// Mini-batches that have failed on no other node, or succeeded on a third one.
    failed: BTreeSet<u64>,
    /// The attempts of other nodes since the first of them, until the node is excluded.
    others: BTreeMap<String, Ended>,
    is_excluded: bool,
}

/// Attempts that have ended on a node.
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    succeeded: u64,
    failed: u64,
}

impl Streak {
    fn add(&mut self, mini_batch: u64) {
        if self.failed.len() < FAILURES_MAX {
            self.failed.insert(mini_batch);
        }
    }

    /// Returns the evidence against the node: another node, and its attempts.
    fn evidence(&self) -> Option<(&str, Ended)> {
        let failed = self.failed.len();
        let outdoes = |(_, other): &(&String, &Ended)| chance(failed, **other) < CHANCE;
        let (node, ended) = self.others.iter().filter(|_| failed >= FAILURES_MIN).find(outdoes)?;
        Some((node, *ended))
    }
}

/// Returns the chance that one of two equal nodes has this many failures and no success, if both together have these
/// failures and successes: Fisher's exact test.
fn chance(failed: usize, other: Ended) -> f64 {
    let all = failed as f64 + other.succeeded as f64 + other.failed as f64;
    let all_failed = failed as f64 + other.failed as f64;
    (0..failed)
        .map(|drawn| drawn as f64)
        .map(|drawn| (all_failed - drawn) / (all - drawn))
        .product()
}

impl Exclusions {
    /// Notes that an attempt on a node has succeeded.
    pub fn succeeded(&mut self, node: &str, mini_batch: u64) {
        // The usual case: nothing has failed.
        if self.streaks.is_empty() {
            return;
        }
        self.streaks.remove(node);
        for failed in self.failed_on_several.remove(&mini_batch).unwrap_or_default() {
            if let Some(streak) = self.streaks.get_mut(&failed) {
                streak.add(mini_batch);
            }
        }
        self.ended(node, |other| other.succeeded += 1);
        if self.streaks.is_empty() {
            self.failed_on_several.clear();
        }
    }

    /// Notes that an attempt on a node has failed.
    pub fn failed(&mut self, node: &str, mini_batch: u64) {
        self.streaks.entry(node.to_owned()).or_default();
        let mut several = self.failed_on_several.remove(&mini_batch).unwrap_or_default();
        for (other, streak) in self.streaks.iter_mut().filter(|(other, _)| *other != node) {
            if streak.failed.remove(&mini_batch) {
                several.insert(other.clone());
                streak.is_excluded &= streak.evidence().is_some();
            }
        }
        if several.is_empty() {
            self.streaks.get_mut(node).expect("just added").add(mini_batch);
        } else if self.failed_on_several.len() < FAILED_ON_SEVERAL_MAX {
            several.insert(node.to_owned());
            self.failed_on_several.insert(mini_batch, several);
        }
        self.ended(node, |other| other.failed += 1);
    }

    fn ended(&mut self, node: &str, count: impl Fn(&mut Ended)) {
        match self.ended.get_mut(node) {
            Some(ended) => *ended += 1,
            None => drop(self.ended.insert(node.to_owned(), 1)),
        }
        for (_, streak) in
            self.streaks.iter_mut().filter(|(on, streak)| *on != node && !streak.is_excluded)
        {
            match streak.others.get_mut(node) {
                Some(other) => count(other),
                None => count(streak.others.entry(node.to_owned()).or_default()),
            }
            streak.is_excluded = streak.evidence().is_some();
        }
    }

    /// Returns the nodes that must not work on the job, and the evidence in a sentence.
    pub fn excluded(&self) -> impl Iterator<Item = (&str, String)> {
        let excluded = self.streaks.iter().filter(|(_, streak)| streak.is_excluded);
        excluded.filter_map(|(node, streak)| {
            let (other, ended) = streak.evidence()?;
            let failed = match streak.failed.len() {
                FAILURES_MAX => format!("at least {FAILURES_MAX}"),
                failed => failed.to_string(),
            };
            let succeeded = ended.succeeded;
            let all = succeeded + ended.failed;
            Some((
                node.as_str(),
                format!(
                    "{failed} mini-batches in a row failed there, and {succeeded} of {all} attempts on node {other} \
                     succeeded in the meantime"
                ),
            ))
        })
    }

    /// Returns the members for the nodes, given those that work on the job.
    pub fn members<'a>(&self, working: impl Iterator<Item = &'a str>) -> Members {
        let ended =
            |node: &'a str| (node.to_owned(), self.ended.get(node).copied().unwrap_or_default());
        let excluded: BTreeMap<_, _> =
            self.excluded().map(|(node, why)| (node.to_owned(), why)).collect();
        Members {
            working: working.filter(|node| !excluded.contains_key(*node)).map(ended).collect(),
            excluded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the excluded nodes.
    fn excluded(exclusions: &Exclusions) -> Vec<&str> {
        exclusions.excluded().map(|(node, _)| node).collect()
    }

    #[test]
    fn node_that_fails_where_another_succeeds_is_excluded() {
        let mut exclusions = Exclusions::default();
        for mini_batch in 0..40 {
            exclusions.failed("bad", mini_batch);
            exclusions.succeeded("good", 100_000 + mini_batch);
            let is_excluded = exclusions.excluded().next().is_some();
            assert!(is_excluded == (mini_batch >= 11), "after {mini_batch}");
        }
        let (node, why) = exclusions.excluded().next().expect("it fails");
        let evidence = "40 mini-batches in a row failed there, and 12 of 12 attempts on node good succeeded in the meantime";
        assert_eq!((node, &*why), ("bad", evidence));
        let members = exclusions.members(["bad", "good"].into_iter());
        assert_eq!(members.working.into_iter().collect::<Vec<_>>(), [("good".to_owned(), 40)]);
        assert_eq!(members.excluded.len(), 1);
        exclusions.succeeded("bad", 50);
        assert!(excluded(&exclusions).is_empty(), "it works again");
    }

    #[test]
    fn lone_node_and_nodes_that_fail_alike_are_not_excluded() {
        let mut exclusions = Exclusions::default();
        (0..1000).for_each(|mini_batch| exclusions.failed("lone", mini_batch));
        assert!(excluded(&exclusions).is_empty());
        for mini_batch in 1000..3000 {
            exclusions.failed(if mini_batch % 2 == 0 { "lone" } else { "other" }, mini_batch);
        }
        assert!(excluded(&exclusions).is_empty());
    }

    #[test]
    fn bad_data_exclude_no_node() {
        // Nine of ten mini-batches are bad, wherever they run.
        let mut exclusions = Exclusions::default();
        for mini_batch in 0..20_000u64 {
            // SplitMix64: as good as dice.
            let mixed = (mini_batch + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let node = ["0", "1", "2"][(mixed >> 33) as usize % 3];
            match (mixed >> 8) % 10 {
                0 => exclusions.succeeded(node, mini_batch),
                _ => exclusions.failed(node, mini_batch),
            }
            assert!(excluded(&exclusions).is_empty(), "after {mini_batch}");
        }
    }

    #[test]
    fn bad_mini_batches_that_one_node_got_count_against_it_until_they_fail_elsewhere() {
        let mut exclusions = Exclusions::default();
        (0..20).for_each(|mini_batch| exclusions.failed("unlucky", mini_batch));
        (100..120).for_each(|mini_batch| exclusions.succeeded("other", mini_batch));
        assert_eq!(excluded(&exclusions), ["unlucky"]);
        (0..11).for_each(|mini_batch| exclusions.failed("other", mini_batch));
        assert!(excluded(&exclusions).is_empty());
    }

    #[test]
    fn node_that_fails_every_tenth_mini_batch_is_not_excluded() {
        let mut exclusions = Exclusions::default();
        for mini_batch in 0..5000 {
            exclusions.succeeded("good", 100_000 + mini_batch);
            match mini_batch % 10 {
                0 => exclusions.failed("flaky", mini_batch),
                _ => exclusions.succeeded("flaky", mini_batch),
            }
            assert!(excluded(&exclusions).is_empty(), "after {mini_batch}");
        }
    }

    #[test]
    fn two_bad_nodes_do_not_hide_each_other_and_the_last_good_one_stays() {
        let mut exclusions = Exclusions::default();
        for mini_batch in 0..400 {
            exclusions.failed(if mini_batch % 2 == 0 { "bad" } else { "worse" }, mini_batch);
            if mini_batch % 10 == 0 {
                exclusions.succeeded("good", 100_000 + mini_batch);
            }
        }
        assert_eq!(excluded(&exclusions), ["bad", "worse"]);
        (1000..2000).for_each(|mini_batch| exclusions.failed("good", mini_batch));
        assert_eq!(excluded(&exclusions), ["bad", "worse"], "only it has attempts");
    }

    #[test]
    fn mini_batch_that_fails_on_two_nodes_counts_against_both_once_it_succeeds_on_a_third() {
        let mut exclusions = Exclusions::default();
        for mini_batch in 0..40 {
            exclusions.failed("bad", mini_batch);
            exclusions.failed("worse", mini_batch);
        }
        (100..140).for_each(|mini_batch| exclusions.succeeded("good", mini_batch));
        assert!(excluded(&exclusions).is_empty(), "the data may be bad");
        (0..40).for_each(|mini_batch| exclusions.succeeded("good", mini_batch));
        assert_eq!(excluded(&exclusions), ["bad", "worse"]);
    }

    #[test]
    fn few_failures_exclude_no_node_whatever_others_do() {
        let mut exclusions = Exclusions::default();
        (0..9).for_each(|mini_batch| exclusions.failed("0", mini_batch));
        (100..10_000).for_each(|mini_batch| exclusions.succeeded("1", mini_batch));
        assert!(excluded(&exclusions).is_empty());
    }
}
