//! The HTTP endpoints of a role: `/healthz`, `/readyz`, `/metrics`.
//!
//! A separate thread serves them, so that they answer even when the role hangs. Their clients are scrapers and probes:
//! each connection carries one request, within bounds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use portal::http::{ServerLimits, serve};
use telemetry::{Health, Scrape};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const LINE: &str = "text/plain; charset=utf-8";
const HEAD_BYTES_MAX: usize = 8 * 1024;
const EXCHANGE_TIME: Duration = Duration::from_secs(5);
/// A slow client gets no answer, and more clients than these wait.
const LIMITS: ServerLimits = ServerLimits {
    connections: 16,
    head_time: EXCHANGE_TIME,
    head_bytes: HEAD_BYTES_MAX,
    keep_alive: false,
    connection_time: Some(EXCHANGE_TIME),
    write_time: EXCHANGE_TIME,
};

/// The state that the endpoints report.
#[derive(Debug)]
pub struct RoleState {
    pub health: Health,
    pub scrape: Scrape,
}

/// Starts the endpoints of a role, which live as long as the process. Returns their address.
pub fn start(address: SocketAddr, state: RoleState) -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(address).with_context(|| {
        format!("cannot listen at {address}: choose another with --listen or GRISTMILL_LISTEN")
    })?;
    listener.set_nonblocking(true).context("listen without blocking")?;
    let address = listener.local_addr().context("read the address of the listener")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start the runtime of the endpoints")?;
    let thread = std::thread::Builder::new().name("endpoints".to_owned());
    let router = Router::new().fallback(answer).with_state(Arc::new(state));
    let serving = move || {
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).expect("a listener that does not block");
            serve(listener, router, LIMITS, CancellationToken::new()).await;
        });
    };
    thread.spawn(serving).context("start the thread of the endpoints")?;
    Ok(address)
}

async fn answer(State(state): State<Arc<RoleState>>, method: Method, uri: Uri) -> Response {
    if method != Method::GET {
        return line(StatusCode::METHOD_NOT_ALLOWED, "only GET is allowed");
    }
    match uri.path() {
        "/healthz" => verdict(state.health.check()),
        "/readyz" => verdict(state.health.check_ready()),
        "/metrics" => ([(CONTENT_TYPE, Scrape::CONTENT_TYPE)], state.scrape.text()).into_response(),
        _ => line(StatusCode::NOT_FOUND, "the paths are /healthz, /readyz and /metrics"),
    }
}

fn verdict(verdict: Result<(), impl std::fmt::Display>) -> Response {
    match verdict {
        Ok(()) => line(StatusCode::OK, "ok"),
        Err(reason) => line(StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

fn line(status: StatusCode, text: impl std::fmt::Display) -> Response {
    (status, [(CONTENT_TYPE, LINE)], format!("{text}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use telemetry::Role;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn ask(server: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(server).await.expect("it listens");
        stream.write_all(request).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        answer
    }

    #[tokio::test]
    async fn endpoints_report_the_role() {
        let health = Health::new(Duration::ZERO);
        let state = RoleState {
            health: health.clone(),
            scrape: Scrape::of(Role::Worker, "sqlite", "0.1.0"),
        };
        let server = start("127.0.0.1:0".parse().expect("an address"), state).expect("a free port");
        let get = async |path: &str| {
            ask(server, format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await
        };
        let ends = |answer: String, status: &str, body: &str| {
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.ends_with(body),
                "{answer}"
            );
        };
        ends(get("/healthz").await, "200 OK", "\r\n\r\nok\n");
        ends(get("/readyz").await, "503 ", "it is starting\n");
        health.ready();
        ends(get("/readyz?verbose").await, "200 OK", "ok\n");
        let _stuck = health.coming_round("the loop of the node");
        while health.check().is_ok() {
            std::hint::spin_loop();
        }
        let ill = get("/healthz").await;
        assert!(ill.contains("no heartbeat of the loop of the node for "), "{ill}");
        ends(ill, "503 ", " s\n");
        ends(
            get("/metrics").await,
            "200 OK\r\ncontent-type: application/openmetrics-text",
            "# EOF\n",
        );
        ends(get("/").await, "404 ", "/metrics\n");
        ends(ask(server, b"POST /healthz HTTP/1.1\r\n\r\n").await, "405 ", "GET is allowed\n");
        ends(ask(server, b"\0\0\0\0\r\n\r\n").await, "400 ", "\n");
        let endless = [b"GET / HTTP/1.1\r\nx: ".as_slice(), &[b'x'; HEAD_BYTES_MAX]].concat();
        ends(ask(server, &endless).await, "431 Request Header Fields Too Large", "\r\n\r\n");
    }
}
