//! One HTTP server: accepts connections and serves a router within limits, so that a slow or hostile client holds no more
//! than its share.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Pause after an error of the listener, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long answers may take when the server stops.
const GRACE: Duration = Duration::from_secs(2);

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
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
    /// Time after which the server disconnects a client that acknowledges nothing, or does not read what was sent.
    pub write_time: Duration,
}

impl Default for ServerLimits {
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
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServerLimits,
    stop: CancellationToken,
) {
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

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    limits: ServerLimits,
    stop: CancellationToken,
) {
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
        .serve_connection(
            TokioIo::new(TimeoutStream { stream, patience: limits.write_time, waiting: None }),
            service,
        );
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

/// A connection that fails if nothing more can be written for some time, because its client does not read.
struct TimeoutStream {
    stream: TcpStream,
    patience: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl TimeoutStream {
    fn written(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl AsyncRead for TimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    /// More than the buffers of both sides hold.
    const LARGE: usize = 32 << 20;

    /// Starts a server that serves one client at a time, with a large answer. Returns its address.
    async fn server() -> SocketAddr {
        let router = Router::new().route("/", get(|| async { vec![b'x'; LARGE] }));
        let limits = ServerLimits {
            connections: 1,
            write_time: Duration::from_millis(500),
            ..ServerLimits::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(serve(listener, router, limits, CancellationToken::new()));
        address
    }

    async fn ask(address: SocketAddr) -> TcpStream {
        let mut client = TcpStream::connect(address).await.expect("it listens");
        client.write_all(REQUEST).await.expect("it reads");
        client
    }

    /// The one connection is free again while the slow client still holds on to it.
    async fn next_client_is_served(address: SocketAddr) {
        let mut next = ask(address).await;
        let mut answer = Vec::new();
        let read = timeout(Duration::from_secs(20), next.read_to_end(&mut answer)).await;
        read.expect("the slow client is dropped").expect("an answer");
        assert!(answer.len() > LARGE, "{}", answer.len());
    }

    #[tokio::test]
    async fn client_that_reads_nothing_is_dropped() {
        let address = server().await;
        let _silent = ask(address).await;
        next_client_is_served(address).await;
    }

    #[tokio::test]
    async fn client_that_reads_a_byte_at_a_time_is_dropped() {
        let address = server().await;
        let mut slow = ask(address).await;
        let reading = tokio::spawn(async move {
            let mut read = 0_usize;
            // The server ends the connection, not this client.
            while slow.read_u8().await.is_ok() {
                read += 1;
                sleep(Duration::from_millis(50)).await;
            }
            read
        });
        next_client_is_served(address).await;
        assert!(!reading.is_finished() || reading.await.expect("no panic") < LARGE);
    }
}
