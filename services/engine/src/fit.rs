//! Checks whether this machine, or a worker of a target, meets the requirements of a job, and has
//! GPUs for its processes.

use std::collections::BTreeMap;

use job_file::{Parsed, Problem};
use protocol::{JobSpec, Requirements, WaitsFor};

use crate::words::counted;
use crate::{Blocker, Engine, Error, Events, Notice, Submission};

/// Warns if a job fits no worker of its target, or if no worker runs. Workers that start later may
/// differ, so this is not an error. `is_followed`: the caller will learn that no worker runs.
pub(crate) async fn warn_of_workers(submission: &Submission, is_followed: bool, events: &Events) {
    let Submission { spec, store, .. } = submission;
    match store.workers().await {
        Ok(workers) if workers.is_empty() && !is_followed => {
            let blocker = Blocker::Schedule(WaitsFor::Worker(spec.requires.clone()));
            events.notice(Notice::Waiting(submission.jobs().hint(&spec.job_id, blocker)));
        }
        Ok(workers) => {
            let unfit = spec.requires.unmet(&workers);
            unfit.into_iter().for_each(|unfit| events.notice(Notice::NoWorkerFits(unfit)));
        }
        Err(error) => tracing::debug!("cannot read the list of workers: {error:#}"),
    }
}

/// Returns the key with which a job asks for GPUs for each process, and how many GPUs a process needs.
fn gpu_key(spec: &JobSpec) -> Option<(&'static str, u32)> {
    match (spec.gpus_per_process, spec.process_count_per_gpu) {
        (Some(gpus), _) => Some(("gpus_per_process", gpus)),
        (None, Some(_)) => Some(("process_count_per_gpu", 1)),
        (None, None) => None,
    }
}

impl Engine {
    /// Returns a problem if this machine has too few GPUs for a single process of a job that asks for them.
    pub(crate) fn too_few_gpus(&self, parsed: &Parsed) -> Option<Problem> {
        self.lack_of_gpus(&parsed.spec).map(|(key, message)| parsed.problem(key, message))
    }

    /// Rejects a job that began elsewhere, or when this machine had more GPUs.
    pub(crate) fn check_gpus(&self, spec: &JobSpec) -> crate::Result<()> {
        let blocker = self.lack_of_gpus(spec);
        blocker.map_or(Ok(()), |(key, message)| Err(Error::Refused(format!("{key}: {message}"))))
    }

    fn lack_of_gpus(&self, spec: &JobSpec) -> Option<(&'static str, String)> {
        let (key, needed) = gpu_key(spec)?;
        let there = self.settings().gpus().count();
        let has = if there == 0 { "no GPU".to_owned() } else { counted(there.into(), "GPU") };
        let message = format!(
            "a process needs {}, and this machine has {has}; run the job on a machine that has enough, or lower or remove \
             the key",
            counted(needed.into(), "GPU")
        );
        (there < needed).then_some((key, message))
    }

    /// Warns if this machine does not meet the requirements of a job that runs here. It has no
    /// labels.
    pub(crate) fn warn_of_unfit_machine(&self, parsed: &mut Parsed, events: &Events) {
        let requires = Requirements { labels: BTreeMap::new(), ..parsed.spec.requires.clone() };
        if requires.is_empty() {
            return;
        }
        let gpus = self.settings().gpus().count();
        if let Some(lacks) = worker::offer(gpus, BTreeMap::new()).lacks(&requires) {
            let message = format!(
                "this machine does not meet it: {lacks}; the job runs here anyway, because `requires` selects the \
                 nodes of a compute target"
            );
            let warning = parsed.problem("requires", message);
            events.notice(Notice::Doubt(warning.clone()));
            parsed.warnings.push(warning);
        }
    }
}
