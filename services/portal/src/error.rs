//! Errors of requests, as JSON with one line for people.

use axum::body::to_bytes;
use axum::http::StatusCode;
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::document::Document;

/// An error of a request.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    message: String,
    /// The job has been removed.
    is_removed: bool,
}

pub type Answer<T> = Result<T, Refusal>;

impl Refusal {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), is_removed: false }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// The state of the job or of the portal does not allow the action.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// The job has been removed, or is unknown.
    pub fn removed(job_id: &str) -> Self {
        let message = format!("there is no job {job_id:?} here, or it has been removed");
        Self { is_removed: true, ..Self::not_found(message) }
    }

    pub fn is_removal(&self) -> bool {
        self.is_removed
    }
}

/// The store does not answer, or something in it cannot be read.
impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}"))
    }
}

impl From<engine::Error> for Refusal {
    fn from(error: engine::Error) -> Self {
        match error {
            engine::Error::Removed(job_id) => Self::removed(&job_id),
            engine::Error::NoSuchJob { .. } => Self::not_found(error.to_string()),
            error => anyhow::Error::from(error).into(),
        }
    }
}

impl From<engine::StoreError> for Refusal {
    fn from(error: engine::StoreError) -> Self {
        match error {
            engine::StoreError::NotFound { .. } => Self::not_found(error.to_string()),
            other => anyhow::Error::from(other).into(),
        }
    }
}

impl From<tokio::task::JoinError> for Refusal {
    fn from(error: tokio::task::JoinError) -> Self {
        tracing::error!(%error, "a request of the portal failed");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the portal failed to answer; its log says why",
        )
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let message = self.message.replace(['\n', '\r'], " ");
        let body = match self.is_removed {
            true => json!({ "error": message, "removed": true }),
            false => json!({ "error": message }),
        };
        (self.status, Document(body)).into_response()
    }
}

/// Converts errors of the router to JSON.
pub async fn errors_as_json(response: Response) -> Response {
    let is_json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if is_json || !(response.status().is_client_error() || response.status().is_server_error()) {
        return response;
    }
    let (status, allowed) = (response.status(), response.headers().get(ALLOW).cloned());
    let text = to_bytes(response.into_body(), 4096).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    let text = if text.is_empty() {
        status.canonical_reason().unwrap_or("no answer").to_owned()
    } else {
        text
    };
    let mut refused = Refusal::new(status, text).into_response();
    if let Some(allowed) = allowed {
        refused.headers_mut().insert(ALLOW, allowed);
    }
    refused
}
