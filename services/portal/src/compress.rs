//! Compresses JSON documents for clients that accept it.

use std::io::Write;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::document::JSON;
use crate::error::Refusal;

/// Smaller documents are not compressed.
const COMPRESSED_BYTES_MIN: usize = 4096;
const DOCUMENT_BYTES_MAX: usize = 256 << 20;

/// Compresses the answer to a request.
pub async fn compress(request: Request, next: Next) -> Response {
    let accepts_gzip = accepts_gzip(request.headers());
    let response = next.run(request).await;
    if !accepts_gzip || response.headers().get(CONTENT_TYPE) != Some(&JSON) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, DOCUMENT_BYTES_MAX).await else {
        return Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer is too large")
            .into_response();
    };
    if bytes.len() < COMPRESSED_BYTES_MIN {
        return Response::from_parts(head, Body::from(bytes));
    }
    let compressed = tokio::task::spawn_blocking(move || gzip(&bytes, Compression::fast()));
    let Ok(Ok(compressed)) = compressed.await else {
        return Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer cannot be compressed")
            .into_response();
    };
    head.headers.remove(CONTENT_LENGTH);
    head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    Response::from_parts(head, Body::from(compressed))
}

/// Compresses bytes.
pub fn gzip(bytes: &[u8], level: Compression) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), level);
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Whether the client of a request accepts gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.unwrap_or_default().split(',').any(|one| {
        let mut parts = one.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        is_gzip && !parts.any(|part| part.eq_ignore_ascii_case("q=0"))
    })
}
