//! Whether the workers of the target take the job, while none works on it.

use std::time::Duration;

use protocol::Unfit;
use tokio::time::Instant;

use crate::Reducer;
use crate::presence::Moment;

/// From one reading of the list of workers to the next.
const READ_EVERY: Duration = Duration::from_secs(30);

/// What the list of workers said last.
#[derive(Debug, Default)]
pub(crate) struct Fit {
    pub unfit: Option<Unfit>,
    read_at: Option<Instant>,
}

impl Reducer {
    /// Reads what the workers offer, if the job has requirements and no worker works on it.
    pub(crate) async fn look_for_fit(&mut self) {
        let Some(target) = self.options.target.as_ref().filter(|_| !self.spec.requires.is_empty()) else { return };
        let presence = &self.judge.presence;
        if presence.has_heard() && !presence.is_silent(Moment::now()) {
            self.fit = Fit::default();
            return;
        }
        if self.fit.read_at.is_some_and(|at| at.elapsed() < READ_EVERY) {
            return;
        }
        match target.workers().await {
            Ok(workers) => self.fit.unfit = self.spec.requires.unmet(&workers),
            Err(error) => {
                tracing::debug!(error = %format!("{error:#}"), "cannot read the list of workers, trying again later")
            }
        }
        self.fit.read_at = Some(Instant::now());
    }
}
