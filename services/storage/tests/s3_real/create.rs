//! Tests of conditional creates.

use bytes::Bytes;
use futures::future::join_all;
use storage::check::{NotConditional, conditional_create_works};
use storage::{Commit, Error};

use crate::support::{Bucket, Fate, Proxy, Request, endpoint};
use crate::target;

fn is_create(request: &Request) -> bool {
    request.method == "PUT" && request.header("if-none-match") == Some("*")
}

/// Commits through a proxy that applies this fate to the first create.
async fn commit_through(bucket: &Bucket, fate: fn() -> Fate) -> (Result<Commit, Error>, usize) {
    let first = std::sync::atomic::AtomicBool::new(true);
    let proxy = Proxy::start(move |request, _| {
        let is_first =
            is_create(request) && first.swap(false, std::sync::atomic::Ordering::Relaxed);
        if is_first { fate() } else { Fate::Pass }
    });
    let job = target(bucket, &proxy.endpoint).await.job("one");
    let commit = job.commit_segment(0, vec![Bytes::from_static(b"ours")]).await;
    (commit, proxy.count(is_create))
}

#[tokio::test]
async fn one_of_sixteen_writers_wins() {
    let bucket = Bucket::new();
    let job = target(&bucket, &endpoint()).await.job("one");
    let commits =
        (0..16).map(|writer| job.commit_segment(7, vec![Bytes::from(format!("writer {writer}"))]));
    let commits = join_all(commits)
        .await
        .into_iter()
        .map(|commit| commit.expect("answered"))
        .collect::<Vec<_>>();
    let winners: Vec<_> = (0..16).filter(|&writer| commits[writer] == Commit::Committed).collect();
    assert_eq!(winners.len(), 1, "{commits:?}");
    let segment = job.segment(7).await.expect("readable").expect("committed");
    assert_eq!(segment, format!("writer {}", winners[0]));
}

#[tokio::test]
async fn store_with_conditional_creates_passes_the_check() {
    let bucket = Bucket::new();
    let target = target(&bucket, &endpoint()).await;
    assert_eq!(conditional_create_works(&target).await.expect("answered"), Ok(()));
    assert_eq!(bucket.keys(), Vec::<String>::new(), "nothing is left behind");
}

#[tokio::test]
async fn store_that_ignores_the_condition_fails_the_check() {
    let bucket = Bucket::new();
    let proxy = Proxy::start(|_, _| Fate::Strip("if-none-match"));
    let target = target(&bucket, &proxy.endpoint).await;
    let refused = conditional_create_works(&target)
        .await
        .expect("answered")
        .expect_err("the check must fail, because every writer created the object");
    assert!(matches!(refused, NotConditional::Ignored { deceived: 15 }), "{refused}");
}

#[tokio::test]
async fn failing_concurrent_create_is_retried() {
    let bucket = Bucket::new();
    let fate = || Fate::Fail(409, "<Error><Code>ConditionalRequestConflict</Code></Error>");
    let (commit, creates) = commit_through(&bucket, fate).await;
    assert_eq!((commit.expect("tried again"), creates), (Commit::Committed, 2));
    let segment = bucket.get("some/prefix/jobs/one/ledger/0000000000").expect("committed");
    assert_eq!(storage::records_of(&segment.into()).as_deref(), Some(&b"ours"[..]));
}

#[tokio::test]
async fn successful_concurrent_create_wins() {
    let bucket = Bucket::new();
    bucket.put("some/prefix/jobs/one/ledger/0000000000", b"theirs");
    let (commit, _) = commit_through(&bucket, || Fate::Fail(409, "")).await;
    assert_eq!(commit.expect("answered"), Commit::Lost);
}

#[tokio::test]
async fn create_with_lost_answer_recognises_its_object() {
    let bucket = Bucket::new();
    let (commit, creates) = commit_through(&bucket, || Fate::LoseAnswer).await;
    assert_eq!((commit.expect("found out"), creates), (Commit::Committed, 2));
}

#[tokio::test]
async fn create_at_a_busy_store_is_retried() {
    let bucket = Bucket::new();
    let (commit, creates) =
        commit_through(&bucket, || Fate::Fail(503, "<Error><Code>SlowDown</Code></Error>")).await;
    assert_eq!((commit.expect("tried again"), creates), (Commit::Committed, 2));
}
