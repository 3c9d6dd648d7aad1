//! Builds result messages of at most the size that the queue carries.
//!
//! A message begins with a record that names its job, so that a dead letter tells where it belongs.

use bytes::Bytes;
use protocol::{Attempt, ErrorReport, Rejected, ResultEvent, begin_message, encode_record};
use queue::Message;

/// Rows up to this size travel inside the result message.
const INLINE_ROWS_BYTES_MAX: usize = 64 * 1024;
/// A message is closed when it has reached this size: larger ones save few calls.
const MESSAGE_BYTES_FULL: usize = 128 * 1024;
/// Bytes that are kept of each text in an event that is too large.
const CUT_BYTES: usize = 1024;
/// Bytes that are kept of each text of a rejected item in such an event.
const CUT_REJECTED_BYTES: usize = 100;
/// Warnings that are kept of such an event.
const CUT_WARNINGS: usize = 2;

/// Returns the size of the largest rows that travel inside a message, for a queue that carries `message_bytes_max`.
pub fn inline_rows_bytes_max(message_bytes_max: usize) -> usize {
    INLINE_ROWS_BYTES_MAX.min(message_bytes_max / 4)
}

pub struct Messages {
    /// The first record of each message.
    begin: Vec<u8>,
    bytes_max: usize,
    full: Vec<Bytes>,
    current: Vec<u8>,
    record: Vec<u8>,
}

impl Messages {
    /// Creates an empty list. `bytes_max` is the largest message of the queue.
    pub fn new(job_id: &str, bytes_max: usize) -> Self {
        let begin = begin_message(job_id);
        Self { begin, bytes_max, full: Vec::new(), current: Vec::new(), record: Vec::new() }
    }

    /// Adds an event. Cuts its texts if it would not fit into a message of its own.
    pub fn push(&mut self, event: &ResultEvent, rows: &[u8]) {
        self.record.clear();
        encode_record(event, rows, &mut self.record);
        if self.begin.len() + self.record.len() > self.bytes_max {
            self.record.clear();
            encode_record(&cut(event.clone()), rows, &mut self.record);
        }
        if self.current.len() + self.record.len() > self.bytes_max {
            self.close();
        }
        if self.current.is_empty() {
            self.current.extend_from_slice(&self.begin);
        }
        self.current.extend_from_slice(&self.record);
        if self.current.len() >= MESSAGE_BYTES_FULL {
            self.close();
        }
    }

    fn close(&mut self) {
        if !self.current.is_empty() {
            self.full.push(std::mem::take(&mut self.current).into());
        }
    }

    pub fn finish(mut self) -> Vec<Message> {
        self.close();
        self.full.into_iter().map(Message::new).collect()
    }
}

fn cut(event: ResultEvent) -> ResultEvent {
    match event {
        ResultEvent::Attempt(mut attempt) => {
            let Attempt { error, warnings, warning_kinds, detail, values, rejected, .. } =
                &mut *attempt;
            if let Some(error) = error {
                cut_error(error);
            }
            warnings.truncate(CUT_WARNINGS);
            warning_kinds.truncate(CUT_WARNINGS);
            warnings.iter_mut().for_each(|warning| cut_text(&mut warning.message));
            cut_text(detail);
            values.clear();
            for Rejected { detail, values, error, .. } in rejected {
                values.clear();
                let ErrorReport { category, message, traceback, log, printed } = error;
                [detail, category, message]
                    .into_iter()
                    .for_each(|text| cut_to(CUT_REJECTED_BYTES, text));
                [traceback, log, printed].into_iter().for_each(String::clear);
            }
            ResultEvent::Attempt(attempt)
        }
        ResultEvent::InitFailed { node, process, mut error } => {
            cut_error(&mut error);
            ResultEvent::InitFailed { node, process, error }
        }
        ResultEvent::NodeStopped { node, mut cause } => {
            cause.iter_mut().for_each(cut_text);
            ResultEvent::NodeStopped { node, cause }
        }
        ResultEvent::Waiting(mut waiting) => {
            cut_text(&mut waiting.stack);
            ResultEvent::Waiting(waiting)
        }
        other => other,
    }
}

fn cut_error(error: &mut ErrorReport) {
    cut_text(&mut error.message);
    cut_text(&mut error.traceback);
}

fn cut_to(bytes: usize, text: &mut String) {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push('…');
    }
}

fn cut_text(text: &mut String) {
    if text.len() > CUT_BYTES {
        text.truncate(text.floor_char_boundary(CUT_BYTES));
        text.push_str(" … (cut: too large for the queue)");
    }
}

#[cfg(test)]
mod tests {
    use protocol::{AttemptStatus, REJECTED_MAX, decode_records, job_of_message};

    use super::*;
    use crate::scheduler::{conclude, tests};

    fn init_failed(bytes: usize) -> ResultEvent {
        let error = ErrorReport { traceback: "ü".repeat(bytes / 2), ..ErrorReport::default() };
        ResultEvent::InitFailed {
            node: "0".into(),
            process: "process000".into(),
            error: error.into(),
        }
    }

    #[test]
    fn message_is_never_larger_than_the_queue_carries() {
        let mut messages = Messages::new("job", 8000);
        let sizes = [3000, 3000, 3000, 7000, 20_000, 10];
        sizes.iter().for_each(|bytes| messages.push(&init_failed(*bytes), b"rows"));
        let messages = messages.finish();
        assert!(messages.iter().all(|message| message.body.len() <= 8000));
        assert!(
            messages
                .iter()
                .all(|message| job_of_message(&message.body).is_ok_and(|job_id| job_id == "job"))
        );
        let records = messages.iter().flat_map(|message| decode_records(&message.body).skip(1));
        let texts: Vec<usize> = records
            .map(|record| match record.expect("readable").event {
                ResultEvent::InitFailed { error, .. } => error.traceback.len(),
                other => panic!("not what was sent: {other:?}"),
            })
            .collect();
        assert_eq!(texts[..4], [3000, 3000, 3000, 7000]);
        assert!((CUT_BYTES..CUT_BYTES + 100).contains(&texts[4]), "{texts:?}");
        assert_eq!(texts[5], 10);
    }

    #[test]
    fn rejected_items_fit_into_one_message() {
        let error = ErrorReport {
            message: "m".repeat(400),
            traceback: "t".repeat(2000),
            ..ErrorReport::default()
        };
        let rejected = Rejected {
            item: 1,
            items: 1,
            detail: "d".repeat(400),
            values: "v".repeat(400),
            status: AttemptStatus::RunRaised,
            error,
            run: None,
        };
        let now = tests::moment();
        let attempted = tests::attempted(tests::descriptor(0, protocol::Work::Rank), now);
        let ending = protocol::Ending::empty();
        let (attempt, _) = conclude(attempted, ["0", "process000"], ending, 1, now);
        let attempt = Attempt { rejected: vec![rejected; REJECTED_MAX], ..attempt };
        let mut messages = Messages::new("job", 192 * 1024);
        messages.push(&ResultEvent::Attempt(Box::new(attempt)), &vec![b'r'; INLINE_ROWS_BYTES_MAX]);
        let [message] = &messages.finish()[..] else { panic!("one event") };
        assert!(message.body.len() <= 192 * 1024, "{}", message.body.len());
    }

    #[test]
    fn small_events_travel_together() {
        let mut messages = Messages::new("job", usize::MAX);
        (0..100).for_each(|_| messages.push(&init_failed(10), b""));
        assert_eq!(messages.finish().len(), 1);
        assert!(Messages::new("job", usize::MAX).finish().is_empty());
    }
}
