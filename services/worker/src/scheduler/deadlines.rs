//! Timeouts, decided at each tick.
//!
//! The agent requests the Python stacks of a process that has exceeded its limit before it kills the process, because
//! they show the user what took so long. A long phase is reported with stacks too, long before the limit.
//!
//! `faulthandler` shows the stacks even while user code holds the interpreter. What waited in the
//! pipe of a killed process is handed out again, at no cost. Long before a timeout, once a run has
//! lasted for `RECALL_AFTER`, the scheduler recalls the mini-batches behind it for other processes;
//! `status_offset` of `protocol/src/frame.rs` says why a recalled one never runs twice.
//!
//! `run_invocation_timeout` plus `task_overhead_timeout` limits loading, running and reporting of a
//! mini-batch together, as the original does. Its lease ends five seconds later (`LEASE_GRACE`):
//! the agent acts first, and the queue only if the agent hangs.

use std::time::Duration;

use chrono::DateTime;
use protocol::{AttemptStatus, Ending, ErrorReport, SlotPhase, Waiting};

use super::mini_batch::MiniBatch;
use super::process::{AfterStacks, ExitKind, Process, ProcessState, StackRequest};
use super::{Action, Config, ProcessId, ProcessSnapshot, Scheduler, Timestamp};
use crate::node_log::user_error_name;

/// After this duration of a run, the mini-batches behind it are recalled: more than twice the work that a pipe should
/// hold.
const RECALL_AFTER: Duration = Duration::from_millis(50);
/// Time for a process to write its stacks. It needs a millisecond, unless the machine is overloaded. A lease lasts
/// longer than the limit and this time together.
const STACKS_TIME: Duration = Duration::from_secs(3);
/// Longest duration of `shutdown()` and the exit of the interpreter.
pub(super) const SHUTDOWN_TIME: Duration = Duration::from_secs(30);
/// Longest time from the end of `shutdown()` to the exit of the process.
const EXIT_TIME: Duration = Duration::from_secs(5);
/// Longest gap within a frame while user code runs. The engine sends each frame at once, outside user code, so another
/// writer sent such a frame.
const FRAME_TIME: Duration = Duration::from_secs(2);
/// A long phase is reported after half of the limit, but not later than this, so that users see it within ten seconds.
/// Where runs usually take as long, one is reported after twice the usual time.
pub const NOTICE_AFTER_MAX: Duration = Duration::from_secs(8);
/// Time between two reports of the same wait.
pub const NOTICE_AGAIN: Duration = Duration::from_secs(60);

impl Scheduler {
    pub(super) fn tick(&mut self, snapshots: Vec<ProcessSnapshot>, now: Timestamp) {
        self.start_due(now);
        self.recall_behind_slow_runs(&snapshots);
        self.fail_slow_preparations(now);
        self.return_old(now);
        for seen in &snapshots {
            let in_user_code =
                matches!(seen.phase, SlotPhase::Idle | SlotPhase::Load | SlotPhase::Run);
            if in_user_code && seen.frame_incomplete_for.is_some_and(|since| since > FRAME_TIME) {
                self.connection_damaged(seen.process, seen.phase, "a frame has not ended");
            }
        }
        self.notice_slow_preparation(now);
        let waits = |process: &Process| {
            process.pipe.front().filter(|front| front.waits_until > Some(now.instant))
        };
        let waiting = self.processes.iter().find_map(waits);
        if let Some(front) = waiting {
            self.goes_on(front.lease, now);
        }
        snapshots.into_iter().for_each(|seen| self.watch(seen, now));
    }

    /// Recalls the mini-batches behind slow runs, for other processes.
    fn recall_behind_slow_runs(&mut self, snapshots: &[ProcessSnapshot]) {
        for seen in snapshots.iter().filter(|seen| seen.elapsed >= RECALL_AFTER) {
            let Some(process) =
                self.processes.get(seen.process).filter(|process| !process.is_killed())
            else {
                continue;
            };
            if process.pipe.front().is_some_and(|front| front.sequence == seen.sequence) {
                self.recall(seen.process);
            }
        }
    }

    /// Recalls the unstarted mini-batches of a process. If the process has started more of them than the agent knows,
    /// it answers each hand-over separately.
    pub(super) fn recall(&mut self, process: ProcessId) {
        let behind = self.processes.get(process).and_then(|process| process.pipe.behind());
        if let Some(sequences) = behind {
            self.act(Action::Recall { process, sequences });
        }
    }

    pub(super) fn recall_answered(&mut self, process: ProcessId, in_time: bool, now: Timestamp) {
        if let Some(process) = self.processes.get_mut(process).filter(|_| in_time) {
            let recalled = process.pipe.recall(now);
            self.mini_batches.take_back(&recalled, false);
        }
    }

    /// Fails mini-batches whose files cannot be read in time. The others do not wait for them.
    fn fail_slow_preparations(&mut self, now: Timestamp) {
        let limit = self.limit();
        let is_slow =
            |held: &MiniBatch| held.preparing_for(now.instant).is_some_and(|time| time > limit);
        if !self.mini_batches.preparing().any(is_slow) {
            return;
        }
        for (lease, mini_batch) in self.mini_batches.take(is_slow) {
            let error = ErrorReport {
                category: "LoadTimeout".into(),
                message: format!(
                    "mini-batch {} could not be read within {} seconds (run_invocation_timeout plus \
                     task_overhead_timeout): {}",
                    mini_batch.descriptor.mini_batch,
                    limit.as_secs(),
                    mini_batch.descriptor.detail()
                ),
                ..ErrorReport::default()
            };
            self.fail_unrun(lease, mini_batch, AttemptStatus::LoadTimedOut, error, now);
        }
    }

    /// Reports a mini-batch that takes long to read or to download.
    fn notice_slow_preparation(&mut self, now: Timestamp) {
        let Some(mini_batch) = self.mini_batches.preparing().next() else { return };
        let elapsed = mini_batch.preparing_for(now.instant).unwrap_or_default();
        if elapsed < self.notice_after() || !self.notices.slow_preparation(now, NOTICE_AGAIN) {
            return;
        }
        let detail = format!("reading {}", mini_batch.descriptor.detail());
        let waiting = Waiting {
            mini_batch: Some(mini_batch.descriptor.mini_batch),
            ..wait_of_node(&self.config.node, elapsed, now.milliseconds, detail)
        };
        self.act(Action::Notice { process: None, waiting: Box::new(waiting) });
    }

    /// Returns the duration after which a phase is reported.
    fn notice_after(&self) -> Duration {
        (self.limit() / 2).min(NOTICE_AFTER_MAX).max(Duration::from_secs(1))
    }

    fn watch(&mut self, seen: ProcessSnapshot, now: Timestamp) {
        let (limit, notice_after) = (self.limit(), self.notice_after());
        let Some(process) =
            self.processes.get_mut(seen.process).filter(|process| !process.is_killed())
        else {
            return;
        };
        if let Some(stacks_for) = process.stacks {
            if let Some(stack) = seen.stacks {
                process.stacks = None;
                let is_notice = matches!(stacks_for.then, AfterStacks::Notice { .. });
                let front = process.pipe.front().filter(|_| is_notice);
                let overdue = front.filter(|front| now.instant > front.deadline(limit));
                let overdue = overdue.map(|front| front.sequence);
                self.use_stacks(seen.process, stacks_for, stack.clone(), now);
                if let Some(sequence) = overdue {
                    // The lease might end before a second dump does.
                    let stacks_for =
                        StackRequest { sequence, then: AfterStacks::Kill, ..stacks_for };
                    self.use_stacks(seen.process, stacks_for, stack, now);
                }
            }
            return;
        }
        let ProcessSnapshot { phase, sequence, mut elapsed, .. } = seen;
        if phase == SlotPhase::Starting {
            // The process has not written to the status page yet.
            elapsed = now.instant - process.started;
        }
        if let ProcessState::Finishing { since } = process.state {
            let finishing = now.instant - since;
            // After `shutdown()` only threads and exit handlers of the script run.
            let is_over = phase == SlotPhase::Idle && finishing > EXIT_TIME && elapsed > EXIT_TIME;
            if finishing > SHUTDOWN_TIME || is_over {
                let what =
                    if is_over { "a thread or exit handler of the script" } else { "shutdown()" };
                let (name, seconds) = (&process.name, finishing.as_secs());
                let message = format!("{what} has kept {name} running for {seconds} s, killing it");
                self.log("WARNING", message);
                return self.kill(seen.process);
            }
        }
        // The deadline does not depend on the phase that the process reports.
        if let Some(front) =
            process.pipe.front().filter(|front| now.instant > front.deadline(limit))
        {
            let stacks_for =
                StackRequest { phase, sequence: front.sequence, then: AfterStacks::Kill };
            return self.request_stacks(seen.process, stacks_for);
        }
        let is_busy = matches!(phase, SlotPhase::Load | SlotPhase::Run | SlotPhase::Report);
        let is_starting =
            matches!(phase, SlotPhase::Init | SlotPhase::Import | SlotPhase::Starting);
        let usual = process.pipe.mean().filter(|_| is_busy).unwrap_or_default();
        let is_long =
            (is_busy || is_starting) && elapsed > notice_after.max((2 * usual).min(limit / 2));
        if !is_long || process.noticed.is_some_and(|noticed| now.instant - noticed <= NOTICE_AGAIN)
        {
            return;
        }
        process.noticed = Some(now.instant);
        let stacks_for = StackRequest { phase, sequence, then: AfterStacks::Notice { elapsed } };
        if phase == SlotPhase::Starting {
            // The signal would end an interpreter that has not registered it yet.
            self.use_stacks(seen.process, stacks_for, String::new(), now);
        } else {
            self.request_stacks(seen.process, stacks_for);
        }
    }

    fn request_stacks(&mut self, id: ProcessId, stacks_for: StackRequest) {
        let Some(process) = self.processes.get_mut(id) else { return };
        process.stacks = Some(stacks_for);
        self.act(Action::DumpStacks { process: id, patience: STACKS_TIME });
    }

    fn use_stacks(
        &mut self,
        id: ProcessId,
        stacks_for: StackRequest,
        stack: String,
        now: Timestamp,
    ) {
        let StackRequest { phase, sequence, then } = stacks_for;
        let Some(process) = self.processes.get(id) else { return };
        let handed = process.pipe.get(sequence);
        match then {
            AfterStacks::Notice { elapsed } => {
                let mini_batch = handed.and_then(|handed| self.mini_batches.get(handed.lease));
                let paused_until = handed
                    .and_then(|handed| handed.waits_until)
                    .filter(|until| *until > now.instant);
                // The stack would name the event loop only.
                let (stack, detail) = match paused_until {
                    Some(until) => (String::new(), paused(until - now.instant, now)),
                    None => (stack, String::new()),
                };
                let waiting = Waiting {
                    process: process.name.clone(),
                    mini_batch: mini_batch.map(|mini_batch| mini_batch.descriptor.mini_batch),
                    phase,
                    stack,
                    ..wait_of_node(&self.config.node, elapsed, now.milliseconds, detail)
                };
                self.act(Action::Notice { process: Some(id), waiting: Box::new(waiting) });
            }
            // The process has answered in the meantime.
            AfterStacks::Kill if handed.is_none() => {}
            AfterStacks::Kill => {
                let error = timeout_error(&self.config, process, phase, stack);
                let line = format!("{}: {}", process.name, error.message);
                let status = if phase == SlotPhase::Load {
                    AttemptStatus::LoadTimedOut
                } else {
                    AttemptStatus::RunTimedOut
                };
                self.log("ERROR", line);
                if let Some(process) = self.processes.get_mut(id) {
                    let ending = Ending { sequence, ..Ending::failed(status, error) };
                    process.state = ProcessState::Killed(ExitKind::Failed(Box::new(ending)));
                }
                self.act(Action::Kill(id));
            }
        }
    }
}

/// Returns a wait of the node itself. `now`: wall clock, milliseconds since the epoch.
pub fn wait_of_node(node: &str, elapsed: Duration, now: u64, detail: String) -> Waiting {
    Waiting {
        node: node.to_owned(),
        process: String::new(),
        mini_batch: None,
        phase: SlotPhase::Starting,
        seconds: elapsed.as_secs(),
        since: now.saturating_sub(elapsed.as_millis() as u64),
        detail,
        stack: String::new(),
        printed: String::new(),
    }
}

/// Describes a process that a service has asked for a pause.
fn paused(pause: Duration, now: Timestamp) -> String {
    let until =
        now.milliseconds.saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
    let until =
        i64::try_from(until).ok().and_then(DateTime::from_timestamp_millis).unwrap_or_default();
    format!(
        "a service that limits its rate asked it to wait until {}",
        until.format("%H:%M:%S UTC")
    )
}

/// Returns the error for an exceeded limit.
fn timeout_error(
    config: &Config,
    process: &Process,
    phase: SlotPhase,
    stack: String,
) -> ErrorReport {
    let (run, overhead) =
        (config.spec.run_invocation_timeout_seconds, config.spec.task_overhead_timeout_seconds);
    let what = if phase == SlotPhase::Idle { "the process" } else { phase.word() };
    ErrorReport {
        category: if phase == SlotPhase::Load { "LoadTimeout" } else { "RunTimeout" }.to_owned(),
        message: format!(
            "{what} did not end within {} seconds (run_invocation_timeout {run} s plus task_overhead_timeout {overhead} s) \
             and was killed",
            run + overhead,
        ),
        traceback: stack,
        log: user_error_name(&config.node, &process.name),
        printed: String::new(),
    }
}
