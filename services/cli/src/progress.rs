//! What people see of a running job: a bar on a terminal, a line every few seconds elsewhere, a summary at the end.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use protocol::{JobResult, JobState, Progress};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::execute::Show;
use crate::printed::printable;

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Between two looks of a bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// How to show progress on this stderr.
pub fn show() -> Show {
    if std::io::stderr().is_terminal() {
        Box::new(|progress| tokio::spawn(bar(progress)))
    } else {
        Box::new(|progress| tokio::spawn(lines(progress)))
    }
}

async fn bar(progress: watch::Receiver<Progress>) {
    let bar = ProgressBar::new_spinner();
    let clear = ClearOnDrop(bar.clone());
    let style = "{spinner} {wide_bar} {pos}/{len} mini-batches, {rate}, {msg}eta {eta}";
    let rate = |state: &ProgressState, text: &mut dyn Write| {
        let _ = write!(text, "{:.1}/s", state.per_sec());
    };
    bar.set_style(ProgressStyle::with_template(style).expect("a valid template").with_key("rate", rate));
    let mut shown_waiting = 0;
    loop {
        let now = progress.borrow().clone();
        bar.set_length(now.mini_batches.total);
        bar.set_position(ended(&now));
        bar.set_message(printable(&troubles(&now)).into_owned());
        // New notices of what takes long stay on the screen, above the bar.
        for waiting in now.waiting.iter().filter(|waiting| waiting.seconds > shown_waiting) {
            bar.println(printable(&wait_line(waiting)));
        }
        shown_waiting = now.waiting.iter().map(|waiting| waiting.seconds).max().unwrap_or(0);
        bar.tick();
        let _ = &clear;
        tokio::time::sleep(BAR_EVERY).await;
    }
}

/// An aborted task leaves no half-drawn bar behind.
struct ClearOnDrop(ProgressBar);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

async fn lines(progress: watch::Receiver<Progress>) {
    let started = Instant::now();
    let ended_before = ended(&progress.borrow());
    loop {
        tokio::time::sleep(LINE_EVERY).await;
        let now = progress.borrow().clone();
        let done = ended(&now);
        let rate = (done - ended_before.min(done)) as f64 / started.elapsed().as_secs_f64();
        let left = now.mini_batches.total.saturating_sub(done);
        let eta = match (now.planned, rate > 0.0) {
            (true, true) => format!("eta {}", duration(left as f64 / rate)),
            (true, false) => "eta unknown".to_owned(),
            (false, _) => "still planning".to_owned(),
        };
        let troubles = troubles(&now);
        say!(err, "{done}/{} mini-batches, {rate:.1}/s, {troubles}{eta}", now.mini_batches.total);
        for waiting in &now.waiting {
            say!(err, "  {}", wait_line(waiting));
        }
    }
}

fn ended(progress: &Progress) -> u64 {
    progress.mini_batches.succeeded + progress.mini_batches.failed
}

fn troubles(progress: &Progress) -> String {
    let mut text = String::new();
    for (count, what) in [
        (progress.mini_batches.failed, "mini-batches failed"),
        (progress.items.failed, "items failed"),
        (progress.retries, "retries"),
    ] {
        if count > 0 {
            let _ = write!(text, "{count} {what}, ");
        }
    }
    text
}

/// One line on something that takes long.
pub fn wait_line(waiting: &protocol::Waiting) -> String {
    let mini_batch = waiting.mini_batch.map_or(String::new(), |mini_batch| format!(" of mini-batch {mini_batch}"));
    let place = waiting.stack.lines().find(|line| line.trim_start().starts_with("File "));
    format!(
        "waiting for {}{mini_batch} in {} on node {} for {} s{}",
        waiting.phase.word(),
        waiting.process,
        waiting.node,
        waiting.seconds,
        place.map_or(String::new(), |place| format!(", at {}", place.trim()))
    )
}

/// Seconds for people.
pub fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, _) if seconds < 10.0 => format!("{seconds:.2} s"),
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// How a job ended, for people. `flag` says where a later command finds it: ` --target NAME`, or nothing.
pub fn summary(result: &JobResult, flag: &str) -> String {
    let mut text = String::new();
    let state = match result.state {
        JobState::Completed => "completed",
        JobState::Failed => "failed",
        JobState::Canceled => "canceled",
        JobState::Running => "running",
    };
    let _ = writeln!(text, "job {} {state} in {}", result.job_id, duration(result.elapsed_seconds));
    if let Some(cause) = &result.cause {
        let _ = writeln!(text, "  cause: {cause}");
    }
    for (name, counts) in [("mini-batches", &result.mini_batches), ("items", &result.items)] {
        let _ =
            writeln!(text, "  {name}: {} of {} succeeded, {} failed", counts.succeeded, counts.total, counts.failed);
    }
    for failed in &result.failed_mini_batches {
        let open = if failed.log.is_empty() { String::new() } else { format!("; open {}/{}", result.logs, failed.log) };
        let _ =
            writeln!(text, "  failed: mini-batch {} ({}): {}{open}", failed.mini_batch, failed.detail, failed.error);
    }
    let unnamed = result.mini_batches.failed.saturating_sub(result.failed_mini_batches.len() as u64);
    if unnamed > 0 {
        let _ = writeln!(text, "  failed: {unnamed} more, in sys/job_report/processed_mini-batches.csv");
    }
    if result.warnings > 0 {
        let file = format!("{}/sys/warning/mini-batch_warnings.txt", result.logs);
        let _ = writeln!(text, "  warnings: {}, told in {file}", result.warnings);
    }
    if let Some(output) = &result.output {
        let _ = writeln!(text, "  output: {output}");
    }
    if result.mini_batches.failed > 0 || result.items.failed > 0 || result.state == JobState::Failed {
        let _ = writeln!(text, "  open: {}/job_result.txt", result.logs);
    }
    if matches!(result.state, JobState::Failed | JobState::Canceled) {
        let _ = writeln!(text, "  continue with: gristmill retry {}{flag}", result.job_id);
    }
    let _ = write!(text, "  logs: {}", result.logs);
    text
}

/// The first Ctrl-C or SIGTERM stops in an orderly way, the second at once. They are caught from this call on.
pub fn watch_signals(cancel: CancellationToken, kill: CancellationToken) -> impl Future<Output = ()> {
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    async move {
        let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return };
        let mut next = async || tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () };
        next().await;
        say!(err, "stopping: what runs may finish, the rest is given back (again to stop at once)");
        cancel.cancel();
        next().await;
        kill.cancel();
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Counts, FailedMiniBatch};

    use super::*;

    #[test]
    fn a_failure_names_its_cause_the_file_to_open_and_the_next_step() {
        let result = JobResult {
            job_id: "score-20261121-100203-ab12".into(),
            state: JobState::Failed,
            cause: Some("The number of failed items is 3, which exceeds error threshold 2.".into()),
            output: None,
            logs: "/jobs/1/logs".into(),
            mini_batches: Counts { total: 10, succeeded: 7, failed: 3 },
            items: Counts { total: 10, succeeded: 7, failed: 3 },
            elapsed_seconds: 75.0,
            warnings: 0,
            duplicates_dropped: 0,
            failed_mini_batches: vec![FailedMiniBatch {
                mini_batch: 4,
                detail: "/in/5".into(),
                error: "ValueError: five is bad".into(),
                log: "user/error/0/process001.txt".into(),
            }],
            reused: false,
        };
        let text = summary(&result, "");
        for expected in [
            "failed in 1 min 15 s",
            "error threshold 2",
            "/jobs/1/logs/job_result.txt",
            "gristmill retry",
            "mini-batch 4 (/in/5): ValueError",
            "2 more",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }
}
