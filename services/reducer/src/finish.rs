//! Ends a job: writes the output of a complete job, then the result, and only then removes objects.
//!
//! If the store of the output does not answer, the job stays open and its progress says so: the
//! reducer retries until the store answers or the job is canceled. Missing rights, a missing bucket
//! and a full disk fail the job (`storage::Error::may_pass`).

use std::sync::OnceLock;
use std::time::Duration;

use backon::{BackoffBuilder, Retryable};
use protocol::words::{counted, sentence};
use protocol::{
    FailedMiniBatch, JobResult, JobState, OutputAction, Progress, Replaceable, one_line,
};
use queue::pauses::{FOR_SECONDS, UNTIL_IT_ANSWERS};
use storage::Commit;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::failures::GivenUp;
use crate::job::ticks;
use crate::judge::End;
use crate::output::{Assembly, Written, may_pass};
use crate::peers::Agreement;
use crate::receive::tell;
use crate::reports::headline::headline;
use crate::stalls::Stall;
use crate::tasks::joined;
use crate::{CrashPoint, Effort, Peers, Reducer};

/// Time in which the writer of an abandoned final file should stop: one request to the store.
const ABANDON_TIME: Duration = Duration::from_secs(20);
/// The same after a kill. The process then ends without waiting for a writer that is still in a long write.
const KILL_TIME: Duration = Duration::from_secs(1);
/// A completed job keeps a smaller ledger.
const HISTORY_BYTES_KEPT: u64 = 1 << 20;
/// Failed mini-batches in the result.
const FAILED_NAMED_MAX: usize = 10;
/// Warning about `limits` without effect.
const LIMITS_UNUSED: &str = "limits are set, but the script never asked for them, so it may have made any number of requests: \
                             write run_item, or call context.limit.acquire() before each request";
/// Warnings in the result.
const WARNINGS_NAMED_MAX: usize = 5;

impl Reducer {
    /// Ends the job. If several reducers serve it, all of them produce the same result. Returns `None` if the job has
    /// been reopened, or if this reducer was asked to stop and abandons the final file.
    pub(crate) async fn finish(
        &mut self,
        end: End,
        cancel: &CancellationToken,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<JobResult>> {
        match self.agree(end).await? {
            Agreement::Ends(end) => self.write_end(end, cancel, stop).await,
            Agreement::EndedElsewhere(result) => Ok(Some(self.ended_elsewhere(*result).await)),
            Agreement::Reopened => Ok(None),
        }
    }

    /// Returns the decisions about the inputs before the start of the job and during the listing,
    /// and the results that the last round has not improved or written.
    async fn notes(&self, state: JobState) -> Vec<String> {
        let plan = self.store.plan_complete().await.ok().flatten();
        let left_out = plan.and_then(|plan| plan.left_out.line());
        let unimproved = self.tally.unimproved();
        let unimproved = unimproved.first.as_ref().map(|(mini_batch, error)| {
            let mini_batches = counted(unimproved.count, "mini-batch");
            format!("{mini_batches} got no better result, so the earlier one stays; the first is {mini_batch}: {error}")
        });
        let output = &self.spec.output;
        let output = format!("{}/{}", output.folder.display(), output.file_name);
        let has_earlier = state != JobState::Completed
            && self.tally.written().is_some()
            // A retry may have changed the format, and with it the name of the file.
            && !matches!(
                self.store.stores().version(&output).await,
                Err(storage::Error::NotFound { .. })
            );
        let earlier =
            has_earlier.then(|| format!("the output of an earlier round stays: {output}"));
        self.spec.notes.iter().cloned().chain(left_out).chain(unimproved).chain(earlier).collect()
    }

    /// Writes the output of a complete job, and the result of any job.
    pub(crate) async fn write_end(
        &mut self,
        end: End,
        cancel: &CancellationToken,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<JobResult>> {
        let run = self.tally.rounds();
        let (mut warnings, mut columns, mut output_version) = (Vec::new(), Vec::new(), None);
        let (state, cause, output) = match end {
            // Boxed, as the rejects below: the compiler limits the nesting of futures.
            End::Complete => match Box::pin(self.write_output_patiently(cancel, stop)).await? {
                Output::Written(written) => {
                    (warnings, columns) = (written.warnings, written.columns);
                    let output = written.path.display().to_string();
                    if self.spec.output.action != OutputAction::SummaryOnly {
                        // Without a version, a later run does not reuse the result.
                        output_version = self.store.stores().version(&output).await.ok();
                    }
                    (JobState::Completed, None, Some(output))
                }
                Output::Unwritable(state, cause) => (state, Some(cause), None),
                Output::EndedElsewhere(result) => {
                    return Ok(Some(self.ended_elsewhere(*result).await));
                }
                Output::Abandoned => return Ok(None),
            },
            End::Failed(cause) | End::Stalled(Stall { cause, .. }) => {
                (JobState::Failed, Some(cause), None)
            }
            End::Canceled(reason) => {
                (JobState::Canceled, Some(reason.unwrap_or_else(|| "canceled".into())), None)
            }
        };
        if !self.spec.limits.is_empty()
            && !self.tally.asked_limits()
            && self.tally.mini_batches().succeeded > 0
        {
            warnings.push(LIMITS_UNUSED.to_owned());
        }
        let written = (|| Box::pin(self.write_rejects())).retry(FOR_SECONDS).when(may_pass).await;
        let rejects = written.unwrap_or_else(|error| {
            warnings.push(format!(
                "{error:#}; the rejects of the job can still be counted by their causes"
            ));
            None
        });
        let outputs = self.spec.outputs.iter().filter(|_| state == JobState::Completed);
        let outputs = outputs.map(|(name, folder)| (name.clone(), folder.display())).collect();
        let Effort { extra_runs, divided, items_kept, waited, .. } = self.tally.effort();
        // The last progress and the result have the same times.
        self.show_progress();
        let Progress { elapsed_seconds, worked_seconds, .. } = *self.progress.borrow();
        // The tally does not know whether the output could be written.
        let mut rounds = self.tally.round_results();
        if let Some(last) = rounds.last_mut() {
            last.state = Some(state);
        }
        let result = JobResult {
            job_id: self.spec.job_id.clone(),
            state,
            cause: cause.map(|cause| cause.replace(['\n', '\r'], " ")),
            output,
            output_version,
            outputs,
            columns,
            logs: self.store.shown("logs"),
            mini_batches: self.tally.mini_batches(),
            items: self.tally.items(),
            retrying: self.tally.retrying(),
            extra_runs,
            divided,
            items_kept,
            waited,
            items_rejected: self.tally.items_rejected(),
            copies: self.copies(),
            headline: if state == JobState::Completed {
                headline(&self.tally, &self.spec.thresholds)
            } else {
                None
            },
            failures: self.tally.failures().causes(),
            rejects,
            elapsed_seconds,
            worked_seconds,
            warnings: self.tally.warnings().count() + warnings.len() as u64,
            first_warnings: warnings
                .iter()
                .cloned()
                .chain(self.tally.warnings().first())
                .take(WARNINGS_NAMED_MAX)
                .collect(),
            warning_kinds: self.tally.warnings().kinds(),
            duplicates_dropped: self.tally.duplicates() + self.duplicates,
            notes: self.notes(state).await.into_iter().chain(self.tally.nodes().notes()).collect(),
            failed_mini_batches: self
                .tally
                .failures()
                .given_up_first()
                .take(FAILED_NAMED_MAX)
                .map(named)
                .collect(),
            rounds,
            reused: false,
            command: self.spec.is_command(),
        };
        self.write_progress().await;
        // The cause of a failed job names them.
        if state != JobState::Failed {
            self.log_failed_starts(true);
        }
        let waits = self.waiting();
        // These help only with a failed job.
        for waiting in waits.iter().filter(|_| state == JobState::Failed) {
            tracing::warn!("the job failed while waiting for {waiting}");
        }
        self.reports.ended(&result, &self.tally, &waits, &warnings).await;
        if self.is_reopened_since(run).await? {
            return Ok(None);
        }
        match self.store.create_result(&result).await {
            Ok(Commit::Committed) => {}
            Ok(Commit::Lost) => return Ok(self.store.result().await?),
            // The user should read the first cause, not a second error about a full disk. On a target, the next reducer
            // records it.
            Err(error) if state == JobState::Failed && self.peers == Peers::Alone => {
                tracing::error!(error = %format!("{error:#}"), "cannot record the failure of the job");
                return Ok(Some(result));
            }
            Err(error) => {
                return Err(anyhow::Error::from(error).context("record the result of the job"));
            }
        }
        (self.options.crash)(CrashPoint::AfterResult);
        self.tidy(state).await;
        Ok(Some(result))
    }

    /// Removes data that a completed job does not need: checkpoints, and, unless a retry may need them, parts, the plan and a
    /// large ledger. A small ledger stays, because forcing the result to disk first would cost more than it saves.
    pub(crate) async fn tidy(&self, state: JobState) {
        if state != JobState::Completed {
            return;
        }
        let is_done =
            self.tally.mini_batches().failed == 0 && !self.rejects.may_run_again(&self.tally);
        if is_done && let Err(error) = self.store.delete_parts().await {
            tracing::warn!(error = %format!("{error:#}"), "cannot delete parts, which are no longer needed");
        }
        // `retry` continues failed mini-batches from them.
        if self.tally.mini_batches().failed == 0
            && let Err(error) = self.store.delete_checkpoints().await
        {
            tracing::warn!(error = %format!("{error:#}"), "cannot delete checkpoints, which are no longer needed");
        }
        if is_done
            && self.peers.may_delete_history()
            && self.ledger.index.bytes() >= HISTORY_BYTES_KEPT
            && let Err(error) = self.store.delete_history().await
        {
            tracing::warn!(error = %format!("{error:#}"), "cannot delete ledger and plan, which are no longer needed");
        }
    }

    /// Writes the final file, and retries until its store answers: the results are committed, so an
    /// unavailable store does not end the job.
    async fn write_output_patiently(
        &mut self,
        cancel: &CancellationToken,
        stop: &CancellationToken,
    ) -> anyhow::Result<Output> {
        if self.spec.output.action != OutputAction::SummaryOnly {
            self.reports.decided("Every mini batch has ended; writing the final file.").await;
        }
        let output = self.try_until_the_store_answers(cancel, stop).await;
        self.trouble.send_replace(None);
        output
    }

    async fn try_until_the_store_answers(
        &mut self,
        cancel: &CancellationToken,
        stop: &CancellationToken,
    ) -> anyhow::Result<Output> {
        let mut pauses = UNTIL_IT_ANSWERS.build();
        loop {
            let error = match self.write_output(stop).await {
                Ok(Some(written)) => return Ok(Output::Written(written)),
                Ok(None) if self.options.kill.is_cancelled() => {
                    let cause = "canceled while the output was being written; no result is lost";
                    return Ok(Output::Unwritable(JobState::Canceled, cause.to_owned()));
                }
                Ok(None) => return Ok(Output::Abandoned),
                Err(error) => error,
            };
            // Another reducer may have finished first and removed the parts.
            if let Some(result) = self.result_of_peer().await? {
                return Ok(Output::EndedElsewhere(result.into()));
            }
            let cause = sentence(&format!("{error:#}"));
            if !may_pass(&error) {
                let cause = format!("{cause} Correct this and retry the job: no result is lost.");
                return Ok(Output::Unwritable(JobState::Failed, cause));
            }
            let pause = pauses.next().expect("the number of retries has no limit");
            tracing::warn!(error = %format!("{error:#}"), pause.seconds = pause.as_secs_f64(), "cannot write the output, trying again");
            let reason = format!("the output cannot be written yet, trying again: {error:#}");
            tell(&self.trouble, one_line(&reason));
            let until = Instant::now() + pause;
            let mut looks = ticks(self.options.progress_interval);
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(Output::Abandoned),
                    () = cancel.cancelled() => {
                        return Ok(Output::Unwritable(JobState::Canceled, canceled_before_the_output(None, &cause)));
                    }
                    () = sleep_until(until) => break,
                    _ = looks.tick() => {
                        self.show_progress();
                        self.write_progress().await;
                        if let Ok(Some(reason)) = self.store.cancel_requested().await {
                            let cause = canceled_before_the_output(Some(&reason), &cause);
                            return Ok(Output::Unwritable(JobState::Canceled, cause));
                        }
                    }
                }
            }
        }
    }

    /// Writes the final file. Returns `None` if a reducer that was asked to stop has no time left for it, or was killed.
    async fn write_output(&mut self, stop: &CancellationToken) -> anyhow::Result<Option<Written>> {
        (self.options.crash)(CrashPoint::BeforeOutput);
        if self.spec.output.action == OutputAction::SummaryOnly {
            let path = self.spec.output.folder.as_path().to_owned();
            return Ok(Some(Written { path, columns: vec![], warnings: vec![] }));
        }
        let store = self.store.clone();
        let index = self.ledger.index.clone();
        let (output, job_id) = (self.spec.output.clone(), self.spec.job_id.clone());
        let options = self.options.clone();
        let replaceable = match self.tally.written() {
            Some(version) => Replaceable::Version(version.clone()),
            None => self.spec.output.replaceable.clone(),
        };
        let runtime = Handle::current();
        let abandon = Abandon {
            stop: stop.clone(),
            kill: options.kill.clone(),
            grace: options.output_grace,
            stopped_at: OnceLock::new(),
        };
        let out_of_time = abandon.out_of_time();
        self.progress.send_modify(|progress| progress.step = Some("writing the output".to_owned()));
        let mut looks = ticks(self.options.progress_interval);
        let mut written = tokio::task::spawn_blocking(move || {
            let assembly = Assembly {
                store: &store,
                index: &index,
                output: &output,
                job_id: &job_id,
                writer: &options.writer,
                replaceable: &replaceable,
                runtime,
                crash: &*options.crash,
                is_abandoned: &|| abandon.is_due(),
            };
            assembly.write()
        });
        let mut out_of_time = std::pin::pin!(out_of_time);
        let written = loop {
            tokio::select! {
                written = &mut written => break Some(written),
                () = &mut out_of_time => break None,
                _ = looks.tick() => {
                    self.show_progress();
                    self.write_progress().await;
                }
            }
        };
        self.progress.send_modify(|progress| progress.step = None);
        let Some(written) = written else {
            if stop.is_cancelled() {
                tracing::warn!(
                    job.id = self.spec.job_id,
                    "the store does not answer; another reducer will write the final file"
                );
            }
            return Ok(None);
        };
        joined(written)?
    }
}

/// The end of writing the final file.
enum Output {
    Written(Written),
    /// It cannot be written: the state of the job, and the cause.
    Unwritable(JobState, String),
    /// Another reducer has written the result.
    EndedElsewhere(Box<JobResult>),
    /// This reducer was asked to stop.
    Abandoned,
}

/// Returns the cause of a job that was canceled while the store of its output did not answer.
fn canceled_before_the_output(reason: Option<&str>, cause: &str) -> String {
    format!(
        "{}; its output had not been written: {cause} No result is lost.",
        reason.unwrap_or("canceled")
    )
}

/// Decides when a reducer abandons a final file.
struct Abandon {
    stop: CancellationToken,
    kill: CancellationToken,
    grace: Duration,
    stopped_at: OnceLock<Instant>,
}

impl Abandon {
    /// Whether the writer should stop. It asks between mini-batches.
    fn is_due(&self) -> bool {
        self.kill.is_cancelled()
            || self.stop.is_cancelled()
                && self.stopped_at.get_or_init(Instant::now).elapsed() >= self.grace
    }

    /// Waits until the writer should have stopped.
    fn out_of_time(&self) -> impl Future<Output = ()> + use<> {
        let (stop, kill, grace) = (self.stop.clone(), self.kill.clone(), self.grace);
        async move {
            let time = tokio::select! {
                () = kill.cancelled() => KILL_TIME,
                () = stop.cancelled() => grace + ABANDON_TIME,
            };
            sleep(time).await;
        }
    }
}

/// Returns a failed mini-batch for the result.
fn named(given_up: &GivenUp) -> FailedMiniBatch {
    FailedMiniBatch {
        mini_batch: given_up.mini_batch,
        detail: given_up.detail.clone(),
        error: given_up.error_line(),
        log: given_up.error.log.clone(),
        printed: given_up.error.printed.clone(),
    }
}
