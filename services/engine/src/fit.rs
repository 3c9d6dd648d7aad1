//! Whether this machine, or a worker of a target, has what a job requires.

use std::collections::BTreeMap;

use job_file::Parsed;
use protocol::{JobSpec, Requirements};
use storage::TargetStore;

use crate::{Engine, Events, Notice, TargetRef};

/// Compares the workers of a target with the requirements of a job. Workers that come later may differ, so this is no error.
pub(crate) async fn warn_of_unfit_workers(spec: &JobSpec, store: &TargetStore, target: TargetRef, events: &Events) {
    if spec.requires.is_empty() {
        return;
    }
    match store.workers().await {
        Ok(workers) => {
            let unfit = spec.requires.unmet(&workers);
            unfit.into_iter().for_each(|unfit| events.notice(Notice::NoWorkerFits { unfit, target: target.clone() }));
        }
        Err(error) => tracing::debug!("cannot read the list of workers: {error:#}"),
    }
}

impl Engine {
    /// Says so if this machine has less than a job requires that runs here. It has no labels.
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
