//! Tests with stores and folders whose clocks are an hour ahead of that of this machine, or behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use object_store::aws::AmazonS3Builder;
use protocol::{JobSpec, Progress};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::{StoreOptions, TargetStore};

const HOUR: i64 = 3600;
const JOB: &str = "a-20261121-100203-ab12";

#[test]
fn folder_reports_the_time_of_its_server_and_keeps_no_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let clock = Clock::of_folder(folder.path());
    let reported = clock.reported().expect("the folder is writable");
    assert!((Utc::now() - reported).num_seconds().abs() < 60, "{reported}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0);
    let ahead = Utc::now() + chrono::Duration::hours(1);
    clock.record(ahead);
    assert!(clock.now() >= ahead, "the folder is read again only after a while");
    assert_eq!(Clock::of_folder(&folder.path().join("gone")).reported(), None);
}

#[test]
fn store_that_reports_no_time_has_that_of_this_machine() {
    let clock = Clock::default();
    assert_eq!(clock.reported(), None);
    assert!((Utc::now() - clock.now()).num_seconds().abs() < 60);
}

/// The objects of a bucket, each with its content and its age in seconds.
type Objects = BTreeMap<&'static str, (Vec<u8>, i64)>;

/// Serves a read-only bucket whose clock is this many seconds ahead.
async fn bucket(ahead: i64, objects: Objects) -> TargetStore {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = vec![0; 8192];
            let length = connection.read(&mut request).await.unwrap_or(0);
            let line = String::from_utf8_lossy(&request[..length])
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned();
            let _ = connection.write_all(&answer(&line, ahead, &objects)).await;
        }
    });
    let clock = Clock::default();
    let store = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_bucket_name("bucket")
        .with_access_key_id("test")
        .with_secret_access_key("test")
        .with_http_connector(ClockConnector {
            clock: clock.clone(),
            unnameable: SkippedKeys::default(),
        })
        .build()
        .expect("valid settings");
    let mut target = TargetStore::new(Arc::new(store), "target".into());
    target.clock = clock;
    target
}

fn answer(request: &str, ahead: i64, objects: &Objects) -> Vec<u8> {
    let now = Utc::now() + chrono::Duration::seconds(ahead);
    let url = request.split(' ').nth(1).unwrap_or_default();
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let written = |age: i64| now - chrono::Duration::seconds(age);
    let (status, modified, body) = match objects.get(path.trim_start_matches("/bucket/target/")) {
        _ if query.contains("list-type=2") => {
            let prefix = query
                .split('&')
                .find_map(|part| part.strip_prefix("prefix=target%2F"))
                .unwrap_or_default();
            let prefix = prefix.replace("%2F", "/");
            let listed = objects.iter().filter(|(name, _)| name.starts_with(&prefix)).map(|(name, (body, age))| {
                let (size, written) = (body.len(), written(*age).format("%Y-%m-%dT%H:%M:%S.000Z"));
                format!(
                    "<Contents><Key>target/{name}</Key><LastModified>{written}</LastModified><ETag>\"1\"</ETag>\
                     <Size>{size}</Size></Contents>"
                )
            });
            let listed: String = listed.collect();
            let page = format!(
                "<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
            );
            ("200 OK", now, page.into_bytes())
        }
        Some((body, age)) => ("200 OK", written(*age), body.clone()),
        None => ("404 Not Found", now, Vec::new()),
    };
    let date = |date: DateTime<Utc>| date.format("%a, %d %b %Y %H:%M:%S GMT");
    let head = format!(
        "HTTP/1.1 {status}\r\nDate: {}\r\nLast-Modified: {}\r\nETag: \"1\"\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        date(now),
        date(modified),
        body.len()
    );
    let body = if request.starts_with("HEAD") { Vec::new() } else { body };
    [head.into_bytes(), body].concat()
}

#[tokio::test]
async fn worker_that_renews_its_entry_is_listed_with_any_clock() {
    for ahead in [-HOUR, 0, HOUR] {
        let entry = |age| (b"{\"offer\": {\"gpus\": 1}}".to_vec(), age);
        let objects =
            Objects::from([("workers/alive", entry(20)), ("workers/killed", entry(1000))]);
        let target = bucket(ahead, objects).await;
        assert_eq!(target.worker_names().await.expect("readable"), ["alive"], "{ahead}");
        assert_eq!(target.workers().await.expect("readable").len(), 1, "{ahead}");
    }
}

#[tokio::test]
async fn entry_of_a_folder_is_stale_by_the_clock_of_its_server() {
    for ahead in [-HOUR, HOUR] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let url = url::Url::from_file_path(folder.path()).expect("absolute");
        let target =
            TargetStore::open(url.as_str(), StoreOptions::default()).await.expect("it is there");
        target.create().expect("writable");
        let now = Utc::now() + chrono::Duration::seconds(ahead);
        target.clock.record(now);
        for (name, age) in [("alive", 20), ("killed", 1000)] {
            target
                .put_worker(&protocol::NodeState { name: name.to_owned(), ..Default::default() })
                .await
                .expect("writable");
            let entry =
                std::fs::File::options().write(true).open(folder.path().join("workers").join(name));
            let written = SystemTime::from(now - chrono::Duration::seconds(age));
            entry.and_then(|entry| entry.set_modified(written)).expect("settable");
        }
        target.remove_stale_workers().await.expect("removable");
        assert_eq!(target.worker_names().await.expect("readable"), ["alive"], "{ahead}");
    }
}

#[tokio::test]
async fn announced_removal_expires_by_the_clock_of_the_store() {
    let spec = JobSpec { job_id: JOB.into(), ..JobSpec::example() };
    let mut spec = serde_json::to_value(spec).expect("plain data");
    spec["format"] = protocol::FORMAT.into();
    let spec = spec.to_string().into_bytes();
    for ahead in [-HOUR, 0, HOUR] {
        let announced = async |age| {
            let job = "jobs/a-20261121-100203-ab12/spec.json";
            let removing = "jobs/a-20261121-100203-ab12/control/removing";
            let objects =
                Objects::from([(job, (spec.clone(), 5000)), (removing, (Vec::new(), age))]);
            bucket(ahead, objects).await.is_being_removed(JOB).await.expect("readable")
        };
        assert!(announced(60).await, "{ahead}");
        assert!(!announced(1000).await, "{ahead}: an interrupted removal");
    }
}

#[tokio::test]
async fn job_during_its_submission_is_not_removed() {
    let recently = Duration::from_secs(3600);
    for ahead in [-HOUR, HOUR] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let url = url::Url::from_file_path(folder.path()).expect("absolute");
        let target =
            TargetStore::open(url.as_str(), StoreOptions::default()).await.expect("it is there");
        target.create().expect("writable");
        let now = Utc::now() + chrono::Duration::seconds(ahead);
        target.clock.record(now);
        let job = target.job(JOB);
        let put = async |name: &str, age| {
            job.objects.put(name, "").await.expect("writable");
            let object = std::fs::File::options()
                .write(true)
                .open(job.folder().expect("a folder").join(name));
            let written = SystemTime::from(now - chrono::Duration::seconds(age));
            object.and_then(|object| object.set_modified(written)).expect("settable");
        };
        put("inputs/table", 60).await;
        target.finish_old_removal(JOB, recently).await.expect("readable");
        assert!(
            target.job_ids().await.expect("readable").contains(&JOB.to_owned()),
            "{ahead}: it may be described soon"
        );
        put("control/removing", 60).await;
        target.finish_old_removal(JOB, recently).await.expect("removable");
        assert!(
            target.job_ids().await.expect("readable").is_empty(),
            "{ahead}: its removal was announced"
        );
        put("inputs/table", 4000).await;
        target.finish_old_removal(JOB, recently).await.expect("removable");
        assert!(
            target.job_ids().await.expect("readable").is_empty(),
            "{ahead}: no command is submitting it"
        );
    }
}

#[tokio::test]
async fn age_of_progress_is_by_the_clock_of_the_store() {
    let counts = r#"{"total": 1, "succeeded": 0, "failed": 0}"#;
    let progress = format!(
        r#"{{"at": 1, "started_at": 1, "planned": true, "mini_batches": {counts}, "items": {counts}, "retries": 0,
        "processes": 0, "waiting": []}}"#
    );
    for ahead in [-HOUR, 0, HOUR] {
        let name = "jobs/a-20261121-100203-ab12/progress.json";
        let objects = Objects::from([(name, (progress.clone().into_bytes(), 20))]);
        let read = bucket(ahead, objects).await.job(JOB).progress().await.expect("readable");
        let age = read
            .and_then(|Progress { age, .. }| age)
            .expect("the store reports the time")
            .as_secs();
        assert!((18..30).contains(&age), "{ahead}: {age}");
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("progress.json"), progress).expect("writable");
    let local = crate::JobStore::local(folder.path())
        .expect("it is there")
        .progress()
        .await
        .expect("readable");
    assert_eq!(local.expect("written").age, None, "a local job has the clock of this machine");
}
