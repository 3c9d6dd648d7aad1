//! Decides when the log reports failed starts of processes: each failure once, and none if it ends
//! the job at once, because the cause of the job repeats it. Pure.

use std::time::Duration;

use protocol::ResultEvent;
use tokio::time::Instant;

use crate::failures::error_sentence;

/// How long a failure is held back.
const PATIENCE: Duration = Duration::from_secs(1);
/// Failures that the log reports; further ones are in the log files of the job.
const REPORTED_MAX: usize = 50;

/// Failures of starts, and nodes that stopped by them.
#[derive(Debug, Default)]
pub(crate) struct FailedStarts {
    pending: Vec<(Instant, String)>,
    reported: Vec<String>,
}

impl FailedStarts {
    /// Notes an event that has just been committed.
    pub fn note(&mut self, event: &ResultEvent, now: Instant) {
        // Processes of one node fail alike.
        let (kind, line) = match event {
            ResultEvent::InitFailed { node, process, error } => {
                let line =
                    format!("init() failed in {process} on node {node}: {}", error_sentence(error));
                (format!("{node} {}: {}", error.category, error.message).replace(process, ""), line)
            }
            ResultEvent::NodeStopped { node, cause: Some(cause) } => {
                (format!("{node} {cause}"), format!("node {node} stopped: {cause}"))
            }
            _ => return,
        };
        if self.reported.len() < REPORTED_MAX && !self.reported.contains(&kind) {
            self.reported.push(kind);
            self.pending.push((now, line));
        }
    }

    /// Returns the failures to log now, one line each. `all`: also those that have just happened.
    pub fn due(&mut self, now: Instant, all: bool) -> Vec<String> {
        let is_due = |(noted, _): &mut (Instant, String)| {
            all || now.saturating_duration_since(*noted) >= PATIENCE
        };
        self.pending.extract_if(.., is_due).map(|(_, line)| line).collect()
    }
}

#[cfg(test)]
mod tests {
    use protocol::ErrorReport;

    use super::*;

    fn failed(process: &str, message: &str) -> ResultEvent {
        let error = ErrorReport {
            category: "ImportError".into(),
            message: message.into(),
            ..ErrorReport::default()
        };
        ResultEvent::InitFailed { node: "0".into(), process: process.into(), error: error.into() }
    }

    #[test]
    fn each_failure_is_reported_once_if_the_job_goes_on() {
        let (mut starts, began) = (FailedStarts::default(), Instant::now());
        for process in ["process000", "process001"] {
            starts.note(&failed(process, &format!("no module x in {process}")), began);
        }
        let stopped = ResultEvent::NodeStopped {
            node: "0".into(),
            cause: Some("the script cannot start".into()),
        };
        starts.note(&stopped, began);
        assert!(starts.due(began, false).is_empty(), "the job may end by them");
        let later = began + PATIENCE;
        starts.note(&failed("process000", "no module y"), later);
        let reported = starts.due(later, false);
        let expected =
            "init() failed in process000 on node 0: ImportError: no module x in process000.";
        assert_eq!(reported, [expected, "node 0 stopped: the script cannot start"]);
        assert_eq!(starts.due(later, true).len(), 1, "the job ends for another reason");
        starts.note(&failed("process002", "no module x in process002"), later);
        assert!(starts.due(later + PATIENCE, true).is_empty());
    }
}
