//! Measures the Python processes of a job every two seconds, for people who watch the job.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use protocol::{GpuSet, ProcessUsage, milliseconds_since_epoch};
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use crate::VisibleGpus;
use crate::gpu::{GpuUsage, Gpus};

const MEASURE_EVERY: Duration = Duration::from_secs(2);

/// A process to measure.
pub(super) struct MeasuredProcess {
    pub name: String,
    pub pid: u32,
    pub gpus: Option<GpuSet>,
}

/// Measures processes.
pub(super) struct Usage {
    /// `None`: nothing was measured yet, or the system cannot tell.
    system: Option<System>,
    gpus: GpuMeter,
    measured: Option<Instant>,
    known: Vec<ProcessUsage>,
}

impl Usage {
    /// `gpus`: those of the node.
    pub fn new(gpus: VisibleGpus) -> Self {
        let gpus = GpuMeter { visible: gpus, last: Arc::default() };
        Self { system: None, gpus, measured: None, known: Vec::new() }
    }

    /// Returns the usage of these processes of a node, as of the last measurement.
    pub fn of(
        &mut self,
        node: &str,
        processes: impl Iterator<Item = MeasuredProcess>,
    ) -> &[ProcessUsage] {
        if self.measured.is_none_or(|measured| measured.elapsed() >= MEASURE_EVERY) {
            self.measured = Some(Instant::now());
            self.measure(node, processes.collect());
        }
        &self.known
    }

    fn measure(&mut self, node: &str, processes: Vec<MeasuredProcess>) {
        let Some(system) = self.system.take().or_else(|| System::new().ok()) else { return };
        let system = self.system.insert(system);
        let at = milliseconds_since_epoch();
        let pids: Vec<Pid> = processes.iter().map(|process| Pid::from_u32(process.pid)).collect();
        let kind = ProcessRefreshKind::nothing().with_cpu().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, kind);
        let gpus = match processes.iter().any(|process| process.gpus.is_some()) {
            true => self.gpus.measure(),
            false => Vec::new(),
        };
        let used =
            |(MeasuredProcess { name: process, gpus: own, .. }, pid): (MeasuredProcess, Pid)| {
                let found = system.process(pid)?;
                let own: Vec<&GpuUsage> = own.iter().flat_map(|own| of_set(&gpus, own)).collect();
                let busy: Vec<u32> = own.iter().filter_map(|gpu| gpu.busy_percent).collect();
                Some(ProcessUsage {
                    node: node.to_owned(),
                    process,
                    at,
                    cpu_percent: found.cpu_usage().round() as u32,
                    memory_bytes: found.memory(),
                    gpu_percent: (busy.iter().sum::<u32>()).checked_div(busy.len() as u32),
                    gpu_memory_bytes: (!own.is_empty())
                        .then(|| own.iter().map(|gpu| gpu.memory_used_bytes).sum()),
                })
            };
        self.known = processes.into_iter().zip(pids).filter_map(used).collect();
    }
}

fn of_set<'a>(gpus: &'a [GpuUsage], own: &GpuSet) -> impl Iterator<Item = &'a GpuUsage> {
    gpus.iter().filter(|gpu| own.numbers().contains(&gpu.number))
}

/// Asks the driver on another thread, because the agent cannot wait for it.
struct GpuMeter {
    visible: VisibleGpus,
    last: Arc<Mutex<Measurement>>,
}

#[derive(Default)]
struct Measurement {
    /// `None`: not connected to the driver.
    driver: Option<Gpus>,
    usage: Vec<GpuUsage>,
}

impl GpuMeter {
    /// Returns the last measurement, and begins the next. Returns nothing while the driver is slow.
    fn measure(&self) -> Vec<GpuUsage> {
        let Ok(last) = self.last.try_lock().map(|last| last.usage.clone()) else {
            return Vec::new();
        };
        let (visible, next) = (self.visible.clone(), Arc::clone(&self.last));
        tokio::task::spawn_blocking(move || {
            let Ok(mut next) = next.lock() else { return };
            if next.driver.is_none() {
                next.driver = Gpus::found(visible);
            }
            next.usage = next.driver.as_ref().map_or_else(Vec::new, Gpus::usage);
        });
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str, pid: u32, gpus: Option<GpuSet>) -> MeasuredProcess {
        MeasuredProcess { name: name.to_owned(), pid, gpus }
    }

    #[test]
    fn process_that_works_uses_a_processor_and_one_that_has_ended_nothing() {
        let mut usage = Usage::new(VisibleGpus::default());
        let own = || {
            [
                measured("process000", std::process::id(), None),
                measured("process001", u32::MAX - 1, None),
            ]
        };
        let work = |time| {
            let until = Instant::now() + time;
            while Instant::now() < until {
                std::hint::black_box(until);
            }
        };
        let processor_time = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            Duration::try_from(time).expect("not negative")
        };
        work(Duration::from_millis(100));
        assert_eq!(usage.of("0", own().into_iter()).len(), 1);
        let (began, before) = (Instant::now(), processor_time());
        work(MEASURE_EVERY + Duration::from_millis(200));
        let spent = (processor_time() - before).as_secs_f64() / began.elapsed().as_secs_f64();
        let [used] = usage.of("0", own().into_iter()) else { panic!("one process runs") };
        assert_eq!((&*used.node, &*used.process), ("0", "process000"));
        // The share of a processor that the process got, which is small on a busy machine.
        let difference = (f64::from(used.cpu_percent) - 100.0 * spent).abs();
        assert!(used.cpu_percent > 0 && difference <= 15.0, "{used:?}, {spent}");
        assert!(used.memory_bytes > 1 << 20, "{used:?}");
        assert_eq!((used.gpu_percent, used.gpu_memory_bytes), (None, None));
    }

    #[tokio::test]
    async fn process_has_the_average_and_the_memory_of_its_gpus() {
        let gpu = |number, busy_percent| GpuUsage {
            number,
            name: String::new(),
            busy_percent,
            memory_bytes: 100,
            memory_used_bytes: 10 + u64::from(number),
        };
        let used = |gpus: Vec<GpuUsage>, own| {
            let mut usage = Usage::new(VisibleGpus::default());
            usage.gpus.last.lock().expect("no thread panics").usage = gpus;
            let process = measured("process000", std::process::id(), GpuSet::new(own));
            let [used] = usage.of("0", [process].into_iter()) else { panic!("one process runs") };
            (used.gpu_percent, used.gpu_memory_bytes)
        };
        let gpus = || vec![gpu(0, Some(90)), gpu(1, Some(20)), gpu(2, Some(40)), gpu(3, None)];
        assert_eq!(used(gpus(), vec![1, 2]), (Some(30), Some(23)));
        assert_eq!(
            used(gpus(), vec![3]),
            (None, Some(13)),
            "the driver does not tell how busy it is"
        );
        assert_eq!(used(gpus(), vec![]), (None, None));
        assert_eq!(used(Vec::new(), vec![0]), (None, None), "the driver does not answer");
    }
}
