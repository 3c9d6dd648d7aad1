//! The state of nodes and Python processes, derived from their events. Part of the tally, and pure like it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use protocol::words::counted;
use protocol::{ErrorReport, ResultEvent, Waiting};

use crate::exclusions::Exclusions;

/// Waits that are kept; further ones would add no information.
const WAITING_MAX: usize = 16;
/// Notices of nodes that are kept; a fleet of many nodes repeats the same ones.
const NOTICES_MAX: usize = 8;
/// Ended processes of a node that are remembered: a queue may deliver the start of a process again, or after its end.
const ENDED_MAX: usize = 64;

/// The nodes and processes that work on a job.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// Running processes, and whether `init()` has returned.
    up: HashMap<(String, String), bool>,
    ready: usize,
    /// Wall clock at which the first process started.
    began_at: Option<u64>,
    /// How often `init()` of a process has returned.
    times_ready: u64,
    /// Every node that has worked on the job.
    nodes: HashMap<String, Node>,
    /// Maximum number of concurrent processes on one node.
    processes_per_node_seen: u32,
    /// Failures of `init()` since its last success.
    init_failures: u64,
    init_error: Option<ErrorReport>,
    stopped: BTreeMap<String, String>,
    stopped_nodes: StoppedNodes,
    /// Oldest first.
    waiting: Vec<Waiting>,
    /// Live processes that were replaced, by the word of their wear.
    replaced: BTreeMap<&'static str, u64>,
    notices: Vec<String>,
    /// Nodes that must not work on the job.
    pub(crate) exclusions: Exclusions,
}

/// Nodes that have stopped because the script did not start, since it last worked anywhere. A stopped node tries again
/// after a while.
#[derive(Clone, Debug, Default)]
struct StoppedNodes {
    nodes: BTreeSet<String>,
    times: usize,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// Running processes.
    up: u32,
    /// The last processes that ended, and when. A later one has another name, unless its node has lost its log files.
    ended: VecDeque<(String, u64)>,
    /// Processes whose `init()` has failed since its last success on any node.
    init_failed: BTreeSet<String>,
    /// The latest process whose `init()` has returned.
    last_ready: String,
    /// Whether it ended without work.
    left: bool,
}

impl Nodes {
    pub(crate) fn apply(&mut self, event: &ResultEvent) {
        match event {
            ResultEvent::ProcessStarted { node, process, at, .. } => {
                self.started_at(node, process, *at);
                self.began_at =
                    [self.began_at, Some(*at).filter(|at| *at > 0)].into_iter().flatten().min();
                self.no_longer_waiting(node, "");
            }
            ResultEvent::ProcessReady { node, process, notice, .. } => {
                self.started(node, process);
                self.notice(notice);
                self.init_succeeded(node, process);
                if let Some(ready) = self.up.get_mut(&(node.clone(), process.clone())) {
                    self.ready += usize::from(!*ready);
                    self.times_ready += u64::from(!*ready);
                    *ready = true;
                }
                self.no_longer_waiting(node, process);
            }
            ResultEvent::InitFailed { node, process, error } => {
                let on = self.nodes.entry(node.clone()).or_default();
                // A queue may deliver it again, or after what followed it.
                if !on.left
                    && !self.stopped.contains_key(node)
                    && number(process) > number(&on.last_ready)
                    && on.init_failed.insert(process.clone())
                {
                    self.init_failures += 1;
                    self.init_error = Some((**error).clone());
                }
                self.no_longer_waiting(node, process);
            }
            ResultEvent::ProcessEnded { node, process, wear, notice, at, .. } => {
                let is_new = self.ended(&(node.clone(), process.clone()), *at);
                if let Some(wear) = wear.as_ref().filter(|_| is_new) {
                    *self.replaced.entry(wear.word()).or_default() += 1;
                }
                self.notice(notice);
                self.no_longer_waiting(node, process);
            }
            ResultEvent::NodeStopped { node, cause } => {
                let processes: Vec<_> =
                    self.up.keys().filter(|(on, _)| on == node).cloned().collect();
                for process in &processes {
                    // Its own event tells when.
                    self.ended(process, u64::MAX);
                }
                self.waiting.retain(|waiting| waiting.node != *node);
                match self.nodes.get_mut(node) {
                    Some(node) => {
                        node.left = cause.is_none();
                        // The time until another node starts a process does not count as time in `init()`.
                        self.init_failures -= std::mem::take(&mut node.init_failed).len() as u64;
                    }
                    // Without a cause, the job only waited there.
                    None if cause.is_none() => {}
                    None => drop(self.nodes.insert(node.clone(), Node::default())),
                }
                match cause {
                    Some(cause) => {
                        self.stopped.insert(node.clone(), cause.clone());
                        self.stopped_nodes.nodes.insert(node.clone());
                        self.stopped_nodes.times += 1;
                    }
                    None => drop(self.stopped.remove(node)),
                }
            }
            ResultEvent::Waiting(waiting) => {
                self.no_longer_waiting(&waiting.node, &waiting.process);
                if self.waiting.len() == WAITING_MAX {
                    self.waiting.remove(0);
                }
                self.waiting.push((**waiting).clone());
            }
            ResultEvent::Job { .. }
            | ResultEvent::Attempt(_)
            | ResultEvent::Working { .. }
            | ResultEvent::Planned(_)
            | ResultEvent::PlanFailed { .. }
            | ResultEvent::Round(_)
            | ResultEvent::Ended { .. }
            | ResultEvent::RowsLost { .. }
            | ResultEvent::CutShort
            | ResultEvent::Duplicates { .. } => {}
        }
    }

    pub(crate) fn attempt_ended(&mut self, node: &str, process: &str) {
        if self.stopped_nodes.times > 0 {
            self.stopped_nodes = StoppedNodes::default();
        }
        if !self.waiting.is_empty() {
            self.waiting.retain(|waiting| {
                waiting.node != node || ![process, ""].contains(&&*waiting.process)
            });
        }
    }

    fn started_at(&mut self, node: &str, process: &str, at: u64) {
        if let Some(on) = self.nodes.get_mut(node)
            && let Some(position) =
                on.ended.iter().position(|(name, ended_at)| name == process && at > *ended_at)
        {
            // A restarted node counts its processes from the beginning.
            on.ended.remove(position);
            on.last_ready.clear();
        }
        self.started(node, process);
    }

    fn started(&mut self, node: &str, process: &str) {
        let has_ended =
            self.nodes.get(node).is_some_and(|on| on.ended.iter().any(|(name, _)| name == process));
        if has_ended || self.up.contains_key(&(node.to_owned(), process.to_owned())) {
            return;
        }
        self.stopped.remove(node);
        self.up.insert((node.to_owned(), process.to_owned()), false);
        let node = self.nodes.entry(node.to_owned()).or_default();
        node.left = false;
        node.up += 1;
        self.processes_per_node_seen = self.processes_per_node_seen.max(node.up);
    }

    fn init_succeeded(&mut self, node: &str, process: &str) {
        self.stopped_nodes = StoppedNodes::default();
        if self.init_failures > 0 {
            self.init_failures = 0;
            self.init_error = None;
            self.nodes.values_mut().for_each(|node| node.init_failed.clear());
        }
        if let Some(node) = self.nodes.get_mut(node)
            && number(process) > number(&node.last_ready)
        {
            node.last_ready = process.to_owned();
        }
    }

    /// Returns whether the process was running.
    fn ended(&mut self, process: &(String, String), at: u64) -> bool {
        let (node, name) = process;
        let node = self.nodes.entry(node.clone()).or_default();
        match node.ended.iter_mut().find(|(ended, _)| ended == name) {
            Some((_, ended_at)) => *ended_at = at.min(*ended_at),
            None => {
                node.ended.truncate(ENDED_MAX - 1);
                node.ended.push_front((name.clone(), at));
            }
        }
        let Some(ready) = self.up.remove(process) else { return false };
        self.ready -= usize::from(ready);
        node.up -= 1;
        true
    }

    fn notice(&mut self, notice: &str) {
        let is_new = !notice.is_empty() && self.notices.iter().all(|known| known != notice);
        if is_new && self.notices.len() < NOTICES_MAX {
            self.notices.push(notice.to_owned());
        }
    }

    fn no_longer_waiting(&mut self, node: &str, process: &str) {
        self.waiting.retain(|waiting| waiting.process != process || waiting.node != node);
    }

    /// Returns the number of running processes.
    pub fn processes_up(&self) -> usize {
        self.up.len()
    }

    /// Returns the wall clock at which the first process started, in milliseconds since the epoch.
    pub fn began_at(&self) -> Option<u64> {
        self.began_at
    }

    /// Returns the number of running processes whose `init()` has returned.
    pub fn processes_ready(&self) -> usize {
        self.ready
    }

    /// Returns how often `init()` of a process has returned.
    pub(crate) fn times_ready(&self) -> u64 {
        self.times_ready
    }

    /// Returns the number of nodes that have worked on the job.
    pub fn nodes_seen(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of nodes that have not left, including those that gave up.
    pub fn nodes_present(&self) -> usize {
        self.nodes.values().filter(|node| !node.left).count()
    }

    /// Returns the maximum number of concurrent processes on one node.
    pub fn processes_per_node_seen(&self) -> u32 {
        self.processes_per_node_seen
    }

    /// Returns the number of failures of `init()` since its last success.
    pub fn init_failures(&self) -> u64 {
        self.init_failures
    }

    /// Returns the latest of these failures.
    pub fn init_error(&self) -> Option<&ErrorReport> {
        self.init_error.as_ref()
    }

    /// Returns the nodes that have processes of the job.
    pub(crate) fn working(&self) -> impl Iterator<Item = &str> {
        let works = |(name, node): &(&String, &Node)| {
            node.up > 0 && !node.left && !self.stopped.contains_key(*name)
        };
        self.nodes.iter().filter(works).map(|(name, _)| name.as_str())
    }

    /// Returns the nodes that gave up, with their causes.
    pub fn stopped(&self) -> &BTreeMap<String, String> {
        &self.stopped
    }

    /// Returns how many nodes have stopped because the script did not start, and how often they have, since it last worked
    /// anywhere.
    pub fn stopped_nodes(&self) -> (usize, usize) {
        (self.stopped_nodes.nodes.len(), self.stopped_nodes.times)
    }

    /// Returns in sentences how many processes were replaced and why, which nodes must not work on
    /// the job, and the notices of nodes.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let total: u64 = self.replaced.values().sum();
        let why: Vec<_> =
            self.replaced.iter().map(|(word, count)| format!("{count} {}", cause(word))).collect();
        let were = if total == 1 { "was" } else { "were" };
        let replaced = format!("{} {were} replaced: {}", counted(total, "process"), why.join(", "));
        let excluded = self
            .exclusions
            .excluded()
            .map(|(node, why)| format!("node {node} is excluded from the job: {why}"));
        (total > 0)
            .then_some(replaced)
            .into_iter()
            .chain(excluded)
            .chain(self.notices.iter().cloned())
    }

    /// Returns the processes and nodes that take unusually long, latest first.
    pub fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter().rev()
    }

    /// Whether processes are running or being replaced, and none has completed `init()`.
    pub fn is_in_init(&self) -> bool {
        self.ready == 0 && (!self.up.is_empty() || self.init_failures > 0)
    }
}

/// Returns a key by which the processes of a node have the order of their starts: their names end in numbers.
fn number(process: &str) -> (usize, &str) {
    (process.len(), process)
}

/// Returns why processes were replaced, as the end of a sentence.
fn cause(wear: &str) -> &'static str {
    match wear {
        "runs" => "after process_max_runs",
        "memory" => "above process_max_memory",
        "failures" => "after many failures",
        "gpu" => "after a GPU failure",
        _ => "for another reason",
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Start, Wear};

    use super::*;

    fn started(process: &str) -> ResultEvent {
        crate::fixtures::started("0", process)
    }

    fn ready_with(process: &str, notice: &str) -> ResultEvent {
        let (node, process, notice) = ("0".into(), process.into(), notice.into());
        ResultEvent::ProcessReady {
            node,
            process,
            init_seconds: 0.1,
            start: Start::default(),
            notice,
        }
    }

    fn ready(process: &str) -> ResultEvent {
        ready_with(process, "")
    }

    fn worn_out(process: &str, wear: Option<Wear>) -> ResultEvent {
        let (node, process, notice) = ("0".into(), process.into(), String::new());
        ResultEvent::ProcessEnded { node, process, return_code: -9, at: 0, wear, notice }
    }

    fn ended(process: &str) -> ResultEvent {
        worn_out(process, None)
    }

    fn init_failed(process: &str) -> ResultEvent {
        ResultEvent::InitFailed { node: "0".into(), process: process.into(), error: Box::default() }
    }

    fn waiting(process: &str) -> ResultEvent {
        ResultEvent::Waiting(Box::new(crate::fixtures::waiting(process, 4, 40)))
    }

    fn nodes_after(events: &[ResultEvent]) -> Nodes {
        let mut nodes = Nodes::default();
        events.iter().for_each(|event| nodes.apply(event));
        nodes
    }

    #[test]
    fn repeated_starts_and_ends_count_once() {
        let events = [
            started("a"),
            started("b"),
            started("b"),
            ready("a"),
            ended("b"),
            ended("b"),
            started("c"),
        ];
        let nodes = nodes_after(&events);
        assert_eq!(
            (nodes.processes_up(), nodes.processes_ready(), nodes.processes_per_node_seen()),
            (2, 1, 2)
        );
        assert!(!nodes.is_in_init());
    }

    #[test]
    fn replaced_processes_are_counted_once_and_notices_kept_once() {
        let runs = || Some(Wear::Runs { runs: 9 });
        let events = [
            started("a"),
            started("b"),
            ready_with("a", "too large"),
            ready_with("b", "too large"),
        ];
        let mut nodes = nodes_after(&events);
        for (process, wear) in
            [("a", runs()), ("a", runs()), ("b", Some(Wear::Failures { failures: 11 }))]
        {
            nodes.apply(&worn_out(process, wear));
        }
        let notes: Vec<_> = nodes.notes().collect();
        let replaced = "2 processes were replaced: 1 after many failures, 1 after process_max_runs";
        assert_eq!(notes, [replaced, "too large"]);
        assert_eq!(nodes_after(&[started("a"), ended("a")]).notes().count(), 0);
    }

    #[test]
    fn node_that_left_is_seen_but_not_present() {
        let stopped = |node: &str, cause: Option<&str>| ResultEvent::NodeStopped {
            node: node.into(),
            cause: cause.map(str::to_owned),
        };
        let mut nodes =
            nodes_after(&[started("a"), stopped("0", None), stopped("1", Some("no Python"))]);
        assert_eq!((nodes.nodes_seen(), nodes.nodes_present(), nodes.stopped().len()), (2, 1, 1));
        nodes.apply(&started("b"));
        assert_eq!((nodes.nodes_seen(), nodes.nodes_present()), (2, 2));
    }

    #[test]
    fn successful_init_clears_the_failures_before_it() {
        let mut nodes = nodes_after(&[started("a"), init_failed("a"), ended("a")]);
        assert_eq!(nodes.init_failures(), 1);
        assert!(nodes.is_in_init(), "it is being replaced");
        nodes.apply(&started("b"));
        nodes.apply(&ready("b"));
        assert_eq!(nodes.init_failures(), 0);
    }

    #[test]
    fn process_whose_start_is_delivered_after_its_end_does_not_run() {
        for events in [
            [started("a"), ended("a"), started("a")],
            [ended("a"), started("a"), ready("a")],
            [ready("a"), ended("a"), ready("a")],
        ] {
            let nodes = nodes_after(&events);
            assert_eq!((nodes.processes_up(), nodes.processes_ready()), (0, 0), "{events:?}");
            assert!(!nodes.is_in_init(), "{events:?}");
        }
    }

    #[test]
    fn processes_of_a_node_that_has_lost_its_log_files_run_again() {
        let at = |moment: u64| {
            let ResultEvent::ProcessStarted { node, process, pid, gpus, .. } = started("a") else {
                unreachable!()
            };
            ResultEvent::ProcessStarted { node, process, pid, gpus, at: moment }
        };
        let ended_at = |moment: u64| {
            let (node, process, notice) = ("0".into(), "a".into(), String::new());
            ResultEvent::ProcessEnded {
                node,
                process,
                return_code: -9,
                at: moment,
                wear: None,
                notice,
            }
        };
        let events = [at(10), ready("a"), ended_at(20), at(10)];
        assert_eq!(nodes_after(&events).processes_up(), 0, "it is delivered again");
        let nodes = nodes_after(&[at(10), ready("a"), ended_at(20), at(30), init_failed("a")]);
        assert_eq!((nodes.processes_up(), nodes.init_failures()), (1, 1), "the node was restarted");
    }

    #[test]
    fn failure_of_init_counts_once_and_not_after_what_followed_it() {
        let left = || ResultEvent::NodeStopped { node: "0".into(), cause: None };
        for (events, failures) in [
            (vec![started("a"), init_failed("a"), init_failed("a"), ended("a")], 1),
            (vec![started("b"), ready("b"), ended("b"), init_failed("a")], 0),
            (
                vec![
                    init_failed("a"),
                    started("b"),
                    ready("b"),
                    ended("b"),
                    init_failed("a"),
                    init_failed("c"),
                ],
                1,
            ),
            (vec![started("a"), ended("a"), left(), init_failed("a")], 0),
            (vec![started("a"), init_failed("a"), ended("a"), left()], 0),
        ] {
            assert_eq!(nodes_after(&events).init_failures(), failures, "{events:?}");
        }
    }

    #[test]
    fn stopped_node_that_returns_is_not_stopped() {
        let stopped = ResultEvent::NodeStopped {
            node: "0".into(),
            cause: Some("init() keeps failing".into()),
        };
        let mut nodes = nodes_after(&[started("a"), waiting("a"), stopped]);
        assert_eq!(
            (nodes.stopped().len(), nodes.processes_up(), nodes.waiting().count()),
            (1, 0, 0)
        );
        nodes.apply(&started("b"));
        assert!(nodes.stopped().is_empty());
    }

    #[test]
    fn wait_of_a_node_ends_with_its_next_event() {
        let mut nodes = nodes_after(&[waiting("")]);
        nodes.apply(&started("a"));
        assert_eq!(nodes.waiting().count(), 0);
        nodes.apply(&waiting(""));
        nodes.attempt_ended("1", "a");
        assert_eq!(nodes.waiting().count(), 1, "another node's attempt");
        nodes.attempt_ended("0", "b");
        assert_eq!(nodes.waiting().count(), 0);
    }

    #[test]
    fn wait_of_a_process_ends_with_its_attempt() {
        let mut nodes = nodes_after(&[waiting("a"), waiting("b"), waiting("a")]);
        assert_eq!(
            nodes.waiting().map(|waiting| &*waiting.process).collect::<Vec<_>>(),
            ["a", "b"]
        );
        nodes.attempt_ended("0", "a");
        assert_eq!(nodes.waiting().count(), 1);
    }
}
