//! The end of a job: the output where the work is complete, then the result, and only then is anything removed.

use std::sync::OnceLock;
use std::time::Duration;

use protocol::{FailedMiniBatch, JobResult, JobState, OutputAction};
use storage::Commit;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Appended, End, Reducer};
use crate::CrashPoint;
use crate::failures::{GivenUp, one_line};
use crate::output::{Assembly, Written};
use crate::thresholds::describe;

/// How often one looks for the result of another reducer that has ended the job, before doing its work.
const LOOKS_FOR_RESULT: usize = 3;
/// How long a final file that is given up may take to notice: one request to the store.
const ABANDON_TIME: Duration = Duration::from_secs(20);
/// Failed mini-batches that the result names.
const FAILED_NAMED_MAX: usize = 10;

impl Reducer {
    /// Ends the job. Where several reducers serve it, the first to commit how it ends decides that for all, and they
    /// all make the same of it, whoever is done first. `None`: the job has been opened again meanwhile, or this reducer
    /// was told to stop and leaves the final file to another.
    pub(super) async fn finish(&mut self, end: End, stop: &CancellationToken) -> anyhow::Result<Option<JobResult>> {
        if !self.options.shared {
            return self.write_end(end, stop).await;
        }
        let is_ours = self.append_event(&end.event()).await? == Appended::Committed;
        if !is_ours && let Some(result) = self.wait_for_result().await? {
            return Ok(Some(self.ended_elsewhere(result).await));
        }
        match self.tally.ended_as() {
            Some((state, cause)) => self.write_end(End::committed(state, cause), stop).await,
            None => Ok(None),
        }
    }

    /// Gives the reducer that has ended the job time to write the result, if it still lives.
    async fn wait_for_result(&mut self) -> anyhow::Result<Option<JobResult>> {
        for look in 0..LOOKS_FOR_RESULT {
            if look > 0 {
                sleep(self.options.progress_interval).await;
            }
            if let Some(result) = self.store.result().await? {
                return Ok(Some(result));
            }
        }
        self.catch_up(true).await.map(|_| None)
    }

    /// Another reducer was the first to write the result. Reports that were copied from here are made whole.
    pub(super) async fn ended_elsewhere(&mut self, result: JobResult) -> JobResult {
        if self.reports.may_have_replaced().await {
            match self.catch_up(true).await {
                Ok(_) => self.reports.ended_elsewhere(&result, &self.tally).await,
                Err(error) => tracing::warn!("reports of the job may lack what others committed at its end: {error:#}"),
            }
        }
        result
    }

    /// Nothing more is done here, and the job goes on; unless another reducer has ended it a moment ago.
    pub(super) async fn leave(&mut self) {
        if self.options.shared
            && self.catch_up(true).await.is_ok()
            && self.tally.ended_as().is_some()
            && let Ok(Some(result)) = self.store.result().await
        {
            self.ended_elsewhere(result).await;
            return;
        }
        self.show_progress();
        self.write_progress().await;
        self.reports.left(&self.tally, self.started.elapsed()).await;
    }

    /// Writes the output where the work is complete, and then, in any case, the result.
    async fn write_end(&mut self, end: End, stop: &CancellationToken) -> anyhow::Result<Option<JobResult>> {
        let mut warnings = Vec::new();
        let (state, cause, output) = match end {
            End::Complete => match self.write_output(stop).await {
                Ok(None) => return Ok(None),
                Ok(Some(written)) => {
                    warnings = written.warnings;
                    (JobState::Completed, None, Some(written.path.display().to_string()))
                }
                Err(error) => {
                    // Whoever was quicker has removed the parts.
                    if self.options.shared
                        && let Some(result) = self.store.result().await?
                    {
                        return Ok(Some(self.ended_elsewhere(result).await));
                    }
                    let job = &self.spec.job_id;
                    let cause = format!("{error:#}. Mend this and run `gristmill retry {job}`: no result is lost.");
                    (JobState::Failed, Some(cause), None)
                }
            },
            End::Failed(cause) => (JobState::Failed, Some(cause), None),
            End::Canceled(reason) => (JobState::Canceled, Some(reason.unwrap_or_else(|| "canceled".into())), None),
        };
        let result = JobResult {
            job_id: self.spec.job_id.clone(),
            state,
            cause: cause.map(|cause| cause.replace(['\n', '\r'], " ")),
            output,
            logs: self.store.shown("logs"),
            mini_batches: self.tally.mini_batches(),
            items: self.tally.items(),
            elapsed_seconds: self.started.elapsed().as_secs_f64(),
            warnings: self.tally.warnings(),
            duplicates_dropped: self.tally.duplicates() + self.duplicates,
            failed_mini_batches: self.tally.failures().given_up_first().take(FAILED_NAMED_MAX).map(named).collect(),
            reused: false,
        };
        self.show_progress();
        self.write_progress().await;
        for waiting in self.tally.fleet().waiting() {
            tracing::warn!("at the end of the job somebody still waits: {}", describe(waiting));
        }
        self.reports.ended(&result, &self.tally, &warnings).await;
        if self.options.shared {
            // Whoever opened the job again believed that it had ended.
            self.catch_up(true).await?;
            if self.tally.ended_as().is_none() {
                return Ok(None);
            }
        }
        match self.store.create_result(&result).await {
            Ok(Commit::Committed) => {}
            Ok(Commit::Lost) => return Ok(self.store.result().await?),
            // Whoever runs this job should read the first cause, not that the disk is full a second time.
            Err(error) if state == JobState::Failed => {
                tracing::error!(%error, "the failure of the job could not be recorded");
                return Ok(Some(result));
            }
            Err(error) => return Err(anyhow::Error::from(error).context("record how the job ended")),
        }
        (self.options.crash)(CrashPoint::AfterResult);
        self.tidy(state).await;
        Ok(Some(result))
    }

    /// Parts are no longer needed once the final file and the result stand.
    pub(super) async fn tidy(&self, state: JobState) {
        if state == JobState::Completed
            && let Err(error) = self.store.delete_parts().await
        {
            tracing::warn!(%error, "parts are no longer needed, but could not be deleted");
        }
    }

    /// `None`: it takes longer than one may who was told to stop.
    async fn write_output(&mut self, stop: &CancellationToken) -> anyhow::Result<Option<Written>> {
        (self.options.crash)(CrashPoint::BeforeOutput);
        if self.spec.output.action == OutputAction::SummaryOnly {
            let path = self.spec.output.folder.as_path().to_owned();
            return Ok(Some(Written { path, warnings: vec![] }));
        }
        self.reports.decided("Every mini batch has ended; the final file is written.").await;
        let store = self.store.clone();
        let index = std::mem::take(&mut self.ledger.index);
        let (output, job_id) = (self.spec.output.clone(), self.spec.job_id.clone());
        let options = self.options.clone();
        let runtime = Handle::current();
        let abandon = Abandon { stop: stop.clone(), grace: options.output_grace, stopped_at: OnceLock::new() };
        let out_of_time = abandon.out_of_time();
        let written = tokio::task::spawn_blocking(move || {
            let assembly = Assembly {
                store: &store,
                index: &index,
                output: &output,
                job_id: &job_id,
                writer: &options.writer,
                runtime,
                crash: &*options.crash,
                is_abandoned: &|| abandon.is_due(),
            };
            (assembly.write(), index)
        });
        let written = tokio::select! {
            written = written => written,
            () = out_of_time => {
                tracing::warn!(job.id = self.spec.job_id, "the store does not answer; the final file is left to others");
                return Ok(None);
            }
        };
        match written {
            Ok((written, index)) => {
                self.ledger.index = index;
                written
            }
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// When a final file is given up.
struct Abandon {
    stop: CancellationToken,
    grace: Duration,
    stopped_at: OnceLock<Instant>,
}

impl Abandon {
    /// Whether it is time, as whoever writes asks from time to time.
    fn is_due(&self) -> bool {
        self.stop.is_cancelled() && self.stopped_at.get_or_init(Instant::now).elapsed() >= self.grace
    }

    /// Waits until whoever writes should long have noticed.
    fn out_of_time(&self) -> impl Future<Output = ()> + use<> {
        let (stop, grace) = (self.stop.clone(), self.grace);
        async move {
            stop.cancelled_owned().await;
            sleep(grace + ABANDON_TIME).await;
        }
    }
}

/// A failed mini-batch as the result names it.
fn named(given_up: &GivenUp) -> FailedMiniBatch {
    FailedMiniBatch {
        mini_batch: given_up.mini_batch,
        detail: given_up.detail.clone(),
        error: one_line(&format!("{}: {}", given_up.error.category, given_up.error.message)),
        log: given_up.error.log.clone(),
    }
}
