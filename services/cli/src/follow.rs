//! Plans a job of a compute target, and follows it: `enqueue`, and `retry` there.

use anyhow::Result;
use engine::targets::Target;
use engine::words::counted;
use engine::{Event, Events, FollowEnd, PlannedJob, Submission, follow};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::outcome::report;
use crate::{Exit, Show, remedies};

/// The way in which a command follows a job.
pub struct FollowMode {
    pub wait: bool,
    pub json: bool,
    pub stopped: CancellationToken,
}

impl FollowMode {
    /// Prints the id of a job, plans the job, and follows it if requested.
    pub async fn plan_and_follow(
        &self,
        submission: &Submission,
        target: &Target,
        events: Events,
        show: Show,
    ) -> Result<Exit> {
        self.print_id(submission, target, &events);
        let job_id = submission.job_id();
        let planned = tokio::select! {
            planned = submission.plan() => planned?,
            () = self.stopped.cancelled() => {
                let message = remedies::after(&format!("job {job_id} is partly planned"), Some(&submission.remedy()));
                return Ok(Exit::NotEnded.because(&message, self.json));
            }
        };
        submission.queues.close().await;
        match planned {
            PlannedJob::All(plan) if !self.wait => {
                let (mini_batches, files) =
                    (counted(plan.mini_batches, "mini-batch"), counted(plan.files, "file"));
                show.finish(events).await;
                say!(note, "planned: {mini_batches} of {files}");
                return Ok(Exit::Done);
            }
            PlannedJob::Never(cause) if !self.wait => {
                show.finish(events).await;
                return Ok(Exit::Failed.because(&format!("job {job_id} fails: {cause}"), self.json));
            }
            // The reducer reports the same.
            PlannedJob::All(_) | PlannedJob::Never(_) => {}
        }
        self.follow_to_end(submission, target, events, show).await
    }

    /// Prints the id of a job that is planned, and follows it if requested.
    pub async fn follow(
        &self,
        submission: &Submission,
        target: &Target,
        events: Events,
        show: Show,
    ) -> Result<Exit> {
        self.print_id(submission, target, &events);
        if !self.wait {
            show.finish(events).await;
            return Ok(Exit::Done);
        }
        self.follow_to_end(submission, target, events, show).await
    }

    fn print_id(&self, submission: &Submission, target: &Target, events: &Events) {
        let job_id = submission.job_id();
        match (self.wait, self.json) {
            (true, _) => events.send(Event::Job(job_id.to_owned())),
            (false, true) => say!(out, "{}", json!({ "job_id": job_id, "target": target.name })),
            (false, false) => say!(out, "{job_id}"),
        }
    }

    async fn follow_to_end(
        &self,
        submission: &Submission,
        target: &Target,
        events: Events,
        show: Show,
    ) -> Result<Exit> {
        let job_id = submission.job_id();
        let followed =
            follow(&submission.jobs(), job_id, &Notify::new(), &self.stopped, &events).await;
        show.finish(events).await;
        match followed? {
            FollowEnd::Ended(result) => Ok(report(&result, self.json, &target.reference())),
            FollowEnd::Stopped | FollowEnd::Interrupted => {
                let flags = remedies::flags(&target.reference());
                let message = format!(
                    "job {job_id} continues; `gristmill status {job_id}{flags}` shows its progress, `gristmill cancel` \
                     stops it"
                );
                Ok(Exit::NotEnded.because(&message, self.json))
            }
        }
    }
}
