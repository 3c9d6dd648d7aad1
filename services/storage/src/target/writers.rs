//! Records the jobs that write an output: `writers/<digest of the output>/<job_id>`.
//!
//! The command that submits a job records the job, opens it, and then looks for other open jobs with such a record. So
//! of two jobs at least one finds the other, in any order.

use std::path::Path;

use protocol::{JobSpec, OutputAction, is_job_id};

use super::TargetStore;
use crate::{Result, real_path};

impl TargetStore {
    /// Records that a job writes its output. Jobs without a final file of rows record nothing.
    pub async fn put_writer(&self, spec: &JobSpec) -> Result<()> {
        for folder in folders_of(spec) {
            let output = spec.output.path().into_os_string().into_encoded_bytes();
            self.objects.put(&format!("{folder}/{}", spec.job_id), output).await?;
        }
        Ok(())
    }

    /// Returns the first of these jobs that has not ended.
    pub async fn first_open<'a>(&self, job_ids: &'a [String]) -> Result<Option<&'a String>> {
        for id in job_ids {
            // A reducer writes the result before it removes the marker.
            if self.is_open(id).await? && self.job(id).result().await?.is_none() {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Returns the other jobs that write the same output or have written it, in no order.
    pub async fn other_writers(&self, spec: &JobSpec) -> Result<Vec<String>> {
        let mut others = Vec::new();
        for folder in folders_of(spec) {
            let listed = self.objects.list(&folder).await?;
            let ids = listed.iter().filter_map(|meta| meta.location.filename());
            let of_others = ids.filter(|id| is_job_id(id) && **id != *spec.job_id);
            others.extend(of_others.map(str::to_owned));
        }
        Ok(others)
    }

    /// Removes the record of a job that is being removed. On a machine where links lead elsewhere, one may remain, and
    /// names no open job.
    pub(super) async fn delete_writer(&self, spec: &JobSpec) -> Result<()> {
        for folder in folders_of(spec) {
            self.objects.delete(&format!("{folder}/{}", spec.job_id)).await?;
        }
        Ok(())
    }
}

/// Returns the folders of the records of an output: that of its path, and that of the file to which links lead on this
/// machine, if it is another one.
fn folders_of(spec: &JobSpec) -> Vec<String> {
    if spec.output.action != OutputAction::AppendRow {
        return Vec::new();
    }
    let output = spec.output.path();
    let real = if spec.output.folder.is_url() { output.clone() } else { real_path(&output) };
    let folder = |output: &Path| {
        format!("writers/{}", &blake3::hash(output.as_os_str().as_encoded_bytes()).to_hex()[..32])
    };
    let mut folders = vec![folder(&output), folder(&real)];
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use protocol::{JobResult, JobState};

    use super::super::tests::targets;
    use super::*;

    /// Returns another job that writes the output of `spec` and has not ended.
    async fn other_writer(target: &TargetStore, spec: &JobSpec) -> Option<String> {
        let others = target.other_writers(spec).await.expect("readable");
        target.first_open(&others).await.expect("readable").cloned()
    }

    #[tokio::test]
    async fn open_job_with_the_same_output_is_found() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            let job = |job_id: &str, file_name: &str| {
                let mut spec = JobSpec { job_id: job_id.to_owned(), ..JobSpec::example() };
                spec.output.action = OutputAction::AppendRow;
                spec.output.file_name = file_name.to_owned();
                spec
            };
            let (one, same, other) =
                (job("one", "a.csv"), job("same", "a.csv"), job("other", "b.csv"));
            for spec in [&one, &same, &other] {
                assert_eq!(other_writer(&target, spec).await, None);
                target.put_writer(spec).await.expect("writable");
            }
            assert_eq!(target.other_writers(&same).await.expect("readable"), ["one"]);
            target.mark_open("one").await.expect("writable");
            assert_eq!(other_writer(&target, &same).await.as_deref(), Some("one"));
            for spec in [&one, &other] {
                assert_eq!(other_writer(&target, spec).await, None);
            }
            let result = JobResult::new("one".to_owned(), JobState::Completed, String::new());
            target.job("one").create_result(&result).await.expect("writable");
            assert_eq!(other_writer(&target, &same).await, None, "it has just ended");
            target.mark_ended("one").await.expect("writable");
            assert_eq!(other_writer(&target, &same).await, None);
            target.mark_open("one").await.expect("writable");
            target.delete_writer(&one).await.expect("writable");
            assert_eq!(other_writer(&target, &same).await, None);
        }
    }

    #[tokio::test]
    async fn paths_that_lead_to_one_file_are_one_output() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let [target, _] = targets(&folder.path().join("store")).await;
        std::fs::create_dir(folder.path().join("real")).expect("writable");
        std::os::unix::fs::symlink("real", folder.path().join("link")).expect("writable");
        let job = |job_id: &str, output: &str| {
            let mut spec = JobSpec { job_id: job_id.to_owned(), ..JobSpec::example() };
            spec.output.action = OutputAction::AppendRow;
            spec.output.folder = folder.path().join(output).into();
            spec
        };
        target.put_writer(&job("one", "real/new")).await.expect("writable");
        target.mark_open("one").await.expect("writable");
        for (output, expected) in [("link/new", Some("one")), ("real", None)] {
            let found = other_writer(&target, &job("two", output)).await;
            assert_eq!(found.as_deref(), expected, "{output}");
        }
    }
}
