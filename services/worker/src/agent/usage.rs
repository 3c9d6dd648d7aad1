//! What the Python processes of a job use, measured every two seconds, for people who watch the job.

use std::time::{Duration, Instant};

use protocol::ProcessUsage;
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

const MEASURE_EVERY: Duration = Duration::from_secs(2);

/// Measures processes.
#[derive(Default)]
pub(super) struct Usage {
    /// `None`: nothing was measured yet, or the system cannot tell.
    system: Option<System>,
    measured: Option<Instant>,
    known: Vec<ProcessUsage>,
}

impl Usage {
    /// Returns what these processes of a node use, each with its name and id, as of the last measurement.
    pub fn of(&mut self, node: &str, processes: impl Iterator<Item = (String, u32)>) -> &[ProcessUsage] {
        if self.measured.is_none_or(|measured| measured.elapsed() >= MEASURE_EVERY) {
            self.measured = Some(Instant::now());
            self.measure(node, processes.collect());
        }
        &self.known
    }

    fn measure(&mut self, node: &str, processes: Vec<(String, u32)>) {
        let Some(system) = self.system.take().or_else(|| System::new().ok()) else { return };
        let system = self.system.insert(system);
        let pids: Vec<Pid> = processes.iter().map(|(_, pid)| Pid::from_u32(*pid)).collect();
        let kind = ProcessRefreshKind::nothing().with_cpu().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, kind);
        let used = |(process, pid): (String, Pid)| {
            let found = system.process(pid)?;
            let cpu_percent = found.cpu_usage().round() as u32;
            Some(ProcessUsage { node: node.to_owned(), process, cpu_percent, memory_bytes: found.memory() })
        };
        let named = processes.into_iter().map(|(name, _)| name).zip(pids);
        self.known = named.filter_map(used).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_works_uses_a_processor_and_one_that_has_ended_nothing() {
        let mut usage = Usage::default();
        let own = || [("process000".to_owned(), std::process::id()), ("process001".to_owned(), u32::MAX - 1)];
        let work = |time| {
            let until = Instant::now() + time;
            while Instant::now() < until {
                std::hint::black_box(until);
            }
        };
        work(Duration::from_millis(100));
        assert_eq!(usage.of("0", own().into_iter()).len(), 1);
        work(MEASURE_EVERY + Duration::from_millis(200));
        let [used] = usage.of("0", own().into_iter()) else { panic!("one process runs") };
        assert_eq!((&*used.node, &*used.process), ("0", "process000"));
        assert!(used.cpu_percent >= 20 && used.memory_bytes > 1 << 20, "{used:?}");
    }
}
