//! Removes keys that no path can name from the listings of buckets and containers: `jobs//x`, or a key with a control
//! character. `folder.rs` does the same for folders.
//!
//! Any client that may write into a bucket can create such a key, and `object_store` could not read a page that has
//! one. So this client changes the page before `object_store` reads it, and `doctor` names the keys.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::client::{HttpClient, HttpError, HttpRequest, HttpResponse, HttpService};
use object_store::path::Path as ObjectPath;

/// The largest number of keys that are kept for `doctor`.
const NAMED_MAX: usize = 20;

/// The tags of entries in a listing, and of their names: two of S3 and Google, and two of Azure.
const ENTRIES: [[&str; 4]; 4] = [
    ["<Contents>", "</Contents>", "<Key>", "</Key>"],
    ["<CommonPrefixes>", "</CommonPrefixes>", "<Prefix>", "</Prefix>"],
    ["<Blob>", "</Blob>", "<Name>", "</Name>"],
    ["<BlobPrefix>", "</BlobPrefix>", "<Name>", "</Name>"],
];

/// The skipped keys: only the first ones in the order of their names. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SkippedKeys(Arc<Mutex<BTreeSet<String>>>);

impl SkippedKeys {
    pub fn keys(&self) -> Vec<String> {
        self.0.lock().expect("no panic while it was held").iter().cloned().collect()
    }

    pub fn add(&self, keys: impl IntoIterator<Item = String>) {
        let mut known = self.0.lock().expect("no panic while it was held");
        known.extend(keys);
        while known.len() > NAMED_MAX {
            known.pop_last();
        }
    }
}

/// A client of a store whose listings are XML.
#[derive(Debug)]
pub(crate) struct ListingClient {
    pub client: HttpClient,
    pub unnameable: SkippedKeys,
}

#[async_trait]
impl HttpService for ListingClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // The first is of S3 and Google, the second of Azure.
        let is_listing = |query: &str| query.contains("list-type=2") || query.contains("comp=list");
        let is_listing = request.uri().query().is_some_and(is_listing);
        let response = self.client.execute(request).await?;
        if !is_listing || !response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = body.bytes().await?;
        let (body, left_out) = nameable(body);
        self.unnameable.add(left_out);
        Ok(HttpResponse::from_parts(head, body.into()))
    }
}

/// Returns the XML of a page without the keys and prefixes that no path can name, and the list of these.
fn nameable(body: Bytes) -> (Bytes, Vec<String>) {
    let Ok(text) = std::str::from_utf8(&body) else { return (body, Vec::new()) };
    let (mut kept, mut left_out) = (Cow::Borrowed(text), Vec::new());
    for tags in ENTRIES {
        let (without, names) = without_unnameable(&kept, tags);
        left_out.extend(names);
        if let Cow::Owned(without) = without {
            kept = without.into();
        }
    }
    match left_out.is_empty() {
        true => (body, left_out),
        false => (kept.into_owned().into(), left_out),
    }
}

/// Returns the text without the entries between `open` and `close` whose names, between `name` and `name_end`, no path
/// can have, and the list of these names. Copies the text only if it has such an entry.
fn without_unnameable<'a>(
    text: &'a str,
    [open, close, name, name_end]: [&str; 4],
) -> (Cow<'a, str>, Vec<String>) {
    let (mut kept, mut left_out) = (String::new(), Vec::new());
    let (mut copied, mut read) = (0, 0);
    while let Some(before) = text[read..].find(open) {
        let start = read + before;
        let Some(length) = text[start..].find(close) else { break };
        read = start + length + close.len();
        let key = text[start..read].split_once(name).and_then(|(_, key)| key.split_once(name_end));
        let key = key.map(|(key, _)| unescaped(key));
        if let Some(key) = key.filter(|key| ObjectPath::parse(key).is_err()) {
            kept.push_str(&text[copied..start]);
            copied = read;
            left_out.push(key);
        }
    }
    if left_out.is_empty() {
        return (text.into(), left_out);
    }
    kept.push_str(&text[copied..]);
    (kept.into(), left_out)
}

/// Decodes the character references of an XML text.
fn unescaped(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let Some((name, behind)) = after.split_once(';') else {
            rest = &rest[before.len()..];
            break;
        };
        let number = name.strip_prefix('#').map(|number| match number.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => number.parse(),
        });
        let character = match (name, number) {
            ("amp", _) => Some('&'),
            ("lt", _) => Some('<'),
            ("gt", _) => Some('>'),
            ("quot", _) => Some('"'),
            ("apos", _) => Some('\''),
            (_, Some(Ok(number))) => char::from_u32(number),
            _ => None,
        };
        plain.push(character.unwrap_or(char::REPLACEMENT_CHARACTER));
        rest = behind;
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(keys: &[&str], prefixes: &[&str]) -> String {
        let contents =
            keys.iter().map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>"));
        let prefixes = prefixes
            .iter()
            .map(|key| format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"));
        let entries = contents.chain(prefixes).collect::<String>();
        format!(
            "<ListBucketResult><Name>b</Name><Prefix>jobs/</Prefix>{entries}<KeyCount>1</KeyCount></ListBucketResult>"
        )
    }

    #[test]
    fn keys_without_a_path_are_left_out() {
        let plain = page(&["jobs/a/x", "jobs/a&amp;b/", "jobs/\u{e9}"], &["jobs/a/", "jobs/b/"]);
        assert_eq!(nameable(plain.clone().into()), (plain.into(), vec![]));
        let strange = ["jobs//logs/x", "jobs/a&#x1;b", "jobs/../x", "jobs/&#10;", "jobs/\u{7f}"];
        let mut keys = vec!["jobs/a", "jobs/z"];
        keys.splice(1..1, strange);
        let (kept, left_out) = nameable(page(&keys, &["jobs//", "jobs/a/"]).into());
        assert_eq!(kept, page(&["jobs/a", "jobs/z"], &["jobs/a/"]));
        assert_eq!(
            left_out,
            ["jobs//logs/x", "jobs/a\u{1}b", "jobs/../x", "jobs/\n", "jobs/\u{7f}", "jobs//"]
        );
    }

    #[test]
    fn blobs_without_a_path_are_left_out() {
        let page = |names: &[&str], prefixes: &[&str]| {
            let blobs =
                names.iter().map(|name| format!("<Blob><Name>{name}</Name><Properties /></Blob>"));
            let prefixes =
                prefixes.iter().map(|name| format!("<BlobPrefix><Name>{name}</Name></BlobPrefix>"));
            format!(
                "<EnumerationResults><Blobs>{}</Blobs></EnumerationResults>",
                blobs.chain(prefixes).collect::<String>()
            )
        };
        let (kept, left_out) =
            nameable(page(&["jobs//x", "jobs/a"], &["jobs//", "jobs/b/"]).into());
        assert_eq!(kept, page(&["jobs/a"], &["jobs/b/"]));
        assert_eq!(left_out, ["jobs//x", "jobs//"]);
    }

    #[test]
    fn only_the_first_keys_are_kept() {
        let unnameable = SkippedKeys::default();
        unnameable.add((0..100).map(|number| format!("jobs//{number:03}")));
        assert_eq!(unnameable.keys().len(), NAMED_MAX);
        assert_eq!(unnameable.keys()[0], "jobs//000");
    }
}
