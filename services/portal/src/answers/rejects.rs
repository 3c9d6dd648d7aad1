//! The items that did not make it, by cause.

use axum::extract::{Path, State};
use axum::response::Response;
use engine::RejectSummary;

use crate::SharedState;
use crate::document::document;
use crate::error::Answer;
use crate::watched::View;

pub async fn rejects(State(shared): SharedState, Path(id): Path<String>) -> Answer<Response> {
    let view = shared.watched.get(&shared.options.jobs, &id).await?;
    Ok(document(&of(&view).await?))
}

pub async fn of(view: &View) -> Answer<RejectSummary> {
    Ok(view.found().rejects().await?)
}
