//! Reports for people, below the `logs` folder of a job.
//!
//! A reducer that starts rewrites the reports of single events from the ledger, so they hold each event once, no matter
//! how often reducers were killed. Reports over time continue at their end. If other machines share the job, each
//! reducer writes a folder of its own and periodically copies it to the store.

mod file;
pub(crate) mod headline;
mod processed;
mod summaries;
pub(crate) mod text;
mod upload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use protocol::words::{counted, sentence};
use protocol::{Attempt, AttemptRef, AttemptStatus, JobResult, ResultEvent, Waiting, one_line};
use storage::JobStore;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::batch::{Batch, Event, Unreadable};
use crate::failures::error_sentence;
use crate::tasks::joined;
use crate::{Options, Tally};
use file::{ReportFile, replace, timestamp};
use processed::{AttemptKind, Processed};
use summaries::Summaries;
use upload::Upload;

/// Largest size of the file of warnings.
const WARNINGS_BYTES_MAX: u64 = 10 << 20;
/// Unreadable messages that are kept.
const UNREADABLE_MAX: usize = 16;

/// Segments that are or wait to be written.
const SEGMENTS_BEHIND_MAX: usize = 2;

/// The reports of one job.
#[derive(Debug)]
pub(crate) struct Reports {
    /// `None` while `writing` has them, or if there is no folder for them.
    files: Option<Files>,
    /// Writes segments one after the other, concurrently with the next commits.
    writing: Option<JoinHandle<Option<Files>>>,
    /// Each segment that is or waits to be written holds one permit.
    permits: Arc<Semaphore>,
    upload: Option<Upload>,
}

#[derive(Debug)]
struct Files {
    logs: PathBuf,
    writer: String,
    started: DateTime<Utc>,
    overview: ReportFile,
    master: ReportFile,
    processed: Processed,
    warnings: ReportFile,
    metrics: ReportFile,
    unreadable: ReportFile,
    unreadable_count: usize,
    summaries: Summaries,
}

impl Reports {
    /// Starts the reports of a job.
    pub async fn new(store: &JobStore, options: &Options) -> Self {
        if !options.reports {
            return Self::in_folder(None, options);
        }
        if let Some(folder) = options.peers.reports_folder(store) {
            return Self::in_folder(Some(&folder), options);
        }
        match Upload::new(store.clone()).await {
            Ok(upload) => {
                let files = Self::in_folder(Some(upload.folder()), options);
                Self { upload: Some(upload), ..files }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot create a temporary folder for reports; the job continues without them");
                Self::in_folder(None, options)
            }
        }
    }

    fn in_folder(logs: Option<&Path>, options: &Options) -> Self {
        let files = logs.map(|logs| Files::new(logs, &options.writer));
        Self {
            files,
            writing: None,
            permits: Arc::new(Semaphore::new(SEGMENTS_BEHIND_MAX)),
            upload: None,
        }
    }

    /// Returns the files once all segments are written.
    async fn files(&mut self) -> Option<&mut Files> {
        if let Some(writing) = &mut self.writing {
            self.files = written(writing).await;
            self.writing = None;
        }
        self.files.as_mut()
    }

    /// Reports that a reducer has read the ledger.
    pub async fn started(&mut self, job_id: &str, tally: &Tally) {
        let Some(files) = self.files().await else { return };
        files.overview_line(&format!("Start the job {job_id}."));
        if tally.ended() > 0 {
            let (ended, pending) = (counted(tally.ended(), "mini batch"), tally.retrying());
            files.overview_line(&format!("{ended} had ended before; to be retried: {pending}."));
        }
        files.flush();
    }

    /// Writes a segment that was committed or read, after the tally. In a job of many quick mini-batches this is a
    /// large part of the work, so another thread does it, a few segments behind.
    pub async fn events(&mut self, segment: Batch, is_new: bool, elapsed: Duration) {
        if self.files.is_none() && self.writing.is_none() {
            return;
        }
        let permit = self.permits.clone().acquire_owned().await.expect("it is never closed");
        let (files, before) = (self.files.take(), self.writing.take());
        self.writing = Some(tokio::spawn(async move {
            let mut files = match before {
                Some(mut before) => written(&mut before).await?,
                None => files?,
            };
            let mut writing = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                files.segment(&segment, is_new, elapsed);
                Some(files)
            });
            written(&mut writing).await
        }));
    }

    /// Reports an unreadable message and keeps it.
    pub async fn unreadable(&mut self, unreadable: &Unreadable) {
        tracing::error!(
            error = unreadable.reason,
            "cannot read a result message, which is kept for inspection"
        );
        if let Some(files) = self.files().await {
            files.unreadable(unreadable);
        }
    }

    /// Reports a decision of the reducer.
    pub async fn decided(&mut self, message: &str) {
        if let Some(files) = self.files().await {
            files.master.line(message);
        }
    }

    /// Writes the periodic reports. `elapsed`: since the job was started or reopened.
    pub async fn tick(&mut self, tally: &Tally, elapsed: Duration, remaining: Option<Duration>) {
        if let Some(files) = self.files().await {
            files.tick(tally, elapsed, remaining);
        }
        if let Some(upload) = &mut self.upload {
            upload.copy().await;
        }
    }

    /// Makes everything written visible to readers.
    pub async fn flush(&mut self) {
        if let Some(files) = self.files().await {
            files.flush();
        }
    }

    /// Reports that the reducer stops while the job continues.
    pub async fn left(&mut self, tally: &Tally, elapsed: Duration, remaining: Option<Duration>) {
        let Some(files) = self.files().await else { return };
        files.tick(tally, elapsed, remaining);
        let stopped = format!("The overviewer on {} stopped; the job continues.", files.writer);
        files.overview_line(&stopped);
        files.flush();
        if let Some(upload) = &mut self.upload {
            upload.finish().await;
        }
    }

    /// Reports the end of the job, which may still wait for processes.
    pub async fn ended(
        &mut self,
        result: &JobResult,
        tally: &Tally,
        waits: &[Waiting],
        warnings: &[String],
    ) {
        let Some(files) = self.files().await else { return };
        files.ended(result, tally);
        replace(
            &files.logs.join("job_result.txt"),
            &text::job_result(result, tally, &files.summaries.starts(), waits, warnings),
        );
        if let Some(upload) = &mut self.upload {
            upload.finish().await;
        }
    }

    /// Whether this reducer may have overwritten the reports of another.
    pub async fn may_have_replaced(&mut self) -> bool {
        match &mut self.upload {
            Some(upload) => upload.has_sent().await,
            None => false,
        }
    }

    /// Copies the reports again after another reducer has ended the job and copied its own, because an earlier,
    /// incomplete copy of this reducer may have overwritten them.
    pub async fn ended_elsewhere(&mut self, result: &JobResult, tally: &Tally) {
        let Some(files) = self.files().await else { return };
        files.ended(result, tally);
        if let Some(upload) = &mut self.upload {
            upload.send_again().await;
        }
    }
}

/// Waits for the writing thread.
async fn written(writing: &mut JoinHandle<Option<Files>>) -> Option<Files> {
    // Only the end of the runtime cancels it.
    joined(writing.await).unwrap_or_default()
}

impl Files {
    fn new(logs: &Path, writer: &str) -> Self {
        let started = Utc::now();
        let stamp = stamp(started);
        let job_report = logs.join("sys/job_report");
        replace(&logs.join("readme.txt"), include_str!("reports/readme.txt"));
        let mut metrics =
            ReportFile::create(logs.join(format!("sys/metrics/{stamp}/progress.csv")));
        metrics.write(
            "Datetime,Total Tasks,Scheduled Tasks,Completed Tasks,Failed Tasks,Elapsed Time,Estimated Remaining Time\n",
        );
        // Creates the folder at the start, so that an empty folder shows that all messages were readable.
        let unreadable =
            ReportFile::append(logs.join("sys/error/messages.txt")).capped(WARNINGS_BYTES_MAX);
        Self {
            logs: logs.to_owned(),
            writer: writer.to_owned(),
            started,
            overview: ReportFile::append(overview_path(logs, started)),
            master: ReportFile::append(logs.join("sys/master_role.txt")),
            processed: Processed::create(job_report.join("processed_mini-batches.csv")),
            warnings: ReportFile::create(logs.join("sys/warning/mini-batch_warnings.txt"))
                .capped(WARNINGS_BYTES_MAX),
            metrics,
            unreadable,
            unreadable_count: 0,
            summaries: Summaries::default(),
        }
    }

    fn segment(&mut self, segment: &Batch, is_new: bool, elapsed: Duration) {
        for record in segment.records() {
            match record.event {
                Event::Success(success) => self.row(&record.attempt(success), AttemptKind::SUCCESS),
                Event::Other(event) => self.event(event, is_new, elapsed),
            }
        }
    }

    fn event(&mut self, event: &ResultEvent, is_new: bool, elapsed: Duration) {
        match event {
            ResultEvent::Attempt(attempt) => return self.attempt(attempt),
            other => self.summaries.event(other),
        }
        if !is_new {
            return;
        }
        match event {
            ResultEvent::Planned(planned) => {
                let items = planned
                    .items
                    .map_or_else(String::new, |items| format!(" with {}", counted(items, "item")));
                let (mini_batches, seconds) = (planned.mini_batches, elapsed.as_secs());
                let are = if mini_batches == 1 { "is" } else { "are" };
                self.overview_line(&format!(
                    "Scheduling finished. Scheduled {} in {}. There {are} {}{items}.",
                    counted(mini_batches, "mini batch"),
                    counted(seconds, "second"),
                    counted(mini_batches, "task")
                ));
            }
            ResultEvent::ProcessStarted { node, process, pid, gpus, .. } => {
                let gpus = gpus.as_ref().map_or_else(String::new, |gpus| format!(" and {gpus}"));
                self.master.line(&format!(
                    "{process} on node {node} started with process id {pid}{gpus}."
                ));
            }
            ResultEvent::ProcessReady { node, process, init_seconds, notice, .. } => {
                self.master.line(&format!(
                    "{process} on node {node} is ready after {init_seconds:.3} seconds."
                ));
                self.notice(notice);
            }
            ResultEvent::ProcessEnded { node, process, return_code, wear, notice, .. } => {
                let why = wear
                    .as_ref()
                    .map_or_else(String::new, |wear| format!(" It is replaced: it {wear}."));
                self.master.line(&format!(
                    "{process} on node {node} exits with returncode {return_code}.{why}"
                ));
                self.notice(notice);
            }
            ResultEvent::InitFailed { node, process, error } => {
                let error = error_sentence(error);
                self.overview_line(&format!(
                    "{process} on node {node} failed before its first mini batch: {error}"
                ));
            }
            ResultEvent::NodeStopped { node, cause } => match cause {
                Some(cause) => self.overview_line(&format!("Node {node} stopped: {cause}")),
                None => self.master.line(&format!("Node {node} stopped: it had no work left.")),
            },
            ResultEvent::Waiting(waiting) => {
                self.overview_line(&format!("Waiting for {waiting}."));
                waiting.stack.lines().for_each(|line| self.master.line(line));
            }
            ResultEvent::PlanFailed { cause } => {
                self.overview_line(&format!("Scheduling failed: {cause}"))
            }
            ResultEvent::Round(round) if round.goes_on => {
                self.overview_line("The interrupted job goes on.")
            }
            ResultEvent::Round(round) => {
                let of_rejects = (round.rejects.len() + round.whole.len()) as u64;
                let rejects = match of_rejects {
                    0 => String::new(),
                    _ => {
                        format!(", and the rejected items of {}", counted(of_rejects, "mini batch"))
                    }
                };
                let failed = if round.failed { " and failed" } else { "" };
                self.overview_line(&format!(
                    "Another round begins: unfinished{failed} mini batches run{rejects}."
                ));
            }
            ResultEvent::RowsLost { mini_batches } => {
                let count = counted(mini_batches.len() as u64, "mini batch");
                self.overview_line(&format!(
                    "The rows of {count} were lost or are incomplete; the mini-batches run again."
                ));
            }
            ResultEvent::Job { .. }
            | ResultEvent::Attempt(_)
            | ResultEvent::Working { .. }
            | ResultEvent::Ended { .. }
            | ResultEvent::CutShort
            | ResultEvent::Duplicates { .. } => {}
        }
    }

    fn row(&mut self, attempt: &AttemptRef, kind: AttemptKind<'_>) {
        let pid = self.summaries.attempt(attempt, kind.status == AttemptStatus::Succeeded);
        self.processed.add(attempt, kind, pid);
    }

    fn attempt(&mut self, attempt: &Attempt) {
        self.row(&attempt.core(), attempt.into());
        for warning in &attempt.warnings {
            let message = warning.message.replace(['\n', '\r'], " ");
            let detail = one_line(&attempt.detail);
            self.warnings
                .write(&format!("mini-batch {} ({detail}): {message}\n", attempt.mini_batch));
        }
        let carried = attempt.warnings.len() as u64;
        if attempt.warnings_total > carried {
            let more = attempt.warnings_total - carried;
            let more = counted(more, "more warning");
            self.warnings.write(&format!("mini-batch {}: {more}\n", attempt.mini_batch));
        }
    }

    fn unreadable(&mut self, unreadable: &Unreadable) {
        let Unreadable { bytes, reason } = unreadable;
        self.unreadable_count += 1;
        let kept = if self.unreadable_count <= UNREADABLE_MAX {
            let name = format!("message.{}.{}.bin", stamp(self.started), self.unreadable_count);
            match std::fs::write(self.logs.join("sys/error").join(&name), bytes) {
                Ok(()) => format!("kept as {name}"),
                Err(error) => format!("not kept: {error}"),
            }
        } else {
            "not kept: there are too many".to_owned()
        };
        self.unreadable.line(&format!(
            "A result message of {} bytes cannot be read: {reason} ({kept})",
            bytes.len()
        ));
        self.unreadable.flush();
    }

    fn notice(&mut self, notice: &str) {
        if !notice.is_empty() {
            self.overview_line(&sentence(notice));
        }
    }

    fn overview_line(&mut self, message: &str) {
        self.overview.line(message);
        self.master.line(message);
    }

    fn tick(&mut self, tally: &Tally, elapsed: Duration, remaining: Option<Duration>) {
        let now = Utc::now();
        if now.date_naive() != self.started.date_naive() {
            self.started = now;
            self.overview.flush();
            self.overview = ReportFile::append(overview_path(&self.logs, now));
        }
        self.overview_line(&text::progress(tally, elapsed, remaining));
        let total = tally
            .planned()
            .map_or_else(|| "N/A".to_owned(), |planned| planned.mini_batches.to_string());
        let remaining = remaining.map_or_else(|| "N/A".to_owned(), text::duration);
        let (succeeded, failed) = (tally.mini_batches().succeeded, tally.mini_batches().failed);
        let (now, elapsed) = (timestamp(now), text::duration(elapsed));
        self.metrics
            .write(&format!("{now},{total},{total},{succeeded},{failed},{elapsed},{remaining}\n"));
        let job_report = self.logs.join("sys/job_report");
        replace(&job_report.join("process_summary.csv"), &self.summaries.process_csv());
        replace(&job_report.join("node_summary.csv"), &self.summaries.node_csv());
        replace(&self.logs.join("job_error.txt"), &text::job_error(tally));
        replace(&self.logs.join("user/error.txt"), &text::user_error(tally.failures()));
        self.flush();
    }

    /// Writes the end of the job to every report except `job_result.txt`.
    fn ended(&mut self, result: &JobResult, tally: &Tally) {
        let elapsed = Duration::try_from_secs_f64(result.elapsed_seconds).unwrap_or_default();
        self.tick(tally, elapsed, tally.is_complete().then_some(Duration::ZERO));
        let cause =
            result.cause.as_ref().map_or_else(String::new, |cause| format!(" {}", sentence(cause)));
        self.overview_line(&format!("The job ended: {:?}.{cause}", result.state));
        if let Some(headline) = &result.headline {
            self.overview_line(&format!("The job {}", sentence(headline)));
        }
        if let Some(first) = tally.failures().first() {
            let open = if first.error.log.is_empty() { "job_error.txt" } else { &first.error.log };
            self.overview_line(&format!(
                "The first failed mini batch is {}. Start with logs/{open}.",
                first.mini_batch
            ));
        }
        let stopped = format!("The overviewer on {} stopped.", self.writer);
        self.overview_line(&stopped);
        self.flush();
    }

    fn flush(&mut self) {
        self.processed.flush();
        for file in [&mut self.overview, &mut self.master, &mut self.warnings, &mut self.metrics] {
            file.flush();
        }
    }
}

fn overview_path(logs: &Path, time: DateTime<Utc>) -> PathBuf {
    logs.join(format!("job_progress_overview.{}.txt", stamp(time)))
}

/// Returns a timestamp that sorts by time and is a valid file name everywhere.
fn stamp(time: DateTime<Utc>) -> String {
    time.format("%Y%m%d%H%M%S").to_string()
}
