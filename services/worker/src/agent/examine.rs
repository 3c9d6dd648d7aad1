//! Finds out how a process ended.
//!
//! The status page still shows which mini-batch a dead process ran, so the agent blames the right
//! one. The report names the signal and quotes the stack of the crash and the last lines that the
//! attempt printed.

use std::sync::Arc;
use std::time::Instant;

use protocol::{ErrorReport, RestartChance, SlotPhase};

use super::Executor;
use super::processes::Running;
use crate::node_log::{NodeLog, user_error_name};
use crate::printed::{Pipes, crash_stack, last_lines, quote, without_crash};
use crate::scheduler::{ExitReport, ProcessId};

/// Exit statuses of a process, as in the Python package (`contract.py`).
const EXIT_INTERNAL: i32 = 70;
const EXIT_INIT_FAILED: i32 = 72;
const EXIT_AGENT_GONE: i32 = 82;
const EXIT_SOCKET_CLOSED: i32 = 83;

impl Executor {
    /// Examines a process that has ended with `code`. `sequence` and `since` select the output to quote.
    pub(super) fn examine(
        &mut self,
        process: ProcessId,
        code: i32,
        phase: SlotPhase,
        sequence: u64,
        since: Instant,
    ) -> Option<ExitReport> {
        let running =
            self.running[process.slot].as_ref().filter(|running| running.id == process)?;
        let mut death = self.death(running, code, phase);
        death.printed = printed(&self.log, running, sequence, since);
        let (early, chance) = self.early_death(code, phase, &death.message, &death.printed);
        let has_checkpoints = self.checkpoints.folder().is_dir();
        Some(ExitReport { death, early, chance, has_checkpoints })
    }

    /// Returns the last lines that the current mini-batch of a process, or its start, has printed so far.
    pub(super) fn printed_so_far(&self, process: ProcessId) -> String {
        let Some(running) =
            self.running[process.slot].as_ref().filter(|running| running.id == process)
        else {
            return String::new();
        };
        let (_, sequence, elapsed) = running.process.page.read();
        let began = Instant::now().checked_sub(elapsed).filter(|_| sequence > 0);
        printed(&self.log, running, sequence, began.unwrap_or(running.started))
    }

    fn death(&self, running: &Running, code: i32, phase: SlotPhase) -> ErrorReport {
        let place = match phase {
            SlotPhase::Idle => "between two mini-batches".to_owned(),
            _ => format!("in {}", phase.word()),
        };
        let message = match code {
            EXIT_SOCKET_CLOSED => format!(
                "the script closed the engine's connection {place}: close only descriptors that the script opened, not \
                 a range of them (os.closerange)"
            ),
            EXIT_INTERNAL => format!("the engine's own code failed {place}; see its last output"),
            EXIT_AGENT_GONE => format!("the connection to the process was cut {place}"),
            0.. => format!(
                "the script ended its own process {place}, with exit status {code} (os._exit)"
            ),
            _ if -code == libc::SIGKILL => {
                let kills = (running.oom_kills, self.oom_kills());
                let is_out_of_memory = matches!(kills, (Some(before), Some(now)) if now > before);
                let remedy = "use smaller mini-batches or fewer processes (process_count_per_node)";
                let why = match &self.agent.memory_group {
                    Some(group) if is_out_of_memory => format!("by the kernel, {}", group.why()),
                    _ if is_out_of_memory => {
                        format!("by the kernel, because memory ran out: {remedy}")
                    }
                    _ => format!("possibly by the kernel because memory ran out (OOM): {remedy}"),
                };
                format!("the process was killed (SIGKILL) {place}, {why}")
            }
            _ => format!("the process crashed ({}) {place}", signal_name(-code)),
        };
        let name = running.id.name();
        let stack = crash_stack(&self.log.user_stream(&name, "stderr"), &self.agent.package)
            .unwrap_or_default();
        let log = user_error_name(&self.agent.node, &name);
        ErrorReport {
            category: "ProcessDied".into(),
            message,
            traceback: stack,
            log,
            printed: String::new(),
        }
    }

    /// Describes the end of a process before `init()` had returned, and the chance of another one.
    fn early_death(
        &self,
        code: i32,
        phase: SlotPhase,
        death: &str,
        printed: &str,
    ) -> (String, RestartChance) {
        let last_line = printed.lines().last().unwrap_or_default();
        // The bootstrap file prints why this interpreter cannot be used.
        if let Some(reason) =
            last_line.strip_prefix("gristmill: ").filter(|_| code == EXIT_INIT_FAILED)
        {
            return (reason.to_owned(), RestartChance::Never);
        }
        let chance =
            if -code == libc::SIGKILL { RestartChance::Likely } else { RestartChance::Perhaps };
        let python = self.agent.python.display();
        if phase == SlotPhase::Starting && code >= 0 {
            let quote = if last_line.is_empty() { String::new() } else { format!(": {last_line}") };
            return (
                format!(
                    "{python} ended with exit status {code} before it reached the script{quote}"
                ),
                chance,
            );
        }
        (format!("{death} (interpreter: {python})"), chance)
    }
}

/// Returns the output of a hand-over (0: of `init()`) that began at `began`.
fn printed(log: &NodeLog, running: &Running, sequence: u64, began: Instant) -> String {
    let beginnings = running.process.page.printed_from(sequence);
    let streams = ["stdout", "stderr"].into_iter().zip(beginnings);
    let of_python = streams.filter_map(|(stream, beginning)| {
        Some(without_crash(last_lines(&log.user_stream(&running.id.name(), stream), beginning?)))
    });
    quote(of_python.chain(running.process.pipes.lines_since(began)).collect())
}

/// Adds the output of native code and child processes since `began` to the report of a process.
pub(super) async fn quote_pipes(error: &mut ErrorReport, pipes: Arc<Pipes>, began: Instant) {
    pipes.settle().await;
    let of_python = error.printed.lines().map(str::to_owned).collect();
    error.printed = quote([vec![of_python], pipes.lines_since(began)].concat());
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGTERM => "SIGTERM",
        libc::SIGINT => "SIGINT",
        libc::SIGHUP => "SIGHUP",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGSYS => "SIGSYS",
        libc::SIGXCPU => "SIGXCPU",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
