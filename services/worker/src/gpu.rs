//! Numbers of GPUs, processes and threads.

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

pub(crate) fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

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
