//! Changes the priority of a job that has not ended.

use anyhow::Result;
use protocol::Priority;

use crate::{Error, Fixable, FoundJob, Jobs, Purpose, Remedy, State};

/// The effect of a change of priority.
#[derive(Debug)]
pub struct Reprioritised {
    /// The job.
    pub job_id: String,
    /// Its priority before.
    pub before: Priority,
}

impl FoundJob {
    /// Returns the person or team that the job counts for.
    pub fn owner(&self) -> Option<String> {
        Some(self.spec.owner.clone()).filter(|owner| !owner.is_empty())
    }

    /// Returns the priority that the job has now.
    pub async fn priority(&self) -> Result<Priority> {
        Ok(self.store.changed_priority().await?.unwrap_or(self.spec.priority))
    }
}

impl Jobs {
    /// Changes the priority of a job; `wanted`: its id, the beginning of its id, or its name. The change takes effect
    /// with the next schedule.
    pub async fn change_priority(
        &self,
        wanted: &str,
        priority: Priority,
    ) -> crate::Result<Reprioritised> {
        let job = self.find(wanted, Purpose::Change).await?;
        let job_id = job.spec.job_id.clone();
        if let Some(result) = &job.result {
            let state = State::from(result.state).word();
            return Err(Error::Refused(format!(
                "job {job_id} has ended ({state}), so its priority cannot be changed"
            )));
        }
        let Self::There { store, .. } = self else {
            let problem = format!(
                "job {job_id} runs on this machine, where a job has its own workers and `priority` has no effect; it divides \
                 the workers of a compute target"
            );
            return Err(Fixable::error(problem, Remedy::NameTarget { without_file: false }).into());
        };
        let before = job.priority().await?;
        if before != priority {
            job.store.put_priority(priority).await?;
            // Reducers read the priority again once the marker of the job is new.
            store.mark_open(&job_id).await?;
        }
        Ok(Reprioritised { job_id, before })
    }
}

#[cfg(test)]
mod tests {
    use protocol::{JobResult, JobSpec, JobState};
    use storage::{StoreOptions, TargetStore};

    use super::*;
    use crate::TargetRef;

    #[tokio::test]
    async fn priority_of_an_ended_job_cannot_be_changed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let url = url::Url::from_file_path(folder.path()).expect("absolute");
        let store =
            TargetStore::open(url.as_str(), StoreOptions::default()).await.expect("writable");
        store.create().expect("writable");
        let job_id = "a-20261121-100203-ab12";
        let job = store.job(job_id);
        job.put_spec(&JobSpec { job_id: job_id.to_owned(), ..JobSpec::example() })
            .await
            .expect("writable");
        store.mark_open(job_id).await.expect("writable");
        let jobs = Jobs::There { target: TargetRef::Named("t".to_owned()), store: store.clone() };
        assert_eq!(
            jobs.change_priority("a", Priority::High).await.expect("open").before,
            Priority::Normal
        );
        assert_eq!(
            jobs.change_priority("a", Priority::Low).await.expect("open").before,
            Priority::High
        );
        job.create_result(&JobResult::new(job_id.to_owned(), JobState::Completed, String::new()))
            .await
            .expect("new");
        let error = jobs.change_priority("a", Priority::High).await.expect_err("it has ended");
        let expected =
            "job a-20261121-100203-ab12 has ended (completed), so its priority cannot be changed";
        assert_eq!(error.to_string(), expected);
        assert_eq!(job.changed_priority().await.expect("readable"), Some(Priority::Low));
    }
}
