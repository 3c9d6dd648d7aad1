//! The rejected items, by cause.

use engine::RejectSummary;

use crate::document::Document;
use crate::error::Answer;
use crate::watched::View;

pub async fn rejects(view: View) -> Answer<Document<RejectSummary>> {
    of(&view).await.map(Document)
}

pub async fn of(view: &View) -> Answer<RejectSummary> {
    Ok(view.found().rejects().await?)
}
