//! How a node divides its processes, and its GPUs, among the jobs that are here. Pure: no I/O, no clock, no channels.
//!
//! A job that is alone has all the processes that it wants. Otherwise each job with work has one process, and the others
//! go one by one to the job that is furthest below its part by weight (the method of Sainte-Laguë), ties to the job that
//! came first. A job without work keeps one process, so that it can begin at once; it does not count.
//!
//! A node may run more processes than it divides: where more jobs have work than it has processes, because progress of
//! every job is worth more than the limit; and until runs that began under a larger share have ended, because no share
//! interrupts a run.

use std::collections::BTreeMap;

use protocol::JobSpec;

use crate::scheduler::Share;

/// What a node has for all its jobs together.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Processes of any job, whatever it asks for; `None`: as many as it asks for.
    pub process_count: Option<u32>,
    /// Processes of a job that asks for no number.
    pub process_count_default: u32,
    /// GPUs of the machine.
    pub gpus: u32,
}

/// What a job may claim of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub weight: u32,
    /// Processes that it has on a node of its own.
    pub wanted: u32,
    pub has_work: bool,
    /// A number that stands for the owner of the job, and the processes that all its jobs may have together.
    pub of_owner: Option<(usize, u32)>,
}

impl Capacity {
    /// Returns the number of processes of a job that asks for this many.
    pub fn process_count(&self, asked: Option<u32>) -> u32 {
        self.process_count.or(asked).unwrap_or(self.process_count_default)
    }

    /// Returns the number of processes that jobs divide.
    fn processes(&self) -> u32 {
        self.process_count.unwrap_or(self.process_count_default.max(self.gpus))
    }

    /// Returns the claim of a job that has work.
    pub fn claim(&self, spec: &JobSpec) -> Claim {
        let wanted = self.process_count(spec.process_count_per_node);
        let of_node = u64::from(self.processes().max(wanted));
        let part = spec.max_share.map_or(of_node, |percent| of_node * u64::from(percent) / 100);
        let wanted = wanted.min(u32::try_from(part).unwrap_or(u32::MAX)).max(1);
        Claim { weight: spec.priority.weight(), wanted, has_work: true, of_owner: None }
    }

    /// Returns the shares of jobs in the order of their arrival, given what they had.
    pub fn shares(&self, claims: &[Claim], before: &[Share]) -> Vec<Share> {
        let counts = self.divide(claims, &before.iter().map(|share| share.processes).collect::<Vec<_>>());
        let gpus = self.gpus_of(&counts, before);
        counts.into_iter().zip(gpus).map(|(processes, gpus)| Share { processes, gpus }).collect()
    }

    fn divide(&self, claims: &[Claim], before: &[u32]) -> Vec<u32> {
        let with_work = || claims.iter().filter(|claim| claim.has_work);
        // No job has work now, so no process starts or ends.
        if with_work().next().is_none() {
            return before.iter().map(|count| (*count).max(1)).collect();
        }
        let mut counts = vec![1; claims.len()];
        // With several jobs, a node runs no more than it would for the most demanding of them alone.
        let total = with_work().map(|claim| claim.wanted).fold(self.processes(), u32::max);
        let rest = total.saturating_sub(u32::try_from(with_work().count()).unwrap_or(u32::MAX));
        for _ in 0..rest {
            let may_have_more = |(owner, part): (usize, u32)| {
                let of_owner = claims.iter().zip(&counts).filter(|(claim, _)| claim.of_owner == Some((owner, part)));
                of_owner.map(|(_, count)| count).sum::<u32>() < part
            };
            let can_have_more = |job: &usize| {
                let claim = claims[*job];
                claim.has_work && counts[*job] < claim.wanted && claim.of_owner.is_none_or(may_have_more)
            };
            // Compares weight / (2 · processes + 1) of two jobs, without fractions.
            let part = |job: usize| (u64::from(claims[job].weight), u64::from(2 * counts[job] + 1));
            let next = (0..claims.len()).filter(can_have_more).max_by(|&one, &other| {
                let ((weight, processes), (other_weight, other_processes)) = (part(one), part(other));
                (weight * other_processes).cmp(&(other_weight * processes)).then(other.cmp(&one))
            });
            let Some(next) = next else { break };
            counts[next] += 1;
        }
        counts
    }

    /// Divides the GPUs: one for each process while there are enough. Jobs keep those that they had.
    fn gpus_of(&self, counts: &[u32], before: &[Share]) -> Vec<Vec<u32>> {
        let mut users: BTreeMap<u32, u32> = (0..self.gpus).map(|gpu| (gpu, 0)).collect();
        let mut gpus: Vec<Vec<u32>> = Vec::new();
        for (count, before) in counts.iter().zip(before) {
            let is_free = |gpu: &&u32| users.get(*gpu) == Some(&0);
            let kept: Vec<u32> = before.gpus.iter().filter(is_free).take(*count as usize).copied().collect();
            users.extend(kept.iter().map(|gpu| (*gpu, 1)));
            gpus.push(kept);
        }
        for (count, gpus) in counts.iter().zip(&mut gpus) {
            while gpus.len() < *count as usize {
                let others = users.iter_mut().filter(|(gpu, _)| !gpus.contains(gpu));
                // A job has one GPU even where there are more jobs than GPUs.
                let is_fit = |users: u32| users == 0 || gpus.is_empty();
                let Some((gpu, users)) = others.min_by_key(|(gpu, users)| (**users, **gpu)) else { break };
                if !is_fit(*users) {
                    break;
                }
                *users += 1;
                gpus.push(*gpu);
            }
        }
        gpus
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LOW: u32 = 1;
    const NORMAL: u32 = 4;
    const HIGH: u32 = 16;

    fn node(processes: u32, gpus: u32) -> Capacity {
        Capacity { process_count: None, process_count_default: processes, gpus }
    }

    fn claim(weight: u32, wanted: u32) -> Claim {
        Claim { weight, wanted, has_work: true, of_owner: None }
    }

    fn idle(weight: u32, wanted: u32) -> Claim {
        Claim { has_work: false, ..claim(weight, wanted) }
    }

    fn divided(processes: u32, claims: &[Claim]) -> Vec<u32> {
        node(processes, 0).divide(claims, &vec![1; claims.len()])
    }

    #[test]
    fn job_alone_has_what_it_wants() {
        for wanted in [1, 8, 30] {
            assert_eq!(divided(8, &[claim(LOW, wanted)]), [wanted]);
            assert_eq!(divided(8, &[claim(LOW, wanted), idle(HIGH, 8)]), [wanted, 1], "an idle job is ready to begin");
        }
    }

    #[test]
    fn jobs_with_work_have_processes_by_weight() {
        let of = |one, other| divided(8, &[claim(one, 8), claim(other, 8)]);
        assert_eq!(of(NORMAL, NORMAL), [4, 4]);
        assert_eq!(of(HIGH, NORMAL), [6, 2]);
        assert_eq!(of(NORMAL, LOW), [6, 2]);
        assert_eq!(of(LOW, HIGH), [1, 7]);
        assert_eq!(
            divided(8, &[claim(NORMAL, 8), claim(NORMAL, 8), claim(NORMAL, 8)]),
            [3, 3, 2],
            "the first is first"
        );
    }

    #[test]
    fn each_job_with_work_has_a_process() {
        assert_eq!(divided(2, &[claim(HIGH, 2), claim(LOW, 2), claim(LOW, 2), claim(LOW, 2)]), [1, 1, 1, 1]);
        assert_eq!(divided(1, &[claim(HIGH, 1), claim(LOW, 1)]), [1, 1]);
    }

    #[test]
    fn what_a_job_does_not_want_goes_to_others() {
        assert_eq!(divided(8, &[claim(HIGH, 2), claim(LOW, 8)]), [2, 6]);
        assert_eq!(divided(8, &[claim(NORMAL, 2), claim(NORMAL, 3)]), [2, 3]);
        assert_eq!(divided(4, &[claim(NORMAL, 16), claim(NORMAL, 4)]), [12, 4], "one job alone would have 16");
    }

    #[test]
    fn jobs_of_an_owner_have_no_more_than_its_part() {
        let of = |owner, part, claim| Claim { of_owner: Some((owner, part)), ..claim };
        assert_eq!(divided(8, &[of(0, 3, claim(NORMAL, 8))]), [3]);
        assert_eq!(divided(8, &[of(0, 3, claim(HIGH, 8)), claim(LOW, 8)]), [3, 5], "the rest goes to others");
        assert_eq!(divided(8, &[of(0, 4, claim(HIGH, 8)), of(0, 4, claim(LOW, 8)), claim(LOW, 8)]), [3, 1, 4]);
        assert_eq!(divided(8, &[of(0, 2, claim(LOW, 8)), of(1, 3, claim(LOW, 8))]), [2, 3]);
    }

    #[test]
    fn nothing_changes_while_no_job_has_work() {
        let claims = [idle(NORMAL, 8), idle(NORMAL, 8)];
        assert_eq!(node(8, 0).divide(&claims, &[7, 1]), [7, 1]);
    }

    proptest! {
        /// What holds whatever the jobs want.
        #[test]
        fn every_division_is_fair(
            processes in 1..12_u32,
            claims in vec((prop_oneof![Just(LOW), Just(NORMAL), Just(HIGH)], 1..14_u32, any::<bool>()), 1..6),
        ) {
            let claims: Vec<Claim> =
                claims.into_iter().map(|(weight, wanted, has_work)| Claim { has_work, ..claim(weight, wanted) }).collect();
            let counts = divided(processes, &claims);
            prop_assert!(counts.iter().all(|count| *count >= 1), "{counts:?}");
            let at_work: Vec<(Claim, u32)> =
                claims.into_iter().zip(counts).filter(|(claim, _)| claim.has_work).collect();
            let wanted: u32 = at_work.iter().map(|(claim, _)| claim.wanted).sum();
            let total = at_work.iter().map(|(claim, _)| claim.wanted).fold(processes, u32::max);
            let sum: u32 = at_work.iter().map(|(_, count)| *count).sum();
            prop_assert_eq!(sum, total.min(wanted).max(at_work.len() as u32), "nothing is left over: {:?}", at_work);
            for (claim, count) in &at_work {
                prop_assert!(*count <= claim.wanted, "{at_work:?}");
                let is_behind = |(other, others): &(Claim, u32)| {
                    *count < claim.wanted && count + 1 < *others && claim.weight >= other.weight
                };
                prop_assert!(!at_work.iter().any(is_behind), "no job has less than one of equal weight: {at_work:?}");
            }
        }
    }

    #[test]
    fn claim_of_a_job_follows_from_its_settings() {
        let spec =
            |process_count_per_node, max_share| JobSpec { process_count_per_node, max_share, ..JobSpec::example() };
        let wanted = |asked, percent| node(8, 0).claim(&spec(asked, percent)).wanted;
        assert_eq!([wanted(None, None), wanted(Some(3), None), wanted(Some(20), None)], [8, 3, 20]);
        assert_eq!([wanted(None, Some(50)), wanted(Some(3), Some(50)), wanted(Some(20), Some(50))], [4, 3, 10]);
        assert_eq!(wanted(None, Some(1)), 1, "at least one");
        let fixed = Capacity { process_count: Some(4), ..node(8, 0) };
        assert_eq!(fixed.claim(&spec(Some(20), Some(25))).wanted, 1);
        assert_eq!(node(1, 4).claim(&spec(None, None)).wanted, 1, "a GPU is meant for one process");
    }

    fn shares(gpus: u32, claims: &[Claim], before: &[Share]) -> Vec<(u32, Vec<u32>)> {
        let shares = node(1, gpus).shares(claims, before);
        shares.into_iter().map(|Share { processes, gpus }| (processes, gpus)).collect()
    }

    fn share(processes: u32, gpus: &[u32]) -> Share {
        Share { processes, gpus: gpus.to_vec() }
    }

    #[test]
    fn jobs_have_gpus_of_their_own() {
        let (all, none) = (claim(NORMAL, 4), Share::default());
        assert_eq!(shares(4, &[all], std::slice::from_ref(&none)), [(4, vec![0, 1, 2, 3])]);
        let arrived = shares(4, &[all, all], &[share(4, &[0, 1, 2, 3]), none.clone()]);
        assert_eq!(arrived, [(2, vec![0, 1]), (2, vec![2, 3])]);
        let first_left = shares(4, &[all, all], &[share(2, &[2, 3]), none.clone()]);
        assert_eq!(first_left, [(2, vec![2, 3]), (2, vec![0, 1])], "a job keeps the GPUs of its processes");
        assert_eq!(shares(4, &[all], &[share(2, &[2, 3])]), [(4, vec![2, 3, 0, 1])]);
        let small = claim(NORMAL, 1);
        assert_eq!(shares(4, &[small, small], &[none.clone(), none.clone()]), [(1, vec![0]), (1, vec![1])]);
        let many = shares(1, &[small, small], &[none.clone(), none.clone()]);
        assert_eq!(many, [(1, vec![0]), (1, vec![0])], "each has one GPU");
        assert_eq!(shares(2, &[claim(NORMAL, 5)], &[none]), [(5, vec![0, 1])], "the other processes have none");
    }
}
