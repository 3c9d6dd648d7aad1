//! Plans a job of a compute target, and follows it: `enqueue`, and `retry` there.

use anyhow::Result;
use engine::words::counted;
use engine::{Event, Events, FollowEnd, PlannedJob, Submission, follow};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::outcome::report;
use crate::{Exit, Show, remedies};

/// A job of a target that a command follows.
pub struct Followed<'a> {
    pub submission: &'a Submission,
    pub wait: bool,
    pub json: bool,
    pub stopped: CancellationToken,
    pub events: Events,
    pub show: Show,
}

impl Followed<'_> {
    /// Prints the id of the job, plans the job, and follows it if requested.
    pub async fn plan_and_follow(self) -> Result<Exit> {
        self.print_id();
        let job_id = self.submission.job_id();
        let planned = tokio::select! {
            planned = self.submission.plan() => planned?,
            () = self.stopped.cancelled() => {
                let (planned, remedy) =
                    (format!("job {job_id} is partly planned"), self.submission.remedy());
                let message = remedies::after(&planned, Some(&remedy));
                return Ok(Exit::NotEnded.because(&message, self.json));
            }
        };
        self.submission.queues.close().await;
        match planned {
            PlannedJob::All(plan) if !self.wait => {
                let (mini_batches, files) =
                    (counted(plan.mini_batches, "mini-batch"), counted(plan.files, "file"));
                self.show.finish(self.events).await;
                say!(note, "planned: {mini_batches} of {files}");
                Ok(Exit::Done)
            }
            PlannedJob::Never(cause) if !self.wait => {
                self.show.finish(self.events).await;
                Ok(Exit::Failed.because(&format!("job {job_id} fails: {cause}"), self.json))
            }
            // The reducer reports the same.
            PlannedJob::All(_) | PlannedJob::Never(_) => self.follow_to_end().await,
        }
    }

    /// Prints the id of the job, which is planned, and follows it if requested.
    pub async fn follow(self) -> Result<Exit> {
        self.print_id();
        if self.wait {
            return self.follow_to_end().await;
        }
        self.show.finish(self.events).await;
        Ok(Exit::Done)
    }

    fn print_id(&self) {
        let job_id = self.submission.job_id();
        match (self.wait, self.json) {
            (true, _) => self.events.send(Event::Job(job_id.to_owned())),
            (false, true) => {
                let target = &self.submission.target.name;
                say!(out, "{}", json!({ "job_id": job_id, "target": target }));
            }
            (false, false) => say!(out, "{job_id}"),
        }
    }

    async fn follow_to_end(self) -> Result<Exit> {
        let (job_id, target) = (self.submission.job_id(), self.submission.target.reference());
        let (jobs, never) = (self.submission.jobs(), Notify::new());
        let followed = follow(&jobs, job_id, &never, &self.stopped, &self.events).await;
        self.show.finish(self.events).await;
        match followed? {
            FollowEnd::Ended(result) => Ok(report(&result, self.json, &target)),
            FollowEnd::Stopped | FollowEnd::Interrupted => {
                let flags = remedies::flags(&target);
                let message = format!(
                    "job {job_id} continues; `gristmill status {job_id}{flags}` shows its progress, `gristmill cancel` \
                     stops it"
                );
                Ok(Exit::NotEnded.because(&message, self.json))
            }
        }
    }
}
