//! The GPUs of a node: which process has which, how they fail, and which of them are out of use. Pure.
//!
//! The text of a failure names its cause ([`GpuFault`]). A process whose GPU no longer works for it
//! is replaced while the others continue. The mini-batch is retried elsewhere first: by a process
//! with another GPU of this node, else by another node ([`super::peer_nodes`]).
//!
//! A GPU is taken out of use after [`FAILURES_MAX`] failures in a row of different mini-batches or starts: always if the
//! device is gone, otherwise only if another GPU of the node has succeeded in the meantime. So a script that fails
//! everywhere costs no GPU.
//!
//! A job may give each process several GPUs. A failure does not say which of them it is about, so they fail, and are taken
//! out of use, together. Or several processes share one GPU: once it is out of use, all of them end.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{Ending, ErrorReport, GpuSet, JobSpec};
use rustc_hash::FxHashMap;

use super::gpu_fault::GpuFault;
use super::process::{Process, ProcessState};
use super::{AgentAllocation, AllocationReport, ProcessId, Scheduler};
use crate::lease::LeaseId;

/// Failures in a row after which a GPU is taken out of use.
const FAILURES_MAX: u32 = 3;

/// The GPUs of a node.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    /// How many GPUs a process takes, and how many processes may hold the same GPU.
    per_process: usize,
    processes_each: usize,
    /// GPUs that the job may use.
    owned: BTreeSet<u32>,
    /// The number of the allocation on a node that jobs share; `None`: the job has the whole node.
    allocation: Option<u64>,
    /// How many processes hold each GPU.
    held: BTreeMap<u32, usize>,
    /// The node does not know the current use.
    has_changed: bool,
    /// GPUs on which the last mini-batch or start has failed.
    failing: BTreeMap<GpuSet, Failing>,
    /// GPUs out of use, and why.
    out: BTreeMap<GpuSet, String>,
    /// Mini-batches that have failed on a GPU of this node and have not succeeded here since.
    failed: FxHashMap<u64, GpuSet>,
}

#[derive(Debug, Default)]
struct Failing {
    /// Different mini-batches, or starts, in a row.
    in_a_row: u32,
    last: Option<u64>,
    /// Another GPU has succeeded since the first of them.
    others_work: bool,
}

impl Gpus {
    /// `count`: GPUs of the machine; `allocation`: that of the job, if it shares the machine with
    /// others.
    pub(super) fn new(spec: &JobSpec, count: u32, allocation: Option<&AgentAllocation>) -> Self {
        let mut gpus = Self {
            per_process: spec.gpus_per_process.unwrap_or(1) as usize,
            processes_each: spec.process_count_per_gpu.unwrap_or(1) as usize,
            owned: (0..count).collect(),
            ..Self::default()
        };
        if let Some(allocation) = allocation {
            gpus.own(allocation);
        }
        gpus
    }

    /// Requests a report although no GPU has changed.
    pub(super) fn report_again(&mut self) {
        self.has_changed = true;
    }

    /// Takes the GPUs of a process that starts, until [`Self::release`]; `None`: too few are free.
    pub(super) fn take(&mut self) -> Option<GpuSet> {
        self.has_changed = true;
        let gpus = self.free()?;
        for gpu in gpus.numbers() {
            *self.held.entry(*gpu).or_default() += 1;
        }
        Some(gpus)
    }

    /// Returns the GPUs for the next process: those that the fewest processes hold.
    fn free(&self) -> Option<GpuSet> {
        let holders = |gpu: &u32| self.held.get(gpu).copied().unwrap_or(0);
        let is_free = |gpu: &&u32| holders(gpu) < self.processes_each && !self.is_out(**gpu);
        let mut free: Vec<u32> = self.owned.iter().filter(is_free).copied().collect();
        free.sort_by_key(holders);
        free.truncate(self.per_process);
        GpuSet::new(free).filter(|gpus| gpus.numbers().len() == self.per_process)
    }

    fn is_out(&self, gpu: u32) -> bool {
        self.out.keys().any(|gpus| gpus.numbers().contains(&gpu))
    }

    /// Sets the GPUs that the job has from now on.
    pub(super) fn own(&mut self, allocation: &AgentAllocation) {
        self.owned = allocation.gpus.iter().copied().collect();
        self.allocation = Some(allocation.number);
        self.has_changed = true;
    }

    /// Whether the job may use this GPU.
    pub(super) fn owns(&self, gpu: u32) -> bool {
        self.owned.contains(&gpu)
    }

    /// Returns the GPUs for a process without one of its own, on a node that jobs share.
    pub(super) fn common(&self) -> Option<Vec<u32>> {
        self.allocation.map(|_| self.owned.iter().copied().collect())
    }

    /// Returns the GPUs of the job and those of its processes, if that has changed since the last call.
    pub(super) fn in_use(
        &mut self,
        of_processes: impl Iterator<Item = u32>,
    ) -> Option<AllocationReport> {
        let number = self.allocation.filter(|_| self.has_changed)?;
        let gpus = self.owned.iter().copied().chain(of_processes).collect();
        let failing = self.out.keys().flat_map(GpuSet::numbers).copied().collect();
        let in_use = AllocationReport { number, gpus, failing, ..AllocationReport::default() };
        self.has_changed = false;
        Some(in_use)
    }

    /// Whether GPUs are out of use, and no others are free.
    pub(super) fn are_exhausted(&self) -> bool {
        !self.out.is_empty() && self.free().is_none()
    }

    pub(super) fn release(&mut self, gpus: Option<&GpuSet>) {
        self.has_changed = true;
        for gpu in gpus.into_iter().flat_map(GpuSet::numbers) {
            self.held.entry(*gpu).and_modify(|holders| *holders -= 1);
        }
    }

    /// Whether a machine with this many GPUs has too few working ones for a process, or the job
    /// cannot get others.
    pub(super) fn are_hopeless(&self, count: u32) -> bool {
        let out: usize = self.out.keys().map(|gpus| gpus.numbers().len()).sum();
        self.allocation.is_none() || out + self.per_process > count as usize
    }

    /// Whether a process that loses these GPUs gets no others.
    pub(super) fn is_missing(&self, gpus: Option<&GpuSet>) -> bool {
        gpus.is_some_and(|gpus| self.out.contains_key(gpus)) && self.free().is_none()
    }

    fn succeeded(&mut self, gpus: &GpuSet, mini_batch: u64) {
        self.failed.remove(&mini_batch);
        self.failing.remove(gpus);
        self.failing.values_mut().for_each(|failing| failing.others_work = true);
    }

    /// Notes a failure of a mini-batch, or of a start. Returns whether the GPUs are out of use from now on.
    fn failing(
        &mut self,
        gpus: &GpuSet,
        fault: GpuFault,
        mini_batch: Option<u64>,
        cause: &str,
    ) -> bool {
        let failing = self.failing.entry(gpus.clone()).or_default();
        if mini_batch.is_none() || failing.last != mini_batch {
            failing.in_a_row += 1;
        }
        failing.last = mini_batch;
        let is_bad =
            failing.in_a_row >= FAILURES_MAX && (fault == GpuFault::Device || failing.others_work);
        self.has_changed |= is_bad;
        is_bad && self.out.insert(gpus.clone(), cause.to_owned()).is_none()
    }

    /// Returns why no process can have GPUs any more.
    pub(super) fn shortage(&self) -> String {
        let causes: Vec<_> =
            self.out.iter().map(|(gpus, cause)| format!("{gpus}: {cause}")).collect();
        let lack = match self.per_process {
            1 => "no GPU is left".to_owned(),
            wanted => format!("fewer than {wanted} GPUs are left"),
        };
        format!("{lack} on this node: {}", causes.join("; "))
    }
}

impl Scheduler {
    /// Notes a success of a process with a GPU.
    pub(super) fn gpu_succeeded(&mut self, id: ProcessId, mini_batch: u64) {
        let gpus = self.processes.get(id).and_then(|process| process.gpus.as_ref());
        // The usual case: nothing has failed.
        if let Some(gpus) =
            gpus.filter(|_| !self.gpus.failing.is_empty() || !self.gpus.failed.is_empty())
        {
            self.gpus.succeeded(gpus, mini_batch);
        }
    }

    /// Notes that a mini-batch, or without one the start of a process, has failed with this text. The process lives on.
    pub(super) fn gpu_failed(
        &mut self,
        id: ProcessId,
        mini_batch: Option<u64>,
        error: &ErrorReport,
    ) {
        let text = format!("{}: {}", error.category, error.message);
        let Some((gpus, fault, is_out)) = self.gpu_failure(id, mini_batch, &text) else { return };
        self.avoid(mini_batch, gpus.clone());
        let Some(process) = self
            .processes
            .get_mut(id)
            .filter(|process| matches!(process.state, ProcessState::Working))
        else {
            return;
        };
        process.health.gpu_failed(gpus, fault, is_out);
        if process.is_worn_out() {
            self.recall(id);
        }
    }

    /// Notes that a process has died, in a mini-batch or not. Its text is all that is known about it.
    pub(super) fn gpu_died(&mut self, id: ProcessId, mini_batch: Option<u64>, text: &str) {
        let Some(gpus) = self.processes.get(id).and_then(|process| process.gpus.clone()) else {
            return;
        };
        self.gpu_failure(id, mini_batch, text);
        self.avoid(mini_batch, gpus);
    }

    /// Returns the GPUs of a process if its failure says that a GPU is gone.
    pub(super) fn lost_gpus(&self, id: ProcessId, ending: &Ending) -> Option<&GpuSet> {
        let (gpus, error) = (self.processes.get(id)?.gpus.as_ref()?, ending.error.as_ref()?);
        let texts = [&error.category, &error.message, &error.printed];
        texts.into_iter().any(|text| GpuFault::of(text) == Some(GpuFault::Device)).then_some(gpus)
    }

    /// Takes the GPUs of a process out of use if the text of a failure says so often enough.
    fn gpu_failure(
        &mut self,
        id: ProcessId,
        mini_batch: Option<u64>,
        text: &str,
    ) -> Option<(GpuSet, GpuFault, bool)> {
        let gpus = self.processes.get(id)?.gpus.clone()?;
        let fault = GpuFault::of(text)?;
        let named = |line: &&str| GpuFault::of(line).is_some();
        let cause =
            text.lines().find(named).unwrap_or(text).trim().trim_end_matches('.').to_owned();
        let is_out = self.gpus.failing(&gpus, fault, mini_batch, &cause);
        if is_out {
            let (node, are) =
                (&self.config.node, if gpus.numbers().len() == 1 { "is" } else { "are" });
            let notice = format!(
                "{gpus} of node {node} {are} out of use after {FAILURES_MAX} failures in a row: {cause}"
            );
            self.log("ERROR", notice.clone());
            if let Some(process) = self.processes.get_mut(id) {
                process.notice = notice;
            }
            self.wear_out_others(id, &gpus, fault);
        }
        Some((gpus, fault, is_out))
    }

    /// Wears out the processes that share GPUs which are out of use now.
    fn wear_out_others(&mut self, id: ProcessId, gpus: &GpuSet, fault: GpuFault) {
        let may_work = |process: &Process| {
            matches!(process.state, ProcessState::Starting | ProcessState::Working)
        };
        let others = |process: &Process| {
            process.id != id && process.gpus.as_ref() == Some(gpus) && may_work(process)
        };
        for other in self.processes.ids(others) {
            if let Some(process) = self.processes.get_mut(other) {
                process.health.gpu_failed(gpus.clone(), fault, true);
                self.recall(other);
            }
        }
    }

    fn avoid(&mut self, mini_batch: Option<u64>, gpus: GpuSet) {
        if let Some(mini_batch) = mini_batch {
            self.gpus.failed.insert(mini_batch, gpus);
        }
    }

    /// Whether a process of this node has or will have other GPUs.
    pub(super) fn has_other_gpus_than(&self, gpus: &GpuSet) -> bool {
        let has_others = |process: &Process| {
            let may_work = matches!(process.state, ProcessState::Starting | ProcessState::Working);
            may_work && process.gpus.as_ref().is_some_and(|others| others != gpus)
        };
        self.processes.iter().any(has_others)
    }

    /// Whether a process with these GPUs leaves mini-batches that have failed on them to others.
    fn chooses_mini_batches(&self, gpus: Option<&GpuSet>) -> bool {
        gpus.is_some_and(|gpus| !self.gpus.failed.is_empty() && self.has_other_gpus_than(gpus))
    }

    fn has_failed_on(&self, lease: LeaseId, gpus: Option<&GpuSet>) -> bool {
        self.failed_on(lease).is_some_and(|failed| Some(failed) == gpus)
    }

    fn failed_on(&self, lease: LeaseId) -> Option<&GpuSet> {
        self.gpus.failed.get(&self.mini_batches.get(lease)?.descriptor.mini_batch)
    }

    /// Whether a process with these GPUs may get a mini-batch.
    pub(super) fn may_run(&self, lease: LeaseId, gpus: Option<&GpuSet>) -> bool {
        !self.chooses_mini_batches(gpus) || !self.has_failed_on(lease, gpus)
    }

    /// Returns the next mini-batches for a process among the first `ready` ones, or the next range of one. Those that
    /// have failed on its GPUs stay for a process with others.
    pub(super) fn choose(&self, count: usize, ready: usize, gpus: Option<&GpuSet>) -> Vec<LeaseId> {
        let chooses = self.chooses_mini_batches(gpus);
        if !chooses && self.mini_batches.isolated().is_empty() {
            return self.mini_batches.ready().take(count).collect();
        }
        let ready = self.mini_batches.ready().take(ready);
        let mut chosen = Vec::new();
        for lease in ready.filter(|lease| !chooses || !self.has_failed_on(*lease, gpus)).take(count)
        {
            let is_range = self.mini_batches.is_isolated(lease);
            if !is_range || chosen.is_empty() {
                chosen.push(lease);
            }
            if is_range {
                break;
            }
        }
        chosen
    }

    /// Returns how many mini-batches wait for a process with another GPU: the others need more in the meantime.
    pub(super) fn waiting_for_another_gpu(&self) -> usize {
        if self.gpus.failed.is_empty() {
            return 0;
        }
        let failed = self.mini_batches.ready().filter(|lease| self.failed_on(*lease).is_some());
        failed.count().min(2 * self.processes.slots())
    }

    /// Whether a mini-batch has failed here on GPUs, and a process of this node has others for it.
    pub(super) fn has_untried_gpus(&self, mini_batch: u64) -> bool {
        self.gpus.failed.get(&mini_batch).is_some_and(|failed| self.has_other_gpus_than(failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the GPUs of a machine with so many.
    fn gpus(per_process: u32, processes_each: u32, count: u32) -> Gpus {
        let (gpus_per_process, process_count_per_gpu) = (Some(per_process), Some(processes_each));
        Gpus::new(
            &JobSpec { gpus_per_process, process_count_per_gpu, ..JobSpec::example() },
            count,
            None,
        )
    }

    fn set(numbers: &[u32]) -> GpuSet {
        GpuSet::new(numbers.to_vec()).expect("not empty")
    }

    fn one(number: u32) -> GpuSet {
        set(&[number])
    }

    #[test]
    fn process_with_several_gpus_has_them_alone() {
        let mut gpus = gpus(2, 1, 5);
        let (first, second) = (set(&[0, 1]), set(&[2, 3]));
        assert_eq!(
            [gpus.take(), gpus.take(), gpus.take()],
            [Some(first.clone()), Some(second.clone()), None]
        );
        gpus.release(Some(&second));
        assert_eq!((gpus.take(), gpus.take()), (Some(second), None));
        (0..3).for_each(|mini_batch| {
            _ = gpus.failing(&first, GpuFault::Device, Some(mini_batch), "gone")
        });
        gpus.release(Some(&first));
        assert_eq!(gpus.take(), None, "both are out of use, and a single GPU is too few");
        assert!(gpus.is_missing(Some(&first)));
        assert_eq!(gpus.shortage(), "fewer than 2 GPUs are left on this node: GPUs 0 and 1: gone");
    }

    #[test]
    fn processes_that_share_gpus_are_spread_evenly() {
        let mut gpus = gpus(1, 2, 3);
        let taken = |gpus: &mut Gpus| gpus.take().map(|gpus| gpus.numbers().to_vec());
        let all: Vec<_> = (0..7).map(|_| taken(&mut gpus)).collect();
        let expected = [Some(0), Some(1), Some(2), Some(0), Some(1), Some(2), None];
        assert_eq!(all, expected.map(|gpu| gpu.map(|gpu| vec![gpu])));
        for gpu in [2, 1, 2] {
            gpus.release(Some(&one(gpu)));
        }
        assert_eq!(
            [taken(&mut gpus), taken(&mut gpus)],
            [Some(vec![2]), Some(vec![1])],
            "no process holds GPU 2"
        );
    }

    #[test]
    fn gone_device_is_out_of_use_after_different_mini_batches() {
        let mut gpus = gpus(1, 1, 2);
        let [first, second] = [0, 1].map(one);
        assert_eq!(
            [gpus.take(), gpus.take(), gpus.take()],
            [Some(first.clone()), Some(second.clone()), None]
        );
        for (mini_batch, is_out) in [(4, false), (4, false), (5, false), (6, true), (7, false)] {
            assert_eq!(
                gpus.failing(&first, GpuFault::Device, Some(mini_batch), "gone"),
                is_out,
                "mini-batch {mini_batch}"
            );
        }
        gpus.release(Some(&first));
        assert_eq!(
            (gpus.take(), gpus.is_missing(Some(&first)), gpus.is_missing(Some(&second))),
            (None, true, false)
        );
        gpus.release(Some(&second));
        assert!(!gpus.is_missing(Some(&first)), "another one is free");
        assert_eq!(gpus.shortage(), "no GPU is left on this node: GPU 0: gone");
    }

    #[test]
    fn script_that_fails_on_every_gpu_takes_none_out_of_use() {
        let mut gpus = gpus(1, 1, 2);
        for mini_batch in 0..9 {
            assert!(!gpus.failing(&one(0), GpuFault::Context, Some(mini_batch), "assert"));
            assert!(!gpus.failing(&one(1), GpuFault::Memory, Some(mini_batch), "full"));
        }
        gpus.succeeded(&one(1), 20);
        assert!(gpus.failing(&one(0), GpuFault::Context, Some(9), "assert"), "the other GPU works");
    }

    #[test]
    fn gpus_of_other_jobs_are_not_taken() {
        let allocation =
            |gpus: &[u32], number| AgentAllocation { processes: 2, gpus: gpus.to_vec(), number };
        let mut gpus = Gpus::new(&JobSpec::example(), 4, Some(&allocation(&[2, 3], 1)));
        let taken = [gpus.take(), gpus.take(), gpus.take()];
        assert_eq!(taken, [Some(one(2)), Some(one(3)), None], "GPUs 0 and 1 are not of this job");
        assert_eq!(gpus.common(), Some(vec![2, 3]), "processes of one job share its GPUs");
        let in_use = |gpus: &mut Gpus, processes: &[u32]| {
            gpus.in_use(processes.iter().copied()).map(|used| (used.number, used.gpus))
        };
        assert_eq!(in_use(&mut gpus, &[2, 3]), Some((1, BTreeSet::from([2, 3]))));
        assert_eq!(in_use(&mut gpus, &[2, 3]), None, "nothing has changed");
        gpus.own(&allocation(&[3], 2));
        assert!(gpus.owns(3) && !gpus.owns(2));
        assert_eq!(
            in_use(&mut gpus, &[2, 3]),
            Some((2, BTreeSet::from([2, 3]))),
            "a process still has GPU 2"
        );
        gpus.release(Some(&one(2)));
        assert_eq!((gpus.take(), in_use(&mut gpus, &[3])), (None, Some((2, BTreeSet::from([3])))));
    }

    #[test]
    fn success_forgives() {
        let mut gpus = gpus(1, 1, 1);
        for mini_batch in 0..9 {
            assert!(!gpus.failing(&one(0), GpuFault::Device, Some(mini_batch), "gone"));
            if mini_batch % 2 == 1 {
                gpus.succeeded(&one(0), mini_batch);
            }
        }
    }
}
