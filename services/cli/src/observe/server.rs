//! The HTTP endpoints of a role: `/healthz`, `/readyz`, `/metrics`.
//!
//! A separate thread serves them, so that they answer even when the role hangs. Their clients are scrapers and probes: each
//! connection carries one request, of which only the head is read, within bounds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use telemetry::{Health, Scrape};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

const OK: &str = "200 OK";
const LINE: &str = "text/plain; charset=utf-8";
const HEAD_BYTES_MAX: usize = 8 * 1024;
const HEADERS_MAX: usize = 64;
const EXCHANGE_TIME: Duration = Duration::from_secs(5);
/// The most concurrent exchanges; others wait.
const EXCHANGES_MAX: usize = 16;
/// Pause after an error of the listener, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the endpoints report.
#[derive(Debug)]
pub struct RoleState {
    pub health: Health,
    pub scrape: Scrape,
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

/// Starts the endpoints of a role, which live as long as the process. Returns their address.
pub fn start(address: SocketAddr, state: RoleState) -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(address)
        .with_context(|| format!("cannot listen at {address}: choose another with --listen or GRISTMILL_LISTEN"))?;
    listener.set_nonblocking(true).context("listen without blocking")?;
    let address = listener.local_addr().context("read the address of the listener")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start the runtime of the endpoints")?;
    let thread = std::thread::Builder::new().name("endpoints".to_owned());
    let serving = move || {
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).expect("a listener that does not block");
            serve(listener, Arc::new(state)).await;
        });
    };
    thread.spawn(serving).context("start the thread of the endpoints")?;
    Ok(address)
}

async fn serve(listener: TcpListener, state: Arc<RoleState>) {
    let exchanges = Arc::new(Semaphore::new(EXCHANGES_MAX));
    loop {
        let permit = exchanges.clone().acquire_owned().await.expect("never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let state = state.clone();
                tokio::spawn(async move {
                    // A slow client gets no answer.
                    let _ = timeout(EXCHANGE_TIME, exchange(stream, &state)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a request");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn exchange(mut stream: TcpStream, state: &RoleState) -> std::io::Result<()> {
    let mut head = Vec::new();
    let answer = loop {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                break answer(request.method.unwrap_or_default(), request.path.unwrap_or_default(), state);
            }
            Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => {}
            Ok(httparse::Status::Partial) => break Answer::new("431 Request Header Fields Too Large", "too large"),
            Err(error) => break Answer::new("400 Bad Request", error),
        }
    };
    stream.write_all(answer.bytes().as_bytes()).await?;
    stream.shutdown().await
}

fn answer(method: &str, target: &str, state: &RoleState) -> Answer {
    let path = target.split('?').next().unwrap_or_default();
    if method != "GET" {
        return Answer::new("405 Method Not Allowed", "only GET is allowed");
    }
    match path {
        "/healthz" => Answer::of(state.health.check()),
        "/readyz" => Answer::of(state.health.check_ready()),
        "/metrics" => Answer { status: OK, content_type: Scrape::CONTENT_TYPE, body: state.scrape.text() },
        _ => Answer::new("404 Not Found", "the paths are /healthz, /readyz and /metrics"),
    }
}

impl Answer {
    fn new(status: &'static str, line: impl std::fmt::Display) -> Self {
        Self { status, content_type: LINE, body: format!("{line}\n") }
    }

    fn of(verdict: Result<(), impl std::fmt::Display>) -> Self {
        match verdict {
            Ok(()) => Self::new(OK, "ok"),
            Err(why) => Self::new("503 Service Unavailable", why),
        }
    }

    fn bytes(&self) -> String {
        let Self { status, content_type, body } = self;
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    }
}

#[cfg(test)]
mod tests {
    use telemetry::Role;

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
        let state = RoleState { health: health.clone(), scrape: Scrape::of(Role::Worker, "sqlite") };
        let server = start("127.0.0.1:0".parse().expect("an address"), state).expect("a free port");
        let get = async |path: &str| ask(server, format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await;
        let ends = |answer: String, status: &str, body: &str| {
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.ends_with(body), "{answer}");
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
        assert!(ill.contains("no sign of life of the loop of the node for "), "{ill}");
        ends(ill, "503 ", " s\n");
        ends(get("/metrics").await, "200 OK\r\ncontent-type: application/openmetrics-text", "# EOF\n");
        ends(get("/").await, "404 ", "/metrics\n");
        ends(ask(server, b"POST /healthz HTTP/1.1\r\n\r\n").await, "405 ", "GET is allowed\n");
        ends(ask(server, b"\0\0\0\0\r\n\r\n").await, "400 ", "\n");
        let endless = [b"GET / HTTP/1.1\r\nx: ".as_slice(), &[b'x'; HEAD_BYTES_MAX]].concat();
        ends(ask(server, &endless).await, "431 ", "too large\n");
    }
}
