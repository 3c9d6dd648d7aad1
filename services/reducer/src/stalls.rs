//! Decides when a job without progress fails: no process starts, `init()` keeps failing, or no mini-batch ends. Pure:
//! nodes and durations in, a cause out.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::words::counted;
use protocol::{ErrorReport, Waiting, one_line};

use crate::Tally;
use crate::failures::error_sentence;
use crate::nodes::Nodes;
use crate::thresholds::Limits;

/// Durations to compare with limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Elapsed {
    /// Time since the start or the last resumption of the job.
    pub since_start: Duration,
    /// Time since a mini-batch was created, the first process started, or an attempt ended; `None` before the first
    /// mini-batch.
    pub since_progress: Option<Duration>,
    /// Time since the start of processes of which none has completed `init()`; `None` if one has, or none was started.
    pub in_init: Option<Duration>,
}

/// Why a job without progress fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The cause.
    pub cause: String,
    /// The process that the job waits for, as a failure.
    pub error: Option<Box<ErrorReport>>,
}

impl Stall {
    /// Category of the failure.
    const CATEGORY: &str = "NoProgress";

    fn of(cause: String) -> Self {
        Self { cause, error: None }
    }

    /// Completes a cause by the wait of the job.
    fn waiting(cause: &str, nodes: &Nodes, waits: &[Waiting]) -> Self {
        let waiting = waits.first();
        let of_process = waiting.filter(|waiting| !waiting.process.is_empty());
        let error = of_process.map(|waiting| ErrorReport {
            category: Self::CATEGORY.to_owned(),
            message: waiting.to_string(),
            traceback: waiting.stack.clone(),
            printed: waiting.printed.clone(),
            ..ErrorReport::default()
        });
        Self { cause: format!("{cause}{}", waits_for(nodes, waiting)), error: error.map(Box::new) }
    }
}

/// Nodes on which a job of a target must fail to start before it fails, as long as others may run it: a node may lack
/// something that the others have.
pub const NODES_TRIED: usize = 3;
/// How often these nodes may stop in all. Each tries again after a while, perhaps before a node that has not tried yet.
const STOPS_MAX: usize = 2 * NODES_TRIED;

/// Returns why no process will ever be ready: `init()` failed too often or takes too long, or all
/// nodes stopped. `waits`: the current waits of the job, latest first. `able`: some nodes that may run the job; `None`: not
/// known yet.
pub fn init_failure(
    nodes: &Nodes,
    waits: impl FnOnce() -> Vec<Waiting>,
    limits: &Limits,
    elapsed: &Elapsed,
    able: Option<&BTreeSet<String>>,
) -> Option<Stall> {
    let nodes_needed = limits.peers.nodes_needed(limits.node_count, nodes);
    let (failed, times) = nodes.stopped_nodes();
    let is_other = |node: &String| !nodes.stopped().contains_key(node);
    let others_try = failed < NODES_TRIED
        && times < STOPS_MAX
        && able.is_none_or(|able| able.iter().any(is_other));
    if nodes.stopped().len() as u64 >= nodes_needed && !others_try {
        let (node, cause) = nodes.stopped().first_key_value()?;
        let others = match nodes.stopped().len() {
            1 => String::new(),
            nodes => format!(" ({nodes} nodes stopped)"),
        };
        return Some(Stall::of(format!("Node {node} stopped: {}{others}", one_line(cause))));
    }
    let failures_max = 2 * nodes_needed * processes_per_node(nodes, limits);
    if !others_try
        && nodes.processes_ready() == 0
        && elapsed.since_start > limits.init_failure_age
        && nodes.init_failures() >= failures_max
    {
        let error = nodes
            .init_error()
            .map_or_else(|| ".".to_owned(), |error| format!(": {}", error_sentence(error)));
        let times = counted(nodes.init_failures(), "time");
        return Some(Stall::of(format!(
            "init() failed {times} and succeeded in no process{error}"
        )));
    }
    let in_init_max = 3 * limits.run_invocation_timeout + Duration::from_secs(30);
    if elapsed.in_init.is_some_and(|in_init| in_init > in_init_max) {
        let seconds = in_init_max.as_secs();
        let cause = format!(
            "No process finished init() within {seconds} seconds (3 * run_invocation_timeout + 30)."
        );
        return Some(Stall::waiting(&cause, nodes, &waits()));
    }
    None
}

fn processes_per_node(nodes: &Nodes, limits: &Limits) -> u64 {
    u64::from(limits.process_count_per_node.unwrap_or(nodes.processes_per_node_seen()).max(1))
}

/// Returns why a job without progress fails. `waits`: its current waits, latest first.
pub fn stalled(
    tally: &Tally,
    waits: impl FnOnce() -> Vec<Waiting>,
    limits: &Limits,
    elapsed: &Elapsed,
) -> Option<Stall> {
    match elapsed.since_progress {
        None if elapsed.since_start > limits.first_task_creation_timeout => {
            let seconds = counted(limits.first_task_creation_timeout.as_secs(), "second");
            Some(Stall::of(format!("Unable to create any task within {seconds}.")))
        }
        // The first process has its own limit. On a target, workers may start at any time.
        Some(_) if limits.peers.is_deserted(tally.nodes()) => {
            let longest = limits
                .peers
                .first_process_max()
                .filter(|longest| elapsed.since_start > *longest)?;
            Some(Stall::of(format!(
                "No Python process started within {} seconds.",
                longest.as_secs()
            )))
        }
        Some(since) if since > limits.progress_update_timeout => {
            let seconds = counted(limits.progress_update_timeout.as_secs(), "second");
            Some(Stall::waiting(
                &format!("No progress update in {seconds}."),
                tally.nodes(),
                &waits(),
            ))
        }
        _ => None,
    }
}

/// Returns one sentence about the process or node that the job waits for.
fn waits_for(nodes: &Nodes, waiting: Option<&Waiting>) -> String {
    match waiting {
        Some(waiting) => format!(" Waiting for {waiting}."),
        None if nodes.processes_up() == 0 => {
            " No Python process is running; see logs/sys/node.".to_owned()
        }
        None if nodes.processes_up() == 1 => {
            " 1 Python process is running; see logs/sys/node.".to_owned()
        }
        None => {
            format!(" {} Python processes are running; see logs/sys/node.", nodes.processes_up())
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::{ErrorReport, ResultEvent};

    use super::*;
    use crate::Options;
    use crate::fixtures::{ready, spec, started, waiting};

    fn waits(nodes: &Nodes) -> Vec<Waiting> {
        nodes.waiting().cloned().collect()
    }

    fn init_failure(nodes: &Nodes, limits: &Limits, elapsed: &Elapsed) -> Option<String> {
        init_failure_beside(&[], nodes, limits, elapsed)
    }

    fn init_failure_beside(
        able: &[&str],
        nodes: &Nodes,
        limits: &Limits,
        elapsed: &Elapsed,
    ) -> Option<String> {
        let able = able.iter().map(|name| (*name).to_owned()).collect();
        super::init_failure(nodes, || waits(nodes), limits, elapsed, Some(&able))
            .map(|stall| stall.cause)
    }

    fn stalled(tally: &Tally, limits: &Limits, elapsed: &Elapsed) -> Option<String> {
        super::stalled(tally, || waits(tally.nodes()), limits, elapsed).map(|stall| stall.cause)
    }

    fn limits(node_count: Option<u32>, options: &Options) -> Limits {
        let mut spec = spec(std::path::Path::new("/out"));
        spec.node_count = node_count;
        Limits::new(&spec, options)
    }

    fn alone(node_count: u32) -> Limits {
        limits(Some(node_count), &Options::default())
    }

    fn many(node_count: Option<u32>) -> Limits {
        limits(node_count, &Options::shared())
    }

    fn on_node(node: &str, stopped: Option<Option<&str>>) -> ResultEvent {
        match stopped {
            None => started(node, "process000"),
            Some(cause) => {
                ResultEvent::NodeStopped { node: node.into(), cause: cause.map(str::to_owned) }
            }
        }
    }

    #[test]
    fn job_with_peers_fails_once_every_node_has_stopped() {
        let mut tally = Tally::default();
        for node in ["a", "b"] {
            tally.apply(&on_node(node, None));
        }
        tally.apply(&on_node("a", Some(Some("init() failed"))));
        for count in [None, Some(2), Some(10)] {
            assert_eq!(
                init_failure(tally.nodes(), &many(count), &Elapsed::default()),
                None,
                "b still works"
            );
        }
        tally.apply(&on_node("b", Some(None)));
        for count in [None, Some(1), Some(10)] {
            let cause = init_failure(tally.nodes(), &many(count), &Elapsed::default());
            assert_eq!(cause.as_deref(), Some("Node a stopped: init() failed"), "b has left");
        }
    }

    #[test]
    fn job_that_does_not_start_on_a_node_is_tried_on_others_first() {
        let (mut tally, limits) = (Tally::default(), many(None));
        let late = Elapsed { since_start: Duration::from_secs(500), ..Elapsed::default() };
        let fails = |tally: &Tally, able: &[&str]| {
            init_failure_beside(able, tally.nodes(), &limits, &late).is_some()
        };
        let stops = |node: &str| on_node(node, Some(Some("no Python")));
        for number in 0..9 {
            tally.apply(&init_failed_on("a", number));
        }
        tally.apply(&stops("a"));
        assert!(!fails(&tally, &["a", "b"]), "b may have one");
        assert!(fails(&tally, &["a"]) && fails(&tally, &[]));
        let unknown = super::init_failure(tally.nodes(), Vec::new, &limits, &late, None);
        assert_eq!(unknown, None, "there may be others");
        tally.apply(&stops("b"));
        assert!(!fails(&tally, &["c", "d"]));
        tally.apply(&stops("c"));
        assert!(fails(&tally, &["d"]), "the job is to blame");
    }

    #[test]
    fn nodes_that_stop_in_turns_fail_the_job_although_another_may_run_it() {
        let (mut tally, limits) = (Tally::default(), many(Some(1)));
        let fails = |tally: &Tally| {
            init_failure_beside(&["c"], tally.nodes(), &limits, &Elapsed::default()).is_some()
        };
        for stops in 1..=6 {
            let node = if stops % 2 == 0 { "b" } else { "a" };
            tally.apply(&on_node(node, None));
            tally.apply(&on_node(node, Some(Some("no memory"))));
            assert_eq!(fails(&tally), stops == 6, "{stops}");
        }
        tally.apply(&ready("d", "process000"));
        tally.apply(&on_node("d", Some(None)));
        assert!(!fails(&tally), "it has worked on d");
    }

    #[test]
    fn job_with_peers_waits_for_workers_without_limit() {
        let limits = many(None);
        let days = Duration::from_secs(3 * 86_400);
        let elapsed = Elapsed { since_start: days, since_progress: Some(days), in_init: None };
        let mut tally = Tally::default();
        assert_eq!(stalled(&tally, &limits, &elapsed), None, "no worker has started");
        tally.apply(&on_node("a", None));
        assert!(
            stalled(&tally, &limits, &elapsed).expect("stalled").contains("No progress update")
        );
        tally.apply(&on_node("a", Some(None)));
        assert_eq!(stalled(&tally, &limits, &elapsed), None, "all workers have left");
    }

    fn init_failed(number: u32) -> ResultEvent {
        init_failed_on("0", number)
    }

    fn init_failed_on(node: &str, number: u32) -> ResultEvent {
        let error = ErrorReport {
            category: "ImportError".into(),
            message: "no module named x".into(),
            traceback: String::new(),
            log: "user/error/0/process000.txt".into(),
            printed: String::new(),
        };
        let process = format!("process{number:03}");
        ResultEvent::InitFailed { node: node.into(), process, error: error.into() }
    }

    #[test]
    fn repeated_init_failures_fail_job_without_ready_process() {
        let mut nodes = Nodes::default();
        let old = Elapsed { since_start: Duration::from_secs(121), ..Elapsed::default() };
        let young = Elapsed { since_start: Duration::from_secs(120), ..Elapsed::default() };
        for number in 0..4 {
            nodes.apply(&init_failed(number));
        }
        assert_eq!(init_failure(&nodes, &alone(1), &young), None);
        let cause = init_failure(&nodes, &alone(1), &old).expect("2 * 1 node * 2 processes");
        assert!(cause.contains("ImportError: no module named x"), "{cause}");
        assert_eq!(init_failure(&nodes, &alone(2), &old), None, "two nodes may fail eight times");
        nodes.apply(&ready("1", "process000"));
        nodes.apply(&init_failed(4));
        assert_eq!(init_failure(&nodes, &alone(1), &old), None);
    }

    #[test]
    fn unknown_process_count_is_taken_from_started_processes() {
        let mut limits = alone(1);
        limits.process_count_per_node = None;
        let mut nodes = Nodes::default();
        for process in ["a", "b", "c"] {
            nodes.apply(&started("0", process));
        }
        let old = Elapsed { since_start: Duration::from_secs(121), ..Elapsed::default() };
        for failures in 1..=6 {
            nodes.apply(&init_failed(failures));
            assert_eq!(init_failure(&nodes, &limits, &old).is_some(), failures == 6, "{failures}");
        }
    }

    #[test]
    fn lone_job_fails_once_all_its_nodes_have_stopped() {
        let mut nodes = Nodes::default();
        let stop = |node: &str| ResultEvent::NodeStopped {
            node: node.into(),
            cause: Some("init() keeps failing".into()),
        };
        nodes.apply(&stop("0"));
        assert_eq!(init_failure(&nodes, &alone(2), &Elapsed::default()), None);
        nodes.apply(&stop("1"));
        let cause = init_failure(&nodes, &alone(2), &Elapsed::default()).expect("both stopped");
        assert_eq!(cause, "Node 0 stopped: init() keeps failing (2 nodes stopped)");
    }

    #[test]
    fn hanging_init_fails_the_job() {
        let in_init =
            |seconds| Elapsed { in_init: Some(Duration::from_secs(seconds)), ..Elapsed::default() };
        assert_eq!(init_failure(&Nodes::default(), &alone(1), &in_init(210)), None);
        let cause = init_failure(&Nodes::default(), &alone(1), &in_init(211))
            .expect("longer than 3 * 60 + 30");
        assert!(cause.starts_with("No process finished init() within 210 seconds"), "{cause}");
    }

    #[test]
    fn stalled_job_names_the_process_it_waits_for() {
        let mut tally = Tally::default();
        let late = Elapsed { since_progress: Some(Duration::from_secs(271)), ..Elapsed::default() };
        assert_eq!(stalled(&tally, &alone(1), &late), None, "no process has started");
        let never = Elapsed { since_start: Duration::from_secs(3601), ..late };
        let cause = "No Python process started within 3600 seconds.";
        assert_eq!(stalled(&tally, &alone(1), &never).as_deref(), Some(cause));
        tally.apply(&started("0", "process001"));
        assert!(
            stalled(&tally, &alone(1), &late)
                .expect("late")
                .starts_with("No progress update in 270 seconds.")
        );
        tally.apply(&ResultEvent::Waiting(Box::new(Waiting {
            stack:
                "Thread 1 (most recent call first):\n  File \"a.py\", line 3 in wait\n  File \"b.py\", line 9 in run"
                    .into(),
            printed: "connecting to db".into(),
            ..waiting("process001", 7, 260)
        })));
        assert_eq!(
            stalled(&tally, &alone(1), &late).expect("late"),
            "No progress update in 270 seconds. Waiting for mini-batch 7 on node 0, process001, in run() for \
             4 min 20 s, at \"a.py\", line 3 in wait."
        );
        let error = super::stalled(&tally, || waits(tally.nodes()), &alone(1), &late)
            .and_then(|stall| stall.error)
            .expect("a process waits");
        assert!(
            error
                .message
                .starts_with("mini-batch 7 on node 0, process001, in run() for 4 min 20 s"),
            "{}",
            error.message
        );
        assert_eq!((&*error.category, &*error.printed), ("NoProgress", "connecting to db"));
    }

    #[test]
    fn first_task_has_its_own_limit() {
        let at =
            |seconds| Elapsed { since_start: Duration::from_secs(seconds), ..Elapsed::default() };
        assert_eq!(stalled(&Tally::default(), &alone(1), &at(600)), None);
        assert_eq!(
            stalled(&Tally::default(), &alone(1), &at(601)).as_deref(),
            Some("Unable to create any task within 600 seconds.")
        );
    }
}
