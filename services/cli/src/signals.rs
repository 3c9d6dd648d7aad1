//! Signals that ask a command to stop: Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal sends.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::StopRequest;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::exit::Exit;

/// Whether Ctrl-C has stopped the command.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ends the process by SIGINT if Ctrl-C has stopped its command before it succeeded, so that a loop of a shell ends with it.
/// The shell shows [`Exit::Canceled`].
pub fn end_if_interrupted(status: ExitCode) {
    if status != Exit::Done.into() && INTERRUPTED.load(Ordering::Relaxed) {
        // SAFETY: neither call touches memory of this program. The first process of a container ignores the signal.
        unsafe {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::raise(libc::SIGINT);
        }
    }
}

/// Stops a job gracefully at the first signal, and immediately at the second.
pub fn stop_on_signals() -> (StopRequest, AbortOnDropHandle<()>) {
    let stop = StopRequest::default();
    let signals = watch_signals(stop.cancel.clone(), stop.kill.clone());
    (stop, AbortOnDropHandle::new(tokio::spawn(signals)))
}

/// Cancels the token at the first signal. This ends a command that only waits for a job, but not the job.
pub fn watch_for_stop(stopped: CancellationToken) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let Ok(mut stops) = StopSignals::catch() else { return };
        stops.next().await;
        stopped.cancel();
    }))
}

/// Cancels `cancel` at the first signal, and `kill` at the second. Catches signals from this call on.
pub fn watch_signals(
    cancel: CancellationToken,
    kill: CancellationToken,
) -> impl Future<Output = ()> {
    let stops = StopSignals::catch();
    async move {
        let Ok(mut stops) = stops else { return };
        let name = stops.next().await;
        say!(
            err,
            "{name}: stopping; running mini-batches may finish, the others are kept for later (again: stop at once)"
        );
        cancel.cancel();
        stops.next().await;
        kill.cancel();
    }
}

struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// `None`: ignored since the start of the command (`nohup`), and still ignored.
    hangup: Option<Signal>,
}

impl StopSignals {
    /// Catches the signals from now on, so that they do not end the process.
    fn catch() -> std::io::Result<Self> {
        let hangup = if is_ignored(SignalKind::hangup()) {
            None
        } else {
            Some(signal(SignalKind::hangup())?)
        };
        let (interrupt, terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hangup })
    }

    async fn next(&mut self) -> &'static str {
        let Self { interrupt, terminate, hangup } = self;
        let hangup = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {
                INTERRUPTED.store(true, Ordering::Relaxed);
                "SIGINT"
            }
            _ = terminate.recv() => "SIGTERM",
            _ = hangup => "SIGHUP",
        }
    }
}

fn is_ignored(signal: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw_value() - 1) & 1 == 1)
}
