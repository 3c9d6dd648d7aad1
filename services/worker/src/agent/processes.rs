//! The agent's Python processes: started, handed work, listened to, replaced.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use protocol::{
    AttemptStatus, Configure, ErrorReport, OutputAction, ProcessEvent, ResultEvent, SlotPhase, ToProcess, encode_frame,
};

use super::watch::Dump;
use super::{Dispatcher, Event, Stop};
use crate::CrashPoint;
use crate::gpu::threads_each;
use crate::lease::LeaseId;
use crate::node_log::LogFile;
use crate::python_process::{Outgoing, PythonProcess, Report, Start, bootstrap_script};
use crate::scratch;
use crate::slot::{Ending, InPipe, Pipe, Prepared};

/// Largest log file of one process's user code.
const LOG_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Failed mini-batches after which a process is replaced: whatever it holds may be spoiled.
const FAILURES_MAX: u32 = 10;
/// A run that takes longer than this keeps nothing waiting behind it: more than twice what a pipe should hold.
const RECALL_AFTER: Duration = Duration::from_millis(50);
/// Failed starts of a node, per process, after which it gives up.
const FAILED_STARTS_PER_PROCESS: u32 = 3;
/// Pause before a process that could not start is replaced; doubles with each failure in a row.
const RESTART_PAUSE: Duration = Duration::from_millis(50);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(5);

/// A place for one Python process.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) running: Option<Running>,
    /// Distinguishes reports of a process from those of its predecessors.
    generation: u64,
    restart_at: Option<Instant>,
}

/// A process, and what it is busy with.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) process: PythonProcess,
    /// `processNNN`.
    pub(super) name: String,
    pub(super) pipe: Pipe,
    pub(super) log: LogFile,
    /// `init()` has returned.
    pub(super) ready: bool,
    /// Why it was killed, if it was.
    pub(super) killed: Option<Killed>,
    /// A stack dump that was asked for.
    pub(super) dump: Option<Dump>,
    /// When a long phase was last reported.
    pub(super) noticed: Option<Instant>,
    gpu: Option<u32>,
    scratch: PathBuf,
    /// When it was told to end.
    pub(super) finishing: Option<Instant>,
    init_failed: bool,
    failures: u32,
}

/// Why a process was killed.
#[derive(Debug)]
pub(super) enum Killed {
    /// Its mini-batch took too long.
    TimedOut { sequence: u64, status: AttemptStatus, error: ErrorReport },
    /// Nobody is to blame: a lost lease, a stop.
    Interrupted,
}

impl Slot {
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_none()
    }

    /// Mini-batches this slot should have in its pipe.
    pub(super) fn depth(&self) -> usize {
        self.running.as_ref().map_or(1, |running| running.pipe.depth())
    }

    /// Mini-batches that are in its pipe.
    pub(super) fn handed(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.pipe.len())
    }

    /// Empties the pipe.
    pub(super) fn take_back(&mut self) -> Vec<Prepared> {
        let pipe = self.running.as_mut().map(|running| &mut running.pipe);
        pipe.map_or(Vec::new(), |pipe| pipe.drain().map(|handed| handed.prepared).collect())
    }
}

impl Dispatcher {
    pub(super) async fn start_processes(&mut self) -> Result<()> {
        for slot in 0..self.slots.len() {
            self.start_process(slot).await?;
        }
        Ok(())
    }

    async fn start_process(&mut self, slot: usize) -> Result<()> {
        let name = format!("process{:03}", self.next_process);
        self.next_process += 1;
        self.slots[slot].restart_at = None;
        self.slots[slot].generation += 1;
        let generation = self.slots[slot].generation;
        let gpu = self.gpus.take();
        let scratch = self.agent.work_folder.join("scratch").join(&name);
        let started = scratch::make(&scratch, self.agent.spec.source_directory.as_path()).and_then(|()| {
            let start = Start {
                python: self.agent.python.clone(),
                bootstrap: bootstrap_script(&self.agent.package),
                scratch: scratch.clone(),
                environment: self.environment(gpu),
                nice: self.agent.spec.nice,
                stdout_log: self.log.system_file(&name, "stdout.txt"),
                stderr_log: self.log.system_file(&name, "stderr.txt"),
                log_bytes_max: LOG_BYTES_MAX,
            };
            let events = self.events.clone();
            PythonProcess::start(&start, move |report| {
                let _ = events.send(Event::Process { slot, generation, report });
            })
        });
        let process = match started {
            Ok(process) => process,
            Err(error) => {
                if let Some(index) = gpu {
                    self.gpus.give_back(index);
                }
                return self.could_not_start(slot, &name, format!("{error:#}")).await;
            }
        };
        let mut bytes = Vec::new();
        encode_frame(&ToProcess::Configure(Box::new(self.configure(&name, &scratch))), b"", &mut bytes);
        process.send(Outgoing { bytes, files: Vec::new() });
        let pid = process.id();
        let seen = gpu.map_or(String::new(), |index| format!(", sees GPU {index}"));
        self.log.main("INFO", &format!("{name} started, pid {pid}{seen}"));
        let node = self.agent.node.clone();
        self.tell(ResultEvent::ProcessStarted { node, process: name.clone(), pid }).await?;
        self.slots[slot].running = Some(Running {
            process,
            log: self.log.process(&name),
            name,
            pipe: Pipe::default(),
            ready: false,
            killed: None,
            dump: None,
            noticed: None,
            gpu,
            scratch,
            finishing: None,
            init_failed: false,
            failures: 0,
        });
        Ok(())
    }

    fn environment(&self, gpu: Option<u32>) -> Vec<(OsString, OsString)> {
        let spec = &self.agent.spec;
        let mut variables: Vec<(OsString, OsString)> = vec![
            ("AZUREML_BI_OUTPUT_PATH".into(), spec.output.folder.as_path().into()),
            ("AZUREML_NODE_COUNT".into(), spec.node_count.unwrap_or(1).to_string().into()),
            ("AZUREML_RUN_ID".into(), spec.job_id.clone().into()),
        ];
        if self.agent.gpu_count > 0 {
            variables.push(("AZ_BATCHAI_GPU_COUNT_FOUND".into(), self.agent.gpu_count.to_string().into()));
        }
        variables.extend(spec.environment_variables.iter().map(|(name, value)| (name.into(), value.into())));
        match gpu {
            Some(index) => variables.push(("CUDA_VISIBLE_DEVICES".into(), index.to_string().into())),
            None if spec.hide_unassigned_gpus && self.agent.gpu_count > 0 => {
                variables.push(("CUDA_VISIBLE_DEVICES".into(), OsString::new()));
            }
            None => {}
        }
        variables
    }

    fn configure(&self, process: &str, scratch: &std::path::Path) -> Configure {
        let spec = &self.agent.spec;
        let snapshot = spec.source_directory.as_path();
        Configure {
            module: spec.entry_script.strip_suffix(".py").unwrap_or(&spec.entry_script).replace('/', "."),
            snapshot: spec.source_directory.clone(),
            script: snapshot.join(&spec.entry_script).into(),
            argv: spec.argv.clone(),
            process: process.to_owned(),
            node: self.agent.node.clone(),
            logs: self.log.folder().into(),
            output: Some(spec.output.folder.clone()).filter(|folder| !folder.is_url()),
            scratch: scratch.into(),
            logging_level: spec.logging_level.clone(),
            profiling_module: spec.profiling_module.clone(),
            rows_wanted: spec.output.action == OutputAction::AppendRow,
            output_format: spec.output.format,
            to_csv_arguments: spec.output.to_csv_arguments.clone(),
            strict_results: spec.strict_results,
            log_bytes_max: LOG_BYTES_MAX,
            threads: threads_each(self.agent.process_count),
        }
    }

    // ---- hand over -------------------------------------------------------------------------------------------

    /// Fills the pipes. What is scarce is shared, so that the last mini-batches do not queue up in one process.
    pub(super) fn hand_over(&mut self) {
        if self.stop != Stop::No {
            return;
        }
        let limit = self.limit();
        let share = self.ready.len().div_ceil(self.slots.len().max(1));
        let mut handed_any = false;
        for slot in &mut self.slots {
            let Some(running) = &mut slot.running else { continue };
            if !running.ready
                || running.finishing.is_some()
                || running.killed.is_some()
                || running.failures > FAILURES_MAX
            {
                continue;
            }
            let mut frames = Vec::new();
            let mut files = Vec::new();
            let was_empty = running.pipe.is_empty();
            let quota = running.pipe.wanted().min(share);
            while frames.len() < quota {
                let Some(prepared) = self.ready.pop_front() else { break };
                // Its lease lapsed while it waited.
                if self.leases.receipt(prepared.lease).is_none() {
                    continue;
                }
                files.extend(prepared.file.as_ref().map(|table| table.file.clone()));
                frames.push(running.pipe.hand_over(prepared));
            }
            if frames.is_empty() {
                continue;
            }
            handed_any = true;
            let mut bytes = Vec::new();
            encode_frame(&ToProcess::MiniBatches { mini_batches: frames }, b"", &mut bytes);
            running.process.send(Outgoing { bytes, files });
            if was_empty {
                begin(&self.leases, running.pipe.front(), limit);
            }
        }
        if handed_any {
            (self.agent.crash)(CrashPoint::AfterHandOver);
        }
    }

    /// Takes back what waits behind a run that has turned out slow, for another process or a later moment.
    pub(super) fn recall_waiting(&mut self) {
        for running in self.slots.iter_mut().filter_map(|slot| slot.running.as_mut()) {
            let (_, sequence, elapsed) = running.process.status();
            let stands_still = running.pipe.front().is_some_and(|front| front.sequence == sequence);
            if !stands_still || elapsed < RECALL_AFTER || running.killed.is_some() {
                continue;
            }
            let Some((first, end)) = running.pipe.behind() else { continue };
            if running.process.recall(first, end) {
                for handed in running.pipe.recall(elapsed).rev() {
                    self.ready.push_front(handed.prepared);
                }
            }
        }
    }

    /// Takes back everything that no process has begun. Where a process has got further than the agent knows, it tells of
    /// each hand-over whether it has begun it.
    pub(super) fn recall_all(&mut self) {
        for running in self.slots.iter_mut().filter_map(|slot| slot.running.as_mut()) {
            let Some((first, end)) = running.pipe.behind() else { continue };
            if running.process.recall(first, end) {
                self.ready.extend(running.pipe.recall(Duration::ZERO).map(|handed| handed.prepared));
            }
        }
    }

    // ---- listen ----------------------------------------------------------------------------------------------

    pub(super) async fn process_reported(&mut self, slot: usize, generation: u64, report: Report) -> Result<()> {
        if self.slots[slot].generation != generation || self.slots[slot].running.is_none() {
            return Ok(());
        }
        match report {
            Report::Events(events) => {
                for (event, payload) in events {
                    self.process_event(slot, event, payload).await?;
                }
                self.finish_if_idle(slot);
                Ok(())
            }
            Report::Broken(message) => {
                self.log.main("ERROR", &format!("the connection to slot {slot} is broken, killing it: {message}"));
                if let Some(running) = &self.slots[slot].running {
                    running.process.kill();
                }
                Ok(())
            }
            Report::Exited(code) => self.process_exited(slot, code).await,
        }
    }

    async fn process_event(&mut self, slot: usize, event: ProcessEvent, rows: Bytes) -> Result<()> {
        let node = self.agent.node.clone();
        let limit = self.limit();
        let Some(running) = &mut self.slots[slot].running else { return Ok(()) };
        let process = running.name.clone();
        let (sequence, ending) = match event {
            ProcessEvent::Ready { init_seconds, python_version } => {
                running.ready = true;
                running.noticed = None;
                self.failed_starts = 0;
                self.log
                    .main("INFO", &format!("{process} is ready: Python {python_version}, init {init_seconds:.3} s"));
                return self.tell(ResultEvent::ProcessReady { node, process, init_seconds }).await;
            }
            ProcessEvent::InitFailed { error } => {
                running.init_failed = true;
                self.log.main("ERROR", &format!("{process} could not start: {}", error.message));
                self.failed_starts += 1;
                self.last_failure = format!("{}: {} Open logs/{}", error.category, error.message, error.log);
                return self.tell(ResultEvent::InitFailed { node, process, error: error.into() }).await;
            }
            ProcessEvent::Recalled { sequence } => {
                // Usually taken back long ago.
                if let Some(handed) = running.pipe.skipped(sequence) {
                    begin(&self.leases, running.pipe.front(), limit);
                    self.ready.push_front(handed.prepared);
                }
                return Ok(());
            }
            ProcessEvent::ShutdownFailed { error } => {
                self.log.main("ERROR", &format!("shutdown() of {process} raised: {}", error.message));
                return Ok(());
            }
            ProcessEvent::Done { sequence, returned, columns, run_seconds, process_seconds, warnings } => {
                if let Some(handed) = running.pipe.get_mut(sequence) {
                    handed.prepared.warnings_total += warnings.len() as u64;
                    handed.prepared.warnings.extend(warnings);
                }
                let status = AttemptStatus::Succeeded;
                (sequence, Ending { status, returned, columns, error: None, run_seconds, process_seconds })
            }
            ProcessEvent::Failed { sequence, illegal_result, load_failed, error, run_seconds, process_seconds } => {
                running.failures += 1;
                let status = match (load_failed, illegal_result) {
                    (true, _) => AttemptStatus::LoadFailed,
                    (false, true) => AttemptStatus::IllegalResult,
                    (false, false) => AttemptStatus::RunRaised,
                };
                (sequence, Ending { run_seconds, process_seconds, ..Ending::failed(status, error) })
            }
        };
        let Some(mut handed) = running.pipe.answered(sequence, ending.run_seconds.max(ending.process_seconds)) else {
            // Answers come in order. One that does not is not to be trusted, nor is its process.
            self.log.main("ERROR", &format!("{process} answered hand-over {sequence} out of turn, killing it"));
            running.process.kill();
            return Ok(());
        };
        running.noticed = None;
        self.idle_deaths = 0;
        begin(&self.leases, running.pipe.front(), limit);
        if let Some(table) = handed.prepared.file.take() {
            self.preparer.give_back(table);
        }
        (self.agent.crash)(CrashPoint::AfterRun);
        self.conclude(Some(slot), handed, ending, rows).await
    }

    // ---- the end of a process --------------------------------------------------------------------------------

    async fn process_exited(&mut self, slot: usize, code: i32) -> Result<()> {
        let Some(running) = &mut self.slots[slot].running else { return Ok(()) };
        let name = running.name.clone();
        let (phase, sequence, _) = running.process.status();
        let was_ready = running.ready;
        let was_killed = running.killed.is_some();
        let blamed = match running.killed.take() {
            Some(Killed::TimedOut { sequence, status, error }) => Some((sequence, Ending::failed(status, error))),
            Some(Killed::Interrupted) => None,
            None => matches!(phase, SlotPhase::Load | SlotPhase::Run | SlotPhase::Report)
                .then(|| (sequence, Ending::failed(AttemptStatus::ProcessDied, self.death(slot, code, phase)))),
        };
        self.log.main("INFO", &format!("{name} exits with returncode {code}."));
        let node = self.agent.node.clone();
        self.tell(ResultEvent::ProcessEnded { node, process: name.clone(), return_code: code }).await?;

        let is_blamed = blamed.is_some();
        if let Some((sequence, ending)) = blamed {
            let handed = self.slots[slot].running.as_mut().and_then(|running| running.pipe.remove(sequence));
            if let Some(handed) = handed {
                let error = ending.error.clone().unwrap_or_default();
                let pid = self.slots[slot].running.as_ref().map_or(0, |running| running.process.id());
                let head = format!("mini-batch {}: {}", handed.prepared.descriptor.mini_batch, error.message);
                self.log.user_error(&name, pid, &head, &error.traceback);
                self.conclude(Some(slot), handed, ending, Bytes::new()).await?;
            }
        }
        // What waited behind it is not to blame, and comes next.
        for prepared in self.slots[slot].take_back().into_iter().rev() {
            self.ready.push_front(prepared);
        }
        let init_failed = self.slots[slot].running.as_ref().is_some_and(|running| running.init_failed);
        let was_finishing = self.slots[slot].running.as_ref().is_some_and(|running| running.finishing.is_some());
        self.forget_process(slot);
        if !was_ready && !was_killed && !init_failed && self.stop == Stop::No {
            let stderr = self.log.system_file(&name, "stderr.txt");
            let said = last_lines(&stderr);
            let python = self.agent.python.display();
            let message = format!("{python} ended with returncode {code} before init() returned{said}");
            return self.could_not_start(slot, &name, message).await;
        }
        // Nobody's try is spent here, so this alone keeps such a node from starting processes for ever.
        if was_ready && !was_killed && !was_finishing && !is_blamed && self.stop == Stop::No {
            self.idle_deaths += 1;
            let stderr = format!("user/stderr/{}/{name}.stderr.txt", self.agent.node);
            self.last_failure = format!("{name} ended with returncode {code}. Open logs/{stderr}");
        }
        self.plan_restart(slot).await
    }

    /// What to say of a process that died under a mini-batch.
    fn death(&self, slot: usize, code: i32, phase: SlotPhase) -> ErrorReport {
        let name = self.slots[slot].running.as_ref().map_or("", |running| &running.name);
        let why = match code {
            -9 => " It was killed, most often because memory ran out: see logs/perf, or run fewer processes a node.",
            -11 => " Native code crashed: the stack is in the process's stderr file.",
            _ => "",
        };
        ErrorReport {
            category: "ProcessDied".into(),
            message: format!("the process exited with returncode {code} in {}.{why}", phase.word()),
            traceback: String::new(),
            log: format!("user/stderr/{}/{name}.stderr.txt", self.agent.node),
        }
    }

    async fn could_not_start(&mut self, slot: usize, name: &str, message: String) -> Result<()> {
        self.log.main("ERROR", &format!("{name} could not start: {message}"));
        self.log.user_error(name, 0, &message, "");
        self.failed_starts += 1;
        self.last_failure.clone_from(&message);
        let error = ErrorReport {
            category: "ProcessDied".into(),
            message,
            traceback: String::new(),
            log: format!("sys/node/{}/{name}.stderr.txt", self.agent.node),
        };
        let node = self.agent.node.clone();
        self.tell(ResultEvent::InitFailed { node, process: name.to_owned(), error: error.into() }).await?;
        self.plan_restart(slot).await
    }

    async fn plan_restart(&mut self, slot: usize) -> Result<()> {
        if self.stop != Stop::No || self.gave_up.is_some() {
            return self.give_up_if_alone().await;
        }
        let failures = self.failed_starts.max(self.idle_deaths);
        if failures >= FAILED_STARTS_PER_PROCESS * self.agent.process_count {
            let what = match self.failed_starts >= self.idle_deaths {
                true => "failures of init() in a row",
                false => "processes in a row ended between two mini-batches",
            };
            let cause = format!(
                "node {} stopped starting processes after {failures} {what}; the last one: {}",
                self.agent.node, self.last_failure
            );
            self.log.main("ERROR", &cause);
            self.gave_up = Some(cause);
            return self.give_up_if_alone().await;
        }
        if failures == 0 {
            return Box::pin(self.start_process(slot)).await;
        }
        let pause = RESTART_PAUSE * 2u32.saturating_pow(failures.min(8));
        self.slots[slot].restart_at = Some(Instant::now() + pause.min(RESTART_PAUSE_MAX));
        Ok(())
    }

    /// A node that has given up tells so when its last process is gone, and gives back what it holds.
    async fn give_up_if_alone(&mut self) -> Result<()> {
        let Some(cause) = &self.gave_up else { return Ok(()) };
        if self.stop == Stop::No && self.slots.iter().all(Slot::is_empty) {
            let event = ResultEvent::NodeStopped { node: self.agent.node.clone(), cause: Some(cause.clone()) };
            self.stop = Stop::Drain;
            self.tell(event).await?;
        }
        Ok(())
    }

    /// Starts the processes whose pause is over.
    pub(super) async fn restart_due(&mut self) -> Result<()> {
        let now = Instant::now();
        for slot in 0..self.slots.len() {
            let due = self.slots[slot].restart_at.is_some_and(|at| at <= now);
            if due && self.stop == Stop::No && self.gave_up.is_none() {
                self.start_process(slot).await?;
            }
        }
        Ok(())
    }

    /// Clears the slot of a process that is gone, or killed and no longer of interest.
    pub(super) fn forget_process(&mut self, slot: usize) {
        if let Some(mut running) = self.slots[slot].running.take() {
            running.log.flush();
            if let Some(index) = running.gpu {
                self.gpus.give_back(index);
            }
            scratch::remove(&running.scratch);
        }
    }

    // ---- stop ------------------------------------------------------------------------------------------------

    /// Rule: a lost lease stops the work.
    pub(super) fn lease_lost(&mut self, lease: LeaseId) {
        self.to_prepare.retain(|waiting| waiting.lease != lease);
        self.preparing.remove(&lease);
        self.ready.retain(|prepared| prepared.lease != lease);
        for running in self.slots.iter_mut().filter_map(|slot| slot.running.as_mut()) {
            let Some(sequence) = running.pipe.sequence_of(lease) else { continue };
            // Further back in the pipe it does no harm: its outcome will find no lease and go nowhere.
            if running.process.status().1 == sequence && running.killed.is_none() {
                self.log.main("WARNING", &format!("the lease of what {} runs was lost, killing it", running.name));
                running.pipe.remove(sequence);
                running.killed = Some(Killed::Interrupted);
                running.process.kill();
            }
        }
    }

    pub(super) fn kill_processes(&mut self) {
        for running in self.slots.iter_mut().filter_map(|slot| slot.running.as_mut()) {
            running.killed.get_or_insert(Killed::Interrupted);
            running.process.kill();
        }
    }

    /// Tells every process that has nothing to do to end, when the agent stops.
    pub(super) fn finish_idle_processes(&mut self) {
        for slot in 0..self.slots.len() {
            self.finish_if_idle(slot);
        }
    }

    fn finish_if_idle(&mut self, slot: usize) {
        let stopping = self.stop != Stop::No;
        let Some(running) = &mut self.slots[slot].running else { return };
        let worn_out = running.failures > FAILURES_MAX;
        if running.finishing.is_some() || !(stopping || worn_out) || !running.pipe.is_empty() {
            return;
        }
        if stopping && !running.ready {
            // In init(), which may take long and is of no use any more.
            self.log.main("INFO", &format!("{} was still starting and is not needed any more", running.name));
            running.killed.get_or_insert(Killed::Interrupted);
            running.process.kill();
            return;
        }
        if worn_out && !stopping {
            self.log.main("WARNING", &format!("{} failed more than {FAILURES_MAX} times, replacing it", running.name));
        }
        running.finishing = Some(Instant::now());
        let mut bytes = Vec::new();
        encode_frame(&ToProcess::Finish, b"", &mut bytes);
        running.process.send(Outgoing { bytes, files: Vec::new() });
    }
}

/// The turn of a mini-batch has come: from now on its lease ends with its deadline.
fn begin(leases: &crate::lease::Leases, front: Option<&InPipe>, limit: Duration) {
    if let Some(handed) = front {
        // The agent acts first; the queue is the second line, for an agent that hangs.
        const GRACE: Duration = Duration::from_secs(5);
        leases.start(handed.prepared.lease, tokio::time::Instant::now() + limit + GRACE);
    }
}

/// The end of a small log, as an appendix to a message.
fn last_lines(path: &std::path::Path) -> String {
    const LINES: usize = 5;
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    if last.is_empty() { String::new() } else { format!(": {}", last.join(" | ")) }
}
