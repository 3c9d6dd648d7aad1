//! The usage of processes while a page shows their job: charts are finer then than the samples that
//! nodes write.

use std::collections::{HashMap, VecDeque};

use protocol::{ProcessUsage, Progress};

/// Points of one process: ten minutes on this machine, where the progress is written every second, twenty on a target.
const POINTS_MAX: usize = 600;
/// A process without a point for this long has ended.
const ENDED_AFTER_MILLISECONDS: u64 = 600_000;
/// Processes whose points are kept; a job of more shows the first.
const PROCESSES_MAX: usize = 256;

/// The usage of a process at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UsageSample {
    /// Milliseconds since 1970.
    pub at: u64,
    pub cpu_percent: f64,
    pub memory_megabytes: f64,
    /// `None`: the process has no GPU.
    pub gpu_percent: Option<f64>,
}

/// The points of the processes of one job, by node and process.
#[derive(Debug, Default)]
pub struct Live {
    at: u64,
    points: HashMap<(String, String), VecDeque<UsageSample>>,
}

impl Live {
    /// Adds the usage in the progress of the job.
    pub fn add(&mut self, progress: &Progress) {
        if progress.at <= self.at {
            return;
        }
        self.at = progress.at;
        let is_recent = |used: &UsageSample| used.at + ENDED_AFTER_MILLISECONDS >= progress.at;
        self.points.retain(|_, points| points.back().is_some_and(is_recent));
        for ProcessUsage { node, process, at, cpu_percent, memory_bytes, gpu_percent, .. } in
            &progress.usage
        {
            let key = (node.clone(), process.clone());
            if self.points.len() >= PROCESSES_MAX && !self.points.contains_key(&key) {
                continue;
            }
            let points = self.points.entry(key).or_default();
            // Several reports may repeat one measurement.
            if points.back().is_some_and(|last| last.at >= *at) {
                continue;
            }
            if points.len() == POINTS_MAX {
                points.pop_front();
            }
            let memory_megabytes = *memory_bytes as f64 / f64::from(1 << 20);
            let (cpu_percent, gpu_percent) = (f64::from(*cpu_percent), gpu_percent.map(f64::from));
            points.push_back(UsageSample { at: *at, cpu_percent, memory_megabytes, gpu_percent });
        }
    }

    /// Returns the memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.points.values().map(|points| points.capacity() * size_of::<UsageSample>()).sum()
    }

    /// Returns the points of a process, oldest first.
    pub fn of(&self, node: &str, process: &str) -> Vec<UsageSample> {
        let points = self.points.get(&(node.to_owned(), process.to_owned()));
        points.map_or_else(Vec::new, |points| points.iter().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_progress_adds_a_point_once() {
        let mut live = Live::default();
        let usage = |at, cpu_percent| ProcessUsage {
            node: "0".to_owned(),
            process: "process000".to_owned(),
            at,
            cpu_percent,
            memory_bytes: 3 << 20,
            gpu_percent: Some(7),
            gpu_memory_bytes: None,
        };
        let at = |at, cpu_percent| Progress {
            at,
            usage: vec![usage(at - 100, cpu_percent)],
            ..reducer::Reducer::no_progress()
        };
        let again = Progress { usage: at(1000, 20).usage, ..at(1500, 0) };
        for progress in [at(1000, 20), again, at(2000, 30)] {
            live.add(&progress);
        }
        let point = |at, cpu_percent| UsageSample {
            at,
            cpu_percent,
            memory_megabytes: 3.0,
            gpu_percent: Some(7.0),
        };
        assert_eq!(live.of("0", "process000"), [point(900, 20.0), point(1900, 30.0)]);
        assert_eq!(live.of("0", "process001"), []);
        (0..1000).for_each(|second| live.add(&at(3000 + second, 1)));
        assert_eq!(live.of("0", "process000").len(), POINTS_MAX);
        assert!(live.memory_bytes() >= POINTS_MAX * size_of::<UsageSample>());
        live.add(&Progress { at: 700_000, ..reducer::Reducer::no_progress() });
        assert_eq!(live.of("0", "process000"), [], "it has ended");
    }
}
