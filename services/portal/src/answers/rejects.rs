//! The items that did not make it, by cause.

use axum::extract::{Path, State};
use axum::response::Response;
use engine::{FoundJob, RejectSummary};

use crate::SharedState;
use crate::document::document;
use crate::error::Answer;
use crate::watched::View;

pub async fn rejects(State(shared): SharedState, Path(id): Path<String>) -> Answer<Response> {
    let view = shared.watched.get(&shared.options.jobs, &id).await?;
    Ok(document(&of(&view).await?))
}

pub async fn of(view: &View) -> Answer<RejectSummary> {
    let snapshot = &view.snapshot;
    let (store, spec, result) = (snapshot.store.clone(), snapshot.spec.clone(), snapshot.status.result.clone());
    Ok(FoundJob { store, spec, result }.rejects().await?)
}
