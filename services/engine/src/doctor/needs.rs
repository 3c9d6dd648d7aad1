//! The needs of jobs from a queue, in numbers.

use std::time::Duration;

use protocol::JobSpec;

use super::{CheckState, Report};
use crate::Remedy;
use crate::words::duration;

const LOST_DELIVERY_MAX: u32 = 10;
/// The agent acts before the queue does.
const MARGIN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Needs {
    /// Longest time from delivery to acknowledgement; `None`: unknown without a job.
    pub held: Option<Duration>,
    /// Deliveries of one message that must be possible.
    pub deliveries: u32,
    /// How long a message must be kept.
    pub retention: Duration,
}

impl Needs {
    pub fn new(spec: Option<&JobSpec>, job_length: Duration) -> Self {
        let held = spec.map(|spec| {
            // A mini-batch may wait for the one before it.
            let one = spec.run_invocation_timeout_seconds + spec.task_overhead_timeout_seconds;
            Duration::from_secs(2 * one) + MARGIN
        });
        let lost = spec.map_or(LOST_DELIVERY_MAX, |spec| spec.lost_delivery_max);
        Self { held, deliveries: lost + 1, retention: job_length.max(held.unwrap_or_default()) }
    }

    /// Compares how long a job holds a message with what a broker allows; `limit`: the same, for people. Returns that time
    /// if it is too long.
    pub fn judge_hold(
        &self,
        allowed: Duration,
        limit: &str,
        check: &str,
        report: &mut Report,
    ) -> Option<Duration> {
        let Some(held) = self.held else {
            report.add(check, CheckState::Ok, limit, Remedy::CheckForJob);
            return None;
        };
        if held > allowed {
            return Some(held);
        }
        let longest = duration(held.as_secs_f64());
        report.ok(check, format!("{limit}; the job holds a message for {longest} at most"));
        None
    }

    /// Compares how long a broker keeps messages with the longest job.
    pub fn judge_retention(&self, kept: Duration, broker: &str, fix: &str, report: &mut Report) {
        let (shown, needed) =
            (duration(kept.as_secs_f64()), duration(self.retention.as_secs_f64()));
        let message =
            format!("{broker} drops messages after {shown}, and a job may take {needed}; {fix}");
        match kept < self.retention {
            true => report.failed("tasks of a job, retention", message),
            false => report.ok("tasks of a job, retention", shown),
        }
    }
}
