//! One job: its status, and everything else that its page shows at once.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::extract::State;
use engine::Reuses;
use engine::Tally;
use engine::history::{ATTEMPTS_MAX, History, Origin, PROCESSES_MAX};
use engine::words::counted;
use engine::{State as JobState, StatusDocument};
use protocol::{
    Counts, ErrorThresholds, JobResult, JobSpec, OutputAction, Progress, RoundResult,
    RunningMiniBatch, Waiting, milliseconds_since_epoch,
};
use serde::Serialize;

use super::sentence::{JobNumbers, sentence};
use super::settings::{Setting, settings};
use super::words::{format_word, output_path, quoted};
use crate::SharedState;
use crate::document::Document;
use crate::error::Answer;
use crate::watched::View;
use crate::{Options, Phrases};

const FAILURES_MAX: usize = 20;

#[derive(Debug, Serialize)]
pub struct Job {
    #[serde(flatten)]
    status: StatusDocument,
    pub revision: String,
    now: u64,
    name: String,
    description: String,
    sentence: String,
    started_at: Option<u64>,
    ended_at: Option<u64>,
    #[serde(flatten)]
    numbers: JobNumbers,
    rate: Option<f64>,
    gauges: Vec<Gauge>,
    waits: Vec<Wait>,
    failures: Vec<Failure>,
    first_failed: Option<u64>,
    settings: Vec<Setting>,
    script: String,
    job_file: Option<String>,
    lineage: Lineage,
    commands: Vec<Command>,
    can_cancel: bool,
    can_retry: bool,
    warnings: Vec<String>,
    notes: Vec<String>,
    output: Output,
    history: &'static str,
    nodes: usize,
    processes: usize,
}

#[derive(Debug, Serialize)]
struct Gauge {
    key: &'static str,
    label: &'static str,
    value: f64,
    limit: Option<f64>,
    unit: &'static str,
    fails_when: &'static str,
}

#[derive(Debug, Serialize)]
pub struct Wait {
    mini_batch: Option<u64>,
    node: String,
    process: String,
    phase: &'static str,
    since: Option<u64>,
    seconds: u64,
    detail: String,
    stack: String,
}

impl From<&RunningMiniBatch> for Wait {
    fn from(running: &RunningMiniBatch) -> Self {
        Self {
            mini_batch: Some(running.mini_batch),
            node: running.node.clone(),
            process: running.process.clone(),
            phase: running.phase.word(),
            since: Some(running.since),
            seconds: milliseconds_since_epoch().saturating_sub(running.since) / 1000,
            detail: String::new(),
            stack: String::new(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Failure {
    /// The same for failures and rejected items with one cause.
    reason: String,
    error: String,
    attempts: u64,
    mini_batches: Vec<u64>,
    traceback: String,
    printed: String,
    log: String,
}

/// A round of a job, if it had several.
#[derive(Debug, Serialize)]
struct Round {
    /// Its beginning; `None`: that of the job.
    at: Option<u64>,
    /// The work of the round, and its result.
    text: String,
}

impl From<&RoundResult> for Round {
    fn from(round: &RoundResult) -> Self {
        Self { at: round.at, text: round.sentence() }
    }
}

#[derive(Debug, Serialize)]
struct Lineage {
    rounds: Vec<Round>,
    /// The job of this name that began before this one.
    before: Option<String>,
    same: Vec<SameNamedJob>,
    reused: Reuses,
}

#[derive(Debug, Serialize)]
struct SameNamedJob {
    job_id: String,
    state: JobState,
}

#[derive(Debug, Serialize)]
struct Command {
    what: &'static str,
    command: String,
}

#[derive(Debug, Serialize)]
struct Output {
    path: String,
    action: &'static str,
    format: &'static str,
    exists: bool,
    /// Whether `/output/raw` gives the file.
    downloadable: bool,
}

pub async fn job(State(shared): SharedState, view: View) -> Answer<Document<Job>> {
    describe(&view, &shared.options).await.map(Document)
}

/// Returns the document of a job.
pub async fn describe(view: &View, options: &Options) -> Answer<Job> {
    let (words, flags, is_read_only) = (options.words, options.flags(), options.is_read_only);
    view.compute(move |view, history| Job::new(view, history, words, &flags, is_read_only)).await
}

impl Job {
    fn new(
        view: &View,
        history: &History,
        words: Phrases,
        flags: &str,
        is_read_only: bool,
    ) -> Self {
        let snapshot = &view.snapshot;
        let (spec, tally) = (&snapshot.spec, history.tally());
        let mut status = snapshot.status.document(words.hint);
        // The page of nodes shows it.
        status.progress.iter_mut().for_each(|progress| progress.usage.clear());
        let (state, progress) = (status.state, status.progress.as_ref());
        let result = status.result.as_ref();
        let at_work = progress.filter(|progress| state.has_processes(progress));
        let rate = engine::rate(result, progress, state);
        let goes_on = at_work.filter(|_| state == JobState::Running);
        let eta_seconds =
            goes_on.and_then(|progress| progress.remaining_seconds).map(|seconds| seconds as f64);
        let waits = at_work.map_or_else(Vec::new, waits);
        let numbers = match (result, progress) {
            (Some(result), _) => JobNumbers {
                elapsed_seconds: Some(result.elapsed_seconds),
                worked_seconds: Some(result.worked_seconds),
                eta_seconds,
                mini_batches: result.mini_batches,
                items: result.items,
                retrying: result.retrying,
            },
            (None, Some(progress)) => JobNumbers {
                elapsed_seconds: Some(progress.elapsed_seconds),
                worked_seconds: Some(progress.worked_seconds),
                eta_seconds,
                mini_batches: progress.mini_batches,
                items: progress.items,
                retrying: progress.retrying,
            },
            (None, None) => JobNumbers::default(),
        };
        let sentence = sentence(&status, &numbers);
        let failures = tally.failures();
        let mut rounds =
            result.map_or_else(|| tally.round_results(), |result| result.rounds.clone());
        state.mark_last(&mut rounds);
        let started_at = engine::started_at(&spec.job_id)
            .and_then(|at| u64::try_from(at.timestamp_millis()).ok());
        let has_failures = numbers.mini_batches.failed > 0;
        let can_cancel = state.is_open() && state != JobState::Canceling;
        let can_retry = match state {
            JobState::Failed | JobState::Canceled | JobState::Interrupted => true,
            JobState::Completed => {
                has_failures || result.is_some_and(|result| result.rejects_to_retry() > 0)
            }
            _ => false,
        };
        let mut nodes: Vec<&str> =
            history.processes().iter().map(|process| &*process.name.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let warnings =
            result.map_or_else(Vec::new, |result| match result.warning_kinds.as_slice() {
                [] => result.first_warnings.clone(),
                kinds => kinds.iter().map(ToString::to_string).collect(),
            });
        let so_far = progress.map_or(&[][..], |progress| &progress.notes);
        let mut notes =
            result.map_or_else(|| [&spec.notes, so_far].concat(), |result| result.notes.clone());
        notes.extend(snapshot.has_damaged_result.then(|| {
            "result.json is damaged, so the job counts as interrupted; a retry writes it again"
                .to_owned()
        }));
        notes.extend(left_out(history.attempts_left_out()));
        notes.extend(history.unreadable().map(|segment| {
            format!("segment {segment} of the ledger is damaged or incomplete: attempts from it on are not shown")
        }));
        let same = snapshot
            .same
            .jobs
            .iter()
            .map(|job| SameNamedJob { job_id: job.job_id.clone(), state: job.state })
            .collect();
        Self {
            revision: view.revision(history),
            now: milliseconds_since_epoch(),
            name: spec.name.clone(),
            description: spec.description.clone(),
            sentence,
            started_at,
            ended_at: snapshot.ended_at,
            gauges: gauges(spec, tally, history, &numbers, at_work),
            numbers,
            rate,
            waits,
            failures: failures.groups().into_iter().take(FAILURES_MAX).map(Failure::from).collect(),
            first_failed: failures.first().map(|first| first.mini_batch),
            settings: settings(spec),
            script: spec.source_directory.as_path().join(&spec.entry_script).display().to_string(),
            job_file: job_file(spec).map(str::to_owned),
            lineage: Lineage {
                rounds: rounds.iter().map(Round::from).collect(),
                before: snapshot.same.before.clone(),
                same,
                reused: Reuses::clone(&snapshot.reuses),
            },
            commands: commands(spec, flags, (can_cancel, can_retry), result),
            can_cancel: !is_read_only && can_cancel,
            can_retry: !is_read_only && can_retry,
            warnings,
            notes,
            output: output(
                spec,
                result.and_then(|result| result.output.as_deref()),
                snapshot.store.folder().is_some(),
            ),
            history: match history.origin() {
                Origin::Ledger => "ledger",
                Origin::Report => "report",
                Origin::Nothing => "none",
            },
            nodes: nodes.len(),
            processes: history
                .processes()
                .iter()
                .filter(|process| !process.name.process.is_empty())
                .count(),
            status,
        }
    }

    /// Returns the part of the document that shows changes.
    pub fn mark(&self) -> ChangeMark {
        let mut others = DefaultHasher::new();
        for Wait { mini_batch, node, process, phase, since, detail, stack, .. } in &self.waits {
            (mini_batch, node, process, phase, since, detail, stack).hash(&mut others);
        }
        if let Some(Progress {
            processes,
            nodes_at_work,
            silent_since,
            step,
            trouble,
            running,
            ..
        }) = &self.status.progress
        {
            let trouble = trouble.as_ref().map(|trouble| &trouble.reason);
            (processes, nodes_at_work, silent_since, step, trouble).hash(&mut others);
            for RunningMiniBatch { mini_batch, node, process, phase, since } in running {
                (mini_batch, node, process, *phase as u8, since).hash(&mut others);
            }
        }
        // The elapsed time of a working job grows.
        let time = self
            .status
            .progress
            .as_ref()
            .filter(|progress| self.status.state.has_processes(progress));
        time.map(|progress| progress.elapsed_seconds as u64 / 2).hash(&mut others);
        (
            &self.status.hint,
            &self.warnings,
            &self.notes,
            self.output.downloadable,
            self.lineage.reused.count,
        )
            .hash(&mut others);
        ChangeMark {
            revision: self.revision.clone(),
            state: self.status.state,
            counts: [self.numbers.mini_batches, self.numbers.items],
            retrying: self.numbers.retrying,
            others: others.finish(),
        }
    }
}

/// Returns the note that attempts are missing where they are shown one by one.
fn left_out(attempts: u64) -> Option<String> {
    let missing = (attempts > 0).then(|| counted(attempts, "attempt"))?;
    Some(format!(
        "{missing} are only counted, and no page shows them one by one: it shows {ATTEMPTS_MAX} attempts and \
         {PROCESSES_MAX} processes of a job at most"
    ))
}

/// A value that differs whenever the document has changed.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeMark {
    revision: String,
    state: JobState,
    counts: [Counts; 2],
    retrying: u64,
    others: u64,
}

fn gauges(
    spec: &JobSpec,
    tally: &Tally,
    history: &History,
    numbers: &JobNumbers,
    working: Option<&Progress>,
) -> Vec<Gauge> {
    let ErrorThresholds {
        error_threshold,
        allowed_failed_count,
        allowed_failed_percent,
        fail_fast,
    } = spec.thresholds;
    let above = |key, label, value, limit, unit| Gauge {
        key,
        label,
        value,
        limit,
        unit,
        fails_when: "above",
    };
    let count = |limit: i64| u64::try_from(limit).ok().map(|limit| limit as f64);
    let counts = numbers.mini_batches;
    let failed = counts.failed.saturating_add(tally.partly_failed());
    // Of an ended job, none is tried again.
    let retrying = if working.is_some() { numbers.retrying } else { 0 };
    let percent = if counts.total == 0 { 0.0 } else { failed as f64 * 100.0 / counts.total as f64 };
    let percent_limit = Some(allowed_failed_percent).filter(|limit| *limit < 100.0);
    let repeated = tally.failures().repeated().map_or(0, |repeated| repeated.count);
    let mut gauges = vec![
        above(
            "error_threshold",
            "Failed items",
            numbers.items.failed as f64,
            count(error_threshold),
            "items",
        ),
        above(
            "allowed_failed_count",
            "Mini-batches with failures",
            failed.saturating_add(retrying) as f64,
            count(allowed_failed_count),
            "mini-batches",
        ),
        above(
            "allowed_failed_percent",
            "Share of mini-batches with failures",
            percent,
            percent_limit,
            "percent",
        ),
        Gauge {
            key: "fail_fast",
            label: "Failures with the same cause",
            value: repeated as f64,
            limit: Some(fail_fast).filter(|limit| *limit > 0).map(|limit| limit as f64),
            unit: "equal failures",
            fails_when: "reached",
        },
        above(
            "run_max_try",
            "Tries of one mini-batch",
            history.most_tries().into(),
            Some(spec.run_max_try.into()),
            "tries",
        ),
    ];
    if let Some(progress) = working {
        let last = history
            .attempts()
            .next_back()
            .map_or(progress.started_at, engine::history::AttemptSummary::ended_at);
        let silent = progress.at.saturating_sub(last.max(progress.started_at)) as f64 / 1000.0;
        let limit = Some(spec.progress_update_timeout_seconds as f64);
        gauges.push(above(
            "progress_update_timeout",
            "Time without a finished mini-batch",
            silent,
            limit,
            "seconds",
        ));
    }
    gauges
}

fn waits(progress: &Progress) -> Vec<Wait> {
    let mut waits: Vec<Wait> = progress.waiting.iter().map(Wait::from).collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.seconds));
    waits
}

impl From<&Waiting> for Wait {
    fn from(waiting: &Waiting) -> Self {
        Self {
            mini_batch: waiting.mini_batch,
            node: waiting.node.clone(),
            process: waiting.process.clone(),
            phase: waiting.phase.word(),
            since: Some(waiting.since).filter(|since| *since > 0),
            seconds: waiting.seconds,
            detail: waiting.detail.clone(),
            stack: waiting.stack.clone(),
        }
    }
}

impl From<&engine::FailureGroup> for Failure {
    fn from(group: &engine::FailureGroup) -> Self {
        Self {
            reason: group.reason(),
            error: group.error(),
            attempts: group.attempts,
            mini_batches: group.mini_batches.clone(),
            traceback: group.traceback.clone(),
            printed: group.printed.clone(),
            log: group.log.clone(),
        }
    }
}

/// Returns the job file; `None`: it came from the standard input, as those of calls from Python do.
fn job_file(spec: &JobSpec) -> Option<&str> {
    Some(&*spec.job_file).filter(|file| !file.is_empty() && !file.ends_with("/-"))
}

fn commands(
    spec: &JobSpec,
    flags: &str,
    (can_cancel, can_retry): (bool, bool),
    result: Option<&JobResult>,
) -> Vec<Command> {
    let id = &spec.job_id;
    let mut commands = vec![
        Command { what: "status", command: format!("gristmill status {id}{flags}") },
        Command { what: "logs", command: format!("gristmill logs {id} --follow{flags}") },
        Command { what: "first error", command: format!("gristmill logs {id} --error{flags}") },
        Command { what: "report", command: format!("gristmill report {id} --html{flags}") },
    ];
    if can_cancel {
        commands.push(Command { what: "cancel", command: format!("gristmill cancel {id}{flags}") });
    }
    if can_retry {
        commands.push(Command { what: "retry", command: format!("gristmill retry {id}{flags}") });
    }
    if result.is_some_and(|result| result.items_rejected > 0 || result.rejects.is_some()) {
        commands
            .push(Command { what: "rejects", command: format!("gristmill rejects {id}{flags}") });
    }
    if let Some(job_file) = job_file(spec) {
        let words: String = spec.changes.iter().map(|word| format!(" {}", quoted(word))).collect();
        let command = format!("gristmill run {}{words}{flags}", quoted(job_file));
        commands.push(Command { what: "run", command });
    }
    commands
}

fn output(spec: &JobSpec, written: Option<&str>, is_of_this_machine: bool) -> Output {
    let path = written.map_or_else(|| output_path(spec), str::to_owned);
    let is_url = spec.output.folder.is_url();
    let exists = written.is_some() && (is_url || std::path::Path::new(&path).exists());
    let (action, is_file) = match spec.output.action {
        OutputAction::SummaryOnly => ("summary_only", false),
        OutputAction::AppendRow => ("append_row", true),
    };
    let downloadable = exists && is_file && (is_url || is_of_this_machine);
    Output { path, action, format: format_word(spec.output.format), exists, downloadable }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
