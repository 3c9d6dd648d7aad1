//! Reactions to the frames of a process, and to its end.

use std::time::Duration;

use bytes::Bytes;
use protocol::{
    AttemptStatus, Ending, ErrorReport, GpuSet, ProcessEvent, RestartChance, ResultEvent,
    SlotPhase, Start, Wear,
};

use super::pipe::PipedMiniBatch;
use super::process::{ExitKind, ProcessState};
use super::starts::StartDecision;
use super::wear::level;
use super::{Action, ExitReport, ProcessId, Scheduler, Timestamp};
use crate::lease::LeaseId;
use crate::node_log::user_error_name;

/// Longest wait for a service that one report of a process may name.
const RATE_LIMITED_SECONDS_MAX: f64 = 3600.0;
/// Share of `progress_update_timeout` between two messages that the mini-batches of a node go on, and the least time.
const PROGRESS_SHARE: u32 = 20;
const PROGRESS_MIN: Duration = Duration::from_secs(1);

impl Scheduler {
    // ---- frames ------------------------------------------------------------------------------------------------

    pub(super) fn frame(
        &mut self,
        id: ProcessId,
        frame: ProcessEvent,
        rows: Bytes,
        now: Timestamp,
    ) {
        let Some(process) = self.processes.get_mut(id) else { return };
        match frame {
            ProcessEvent::Ready { init_seconds, import_seconds, python_version, takes } => {
                process.noticed = None;
                process.init_ended(ProcessState::Working);
                let elapsed = now.instant.duration_since(process.started).as_secs_f64();
                let start = Start {
                    interpreter_seconds: (elapsed - init_seconds).max(0.0),
                    import_seconds,
                };
                self.processes.starts.succeeded(takes);
                self.gpus.report_again();
                self.go_on();
                let (node, process) = (self.config.node.clone(), id.name());
                let Start { interpreter_seconds: interpreter, .. } = start;
                let line = format!(
                    "{process} is ready: Python {python_version}, interpreter {interpreter:.3} s, import \
                     {import_seconds:.3} s, init {:.3} s",
                    init_seconds - import_seconds
                );
                self.log("INFO", line);
                let notice = self.fresh(id);
                self.tell(ResultEvent::ProcessReady { node, process, init_seconds, start, notice });
            }
            ProcessEvent::InitFailed { error, chance } => {
                process.init_ended(ProcessState::InitFailed);
                self.gpu_failed(id, None, &error);
                self.start_failed(id, chance, error);
            }
            ProcessEvent::Recalled { sequence } => {
                // Usually the agent has taken it back already.
                if let Some(handed) = process.pipe.skipped(sequence) {
                    let front = process.pipe.front();
                    self.begin(front);
                    self.mini_batches.take_back(&[handed], false);
                }
            }
            ProcessEvent::RateLimited { sequence, seconds } => {
                let time = Duration::from_secs_f64(seconds.clamp(0.0, RATE_LIMITED_SECONDS_MAX));
                let front = process.pipe.rate_limited(sequence, time, now);
                // The lease ends later, too.
                self.begin(front);
            }
            // The agent answers them.
            ProcessEvent::Acquire { .. } | ProcessEvent::Release { .. } => {}
            // Only templates send these, and a template has no slot.
            ProcessEvent::TemplateReady { .. } | ProcessEvent::Forked { .. } => {}
            ProcessEvent::ShutdownFailed { error } => {
                self.log("ERROR", format!("shutdown() of {} raised: {}", id.name(), error.message));
            }
            ProcessEvent::Answered(ending) => self.answered(id, ending, rows, now),
        }
    }

    /// Extends the attempt of a process, which waited for the limits of the job, and with it the lease.
    pub(super) fn limited(&mut self, id: ProcessId, time: Duration, now: Timestamp) {
        let front = self.processes.get_mut(id).and_then(|process| process.pipe.limited(time));
        self.begin(front);
        if let Some(front) = front {
            self.goes_on(front.lease, now);
        }
    }

    /// Tells the reducer now and then that a mini-batch makes progress, although no attempt ends.
    pub(super) fn goes_on(&mut self, lease: LeaseId, now: Timestamp) {
        let Some(mini_batch) = self.mini_batches.get(lease) else { return };
        let timeout = Duration::from_secs(self.config.spec.progress_update_timeout_seconds);
        if self.notices.progress(now, (timeout / PROGRESS_SHARE).max(PROGRESS_MIN)) {
            let mini_batch = mini_batch.descriptor.mini_batch;
            self.tell(ResultEvent::Working { node: self.config.node.clone(), mini_batch });
        }
    }

    /// Whether a failed run is that of a range, or precedes runs of ranges, which show whether the
    /// process is at fault.
    fn is_isolated(&self, id: ProcessId, ending: &Ending) -> bool {
        let front = self.processes.get(id).and_then(|process| process.pipe.front());
        front.is_some_and(|PipedMiniBatch { lease, .. }| {
            self.mini_batches.is_isolated(lease) || self.isolates(id, lease, ending)
        })
    }

    fn answered(&mut self, id: ProcessId, ending: Ending, rows: Bytes, now: Timestamp) {
        let is_harmless =
            ending.status == AttemptStatus::Succeeded || self.is_isolated(id, &ending);
        let Some(front) = self.processes.get(id).map(|process| process.pipe.front()) else {
            return;
        };
        // Ranges are shorter than mini-batches, and nothing waits behind them.
        let is_range = front.is_some_and(|front| self.mini_batches.is_isolated(front.lease));
        let seconds = (!is_range).then_some(ending.run_seconds.max(ending.process_seconds));
        let Some(process) = self.processes.get_mut(id) else { return };
        let sequence = ending.sequence;
        let Some(handed) = process.pipe.answered(sequence, seconds, now) else {
            // Answers arrive in order, unless something is wrong with the process.
            self.log(
                "ERROR",
                format!("{} answered hand-over {sequence} out of order, killing it", id.name()),
            );
            return self.act(Action::Kill(id));
        };
        process.noticed = None;
        process.health.answered(is_harmless);
        let (front, has_gpu) = (process.pipe.front(), process.gpus.is_some());
        if ending.status == AttemptStatus::Succeeded {
            self.processes.succeeded(id);
        }
        self.processes.starts.answered();
        if has_gpu && let Some(mini_batch) = self.mini_batch_of(handed) {
            match &ending.error {
                Some(error) => self.gpu_failed(id, Some(mini_batch), error),
                None => self.gpu_succeeded(id, mini_batch),
            }
        }
        self.begin(front);
        self.conclude(id, handed, ending, rows, now);
    }

    // ---- the end of a process ----------------------------------------------------------------------------------

    /// Handles the end of a process: its last phase and hand-over, and the time since its `run()` began.
    pub(super) fn exited(
        &mut self,
        id: ProcessId,
        code: i32,
        (phase, sequence, ran): (SlotPhase, u64, Option<Duration>),
        now: Timestamp,
    ) {
        let is_working = self.stopping.is_working();
        let Some(process) = self.processes.get_mut(id) else { return };
        let name = process.name.clone();
        let mut exit_kind = process.exit_kind(phase, sequence);
        let last_sequence = sequence;
        let (mut sequence, mut since) = (0, process.started);
        match &mut exit_kind {
            ExitKind::Failed(ending) => match process.pipe.get(ending.sequence) {
                Some(handed) => {
                    (sequence, since) = (handed.sequence, handed.began.instant);
                    ending.load_seconds = match ran.filter(|_| sequence == last_sequence) {
                        Some(ran) => {
                            now.instant.duration_since(since).saturating_sub(ran).as_secs_f64()
                        }
                        // It loaded to its end.
                        None if phase == SlotPhase::Load => f64::INFINITY,
                        None => 0.0,
                    };
                }
                None => exit_kind = ExitKind::Expected,
            },
            ExitKind::NotStarted { .. } | ExitKind::DiedIdle if !is_working => {
                exit_kind = ExitKind::Expected
            }
            _ => {}
        }
        let is_expected = matches!(exit_kind, ExitKind::Expected);
        let is_replaced =
            is_expected && is_working && !process.is_surplus && process.pipe.is_empty();
        let wear = process.health.wear().filter(|_| is_replaced).cloned();
        (process.state, process.code) = (ProcessState::Ended(exit_kind), code);
        self.log("INFO", format!("{name} exits with returncode {code}."));
        if is_expected {
            self.announce_end(id, wear, now);
            return self.replace(id, now);
        }
        self.act(Action::Examine { process: id, code, phase, sequence, since });
    }

    /// Announces the end of a process, with all that is known about it.
    fn announce_end(&mut self, id: ProcessId, wear: Option<Wear>, now: Timestamp) {
        let Some(process) = self.processes.get_mut(id) else { return };
        let (notice, return_code) = (std::mem::take(&mut process.notice), process.code);
        let (node, process, at) = (self.config.node.clone(), id.name(), now.milliseconds);
        self.tell(ResultEvent::ProcessEnded { node, process, return_code, at, wear, notice });
    }

    pub(super) fn examined(&mut self, id: ProcessId, findings: ExitReport, now: Timestamp) {
        let Some(process) = self.processes.get_mut(id) else { return };
        let ProcessState::Ended(exit_kind) =
            std::mem::replace(&mut process.state, ProcessState::Ended(ExitKind::Expected))
        else {
            return;
        };
        let ExitReport { death, early, chance, has_checkpoints } = findings;
        let handed = match &exit_kind {
            ExitKind::Failed(ending) => process.pipe.remove(ending.sequence),
            _ => None,
        };
        if process.gpus.is_some() {
            let text = format!("{}\n{early}\n{}", death.message, death.printed);
            let mini_batch = handed.and_then(|handed| self.mini_batch_of(handed));
            self.gpu_died(id, mini_batch, &text);
        }
        self.announce_end(id, None, now);
        match exit_kind {
            ExitKind::Failed(ending) => {
                let mut ending = *ending;
                let error = match ending.error.take() {
                    Some(error) => ErrorReport { printed: death.printed, ..error },
                    None => death,
                };
                if let Some(handed) = handed {
                    let mini_batch = self.mini_batch_of(handed);
                    self.act(Action::UserError {
                        process: id,
                        mini_batch,
                        error: Box::new(error.clone()),
                    });
                    let ending = Ending { error: Some(error), has_checkpoints, ..ending };
                    self.conclude(id, handed, ending, Bytes::new(), now);
                }
                self.replace(id, now);
            }
            ExitKind::NotStarted { reason } => {
                let (message, chance) = match reason {
                    Some(reason) => (reason, RestartChance::Perhaps),
                    None => (early, chance),
                };
                let gpus = self.forget(id);
                self.not_started(id, gpus.as_ref(), message, (chance, death.printed), now);
            }
            ExitKind::DiedIdle => {
                self.processes.starts.died_idle(death.sentence());
                self.act(Action::UserError {
                    process: id,
                    mini_batch: None,
                    error: Box::new(death),
                });
                self.replace(id, now);
            }
            ExitKind::Expected => self.replace(id, now),
        }
    }

    /// Replaces a process that has ended. The mini-batches left in its pipe are handed over next, at no cost.
    fn replace(&mut self, id: ProcessId, now: Timestamp) {
        let gpus = self.forget(id);
        self.plan_start(id.slot, gpus.as_ref(), now);
    }

    /// Empties the slot of a process that has ended, or was killed while the agent closes. Returns its GPUs.
    pub(super) fn forget(&mut self, id: ProcessId) -> Option<GpuSet> {
        let handed = self.processes.get_mut(id)?.pipe.take();
        self.mini_batches.take_back(&handed, true);
        self.act(Action::Forget(id));
        self.empty(id.slot)
    }

    /// Empties a slot, and returns the GPUs that its process had. Another process may take them now.
    pub(super) fn empty(&mut self, slot: usize) -> Option<GpuSet> {
        let gpus = self.processes.empty(slot)?.gpus;
        self.gpus.release(gpus.as_ref());
        gpus
    }

    fn mini_batch_of(&self, handed: PipedMiniBatch) -> Option<u64> {
        self.mini_batches.get(handed.lease).map(|held| held.descriptor.mini_batch)
    }

    /// Kills a process that sent an invalid frame, because all later bytes are meaningless.
    pub(super) fn connection_damaged(&mut self, id: ProcessId, phase: SlotPhase, how: &str) {
        let node = self.config.node.clone();
        let Some(process) = self.processes.get_mut(id).filter(|process| !process.is_killed())
        else {
            return;
        };
        // The process may have finished what damaged the connection, and be idle by now.
        let phase = match (phase, process.pipe.front(), &process.state) {
            (SlotPhase::Idle, Some(_), _) => SlotPhase::Run,
            (SlotPhase::Idle, None, ProcessState::Starting) => SlotPhase::Init,
            _ => phase,
        };
        let message = format!(
            "the connection to the process was damaged in {}, {how}: the script, or a library, writes to a descriptor \
             that is not its own",
            phase.word()
        );
        let line = format!("{}: {message}, killing it", process.name);
        // The damaged bytes were the answer to the oldest unanswered mini-batch.
        let killed = match (process.pipe.front(), &process.state) {
            (Some(front), _) => {
                let (category, log) =
                    ("ConnectionDamaged".to_owned(), user_error_name(&node, &process.name));
                let error = ErrorReport { category, message, log, ..ErrorReport::default() };
                let ending = Ending::failed(AttemptStatus::ProcessDied, error);
                ExitKind::Failed(Box::new(Ending { sequence: front.sequence, ..ending }))
            }
            (None, ProcessState::Starting) => ExitKind::NotStarted { reason: Some(message) },
            (None, _) => ExitKind::Expected,
        };
        process.state = ProcessState::Killed(killed);
        self.log("ERROR", line);
        self.act(Action::Kill(id));
    }

    // ---- starts ------------------------------------------------------------------------------------------------

    pub(super) fn start_process(&mut self, slot: usize, now: Timestamp) {
        let gpus = self.gpus.take();
        let sees = match self.gpus.common().filter(|_| gpus.is_none()) {
            Some(_) if self.config.spec.hide_unassigned_gpus => Some(Vec::new()),
            sees => sees,
        };
        let process =
            self.processes.start(slot, gpus.clone(), sees.clone().unwrap_or_default(), now);
        self.act(Action::Start { process, gpus, sees });
    }

    /// Notes that a process, which had these GPUs, has not started, with the chance of another one and what it printed.
    pub(super) fn not_started(
        &mut self,
        id: ProcessId,
        gpus: Option<&GpuSet>,
        message: String,
        (chance, printed): (RestartChance, String),
        now: Timestamp,
    ) {
        let log = user_error_name(&self.config.node, &id.name());
        let error = ErrorReport {
            category: "ProcessDied".into(),
            message,
            traceback: String::new(),
            log,
            printed,
        };
        self.act(Action::UserError {
            process: id,
            mini_batch: None,
            error: Box::new(error.clone()),
        });
        self.start_failed(id, chance, error);
        self.plan_start(id.slot, gpus, now);
    }

    fn start_failed(&mut self, id: ProcessId, chance: RestartChance, error: ErrorReport) {
        let (node, process) = (self.config.node.clone(), id.name());
        self.log("ERROR", format!("{process} could not start: {}", error.message));
        self.processes.starts.failed(&process, chance, &error);
        self.tell(ResultEvent::InitFailed { node, process, error: error.into() });
    }

    /// Decides whether and when the next process starts in an empty slot, after one with these GPUs.
    pub(super) fn plan_start(&mut self, slot: usize, gpus: Option<&GpuSet>, now: Timestamp) {
        if !self.stopping.may_start() {
            return self.stop_if_alone();
        }
        if self.processes.are_full() {
            return;
        }
        if self.gpus.is_missing(gpus) {
            // Without a GPU, the script would be slow, or fail.
            if self.processes.are_over() && self.gpus.are_hopeless(self.config.gpus) {
                self.give_up(self.gpus.shortage());
            }
            return;
        }
        match self.processes.next_start() {
            (StartDecision::GiveUp(cause), _) => self.give_up(cause),
            (StartDecision::Start, None) => self.start_process(slot, now),
            // `Wait`: the slot stays empty until another start has succeeded or failed.
            (StartDecision::Start | StartDecision::Wait, pause) => {
                self.processes.start_later(slot, now.instant + pause.unwrap_or_default());
            }
        }
    }

    /// Starts the processes whose pause is over.
    pub(super) fn start_due(&mut self, now: Timestamp) {
        for slot in 0..self.processes.slots() {
            if !self.processes.is_due(slot, now) || !self.stopping.may_start() {
                continue;
            }
            match self.processes.next_start().0 {
                StartDecision::Start => self.start_process(slot, now),
                StartDecision::Wait => {}
                StartDecision::GiveUp(cause) => self.give_up(cause),
            }
        }
    }

    /// Finishes worn-out and surplus processes and, when the node stops, all idle ones.
    pub(super) fn finish_idle_processes(&mut self, now: Timestamp) {
        let stopping = !self.stopping.is_working();
        let has_work = self.mini_batches.has_unstarted();
        for slot in 0..self.processes.slots() {
            let Some(process) = self.processes.in_slot_mut(slot) else { continue };
            let is_unwanted = stopping || process.is_surplus || process.is_displaced;
            if !(is_unwanted || process.is_to_be_replaced(has_work)) || !process.pipe.is_empty() {
                continue;
            }
            let (id, name, wear) =
                (process.id, process.name.clone(), process.health.wear().cloned());
            match process.state {
                ProcessState::Working => {
                    process.state = ProcessState::Finishing { since: now.instant };
                    if let Some(wear) = wear.filter(|_| !is_unwanted) {
                        self.log(level(&wear), format!("{name} {wear}, replacing it"));
                    }
                    self.act(Action::Finish(id));
                }
                // `init()` may take long, and the node no longer needs the process.
                ProcessState::Starting | ProcessState::InitFailed if is_unwanted => {
                    self.log(
                        "INFO",
                        format!("{name} is still starting and no longer needed, killing it"),
                    );
                    self.kill(id);
                }
                _ => {}
            }
        }
    }

    /// Kills a process for which no mini-batch is to blame.
    pub(super) fn kill(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(id) else { return };
        if !process.is_killed() {
            process.state = ProcessState::Killed(ExitKind::Expected);
        }
        self.act(Action::Kill(id));
    }
}
