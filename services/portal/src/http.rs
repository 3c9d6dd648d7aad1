//! One HTTP server: accepts connections and serves a router within limits, so that a slow or hostile client holds no more
//! than its share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Pause after an error of the listener, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long answers may take when the server stops.
const GRACE: Duration = Duration::from_secs(2);

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrent connections; others wait.
    pub connections: usize,
    /// Time for the head of a request.
    pub head_time: Duration,
    /// Size of the head of a request.
    pub head_bytes: usize,
    /// Whether a connection carries several requests.
    pub keep_alive: bool,
    /// Time for a whole connection; `None`: as long as its client reads.
    pub connection_time: Option<Duration>,
    /// Time after which a client that acknowledges nothing is disconnected.
    pub write_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            head_time: Duration::from_secs(15),
            head_bytes: 32 * 1024,
            keep_alive: true,
            connection_time: None,
            write_time: Duration::from_secs(60),
        }
    }
}

/// Serves a router until `stop`.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: CancellationToken) {
    let connections = Arc::new(Semaphore::new(limits.connections));
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&connections).acquire_owned() => permit.expect("never closed"),
            () = stop.cancelled() => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (router, stop) = (router.clone(), stop.clone());
                tokio::spawn(async move {
                    let connected = connection(stream, peer, router, limits, stop);
                    match limits.connection_time {
                        // A slow client gets no answer.
                        Some(longest) => drop(timeout(longest, connected).await),
                        None => connected.await,
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a request");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Answers that are under way end.
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    let _ = timeout(GRACE, connections.acquire_many(all)).await;
}

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, limits: Limits, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let milliseconds = u32::try_from(limits.write_time.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, milliseconds);
    let service = TowerToHyperService::new(router);
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(limits.head_bytes.max(8 * 1024))
        .keep_alive(limits.keep_alive)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended");
    }
}
