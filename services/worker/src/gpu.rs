//! Which process sees which GPU.
//!
//! Each started process takes the smallest free index; one that finds none free gets none. An index is free again as
//! soon as its process has ended, for whatever reason, and goes to the next process that *starts*.

use std::collections::BTreeSet;

/// GPUs of a node that no process holds.
#[derive(Debug)]
pub struct GpuIndices {
    free: BTreeSet<u32>,
}

impl GpuIndices {
    /// All of `count` GPUs are free.
    pub fn new(count: u32) -> Self {
        Self { free: (0..count).collect() }
    }

    /// An index for a process that starts.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop_first()
    }

    /// The process that held it has ended.
    pub fn give_back(&mut self, index: u32) {
        self.free.insert(index);
    }
}

/// Number of GPUs that the driver knows; 0 where there is no driver.
pub fn count_by_driver() -> u32 {
    nvml_wrapper::Nvml::init().and_then(|nvml| nvml.device_count()).unwrap_or(0)
}

/// Processes a node runs when the job does not say: one on a machine with GPUs, else one a core.
pub fn default_process_count(gpus: u32) -> u32 {
    if gpus > 0 {
        return 1;
    }
    cores()
}

/// Threads that each of so many processes may keep busy: its share of the cores. Numeric libraries take all cores for
/// themselves otherwise, in every process.
pub(crate) fn threads_each(processes: u32) -> u32 {
    (cores() / processes.max(1)).max(1)
}

fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_gpus_for_two_processes() {
        let mut gpus = GpuIndices::new(2);
        assert_eq!([gpus.take(), gpus.take()], [Some(0), Some(1)]);
    }

    #[test]
    fn an_index_goes_to_the_next_process_that_starts() {
        let mut gpus = GpuIndices::new(2);
        let started = [gpus.take(), gpus.take(), gpus.take(), gpus.take()];
        assert_eq!(started, [Some(0), Some(1), None, None]);
        gpus.give_back(0); // process 0 dies
        assert_eq!(gpus.take(), Some(0), "process 4");
        assert_eq!(gpus.take(), None, "process 5 replaces process 2, which held none");
        gpus.give_back(1); // process 1 dies
        assert_eq!(gpus.take(), Some(1), "process 6");
    }

    #[test]
    fn more_gpus_than_processes_leaves_some_idle() {
        let mut gpus = GpuIndices::new(4);
        assert_eq!([gpus.take(), gpus.take()], [Some(0), Some(1)]);
    }

    #[test]
    fn without_gpus_nobody_gets_one() {
        assert_eq!(GpuIndices::new(0).take(), None);
    }

    #[test]
    fn a_restarted_process_gets_the_only_gpu_back() {
        let mut gpus = GpuIndices::new(1);
        assert_eq!(gpus.take(), Some(0));
        gpus.give_back(0);
        assert_eq!(gpus.take(), Some(0));
    }

    #[test]
    fn one_process_on_a_machine_with_gpus() {
        assert_eq!(default_process_count(4), 1);
        assert!(default_process_count(0) >= 1);
    }

    #[test]
    fn the_cores_are_shared() {
        assert_eq!(threads_each(1), cores());
        assert_eq!([threads_each(cores()), threads_each(10 * cores())], [1, 1]);
    }
}
