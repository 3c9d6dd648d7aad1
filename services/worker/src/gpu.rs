//! Numbers of GPUs, processes and threads, and what the GPUs do.

use nvml_wrapper::Nvml;

/// Returns the number of GPUs that the driver reports; 0 without a driver.
pub fn count_by_driver() -> u32 {
    Nvml::init().and_then(|nvml| nvml.device_count()).unwrap_or(0)
}

/// What a GPU does at a time.
#[derive(Debug)]
pub(crate) struct GpuUsage {
    pub number: u32,
    pub name: String,
    /// The share of the last moment in which it computed; `None`: unknown, as with MIG.
    pub busy_percent: Option<u32>,
    pub memory_bytes: u64,
    pub memory_used_bytes: u64,
}

/// The GPUs of this machine.
pub(crate) struct Gpus(Nvml);

impl Gpus {
    /// Connects to the driver. `None`: there is no driver, or no GPU.
    pub(crate) fn found() -> Option<Self> {
        let nvml = Nvml::init().ok()?;
        (nvml.device_count().ok()? > 0).then_some(Self(nvml))
    }

    /// Returns what each GPU does, without those that do not answer.
    pub(crate) fn usage(&self) -> Vec<GpuUsage> {
        let usage = |number| {
            let device = self.0.device_by_index(number).ok()?;
            let memory = device.memory_info().ok()?;
            Some(GpuUsage {
                number,
                name: device.name().unwrap_or_default(),
                busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
                memory_bytes: memory.total,
                memory_used_bytes: memory.used,
            })
        };
        (0..self.0.device_count().unwrap_or(0)).filter_map(usage).collect()
    }
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
