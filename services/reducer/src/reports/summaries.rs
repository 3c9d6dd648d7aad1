//! `process_summary.csv` and `node_summary.csv`: the start and work of each process and node; and
//! the lines of `job_result.txt` about starts and GPUs.

use std::collections::BTreeMap;
use std::fmt::Write;

use protocol::{AttemptRef, GpuSet, ProcessName, ResultEvent, Start};

use protocol::words::counted;

#[derive(Debug, Default)]
pub(super) struct Summaries {
    /// Positions among the processes, by node and name.
    nodes: BTreeMap<String, BTreeMap<String, usize>>,
    processes: Vec<Process>,
    /// Process of the last attempt and its position: the next attempt is most often of the same process.
    last: Option<(ProcessName<String>, usize)>,
}

#[derive(Debug, Default)]
struct Process {
    pid: Option<u32>,
    return_code: Option<i32>,
    init_seconds: Option<f64>,
    start: Start,
    gpus: Option<GpuSet>,
    /// Wall clock of its node at its start, and at its last event; 0: unknown.
    started_at: u64,
    seen_at: u64,
    /// Start and duration of its earliest attempt.
    first_run: Option<(u64, f64)>,
    work: Work,
}

#[derive(Clone, Debug, Default)]
struct Work {
    succeeded: u64,
    failed: u64,
    items: u64,
    items_succeeded: u64,
    elapsed_seconds: f64,
    process_seconds: f64,
    run_seconds: f64,
    phases: [f64; 4],
}

const WORK_HEADER: &str = "Succeeded Attempts,Failed Attempts,Items,Succeeded Items,Failed Items,Elapsed Seconds,\
    Process Seconds,Run Method Seconds";
/// After the columns of the original.
const START_HEADER: &str = "Interpreter Seconds,Import Seconds,Init Method Seconds,First Run Seconds,GPU,\
    GPU Busy Seconds,GPU Idle Seconds";
/// Last. With the seconds of `run()`, the phases of attempts.
const PHASES_HEADER: &str = "Waited Seconds,Prepared Seconds,Loaded Seconds,Reported Seconds";

impl Summaries {
    /// Applies any event except attempts.
    pub fn event(&mut self, event: &ResultEvent) {
        match event {
            ResultEvent::ProcessStarted { node, process, pid, gpus, at } => {
                let process = self.process(node, process);
                (process.gpus, process.started_at) = (gpus.clone(), *at);
                process.pid = Some(*pid);
                process.return_code = None;
            }
            ResultEvent::ProcessReady { node, process, init_seconds, start, .. } => {
                let process = self.process(node, process);
                (process.init_seconds, process.start) = (Some(*init_seconds), *start);
            }
            ResultEvent::ProcessEnded { node, process, return_code, at, .. } => {
                let process = self.process(node, process);
                process.return_code = Some(*return_code);
                process.seen_at = process.seen_at.max(*at);
            }
            _ => {}
        }
    }

    /// Adds an attempt. Returns the id of its process.
    pub fn attempt(&mut self, attempt: &AttemptRef, succeeded: bool) -> Option<u32> {
        let process = self.process(attempt.process.node, attempt.process.process);
        let work = &mut process.work;
        work.succeeded += u64::from(succeeded);
        work.failed += u64::from(!succeeded);
        work.items += attempt.total;
        work.items_succeeded += attempt.succeeded.min(attempt.total);
        work.elapsed_seconds += attempt.elapsed_seconds;
        work.process_seconds += attempt.process_seconds;
        work.run_seconds += attempt.run_seconds;
        work.add_phases(attempt);
        let ended_at =
            attempt.started_at.saturating_add((attempt.elapsed_seconds.max(0.0) * 1000.0) as u64);
        process.seen_at = process.seen_at.max(ended_at);
        if process.first_run.is_none_or(|(began, _)| attempt.started_at < began) {
            process.first_run = Some((attempt.started_at, attempt.run_seconds));
        }
        process.pid
    }

    fn process(&mut self, node: &str, process: &str) -> &mut Process {
        let position = match &self.last {
            Some((last, position)) if last.node == node && last.process == process => *position,
            _ => {
                let processes = self.nodes.entry(node.to_owned()).or_default();
                let position = *processes.entry(process.to_owned()).or_insert(self.processes.len());
                if position == self.processes.len() {
                    self.processes.push(Process::default());
                }
                self.last = Some((
                    ProcessName { node: node.to_owned(), process: process.to_owned() },
                    position,
                ));
                position
            }
        };
        &mut self.processes[position]
    }

    pub fn process_csv(&self) -> String {
        let mut text = format!(
            "Node,Process Name,Process,Init Seconds,Return Code,{WORK_HEADER},{START_HEADER},{PHASES_HEADER}\n"
        );
        for (node, processes) in &self.nodes {
            for (name, &position) in processes {
                let process = &self.processes[position];
                let pid = process.pid.map_or_else(String::new, |pid| pid.to_string());
                let init = process
                    .init_seconds
                    .map_or_else(String::new, |seconds| format!("{seconds:.6}"));
                let code = process.return_code.map_or_else(String::new, |code| code.to_string());
                let (work, start, phases) =
                    (process.work.csv(), process.start_csv(), process.work.phases_csv());
                let _ = writeln!(text, "{node},{name},{pid},{init},{code},{work},{start},{phases}");
            }
        }
        text
    }

    /// Returns lines for `job_result.txt`: how long the parts of a start took, and how long GPUs were busy and idle.
    pub fn starts(&self) -> String {
        let mut text = String::new();
        let ready: Vec<&Process> =
            self.processes.iter().filter(|process| process.init_seconds.is_some()).collect();
        let mean = |seconds: fn(&Process) -> f64| {
            ready.iter().map(|process| seconds(process)).sum::<f64>() / ready.len() as f64
        };
        if !ready.is_empty() {
            let runs: Vec<f64> =
                ready.iter().filter_map(|process| Some(process.first_run?.1)).collect();
            let first_run = match runs.as_slice() {
                [] => String::new(),
                runs => {
                    format!(", first run() {:.3} s", runs.iter().sum::<f64>() / runs.len() as f64)
                }
            };
            let _ = writeln!(
                text,
                "Start of a process, mean of {}: interpreter {:.3} s, import {:.3} s, init() {:.3} s{first_run}.",
                counted(ready.len() as u64, "process"),
                mean(|process| process.start.interpreter_seconds),
                mean(|process| process.start.import_seconds),
                mean(Process::init_method_seconds),
            );
        }
        let gpus: Vec<[f64; 2]> = self.processes.iter().filter_map(Process::gpu_seconds).collect();
        if !gpus.is_empty() {
            let [busy, idle] =
                [0, 1].map(|part| gpus.iter().map(|seconds| seconds[part]).sum::<f64>());
            let _ = writeln!(text, "Processes with GPUs: {busy:.1} s in run(), {idle:.1} s idle.");
        }
        text
    }

    pub fn node_csv(&self) -> String {
        let mut text = format!("Node,Processes,{WORK_HEADER},{PHASES_HEADER}\n");
        for (node, processes) in &self.nodes {
            let mut total = Work::default();
            processes.values().for_each(|&position| total.add(&self.processes[position].work));
            let started = processes.keys().filter(|name| !name.is_empty()).count();
            let _ = writeln!(text, "{node},{started},{},{}", total.csv(), total.phases_csv());
        }
        text
    }
}

impl Process {
    fn init_method_seconds(&self) -> f64 {
        (self.init_seconds.unwrap_or_default() - self.start.import_seconds).max(0.0)
    }

    /// Returns how long its GPUs were in `run()`, and how long they were not, from the start of the process to its last
    /// sign.
    fn gpu_seconds(&self) -> Option<[f64; 2]> {
        self.gpus.as_ref()?;
        let lived = self.seen_at.saturating_sub(self.started_at) as f64 / 1000.0;
        let busy = self.work.run_seconds;
        Some([busy, if self.started_at == 0 { 0.0 } else { (lived - busy).max(0.0) }])
    }

    fn start_csv(&self) -> String {
        let seconds = |seconds: Option<f64>| {
            seconds.map_or_else(String::new, |seconds| format!("{seconds:.6}"))
        };
        let of_start = |part: f64| seconds(self.init_seconds.map(|_| part));
        let [busy, idle] = [0, 1].map(|part| seconds(self.gpu_seconds().map(|gpu| gpu[part])));
        let numbers = self.gpus.iter().flat_map(GpuSet::numbers).map(u32::to_string);
        let gpus = numbers.collect::<Vec<_>>().join(" ");
        let Start { interpreter_seconds, import_seconds } = self.start;
        let [interpreter, import, init] =
            [interpreter_seconds, import_seconds, self.init_method_seconds()].map(of_start);
        let first_run = seconds(self.first_run.map(|(_, run)| run));
        format!("{interpreter},{import},{init},{first_run},{gpus},{busy},{idle}")
    }
}

impl Work {
    fn add(&mut self, other: &Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.items += other.items;
        self.items_succeeded += other.items_succeeded;
        self.elapsed_seconds += other.elapsed_seconds;
        self.process_seconds += other.process_seconds;
        self.run_seconds += other.run_seconds;
        self.phases.iter_mut().zip(other.phases).for_each(|(sum, seconds)| *sum += seconds);
    }

    fn add_phases(&mut self, attempt: &AttemptRef) {
        let phases = attempt.phases;
        if phases.are_known() {
            let [waited, prepared, loaded, reported] = &mut self.phases;
            *waited += f64::from(phases.waited_seconds);
            *prepared += f64::from(phases.prepared_seconds);
            *loaded += f64::from(phases.loaded_seconds);
            *reported += phases.reported_seconds(attempt.elapsed_seconds, attempt.run_seconds);
        }
    }

    fn phases_csv(&self) -> String {
        let [waited, prepared, loaded, reported] = self.phases;
        format!("{waited:.6},{prepared:.6},{loaded:.6},{reported:.6}")
    }

    fn csv(&self) -> String {
        format!(
            "{},{},{},{},{},{:.6},{:.6},{:.6}",
            self.succeeded,
            self.failed,
            self.items,
            self.items_succeeded,
            self.items - self.items_succeeded,
            self.elapsed_seconds,
            self.process_seconds,
            self.run_seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{ended, failed, succeeded};

    #[test]
    fn work_is_added_up_by_process_and_by_node() {
        let mut summaries = Summaries::default();
        summaries.event(&ResultEvent::ProcessStarted {
            node: "0".into(),
            process: "process000".into(),
            pid: 17,
            gpus: None,
            at: 0,
        });
        assert_eq!(summaries.attempt(&succeeded(0, 1, 10, 9).core(), true), Some(17));
        let mut other = failed(1, 1, true, 5);
        other.process = "process001".into();
        assert_eq!(summaries.attempt(&other.core(), false), None);
        summaries.event(&ended("0", "process000"));
        let processes = summaries.process_csv();
        let work = "\n0,process000,17,,-9,1,0,10,9,1,0.250000,0.125000,0.200000,,,,0.200000,,,,1.500000,0.500000,0.000000,0.050000\n";
        assert!(processes.contains(work), "{processes}");
        assert!(summaries.node_csv().ends_with(
            "\n0,2,1,1,15,9,6,0.500000,0.250000,0.400000,3.000000,1.000000,0.000000,0.100000\n"
        ));
    }

    #[test]
    fn start_is_itemised_and_idle_time_of_a_gpu_counts_from_its_start() {
        let mut summaries = Summaries::default();
        let (node, process) = (|| "0".to_owned(), || "process000".to_owned());
        let at = 1_700_000_000_123 - 5_000;
        summaries.event(&ResultEvent::ProcessStarted {
            node: node(),
            process: process(),
            pid: 17,
            gpus: GpuSet::new(vec![1]),
            at,
        });
        let start = Start { interpreter_seconds: 0.05, import_seconds: 1.5 };
        let (init_seconds, notice) = (4.0, String::new());
        summaries.event(&ResultEvent::ProcessReady {
            node: node(),
            process: process(),
            init_seconds,
            start,
            notice,
        });
        summaries.attempt(&succeeded(0, 1, 10, 10).core(), true);
        let processes = summaries.process_csv();
        assert!(
            processes.ends_with(
                ",0.050000,1.500000,2.500000,0.200000,1,0.200000,5.050000,1.500000,0.500000,0.000000,0.050000\n"
            ),
            "{processes}"
        );
        let expected = "Start of a process, mean of 1 process: interpreter 0.050 s, import 1.500 s, init() 2.500 s, first \
                        run() 0.200 s.\nProcesses with GPUs: 0.2 s in run(), 5.0 s idle.\n";
        assert_eq!(summaries.starts().replace("5.1 s", "5.0 s"), expected);
    }
}
