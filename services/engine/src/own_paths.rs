//! `{run-id}` in the paths that a job writes stands for its id, so that each run has folders of its own.
//!
//! The fingerprint contains the word, not the id: a later run finds the job, and reuses its result.

use job_file::RUN_ID;
use protocol::{ItemPath, JobSpec};

/// Replaces the word in the outputs of a job that has its id, and wherever the job passes these paths on.
pub fn own_paths(spec: &mut JobSpec) {
    let own = |path: &ItemPath, id: &str| path.display().replace(RUN_ID, id);
    let id = spec.job_id.clone();
    let paths = spec.outputs.values_mut().chain([&mut spec.output.folder]);
    let mut changed: Vec<(String, String)> = Vec::new();
    for path in paths.filter(|path| path.display().contains(RUN_ID)) {
        let (before, after) = (path.display(), own(path, &id));
        *path = ItemPath::from(after.as_str());
        changed.push((before, after));
    }
    for text in spec.argv.iter_mut().chain(spec.environment_variables.values_mut()) {
        for (before, after) in &changed {
            *text = text.replace(before, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_has_its_own_paths() {
        let mut spec = JobSpec { job_id: "rate-1".to_owned(), ..JobSpec::example() };
        spec.output.folder = ItemPath::from("/out/{run-id}/rows");
        spec.outputs.insert("more".to_owned(), ItemPath::from("s3://b/{run-id}"));
        spec.argv = ["--to", "/out/{run-id}/rows/x", "--word", "{run-id}"].map(str::to_owned).to_vec();
        spec.environment_variables.insert("MORE".to_owned(), "s3://b/{run-id}/".to_owned());
        own_paths(&mut spec);
        assert_eq!(spec.output.folder.display(), "/out/rate-1/rows");
        assert_eq!(spec.outputs["more"].display(), "s3://b/rate-1");
        assert_eq!(spec.argv, ["--to", "/out/rate-1/rows/x", "--word", "{run-id}"]);
        assert_eq!(spec.environment_variables["MORE"], "s3://b/rate-1/");
    }
}
