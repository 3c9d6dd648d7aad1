//! Tests of uploads of objects of any size.

use bytes::Bytes;
use storage::Error;

use crate::support::{Bucket, Request, endpoint};
use crate::{counted, stores, target};

const MIB: usize = 1 << 20;

fn is_copy(request: &Request) -> bool {
    request.header("x-amz-copy-source").is_some()
}

fn is_part(request: &Request) -> bool {
    request.method == "PUT" && request.path.contains("partNumber=")
}

/// Returns bytes in which no two places look alike.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at + seed) % 251) as u8 ^ (at >> 16) as u8).collect()
}

#[tokio::test]
async fn small_object_takes_one_request() {
    let bucket = Bucket::new();
    let (target, proxy) = counted(&bucket).await;
    let before = proxy.requests().len();
    let mut upload = target.stores().upload(&bucket.url("out/a%20b.txt"), 4).await.expect("opened");
    upload.write(Bytes::from_static(b"on")).await.expect("collected");
    upload.write(Bytes::from_static(b"e\n")).await.expect("collected");
    upload.finish().await.expect("written");
    assert_eq!(bucket.get("out/a%20b.txt").as_deref(), Some(&b"one\n"[..]));
    assert_eq!(proxy.requests().len() - before, 1);
    target
        .stores()
        .upload(&bucket.url("empty"), 0)
        .await
        .expect("opened")
        .finish()
        .await
        .expect("written");
    assert_eq!(bucket.get("empty").as_deref(), Some(&b""[..]));
}

#[tokio::test]
async fn s3_copies_large_parts_and_small_parts_are_combined() {
    let bucket = Bucket::new();
    let (target, proxy) = counted(&bucket).await;
    let job = target.job("one");
    // In order: parts that are too small alone, but enough together; a large one; one that is large enough after its
    // beginning is fetched; one that is just enough; parts that are too small behind others; a large one at the end.
    let sizes = [
        MIB,
        3 * MIB,
        2 * MIB,
        6 * MIB,
        100,
        11 * MIB,
        5 * MIB + 1,
        MIB + 7,
        5 * MIB,
        12 * MIB + 13,
    ];
    let mut expected = b"the header\n".to_vec();
    for (index, &size) in sizes.iter().enumerate() {
        let rows = pattern(index, size);
        expected.extend(&rows);
        job.put_part(&index.to_string(), rows.into()).await.expect("writable");
    }
    let before = proxy.requests().len();
    let mut upload = target
        .stores()
        .upload(&bucket.url("out.txt"), expected.len() as u64)
        .await
        .expect("opened");
    upload.write(Bytes::from_static(b"the header\n")).await.expect("collected");
    for (index, &size) in sizes.iter().enumerate() {
        upload.write_part(&job, &index.to_string(), size as u64).await.expect("appended");
    }
    assert_eq!(bucket.get("out.txt"), None, "it appeared before it was complete");
    upload.finish().await.expect("written");
    assert!(
        bucket.get("out.txt").expect("there") == expected,
        "the bytes differ from those written"
    );
    assert_eq!(bucket.uploads(), Vec::<String>::new());

    let requests = proxy.requests().split_off(before);
    let copies = requests.iter().filter(|request| is_copy(request)).count();
    assert_eq!(copies, 4, "of 6, of 11, of 5 and of 12 MiB");
    let travelled: usize =
        requests.iter().map(|request| request.body.len() + request.answer_bytes).sum();
    assert!(
        travelled < 48 * MIB,
        "{travelled} bytes travelled for {} that were written",
        expected.len()
    );
    let uploaded: Vec<_> = requests
        .iter()
        .filter(|request| is_part(request) && !is_copy(request))
        .map(|request| request.body.len())
        .collect();
    assert!(
        uploaded.iter().all(|&bytes| bytes >= 5 * MIB),
        "S3 rejects smaller parts: {uploaded:?}"
    );
}

#[tokio::test]
async fn aborted_upload_leaves_nothing() {
    let bucket = Bucket::new();
    let mut upload = stores(&endpoint()).upload(&bucket.url("a"), 0).await.expect("opened");
    upload.write(pattern(0, 9 * MIB).into()).await.expect("sent");
    assert_eq!(bucket.uploads().len(), 1);
    upload.abort().await;
    assert_eq!((bucket.uploads(), bucket.keys()), (vec![], vec![]));
}

#[tokio::test]
async fn finished_upload_removes_other_uploads() {
    let bucket = Bucket::new();
    let stores = stores(&endpoint());
    let content = Bytes::from(pattern(0, 9 * MIB));
    let mut uploads = Vec::new();
    for key in ["a", "a", "a", "ab"] {
        let mut upload = stores.upload(&bucket.url(key), 0).await.expect("opened");
        upload.write(content.clone()).await.expect("sent");
        uploads.push(upload);
    }
    let [dead, slow, quick, other] = <[_; 4]>::try_from(uploads).expect("four");
    drop(dead);
    quick.finish().await.expect("written");
    assert_eq!(bucket.uploads().len(), 1, "that of another object");
    let error = slow.finish().await.expect_err("its upload is gone");
    assert!(matches!(error, Error::Superseded { .. }), "{error}");
    other.finish().await.expect("written");
    assert_eq!(bucket.keys(), ["a", "ab"]);
}

#[tokio::test]
async fn missing_or_truncated_part_is_named() {
    let bucket = Bucket::new();
    let target = target(&bucket, &endpoint()).await;
    let job = target.job("one");
    job.put_part("0-1", Bytes::from_static(b"who")).await.expect("writable");
    let mut upload = target.stores().upload(&bucket.url("a"), 0).await.expect("opened");
    let error = upload.write_part(&job, "0-1", 6).await.expect_err("three bytes are missing");
    assert_eq!(format!("{error:#}"), "part 0-1 is damaged: it has 3 bytes instead of 6");
    let error = upload.write_part(&job, "1-1", 6).await.expect_err("it is not there");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}
