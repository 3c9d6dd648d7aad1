//! Sends requests to the portal's router and checks the answers and their access control.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderName, Method, Request, StatusCode};
use axum::response::Response;
use engine::{Engine, Settings};
use protocol::AttemptStatus::{RunRaised, Succeeded};
use protocol::{Counts, JobResult, JobSpec, JobState, Planned, ResultEvent};
use serde_json::Value;
use storage::JobStore;
use tower::ServiceExt;

mod streams;

use super::*;
use crate::fixtures::{segment_of, tried, words};

const TOKEN: &str = "0123456789abcdef";
const BEARER: (&str, &str) = ("authorization", "Bearer 0123456789abcdef");
const JOB: &str = "hostile-20260101-000000-abcd";

/// A portal of one machine with one job.
struct TestPortal {
    _folder: tempfile::TempDir,
    engine: Engine,
    router: Router,
    jobs: Jobs,
    store: JobStore,
}

fn access() -> Access {
    Access { token: Token::chosen(TOKEN.to_owned()).ok(), ..Access::default() }
}

async fn portal_with(access: Access, is_read_only: bool, result: Option<JobResult>) -> TestPortal {
    let folder = tempfile::tempdir().expect("temporary folder");
    let engine = Engine::new(Settings::new(folder.path().to_owned()));
    let job_folder = folder.path().join("jobs").join(JOB);
    std::fs::create_dir_all(&job_folder).expect("writable");
    let store = JobStore::local(&job_folder).expect("folder exists");
    let spec = JobSpec {
        job_id: JOB.to_owned(),
        name: "hostile".to_owned(),
        description: "<script>alert(1)</script>\u{1b}[2J".to_owned(),
        ..JobSpec::example()
    };
    store.put_spec(&spec).await.expect("writable");
    let planned = ResultEvent::Planned(Planned { mini_batches: 12, items: None });
    let mut attempts: Vec<_> = (0..9).map(|n| tried(n, 1, Succeeded)).collect();
    attempts.push(tried(9, 1, RunRaised));
    attempts.push(tried(10, 1, RunRaised));
    attempts[10].is_final = true;
    store.commit_segment(0, vec![segment_of(&[planned], &attempts)]).await.expect("writable");
    store
        .put_log("user/stdout/n/process000.stdout.txt", "one\n<b>two</b> \u{1b}[31mred\n".into())
        .await
        .expect("writable");
    if let Some(result) = result {
        store.create_result(&result).await.expect("writable");
    }
    let options = Options { is_read_only, access, ..options(&engine) };
    let (jobs, router) = (engine.jobs(), routes::router(Portal::new(options).0, 7780));
    TestPortal { _folder: folder, engine, router, jobs, store }
}

fn options(engine: &Engine) -> Options {
    Options {
        engine: engine.clone(),
        jobs: engine.jobs(),
        target: None,
        targets: vec!["prod".to_owned()],
        own_jobs: OwnJobs::default(),
        are_steps: false,
        is_read_only: false,
        access: access(),
        words: words(),
    }
}

async fn portal() -> TestPortal {
    portal_with(access(), false, None).await
}

type Head<'a> = &'a [(&'a str, &'a str)];

impl TestPortal {
    async fn send(
        &self,
        method: Method,
        path: &str,
        head: Head<'_>,
        body: &'static str,
    ) -> Response {
        let mut request = Request::builder().method(method).uri(path);
        if !head.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:7780");
        }
        for (name, value) in head {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body)).expect("a request");
        self.router.clone().oneshot(request).await.expect("an answer")
    }

    async fn get(&self, path: &str, head: Head<'_>) -> Response {
        self.send(Method::GET, path, head, "").await
    }

    /// Returns an answer of the API to somebody who holds the token.
    async fn api(&self, path: &str) -> (StatusCode, Value) {
        let response = self.get(&format!("/api/v1{path}"), &[BEARER]).await;
        let status = response.status();
        (status, serde_json::from_slice(&bytes(response).await).expect("JSON"))
    }
}

async fn bytes(response: Response) -> Vec<u8> {
    to_bytes(response.into_body(), usize::MAX).await.expect("a body").to_vec()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().expect("plain"))
}

#[tokio::test]
async fn only_holder_of_the_token_gets_answers() {
    let portal = portal().await;
    let path = "/api/v1/jobs";
    let cases: [(Head<'_>, StatusCode); 9] = [
        (&[], StatusCode::UNAUTHORIZED),
        (&[BEARER], StatusCode::OK),
        (&[("authorization", "Bearer 0123456789abcdeF")], StatusCode::UNAUTHORIZED),
        (&[("authorization", "Bearer ")], StatusCode::UNAUTHORIZED),
        (&[("authorization", "Basic 0123456789abcdef")], StatusCode::UNAUTHORIZED),
        (&[("cookie", "a=b; gristmill_portal_7780=0123456789abcdef")], StatusCode::OK),
        (&[("cookie", "gristmill_portal_7781=0123456789abcdef")], StatusCode::UNAUTHORIZED),
        (&[("cookie", "gristmill_portal_7780=0123456789abcde")], StatusCode::UNAUTHORIZED),
        (&[("x-user", "me")], StatusCode::UNAUTHORIZED),
    ];
    for (head, expected) in cases {
        assert_eq!(portal.get(path, head).await.status(), expected, "{head:?}");
    }
    let query = portal.get("/api/v1/jobs?token=0123456789abcdef", &[]).await;
    assert_eq!(
        query.status(),
        StatusCode::UNAUTHORIZED,
        "a token in the address of the API would end in logs"
    );
    assert_eq!(portal.get("/", &[]).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn printed_address_becomes_a_cookie_without_the_token() {
    let portal = portal().await;
    let response = portal.get("/?token=0123456789abcdef", &[]).await;
    assert_eq!((response.status(), header(&response, "location")), (StatusCode::SEE_OTHER, "/"));
    let cookie = header(&response, "set-cookie").to_owned();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().expect("one");
    assert_eq!(portal.get("/", &[("cookie", cookie)]).await.status(), StatusCode::OK);
    let wrong = portal.get("/?token=0123456789abcdee", &[]).await;
    assert_eq!((wrong.status(), header(&wrong, "set-cookie")), (StatusCode::UNAUTHORIZED, ""));
}

#[tokio::test]
async fn trusted_header_stands_for_the_token() {
    let trusted_header = Some(HeaderName::from_static("x-user"));
    let portal = portal_with(Access { trusted_header, ..Access::default() }, false, None).await;
    assert_eq!(portal.get("/api/v1/jobs", &[("x-user", "me")]).await.status(), StatusCode::OK);
    assert_eq!(
        portal.get("/api/v1/jobs", &[("x-user", "")]).await.status(),
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(portal.get("/api/v1/jobs", &[]).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn foreign_host_or_origin_is_refused() {
    let portal =
        portal_with(Access { hosts: vec!["grist.example".to_owned()], ..access() }, false, None)
            .await;
    let cases = [
        ("127.0.0.1:7780", "http://127.0.0.1:7780", StatusCode::OK),
        ("localhost:7780", "http://localhost:7780", StatusCode::OK),
        ("[::1]:7780", "http://[::1]:7780", StatusCode::OK),
        ("10.0.0.7:7780", "http://10.0.0.7:7780", StatusCode::OK),
        ("grist.example", "https://grist.example", StatusCode::OK),
        ("evil.example:7780", "http://evil.example:7780", StatusCode::FORBIDDEN),
        ("127.0.0.1.evil.example", "http://127.0.0.1.evil.example", StatusCode::FORBIDDEN),
        ("127.0.0.1:7780", "http://evil.example", StatusCode::FORBIDDEN),
        ("127.0.0.1:7780", "http://127.0.0.1:7781", StatusCode::FORBIDDEN),
        ("127.0.0.1:7780", "null", StatusCode::FORBIDDEN),
    ];
    for (host, origin, expected) in cases {
        let response =
            portal.get("/api/v1/jobs", &[("host", host), ("origin", origin), BEARER]).await;
        assert_eq!(response.status(), expected, "{host} {origin}");
    }
    assert_eq!(
        portal.get("/api/v1/jobs", &[("host", ""), BEARER]).await.status(),
        StatusCode::FORBIDDEN
    );
}

#[tokio::test]
async fn action_needs_json_and_permission() {
    let portal = portal_with(access(), true, None).await;
    let path = format!("/api/v1/jobs/{JOB}/cancel");
    let form = ("content-type", "application/x-www-form-urlencoded");
    assert_eq!(
        portal.send(Method::POST, &path, &[BEARER, form], "a=b").await.status(),
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    );
    let json = ("content-type", "application/json");
    let again = format!("/api/v1/jobs/{JOB}/mini-batches/3/run");
    for path in [path, again, format!("/api/v1/jobs/{JOB}/retry"), "/api/v1/doctor".to_owned()]
        .into_iter()
        .chain(["redrive", "delete"].map(|what| format!("/api/v1/target/dead-letters/{what}")))
    {
        assert_eq!(
            portal.send(Method::POST, &path, &[BEARER, json], "{}").await.status(),
            StatusCode::FORBIDDEN
        );
        assert_eq!(
            portal.get(&path, &[BEARER]).await.status(),
            StatusCode::METHOD_NOT_ALLOWED,
            "{path}"
        );
    }
}

#[tokio::test]
async fn every_answer_has_the_headers_that_protect_browsers() {
    let portal = portal().await;
    for path in ["/", "/?token=0123456789abcdef", "/api/v1/jobs", "/nothing", "/api/v1/nothing"] {
        let response = portal.get(path, &[]).await;
        let policy = header(&response, "content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'")
                && !policy.contains("unsafe"),
            "{path}"
        );
        assert!(policy.contains("frame-ancestors 'none'"));
        assert_eq!(header(&response, "x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header(&response, "referrer-policy"), "no-referrer");
        assert_eq!(header(&response, "access-control-allow-origin"), "");
    }
}

#[tokio::test]
async fn hostile_names_lead_nowhere() {
    let portal = portal().await;
    std::fs::write(portal.store.folder().expect("local").join("../secret"), "secret")
        .expect("writable");
    let ids = [
        "..",
        ".",
        "%2e%2e",
        "..%2f..",
        "%2e%2e%2fsecret",
        "a%00b",
        "%3Cscript%3E",
        "-x",
        &"a".repeat(5000),
    ];
    for id in ids {
        let (status, answer) = portal.api(&format!("/jobs/{id}")).await;
        assert!(
            matches!(status, StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST),
            "{id}: {status} {answer}"
        );
    }
    for path in [
        "../spec.json",
        "..%2fspec.json",
        "%2e%2e/spec.json",
        "/etc/passwd",
        "user/../../spec.json",
        "user%00",
        "",
    ] {
        for what in ["text", "raw"] {
            let (status, answer) =
                portal.api(&format!("/jobs/{JOB}/logs/{what}?path={path}")).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{path}: {answer}");
        }
    }
    for path in ["/../Cargo.toml", "/%2e%2e/Cargo.toml", "/assets/../index.html.x", "//etc/passwd"]
    {
        let response = portal.get(path, &[BEARER]).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn texts_of_users_are_json_and_downloads_are_never_shown() {
    let portal = portal().await;
    let response = portal.get(&format!("/api/v1/jobs/{JOB}"), &[BEARER]).await;
    assert_eq!(header(&response, "content-type"), "application/json");
    let job: Value = serde_json::from_slice(&bytes(response).await).expect("JSON");
    assert_eq!(job["description"], "<script>alert(1)</script>\u{1b}[2J");
    let (_, text) = portal
        .api(&format!("/jobs/{JOB}/logs/text?path=user/stdout/n/process000.stdout.txt&from=0"))
        .await;
    assert_eq!(text["text"], "one\n<b>two</b> \u{1b}[31mred\n");
    let raw = portal
        .get(
            &format!("/api/v1/jobs/{JOB}/logs/raw?path=user/stdout/n/process000.stdout.txt"),
            &[BEARER],
        )
        .await;
    assert_eq!(header(&raw, "content-type"), "application/octet-stream");
    assert_eq!(
        header(&raw, "content-disposition"),
        "attachment; filename=\"process000.stdout.txt\""
    );
}

#[tokio::test]
async fn status_and_portal_show_the_same() {
    let ended = JobResult {
        mini_batches: Counts { total: 12, succeeded: 9, failed: 1 },
        items: Counts { total: 48, succeeded: 27, failed: 13 },
        cause: Some(
            "The number of failed items is 13, which exceeds error threshold 10.".to_owned(),
        ),
        elapsed_seconds: 12.5,
        ..JobResult::new(JOB.to_owned(), JobState::Failed, String::new())
    };
    for result in [None, Some(ended)] {
        let portal = portal_with(access(), false, result).await;
        let status = portal.jobs.status(JOB).await.expect("it is there").document(words().hint);
        let status = serde_json::to_value(status).expect("JSON");
        let (_, job) = portal.api(&format!("/jobs/{JOB}")).await;
        for (key, value) in status.as_object().expect("an object") {
            // The clock runs while there is no written progress.
            let value_of = |value: &Value| {
                let mut value = value.clone();
                for time in ["at", "started_at"] {
                    value.as_object_mut().and_then(|object| object.remove(time));
                }
                value
            };
            assert_eq!(value_of(&job[key]), value_of(value), "{key}");
        }
        let counts = match status["result"].is_null() {
            true => &status["progress"]["mini_batches"],
            false => &status["result"]["mini_batches"],
        };
        assert_eq!((&job["mini_batches"], counts["failed"].as_u64()), (counts, Some(1)));
        let (_, listed) = portal.api("/jobs").await;
        assert_eq!(
            (&listed["jobs"][0]["mini_batches"], &listed["jobs"][0]["state"]),
            (counts, &status["state"])
        );
    }
}

#[tokio::test]
async fn pages_of_a_job_have_answers() {
    let portal = portal().await;
    let api = async |path: &str| {
        let (status, answer) = portal.api(&format!("/jobs/{JOB}{path}")).await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
        answer
    };
    assert_eq!(api("/mini-batches?sort=state&limit=2").await["rows"][0]["mini_batch"], 10);
    assert_eq!(api("/mini-batches?state=pending").await["matching"], 1);
    assert_eq!(api("/map?by=state").await["total"], 12);
    assert_eq!(
        api("/series").await["failed"]
            .as_array()
            .map(|bins| bins.iter().filter_map(Value::as_u64).sum()),
        Some(2)
    );
    assert_eq!(api("/timeline").await["attempts"], 11);
    let mini_batch = api("/mini-batches/10").await;
    assert_eq!(mini_batch["attempts"][0]["error"]["frames"][1]["user"], true);
    assert_eq!(mini_batch["state"], "failed");
    assert_eq!(api("/nodes").await["nodes"][0]["node"], "n<script>");
    assert_eq!(api("/logs").await["files"].as_array().map(Vec::len), Some(1));
    assert_eq!(api("/logs/search?q=TWO").await["matches"][0]["line"], 2);
    assert_eq!(api("/output").await["available"], false);
    assert_eq!(portal.api("/targets").await.1["targets"].as_array().map(Vec::len), Some(2));
    assert_eq!(portal.api("/target").await.1["queue"], Value::Null);
    for wrong in [
        "/mini-batches?limit=x",
        "/mini-batches?sort=gone",
        "/mini-batches/99",
        "/mini-batches/x",
        "/map?by=x",
    ] {
        let status = portal.get(&format!("/api/v1/jobs/{JOB}{wrong}"), &[BEARER]).await.status();
        assert!(status.is_client_error(), "{wrong}: {status}");
    }
}

#[tokio::test]
async fn removed_job_is_reported_as_such() {
    let portal = portal().await;
    assert_eq!(portal.api(&format!("/jobs/{JOB}")).await.0, StatusCode::OK);
    std::fs::remove_dir_all(portal.store.folder().expect("local")).expect("removable");
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let (status, answer) = portal.api(&format!("/jobs/{JOB}")).await;
    assert_eq!((status, &answer["removed"]), (StatusCode::NOT_FOUND, &Value::Bool(true)));
}

/// A disk that is unmounted for a while removes no job: the page keeps what it shows, and continues when the disk is back.
#[tokio::test]
async fn lost_store_is_reported_and_comes_back() {
    use futures::StreamExt;
    let portal = portal().await;
    let path = format!("/jobs/{JOB}");
    assert_eq!(portal.api(&path).await.0, StatusCode::OK);
    let stream = portal.get(&format!("/api/v1/events?job={JOB}"), &[BEARER]).await;
    let mut events = stream.into_body().into_data_stream();
    let mut next = async || events.next().await.expect("one").expect("bytes");
    assert!(next().await.starts_with(b"event: job\n"));

    let jobs = portal.store.folder().and_then(std::path::Path::parent).expect("local").to_owned();
    let away = jobs.with_extension("away");
    std::fs::rename(&jobs, &away).expect("writable");
    let told = next().await;
    assert!(
        told.starts_with(b"event: trouble\n")
            && String::from_utf8_lossy(&told).contains("is not there now")
    );
    for path in [&*path, "/jobs", &format!("{path}/timeline")] {
        let (status, answer) = portal.api(path).await;
        assert_eq!(
            (status, &answer["removed"]),
            (StatusCode::SERVICE_UNAVAILABLE, &Value::Null),
            "{path}: {answer}"
        );
    }
    std::fs::rename(&away, &jobs).expect("writable");
    assert!(next().await.starts_with(b"event: job\n"), "the page learns that it is back");
    assert_eq!(portal.api(&path).await.0, StatusCode::OK);
}

/// Clocks of other machines may be wrong by years, in either direction.
#[tokio::test]
async fn wrong_clocks_of_nodes_break_no_answer() {
    let portal = portal().await;
    let mut attempts = Vec::new();
    // More than one answer shows one by one.
    for number in 0..150 {
        let started_at = [0, 1, u64::MAX, i64::MAX as u64, 4_102_444_800_000][number % 5];
        let elapsed_seconds = [-1.0, 1e30, f64::MAX][number % 3];
        attempts.push(protocol::Attempt { started_at, elapsed_seconds, ..tried(11, 1, RunRaised) });
    }
    portal.store.commit_segment(1, vec![segment_of(&[], &attempts)]).await.expect("writable");
    for path in [
        "",
        "/series",
        "/map?by=duration",
        "/mini-batches?sort=started",
        "/mini-batches/11",
        "/timeline",
        "/nodes",
    ] {
        for query in ["", "from=1&to=9999999999999", "from=18446744073709551615", "to=0&limit=100"]
        {
            let separator = if path.contains('?') { '&' } else { '?' };
            let (status, answer) =
                portal.api(&format!("/jobs/{JOB}{path}{separator}{query}")).await;
            assert_eq!(status, StatusCode::OK, "{path} {query}: {answer}");
        }
    }
}

#[tokio::test]
async fn probes_need_no_token_and_learn_nothing() {
    let portal = portal().await;
    for path in ["/healthz", "/readyz"] {
        let response = portal.get(path, &[]).await;
        assert_eq!((response.status(), bytes(response).await), (StatusCode::OK, b"ok\n".to_vec()));
        let foreign = portal.get(path, &[("host", "evil.example")]).await;
        assert_eq!(foreign.status(), StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn list_of_a_command_with_steps_has_its_jobs_alone() {
    let mut portal = portal().await;
    for (are_steps, ids, expected) in
        [(false, vec!["x"], 1), (true, vec![], 0), (true, vec![JOB, JOB], 1)]
    {
        let own_jobs = OwnJobs::default();
        ids.iter().for_each(|id| own_jobs.add(id));
        let options = Options { own_jobs, are_steps, ..options(&portal.engine) };
        portal.router = routes::router(Portal::new(options).0, 7780);
        assert_eq!(portal.api("/jobs").await.1["jobs"].as_array().map(Vec::len), Some(expected));
        let first = if are_steps { Value::Null } else { "x".into() };
        assert_eq!(portal.api("/info").await.1["job"], first);
    }
}

#[tokio::test]
async fn large_answer_is_compressed_if_accepted() {
    let portal = portal().await;
    let path = format!("/api/v1/jobs/{JOB}");
    let plain = portal.get(&path, &[BEARER]).await;
    assert_eq!(header(&plain, "content-encoding"), "");
    let compressed = portal.get(&path, &[BEARER, ("accept-encoding", "br, gzip;q=0.8")]).await;
    let is_large = bytes(plain).await.len() >= 4096;
    assert_eq!(header(&compressed, "content-encoding") == "gzip", is_large);
    let refused = portal.get(&path, &[BEARER, ("accept-encoding", "gzip;q=0")]).await;
    assert_eq!(header(&refused, "content-encoding"), "");
}
