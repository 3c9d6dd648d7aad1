//! The events of a command as lines of JSON on standard output (`--events`), for programs that run commands.

use engine::{Event, Notice};
use serde_json::{Value, json};

use crate::notices;

/// Returns the objects of an event. Progress has none, because `gristmill status --json` shows it.
pub fn objects(event: &Event) -> Vec<Value> {
    let job = |job_id: &str| json!({ "event": "job", "job_id": job_id });
    match event {
        Event::Step { name, number, count } => {
            vec![json!({ "event": "step", "step": name, "number": number, "count": count })]
        }
        Event::Job(job_id) | Event::Reused(job_id) => vec![job(job_id)],
        Event::Notice(notice) => {
            let kind = if notices::is_doubt(notice) { "warning" } else { "note" };
            let line = json!({ "event": kind, "text": notices::sentence(notice) });
            match notice {
                Notice::Continuing(continuation) => vec![job(&continuation.job_id), line],
                _ => vec![line],
            }
        }
        Event::Progress { .. } | Event::ProgressEnded => Vec::new(),
    }
}
