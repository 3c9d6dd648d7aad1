//! What people read about a job, below its `logs` folder.
//!
//! Reports of single events are rewritten from the ledger when a reducer starts, so they hold each event once however
//! often reducers were killed; reports over time go on where they ended. Where the job is shared with other machines,
//! each reducer writes a tree of its own and copies it to the job's store from time to time.

mod file;
mod processed;
mod summaries;
pub(crate) mod text;
mod upload;

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use protocol::{Attempt, JobResult, ResultEvent};
use storage::JobStore;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::batch::{Batch, Event, Unreadable};
use crate::failures::one_line;
use crate::thresholds::describe;
use crate::{Options, Tally};
use file::{ReportFile, replace, timestamp};
use processed::{Processed, Row};
use summaries::Summaries;
use upload::Upload;

/// Warnings of mini-batches that are kept.
const WARNINGS_BYTES_MAX: u64 = 10 << 20;
/// Unreadable messages that are kept.
const UNREADABLE_MAX: usize = 16;

/// Segments that wait to be written, and the one that is.
const SEGMENTS_BEHIND_MAX: usize = 2;

/// The reports of one job; no files where there is no place for them.
#[derive(Debug)]
pub(crate) struct Reports {
    /// `None` too while `writing` has them.
    files: Option<Files>,
    /// Segments are being written, one after the other, beside the next commits.
    writing: Option<JoinHandle<Option<Files>>>,
    /// A segment that waits to be written, or is, has one of them.
    turns: Arc<Semaphore>,
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
    /// Mini-batches that had ended when this reducer started.
    ended_before: u64,
}

impl Reports {
    /// Starts the reports of a job.
    pub async fn new(store: &JobStore, options: &Options) -> Self {
        if !options.reports {
            return Self::in_folder(None, options);
        }
        if let Some(folder) = store.folder().filter(|_| !options.shared) {
            return Self::in_folder(Some(&folder.join("logs")), options);
        }
        match Upload::new(store.clone()).await {
            Ok(upload) => {
                let files = Self::in_folder(Some(upload.folder()), options);
                Self { upload: Some(upload), ..files }
            }
            Err(error) => {
                tracing::warn!(%error, "no temporary folder can be made for reports, the job goes on without them");
                Self::in_folder(None, options)
            }
        }
    }

    fn in_folder(logs: Option<&Path>, options: &Options) -> Self {
        let files = logs.map(|logs| Files::new(logs, &options.writer));
        Self { files, writing: None, turns: Arc::new(Semaphore::new(SEGMENTS_BEHIND_MAX)), upload: None }
    }

    /// The files, once what is on its way into them is there.
    async fn files(&mut self) -> Option<&mut Files> {
        if let Some(writing) = &mut self.writing {
            self.files = written(writing).await;
            self.writing = None;
        }
        self.files.as_mut()
    }

    /// The ledger has been read.
    pub async fn started(&mut self, job_id: &str, tally: &Tally) {
        let Some(files) = self.files().await else { return };
        files.ended_before = tally.ended();
        files.overview_line(&format!("Start the job {job_id}."));
        if tally.ended() > 0 {
            let (ended, pending) = (tally.ended(), tally.retrying());
            files.overview_line(&format!("{ended} mini batches had ended before, {pending} are to be retried."));
        }
        files.flush();
    }

    /// A segment was committed, or read from the ledger; its events have changed the tally. Of a job of many quick
    /// mini-batches this is a good part of all work, so another thread does it, a few segments behind.
    pub async fn events(&mut self, segment: Batch, is_new: bool, elapsed: Duration) {
        if self.files.is_none() && self.writing.is_none() {
            return;
        }
        let turn = self.turns.clone().acquire_owned().await.expect("it is never closed");
        let (files, before) = (self.files.take(), self.writing.take());
        self.writing = Some(tokio::spawn(async move {
            let mut files = match before {
                Some(mut before) => written(&mut before).await?,
                None => files?,
            };
            let mut writing = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                files.segment(&segment, is_new, elapsed);
                Some(files)
            });
            written(&mut writing).await
        }));
    }

    /// A message cannot be read, and is put aside.
    pub async fn unreadable(&mut self, unreadable: &Unreadable) {
        tracing::error!(error = unreadable.reason, "a result message cannot be read and is put aside");
        if let Some(files) = self.files().await {
            files.unreadable(unreadable);
        }
    }

    /// Something the reducer decided.
    pub async fn decided(&mut self, message: &str) {
        if let Some(files) = self.files().await {
            files.master.line(message);
        }
    }

    /// Some time has passed: says how the job stands.
    pub async fn tick(&mut self, tally: &Tally, elapsed: Duration) {
        if let Some(files) = self.files().await {
            files.tick(tally, elapsed);
        }
        if let Some(upload) = &mut self.upload {
            upload.copy().await;
        }
    }

    /// Lets readers see what was written.
    pub async fn flush(&mut self) {
        if let Some(files) = self.files().await {
            files.flush();
        }
    }

    /// The reducer stops, and the job goes on.
    pub async fn left(&mut self, tally: &Tally, elapsed: Duration) {
        let Some(files) = self.files().await else { return };
        files.tick(tally, elapsed);
        let stopped = format!("The overviewer on {} stopped; the job goes on.", files.writer);
        files.overview_line(&stopped);
        files.flush();
        if let Some(upload) = &mut self.upload {
            upload.finish().await;
        }
    }

    /// The job has ended.
    pub async fn ended(&mut self, result: &JobResult, tally: &Tally, warnings: &[String]) {
        let Some(files) = self.files().await else { return };
        files.ended(result, tally);
        replace(&files.logs.join("job_result.txt"), &text::job_result(result, tally, warnings));
        if let Some(upload) = &mut self.upload {
            upload.finish().await;
        }
    }

    /// Whether another reducer's reports may have been replaced by those of this one.
    pub async fn may_have_replaced(&mut self) -> bool {
        match &mut self.upload {
            Some(upload) => upload.has_sent().await,
            None => false,
        }
    }

    /// Another reducer has ended the job, and copied its reports. A copy of this one, which knew less, may have come after
    /// it: what was copied from here is copied once more, now that everything is known.
    pub async fn ended_elsewhere(&mut self, result: &JobResult, tally: &Tally) {
        let Some(files) = self.files().await else { return };
        files.ended(result, tally);
        if let Some(upload) = &mut self.upload {
            upload.send_again().await;
        }
    }
}

/// Waits for what another thread writes.
async fn written(writing: &mut JoinHandle<Option<Files>>) -> Option<Files> {
    match writing.await {
        Ok(files) => files,
        // Only a runtime that ends cancels it.
        Err(error) => error.try_into_panic().map_or(None, |panic| resume_unwind(panic)),
    }
}

impl Files {
    fn new(logs: &Path, writer: &str) -> Self {
        let started = Utc::now();
        let stamp = stamp(started);
        let job_report = logs.join("sys/job_report");
        replace(&logs.join("readme.txt"), include_str!("readme.txt"));
        let mut metrics = ReportFile::create(logs.join(format!("sys/metrics/{stamp}/progress.csv")));
        metrics.write(
            "Datetime,Total Tasks,Scheduled Tasks,Completed Tasks,Failed Tasks,Elapsed Time,Estimated Remaining Time\n",
        );
        // The folder is there from the start: that it is empty is an answer.
        let unreadable = ReportFile::append(logs.join("sys/error/messages.txt"));
        Self {
            logs: logs.to_owned(),
            writer: writer.to_owned(),
            started,
            overview: ReportFile::append(overview_path(logs, started)),
            master: ReportFile::append(logs.join("sys/master_role.txt")),
            processed: Processed::create(job_report.join("processed_mini-batches.csv")),
            warnings: ReportFile::create(logs.join("sys/warning/mini-batch_warnings.txt")).capped(WARNINGS_BYTES_MAX),
            metrics,
            unreadable,
            unreadable_count: 0,
            summaries: Summaries::default(),
            ended_before: 0,
        }
    }

    fn segment(&mut self, segment: &Batch, is_new: bool, elapsed: Duration) {
        for record in segment.records() {
            match record.event {
                Event::Success(success) => self.row(&Row::of_success(success, record)),
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
                let (tasks, seconds) = (planned.mini_batches, elapsed.as_secs());
                let items = planned.items.map_or_else(String::new, |items| format!(" with {items} items"));
                self.overview_line(&format!(
                    "Scheduling finished. Scheduled {tasks} mini batches in {seconds} seconds. There are {tasks} \
                     tasks{items}."
                ));
            }
            ResultEvent::ProcessStarted { node, process, pid } => {
                self.master.line(&format!("{process} on node {node} started with process id {pid}."));
            }
            ResultEvent::ProcessReady { node, process, init_seconds } => {
                self.master.line(&format!("{process} on node {node} is ready after {init_seconds:.3} seconds."));
            }
            ResultEvent::ProcessEnded { node, process, return_code } => {
                self.master.line(&format!("{process} on node {node} exits with returncode {return_code}."));
            }
            ResultEvent::InitFailed { node, process, error } => {
                let message = one_line(&error.message);
                self.overview_line(&format!(
                    "{process} on node {node} failed before its first mini batch: {}: {message} Open logs/{}",
                    error.category, error.log
                ));
            }
            ResultEvent::NodeStopped { node, cause } => match cause {
                Some(cause) => self.overview_line(&format!("Node {node} stopped: {cause}")),
                None => self.master.line(&format!("Node {node} stopped: it had nothing more to do.")),
            },
            ResultEvent::Waiting(waiting) => {
                self.overview_line(&format!("Waiting for {}.", describe(waiting)));
                waiting.stack.lines().for_each(|line| self.master.line(line));
            }
            ResultEvent::PlanFailed { cause } => self.overview_line(&format!("Scheduling failed: {cause}")),
            ResultEvent::Reopened { .. } => self.overview_line("The job was opened again."),
            ResultEvent::RowsLost { mini_batches } => {
                let count = mini_batches.len();
                self.overview_line(&format!("The rows of {count} mini batches are gone; they run again."));
            }
            ResultEvent::Job { .. }
            | ResultEvent::Attempt(_)
            | ResultEvent::Ended { .. }
            | ResultEvent::CutShort
            | ResultEvent::Duplicates { .. } => {}
        }
    }

    fn row(&mut self, row: &Row<'_>) {
        let pid = self.summaries.attempt(row);
        self.processed.add(row, pid);
    }

    fn attempt(&mut self, attempt: &Attempt) {
        self.row(&attempt.into());
        for warning in &attempt.warnings {
            let message = warning.message.replace(['\n', '\r'], " ");
            let detail = one_line(&attempt.detail);
            self.warnings.write(&format!("mini-batch {} ({detail}): {message}\n", attempt.mini_batch));
        }
        let carried = attempt.warnings.len() as u64;
        if attempt.warnings_total > carried {
            let more = attempt.warnings_total - carried;
            self.warnings.write(&format!("mini-batch {}: {more} more warnings\n", attempt.mini_batch));
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
        self.unreadable.line(&format!("A result message of {} bytes cannot be read: {reason} ({kept})", bytes.len()));
        self.unreadable.flush();
    }

    fn overview_line(&mut self, message: &str) {
        self.overview.line(message);
        self.master.line(message);
    }

    fn tick(&mut self, tally: &Tally, elapsed: Duration) {
        let now = Utc::now();
        if now.date_naive() != self.started.date_naive() {
            self.started = now;
            self.overview.flush();
            self.overview = ReportFile::append(overview_path(&self.logs, now));
        }
        self.overview_line(&text::progress(self.ended_before, tally, elapsed));
        let total = tally.planned().map_or_else(|| "N/A".to_owned(), |planned| planned.mini_batches.to_string());
        let remaining = text::remaining(self.ended_before, tally, elapsed);
        let remaining = remaining.map_or_else(|| "N/A".to_owned(), text::duration);
        let (succeeded, failed) = (tally.mini_batches().succeeded, tally.mini_batches().failed);
        let (now, elapsed) = (timestamp(now), text::duration(elapsed));
        self.metrics.write(&format!("{now},{total},{total},{succeeded},{failed},{elapsed},{remaining}\n"));
        let job_report = self.logs.join("sys/job_report");
        replace(&job_report.join("process_summary.csv"), &self.summaries.process_csv());
        replace(&job_report.join("node_summary.csv"), &self.summaries.node_csv());
        replace(&self.logs.join("job_error.txt"), &text::job_error(tally.failures()));
        replace(&self.logs.join("user/error.txt"), &text::user_error(tally.failures()));
        self.flush();
    }

    /// How the job ended, in every report but the one that says only that.
    fn ended(&mut self, result: &JobResult, tally: &Tally) {
        let elapsed = Duration::try_from_secs_f64(result.elapsed_seconds).unwrap_or_default();
        self.tick(tally, elapsed);
        let cause = result.cause.as_ref().map_or_else(String::new, |cause| format!(" {cause}"));
        self.overview_line(&format!("The job ended: {:?}.{cause}", result.state));
        if let Some(given_up) = tally.failures().given_up_first().next() {
            let (id, log) = (given_up.mini_batch, &given_up.error.log);
            self.overview_line(&format!("The first failed mini batch is {id}. Start with logs/{log}"));
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

/// Sorts by time, and is a file name everywhere.
fn stamp(time: DateTime<Utc>) -> String {
    time.format("%Y%m%d%H%M%S").to_string()
}
