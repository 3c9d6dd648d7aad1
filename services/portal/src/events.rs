//! The stream of server-sent events: tells a page that something has changed, at most twice a second.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use engine::{Jobs, State as JobState};
use futures::stream;
use protocol::milliseconds_since_epoch;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::Shared;
use crate::answers::job::describe;
use crate::error::{Answer, Refusal};
use crate::routes::Portal;

/// Streams at the same time.
pub const STREAMS_MAX: usize = 32;
/// Between two events.
const PAUSE_HERE: Duration = Duration::from_millis(500);
const PAUSE_THERE: Duration = Duration::from_secs(2);
/// A comment keeps the connection alive, and shows the page that it is.
const COMMENT_EVERY: Duration = Duration::from_secs(10);
/// A page that holds a stream longer than this connects again.
const LONGEST: Duration = Duration::from_secs(3600);
/// Jobs that are compared in the list: the newest, and those that have not ended.
const JOBS_COMPARED: usize = 50;

#[derive(Debug, Deserialize)]
pub struct Wanted {
    job: Option<String>,
}

pub async fn events(State(shared): Portal, Query(wanted): Query<Wanted>) -> Answer<Response> {
    let permit = Arc::clone(&shared.streams).try_acquire_owned();
    let Ok(permit) = permit else {
        return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many pages of this portal are open; close some"));
    };
    if let Some(job_id) = &wanted.job {
        shared.watched.get(&shared.options.jobs, job_id).await?;
    }
    let source = Source {
        shared,
        job_id: wanted.job,
        number: milliseconds_since_epoch(),
        began: Instant::now(),
        is_first: true,
        is_over: false,
        known_job: None,
        known_jobs: HashMap::new(),
        trouble: None,
        _permit: permit,
    };
    let events = stream::unfold(source, |mut source| async {
        let text = source.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), source))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store, no-transform")];
    Ok((headers, Body::from_stream(events)).into_response())
}

type JobMark = (JobState, u64, u64);

struct Source {
    shared: Arc<Shared>,
    job_id: Option<String>,
    /// The id of the next event. It begins at the time, so that it grows even if the portal starts again.
    number: u64,
    began: Instant,
    is_first: bool,
    is_over: bool,
    known_job: Option<Mark>,
    known_jobs: HashMap<String, JobMark>,
    /// Why the store does not answer, as the page knows it.
    trouble: Option<String>,
    _permit: OwnedSemaphorePermit,
}

type Mark = (String, JobState, protocol::Counts, protocol::Counts, u64, usize);

impl Source {
    /// Waits for the next event, or for the time of a comment. `None`: the stream ends.
    async fn next(&mut self) -> Option<String> {
        let pause = if matches!(self.shared.options.jobs, Jobs::Here(_)) { PAUSE_HERE } else { PAUSE_THERE };
        let asked = Instant::now();
        if self.is_over || self.began.elapsed() > LONGEST {
            return None;
        }
        loop {
            if !std::mem::take(&mut self.is_first) {
                tokio::time::sleep(pause).await;
            }
            let event = match self.job_id.clone() {
                Some(job_id) => self.look_at(&job_id).await,
                None => self.look_at_all().await,
            };
            if let Some(event) = event {
                return Some(event);
            }
            if asked.elapsed() >= COMMENT_EVERY {
                return Some(": \n\n".to_owned());
            }
        }
    }

    async fn look_at(&mut self, job_id: &str) -> Option<String> {
        let options = &self.shared.options;
        let described = async {
            let view = self.shared.watched.get(&options.jobs, job_id).await?;
            describe(&view, options).await
        };
        match described.await {
            Ok(job) => {
                let mark = job.mark();
                // The page learns that the trouble is over, even if nothing has changed.
                if self.trouble.take().is_none() && self.known_job.as_ref() == Some(&mark) {
                    return None;
                }
                self.known_job = Some(mark);
                Some(self.event("job", &job))
            }
            Err(refusal) if refusal.is_removal() => {
                self.is_over = true;
                Some(self.event("removed", &json!({ "job_id": job_id })))
            }
            Err(refusal) => self.tell(refusal),
        }
    }

    /// Returns an event if the page does not know yet why the store does not answer.
    fn tell(&mut self, refusal: Refusal) -> Option<String> {
        let message = refusal.to_string();
        if self.trouble.as_ref() == Some(&message) {
            return None;
        }
        let event = self.event("trouble", &json!({ "error": message }));
        self.trouble = Some(message);
        Some(event)
    }

    async fn look_at_all(&mut self) -> Option<String> {
        let jobs = &self.shared.options.jobs;
        let looked = async {
            self.shared.watched.check_place(jobs)?;
            let mut ids = jobs.ids().await?;
            let open = jobs.open_ids().await?;
            ids.truncate(JOBS_COMPARED);
            ids.extend(open.into_iter().take(JOBS_COMPARED));
            ids.sort_unstable();
            ids.dedup();
            Answer::Ok(jobs.summaries(&ids, &jobs.open_jobs().await?).await)
        };
        let jobs = match looked.await {
            Ok(jobs) => jobs,
            Err(refusal) => return self.tell(refusal),
        };
        let now: HashMap<String, JobMark> = jobs
            .into_iter()
            .map(|job| (job.job_id, (job.state, job.mini_batches.succeeded, job.mini_batches.failed)))
            .collect();
        if self.trouble.take().is_none() && now == self.known_jobs {
            return None;
        }
        let mut changed: Vec<&String> =
            now.iter().filter(|(id, mark)| self.known_jobs.get(*id) != Some(mark)).map(|(id, _)| id).collect();
        changed.extend(self.known_jobs.keys().filter(|id| !now.contains_key(*id)));
        // The first event reports no difference, but that the stream works.
        let changed: Vec<String> =
            if self.known_jobs.is_empty() { vec![] } else { changed.into_iter().cloned().collect() };
        self.known_jobs = now;
        Some(self.event("jobs", &json!({ "changed": changed, "now": milliseconds_since_epoch() })))
    }

    fn event<T: Serialize>(&mut self, name: &str, data: &T) -> String {
        self.number += 1;
        // JSON of serde_json has no line break.
        let data = serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned());
        format!("event: {name}\nid: {}\ndata: {data}\n\n", self.number)
    }
}
