//! How a node divides its processes, and its GPUs, among the jobs that are here. Pure: no I/O, no clock, no channels.
//!
//! A job that is alone has all the processes that it wants. Otherwise each job with work has one process, and the others
//! go one by one to the job that is furthest below its part by weight (the method of Sainte-Laguë), ties to the job that
//! came first. A job without work keeps one process, so that it can begin at once; it does not count.
//!
//! A node may run more processes than it divides: where more jobs have work than it has processes, because progress of
//! every job is worth more than the limit; and until runs that began under a larger share have ended, because no share
//! interrupts a run. A node works on no more jobs than it has places, a few for each process.
//!
//! A GPU belongs to one job at a time. On a node with GPUs each job with processes has one at least, so no more jobs
//! have processes than there are GPUs: those with work, in the order of their turns, then the others. The rest waits.
//! GPUs are divided like processes, one for each process while there are enough. A GPU goes to another job once no
//! process uses it any more; until then the new owner has fewer processes.

use std::collections::BTreeSet;

use protocol::JobSpec;

use crate::scheduler::Share;

/// Jobs that a node works on at a time, for each process that they divide. Most jobs of a busy target are small, so many
/// begin at once; and the memory of a node that fits its processes mostly fits a few more interpreters for each.
const PLACES_PER_PROCESS: u32 = 4;
/// The node keeps one place for newcomers out of this many.
const PLACES_PER_NEWCOMER: usize = 4;

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
    /// Its place among jobs that want GPUs of the node; the smallest comes first.
    pub turn: u64,
}

/// What a job has of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Processes that it may have.
    pub processes: u32,
    /// GPUs that it may use.
    pub gpus: Vec<u32>,
    /// GPUs that its processes may use at this moment: `gpus`, and others that it has not left yet.
    pub in_use: BTreeSet<u32>,
    /// GPUs that are of no use to it.
    pub failing: BTreeSet<u32>,
}

impl Capacity {
    /// Returns the number of processes of a job that asks for this many.
    pub fn process_count(&self, asked: Option<u32>) -> u32 {
        self.process_count.or(asked).unwrap_or(self.process_count_default)
    }

    /// Returns the number of jobs that the node works on at a time.
    pub fn places(&self) -> usize {
        self.processes().saturating_mul(PLACES_PER_PROCESS) as usize
    }

    /// Returns how many of these places are for jobs that the node has not worked on yet. On a node with GPUs jobs wait for a
    /// GPU, so a place does not help them to begin.
    pub fn places_of_newcomers(&self) -> usize {
        if self.gpus > 0 { 0 } else { self.places() / PLACES_PER_NEWCOMER }
    }

    /// Returns the number of processes that jobs divide.
    pub fn processes(&self) -> u32 {
        self.process_count.unwrap_or(self.process_count_default.max(self.gpus))
    }

    /// Returns the claim of a job that has work.
    pub fn claim(&self, spec: &JobSpec) -> Claim {
        let wanted = self.process_count(spec.process_count_per_node);
        let of_node = u64::from(self.processes().max(wanted));
        let part = spec.max_share.map_or(of_node, |percent| of_node * u64::from(percent) / 100);
        let wanted = wanted.min(u32::try_from(part).unwrap_or(u32::MAX)).max(1);
        Claim { weight: spec.priority.weight(), wanted, has_work: true, of_owner: None, turn: 0 }
    }

    /// Returns the shares of jobs in the order of their arrival, given what they have. `occupied`: GPUs that processes
    /// of other jobs may still use.
    pub fn shares(&self, claims: &[Claim], held: &[Holding], occupied: &BTreeSet<u32>) -> Vec<Share> {
        let has_none = |held: &Holding| held.processes == 0 || held.gpus.is_empty();
        if self.gpus > 0 && !claims.iter().any(|claim| claim.has_work) {
            // No process starts or ends.
            let share = |held: &Holding| match has_none(held) {
                true => Share::default(),
                false => Share { processes: held.processes, gpus: held.gpus.clone(), number: 0 },
            };
            return held.iter().map(share).collect();
        }
        let served = self.served(claims);
        let among: Vec<Claim> = served.iter().map(|job| claims[*job]).collect();
        let before: Vec<u32> = served.iter().map(|job| held[*job].processes).collect();
        let counts = self.divide(&among, &before);
        let mut shares = vec![Share::default(); claims.len()];
        if self.gpus == 0 {
            served.iter().zip(counts).for_each(|(job, processes)| shares[*job].processes = processes);
            return shares;
        }
        let wanted = self.gpu_counts(&among, &counts);
        for (job, wanted) in served.iter().zip(&wanted) {
            // A job keeps those that it has.
            let kept = held[*job].gpus.iter().filter(|gpu| !held[*job].failing.contains(gpu));
            shares[*job].gpus = kept.take(*wanted).copied().collect();
        }
        let is_free = |gpu: &u32| !occupied.contains(gpu) && !held.iter().any(|held| held.in_use.contains(gpu));
        let mut free: BTreeSet<u32> = (0..self.gpus).filter(is_free).collect();
        for ((job, wanted), processes) in served.iter().zip(wanted).zip(counts) {
            let gpus = &mut shares[*job].gpus;
            // Its own processes may not have left all those that it was to leave.
            let Holding { in_use, failing, .. } = &held[*job];
            let own = in_use.iter().filter(|gpu| !gpus.contains(gpu));
            let fit = own.chain(&free).filter(|gpu| !failing.contains(gpu)).copied();
            let more: Vec<u32> = fit.take(wanted.saturating_sub(gpus.len())).collect();
            free.retain(|gpu| !more.contains(gpu));
            gpus.extend(more);
            let is_complete = gpus.len() >= wanted.min((self.gpus as usize).saturating_sub(failing.len())).max(1);
            let with_gpu = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
            shares[*job].processes = if is_complete { processes } else { processes.min(with_gpu) };
        }
        shares
    }

    /// Returns the jobs that have processes, in the order of their arrival.
    fn served(&self, claims: &[Claim]) -> Vec<usize> {
        let mut jobs: Vec<usize> = (0..claims.len()).collect();
        if self.gpus > 0 {
            jobs.sort_by_key(|job| (!claims[*job].has_work, claims[*job].turn, *job));
            jobs.truncate(self.gpus as usize);
            jobs.sort_unstable();
        }
        jobs
    }

    /// Returns how many GPUs each job is to have, given its processes.
    fn gpu_counts(&self, claims: &[Claim], processes: &[u32]) -> Vec<usize> {
        let mut counts = vec![1; claims.len()];
        let rest = self.gpus.saturating_sub(u32::try_from(claims.len()).unwrap_or(u32::MAX));
        apportion(rest, claims, &mut counts, |job, counts| counts[job] < processes[job]);
        counts.into_iter().map(|count| count as usize).collect()
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
        apportion(rest, claims, &mut counts, |job, counts| {
            let may_have_more = |(owner, part): (usize, u32)| {
                let of_owner = claims.iter().zip(counts).filter(|(claim, _)| claim.of_owner == Some((owner, part)));
                of_owner.map(|(_, count)| count).sum::<u32>() < part
            };
            counts[job] < claims[job].wanted && claims[job].of_owner.is_none_or(may_have_more)
        });
        counts
    }
}

/// Adds `rest` to the counts of jobs with work, each time to the job that is furthest below its part by weight among
/// those that can have more.
fn apportion(rest: u32, claims: &[Claim], counts: &mut [u32], can_have_more: impl Fn(usize, &[u32]) -> bool) {
    for _ in 0..rest {
        // Compares weight / (2 · count + 1) of two jobs, without fractions.
        let part = |job: usize| (u64::from(claims[job].weight), u64::from(2 * counts[job] + 1));
        let fit = (0..claims.len()).filter(|job| claims[*job].has_work && can_have_more(*job, counts));
        let next = fit.max_by(|&one, &other| {
            let ((weight, count), (other_weight, other_count)) = (part(one), part(other));
            (weight * other_count).cmp(&(other_weight * count)).then(other.cmp(&one))
        });
        let Some(next) = next else { break };
        counts[next] += 1;
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
        Claim { weight, wanted, has_work: true, of_owner: None, turn: 0 }
    }

    fn idle(weight: u32, wanted: u32) -> Claim {
        Claim { has_work: false, ..claim(weight, wanted) }
    }

    fn divided(processes: u32, claims: &[Claim]) -> Vec<u32> {
        node(processes, 0).divide(claims, &vec![1; claims.len()])
    }

    #[test]
    fn job_alone_has_all_processes_that_it_wants() {
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
    fn processes_that_a_job_does_not_want_go_to_others() {
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

    fn shares(gpus: u32, claims: &[Claim], held: &[Holding]) -> Vec<(u32, Vec<u32>)> {
        let shares = node(1, gpus).shares(claims, held, &BTreeSet::new());
        shares.into_iter().map(|Share { processes, gpus, .. }| (processes, gpus)).collect()
    }

    /// A job that was told to use `gpus`, while its processes still use `more`.
    fn holds(processes: u32, gpus: &[u32], more: &[u32]) -> Holding {
        let in_use = gpus.iter().chain(more).copied().collect();
        Holding { processes, gpus: gpus.to_vec(), in_use, failing: BTreeSet::new() }
    }

    #[test]
    fn jobs_have_gpus_of_their_own() {
        let (all, none) = (claim(NORMAL, 4), Holding::default());
        assert_eq!(shares(4, &[all], std::slice::from_ref(&none)), [(4, vec![0, 1, 2, 3])]);
        let arrived = shares(4, &[all, all], &[holds(4, &[0, 1, 2, 3], &[]), none.clone()]);
        assert_eq!(arrived, [(2, vec![0, 1]), (0, vec![])], "the first job still uses all of them");
        let first_left = shares(4, &[all, all], &[holds(2, &[0, 1], &[3]), none.clone()]);
        assert_eq!(first_left, [(2, vec![0, 1]), (1, vec![2])], "its process has left GPU 2");
        let second_left = shares(4, &[all, all], &[holds(2, &[0, 1], &[]), holds(1, &[2], &[])]);
        assert_eq!(second_left, [(2, vec![0, 1]), (2, vec![2, 3])]);
        let returned = shares(4, &[all], &[holds(2, &[0, 1], &[3])]);
        assert_eq!(returned, [(4, vec![0, 1, 3, 2])], "it may keep what it has not left");
        let small = claim(NORMAL, 1);
        assert_eq!(shares(4, &[small, small], &[none.clone(), none.clone()]), [(1, vec![0]), (1, vec![1])]);
        assert_eq!(shares(2, &[claim(NORMAL, 5)], &[none]), [(5, vec![0, 1])], "processes of one job share its GPUs");
    }

    #[test]
    fn job_gets_another_gpu_for_one_that_keeps_failing() {
        let failing = |held: Holding| Holding { failing: BTreeSet::from([0]), ..held };
        let one = claim(NORMAL, 1);
        assert_eq!(shares(2, &[one], &[failing(holds(1, &[0], &[]))]), [(1, vec![1])]);
        let two = [failing(holds(1, &[0], &[])), holds(1, &[1], &[])];
        assert_eq!(shares(2, &[one, one], &two), [(0, vec![]), (1, vec![1])], "it waits for the other");
        assert_eq!(shares(2, &[claim(NORMAL, 3)], &[failing(holds(3, &[1], &[]))]), [(3, vec![1])]);
    }

    #[test]
    fn job_that_finds_no_gpu_waits_for_its_turn() {
        let (one, none) = (claim(NORMAL, 1), Holding::default());
        let turn = |claim: Claim, turn| Claim { turn, ..claim };
        let many = shares(1, &[turn(one, 0), turn(one, 1)], &[none.clone(), none.clone()]);
        assert_eq!(many, [(1, vec![0]), (0, vec![])]);
        let held = [holds(1, &[0], &[]), none.clone()];
        assert_eq!(shares(1, &[turn(one, 2), turn(one, 1)], &held), [(0, vec![]), (0, vec![])], "its turn is over");
        let left = [none.clone(), none.clone()];
        assert_eq!(shares(1, &[turn(one, 2), turn(one, 1)], &left), [(0, vec![]), (1, vec![0])]);
        let quiet = turn(idle(NORMAL, 1), 0);
        assert_eq!(shares(1, &[quiet, turn(one, 1)], &held), [(0, vec![]), (0, vec![])], "an idle job leaves its GPU");
        assert_eq!(shares(2, &[quiet, turn(one, 1)], &held), [(1, vec![0]), (1, vec![1])], "unless another is free");
        assert_eq!(shares(1, &[quiet], &held[..1]), [(1, vec![0])]);
        let occupied = BTreeSet::from([0]);
        let shares = node(1, 1).shares(&[one], &[none], &occupied);
        assert_eq!(shares[0].processes, 0, "a process of a job that leaves the node uses it");
    }

    proptest! {
        /// What holds for GPUs whatever jobs come and go, and whenever their processes end.
        #[test]
        fn no_gpu_is_in_use_by_two_jobs(
            gpus in 1..5_u32,
            steps in vec((vec((1..6_u32, any::<bool>(), 0..6_u64), 4), vec(any::<bool>(), 4), any::<u64>()), 1..12),
        ) {
            let capacity = node(1, gpus);
            let mut held = vec![Holding::default(); 4];
            for (claims, are_here, ends) in steps {
                let claims: Vec<Claim> = claims
                    .into_iter()
                    .map(|(wanted, has_work, turn)| Claim { turn, has_work, ..claim(NORMAL, wanted) })
                    .collect();
                let here: Vec<usize> = (0..4).filter(|job| are_here[*job]).collect();
                let settle = |held: &mut Vec<Holding>, keeps: &dyn Fn(u32) -> bool| {
                    let away = (0..4).filter(|job| !here.contains(job));
                    let occupied: BTreeSet<u32> = away.flat_map(|job| held[job].in_use.clone()).collect();
                    let claims: Vec<Claim> = here.iter().map(|job| claims[*job]).collect();
                    let before: Vec<Holding> = here.iter().map(|job| held[*job].clone()).collect();
                    for (job, share) in here.iter().zip(capacity.shares(&claims, &before, &occupied)) {
                        held[*job].processes = share.processes;
                        held[*job].in_use.extend(&share.gpus);
                        held[*job].gpus = share.gpus;
                    }
                    for (job, held) in held.iter_mut().enumerate() {
                        if !here.contains(&job) {
                            held.gpus.clear();
                        }
                        // Some processes end.
                        let Holding { gpus, in_use, .. } = held;
                        in_use.retain(|gpu| gpus.contains(gpu) || keeps(*gpu));
                    }
                };
                settle(&mut held, &|gpu| ends >> gpu & 1 == 1);
                let all: Vec<u32> = held.iter().flat_map(|held| held.in_use.clone()).collect();
                let different: BTreeSet<u32> = all.iter().copied().collect();
                prop_assert_eq!(different.len(), all.len(), "{:?}", held);
                let is_served = |job: &usize| held[*job].processes == 0 || !held[*job].gpus.is_empty();
                prop_assert!(here.iter().all(is_served), "{held:?}");
                // Once all processes that should end have ended.
                settle(&mut held, &|_| false);
                settle(&mut held, &|_| false);
                let at_work = || here.iter().filter(|job| claims[**job].has_work);
                let served = at_work().filter(|job| held[**job].processes > 0).count();
                prop_assert_eq!(served, at_work().count().min(gpus as usize), "{:?}", held);
            }
        }
    }
}
