//! Tests of reads of objects in the planned version.

use protocol::FileVersion;
use storage::Error;

use crate::stores;
use crate::support::{Bucket, Proxy, endpoint};

fn etag_of(bucket: &Bucket, key: &str) -> Option<String> {
    // A plan takes the ETag from a listing, too.
    let (_, listing) = crate::support::http(
        &endpoint(),
        "GET",
        &format!("/{}?list-type=2&prefix={key}", bucket.name),
        &[],
        b"",
    );
    let listing = String::from_utf8(listing).expect("XML");
    let (_, rest) = listing.split_once("<ETag>")?;
    Some(rest.split_once("</ETag>")?.0.replace("&quot;", "\""))
}

#[tokio::test]
async fn read_of_a_range_transfers_only_its_bytes() {
    let bucket = Bucket::new();
    bucket.put("a", &vec![b'x'; 3_000_000]);
    let proxy = Proxy::counting();
    let read =
        stores(&proxy.endpoint).read(&bucket.url("a"), None, 1000..3000).await.expect("readable");
    assert_eq!(read.len(), 2000);
    let bytes: Vec<_> = proxy.requests().iter().map(|request| request.answer_bytes).collect();
    assert_eq!(bytes, [2000]);
}

#[tokio::test]
async fn other_version_is_rejected_with_both_versions() {
    let bucket = Bucket::new();
    bucket.put("a", b"one,two\n");
    let etag = etag_of(&bucket, "a");
    let version = FileVersion { bytes: 8, etag: etag.clone(), modified: None };
    let proxy = Proxy::counting();
    let stores = stores(&proxy.endpoint);
    let url = bucket.url("a");
    assert_eq!(stores.read(&url, Some(&version), 0..3).await.expect("unchanged"), "one");
    assert_eq!(proxy.requests()[0].header("if-match"), etag.as_deref());

    bucket.put("a", b"two,one\n");
    let to = tempfile::tempdir().expect("temporary folder");
    let copy = to.path().join("a");
    for error in [
        stores.read(&url, Some(&version), 0..3).await.expect_err("the same size, and other bytes"),
        stores
            .download(&url, Some(&version), &copy)
            .await
            .expect_err("the same size, and other bytes"),
    ] {
        let Error::Changed { object, expected, found } = &error else { panic!("{error}") };
        assert_eq!(object, &url);
        assert_eq!(expected, &format!("ETag {}, 8 bytes", etag.as_deref().expect("S3 has them")));
        assert_eq!(
            found,
            &format!("ETag {}, 8 bytes", etag_of(&bucket, "a").expect("S3 has them"))
        );
    }
    assert!(!copy.exists());

    bucket.put("a", b"1\n");
    let error = stores.read(&url, Some(&version), 4..6).await.expect_err("the range is gone");
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    bucket.delete("a");
    let error = stores.read(&url, Some(&version), 0..3).await.expect_err("the object is gone");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn size_is_the_version_without_etag() {
    let bucket = Bucket::new();
    bucket.put("a", b"12345");
    let version = |bytes| FileVersion { bytes, etag: None, modified: None };
    let (stores, url) = (stores(&endpoint()), bucket.url("a"));
    stores.read(&url, Some(&version(5)), 0..2).await.expect("the same size");
    let error = stores.read(&url, Some(&version(4)), 0..2).await.expect_err("another size");
    assert!(
        error
            .to_string()
            .ends_with("has changed: it was 4 bytes, and is ETag \"827ccb0eea8a706c4c34a16891f84e7b\", 5 bytes now"),
        "{error}"
    );
}
