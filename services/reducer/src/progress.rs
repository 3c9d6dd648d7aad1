//! The progress of the job, for a progress bar and for `progress.json`.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use protocol::{ProcessUsage, Progress, RunningMiniBatch, Waiting, milliseconds_since_epoch};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::nodes::Nodes;
use crate::{Peers, Reducer, Workers};

/// Maximum number of remembered waits. [`Nodes`] knows 16 of them.
const WAITS_MAX: usize = 64;
/// Running mini-batches, and processes with their usage, that the progress lists.
const RUNNING_MAX: usize = 2000;
/// A node reports again every minute that a job waits there. After a longer silence, the node has left the job.
const WAIT_OF_NODE_MAX: Duration = Duration::from_secs(150);

/// Time of the last report of each wait.
#[derive(Debug, Default)]
pub(crate) struct Waits(HashMap<(String, String), Instant>);

impl Waits {
    /// Records the time of a new report.
    pub fn note(&mut self, waiting: &Waiting, nodes: &Nodes) {
        if self.0.len() >= WAITS_MAX {
            let now: HashSet<_> =
                nodes.waiting().map(|waiting| (&*waiting.node, &*waiting.process)).collect();
            self.0.retain(|(node, process), _| now.contains(&(&**node, &**process)));
        }
        self.0.insert((waiting.node.clone(), waiting.process.clone()), Instant::now());
    }

    /// Returns the waits of a job that are not over, latest first, with the time since the report of each one added.
    pub fn at(&self, now: Instant, nodes: &Nodes) -> Vec<Waiting> {
        let until_now = |waiting: &Waiting| {
            let noted = self.0.get(&(waiting.node.clone(), waiting.process.clone()));
            let more = noted.map_or(Duration::ZERO, |noted| now.saturating_duration_since(*noted));
            let is_over = waiting.process.is_empty() && more > WAIT_OF_NODE_MAX;
            (!is_over)
                .then(|| Waiting { seconds: waiting.seconds + more.as_secs(), ..waiting.clone() })
        };
        nodes.waiting().filter_map(until_now).collect()
    }
}

impl Reducer {
    /// Returns the progress of a job before its first event.
    pub fn no_progress() -> Progress {
        let now = milliseconds_since_epoch();
        Progress { at: now, started_at: now, ..Progress::default() }
    }

    /// Returns the progress for a progress bar; it changes with every commit.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Returns the waits of the job, latest first, with the durations until now.
    pub(crate) fn waiting(&self) -> Vec<Waiting> {
        self.judge.waits.at(Instant::now(), self.tally.nodes())
    }

    pub(crate) fn show_progress(&mut self) {
        let workers = (self.options.workers)();
        self.has_entries |= !workers.nodes.is_empty();
        let (processes, nodes_at_work) = self.at_work(&workers);
        let runs = running(&workers);
        self.pace.note(
            self.judge.job_liveness.attended(),
            self.tally.ended(),
            processes,
            !runs.is_empty(),
        );
        let nodes = self.tally.nodes();
        let [elapsed, worked] = [self.elapsed(), self.worked()].map(seconds);
        self.progress.send_modify(|progress| {
            progress.at = milliseconds_since_epoch();
            (progress.elapsed_seconds, progress.worked_seconds) = (elapsed, worked);
            self.tally.write_counts(progress);
            progress.silent_since = self.workers_silent_since();
            progress.trouble = self.trouble.borrow().clone();
            progress.nodes = self.nodes_heard();
            progress.began_at = nodes.began_at();
            let is_at_work = progress.nodes > 0 && progress.silent_since.is_none();
            progress.rate = self.pace.rate().filter(|_| is_at_work);
            let remaining = self.remaining().filter(|_| is_at_work);
            progress.remaining_seconds =
                remaining.map(|remaining| remaining.as_secs_f64().ceil() as u64);
            progress.run_seconds = self.speculation.run_times.most();
            progress.copies = self.copies();
            (progress.processes, progress.nodes_at_work) = (processes, nodes_at_work);
            progress.usage = usage(&workers);
            progress.running = runs;
            progress.notes = nodes.notes().collect();
            progress.waiting = self.waiting();
        });
    }

    /// Returns the remaining time; `None`: unknown.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let planned = self.tally.planned()?.mini_batches;
        self.pace.time_for(planned.saturating_sub(self.tally.ended()))
    }

    /// Returns the number of Python processes, and of nodes that have any. On a target, the entries
    /// of nodes have it: a killed node has reported no end of its processes. Their first results
    /// may come before their first entries.
    pub(crate) fn at_work(&self, workers: &Workers) -> (u64, u64) {
        match self.peers {
            Peers::Many if self.has_entries => {
                let processes =
                    || workers.nodes.values().map(|running| u64::from(running.processes));
                (processes().sum(), processes().filter(|processes| *processes > 0).count() as u64)
            }
            Peers::Alone | Peers::Many => {
                let nodes = self.tally.nodes();
                (nodes.processes_up() as u64, nodes.working().count() as u64)
            }
        }
    }

    /// Returns the number of Python processes on nodes where one has completed `init()`.
    pub(crate) fn processes_ready(&self, workers: &Workers) -> u64 {
        match self.peers {
            Peers::Many if self.has_entries => {
                let ready = workers.nodes.values().filter(|running| running.is_ready);
                ready.map(|running| u64::from(running.processes)).sum()
            }
            Peers::Alone | Peers::Many => self.tally.nodes().processes_ready() as u64,
        }
    }

    /// Writes the progress, even if it has not changed: it is the reducer's heartbeat.
    pub(crate) async fn write_progress(&self) {
        let progress = self.progress.borrow().clone();
        if let Err(error) = self.store.put_progress(&progress).await {
            tracing::warn!(error = %format!("{error:#}"), "cannot write the progress; the job continues without it");
        }
    }
}

/// Returns seconds to the millisecond, which survive JSON exactly.
fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1000.0
}

/// Returns the usage of processes.
fn usage(workers: &Workers) -> Vec<ProcessUsage> {
    let all = workers.nodes.values().flat_map(|running| &running.activity.usage);
    all.take(RUNNING_MAX).cloned().collect()
}

/// Returns the mini-batches that run, those that began first at the beginning.
fn running(workers: &Workers) -> Vec<RunningMiniBatch> {
    let mut running: Vec<_> =
        workers.nodes.values().flat_map(|running| running.activity.running.clone()).collect();
    running.sort_by_key(|running| (running.since, running.mini_batch));
    running.truncate(RUNNING_MAX);
    running
}

#[cfg(test)]
mod tests {
    use protocol::ResultEvent;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn seconds_of_a_wait_advance_between_its_reports_and_a_node_that_reports_no_more_has_left()
     {
        let (mut waits, mut nodes) = (Waits::default(), Nodes::default());
        let reported = crate::fixtures::waiting("process000", 0, 16);
        nodes.apply(&ResultEvent::Waiting(Box::new(reported.clone())));
        waits.note(&reported, &nodes);
        tokio::time::advance(Duration::from_secs(25)).await;
        let seconds = |waits: &Waits, nodes: &Nodes| {
            waits
                .at(Instant::now(), nodes)
                .iter()
                .map(|waiting| waiting.seconds)
                .collect::<Vec<_>>()
        };
        assert_eq!(seconds(&waits, &nodes), [41]);
        waits.note(&reported, &nodes);
        assert_eq!(seconds(&waits, &nodes), [16], "a new report counts from its own time");
        let of_node = Waiting {
            process: String::new(),
            detail: "its memory is short".into(),
            ..reported.clone()
        };
        nodes.apply(&ResultEvent::Waiting(Box::new(of_node.clone())));
        waits.note(&of_node, &nodes);
        tokio::time::advance(Duration::from_secs(150)).await;
        assert_eq!(seconds(&waits, &nodes), [166, 166]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(
            seconds(&waits, &nodes),
            [167],
            "a node reports every minute, and a process has no more to report"
        );
    }
}
