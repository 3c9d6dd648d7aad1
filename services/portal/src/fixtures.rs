//! Jobs for the tests of this crate.

use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use engine::history::History;
use engine::{FoundJob, State, Status};
use protocol::{
    Attempt, AttemptStatus, ErrorReport, JobSpec, Phases, Progress, ResultEvent, Rows,
    encode_record,
};
use storage::JobStore;

use crate::Phrases;
use crate::watched::{View, view_of};

/// Phrases that show their subject.
pub fn words() -> Phrases {
    Phrases {
        hint: |hint| format!("hint {:?}", hint.blocker),
        error: |error| format!("{error:#}"),
        remedy: |remedy| format!("{remedy:?}"),
        flags: |_| String::new(),
    }
}

/// An attempt that took half a second; its names hold markup and terminal codes.
pub fn tried(mini_batch: u64, try_number: u32, status: AttemptStatus) -> Attempt {
    let is_success = status == AttemptStatus::Succeeded;
    Attempt {
        mini_batch,
        try_number,
        node: "n<script>".into(),
        process: format!("process{:03}", mini_batch % 2).into(),
        status,
        is_final: is_success,
        total: 4,
        succeeded: if is_success { 3 } else { 0 },
        rows: if is_success { Rows::Inline } else { Rows::None },
        started_at: 1_700_000_000_000 + mini_batch * 250,
        elapsed_seconds: 0.5,
        process_seconds: 0.25,
        run_seconds: 0.375,
        phases: Phases::new(0.0625, 0.25, 0.09375),
        error: (!is_success).then(|| {
            Box::new(ErrorReport {
                category: "ValueError".into(),
                message: "bad value\nsecond line".into(),
                traceback: "Traceback (most recent call last):\n  File \"/lib/python3.11/site-packages/x.py\", line 3, in a\n    \
                            b()\n  File \"/home/me/entry.py\", line 7, in run\n    raise ValueError\nValueError: bad value"
                    .into(),
                log: "user/error/n/process000.txt".into(),
                printed: "\u{1b}[31mred\u{1b}[0m <img src=x>".into(),
            })
        }),
        detail: format!("/in/{mini_batch}.<b>png"),
        ..Attempt::default()
    }
}

/// A segment of the ledger with these attempts.
pub fn segment(attempts: &[Attempt]) -> Bytes {
    segment_of(&[], attempts)
}

/// A segment of the ledger: events, then attempts with their rows.
pub fn segment_of(events: &[ResultEvent], attempts: &[Attempt]) -> Bytes {
    let mut bytes = Vec::new();
    events.iter().for_each(|event| encode_record(event, b"", &mut bytes));
    for attempt in attempts {
        let rows = if attempt.rows == Rows::Inline {
            format!("row of {}\n", attempt.mini_batch)
        } else {
            String::new()
        };
        encode_record(
            &ResultEvent::Attempt(Box::new(attempt.clone())),
            rows.as_bytes(),
            &mut bytes,
        );
    }
    bytes.into()
}

/// The history of a job with these attempts.
pub fn history(attempts: &[Attempt]) -> History {
    let mut history = History::default();
    history.add_segment(&segment(attempts)).expect("valid");
    history
}

/// The status of a running job.
pub fn status(job_id: &str) -> Status {
    let (hint, owner, priority, result, progress) = Default::default();
    let (source_directory, logs) = Default::default();
    let (job_id, state) = (job_id.to_owned(), State::Running);
    let (output_changed, builds) = Default::default();
    Status {
        job_id,
        state,
        hint,
        owner,
        priority,
        result,
        progress,
        output_changed,
        source_directory,
        logs,
        builds,
    }
}

/// A job without a store.
pub fn view(history: History) -> View {
    running(history, JobSpec::example(), None)
}

/// A running job whose reducer reported this.
pub fn running(history: History, spec: JobSpec, progress: Option<Progress>) -> View {
    let store = JobStore::local(&std::env::temp_dir()).expect("it is there");
    let status = Status { progress, ..status(&spec.job_id) };
    view_of(store, spec, status, history)
}

/// A job with these attempts in its ledger.
pub async fn stored(attempts: &[Attempt]) -> (tempfile::TempDir, View) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = JobStore::local(folder.path()).expect("folder exists");
    store.commit_segment(0, vec![segment(attempts)]).await.expect("writable");
    let spec = JobSpec::example();
    let history = Arc::new(RwLock::new(History::default()));
    let job = FoundJob {
        store: store.clone(),
        spec: spec.clone(),
        result: None,
        has_damaged_result: false,
    };
    job.update_history(&history).await.expect("readable");
    let history = std::mem::take(&mut *history.write().unwrap_or_else(PoisonError::into_inner));
    (folder, view_of(store, spec.clone(), status(&spec.job_id), history))
}
