//! Shows the progress of a running job: a bar on a terminal, a line every few seconds elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use console::Term;
use engine::Hint;
use engine::words::{counted, duration, rate};
use indicatif::{ProgressBar, ProgressStyle};
use protocol::{Progress, SlotPhase, Waiting};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::printed::{is_quiet, printable};
use crate::remedies;

/// Period of the lines, without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Period of the updates of a bar.
const BAR_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of lines about slow steps at a time.
const WAITS_SHOWN_MAX: usize = 4;
const BAR_COLUMNS_MIN: usize = 10;
/// Columns of the spinner, and the last column, which terminals treat differently.
const MARGIN_COLUMNS: usize = 3;

struct Latest {
    progress: watch::Receiver<Progress>,
    hint: watch::Receiver<Option<Hint>>,
}

impl Latest {
    /// Returns the progress, and the reason why the job waits, if it does; then its rate and its end are unknown.
    fn get(&self) -> (Progress, Option<String>) {
        let progress = self.progress.borrow().clone();
        let trouble = || progress.trouble.as_ref().map(|trouble| trouble.reason.clone());
        match self.hint.borrow().as_ref().map(remedies::hint).or_else(trouble) {
            None => (progress, None),
            reason => (Progress { rate: None, remaining_seconds: None, ..progress }, reason),
        }
    }
}

/// Shows progress on standard error, until the task is aborted. `waits_for`: the last reason for waiting that the user
/// has seen.
pub fn show(
    progress: watch::Receiver<Progress>,
    hint: watch::Receiver<Option<Hint>>,
    waits_for: Option<String>,
) -> JoinHandle<()> {
    let latest = Latest { progress, hint };
    let mut shown = Shown::default();
    shown.waits_for(waits_for);
    if is_quiet() {
        tokio::spawn(async {})
    } else if std::io::stderr().is_terminal() {
        tokio::spawn(bar(latest, shown))
    } else {
        tokio::spawn(lines(latest, shown, print))
    }
}

async fn bar(latest: Latest, mut shown: Shown) {
    let bar = ProgressBar::new_spinner();
    // TERM=dumb cannot draw.
    if bar.is_hidden() {
        return lines(latest, shown, print).await;
    }
    let clear = ClearOnDrop(bar.clone());
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("a valid template"));
    loop {
        let (now, waits_for) = latest.get();
        let columns = usize::from(Term::stderr().size().1).saturating_sub(MARGIN_COLUMNS);
        bar.set_message(fitted(&now, columns));
        // Lines about slow steps stay on the screen, above the bar.
        for line in shown.waits_for(waits_for).into_iter().chain(shown.waits(&now)) {
            bar.println(printable(&line));
        }
        bar.tick();
        let _ = &clear;
        tokio::time::sleep(BAR_EVERY).await;
    }
}

/// Removes a half-drawn bar when its task is aborted.
struct ClearOnDrop(ProgressBar);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn print(line: &str) {
    say!(err, "{line}");
}

/// Calls `print` with every line.
async fn lines(latest: Latest, mut shown: Shown, print: impl Fn(&str)) {
    let mut last = String::new();
    loop {
        tokio::time::sleep(LINE_EVERY).await;
        let (now, waits_for) = latest.get();
        let (waits, line) = (waits_for.is_some(), parts(&now).join(", "));
        if let Some(line) = shown.waits_for(waits_for) {
            print(&line);
        }
        if waits && line == last {
            continue;
        }
        print(&line);
        last = line;
        for waiting in now.waiting.iter().take(WAITS_SHOWN_MAX) {
            print(&format!("  waiting for {waiting}"));
        }
        let more = now.waiting.len().saturating_sub(WAITS_SHOWN_MAX);
        if more > 0 {
            let more = counted(more as u64, "more process");
            print(&format!("  waiting for {more}; `gristmill status` names them"));
        }
    }
}

/// The lines that have already been shown.
#[derive(Default)]
struct Shown {
    waits_for: Option<String>,
    waits: Vec<(String, String, Option<u64>)>,
}

impl Shown {
    /// Returns a line when the job begins to wait, or waits for another reason.
    fn waits_for(&mut self, reason: Option<String>) -> Option<String> {
        // The time in the text changes constantly.
        let kind = reason
            .as_ref()
            .map(|reason| reason.split(" since ").next().unwrap_or_default().to_owned());
        let is_new = kind != self.waits_for;
        self.waits_for = kind;
        reason.filter(|_| is_new).map(|reason| format!("waiting: {reason}"))
    }

    /// Returns lines about steps that have become slow.
    fn waits(&mut self, progress: &Progress) -> Vec<String> {
        let key =
            |waiting: &Waiting| (waiting.node.clone(), waiting.process.clone(), waiting.mini_batch);
        let new = progress.waiting.iter().filter(|waiting| !self.waits.contains(&key(waiting)));
        let lines = new.map(|waiting| format!("waiting for {waiting}")).collect();
        self.waits = progress.waiting.iter().map(key).collect();
        lines
    }
}

/// Returns the parts of a line, the most important first.
fn parts(progress: &Progress) -> Vec<String> {
    let (done, total) = (progress.mini_batches.ended(), progress.mini_batches.total);
    if let Some(command) =
        progress.waiting.iter().find(|waiting| waiting.phase == SlotPhase::Command)
    {
        return vec![format!("the command has run for {}", duration(command.seconds as f64))];
    }
    let mut parts = match progress.planned {
        true => vec![format!("{done} of {}", counted(total, "mini-batch"))],
        false => vec![counted(done, "mini-batch"), "still planning".to_owned()],
    };
    parts.extend(failures(progress));
    match (&progress.step, progress.waiting.first()) {
        (Some(step), _) => parts.push(step.clone()),
        (None, Some(waiting)) if done == 0 => parts.push(phase(waiting)),
        _ => {}
    }
    parts.extend(progress.rate.map(rate));
    if progress.planned && done < total {
        parts.push(match progress.remaining_seconds {
            Some(seconds) => format!("eta {}", duration(seconds as f64)),
            None => "eta unknown".to_owned(),
        });
    }
    parts
}

fn failures(progress: &Progress) -> impl Iterator<Item = String> {
    let (mini_batches, items) = (progress.mini_batches.failed, progress.items.failed);
    [
        (mini_batches > 0).then(|| format!("{mini_batches} failed")),
        (progress.retrying > 0).then(|| format!("{} to be tried again", progress.retrying)),
        (items > 0).then(|| format!("{} failed", counted(items, "item"))),
    ]
    .into_iter()
    .flatten()
}

/// Returns the line of a terminal: as many parts as fit into the columns, and a bar in the rest.
fn fitted(progress: &Progress, columns: usize) -> String {
    let mut text = String::new();
    for part in parts(progress) {
        let separator = if text.is_empty() { "" } else { ", " };
        if text.chars().count() + separator.len() + part.chars().count() > columns {
            break;
        }
        text = text + separator + &part;
    }
    if text.is_empty() {
        text = format!("{}/{}", progress.mini_batches.ended(), progress.mini_batches.total)
            .chars()
            .take(columns)
            .collect();
    }
    let room = columns.saturating_sub(text.chars().count() + 1);
    if !progress.planned || room < BAR_COLUMNS_MIN {
        return text;
    }
    let share = progress.mini_batches.ended() as f64 / progress.mini_batches.total.max(1) as f64;
    let full = ((room as f64 * share) as usize).min(room);
    format!("{}{} {text}", "█".repeat(full), "░".repeat(room - full))
}

fn phase(waiting: &Waiting) -> String {
    let seconds = waiting.seconds;
    match waiting.process.is_empty() {
        true => format!("on node {} for {seconds} s: {}", waiting.node, waiting.detail),
        false => format!("in {} for {seconds} s", waiting.phase.word()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::Counts;

    use super::*;

    fn progress(planned: bool, total: u64, succeeded: u64, failed: u64) -> Progress {
        let counts = Counts { total, succeeded, failed };
        Progress { planned, mini_batches: counts, items: counts, ..reducer::Reducer::no_progress() }
    }

    fn waiting(process: &str) -> Waiting {
        Waiting {
            node: "0".into(),
            process: process.into(),
            mini_batch: Some(7),
            phase: SlotPhase::Run,
            seconds: 16,
            since: 0,
            detail: String::new(),
            stack: "Thread 1 (most recent call first):\n  File \"a.py\", line 3 in wait".into(),
            printed: String::new(),
        }
    }

    fn line(progress: &Progress, rate: Option<f64>) -> String {
        parts(&at_rate(progress, rate)).join(", ")
    }

    fn at_rate(progress: &Progress, rate: Option<f64>) -> Progress {
        let left = progress.mini_batches.total.saturating_sub(progress.mini_batches.ended());
        let remaining_seconds = rate.map(|rate| (left as f64 / rate) as u64);
        Progress { rate, remaining_seconds, ..progress.clone() }
    }

    /// A terminal without drawing, which includes TERM=dumb.
    #[tokio::test(start_paused = true)]
    async fn first_line_comes_within_six_seconds_and_names_a_slow_start() {
        let starting = Progress { waiting: vec![waiting("process000")], ..progress(true, 9, 0, 0) };
        let (_sender, progress) = watch::channel(starting);
        let (_hints, hint) = watch::channel(None);
        let (sender, mut printed) = tokio::sync::mpsc::unbounded_channel();
        let showing = lines(Latest { progress, hint }, Shown::default(), |line: &str| {
            drop(sender.send(line.to_owned()))
        });
        tokio::time::timeout(Duration::from_secs(6), showing)
            .await
            .expect_err("it goes on until it is aborted");
        assert_eq!(
            printed.recv().await.expect("a line"),
            "0 of 9 mini-batches, in run() for 16 s, eta unknown"
        );
        assert_eq!(
            printed.recv().await.expect("another"),
            format!("  waiting for {}", waiting("process000"))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn progress_of_a_job_that_waits_is_shown_once_and_without_an_end() {
        let half = at_rate(&progress(true, 20, 5, 0), Some(0.5));
        let (_sender, progress) = watch::channel(half);
        let blocker = engine::Blocker::FirstReducer;
        let target = engine::targets::TargetRef::ThisMachine;
        let hint = Hint { job_id: "a-1".to_owned(), target, blocker };
        let (_hints, hint) = watch::channel(Some(hint));
        let (sender, mut printed) = tokio::sync::mpsc::unbounded_channel();
        let showing = lines(Latest { progress, hint }, Shown::default(), |line: &str| {
            drop(sender.send(line.to_owned()))
        });
        tokio::time::timeout(Duration::from_secs(30), showing).await.expect_err("it goes on");
        let reason = printed.recv().await.expect("the reason");
        assert!(reason.starts_with("waiting: no reducer has looked at it yet"), "{reason}");
        assert_eq!(printed.recv().await.expect("a line"), "5 of 20 mini-batches, eta unknown");
        assert!(printed.try_recv().is_err(), "nothing has changed");
    }

    #[test]
    fn line_agrees_with_every_count() {
        assert_eq!(line(&progress(true, 20, 0, 0), None), "0 of 20 mini-batches, eta unknown");
        assert_eq!(line(&progress(true, 1, 0, 0), None), "0 of 1 mini-batch, eta unknown");
        assert_eq!(line(&progress(true, 0, 0, 0), None), "0 of 0 mini-batches");
        assert_eq!(
            line(&progress(true, 20, 5, 0), Some(0.5)),
            "5 of 20 mini-batches, 0.5/s, eta 30 s"
        );
        assert_eq!(line(&progress(true, 20, 20, 0), Some(2.0)), "20 of 20 mini-batches, 2.0/s");
        assert_eq!(
            line(&progress(false, 0, 66119, 0), Some(9.0)),
            "66119 mini-batches, still planning, 9.0/s"
        );
        assert_eq!(
            line(&progress(false, 0, 1, 0), Some(9.0)),
            "1 mini-batch, still planning, 9.0/s"
        );
        let troubled = Progress { retrying: 3, ..progress(true, 20, 5, 2) };
        assert_eq!(
            line(&troubled, None),
            "7 of 20 mini-batches, 2 failed, 3 to be tried again, 2 items failed, eta unknown"
        );
        let short = Progress {
            items: Counts { total: 90, succeeded: 89, failed: 1 },
            ..progress(true, 9, 9, 0)
        };
        assert_eq!(line(&short, None), "9 of 9 mini-batches, 1 item failed");
        let ending =
            Progress { step: Some("writing the output".into()), ..progress(true, 9, 9, 0) };
        assert_eq!(line(&ending, None), "9 of 9 mini-batches, writing the output");
        let starting = Progress { waiting: vec![waiting("process000")], ..progress(true, 9, 0, 0) };
        assert_eq!(line(&starting, None), "0 of 9 mini-batches, in run() for 16 s, eta unknown");
    }

    #[test]
    fn wait_is_shown_when_it_begins_or_changes() {
        let mut shown = Shown::default();
        let mut shown_for =
            |text: &str| shown.waits_for((!text.is_empty()).then(|| text.to_owned()));
        assert_eq!(shown_for(""), None);
        let first = "no worker has been heard from since 10:00:00 (9 s ago)";
        assert_eq!(shown_for(first), Some(format!("waiting: {first}")));
        assert_eq!(shown_for("no worker has been heard from since 10:00:00 (19 s ago)"), None);
        assert!(shown_for("no reducer has been heard from since 10:00:00").is_some());
        let slow = Progress { waiting: vec![waiting("process001")], ..progress(true, 9, 0, 0) };
        assert_eq!((shown.waits(&slow).len(), shown.waits(&slow).len()), (1, 0));
    }

    #[test]
    fn running_command_is_shown_in_place_of_mini_batches() {
        let command = Waiting {
            phase: SlotPhase::Command,
            mini_batch: None,
            stack: String::new(),
            ..waiting("process000")
        };
        let progress = Progress { waiting: vec![command], ..progress(true, 1, 0, 0) };
        assert_eq!(line(&progress, None), "the command has run for 16 s");
    }

    proptest! {
        #[test]
        fn line_of_a_terminal_fits_its_columns(
            columns in 0_usize..200,
            planned: bool,
            total in prop_oneof![Just(0), Just(1), 2_u64..100, any::<u64>()],
            succeeded in prop_oneof![Just(0_u64), Just(1), 0..u64::MAX / 4],
            failed in prop_oneof![Just(0_u64), Just(1), 0..u64::MAX / 4],
            retrying in prop_oneof![Just(0_u64), Just(8)],
            rate in proptest::option::of(0.001..1e9_f64),
        ) {
            let progress = Progress { retrying, ..progress(planned, total, succeeded, failed) };
            let text = fitted(&at_rate(&progress, rate), columns);
            prop_assert!(text.chars().count() <= columns, "{columns}: {text}");
            if columns >= 70 {
                prop_assert!(text.contains(&(succeeded + failed).to_string()), "{text}");
            }
        }

        #[test]
        fn line_never_contradicts_its_counts(
            planned: bool,
            total in 0_u64..1000,
            succeeded in 0_u64..500,
            failed in 0_u64..500,
            rate in proptest::option::of(0.001..1e6_f64),
        ) {
            let text = line(&progress(planned, total, succeeded, failed), rate);
            prop_assert!(!text.contains(", ,") && !text.ends_with(", ") && !text.contains("NaN") && !text.contains("inf"), "{text}");
            prop_assert!(planned || !text.contains("eta"), "{text}");
            prop_assert!(rate.is_some() || !text.contains("/s") && !text.contains("/min"), "{text}");
        }
    }
}
