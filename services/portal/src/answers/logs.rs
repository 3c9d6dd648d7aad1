//! The log tree: the list, ranges of a file, a search, and downloads.
//!
//! A script writes some of these files, so a path must lead to a file below `logs/`: neither upwards nor through a link.

use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Component, Path as FilePath, PathBuf};

use axum::body::Body;
use axum::extract::Query;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use engine::FoundJob;
use engine::{JobStore, LogFile};
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::error::{Answer, Refusal};
use crate::watched::View;

const TEXT_BYTES_DEFAULT: u64 = 256 << 10;
/// Holds a character, so that a reader of consecutive texts always gets on.
const TEXT_BYTES_MIN: u64 = 16;
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// How far before a byte the beginning of its line is searched.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// How far before the end of a file its text begins by default.
const END_BYTES: i64 = 64 << 10;
const MATCHES_DEFAULT: usize = 200;
const MATCHES_MAX: usize = 1000;
const SEARCHED_BYTES_MAX: u64 = 256 << 20;
/// Bytes that one download or search reads at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// A match shows no more of its line.
const LINE_CHARACTERS_MAX: usize = 500;
const FILES_MAX: usize = 100_000;

#[derive(Debug, Serialize)]
pub struct Logs {
    files: Vec<File>,
    first_error: Option<FirstError>,
}

#[derive(Debug, Serialize)]
struct File {
    path: String,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct FirstError {
    path: String,
    offset: Option<u64>,
    time: String,
    text: String,
}

pub async fn tree(view: View) -> Answer<Document<Logs>> {
    of(&view).await.map(Document)
}

pub async fn of(view: &View) -> Answer<Logs> {
    let job = view.found();
    let mut files = job.store.logs().await?;
    files.truncate(FILES_MAX);
    let first_error = match job.first_error().await? {
        Some(error) => {
            let offset = offset_of(&job, &error.path, &error.time).await;
            Some(FirstError { path: error.path, offset, time: error.time, text: error.text })
        }
        None => None,
    };
    let files = files.into_iter().map(|LogFile { path, bytes }| File { path, bytes }).collect();
    Ok(Logs { files, first_error })
}

/// Returns where the line begins that has a time.
async fn offset_of(job: &FoundJob, path: &str, time: &str) -> Option<u64> {
    let bytes = job.store.logs().await.ok()?.into_iter().find(|file| file.path == path)?.bytes;
    let text = job.store.log_range(path, 0..bytes.min(PIECE_BYTES)).await.ok()?;
    let mut offset = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let begins = String::from_utf8_lossy(&line[..line.len().min(time.len())]).replace('T', " ");
        if begins == time {
            return Some(offset);
        }
        offset += line.len() as u64;
    }
    None
}

#[derive(Debug, Deserialize)]
pub struct TextQuery {
    path: String,
    from: Option<i64>,
    before: Option<u64>,
    limit: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct Text {
    path: String,
    bytes: u64,
    from: u64,
    to: u64,
    text: String,
    /// The byte at which each line of `text` begins. The text does not tell: it has replacements for invalid bytes.
    starts: Vec<u64>,
    line: Option<u64>,
}

pub async fn text(view: View, Query(query): Query<TextQuery>) -> Answer<Document<Text>> {
    let path = query.path;
    let bytes = size(&view.snapshot.store, &path).await?;
    let limit = query.limit.unwrap_or(TEXT_BYTES_DEFAULT).clamp(TEXT_BYTES_MIN, TEXT_BYTES_MAX);
    let asked = query.from.unwrap_or(-END_BYTES);
    let (from, to) = match query.before.map(|before| before.min(bytes)) {
        Some(before) => (before.saturating_sub(limit), before),
        None => {
            let from = match u64::try_from(asked) {
                Ok(from) => from.min(bytes),
                Err(_) => bytes.saturating_sub(asked.unsigned_abs()),
            };
            (from, from.saturating_add(limit).min(bytes))
        }
    };
    let first = from.saturating_sub(LINE_BYTES_MAX);
    let (first, read) = match from < to {
        true => (first, view.snapshot.store.log_range(&path, first..to).await?),
        false => (from, bytes::Bytes::new()),
    };
    // A file that was shortened meanwhile gives fewer bytes.
    let asked = ((from - first) as usize).min(read.len());
    let is_end_given = query.before.is_some() || to == bytes;
    let range = whole_lines(&read, asked, first == 0, is_end_given);
    let starts =
        starts(&read[range.clone()]).map(|start| first + (range.start + start) as u64).collect();
    let text = String::from_utf8_lossy(&read[range.clone()]).into_owned();
    let (from, to) = (first + range.start as u64, first + range.end as u64);
    let line = (from == 0).then_some(1);
    Ok(Document(Text { path, bytes, from, to, text, starts, line }))
}

/// Returns the range from the line in which byte `asked` lies to the last whole line, or to the end of `read` if
/// that is given. Within a line that is too long for this, the range begins and ends between characters.
fn whole_lines(read: &[u8], asked: usize, is_beginning: bool, is_end_given: bool) -> Range<usize> {
    let start = match read[..asked].iter().rposition(|byte| *byte == b'\n') {
        Some(last) => last + 1,
        None if is_beginning => 0,
        None => {
            asked + read[asked..].iter().take(3).take_while(|byte| is_continuation(**byte)).count()
        }
    };
    if is_end_given {
        return start..read.len();
    }
    let end = match read[asked..].iter().rposition(|byte| *byte == b'\n') {
        Some(last) => asked + last + 1,
        None => read.len() - unfinished_character(read),
    };
    start..end.max(start)
}

/// Whether a byte continues a character in UTF-8.
fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// Returns the length of the character that begins at the end and is not whole.
fn unfinished_character(read: &[u8]) -> usize {
    let last = read.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let is_unfinished = std::str::from_utf8(last).is_err_and(|error| error.error_len().is_none());
    if is_unfinished { last.len() } else { 0 }
}

/// Returns the position at which each line begins.
fn starts(text: &[u8]) -> impl Iterator<Item = usize> {
    text.split_inclusive(|byte| *byte == b'\n').scan(0, |next, line| {
        let start = *next;
        *next += line.len();
        Some(start)
    })
}

/// Returns the size of a log file, which must be one.
async fn size(store: &JobStore, path: &str) -> Answer<u64> {
    let unknown = || Refusal::not_found(format!("there is no log file {path:?} in this job"));
    if let Some(file) = local(store, path)? {
        let metadata = std::fs::metadata(file).map_err(|_| unknown())?;
        return if metadata.is_file() { Ok(metadata.len()) } else { Err(unknown()) };
    }
    let files = store.logs().await?;
    files.into_iter().find(|file| file.path == path).map(|file| file.bytes).ok_or_else(unknown)
}

/// Returns the file of a local job at a path below `logs/`, without links that lead elsewhere; `None`: the logs are in a
/// store without links.
fn local(store: &JobStore, path: &str) -> Answer<Option<PathBuf>> {
    let refused = || Refusal::not_found(format!("there is no log file {path:?} in this job"));
    let is_plain =
        |path: &FilePath| path.components().all(|part| matches!(part, Component::Normal(_)));
    if path.is_empty() || path.contains('\0') || !is_plain(FilePath::new(path)) {
        return Err(refused());
    }
    let Some(folder) = store.folder() else { return Ok(None) };
    let logs = folder.join("logs").canonicalize().map_err(|_| refused())?;
    let file = logs.join(path).canonicalize().map_err(|_| refused())?;
    if file.starts_with(&logs) { Ok(Some(file)) } else { Err(refused()) }
}

#[derive(Debug, Deserialize)]
pub struct FileQuery {
    path: String,
}

pub async fn raw(view: View, Query(query): Query<FileQuery>) -> Answer<Response> {
    let store = view.snapshot.store.clone();
    let bytes = size(&store, &query.path).await?;
    let name = query.path.rsplit('/').next().unwrap_or("log").to_owned();
    let pieces = stream::iter((0..bytes).step_by(PIECE_BYTES as usize)).then(move |start| {
        let (store, path) = (store.clone(), query.path.clone());
        async move { store.log_range(&path, start..bytes.min(start + PIECE_BYTES)).await }
    });
    Ok(download(&name, Some(bytes), Body::from_stream(pieces)))
}

/// Returns an answer that browsers store and never show.
pub fn download(name: &str, bytes: Option<u64>, body: Body) -> Response {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let name: String =
        name.chars().map(|character| if is_plain(character) { character } else { '_' }).collect();
    let name = if name.trim_matches('.').is_empty() { "download" } else { &name };
    let mut response = ([(CONTENT_TYPE, "application/octet-stream")], body).into_response();
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
    if let Some(bytes) = bytes {
        headers.insert(CONTENT_LENGTH, bytes.into());
    }
    response
}

#[derive(Debug, Deserialize)]
pub struct SearchQuery {
    q: String,
    #[serde(default)]
    path: String,
    limit: Option<usize>,
}

#[derive(Debug, Default, Serialize)]
pub struct Search {
    matches: Vec<Match>,
    truncated: bool,
    searched_bytes: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Match {
    path: String,
    line: u64,
    offset: u64,
    text: String,
}

pub async fn search(view: View, Query(query): Query<SearchQuery>) -> Answer<Document<Search>> {
    let text = query.q.to_lowercase();
    if text.is_empty() {
        return Err(Refusal::bad("q is empty: give a text to search for"));
    }
    let limit = query.limit.unwrap_or(MATCHES_DEFAULT).clamp(1, MATCHES_MAX);
    let store = view.snapshot.store.clone();
    let mut files = store.logs().await?;
    files.retain(|file| file.path.starts_with(&query.path));
    let mut found = Search::default();
    for LogFile { path, bytes } in files {
        if found.truncated {
            break;
        }
        let allowed = bytes.min(SEARCHED_BYTES_MAX - found.searched_bytes);
        found.truncated = allowed < bytes;
        if local(&store, &path).is_err() {
            continue;
        }
        let (store, text) = (store.clone(), text.clone());
        found = tokio::task::spawn_blocking(move || {
            let reader =
                Ranges { store, path: path.clone(), next: 0..allowed, rest: Default::default() };
            search_in(&path, reader, &text, limit, &mut found);
            found.searched_bytes += allowed;
            found
        })
        .await?;
    }
    Ok(Document(found))
}

/// Searches one file. One with a zero byte is no text, and has no matches.
fn search_in(path: &str, reader: impl Read, text: &str, limit: usize, found: &mut Search) {
    let before = found.matches.len();
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    let (mut piece, mut number, mut offset, mut next) = (Vec::new(), 1, 0, 0);
    let mut is_found = false;
    loop {
        piece.clear();
        // A line of any length is searched in pieces.
        let Ok(length @ 1..) = reader.by_ref().take(PIECE_BYTES).read_until(b'\n', &mut piece)
        else {
            return;
        };
        next += length as u64;
        if piece.contains(&0) {
            found.matches.truncate(before);
            return;
        }
        let shown = String::from_utf8_lossy(&piece);
        if !is_found && shown.to_lowercase().contains(text) {
            if found.matches.len() == limit {
                found.truncated = true;
                return;
            }
            let text =
                shown.trim_end_matches(['\n', '\r']).chars().take(LINE_CHARACTERS_MAX).collect();
            found.matches.push(Match { path: path.to_owned(), line: number, offset, text });
            is_found = true;
        }
        if piece.ends_with(b"\n") {
            (number, offset, is_found) = (number + 1, next, false);
        }
    }
}

/// Reads a log file piece by piece, from a thread that may block.
struct Ranges {
    store: JobStore,
    path: String,
    next: Range<u64>,
    rest: bytes::Bytes,
}

impl Read for Ranges {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.is_empty() && !self.next.is_empty() {
            let end = self.next.end.min(self.next.start + PIECE_BYTES);
            let read = self.store.log_range(&self.path, self.next.start..end);
            self.rest =
                tokio::runtime::Handle::current().block_on(read).map_err(std::io::Error::other)?;
            self.next.start = end;
        }
        let length = buffer.len().min(self.rest.len());
        buffer[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}

/// Reads the end of a local or remote log file as text.
pub async fn end_of(store: &JobStore, path: &str, bytes_max: u64) -> Option<String> {
    let bytes = size(store, path).await.ok()?;
    let from = bytes.saturating_sub(bytes_max);
    let read = store.log_range(path, from..bytes).await.ok()?;
    let start = if from == 0 { 0 } else { read.iter().position(|byte| *byte == b'\n')? + 1 };
    Some(String::from_utf8_lossy(&read[start..]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_finds_nothing_in_files_that_are_no_text() {
        let mut found = Search::default();
        search_in("a.txt", &b"an error\n"[..], "error", 10, &mut found);
        search_in("rejects.parquet", &b"PAR1 error\n\x00\x15 error\n"[..], "error", 10, &mut found);
        assert_eq!(found.matches.iter().map(|found| &*found.path).collect::<Vec<_>>(), ["a.txt"]);
    }

    #[test]
    fn search_finds_lines_with_their_places() {
        let text = "one\n\u{1b}[31mERROR\u{1b}[0m <b>\nthree error\n";
        let mut found = Search::default();
        search_in("a.txt", text.as_bytes(), "error", 10, &mut found);
        let places: Vec<_> = found.matches.iter().map(|found| (found.line, found.offset)).collect();
        assert_eq!(places, [(2, 4), (3, 23)]);
        assert_eq!(found.matches[0].text, "\u{1b}[31mERROR\u{1b}[0m <b>");
        let mut one = Search::default();
        search_in("a.txt", text.as_bytes(), "error", 1, &mut one);
        assert!(one.truncated && one.matches.len() == 1);
    }

    #[test]
    fn search_counts_a_long_line_once() {
        let text = format!(
            "one\n{} error {}\nthree error\n",
            "x".repeat(3 << 20),
            "error".repeat(1 << 19)
        );
        let mut found = Search::default();
        search_in("a.txt", text.as_bytes(), "error", 10, &mut found);
        let places: Vec<_> = found.matches.iter().map(|found| (found.line, found.offset)).collect();
        assert_eq!(places, [(2, 4), (3, text.len() as u64 - 12)]);
    }

    #[test]
    fn text_consists_of_whole_lines() {
        let read = "eins\nzwölf\ndrei".as_bytes();
        let lines = |asked, is_end_given| {
            let range = whole_lines(read, asked, true, is_end_given);
            (range.clone(), starts(&read[range]).collect::<Vec<_>>())
        };
        assert_eq!(lines(0, true), (0..16, vec![0, 5, 12]));
        assert_eq!(lines(0, false), (0..12, vec![0, 5]));
        assert_eq!(lines(8, false), (5..12, vec![0]));
        assert_eq!(lines(5, true), (5..16, vec![0, 7]));
        assert_eq!(lines(12, false), (12..16, vec![0]), "no line is whole");
        assert_eq!(lines(16, true), (12..16, vec![0]));
        assert_eq!(starts(b"\xff\n\n").collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn piece_of_a_long_line_consists_of_whole_characters() {
        let read = "xüüüüx".as_bytes();
        assert_eq!(whole_lines(&read[..8], 2, false, false), 3..7);
        assert_eq!(whole_lines(&read[..7], 3, false, false), 3..7);
        assert_eq!(whole_lines(&read[..8], 2, false, true), 3..8);
        assert_eq!(whole_lines(&[0x80; 9], 2, false, false), 5..9, "bytes that are no characters");
        assert_eq!(whole_lines(&[], 0, false, false), 0..0);
    }

    #[tokio::test]
    async fn path_leads_to_a_log_file_only() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::local(folder.path()).expect("folder exists");
        store.put_log("user/a.txt", "text\n".into()).await.expect("writable");
        std::fs::write(folder.path().join("spec.json"), "{}").expect("writable");
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("logs/user/link"))
            .expect("writable");
        std::os::unix::fs::symlink("../../spec.json", folder.path().join("logs/user/up"))
            .expect("writable");
        assert_eq!(size(&store, "user/a.txt").await.expect("a file"), 5);
        let hostile = [
            "",
            "/",
            "..",
            "../spec.json",
            "user/../../spec.json",
            "/etc/passwd",
            "user",
            "user/link",
            "user/up",
            "user//a.txt/",
            "user/a.txt\0",
            "%2e%2e/spec.json",
            "./user/a.txt",
            "user/a.txt/..",
        ];
        for path in hostile {
            assert!(size(&store, path).await.is_err() || path == "user//a.txt/", "{path:?}");
        }
    }

    #[test]
    fn download_has_a_harmless_name() {
        for (name, expected) in
            [("a b\".html", "a_b_.html"), ("..", "download"), ("ä\r\nx", "___x"), ("", "download")]
        {
            let response = download(name, None, Body::empty());
            let disposition =
                response.headers()[CONTENT_DISPOSITION].to_str().expect("plain").to_owned();
            assert_eq!(disposition, format!("attachment; filename=\"{expected}\""));
            assert_eq!(response.headers()[CONTENT_TYPE], "application/octet-stream");
        }
    }
}
