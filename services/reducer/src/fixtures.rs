//! Attempts and jobs for the tests of this crate.

use std::path::Path;

use bytes::Bytes;
use protocol::{
    Attempt, AttemptStatus, ErrorReport, JobSpec, Output, Phases, Record, Rejected, ResultEvent,
    Rows, SlotPhase, Start, Waiting, decode_records, encode_record,
};
use storage::{JobStore, PlanComplete, RoundRequest};

use crate::batch::Batch;
use crate::{BegunRound, Reducer, RoundScript, Tally};

/// Begins another round of a job, with everything that its output lacks.
pub(crate) async fn reopen(reducer: &mut Reducer) -> BegunRound {
    reducer
        .begin_round(RoundRequest::ALL, &RoundScript::default(), false, |_| Ok(()))
        .await
        .expect("writable")
}

pub(crate) fn fold(events: &[ResultEvent]) -> Tally {
    let mut tally = Tally::default();
    for event in events {
        tally.apply(event);
    }
    tally
}

/// The tally of these attempts.
pub(crate) fn tally_of(attempts: impl IntoIterator<Item = Attempt>) -> Tally {
    fold(&attempts.into_iter().map(event).collect::<Vec<_>>())
}

pub(crate) fn event(attempt: Attempt) -> ResultEvent {
    ResultEvent::Attempt(Box::new(attempt))
}

pub(crate) fn attempt(
    mini_batch: u64,
    try_number: u32,
    status: AttemptStatus,
    is_final: bool,
    total: u64,
    succeeded: u64,
) -> Attempt {
    let error = (status != AttemptStatus::Succeeded).then(|| {
        Box::new(ErrorReport {
            category: if status == AttemptStatus::RunTimedOut {
                "RunTimeout".into()
            } else {
                "ValueError".into()
            },
            message: "bad value".into(),
            traceback: "Traceback: bad value".into(),
            log: "user/error/0/process000.txt".into(),
            printed: String::new(),
        })
    });
    Attempt {
        mini_batch,
        try_number,
        node: "0".into(),
        process: "process000".into(),
        status,
        is_final,
        total,
        succeeded,
        started_at: 1_700_000_000_123,
        elapsed_seconds: 0.25,
        process_seconds: 0.125,
        run_seconds: 0.2,
        phases: Phases::new(1.5, 0.5, 0.0),
        error,
        detail: format!("/data/{mini_batch}.png"),
        ..Attempt::default()
    }
}

pub(crate) fn started(node: &str, process: &str) -> ResultEvent {
    ResultEvent::ProcessStarted {
        node: node.into(),
        process: process.into(),
        pid: 1,
        gpus: None,
        at: 0,
    }
}

pub(crate) fn ready(node: &str, process: &str) -> ResultEvent {
    ResultEvent::ProcessReady {
        node: node.into(),
        process: process.into(),
        init_seconds: 1.0,
        start: Start::default(),
        notice: String::new(),
    }
}

pub(crate) fn ended(node: &str, process: &str) -> ResultEvent {
    ResultEvent::ProcessEnded {
        node: node.into(),
        process: process.into(),
        return_code: -9,
        at: 0,
        wear: None,
        notice: String::new(),
    }
}

/// A process of node `0` that is in `run()`.
pub(crate) fn waiting(process: &str, mini_batch: u64, seconds: u64) -> Waiting {
    Waiting {
        node: "0".into(),
        process: process.into(),
        mini_batch: Some(mini_batch),
        phase: SlotPhase::Run,
        seconds,
        since: 0,
        detail: String::new(),
        stack: String::new(),
        printed: String::new(),
    }
}

/// An item of which the last run has failed.
pub(crate) fn rejected(item: u64) -> Rejected {
    Rejected { item, items: 1, status: AttemptStatus::RunRaised, ..Rejected::default() }
}

pub(crate) fn succeeded(mini_batch: u64, try_number: u32, total: u64, succeeded: u64) -> Attempt {
    attempt(mini_batch, try_number, AttemptStatus::Succeeded, true, total, succeeded)
}

pub(crate) fn failed(mini_batch: u64, try_number: u32, is_final: bool, total: u64) -> Attempt {
    attempt(mini_batch, try_number, AttemptStatus::RunRaised, is_final, total, 0)
}

/// A message of one success that carries its rows.
pub(crate) fn message(mini_batch: u64, rows: &[u8]) -> Vec<u8> {
    let attempt = Attempt { rows: Rows::Inline, ..succeeded(mini_batch, 1, 1, 1) };
    let mut body = Vec::new();
    encode_record(&event(attempt), rows, &mut body);
    body
}

pub(crate) fn batch(messages: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::default();
    for message in messages {
        assert!(batch.add(&Bytes::copy_from_slice(message)).is_none());
    }
    batch
}

/// The records of a batch, with the places of their rows in its segment.
pub(crate) fn records(batch: &Batch) -> Vec<Record> {
    decode_records(&batch.segment().concat().into())
        .collect::<Result<_, _>>()
        .expect("what was read before")
}

pub(crate) fn spec(output: &Path) -> JobSpec {
    let example = JobSpec::example();
    JobSpec {
        job_id: "digits-20260101-000000-abcd".into(),
        name: "digits".into(),
        output: Output { folder: output.into(), ..example.output },
        process_count_per_node: Some(2),
        ..example
    }
}

/// Writes a plan of this many mini-batches to the store.
pub(crate) async fn put_plan(store: &JobStore, mini_batches: u64, items: Option<u64>) {
    store.create_plan_chunk(0, Bytes::from_static(b"{}\n")).await.expect("writable");
    let complete =
        PlanComplete { mini_batches, items, files: mini_batches, ..PlanComplete::default() };
    store.put_plan_complete(&complete).await.expect("writable");
}
