//! The streams of server-sent events.

use std::time::Duration;

use axum::body::BodyDataStream;
use futures::StreamExt;
use tokio::time::Instant;

use super::*;
use crate::fixtures::segment;

struct Event {
    name: String,
    id: u64,
    data: Value,
}

/// Opens a stream, as a browser does that got this event last.
async fn opened(portal: &TestPortal, job: Option<&str>, last_id: Option<u64>) -> BodyDataStream {
    let path = job.map_or("/api/v1/events".to_owned(), |job| format!("/api/v1/events?job={job}"));
    let last_id = last_id.map(|id| id.to_string());
    let head: Vec<_> =
        std::iter::once(BEARER).chain(last_id.as_deref().map(|id| ("last-event-id", id))).collect();
    portal.get(&path, &head).await.into_body().into_data_stream()
}

async fn next(events: &mut BodyDataStream) -> Event {
    let text = events.next().await.expect("an event").expect("bytes");
    let text = std::str::from_utf8(&text).expect("text");
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).expect(text).to_owned();
    let (id, data) = (field("id: ").parse().expect("a number"), field("data: "));
    Event { name: field("event: "), id, data: serde_json::from_str(&data).expect("JSON") }
}

async fn try_again(portal: &TestPortal, number: u64) {
    let attempt = tried(11, u32::try_from(number).expect("small"), RunRaised);
    portal.store.commit_segment(number, vec![segment(&[attempt])]).await.expect("writable");
}

#[tokio::test]
async fn stream_of_a_job_goes_on_after_the_last_event() {
    let portal = portal().await;
    let first = next(&mut opened(&portal, Some(JOB), None).await).await;
    // Something happens while the page is not connected.
    try_again(&portal, 1).await;
    tokio::time::sleep(Duration::from_millis(450)).await;
    let second = next(&mut opened(&portal, Some(JOB), Some(first.id)).await).await;
    assert!(second.name == "job" && second.id > first.id);
    assert_ne!(second.data["revision"], first.data["revision"], "nothing is missed");
    // Nothing happens: the next event comes with the next change.
    let mut events = opened(&portal, Some(JOB), Some(second.id)).await;
    let third = tokio::spawn(async move { next(&mut events).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    try_again(&portal, 2).await;
    let third = third.await.expect("no panic");
    assert_ne!(third.data["revision"], second.data["revision"], "nothing is repeated");
    assert!(third.id > second.id);
    // Of an event that the portal does not know, and of one of another stream, the page gets everything.
    for unknown in [7, third.id + 1_000_000_000] {
        let fourth = next(&mut opened(&portal, Some(JOB), Some(unknown)).await).await;
        assert_eq!(fourth.data["revision"], third.data["revision"]);
        assert!(
            fourth.id > unknown && fourth.id > third.id,
            "ids grow, even after a clock was set back"
        );
    }
    let listed = next(&mut opened(&portal, None, Some(third.id)).await).await;
    assert_eq!(listed.name, "jobs");
}

#[tokio::test]
async fn stream_of_the_list_tells_what_has_changed_meanwhile() {
    let portal = portal().await;
    let first = next(&mut opened(&portal, None, None).await).await;
    assert_eq!(first.data["changed"], serde_json::json!([]));
    let other = "other-20260101-000001-abcd";
    let folder =
        portal.store.folder().and_then(std::path::Path::parent).expect("local").join(other);
    std::fs::create_dir_all(&folder).expect("writable");
    let spec = JobSpec { job_id: other.to_owned(), ..JobSpec::example() };
    JobStore::local(&folder).expect("folder exists").put_spec(&spec).await.expect("writable");
    let second = next(&mut opened(&portal, None, Some(first.id)).await).await;
    assert_eq!(second.data["changed"], serde_json::json!([other]));
    let mut unknown = next(&mut opened(&portal, None, Some(7)).await).await;
    let changed = unknown.data["changed"].as_array_mut().expect("an array");
    changed.sort_by_key(ToString::to_string);
    assert_eq!(*changed, [JOB, other]);
}

#[tokio::test]
async fn stream_sends_at_most_two_events_a_second() {
    let portal = portal().await;
    let began = Instant::now();
    let mut events = opened(&portal, Some(JOB), None).await;
    let mut ids = Vec::new();
    let read = async {
        for _ in 0..4 {
            ids.push(next(&mut events).await.id);
        }
    };
    let changes = async {
        for number in 1.. {
            try_again(&portal, number).await;
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    };
    tokio::select! {
        () = read => {}
        () = changes => unreachable!("it has no end"),
    }
    assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
    assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
}

#[tokio::test]
async fn stream_sends_the_job_at_once_and_ends_when_it_is_removed() {
    let portal = portal().await;
    let response = portal.get(&format!("/api/v1/events?job={JOB}"), &[BEARER]).await;
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    let mut events = response.into_body().into_data_stream();
    let first = String::from_utf8(events.next().await.expect("one").expect("bytes").to_vec())
        .expect("text");
    assert!(first.starts_with("event: job\nid: ") && first.ends_with("\n\n"), "{first}");
    assert_eq!(first.lines().filter(|line| line.starts_with("data: ")).count(), 1);
    std::fs::remove_dir_all(portal.store.folder().expect("local")).expect("removable");
    let last = events.next().await.expect("one").expect("bytes");
    assert!(last.starts_with(b"event: removed\n"));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn streams_are_limited() {
    let portal = portal().await;
    let mut open = Vec::new();
    for _ in 0..events::STREAMS_MAX {
        let response = portal.get("/api/v1/events", &[BEARER]).await;
        assert_eq!(response.status(), StatusCode::OK);
        open.push(response);
    }
    assert_eq!(
        portal.get("/api/v1/events", &[BEARER]).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    open.pop();
    assert_eq!(portal.get("/api/v1/events", &[BEARER]).await.status(), StatusCode::OK);
}
