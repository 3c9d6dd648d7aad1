//! The portal itself, and the list of jobs.

use axum::extract::{Query, State};
use engine::targets::TargetRef;
use engine::{READS_AT_ONCE, Selection, State as JobState, Summary, name_of};
use protocol::milliseconds_since_epoch;
use serde::{Deserialize, Serialize};

use super::words::listed;
use crate::Options;
use crate::SharedState;
use crate::document::Document;
use crate::error::Answer;

const JOBS_DEFAULT: usize = 50;
const JOBS_MAX: usize = 200;
/// Jobs that one request reads at most to find those in a state.
const READS_MAX: usize = 2000;

#[derive(Debug, Serialize)]
pub struct Info {
    version: &'static str,
    place: String,
    target: Option<String>,
    read_only: bool,
    job: Option<String>,
    now: u64,
}

pub async fn info(State(shared): SharedState) -> Document<Info> {
    Document(describe(&shared.options))
}

/// Returns the facts about the portal that the page needs.
pub fn describe(options: &Options) -> Info {
    Info {
        version: env!("CARGO_PKG_VERSION"),
        place: options.jobs.place(),
        target: target_name(options.jobs.target()),
        read_only: options.is_read_only,
        job: options.own_jobs.ids().into_iter().next().filter(|_| !options.are_steps),
        now: milliseconds_since_epoch(),
    }
}

/// Returns the name of a target; `None`: this machine.
pub fn target_name(target: &TargetRef) -> Option<String> {
    match target {
        TargetRef::ThisMachine => None,
        TargetRef::Named(name) => Some(name.clone()),
        TargetRef::Addresses { queue, store } => queue.clone().or_else(|| store.clone()),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ListQuery {
    name: String,
    state: String,
    limit: Option<usize>,
    after: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct JobsPage {
    jobs: Vec<JobRow>,
    next: Option<String>,
    total: usize,
    place: String,
    now: u64,
}

#[derive(Debug, Serialize)]
struct JobRow {
    #[serde(flatten)]
    summary: Summary,
    name: String,
    /// Always present in JSON; `null` without a cause.
    cause: Option<String>,
}

impl From<Summary> for JobRow {
    fn from(mut summary: Summary) -> Self {
        let cause = summary.cause.take();
        Self { name: name_of(&summary.job_id).to_owned(), summary, cause }
    }
}

pub async fn list(
    State(shared): SharedState,
    Query(query): Query<ListQuery>,
) -> Answer<Document<JobsPage>> {
    let jobs = &shared.options.jobs;
    shared.watched.check_place(jobs)?;
    let selection = Selection { states: states(&query.state)?, name: None };
    let limit = query.limit.unwrap_or(JOBS_DEFAULT).clamp(1, JOBS_MAX);
    let mut ids = if shared.options.are_steps {
        engine::newest_first(shared.options.own_jobs.ids())
    } else if selection.is_open() {
        jobs.open_ids().await?
    } else {
        jobs.ids().await?
    };
    ids.retain(|id| contains(id, &query.name));
    let total = ids.len();
    // The job at the end of the last page may have been removed since; ids are sorted, newest first.
    if let Some(after) = &query.after {
        let position = ids.iter().position(|id| id == after).map_or_else(
            || {
                let mut with = ids.clone();
                with.push(after.clone());
                engine::newest_first(with).iter().position(|id| id == after).unwrap_or(ids.len())
            },
            |position| position + 1,
        );
        ids.drain(..position.min(ids.len()));
    }
    let open = jobs.open_jobs().await?;
    let mut rows = Vec::new();
    let mut looked_at = 0;
    'found: for chunk in ids.chunks(READS_AT_ONCE.min(limit)) {
        let summaries = jobs.summaries(chunk, &open).await;
        let mut summaries = summaries.into_iter().peekable();
        for id in chunk {
            looked_at += 1;
            let Some(summary) = summaries.next_if(|summary| summary.job_id == *id) else {
                continue;
            };
            if selection.has_state(summary.state) {
                rows.push(JobRow::from(summary));
            }
            if rows.len() == limit {
                break 'found;
            }
        }
        if looked_at >= READS_MAX {
            break;
        }
    }
    let next = (looked_at < ids.len()).then(|| ids[looked_at - 1].clone());
    Ok(Document(JobsPage {
        jobs: rows,
        next,
        total,
        place: jobs.place(),
        now: milliseconds_since_epoch(),
    }))
}

fn states(text: &str) -> Answer<Vec<JobState>> {
    listed(text, "jobs", |word| JobState::ALL.into_iter().find(|state| state.word() == word))
}

/// Whether an id contains a text, in which `*` matches any characters.
fn contains(id: &str, wanted: &str) -> bool {
    let id = id.to_ascii_lowercase();
    let mut rest = &*id;
    wanted.to_ascii_lowercase().split('*').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_an_id_selects_it() {
        let id = "Score-images-20261121-100203-ab12";
        for (wanted, expected) in
            [("", true), ("score", true), ("IMAGES", true), ("s*2026", true), ("2026*s", false)]
        {
            assert_eq!(contains(id, wanted), expected, "{wanted}");
        }
    }

    #[test]
    fn unknown_state_is_refused() {
        assert_eq!(
            states("failed, running").expect("known"),
            [JobState::Failed, JobState::Running]
        );
        assert!(states("gone").is_err());
    }
}
