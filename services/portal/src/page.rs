//! The files of the page, which `services/portal/web` builds and the executable contains.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use rust_embed::RustEmbed;

use crate::compress::{accepts_gzip, gzip};

/// The built page.
#[derive(RustEmbed)]
#[folder = "web/dist"]
struct BuiltPage;

struct File {
    plain: Bytes,
    /// `None`: it does not become smaller.
    compressed: Option<Bytes>,
    kind: &'static str,
    tag: HeaderValue,
}

static FILES: LazyLock<HashMap<String, File>> =
    LazyLock::new(|| BuiltPage::iter().filter_map(|name| File::read(&name)).collect());

impl File {
    fn read(name: &str) -> Option<(String, Self)> {
        let plain = Bytes::from(BuiltPage::get(name)?.data.into_owned());
        let compressed = gzip(&plain, Compression::best()).ok()?;
        let compressed =
            Some(Bytes::from(compressed)).filter(|compressed| compressed.len() < plain.len());
        let digest = blake3::hash(&plain).to_hex();
        let tag = HeaderValue::from_str(&format!("\"{}\"", &digest[..32])).ok()?;
        Some((name.to_owned(), Self { plain, compressed, kind: kind(name), tag }))
    }
}

/// Returns the content of a file of the page.
pub fn content(name: &str) -> Option<Bytes> {
    FILES.get(name).map(|file| file.plain.clone())
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("woff2") => "font/woff2",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    }
}

/// Answers with a file of the page. Names below `assets/` contain a digest of the content, so browsers keep these files.
pub async fn file(uri: Uri, headers: HeaderMap) -> Response {
    let name = match uri.path() {
        "/" => "index.html",
        path => path.trim_start_matches('/'),
    };
    let Some(file) = FILES.get(name) else {
        let text = "there is no such page; open /\n";
        return (StatusCode::NOT_FOUND, [(CONTENT_TYPE, "text/plain; charset=utf-8")], text)
            .into_response();
    };
    let cached = if name.starts_with("assets/") {
        "private, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    let caching = [(CACHE_CONTROL, HeaderValue::from_static(cached)), (ETAG, file.tag.clone())];
    if headers.get(IF_NONE_MATCH) == Some(&file.tag) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    let kind = [(CONTENT_TYPE, file.kind), (VARY, "accept-encoding")];
    match &file.compressed {
        Some(compressed) if accepts_gzip(&headers) => {
            (caching, kind, [(CONTENT_ENCODING, "gzip")], compressed.clone()).into_response()
        }
        _ => (caching, kind, file.plain.clone()).into_response(),
    }
}
