//! JSON documents, which are the answers of the API.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An answer in JSON.
#[derive(Debug)]
pub struct Document<T>(pub T);

impl<T: Serialize> IntoResponse for Document<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => ([(CONTENT_TYPE, JSON)], bytes).into_response(),
            Err(error) => {
                tracing::error!(%error, "an answer of the portal does not serialise");
                let message = "the portal cannot write this answer; its log says why";
                (StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
            }
        }
    }
}
