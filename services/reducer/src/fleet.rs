//! Nodes and Python processes, as their events tell. Part of the tally, and as pure.

use std::collections::{BTreeMap, HashMap};

use protocol::{ErrorReport, ResultEvent, Waiting};

/// Waits that are remembered; more than that look alike.
const WAITING_MAX: usize = 16;

/// Who works on the job.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// Processes that are up, and whether `init()` has returned.
    up: HashMap<(String, String), bool>,
    ready: usize,
    /// Every node that has taken part.
    nodes: HashMap<String, Node>,
    /// The most processes that were up on one node at a time.
    processes_per_node_seen: u32,
    /// Failures of `init()` since one succeeded.
    init_failures: u64,
    init_error: Option<ErrorReport>,
    stopped: BTreeMap<String, String>,
    /// Oldest first.
    waiting: Vec<Waiting>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// Processes that are up.
    up: u32,
    /// It had nothing more to do.
    left: bool,
}

impl Fleet {
    pub(crate) fn apply(&mut self, event: &ResultEvent) {
        match event {
            ResultEvent::ProcessStarted { node, process, .. } => self.started(node, process),
            ResultEvent::ProcessReady { node, process, .. } => {
                self.started(node, process);
                self.init_failures = 0;
                self.init_error = None;
                if let Some(ready) = self.up.get_mut(&(node.clone(), process.clone())) {
                    self.ready += usize::from(!*ready);
                    *ready = true;
                }
                self.no_longer_waiting(node, process);
            }
            ResultEvent::InitFailed { node, process, error } => {
                self.init_failures += 1;
                self.init_error = Some((**error).clone());
                self.no_longer_waiting(node, process);
            }
            ResultEvent::ProcessEnded { node, process, .. } => {
                self.ended(&(node.clone(), process.clone()));
                self.no_longer_waiting(node, process);
            }
            ResultEvent::NodeStopped { node, cause } => {
                let processes: Vec<_> = self.up.keys().filter(|(on, _)| on == node).cloned().collect();
                processes.iter().for_each(|process| self.ended(process));
                self.waiting.retain(|waiting| waiting.node != *node);
                self.nodes.entry(node.clone()).or_default().left = cause.is_none();
                match cause {
                    Some(cause) => drop(self.stopped.insert(node.clone(), cause.clone())),
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
            | ResultEvent::Planned(_)
            | ResultEvent::PlanFailed { .. }
            | ResultEvent::Reopened { .. }
            | ResultEvent::Ended { .. }
            | ResultEvent::RowsLost { .. }
            | ResultEvent::CutShort
            | ResultEvent::Duplicates { .. } => {}
        }
    }

    pub(crate) fn attempt_ended(&mut self, node: &str, process: &str) {
        if !self.waiting.is_empty() {
            self.no_longer_waiting(node, process);
        }
    }

    fn started(&mut self, node: &str, process: &str) {
        self.stopped.remove(node);
        if self.up.contains_key(&(node.to_owned(), process.to_owned())) {
            return;
        }
        self.up.insert((node.to_owned(), process.to_owned()), false);
        let node = self.nodes.entry(node.to_owned()).or_default();
        node.left = false;
        node.up += 1;
        self.processes_per_node_seen = self.processes_per_node_seen.max(node.up);
    }

    fn ended(&mut self, process: &(String, String)) {
        if let Some(ready) = self.up.remove(process) {
            self.ready -= usize::from(ready);
            if let Some(node) = self.nodes.get_mut(&process.0) {
                node.up -= 1;
            }
        }
    }

    fn no_longer_waiting(&mut self, node: &str, process: &str) {
        self.waiting.retain(|waiting| waiting.process != process || waiting.node != node);
    }

    /// Processes that are up.
    pub fn processes_up(&self) -> usize {
        self.up.len()
    }

    /// Processes that are up and whose `init()` has returned.
    pub fn processes_ready(&self) -> usize {
        self.ready
    }

    /// Nodes that have taken part.
    pub fn nodes_seen(&self) -> usize {
        self.nodes.len()
    }

    /// Nodes that have taken part and have not left again: those that gave up are among them.
    pub fn nodes_present(&self) -> usize {
        self.nodes.values().filter(|node| !node.left).count()
    }

    /// The most processes seen up at a time on one node.
    pub fn processes_per_node_seen(&self) -> u32 {
        self.processes_per_node_seen
    }

    /// Failures of `init()` since one last succeeded.
    pub fn init_failures(&self) -> u64 {
        self.init_failures
    }

    /// The latest of them.
    pub fn init_error(&self) -> Option<&ErrorReport> {
        self.init_error.as_ref()
    }

    /// Nodes that gave up, and why.
    pub fn stopped(&self) -> &BTreeMap<String, String> {
        &self.stopped
    }

    /// What takes unusually long, latest first.
    pub fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter().rev()
    }

    /// Whether processes were started and none has got through `init()`, or is being replaced after it did not.
    pub fn is_in_init(&self) -> bool {
        self.ready == 0 && (!self.up.is_empty() || self.init_failures > 0)
    }
}

#[cfg(test)]
mod tests {
    use protocol::SlotPhase;

    use super::*;

    fn started(process: &str) -> ResultEvent {
        ResultEvent::ProcessStarted { node: "0".into(), process: process.into(), pid: 1 }
    }

    fn ready(process: &str) -> ResultEvent {
        ResultEvent::ProcessReady { node: "0".into(), process: process.into(), init_seconds: 0.1 }
    }

    fn ended(process: &str) -> ResultEvent {
        ResultEvent::ProcessEnded { node: "0".into(), process: process.into(), return_code: -9 }
    }

    fn init_failed(process: &str) -> ResultEvent {
        ResultEvent::InitFailed { node: "0".into(), process: process.into(), error: Box::default() }
    }

    fn waiting(process: &str) -> ResultEvent {
        ResultEvent::Waiting(Box::new(Waiting {
            node: "0".into(),
            process: process.into(),
            mini_batch: Some(4),
            phase: SlotPhase::Run,
            seconds: 40,
            stack: String::new(),
        }))
    }

    fn fleet(events: &[ResultEvent]) -> Fleet {
        let mut fleet = Fleet::default();
        events.iter().for_each(|event| fleet.apply(event));
        fleet
    }

    #[test]
    fn processes_come_and_go() {
        let events = [started("a"), started("b"), started("b"), ready("a"), ended("b"), ended("b"), started("c")];
        let fleet = fleet(&events);
        assert_eq!((fleet.processes_up(), fleet.processes_ready(), fleet.processes_per_node_seen()), (2, 1, 2));
        assert!(!fleet.is_in_init());
    }

    #[test]
    fn a_node_that_had_nothing_to_do_is_seen_but_not_present() {
        let stopped = |node: &str, cause: Option<&str>| ResultEvent::NodeStopped {
            node: node.into(),
            cause: cause.map(str::to_owned),
        };
        let mut fleet = fleet(&[started("a"), stopped("0", None), stopped("1", Some("no Python"))]);
        assert_eq!((fleet.nodes_seen(), fleet.nodes_present(), fleet.stopped().len()), (2, 1, 1));
        fleet.apply(&started("a"));
        assert_eq!((fleet.nodes_seen(), fleet.nodes_present()), (2, 2));
    }

    #[test]
    fn one_good_init_clears_the_failures_before_it() {
        let mut fleet = fleet(&[started("a"), init_failed("a"), ended("a")]);
        assert_eq!(fleet.init_failures(), 1);
        assert!(fleet.is_in_init(), "it is being replaced");
        fleet.apply(&started("b"));
        fleet.apply(&ready("b"));
        assert_eq!(fleet.init_failures(), 0);
    }

    #[test]
    fn a_stopped_node_that_comes_back_is_not_stopped() {
        let stopped = ResultEvent::NodeStopped { node: "0".into(), cause: Some("init() keeps failing".into()) };
        let mut fleet = fleet(&[started("a"), waiting("a"), stopped]);
        assert_eq!((fleet.stopped().len(), fleet.processes_up(), fleet.waiting().count()), (1, 0, 0));
        fleet.apply(&started("b"));
        assert!(fleet.stopped().is_empty());
    }

    #[test]
    fn a_wait_ends_with_the_attempt() {
        let mut fleet = fleet(&[waiting("a"), waiting("b"), waiting("a")]);
        assert_eq!(fleet.waiting().map(|waiting| &*waiting.process).collect::<Vec<_>>(), ["a", "b"]);
        fleet.attempt_ended("0", "a");
        assert_eq!(fleet.waiting().count(), 1);
    }
}
