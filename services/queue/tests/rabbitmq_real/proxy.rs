//! A network between a queue and its broker that a test can cut or stall.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub struct Proxy {
    pub port: u16,
    connections: Arc<Mutex<JoinSet<()>>>,
    flows: watch::Sender<bool>,
    listener: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to a port of this machine.
    pub async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let (flows, flowing) = watch::channel(true);
        let accepted = connections.clone();
        let listener = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let flowing = flowing.clone();
                accepted.lock().expect("no holder panics").spawn(async move {
                    let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await else { return };
                    let ((near_read, near_write), (far_read, far_write)) =
                        (near.into_split(), far.into_split());
                    tokio::select! {
                        () = pass(near_read, far_write, flowing.clone()) => {}
                        () = pass(far_read, near_write, flowing) => {}
                    }
                });
            }
        });
        Self { port, connections, flows, listener }
    }

    /// Ends every connection, but accepts new ones.
    pub fn cut(&self) {
        self.connections.lock().expect("no holder panics").abort_all();
    }

    /// Stops all traffic silently, also on new connections.
    pub fn stall(&self) {
        self.flows.send_replace(false);
    }

    pub fn resume(&self) {
        self.flows.send_replace(true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut flowing: watch::Receiver<bool>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
        if flowing.wait_for(|flowing| *flowing).await.is_err()
            || to.write_all(&buffer[..bytes]).await.is_err()
        {
            return;
        }
    }
}
