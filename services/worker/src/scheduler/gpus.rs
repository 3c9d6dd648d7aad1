//! The GPUs of a node: which process has which, how they fail, and which of them are out of use. Pure.
//!
//! The text of a failure names its cause ([`Trouble`]). A process whose GPU no longer works for it is replaced while the
//! others continue. The mini-batch is retried elsewhere first: by a process with another GPU of this node, else by
//! another node if one receives it earlier.
//!
//! A GPU is taken out of use after [`FAILURES_MAX`] failures in a row of different mini-batches or starts: always if the
//! device is gone, otherwise only if another GPU of the node has succeeded in the meantime. So a script that fails
//! everywhere costs no GPU.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{Ending, ErrorReport};
use rustc_hash::FxHashMap;

use super::process::{Life, Process};
use super::trouble::Trouble;
use super::{InUse, ProcessId, Scheduler, Share};
use crate::lease::LeaseId;

/// Failures in a row after which a GPU is taken out of use.
const FAILURES_MAX: u32 = 3;

/// The GPUs of a node.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    /// GPUs of the job that no process holds. A process that starts takes the smallest, or none; its end frees it.
    free: BTreeSet<u32>,
    /// The GPUs of the job on a node that jobs share, and the number of its share; `None`: the node is its own.
    owned: Option<(BTreeSet<u32>, u64)>,
    /// The node does not know what is in use now.
    has_changed: bool,
    /// GPUs on which the last mini-batch or start has failed.
    failing: BTreeMap<u32, Failing>,
    /// GPUs out of use, and why.
    out: BTreeMap<u32, String>,
    /// Mini-batches that have failed on a GPU of this node and have not succeeded here since.
    failed: FxHashMap<u64, FailedOn>,
}

#[derive(Debug, Default)]
struct Failing {
    /// Different mini-batches, or starts, in a row.
    in_a_row: u32,
    last: Option<u64>,
    /// Another GPU has succeeded since the first of them.
    others_work: bool,
}

#[derive(Clone, Copy, Debug)]
struct FailedOn {
    gpu: u32,
    /// The node has received it again, and has left it to other nodes once.
    is_returned: bool,
}

impl Gpus {
    /// `count`: GPUs of the machine; `share`: what the job may have of it, if it shares the machine with others.
    pub(super) fn new(count: u32, share: Option<&Share>) -> Self {
        let mut gpus = Self { free: (0..count).collect(), ..Self::default() };
        if let Some(share) = share {
            gpus.own(share, &BTreeSet::new());
        }
        gpus
    }

    /// The node wants to know of a change that is not one of GPUs.
    pub(super) fn report_again(&mut self) {
        self.has_changed = true;
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.has_changed = true;
        self.free.pop_first()
    }

    /// Takes note of the GPUs that the job has from now on; `used`: those that processes hold.
    pub(super) fn own(&mut self, share: &Share, used: &BTreeSet<u32>) {
        let owned: BTreeSet<u32> = share.gpus.iter().copied().collect();
        self.free = owned.iter().filter(|gpu| !used.contains(gpu) && !self.out.contains_key(gpu)).copied().collect();
        self.owned = Some((owned, share.number));
        self.has_changed = true;
    }

    /// Whether the job may use this GPU.
    pub(super) fn owns(&self, gpu: u32) -> bool {
        self.owned.as_ref().is_none_or(|(owned, _)| owned.contains(&gpu))
    }

    /// Returns the GPUs for a process without one of its own, on a node that jobs share.
    pub(super) fn common(&self) -> Option<Vec<u32>> {
        self.owned.as_ref().map(|(owned, _)| owned.iter().copied().collect())
    }

    /// Returns the GPUs of the job and those of its processes, if that has changed since the last call.
    pub(super) fn in_use(&mut self, of_processes: impl Iterator<Item = u32>) -> Option<InUse> {
        let (owned, number) = self.owned.as_ref().filter(|_| self.has_changed)?;
        let gpus = owned.iter().copied().chain(of_processes).collect();
        let failing = self.out.keys().copied().collect();
        let in_use = InUse { number: *number, gpus, failing, ..InUse::default() };
        self.has_changed = false;
        Some(in_use)
    }

    /// Whether GPUs are out of use, and no other is free.
    pub(super) fn are_exhausted(&self) -> bool {
        self.free.is_empty() && !self.out.is_empty()
    }

    pub(super) fn give_back(&mut self, gpu: Option<u32>) {
        self.has_changed = true;
        self.free.extend(gpu.filter(|gpu| !self.out.contains_key(gpu) && self.owns(*gpu)));
    }

    /// Whether all GPUs of a machine with this many are out of use, or the job has no others to hope for.
    pub(super) fn are_hopeless(&self, count: u32) -> bool {
        self.owned.is_none() || self.out.len() >= count as usize
    }

    /// Whether a process that loses this GPU gets no other.
    pub(super) fn is_missing(&self, gpu: Option<u32>) -> bool {
        gpu.is_some_and(|gpu| self.out.contains_key(&gpu)) && self.free.is_empty()
    }

    fn succeeded(&mut self, gpu: u32, mini_batch: u64) {
        self.failed.remove(&mini_batch);
        self.failing.remove(&gpu);
        self.failing.values_mut().for_each(|failing| failing.others_work = true);
    }

    /// Notes a failure of a mini-batch, or of a start. Returns whether the GPU is out of use from now on.
    fn failing(&mut self, gpu: u32, trouble: Trouble, mini_batch: Option<u64>, cause: &str) -> bool {
        let failing = self.failing.entry(gpu).or_default();
        if mini_batch.is_none() || failing.last != mini_batch {
            failing.in_a_row += 1;
        }
        failing.last = mini_batch;
        let is_bad = failing.in_a_row >= FAILURES_MAX && (trouble == Trouble::Device || failing.others_work);
        self.has_changed |= is_bad;
        is_bad && self.out.insert(gpu, cause.to_owned()).is_none()
    }

    /// Returns why GPUs are out of use.
    pub(super) fn causes(&self) -> String {
        let causes: Vec<_> = self.out.iter().map(|(gpu, cause)| format!("GPU {gpu}: {cause}")).collect();
        causes.join("; ")
    }
}

impl Scheduler {
    /// Notes a success of a process with a GPU.
    pub(super) fn gpu_succeeded(&mut self, id: ProcessId, mini_batch: u64) {
        let gpu = self.processes.get(id).and_then(|process| process.gpu);
        // The usual case: nothing has failed.
        if let Some(gpu) = gpu.filter(|_| !self.gpus.failing.is_empty() || !self.gpus.failed.is_empty()) {
            self.gpus.succeeded(gpu, mini_batch);
        }
    }

    /// Notes that a mini-batch, or without one the start of a process, has failed with this text. The process lives on.
    pub(super) fn gpu_failed(&mut self, id: ProcessId, mini_batch: Option<u64>, error: &ErrorReport) {
        let text = format!("{}: {}", error.category, error.message);
        let Some((gpu, trouble, is_out)) = self.gpu_trouble(id, mini_batch, &text) else { return };
        self.avoid(mini_batch, gpu);
        let Some(process) = self.processes.get_mut(id).filter(|process| matches!(process.life, Life::Working)) else {
            return;
        };
        process.condition.gpu_failed(gpu, trouble, is_out);
        if process.is_worn_out() {
            self.recall(id);
        }
    }

    /// Notes that a process has died, in a mini-batch or not. Its text is all that is known about it.
    pub(super) fn gpu_died(&mut self, id: ProcessId, mini_batch: Option<u64>, text: &str) {
        let Some(gpu) = self.processes.get(id).and_then(|process| process.gpu) else { return };
        self.gpu_trouble(id, mini_batch, text);
        self.avoid(mini_batch, gpu);
    }

    /// Returns the GPU of a process if its failure says that the GPU is gone.
    pub(super) fn lost_gpu(&self, id: ProcessId, ending: &Ending) -> Option<u32> {
        let (gpu, error) = (self.processes.get(id)?.gpu?, ending.error.as_ref()?);
        let texts = [&error.category, &error.message, &error.printed];
        texts.into_iter().any(|text| Trouble::of(text) == Some(Trouble::Device)).then_some(gpu)
    }

    /// Takes the GPU of a process out of use if the text of a failure says so often enough.
    fn gpu_trouble(&mut self, id: ProcessId, mini_batch: Option<u64>, text: &str) -> Option<(u32, Trouble, bool)> {
        let gpu = self.processes.get(id)?.gpu?;
        let trouble = Trouble::of(text)?;
        let named = |line: &&str| Trouble::of(line).is_some();
        let cause = text.lines().find(named).unwrap_or(text).trim().trim_end_matches('.').to_owned();
        let is_out = self.gpus.failing(gpu, trouble, mini_batch, &cause);
        if is_out {
            let node = &self.config.node;
            let notice =
                format!("GPU {gpu} of node {node} is out of use after {FAILURES_MAX} failures in a row: {cause}");
            self.log("ERROR", notice.clone());
            if let Some(process) = self.processes.get_mut(id) {
                process.notice = notice;
            }
        }
        Some((gpu, trouble, is_out))
    }

    fn avoid(&mut self, mini_batch: Option<u64>, gpu: u32) {
        if let Some(mini_batch) = mini_batch {
            self.gpus.failed.insert(mini_batch, FailedOn { gpu, is_returned: false });
        }
    }

    /// Whether a process of this node has another GPU, or will have.
    pub(super) fn has_other_gpu_than(&self, gpu: u32) -> bool {
        let has_another = |process: &Process| {
            let may_work = matches!(process.life, Life::Starting | Life::Working);
            may_work && process.gpu.is_some_and(|other| other != gpu)
        };
        self.processes.iter().any(has_another)
    }

    /// Whether a process with this GPU leaves mini-batches that have failed on it to others.
    fn chooses_mini_batches(&self, gpu: Option<u32>) -> bool {
        gpu.is_some_and(|gpu| !self.gpus.failed.is_empty() && self.has_other_gpu_than(gpu))
    }

    fn has_failed_on(&self, lease: LeaseId, gpu: Option<u32>) -> bool {
        self.failed_on(lease).is_some_and(|failed| Some(failed.gpu) == gpu)
    }

    fn failed_on(&self, lease: LeaseId) -> Option<&FailedOn> {
        self.gpus.failed.get(&self.mini_batches.get(lease)?.descriptor.mini_batch)
    }

    /// Whether a process with this GPU may get a mini-batch.
    pub(super) fn may_run(&self, lease: LeaseId, gpu: Option<u32>) -> bool {
        !self.chooses_mini_batches(gpu) || !self.has_failed_on(lease, gpu)
    }

    /// Returns the next mini-batches for a process among the first `ready` ones, or the next range of one. Those that
    /// have failed on its GPU stay for a process with another one.
    pub(super) fn choose(&self, count: usize, ready: usize, gpu: Option<u32>) -> Vec<LeaseId> {
        let chooses = self.chooses_mini_batches(gpu);
        if !chooses && self.mini_batches.isolated().is_empty() {
            return self.mini_batches.ready().take(count).collect();
        }
        let ready = self.mini_batches.ready().take(ready);
        let mut chosen = Vec::new();
        for lease in ready.filter(|lease| !chooses || !self.has_failed_on(*lease, gpu)).take(count) {
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

    /// Whether a mini-batch that the node has received should go to another node first: it has failed on the only GPU
    /// that this node could give it. It is returned once, so that a single node works too.
    pub(super) fn is_for_another_node(&mut self, mini_batch: u64) -> bool {
        let Some(FailedOn { gpu, is_returned: false }) = self.gpus.failed.get(&mini_batch).copied() else {
            return false;
        };
        let is_meant = self.stopping.is_working() && !self.has_other_gpu_than(gpu);
        if is_meant {
            self.gpus.failed.insert(mini_batch, FailedOn { gpu, is_returned: true });
        }
        is_meant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gone_device_is_out_of_use_after_different_mini_batches() {
        let mut gpus = Gpus::new(2, None);
        assert_eq!((gpus.take(), gpus.take(), gpus.take()), (Some(0), Some(1), None));
        for (mini_batch, is_out) in [(4, false), (4, false), (5, false), (6, true), (7, false)] {
            assert_eq!(gpus.failing(0, Trouble::Device, Some(mini_batch), "gone"), is_out, "mini-batch {mini_batch}");
        }
        gpus.give_back(Some(0));
        assert_eq!((gpus.take(), gpus.is_missing(Some(0)), gpus.is_missing(Some(1))), (None, true, false));
        gpus.give_back(Some(1));
        assert!(!gpus.is_missing(Some(0)), "another one is free");
        assert_eq!(gpus.causes(), "GPU 0: gone");
    }

    #[test]
    fn script_that_fails_on_every_gpu_takes_none_out_of_use() {
        let mut gpus = Gpus::new(2, None);
        for mini_batch in 0..9 {
            assert!(!gpus.failing(0, Trouble::Context, Some(mini_batch), "assert"));
            assert!(!gpus.failing(1, Trouble::Memory, Some(mini_batch), "full"));
        }
        gpus.succeeded(1, 20);
        assert!(gpus.failing(0, Trouble::Context, Some(9), "assert"), "the other GPU works");
    }

    #[test]
    fn gpus_of_other_jobs_are_not_taken() {
        let share = |gpus: &[u32], number| Share { processes: 2, gpus: gpus.to_vec(), number };
        let mut gpus = Gpus::new(4, Some(&share(&[2, 3], 1)));
        assert_eq!(
            (gpus.take(), gpus.take(), gpus.take()),
            (Some(2), Some(3), None),
            "GPUs 0 and 1 are not of this job"
        );
        assert_eq!(gpus.common(), Some(vec![2, 3]), "processes of one job share its GPUs");
        let in_use = |gpus: &mut Gpus, processes: &[u32]| {
            gpus.in_use(processes.iter().copied()).map(|used| (used.number, used.gpus))
        };
        assert_eq!(in_use(&mut gpus, &[2, 3]), Some((1, BTreeSet::from([2, 3]))));
        assert_eq!(in_use(&mut gpus, &[2, 3]), None, "nothing has changed");
        gpus.own(&share(&[3], 2), &BTreeSet::from([2, 3]));
        assert!(gpus.owns(3) && !gpus.owns(2));
        assert_eq!(in_use(&mut gpus, &[2, 3]), Some((2, BTreeSet::from([2, 3]))), "a process still has GPU 2");
        gpus.give_back(Some(2));
        assert_eq!((gpus.take(), in_use(&mut gpus, &[3])), (None, Some((2, BTreeSet::from([3])))));
    }

    #[test]
    fn success_forgives() {
        let mut gpus = Gpus::new(1, None);
        for mini_batch in 0..9 {
            assert!(!gpus.failing(0, Trouble::Device, Some(mini_batch), "gone"));
            if mini_batch % 2 == 1 {
                gpus.succeeded(0, mini_batch);
            }
        }
    }
}
