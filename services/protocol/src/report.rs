//! Progress and result of a job, as `status`, `run --json` and `result.json` show them.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::words::counted;
use crate::{
    FileVersion, ProcessUsage, RunningMiniBatch, WaitTimes, Waiting, WarningKind, is_default,
};

/// The state of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// Not ended yet.
    #[default]
    Running,
    /// All mini-batches processed, within the thresholds, output written.
    Completed,
    /// A threshold was exceeded, or the job could not continue.
    Failed,
    /// The user stopped it.
    Canceled,
}

/// Total, successes and failures of mini-batches or items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Total; 0 while unknown.
    pub total: u64,
    /// Final successes.
    pub succeeded: u64,
    /// Final failures.
    pub failed: u64,
}

impl Counts {
    /// Returns how many have ended. The numbers of a damaged object may be any.
    pub fn ended(&self) -> u64 {
        self.succeeded.saturating_add(self.failed)
    }
}

/// Speculative runs of mini-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// Mini-batches with a speculative run.
    pub started: u64,
    /// Those whose speculative run succeeded first.
    pub won: u64,
}

impl Copies {
    /// Returns the counts in words; empty without a speculative run.
    pub fn sentence(&self) -> String {
        match self.started.max(self.won) {
            0 => String::new(),
            1 => format!("1 speculative run, {} won", self.won),
            started => format!("{started} speculative runs, {} won", self.won),
        }
    }
}

/// Mini-batches of which ranges were run after their last try had failed, so that `run` saw parts of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DividedMiniBatches {
    /// Their number.
    pub mini_batches: u64,
    /// Some of them, in their order: the first ones of the plan.
    pub first: Vec<u64>,
}

impl DividedMiniBatches {
    const FIRST_MAX: usize = 5;

    /// Adds a mini-batch that is not among them.
    pub fn add(&mut self, mini_batch: u64) {
        self.mini_batches += 1;
        let place = self.first.partition_point(|&earlier| earlier < mini_batch);
        self.first.insert(place, mini_batch);
        self.first.truncate(Self::FIRST_MAX);
    }

    /// Returns them in words: `mini-batches 3, 7 and 20 more`.
    pub fn sentence(&self) -> String {
        let named: Vec<String> = self.first.iter().map(u64::to_string).collect();
        let noun = if self.mini_batches == 1 { "mini-batch" } else { "mini-batches" };
        match self.mini_batches.saturating_sub(named.len() as u64) {
            0 => format!("{noun} {}", named.join(", ")),
            more => format!("{noun} {} and {more} more", named.join(", ")),
        }
    }
}

/// The trouble that stops a reducer: its queue or its store does not answer, or it cannot serve the
/// job at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReducerTrouble {
    /// The reason, in one line.
    pub reason: String,
    /// Wall clock at which it began, milliseconds since the epoch.
    pub since: u64,
}

impl ReducerTrouble {
    /// Creates a trouble that began with `before`, or now.
    pub fn continuing(before: Option<&Self>, reason: String) -> Self {
        let since = before.map_or_else(milliseconds_since_epoch, |before| before.since);
        Self { reason, since }
    }
}

/// `progress.json`, which the reducer overwrites while the job runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Wall clock of this report, milliseconds since the epoch.
    pub at: u64,
    /// Wall clock at which the job was started or last continued, milliseconds since the epoch.
    pub started_at: u64,
    /// From start to this report, without the time between an end and a retry.
    #[serde(default)]
    pub elapsed_seconds: f64,
    /// The part of it in which a worker was alive.
    #[serde(default)]
    pub worked_seconds: f64,
    /// Whether `mini_batches.total` is final.
    pub planned: bool,
    /// Mini-batches.
    pub mini_batches: Counts,
    /// Items of ended mini-batches.
    pub items: Counts,
    /// Failed tries that were followed by another try.
    pub retries: u64,
    /// Mini-batches whose last try failed and that wait for another try.
    #[serde(default)]
    pub retrying: u64,
    /// Runs of ranges of mini-batches whose tries were spent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub extra_runs: u64,
    /// Items whose results earlier tries had handed back, so that no later one computed them again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub items_kept: u64,
    /// How long processes have waited for the `limits` of the job and for services.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waited: WaitTimes,
    /// Speculative runs of mini-batches that ran far longer than their peers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub copies: Copies,
    /// Running Python processes.
    pub processes: u64,
    /// Nodes that have any.
    #[serde(default)]
    pub nodes_at_work: u64,
    /// Nodes that have worked on the job since it was started or reopened.
    #[serde(default)]
    pub nodes: u64,
    /// Wall clock of the node on which the first process started, milliseconds since the epoch; `None`: none has, or it
    /// is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at: Option<u64>,
    /// Mini-batches that end in a second, over the last minute or two rounds of all processes; `None`: unknown, or no
    /// worker works on the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Remaining time at this rate; `None`: unknown, or no worker works on the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<u64>,
    /// Nine of ten successful attempts took at most this long; `None`: too few have ended, or the job does not speculate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_seconds: Option<f64>,
    /// Wall clock of the last heartbeat of any worker, milliseconds since the epoch. `None` if a
    /// worker sent one just now, or none has yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<u64>,
    /// The rounds of the job, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<RoundResult>,
    /// Current step of the reducer, if it is not processing results: `writing the output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Why its reducer cannot continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<ReducerTrouble>,
    /// The mini-batches that run, those that began first at the beginning. At most 2000.
    #[serde(default)]
    pub running: Vec<RunningMiniBatch>,
    /// The usage of processes. At most 2000 of them.
    #[serde(default)]
    pub usage: Vec<ProcessUsage>,
    /// Processes and nodes that take unusually long, latest first. At most 16.
    pub waiting: Vec<Waiting>,
    /// Replaced processes, and notices of nodes about processes and GPUs, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Time from its last write to the moment when it was read, by the clock of the store; `None`: the store does not
    /// tell the time. Not part of the file.
    #[serde(skip)]
    pub age: Option<Duration>,
}

/// A column of the final file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputColumn {
    /// Its name.
    pub name: String,
    /// Its type, such as `int64`, `string` or `timestamp[us, UTC]`.
    #[serde(rename = "type")]
    pub r#type: String,
}

/// `result.json`, written once when the job ends. `run --json` prints it too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// Identity of the job.
    pub job_id: String,
    /// Final state.
    pub state: JobState,
    /// Why, in one line; `None` when completed.
    pub cause: Option<String>,
    /// Path of the final file, or of the output folder for `summary_only`; `None` without output.
    pub output: Option<String>,
    /// Version of the final file as it was written; `None` without one. Another version means that something else has
    /// written there since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_version: Option<FileVersion>,
    /// Further folders and URLs that the script writes, by name; none unless the job has completed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, String>,
    /// Columns of the final file, in the native formats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<OutputColumn>,
    /// The `logs` folder.
    pub logs: String,
    /// Mini-batches.
    pub mini_batches: Counts,
    /// Items.
    pub items: Counts,
    /// Mini-batches that were waiting for another try when the job ended. `mini_batches` counts them as neither.
    #[serde(default)]
    pub retrying: u64,
    /// Runs of ranges of mini-batches whose tries were spent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub extra_runs: u64,
    /// The mini-batches whose ranges were run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub divided: DividedMiniBatches,
    /// Items whose results earlier tries had handed back, so that no later one computed them again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub items_kept: u64,
    /// How long processes have waited for the `limits` of the job and for services.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waited: WaitTimes,
    /// Items that were rejected from mini-batches that succeeded. `items` counts them as failed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub items_rejected: u64,
    /// Speculative runs of mini-batches that ran far longer than their peers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub copies: Copies,
    /// Summary of the failures of a completed job: their number and cause, and how to make such a job fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headline: Option<String>,
    /// Failed attempts grouped by cause, the most frequent first, at most 5.
    #[serde(default)]
    pub failures: Vec<FailureCause>,
    /// The tables of rejected items, below `logs/`; `None` if no item was rejected, or if they cannot be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejects: Option<RejectTables>,
    /// Number of warnings: values that did not fit, rows that differ from the plan.
    /// `logs/sys/warning/` lists them.
    #[serde(default)]
    pub warnings: u64,
    /// The first warnings, one line each, at most 5.
    #[serde(default)]
    pub first_warnings: Vec<String>,
    /// Warnings about values of tables by kind: column, count, first value and what to set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warning_kinds: Vec<WarningKind>,
    /// Attempts that were delivered again after their commit.
    #[serde(default)]
    pub duplicates_dropped: u64,
    /// The first failed mini-batches, at most 10.
    #[serde(default)]
    pub failed_mini_batches: Vec<FailedMiniBatch>,
    /// Decisions of the engine about the inputs that may surprise users, replaced processes, and
    /// notices of nodes about processes and GPUs, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// From start to end, without the time between an end and a retry.
    pub elapsed_seconds: f64,
    /// The part of it in which a worker was alive.
    #[serde(default)]
    pub worked_seconds: f64,
    /// The rounds of the job, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<RoundResult>,
    /// Whether it is the result of an earlier job.
    pub reused: bool,
    /// Whether the job ran a command. Its only mini-batch stands for the command.
    #[serde(default, skip_serializing_if = "is_default")]
    pub command: bool,
}

impl JobResult {
    /// Returns the number of rejected items that a retry can run.
    pub fn rejects_to_retry(&self) -> u64 {
        self.rejects
            .as_ref()
            .map_or(self.items_rejected, |tables| tables.items.saturating_sub(tables.without_place))
    }

    /// Returns those of them whose mini-batches have succeeded.
    pub fn rejects_of_successes(&self) -> u64 {
        self.rejects_to_retry()
            .saturating_sub(self.rejects.as_ref().map_or(0, |tables| tables.of_failed))
    }

    /// Returns a result without counts.
    pub fn new(job_id: String, state: JobState, logs: String) -> Self {
        Self { job_id, state, logs, ..Self::default() }
    }

    /// Returns a result with the counts and times of `progress`.
    pub fn so_far(job_id: String, state: JobState, progress: &Progress, logs: String) -> Self {
        Self {
            mini_batches: progress.mini_batches,
            items: progress.items,
            elapsed_seconds: progress.elapsed_seconds,
            worked_seconds: progress.worked_seconds,
            ..Self::new(job_id, state, logs)
        }
    }
}

/// Failed attempts with the same error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCause {
    /// Category and message, in one line.
    pub error: String,
    /// Number of failed attempts; 0 if only items were rejected for it.
    pub attempts: u64,
    /// Some of their mini-batches; empty if the script did not start, or if one process without progress ended the job.
    pub mini_batches: Vec<u64>,
    /// File below `logs/` to open next; may be empty.
    pub log: String,
    /// The last lines printed before the first of them; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub printed: String,
}

/// A round of a job: its work besides the unfinished mini-batches, and its result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundResult {
    /// Its beginning, milliseconds since 1970; `None`: that of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// How it ended; `None`: it was interrupted. Running also if the next one began in the meantime.
    pub state: Option<JobState>,
    /// It went on with the round before, which was interrupted.
    pub goes_on: bool,
    /// Failed mini-batches that ran again.
    pub failed: u64,
    /// Rejected items that ran again, or whose mini-batches did.
    pub rejected: u64,
    /// Mini-batches that had not ended before it, as far as they were planned.
    pub unfinished: u64,
    /// Whether all mini-batches had ended before it, so that only the output was left to write.
    #[serde(default, skip_serializing_if = "is_default")]
    pub only_output: bool,
    /// Whether it ran another script than the round before.
    pub has_other_script: bool,
    /// The mini-batches of the job at its end, or until now.
    pub mini_batches: Counts,
    /// The items of the job at its end, or until now.
    pub items: Counts,
}

impl RoundResult {
    /// Returns its work and its result, in one line.
    pub fn sentence(&self) -> String {
        let Self { state, failed, rejected, unfinished, goes_on, .. } = self;
        let Self { only_output, has_other_script, items, .. } = self;
        let what = [(*failed, "failed mini-batch"), (*rejected, "rejected item")];
        let what: Vec<_> = what
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, one)| counted(*count, one))
            .collect();
        let again = (!what.is_empty()).then(|| format!("ran {} again", what.join(" and ")));
        let rest = (*unfinished > 0)
            .then(|| format!("{} that had not ended", counted(*unfinished, "mini-batch")));
        let began = match (self.at, again, rest) {
            (None, ..) => "ran the job".to_owned(),
            (_, Some(again), Some(rest)) => format!("{again}, and {rest}"),
            (_, Some(again), None) => again,
            (_, None, Some(rest)) => format!("ran {rest}"),
            (_, None, None) if *goes_on => "went on after an interruption".to_owned(),
            (_, None, None) if *only_output => match state {
                Some(JobState::Completed) => "wrote the output".to_owned(),
                _ => "had only the output to write".to_owned(),
            },
            (_, None, None) => "went on with what had not ended".to_owned(),
        };
        let script = if *has_other_script { ", with another script" } else { "" };
        let end = match state {
            Some(JobState::Running | JobState::Completed) => "",
            Some(JobState::Failed) => ", and failed",
            Some(JobState::Canceled) => ", and was canceled",
            None => ", and was interrupted",
        };
        let so_far = if *state == Some(JobState::Running) { " so far" } else { "" };
        let items = match (items.succeeded, items.total) {
            (0, 0) => "no item was counted".to_owned(),
            (succeeded, 0) => format!("{} succeeded", counted(succeeded, "item")),
            (succeeded, total) => format!("{succeeded} of {total} items succeeded"),
        };
        format!("{began}{script}{end}: {items}{so_far}")
    }
}

/// The tables of rejected items: the same rows in two formats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectTables {
    /// Number of rejected items.
    pub items: u64,
    /// Those of them whose places are unknown or may change, so that a retry cannot run them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub without_place: u64,
    /// Those of failed mini-batches.
    #[serde(default, skip_serializing_if = "is_default")]
    pub of_failed: u64,
    /// Path or URL of `rejects.csv`.
    pub csv: String,
    /// Path or URL of `rejects.parquet`.
    pub parquet: String,
}

/// A mini-batch that has spent all its tries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedMiniBatch {
    /// Number of the mini-batch.
    pub mini_batch: u64,
    /// First item, for people.
    pub detail: String,
    /// Category and message of its last error, in one line.
    pub error: String,
    /// File below `logs/` to open next; may be empty.
    pub log: String,
    /// The last lines printed during its last try; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub printed: String,
}

/// Returns the wall clock for records that people read. Nothing measures with it.
pub fn milliseconds_since_epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_of_a_round_counts_items_that_are_known() {
        for (succeeded, total, expected) in [
            (0, 0, "ran the job, and was interrupted: no item was counted"),
            (1, 0, "ran the job, and was interrupted: 1 item succeeded"),
            (3, 4, "ran the job, and was interrupted: 3 of 4 items succeeded"),
        ] {
            let items = Counts { total, succeeded, failed: 0 };
            assert_eq!(RoundResult { items, ..RoundResult::default() }.sentence(), expected);
        }
    }

    #[test]
    fn sentence_of_a_round_with_nothing_but_the_output_names_the_output() {
        for (state, expected) in [
            (Some(JobState::Completed), "wrote the output"),
            (Some(JobState::Failed), "had only the output to write, and failed"),
            (None, "had only the output to write, and was interrupted"),
        ] {
            let (at, items) = (Some(7), Counts { total: 4, succeeded: 4, failed: 0 });
            let round =
                RoundResult { at, state, only_output: true, items, ..RoundResult::default() };
            assert_eq!(round.sentence(), format!("{expected}: 4 of 4 items succeeded"));
        }
    }

    #[test]
    fn divided_mini_batches_are_named_in_their_order() {
        let mut divided = DividedMiniBatches::default();
        for (mini_batch, expected) in [
            (9, "mini-batch 9"),
            (3, "mini-batches 3, 9"),
            (7, "mini-batches 3, 7, 9"),
            (20, "mini-batches 3, 7, 9, 20"),
            (21, "mini-batches 3, 7, 9, 20, 21"),
            (1, "mini-batches 1, 3, 7, 9, 20 and 1 more"),
        ] {
            divided.add(mini_batch);
            assert_eq!(divided.sentence(), expected);
        }
    }
}
