//! Assigns GPUs to processes.
//!
//! Each process that starts takes the smallest free index, or none if all are taken. An index is free when its process
//! has ended, and goes to the next process that *starts*.

use std::collections::BTreeSet;

/// GPUs of a node that no process holds.
#[derive(Debug)]
pub struct GpuIndices {
    free: BTreeSet<u32>,
}

impl GpuIndices {
    /// Creates a list of `count` free GPUs.
    pub fn new(count: u32) -> Self {
        Self { free: (0..count).collect() }
    }

    /// Takes an index for a process that starts.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop_first()
    }

    /// Frees the index of a process that has ended.
    pub fn give_back(&mut self, index: u32) {
        self.free.insert(index);
    }
}

/// Returns the number of GPUs that the driver reports; 0 without a driver.
pub fn count_by_driver() -> u32 {
    nvml_wrapper::Nvml::init().and_then(|nvml| nvml.device_count()).unwrap_or(0)
}

/// Returns the default number of processes of a node: one on a machine with GPUs, else one for each core.
pub fn default_process_count(gpus: u32) -> u32 {
    if gpus > 0 {
        return 1;
    }
    cores()
}

/// Returns the number of threads for each of `processes`: its share of the cores. By default, numeric libraries use all
/// cores in every process.
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
    fn index_goes_to_the_next_process_that_starts() {
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
    fn machine_with_gpus_runs_one_process_by_default() {
        assert_eq!(default_process_count(4), 1);
        assert!(default_process_count(0) >= 1);
    }

    #[test]
    fn processes_share_the_cores() {
        assert_eq!(threads_each(1), cores());
        assert_eq!([threads_each(cores()), threads_each(10 * cores())], [1, 1]);
    }
}
