//! Tests of the objects of a compute target and of its jobs.

use std::fs;

use bytes::Bytes;
use futures::StreamExt;
use storage::{Error, TargetStore};

use crate::support::{Bucket, Fate, Proxy, endpoint};
use crate::{counted, options, target};

#[tokio::test]
async fn missing_bucket_is_named_on_opening() {
    let error = TargetStore::open("s3://no-such-bucket-anywhere/x", options(&endpoint()))
        .await
        .expect_err("no bucket");
    let text = format!("{error:#}");
    assert!(
        text.starts_with("s3://no-such-bucket-anywhere/x: there is no such bucket; create it"),
        "{text}"
    );
}

#[tokio::test]
async fn rejected_credentials_are_named_in_one_line() {
    let bucket = Bucket::new();
    const UNKNOWN: &str = "<Error><Code>InvalidAccessKeyId</Code>\n<Message>It does not exist\nin our records.</Message></Error>";
    const EXPIRED: &str =
        "<Error><Code>ExpiredToken</Code><Message>The token has\nexpired.</Message></Error>";
    for (status, answer, words) in [
        (403, UNKNOWN, "It does not exist in our records"),
        (400, EXPIRED, "The token has expired"),
    ] {
        let proxy = Proxy::start(move |_, _| Fate::Fail(status, answer));
        let opened = TargetStore::open(&bucket.url("x"), options(&proxy.endpoint)).await;
        let error = opened.expect_err("refused");
        assert!(matches!(error, Error::Denied { .. }), "{error:?}");
        let expected = format!("access denied; check the credentials and what they allow: {words}");
        let text = format!("{error:#}");
        assert!(text.contains(&expected) && !text.contains('\n'), "{text}");
    }
}

#[tokio::test]
async fn unreachable_store_is_named() {
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let url = "s3://bucket/x";
    let opened = TargetStore::open(url, options(&format!("http://{free}")));
    let error = opened.await.expect_err("nothing listens");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let expected = format!("s3://bucket/x at http://{free}: ");
    assert!(format!("{error:#}").starts_with(&expected), "{error:#}");
}

#[tokio::test]
async fn open_jobs_exclude_ended_jobs() {
    let bucket = Bucket::new();
    let target = target(&bucket, &endpoint()).await;
    for job in ["b", "a", "c"] {
        target.job(job).create_plan_chunk(0, Bytes::from_static(b"{}\n")).await.expect("writable");
        target.mark_open(job).await.expect("writable");
    }
    target.mark_ended("b").await.expect("deletable");
    target.mark_ended("b").await.expect("ended already");
    assert_eq!(target.open_ids().await.expect("listable"), ["a", "c"]);
    assert_eq!(target.job_ids().await.expect("listable"), ["a", "b", "c"]);
}

#[tokio::test]
async fn snapshot_is_uploaded_once() {
    let bucket = Bucket::new();
    let (target, proxy) = counted(&bucket).await;
    let folder = tempfile::tempdir().expect("temporary folder");
    let content: Vec<u8> = (0..20_000_000u32).map(|byte| (byte % 251) as u8).collect();
    let file = folder.path().join("packed");
    fs::write(&file, &content).expect("writable");
    assert!(target.put_snapshot("d1", &file).await.expect("uploaded"));
    let before = proxy.requests().len();
    assert!(!target.put_snapshot("d1", &file).await.expect("there already"));
    assert_eq!(proxy.requests().len(), before + 1, "it was uploaded again");
    let copy = folder.path().join("copy");
    target.snapshot("d1", &copy).await.expect("downloaded");
    assert!(fs::read(&copy).expect("there") == content);
    assert!(matches!(target.snapshot("d2", &copy).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn logs_are_sorted_by_path() {
    let bucket = Bucket::new();
    let job = target(&bucket, &endpoint()).await.job("one");
    for path in ["user/b.txt", "sys/node/0/a.txt", "overview.txt"] {
        job.put_log(path, Bytes::from(format!("{path}\n"))).await.expect("writable");
    }
    let logs = job.logs().await.expect("listable");
    let found: Vec<_> = logs.iter().map(|log| (log.path.as_str(), log.bytes)).collect();
    assert_eq!(found, [("overview.txt", 13), ("sys/node/0/a.txt", 17), ("user/b.txt", 11)]);
    assert_eq!(job.log("user/b.txt").await.expect("readable"), "user/b.txt\n");
}

#[tokio::test]
async fn parts_are_deleted_in_large_requests() {
    let bucket = Bucket::new();
    let (target, proxy) = counted(&bucket).await;
    let job = target.job("one");
    let puts = (0..1100).map(|part| {
        let job = job.clone();
        async move {
            job.put_part(&format!("{part}-1"), Bytes::from_static(b"rows")).await.expect("writable")
        }
    });
    futures::stream::iter(puts).buffer_unordered(8).collect::<Vec<()>>().await;
    let before = proxy.requests().len();
    job.delete_parts().await.expect("deletable");
    assert!(proxy.requests().len() - before <= 4, "two listings, two deletions");
    assert!(matches!(job.part("7-1").await, Err(Error::NotFound { .. })));
    job.delete_parts().await.expect("deletable when there are none");
}
