//! Metrics of announcements, updated once for each round, because a round may hold hundreds of mini-batches that took
//! microseconds each.

use protocol::{Attempt, AttemptStatus, Rows};
use telemetry::metrics;
use telemetry::metrics::{DESTINATION, ERROR, OPERATION, OUTCOME, TASKS};

/// Attempts of one round, by how they ended.
#[derive(Debug, Default)]
pub struct Counts {
    attempts: Vec<(AttemptStatus, Vec<f64>)>,
    items_succeeded: u64,
    items_failed: u64,
    row_bytes: u64,
}

impl Counts {
    /// Adds an attempt, and the size of its inline rows.
    pub fn add(&mut self, attempt: &Attempt, inline_bytes: u64) {
        let known = self.attempts.iter().position(|(status, _)| *status == attempt.status);
        let index = known.unwrap_or_else(|| {
            self.attempts.push((attempt.status, Vec::new()));
            self.attempts.len() - 1
        });
        self.attempts[index].1.push(attempt.elapsed_seconds);
        self.items_succeeded += attempt.succeeded;
        self.items_failed += attempt.failed();
        self.row_bytes += match &attempt.rows {
            Rows::Part { bytes, .. } => *bytes,
            Rows::Inline | Rows::None => inline_bytes,
        };
    }

    /// Updates the metrics after the round was announced.
    pub fn record(self) {
        let metrics = metrics();
        for (status, seconds) in &self.attempts {
            let error = if *status == AttemptStatus::Succeeded { "" } else { status.word() };
            let labels = [(DESTINATION, TASKS), (OPERATION, "process"), (ERROR, error)];
            let histogram = metrics.process_seconds.get_or_create_owned(&labels);
            seconds.iter().for_each(|seconds| histogram.observe(*seconds));
            metrics
                .attempts
                .get_or_create(&[(OUTCOME, status.word())])
                .inc_by(seconds.len() as u64);
        }
        metrics.items.get_or_create(&[(OUTCOME, "succeeded")]).inc_by(self.items_succeeded);
        metrics.items.get_or_create(&[(OUTCOME, "failed")]).inc_by(self.items_failed);
        metrics.row_bytes.inc_by(self.row_bytes);
        if !self.attempts.is_empty() {
            metrics.progressed();
        }
    }
}
