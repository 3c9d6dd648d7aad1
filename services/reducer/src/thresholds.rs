//! When a job is given up, and the one line that says why. Pure: a tally and durations in, a cause out.

use std::time::Duration;

use protocol::{Counts, ErrorThresholds, JobSpec, Waiting};

use crate::failures::one_line;
use crate::{Fleet, Options, Tally};

/// What is shown for a job without a single succeeded item, in the words readers of the original search for.
const NOTHING_SUCCEEDED: &str = "There is no succeeded mini batch item returned from run(). Please check \
     'response: run()' in https://aka.ms/batch-inference-documentation. You can check logs/readme.txt for the layout \
     of logs.";

/// What is shown for a job whose inputs hold no items at all.
const NOTHING_TO_DO: &str = "The inputs hold no items (empty files, or tables without rows), so run() was never called \
     and there is no output. Check the inputs in the job file; `gristmill plan` shows what they hold.";

/// How long the first Python process of a job may take to start: machines are started, environments are made.
const FIRST_PROCESS_MAX: Duration = Duration::from_secs(3600);

/// Everything that can end a job before its work is done.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Failed items and mini-batches.
    pub thresholds: ErrorThresholds,
    /// Nodes of the job; on a fleet the most of them at a time, `None`: all that come.
    pub node_count: Option<u32>,
    /// Nodes come when they please, and leave again.
    pub shared: bool,
    /// Processes a node; `None`: as many as were seen.
    pub process_count_per_node: Option<u32>,
    /// Limit of one `run()` call.
    pub run_invocation_timeout: Duration,
    /// No mini-batch ended for so long.
    pub progress_update_timeout: Duration,
    /// No mini-batch was created for so long.
    pub first_task_creation_timeout: Duration,
    /// Age before failures of `init()` all over the job end it.
    pub init_failure_age: Duration,
}

impl Limits {
    /// The limits of a job.
    pub fn new(spec: &JobSpec, options: &Options) -> Self {
        Self {
            thresholds: spec.thresholds,
            node_count: spec.node_count,
            shared: options.shared,
            process_count_per_node: spec.process_count_per_node.or(options.process_count_per_node),
            run_invocation_timeout: Duration::from_secs(spec.run_invocation_timeout_seconds),
            progress_update_timeout: Duration::from_secs(spec.progress_update_timeout_seconds),
            first_task_creation_timeout: Duration::from_secs(spec.first_task_creation_timeout_seconds),
            init_failure_age: options.init_failure_age,
        }
    }

    /// Nodes that would have to fail for the job to fail with them.
    fn nodes(&self, fleet: &Fleet) -> u64 {
        let present = fleet.nodes_present() as u64;
        match self.node_count.map(u64::from) {
            Some(most) if self.shared => most.min(present).max(1),
            None if self.shared => present.max(1),
            count => count.unwrap_or(1).max(1),
        }
    }

    /// Whether nobody is there who could make progress.
    pub fn is_deserted(&self, fleet: &Fleet) -> bool {
        if self.shared { fleet.processes_up() == 0 } else { fleet.processes_per_node_seen() == 0 }
    }

    fn processes_per_node(&self, fleet: &Fleet) -> u64 {
        u64::from(self.process_count_per_node.unwrap_or(fleet.processes_per_node_seen()).max(1))
    }
}

/// Durations that limits are compared with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Elapsed {
    /// Since the job was started or resumed.
    pub since_start: Duration,
    /// Since a mini-batch was created, the first process started, or an attempt ended; `None`: no mini-batch was
    /// created yet.
    pub since_progress: Option<Duration>,
    /// Since processes were started of which none got through `init()`; `None`: one is through, or there are none.
    pub in_init: Option<Duration>,
}

/// Whether failures exceed a threshold. Every comparison is a strict "greater than".
///
/// A mini-batch that failed but is tried again counts towards `allowed_failed_count` only where `polled`: as in the
/// original, which looked every ten seconds, a quick second try should have its chance.
pub fn exceeded(tally: &Tally, thresholds: &ErrorThresholds, polled: bool) -> Option<String> {
    let failed_items = tally.items().failed;
    if is_above(failed_items, thresholds.error_threshold) {
        let threshold = thresholds.error_threshold;
        let text = format!("The number of failed items is {failed_items}, which exceeds error threshold {threshold}.");
        return Some(with_cause(text, tally));
    }
    let failed = if polled { tally.currently_failed() } else { tally.mini_batches().failed };
    if is_above(failed, thresholds.allowed_failed_count) {
        let allowed = thresholds.allowed_failed_count;
        let text =
            format!("The number of failed mini batches is {failed}, which exceeds allowed failed count {allowed}.");
        return Some(with_cause(text, tally));
    }
    let counts = tally.mini_batches();
    let percent = counts.failed as f64 * 100.0 / counts.total as f64;
    if counts.total > 0 && percent > thresholds.allowed_failed_percent {
        let text = format!(
            "The percentage of failed mini batches is {:.2} ({} of {}), which exceeds allowed failed percent {}.",
            percent, counts.failed, counts.total, thresholds.allowed_failed_percent
        );
        return Some(with_cause(text, tally));
    }
    None
}

/// Whether a complete job that should have rows has none.
pub fn nothing_succeeded(tally: &Tally) -> Option<String> {
    if tally.items() == Counts::default() {
        return Some(NOTHING_TO_DO.to_owned());
    }
    (tally.items().succeeded == 0).then(|| with_cause(NOTHING_SUCCEEDED.to_owned(), tally))
}

fn is_above(count: u64, threshold: i64) -> bool {
    u64::try_from(threshold).is_ok_and(|threshold| count > threshold)
}

/// Adds what most attempts ended with, and where to look.
fn with_cause(text: String, tally: &Tally) -> String {
    let dominant = tally.failures().dominant().map_or_else(String::new, |dominant| {
        format!(" {} of {} attempts ended with {}.", dominant.count, dominant.attempts, dominant.cause)
    });
    let first = match tally.failures().given_up_first().next() {
        Some(first) if first.error.log.is_empty() => {
            format!(" The first failed mini-batch is {} ({}).", first.mini_batch, first.detail)
        }
        Some(first) => {
            let log = &first.error.log;
            format!(" The first failed mini-batch is {} ({}), open logs/{log}.", first.mini_batch, first.detail)
        }
        None if tally.items().failed > 0 => " run() returned fewer results than it was given items.".to_owned(),
        None => String::new(),
    };
    format!("{text}{dominant}{first}")
}

/// Whether `init()` fails so often, or for so long, that no process will ever get to work.
pub fn init_failure(fleet: &Fleet, limits: &Limits, elapsed: &Elapsed) -> Option<String> {
    if fleet.stopped().len() as u64 >= limits.nodes(fleet) {
        let (node, cause) = fleet.stopped().first_key_value()?;
        let others = match fleet.stopped().len() {
            1 => String::new(),
            nodes => format!(" (all {nodes} nodes stopped)"),
        };
        return Some(format!("Node {node} stopped: {}{others}", one_line(cause)));
    }
    let failures_max = 2 * limits.nodes(fleet) * limits.processes_per_node(fleet);
    if fleet.processes_ready() == 0
        && elapsed.since_start > limits.init_failure_age
        && fleet.init_failures() >= failures_max
    {
        let error = fleet.init_error().map_or_else(String::new, |error| {
            format!(": {}: {} Open logs/{}", error.category, one_line(&error.message), error.log)
        });
        return Some(format!("init() failed {} times and in no process succeeded{error}", fleet.init_failures()));
    }
    let in_init_max = 3 * limits.run_invocation_timeout + Duration::from_secs(30);
    if elapsed.in_init.is_some_and(|in_init| in_init > in_init_max) {
        return Some(format!(
            "No process finished init() within {} seconds (3 * run_invocation_timeout + 30).{}",
            in_init_max.as_secs(),
            waits_for(fleet)
        ));
    }
    None
}

/// Whether nothing moves.
pub fn stalled(tally: &Tally, limits: &Limits, elapsed: &Elapsed) -> Option<String> {
    match elapsed.since_progress {
        None if elapsed.since_start > limits.first_task_creation_timeout => {
            Some(format!("Unable to create any task within {} seconds.", limits.first_task_creation_timeout.as_secs()))
        }
        // That has its own limit, and none where workers come when they please.
        Some(_) if limits.is_deserted(tally.fleet()) => (!limits.shared && elapsed.since_start > FIRST_PROCESS_MAX)
            .then(|| format!("No Python process was started within {} seconds.", FIRST_PROCESS_MAX.as_secs())),
        Some(since) if since > limits.progress_update_timeout => {
            let seconds = limits.progress_update_timeout.as_secs();
            Some(format!("No progress update in {seconds} seconds.{}", waits_for(tally.fleet())))
        }
        _ => None,
    }
}

/// What the job waits for, in one sentence.
fn waits_for(fleet: &Fleet) -> String {
    match fleet.waiting().next() {
        Some(waiting) => format!(" Waiting for {}.", describe(waiting)),
        None if fleet.processes_up() == 0 => " No Python process is up; see logs/sys/node.".to_owned(),
        None => format!(" {} Python processes are up; see logs/sys/node.", fleet.processes_up()),
    }
}

/// Who waits, in which phase, for how long, and where its Python code stands.
pub(crate) fn describe(waiting: &Waiting) -> String {
    let mini_batch = waiting.mini_batch.map_or_else(String::new, |id| format!("mini-batch {id} on "));
    let place = innermost_frame(&waiting.stack).map_or_else(String::new, |frame| format!(", at {frame}"));
    format!(
        "{mini_batch}node {}, {}, in {} for {} seconds{place}",
        waiting.node,
        waiting.process,
        waiting.phase.word(),
        waiting.seconds
    )
}

/// The frame of a Python stack that runs: the first line that names a file in a dump of `faulthandler` ("most recent
/// call first"), the last one in a traceback.
fn innermost_frame(stack: &str) -> Option<String> {
    let mut frames = stack.lines().map(str::trim).filter(|line| line.starts_with("File "));
    let frame = if stack.contains("most recent call first") { frames.next() } else { frames.next_back() };
    frame.map(|frame| one_line(frame.trim_start_matches("File ")))
}

#[cfg(test)]
mod tests {
    use protocol::{ErrorReport, Planned, ResultEvent, SlotPhase};

    use super::*;
    use crate::fixtures::{failed, spec, succeeded};

    fn tally(attempts: Vec<protocol::Attempt>) -> Tally {
        let mut tally = Tally::default();
        for attempt in attempts {
            tally.apply(&ResultEvent::Attempt(Box::new(attempt)));
        }
        tally
    }

    fn off() -> ErrorThresholds {
        ErrorThresholds { error_threshold: -1, allowed_failed_count: -1, allowed_failed_percent: 100.0 }
    }

    fn limits(node_count: u32) -> Limits {
        let mut spec = spec(std::path::Path::new("/out"));
        spec.node_count = Some(node_count);
        Limits::new(&spec, &Options::default())
    }

    fn fleet_limits(node_count: Option<u32>) -> Limits {
        let mut spec = spec(std::path::Path::new("/out"));
        spec.node_count = node_count;
        Limits::new(&spec, &Options::shared())
    }

    fn on_node(node: &str, stopped: Option<Option<&str>>) -> ResultEvent {
        match stopped {
            None => ResultEvent::ProcessStarted { node: node.into(), process: "process000".into(), pid: 1 },
            Some(cause) => ResultEvent::NodeStopped { node: node.into(), cause: cause.map(str::to_owned) },
        }
    }

    #[test]
    fn on_a_fleet_the_nodes_that_came_decide() {
        let mut tally = Tally::default();
        for node in ["a", "b"] {
            tally.apply(&on_node(node, None));
        }
        tally.apply(&on_node("a", Some(Some("init() failed"))));
        for count in [None, Some(2), Some(10)] {
            assert_eq!(init_failure(tally.fleet(), &fleet_limits(count), &Elapsed::default()), None, "b still works");
        }
        tally.apply(&on_node("b", Some(None)));
        for count in [None, Some(1), Some(10)] {
            let cause = init_failure(tally.fleet(), &fleet_limits(count), &Elapsed::default());
            assert_eq!(cause.as_deref(), Some("Node a stopped: init() failed"), "nobody else is left");
        }
    }

    #[test]
    fn on_a_fleet_a_job_waits_for_workers_as_long_as_it_takes() {
        let limits = fleet_limits(None);
        let days = Duration::from_secs(3 * 86_400);
        let elapsed = Elapsed { since_start: days, since_progress: Some(days), in_init: None };
        let mut tally = Tally::default();
        assert_eq!(stalled(&tally, &limits, &elapsed), None, "nobody has come yet");
        tally.apply(&on_node("a", None));
        assert!(stalled(&tally, &limits, &elapsed).expect("it hangs").contains("No progress update"));
        tally.apply(&on_node("a", Some(None)));
        assert_eq!(stalled(&tally, &limits, &elapsed), None, "all have left");
    }

    #[test]
    fn the_item_threshold_is_strict_and_counts_missing_results() {
        let tally = tally(vec![succeeded(0, 1, 10, 8), failed(1, 3, true, 1)]);
        let with = |error_threshold| exceeded(&tally, &ErrorThresholds { error_threshold, ..off() }, false);
        assert_eq!(with(-1), None);
        assert_eq!(with(3), None);
        let cause = with(2).expect("3 > 2");
        assert_eq!(
            cause,
            "The number of failed items is 3, which exceeds error threshold 2. The first failed mini-batch is 1 \
             (/data/1.png), open logs/user/error/0/process000.txt."
        );
    }

    #[test]
    fn missing_results_and_nothing_at_all_say_so() {
        let short = tally(vec![succeeded(0, 1, 10, 8)]);
        let cause = exceeded(&short, &ErrorThresholds { error_threshold: 1, ..off() }, false).expect("2 > 1");
        assert!(cause.ends_with(" run() returned fewer results than it was given items."), "{cause}");
        assert_eq!(nothing_succeeded(&short), None);
        let cause = nothing_succeeded(&tally(vec![succeeded(0, 1, 10, 0)])).expect("none of ten");
        assert!(cause.starts_with("There is no succeeded mini batch item returned from run(). Please"), "{cause}");
    }

    #[test]
    fn the_count_of_mini_batches_includes_retried_ones_when_polled() {
        let tally =
            tally(vec![failed(0, 1, false, 1), failed(1, 3, true, 1), succeeded(2, 1, 1, 1), succeeded(3, 1, 1, 1)]);
        let with =
            |allowed_failed_count, polled| exceeded(&tally, &ErrorThresholds { allowed_failed_count, ..off() }, polled);
        assert_eq!(with(1, false), None);
        assert_eq!(with(2, true), None);
        let cause = with(1, true).expect("2 > 1");
        let expected = "The number of failed mini batches is 2, which exceeds allowed failed count 1.";
        assert!(cause.starts_with(expected), "{cause}");
        assert!(with(0, false).is_some());
    }

    #[test]
    fn the_percentage_is_judged_only_once_planned() {
        let mut tally = tally(vec![failed(0, 3, true, 1), succeeded(1, 1, 1, 1)]);
        let thresholds = ErrorThresholds { allowed_failed_percent: 24.9, ..off() };
        assert_eq!(exceeded(&tally, &thresholds, true), None);
        tally.apply(&ResultEvent::Planned(Planned { mini_batches: 4, items: None }));
        let cause = exceeded(&tally, &thresholds, true).expect("25 % > 24.9 %");
        assert!(cause.starts_with("The percentage of failed mini batches is 25.00 (1 of 4)"), "{cause}");
        assert_eq!(exceeded(&tally, &ErrorThresholds { allowed_failed_percent: 25.0, ..off() }, true), None);
        assert_eq!(exceeded(&tally, &off(), true), None);
    }

    #[test]
    fn the_dominating_cause_is_named() {
        let tally = tally(vec![failed(0, 1, true, 1), failed(1, 1, true, 1), succeeded(2, 1, 1, 1)]);
        let cause = exceeded(&tally, &ErrorThresholds { error_threshold: 0, ..off() }, false).expect("exceeded");
        assert!(cause.contains(" 2 of 3 attempts ended with ValueError: bad value. The first"), "{cause}");
    }

    fn init_failed() -> ResultEvent {
        let error = ErrorReport {
            category: "ImportError".into(),
            message: "no module named x".into(),
            traceback: String::new(),
            log: "user/error/0/process000.txt".into(),
        };
        ResultEvent::InitFailed { node: "0".into(), process: "process000".into(), error: error.into() }
    }

    #[test]
    fn init_failures_end_the_job_when_it_is_old_enough_and_nobody_is_ready() {
        let mut fleet = Fleet::default();
        let old = Elapsed { since_start: Duration::from_secs(121), ..Elapsed::default() };
        let young = Elapsed { since_start: Duration::from_secs(120), ..Elapsed::default() };
        for _ in 0..4 {
            fleet.apply(&init_failed());
        }
        assert_eq!(init_failure(&fleet, &limits(1), &young), None);
        let cause = init_failure(&fleet, &limits(1), &old).expect("2 * 1 node * 2 processes");
        assert!(cause.contains("ImportError: no module named x"), "{cause}");
        assert_eq!(init_failure(&fleet, &limits(2), &old), None, "two nodes may fail eight times");
        fleet.apply(&ResultEvent::ProcessReady { node: "1".into(), process: "process000".into(), init_seconds: 1.0 });
        fleet.apply(&init_failed());
        assert_eq!(init_failure(&fleet, &limits(1), &old), None);
    }

    #[test]
    fn an_unknown_process_count_is_what_was_seen() {
        let mut limits = limits(1);
        limits.process_count_per_node = None;
        let mut fleet = Fleet::default();
        for process in ["a", "b", "c"] {
            fleet.apply(&ResultEvent::ProcessStarted { node: "0".into(), process: process.into(), pid: 1 });
        }
        let old = Elapsed { since_start: Duration::from_secs(121), ..Elapsed::default() };
        for failures in 1..=6 {
            fleet.apply(&init_failed());
            assert_eq!(init_failure(&fleet, &limits, &old).is_some(), failures == 6, "{failures}");
        }
    }

    #[test]
    fn all_nodes_must_have_stopped() {
        let mut fleet = Fleet::default();
        let stop =
            |node: &str| ResultEvent::NodeStopped { node: node.into(), cause: Some("init() keeps failing".into()) };
        fleet.apply(&stop("0"));
        assert_eq!(init_failure(&fleet, &limits(2), &Elapsed::default()), None);
        fleet.apply(&stop("1"));
        let cause = init_failure(&fleet, &limits(2), &Elapsed::default()).expect("both");
        assert_eq!(cause, "Node 0 stopped: init() keeps failing (all 2 nodes stopped)");
    }

    #[test]
    fn hanging_in_init_ends_the_job() {
        let in_init = |seconds| Elapsed { in_init: Some(Duration::from_secs(seconds)), ..Elapsed::default() };
        assert_eq!(init_failure(&Fleet::default(), &limits(1), &in_init(210)), None);
        let cause = init_failure(&Fleet::default(), &limits(1), &in_init(211)).expect("longer than 3 * 60 + 30");
        assert!(cause.starts_with("No process finished init() within 210 seconds"), "{cause}");
    }

    #[test]
    fn a_job_in_which_nothing_moves_says_what_it_waits_for() {
        let mut tally = Tally::default();
        let late = Elapsed { since_progress: Some(Duration::from_secs(271)), ..Elapsed::default() };
        assert_eq!(stalled(&tally, &limits(1), &late), None, "nobody is there yet");
        let never = Elapsed { since_start: Duration::from_secs(3601), ..late };
        let cause = "No Python process was started within 3600 seconds.";
        assert_eq!(stalled(&tally, &limits(1), &never).as_deref(), Some(cause));
        tally.apply(&ResultEvent::ProcessStarted { node: "0".into(), process: "process001".into(), pid: 1 });
        assert!(stalled(&tally, &limits(1), &late).expect("late").starts_with("No progress update in 270 seconds."));
        tally.apply(&ResultEvent::Waiting(Box::new(Waiting {
            node: "0".into(),
            process: "process001".into(),
            mini_batch: Some(7),
            phase: SlotPhase::Run,
            seconds: 260,
            stack:
                "Thread 1 (most recent call first):\n  File \"a.py\", line 3 in wait\n  File \"b.py\", line 9 in run"
                    .into(),
        })));
        assert_eq!(
            stalled(&tally, &limits(1), &late).expect("late"),
            "No progress update in 270 seconds. Waiting for mini-batch 7 on node 0, process001, in run() for 260 \
             seconds, at \"a.py\", line 3 in wait."
        );
    }

    #[test]
    fn the_first_task_has_its_own_limit() {
        let at = |seconds| Elapsed { since_start: Duration::from_secs(seconds), ..Elapsed::default() };
        assert_eq!(stalled(&Tally::default(), &limits(1), &at(600)), None);
        assert_eq!(
            stalled(&Tally::default(), &limits(1), &at(601)).as_deref(),
            Some("Unable to create any task within 600 seconds.")
        );
    }
}
