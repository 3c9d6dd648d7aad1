//! Looking at the processes: who takes too long, and where.
//!
//! A process that has exceeded its limit is first asked for its Python stacks, then killed: the stack at that moment is
//! what its user needs. One that merely takes long is asked for them too, long before anybody gives up.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use protocol::{AttemptStatus, ErrorReport, JobSpec, ResultEvent, SlotPhase, Waiting};

use super::processes::{Killed, Running};
use super::{Dispatcher, SHUTDOWN_TIME};

/// How long a process gets to write its stacks. It needs a millisecond unless the machine is starved. A lease
/// lasts longer than the limit and this.
const DUMP_TIME: Duration = Duration::from_secs(3);
/// A dump is complete when it has not grown between two looks.
const DUMP_BYTES_MAX: u64 = 16 * 1024;
/// How long a process may take to end after `shutdown()` has returned.
const EXIT_TIME: Duration = Duration::from_secs(5);
/// A long phase is reported after half of the limit, but not later than this.
const NOTICE_AFTER_MAX: Duration = Duration::from_secs(30);
const NOTICE_AGAIN: Duration = Duration::from_secs(60);

/// A request for the stacks of a process, under way.
#[derive(Debug)]
pub(super) struct Dump {
    requested: Instant,
    file: PathBuf,
    /// Size of the file before.
    offset: u64,
    /// Size when last looked at.
    seen: u64,
    purpose: Purpose,
}

#[derive(Debug)]
enum Purpose {
    /// Tell the user that this takes long.
    Notice { phase: SlotPhase, sequence: u64, elapsed: Duration },
    /// Kill it: hand-over `sequence` has exceeded its limit.
    Kill { phase: SlotPhase, sequence: u64 },
}

impl Dispatcher {
    /// How long loading, running and reporting one mini-batch may take.
    pub(super) fn limit(&self) -> Duration {
        let spec = &self.agent.spec;
        Duration::from_secs(spec.run_invocation_timeout_seconds + spec.task_overhead_timeout_seconds)
    }

    pub(super) async fn tick(&mut self) -> Result<()> {
        self.show();
        self.restart_due().await?;
        self.recall_waiting();
        self.give_up_slow_preparations().await?;
        self.give_back_old().await?;
        let limit = self.limit();
        let notice_after = (limit / 2).min(NOTICE_AFTER_MAX).max(Duration::from_secs(1));
        let mut notices = Vec::new();
        for running in self.slots.iter_mut().filter_map(|slot| slot.running.as_mut()) {
            running.log.flush();
            if running.killed.is_some() {
                continue;
            }
            if let Some(dump) = &mut running.dump {
                let Some(stack) = dump.result(&self.agent.package) else { continue };
                let purpose = running.dump.take().expect("it is there").purpose;
                match purpose {
                    Purpose::Notice { phase, sequence, elapsed } => {
                        notices.push(waiting(&self.agent.node, running, phase, sequence, elapsed, stack));
                    }
                    // It has answered meanwhile.
                    Purpose::Kill { sequence, .. } if running.pipe.get(sequence).is_none() => {}
                    Purpose::Kill { phase, sequence } => {
                        let error = timeout_error(&self.agent.spec, running, &self.agent.node, phase, stack);
                        self.log.main("ERROR", &format!("{}: {}", running.name, error.message));
                        let status = if phase == SlotPhase::Load {
                            AttemptStatus::LoadTimedOut
                        } else {
                            AttemptStatus::RunTimedOut
                        };
                        running.killed = Some(Killed::TimedOut { sequence, status, error });
                        running.process.kill();
                    }
                }
                continue;
            }
            let (phase, sequence, elapsed) = running.process.status();
            let told = running.finishing.map_or(Duration::ZERO, |told| told.elapsed());
            // After `shutdown()` only threads and exit handlers of the script are left.
            let is_over = phase == SlotPhase::Idle && told > EXIT_TIME && elapsed > EXIT_TIME;
            if told > SHUTDOWN_TIME || is_over {
                let what = if is_over { "a thread or exit handler of the script" } else { "shutdown()" };
                let seconds = told.as_secs();
                self.log
                    .main("WARNING", &format!("{what} keeps {} from ending for {seconds} s, killing it", running.name));
                running.killed = Some(Killed::Interrupted);
                running.process.kill();
                continue;
            }
            let busy = matches!(phase, SlotPhase::Load | SlotPhase::Run | SlotPhase::Report);
            let began = running.pipe.get(sequence).filter(|_| busy).map(|handed| handed.began.elapsed());
            let file = self.log.system_file(&running.name, "stack.txt");
            if began.is_some_and(|began| began > limit) {
                running.dump = Some(Dump::request(running, file, Purpose::Kill { phase, sequence }));
                continue;
            }
            let is_long = (busy || matches!(phase, SlotPhase::Init | SlotPhase::Starting)) && elapsed > notice_after;
            if is_long && running.noticed.is_none_or(|noticed| noticed.elapsed() > NOTICE_AGAIN) {
                running.noticed = Some(Instant::now());
                if phase == SlotPhase::Starting {
                    notices.push(waiting(&self.agent.node, running, phase, 0, elapsed, String::new()));
                } else {
                    running.dump = Some(Dump::request(running, file, Purpose::Notice { phase, sequence, elapsed }));
                }
            }
        }
        for notice in notices {
            self.tell(ResultEvent::Waiting(notice.into())).await?;
        }
        Ok(())
    }
}

fn waiting(
    node: &str,
    running: &Running,
    phase: SlotPhase,
    sequence: u64,
    elapsed: Duration,
    stack: String,
) -> Waiting {
    Waiting {
        node: node.to_owned(),
        process: running.name.clone(),
        mini_batch: running.pipe.get(sequence).map(|handed| handed.prepared.descriptor.mini_batch),
        phase,
        seconds: elapsed.as_secs(),
        stack,
    }
}

/// Words for a limit that was exceeded.
fn timeout_error(spec: &JobSpec, running: &Running, node: &str, phase: SlotPhase, stack: String) -> ErrorReport {
    let (run, overhead) = (spec.run_invocation_timeout_seconds, spec.task_overhead_timeout_seconds);
    ErrorReport {
        category: if phase == SlotPhase::Load { "LoadTimeout" } else { "RunTimeout" }.to_owned(),
        message: format!(
            "{} did not end within {} seconds (run_invocation_timeout {run} s plus task_overhead_timeout {overhead} s) \
             and was killed",
            phase.word(),
            run + overhead,
        ),
        traceback: stack,
        log: format!("user/error/{node}/{}.txt", running.name),
    }
}

impl Dump {
    fn request(running: &Running, file: PathBuf, purpose: Purpose) -> Self {
        let offset = std::fs::metadata(&file).map_or(0, |metadata| metadata.len());
        running.process.dump_stacks();
        Self { requested: Instant::now(), file, offset, seen: offset, purpose }
    }

    /// The stacks, once they are written, or once waiting for them has taken too long.
    fn result(&mut self, package: &Path) -> Option<String> {
        let size = std::fs::metadata(&self.file).map_or(0, |metadata| metadata.len());
        let complete = size > self.offset && size == self.seen;
        self.seen = size;
        if !complete && self.requested.elapsed() < DUMP_TIME {
            return None;
        }
        let read = || -> std::io::Result<Vec<u8>> {
            use std::os::unix::fs::FileExt;
            let mut bytes = vec![0; (size - self.offset).min(DUMP_BYTES_MAX) as usize];
            std::fs::File::open(&self.file)?.read_exact_at(&mut bytes, self.offset)?;
            Ok(bytes)
        };
        let stack = read().unwrap_or_default();
        let stack = String::from_utf8_lossy(&stack);
        // Our own frames below the user's say nothing.
        let package = package.to_string_lossy();
        let lines = stack.lines().filter(|line| !line.contains(&*package));
        Some(lines.collect::<Vec<_>>().join("\n"))
    }
}
