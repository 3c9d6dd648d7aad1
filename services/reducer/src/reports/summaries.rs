//! `process_summary.csv` and `node_summary.csv`: the work of each process and node.

use std::collections::BTreeMap;
use std::fmt::Write;

use protocol::{AttemptRef, ProcessName, ResultEvent};

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
}

const WORK_HEADER: &str = "Succeeded Attempts,Failed Attempts,Items,Succeeded Items,Failed Items,Elapsed Seconds,\
    Process Seconds,Run Method Seconds";

impl Summaries {
    /// Applies any event except attempts.
    pub fn event(&mut self, event: &ResultEvent) {
        match event {
            ResultEvent::ProcessStarted { node, process, pid } => {
                let process = self.process(node, process);
                process.pid = Some(*pid);
                process.return_code = None;
            }
            ResultEvent::ProcessReady { node, process, init_seconds } => {
                self.process(node, process).init_seconds = Some(*init_seconds);
            }
            ResultEvent::ProcessEnded { node, process, return_code } => {
                self.process(node, process).return_code = Some(*return_code);
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
                self.last = Some((ProcessName { node: node.to_owned(), process: process.to_owned() }, position));
                position
            }
        };
        &mut self.processes[position]
    }

    pub fn process_csv(&self) -> String {
        let mut text = format!("Node,Process Name,Process,Init Seconds,Return Code,{WORK_HEADER}\n");
        for (node, processes) in &self.nodes {
            for (name, &position) in processes {
                let process = &self.processes[position];
                let pid = process.pid.map_or_else(String::new, |pid| pid.to_string());
                let init = process.init_seconds.map_or_else(String::new, |seconds| format!("{seconds:.6}"));
                let code = process.return_code.map_or_else(String::new, |code| code.to_string());
                let _ = writeln!(text, "{node},{name},{pid},{init},{code},{}", process.work.csv());
            }
        }
        text
    }

    pub fn node_csv(&self) -> String {
        let mut text = format!("Node,Processes,{WORK_HEADER}\n");
        for (node, processes) in &self.nodes {
            let mut total = Work::default();
            processes.values().for_each(|&position| total.add(&self.processes[position].work));
            let started = processes.keys().filter(|name| !name.is_empty()).count();
            let _ = writeln!(text, "{node},{started},{}", total.csv());
        }
        text
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
    use crate::fixtures::{failed, succeeded};

    #[test]
    fn work_is_added_up_by_process_and_by_node() {
        let mut summaries = Summaries::default();
        summaries.event(&ResultEvent::ProcessStarted { node: "0".into(), process: "process000".into(), pid: 17 });
        assert_eq!(summaries.attempt(&succeeded(0, 1, 10, 9).core(), true), Some(17));
        let mut other = failed(1, 1, true, 5);
        other.process = "process001".into();
        assert_eq!(summaries.attempt(&other.core(), false), None);
        summaries.event(&ResultEvent::ProcessEnded { node: "0".into(), process: "process000".into(), return_code: -9 });
        let processes = summaries.process_csv();
        assert!(processes.contains("\n0,process000,17,,-9,1,0,10,9,1,0.250000,0.125000,0.200000\n"), "{processes}");
        assert!(summaries.node_csv().ends_with("\n0,2,1,1,15,9,6,0.500000,0.250000,0.400000\n"));
    }
}
