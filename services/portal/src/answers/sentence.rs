//! Describes the status of a job in one sentence.

use engine::words::{clause, counted, duration, sentence as ended, took};
use engine::{State, StatusDocument};
use protocol::Counts;
use serde::Serialize;

/// The numbers of a job at one time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct JobNumbers {
    pub elapsed_seconds: Option<f64>,
    /// The part of it in which a worker was there.
    pub worked_seconds: Option<f64>,
    pub eta_seconds: Option<f64>,
    pub mini_batches: Counts,
    pub items: Counts,
    pub retrying: u64,
}

pub fn sentence(status: &StatusDocument, moment: &JobNumbers) -> String {
    let word = capitalised(status.state.word());
    let time = moment
        .elapsed_seconds
        .map(|elapsed| took(elapsed, moment.worked_seconds.unwrap_or(elapsed)));
    let after = time.as_ref().map_or_else(|| word.clone(), |time| format!("{word} after {time}"));
    let cause = status.result.as_ref().and_then(|result| result.cause.as_deref());
    let counts = counts(moment);
    let hint = status.hint.as_deref();
    match status.state {
        State::Completed => {
            let word = time.map_or(word, |time| format!("Completed in {time}"));
            let headline = status.result.as_ref().and_then(|result| result.headline.as_deref());
            match headline {
                Some(headline) => {
                    let failures =
                        headline.strip_prefix("completed with failures: ").unwrap_or(headline);
                    ended(&format!("{word} with failures: {failures}"))
                }
                None => format!(
                    "{word}: {} succeeded.",
                    counted(moment.mini_batches.succeeded, "mini-batch")
                ),
            }
        }
        State::Failed => {
            let text = ended(&format!("{after}: {}", cause.unwrap_or("the cause is unknown")));
            // An exceeded limit alone is not a cause.
            let first =
                status.result.as_ref().and_then(|result| result.failed_mini_batches.first());
            match first.map(|first| clause(&first.error)).filter(|error| !text.contains(error)) {
                Some(error) => format!("{text} {}", ended(error)),
                None => text,
            }
        }
        State::Canceled => {
            ended(&format!("{after}: {}; {counts}", clause(cause.unwrap_or("by a request"))))
        }
        State::Interrupted => {
            ended(&format!("{after}, with {counts}: {}", hint.unwrap_or("its process has ended")))
        }
        State::Running => {
            let running = time.map_or(word, |time| format!("Running for {time}"));
            let left = moment
                .eta_seconds
                .map_or_else(String::new, |left| format!("; about {} left", duration(left)));
            let progress = status.progress.as_ref();
            let step = progress.and_then(|progress| progress.step.as_deref());
            let step = step.map_or_else(String::new, |step| format!("; {step}"));
            let planning = if progress.is_some_and(|progress| !progress.planned) {
                "; not all are planned yet"
            } else {
                ""
            };
            let waiting = progress.and_then(|progress| progress.waiting.first());
            let waiting =
                waiting.map_or_else(String::new, |waiting| format!(" It waits for {waiting}."));
            format!("{running}: {counts}{planning}{left}{step}.{waiting}")
        }
        State::Queued | State::Waiting | State::Canceling => match hint {
            Some(hint) => ended(&format!("{word}, with {counts}: {hint}")),
            None => format!("{word}: {counts}."),
        },
        State::Damaged => "Damaged: its files cannot be read.".to_owned(),
    }
}

fn counts(moment: &JobNumbers) -> String {
    let Counts { total, succeeded, failed } = moment.mini_batches;
    let of = match total {
        0 => counted(succeeded, "mini-batch"),
        total => format!("{succeeded} of {}", counted(total, "mini-batch")),
    };
    let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    let retrying = match moment.retrying {
        0 => String::new(),
        retrying => format!(", {retrying} to be tried again"),
    };
    format!("{of} succeeded{failed}{retrying}")
}

fn capitalised(word: &str) -> String {
    let mut characters = word.chars();
    characters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

#[cfg(test)]
mod tests {
    use protocol::{FailedMiniBatch, JobResult, JobState};
    use reducer::Reducer;

    use super::*;
    use crate::fixtures;

    fn status(state: State, hint: Option<&str>) -> StatusDocument {
        let progress = Some(protocol::Progress { planned: true, ..Reducer::no_progress() });
        let hint = hint.map(str::to_owned);
        StatusDocument {
            state,
            hint,
            progress,
            ..fixtures::status("a").document(|_| String::new())
        }
    }

    fn moment() -> JobNumbers {
        let mini_batches = Counts { total: 20, succeeded: 3, failed: 1 };
        JobNumbers {
            elapsed_seconds: Some(75.0),
            worked_seconds: Some(75.0),
            eta_seconds: Some(400.0),
            mini_batches,
            ..JobNumbers::default()
        }
    }

    #[test]
    fn running_job_has_counts_and_time_left() {
        let text = sentence(&status(State::Running, None), &moment());
        let expected = "Running for 1 min 15 s: 3 of 20 mini-batches succeeded, 1 failed; about 6 min 40 s left.";
        assert_eq!(text, expected);
        let mut planning = status(State::Running, None);
        planning.progress.as_mut().expect("progress").planned = false;
        assert!(
            sentence(&planning, &moment()).contains("1 failed; not all are planned yet; about")
        );
    }

    #[test]
    fn failed_job_has_its_cause() {
        let cause =
            "The number of failed items is 11, which exceeds error threshold 10.".to_owned();
        let result = JobResult::new("a".into(), JobState::Failed, String::new());
        let mut failed = StatusDocument {
            result: Some(JobResult { cause: Some(cause), ..result }),
            ..status(State::Failed, None)
        };
        let expected = "Failed after 1 min 15 s: The number of failed items is 11, which exceeds error threshold 10.";
        assert_eq!(sentence(&failed, &moment()), expected);
        let first = FailedMiniBatch {
            mini_batch: 7,
            detail: "/in/7".into(),
            error: "ValueError: bad".into(),
            log: String::new(),
            printed: String::new(),
        };
        failed.result.as_mut().expect("a result").failed_mini_batches = vec![first];
        assert_eq!(sentence(&failed, &moment()), format!("{expected} ValueError: bad."));
    }

    #[test]
    fn waiting_job_names_its_blocker() {
        let text = sentence(&status(State::Queued, Some("no worker has started")), &moment());
        assert_eq!(
            text,
            "Queued, with 3 of 20 mini-batches succeeded, 1 failed: no worker has started."
        );
        let text = sentence(&status(State::Interrupted, None), &JobNumbers::default());
        assert_eq!(text, "Interrupted, with 0 mini-batches succeeded: its process has ended.");
    }
}
