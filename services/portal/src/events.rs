//! The stream of server-sent events: notifies a page of changes, at most twice a second. An
//! interrupted stream resumes after the last event that the page received.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
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
use crate::SharedState;
use crate::answers::job::{ChangeMark, describe};
use crate::error::{Answer, Refusal};

/// Streams at the same time.
pub const STREAMS_MAX: usize = 32;
/// Time between two events.
const PAUSE_HERE: Duration = Duration::from_millis(500);
const PAUSE_THERE: Duration = Duration::from_secs(2);
/// Time between two comments, which keep the connection alive and show the page that it is.
const COMMENT_EVERY: Duration = Duration::from_secs(10);
/// A page that holds a stream longer than this connects again.
const LONGEST: Duration = Duration::from_secs(3600);
/// Jobs that are compared in the list: the newest, and those that have not ended.
const JOBS_COMPARED: usize = 50;
/// Events from which an interrupted stream can resume. After older ones, the page gets the whole
/// state.
const RESUMABLE: usize = 64;
/// Ids of the portal are smaller; others were not its own.
const ID_MAX: u64 = 1 << 53;

/// The last events of all streams.
#[derive(Debug, Default)]
pub struct Sent {
    last_id: u64,
    events: VecDeque<SentEvent>,
}

#[derive(Debug)]
struct SentEvent {
    id: u64,
    job_id: Option<String>,
    /// The state of the page at this event.
    known: PageState,
}

impl Sent {
    /// Returns the id of a new event. Ids begin at the time, so that they grow even if the portal starts again.
    fn add(&mut self, job_id: Option<String>, known: PageState) -> u64 {
        self.last_id = (self.last_id + 1).max(milliseconds_since_epoch());
        if self.events.len() == RESUMABLE {
            self.events.pop_front();
        }
        self.events.push_back(SentEvent { id: self.last_id, job_id, known });
        self.last_id
    }

    /// Returns the state of a page that received this event last.
    fn known(&mut self, id: u64, job_id: Option<&str>) -> PageState {
        // The clock may have been set back since an earlier portal sent it.
        self.last_id = self.last_id.max(id);
        let event =
            self.events.iter().find(|event| event.id == id && event.job_id.as_deref() == job_id);
        event.map_or(PageState::Nothing, |event| event.known.clone())
    }
}

/// The state of a page.
#[derive(Clone, Debug, Default, PartialEq)]
enum PageState {
    #[default]
    Nothing,
    Job(ChangeMark),
    Jobs(Arc<HashMap<String, JobMark>>),
}

#[derive(Debug, Deserialize)]
pub struct EventsQuery {
    job: Option<String>,
}

pub async fn events(
    State(shared): SharedState,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let permit = Arc::clone(&shared.streams).try_acquire_owned();
    let Ok(permit) = permit else {
        return Err(Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too many pages of this portal are open; close some",
        ));
    };
    if let Some(job_id) = &query.job {
        shared.watched.get(&shared.options.jobs, job_id).await?;
    }
    let last_id = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let last_id = last_id.filter(|id| *id < ID_MAX);
    let known = last_id.map(|id| sent(&shared).known(id, query.job.as_deref())).unwrap_or_default();
    let source = Source {
        shared,
        job_id: query.job,
        began: Instant::now(),
        is_first: true,
        is_over: false,
        is_resumed: last_id.is_some(),
        known,
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

fn sent(shared: &Shared) -> MutexGuard<'_, Sent> {
    shared.sent.lock().unwrap_or_else(PoisonError::into_inner)
}

type JobMark = (JobState, u64, u64);

struct Source {
    shared: Arc<Shared>,
    job_id: Option<String>,
    began: Instant,
    is_first: bool,
    is_over: bool,
    /// Whether the page got events before.
    is_resumed: bool,
    known: PageState,
    /// The last error of the store that the page received.
    trouble: Option<String>,
    _permit: OwnedSemaphorePermit,
}

impl Source {
    /// Waits for the next event, or for the time of a comment. `None`: the stream ends.
    async fn next(&mut self) -> Option<String> {
        let pause = if matches!(self.shared.options.jobs, Jobs::Here(_)) {
            PAUSE_HERE
        } else {
            PAUSE_THERE
        };
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
                let known = PageState::Job(job.mark());
                // The page learns that the store answers again, even if nothing has changed.
                if self.trouble.take().is_none() && self.known == known {
                    return None;
                }
                self.known = known;
                Some(self.event("job", &job))
            }
            Err(refusal) if refusal.is_removal() => {
                self.is_over = true;
                Some(self.event("removed", &json!({ "job_id": job_id })))
            }
            Err(refusal) => self.tell(refusal),
        }
    }

    /// Returns an event if the page does not know this error of the store yet.
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
            .map(|job| {
                (job.job_id, (job.state, job.mini_batches.succeeded, job.mini_batches.failed))
            })
            .collect();
        let now = Arc::new(now);
        let known = std::mem::replace(&mut self.known, PageState::Jobs(Arc::clone(&now)));
        if self.trouble.take().is_none() && known == self.known {
            return None;
        }
        let changed: Vec<&String> = match &known {
            PageState::Jobs(known) => {
                let differ =
                    now.iter().filter(|(id, mark)| known.get(*id) != Some(mark)).map(|(id, _)| id);
                differ.chain(known.keys().filter(|id| !now.contains_key(*id))).collect()
            }
            // The changes since a forgotten event are unknown.
            _ if self.is_resumed => now.keys().collect(),
            // The first event reports no change; it shows that the stream works.
            _ => Vec::new(),
        };
        Some(self.event("jobs", &json!({ "changed": changed, "now": milliseconds_since_epoch() })))
    }

    fn event<T: Serialize>(&self, name: &str, data: &T) -> String {
        let id = sent(&self.shared).add(self.job_id.clone(), self.known.clone());
        // JSON of serde_json has no line break.
        let data = serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned());
        format!("event: {name}\nid: {id}\ndata: {data}\n\n")
    }
}
