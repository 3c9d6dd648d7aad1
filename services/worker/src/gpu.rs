//! Numbers of GPUs, processes and threads, and the load of the GPUs.

use nvml_wrapper::Nvml;
use protocol::JobSpec;

/// The GPUs that this process may use. Everywhere else they have numbers from 0, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisibleGpus(Vec<String>);

impl VisibleGpus {
    /// `count`: GPUs of the machine; `None`: as many as the driver reports. `visible`: `CUDA_VISIBLE_DEVICES` of this
    /// process, which names some of them; as for CUDA, a name that is not valid hides all that follow.
    pub fn new(count: Option<u32>, visible: Option<&str>) -> Self {
        let count = count.unwrap_or_else(count_by_driver);
        let Some(visible) = visible.filter(|_| count > 0) else {
            return Self((0..count).map(|number| number.to_string()).collect());
        };
        let is_valid = |name: &&str| {
            name.parse().is_ok_and(|number: u32| number < count)
                || name.starts_with("GPU-")
                || name.starts_with("MIG-")
        };
        let mut names: Vec<String> = Vec::new();
        for name in visible.split(',').map(str::trim).take_while(is_valid) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        Self(names)
    }

    /// Returns how many there are.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Returns the value of `CUDA_VISIBLE_DEVICES` for a process that sees these of them.
    pub(crate) fn names(&self, numbers: &[u32]) -> String {
        let names: Vec<&str> =
            numbers.iter().filter_map(|number| Some(&**self.0.get(*number as usize)?)).collect();
        names.join(",")
    }
}

fn count_by_driver() -> u32 {
    Nvml::init().and_then(|nvml| nvml.device_count()).unwrap_or(0)
}

/// The load of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct GpuUsage {
    pub number: u32,
    pub name: String,
    /// The fraction of the last sampling period in which it computed; `None`: unknown, as with MIG.
    pub busy_percent: Option<u32>,
    pub memory_bytes: u64,
    pub memory_used_bytes: u64,
}

/// The driver, and the GPUs to ask it about.
pub(crate) struct Gpus(Nvml, VisibleGpus);

impl Gpus {
    /// Connects to the driver. `None`: there is no driver, or no GPU.
    pub(crate) fn found(visible: VisibleGpus) -> Option<Self> {
        if visible.count() == 0 {
            return None;
        }
        Some(Self(Nvml::init().ok()?, visible))
    }

    /// Returns the load of each GPU that answers.
    pub(crate) fn usage(&self) -> Vec<GpuUsage> {
        let usage = |(number, name): (u32, &String)| {
            let device = name
                .parse()
                .map_or_else(|_| self.0.device_by_uuid(&**name), |at| self.0.device_by_index(at));
            let device = device.ok()?;
            let memory = device.memory_info().ok()?;
            Some(GpuUsage {
                number,
                name: device.name().unwrap_or_default(),
                busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
                memory_bytes: memory.total,
                memory_used_bytes: memory.used,
            })
        };
        (0..).zip(&self.1.0).filter_map(usage).collect()
    }
}

/// Returns the default number of processes of a node: one on a machine with GPUs, else one for each core.
pub fn default_process_count(gpus: u32) -> u32 {
    if gpus > 0 {
        return 1;
    }
    cores()
}

/// Returns the number of processes of a job on a machine of its own with this many GPUs.
pub fn process_count(spec: &JobSpec, gpus: u32) -> u32 {
    let default = || match processes_with_gpus(spec, gpus) {
        processes if spec.asks_for_gpus() && processes > 0 => processes,
        _ => default_process_count(gpus),
    };
    spec.process_count_per_node.unwrap_or_else(default)
}

/// Returns the number of processes of a job for which these GPUs are enough.
pub(crate) fn processes_with_gpus(spec: &JobSpec, gpus: u32) -> u32 {
    let per_process = spec.gpus_per_process.unwrap_or(1).max(1);
    (gpus / per_process).saturating_mul(spec.process_count_per_gpu.unwrap_or(1))
}

/// Returns the number of threads for each of `processes`: its part of the cores. By default,
/// numeric libraries use all cores in every process.
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
    fn gpus_are_those_that_the_environment_names() {
        let visible = |count, visible| VisibleGpus::new(Some(count), visible).0;
        assert_eq!(visible(3, None), ["0", "1", "2"]);
        assert_eq!(visible(8, Some("5, 2")), ["5", "2"]);
        assert_eq!(visible(8, Some("5,9,2")), ["5"], "an invalid name hides all that follow");
        assert_eq!(visible(8, Some("3,-1,2")), ["3"]);
        assert_eq!(visible(2, Some("MIG-a,GPU-b")), ["MIG-a", "GPU-b"]);
        assert_eq!(visible(2, Some("1,1,0")), ["1", "0"]);
        for none in [Some(""), Some("-1"), Some("NoDevFiles")] {
            assert_eq!(visible(4, none), [""; 0], "{none:?}");
        }
        assert_eq!(visible(0, Some("0,1")), [""; 0], "a machine without GPUs");
        assert_eq!(VisibleGpus::new(Some(8), Some("5,2,7")).names(&[0, 2]), "5,7");
    }

    #[test]
    fn machine_with_gpus_runs_one_process_by_default() {
        assert_eq!(default_process_count(4), 1);
        assert!(default_process_count(0) >= 1);
    }

    #[test]
    fn job_that_asks_for_gpus_has_as_many_processes_as_they_are_enough_for() {
        let count = |process_count_per_node, gpus_per_process, process_count_per_gpu, gpus| {
            let spec = JobSpec {
                process_count_per_node,
                gpus_per_process,
                process_count_per_gpu,
                ..JobSpec::example()
            };
            process_count(&spec, gpus)
        };
        assert_eq!(count(None, None, None, 4), 1, "by default, one process has one GPU");
        assert_eq!([count(None, Some(1), None, 4), count(None, None, Some(1), 4)], [4, 4]);
        assert_eq!([count(None, Some(2), None, 4), count(None, Some(2), None, 5)], [2, 2]);
        assert_eq!([count(None, None, Some(3), 2), count(None, Some(1), Some(3), 2)], [6, 6]);
        assert_eq!(count(Some(3), Some(2), None, 8), 3, "the job says it");
        assert_eq!(
            [count(None, Some(2), None, 1), count(None, None, Some(3), 0)],
            [1, default_process_count(0)]
        );
    }

    #[test]
    fn processes_share_the_cores() {
        assert_eq!(threads_each(1), cores());
        assert_eq!([threads_each(cores()), threads_each(10 * cores())], [1, 1]);
    }
}
