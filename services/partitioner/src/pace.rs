//! Decides how many mini-batches travel in one message of the task queue.
//!
//! A message costs as much time as a quick mini-batch, so quick mini-batches travel together. If their worker dies, the
//! finished ones run again, so they must not take long together. A job without `speculation`, which may not run a
//! mini-batch twice at a time, sends each alone. The progress of the job says how long runs take, once workers have
//! begun.

use std::time::Duration;

use protocol::JobSpec;
use queue::Queue;
use storage::JobStore;
use tokio::time::Instant;

/// Maximum work of the mini-batches in one message, in seconds of one process.
const SECONDS_MAX: f64 = 0.2;
/// Time between two looks at the progress of the job.
const LOOK: Duration = Duration::from_millis(500);

/// The run times of a job, as far as its partitioner knows them.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Maximum number of mini-batches that the queue can send together.
    limit: usize,
    /// Number of mini-batches that travel together now.
    now: usize,
    /// Time of the next look at the progress.
    look_at: Instant,
}

impl Pace {
    pub(crate) fn new(spec: &JobSpec, tasks: &dyn Queue) -> Self {
        let limit = if spec.speculation { tasks.limits().bundle_max } else { 1 };
        Self { limit, now: 1, look_at: Instant::now() }
    }

    /// Returns the number of mini-batches that may travel together now.
    pub(crate) async fn together(&mut self, store: &JobStore) -> usize {
        if self.limit > 1 && self.look_at <= Instant::now() {
            self.look_at = Instant::now() + LOOK;
            // The number stays if the store does not answer.
            if let Ok(Some(progress)) = store.progress().await {
                self.now = together(progress.run_seconds, self.limit);
            }
        }
        self.now
    }
}

fn together(run_seconds: Option<f64>, limit: usize) -> usize {
    run_seconds.map_or(1, |seconds| (SECONDS_MAX / seconds.max(1e-9)) as usize).clamp(1, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_quick_mini_batches_travel_together() {
        assert_eq!(together(None, 64), 1, "before anything is known");
        assert_eq!(together(Some(3.0), 64), 1);
        assert_eq!(together(Some(0.2), 64), 1);
        assert_eq!(together(Some(0.02), 64), 10);
        assert_eq!(together(Some(0.0), 64), 64);
        assert_eq!(together(Some(f64::NAN), 64), 64);
    }
}
