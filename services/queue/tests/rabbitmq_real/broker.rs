//! A broker that a test can kill and restart, in a temporary folder, on free ports.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;

const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

pub struct Broker {
    pub port: u16,
    folder: TempDir,
    environment: Vec<(&'static str, String)>,
    child: Option<Child>,
}

/// Returns a port outside the range of automatically assigned ports: the broker binds it only seconds later, and again
/// when it restarts.
fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    loop {
        let position =
            std::process::id().wrapping_mul(7).wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed))
                % 8_000;
        let port = u16::try_from(17_000 + position).expect("a small number");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Broker {
    /// Starts a broker. Adds `configuration` to its `rabbitmq.conf`, with the values of `FOLDER` and `PORT`. If that
    /// contains no listener, adds a plain one.
    pub fn start(configuration: &str) -> Self {
        let (port, node_port) = (free_port(), free_port());
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().display().to_string();
        let listener = if configuration.contains("listeners.") {
            ""
        } else {
            "listeners.tcp.1 = 127.0.0.1:PORT\n"
        };
        let configuration = format!("{listener}loopback_users = none\n{configuration}\n");
        let configuration =
            configuration.replace("FOLDER", &home).replace("PORT", &port.to_string());
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("a file")
        };
        write("rabbitmq.conf", &configuration);
        write("enabled_plugins", "[].");
        // The broker notices a lease that is too long at its next tick, which is once a minute by default.
        write("advanced.config", "[{rabbit, [{channel_tick_interval, 500}]}].");
        let environment = vec![
            ("RABBITMQ_NODENAME", format!("test{port}@localhost")),
            ("RABBITMQ_DIST_PORT", node_port.to_string()),
            ("RABBITMQ_MNESIA_BASE", format!("{home}/data")),
            ("RABBITMQ_LOG_BASE", format!("{home}/log")),
            ("RABBITMQ_CONFIG_FILE", format!("{home}/rabbitmq")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", format!("{home}/advanced.config")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", format!("{home}/enabled_plugins")),
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1}".to_owned(),
            ),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("HOME", home),
        ];
        let mut broker = Self { port, folder, environment, child: None };
        broker.restart();
        broker
    }

    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Starts the broker with its former data, and waits until it is ready.
    pub fn restart(&mut self) {
        let mut command = Command::new(SERVER);
        command.envs(self.environment.iter().map(|(name, value)| (*name, value.as_str())));
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .expect("RabbitMQ is not installed: start it with scripts/up, which installs it");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        self.child = Some(child);
        let mut seen = Vec::new();
        for line in lines {
            let line = line.expect("the broker writes text");
            if line.contains("completed with") {
                return;
            }
            seen.push(line);
        }
        panic!("the broker did not start:\n{}", seen.join("\n"));
    }

    /// Waits until a new queue would survive the death of the broker, which takes some seconds to record the folder of
    /// a queue. Confirmed messages are safe immediately.
    pub async fn wait_until_recorded(&self, queue: &str) {
        let node = format!("test{}@localhost", self.port);
        let names = self
            .folder
            .path()
            .join("data")
            .join(&node)
            .join("quorum")
            .join(&node)
            .join("names.dets");
        let is_recorded = || {
            std::fs::read(&names)
                .is_ok_and(|bytes| bytes.windows(queue.len()).any(|part| part == queue.as_bytes()))
        };
        while !is_recorded() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills all processes of the broker with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let group = format!("-{}", child.id());
            let killed =
                Command::new("kill").args(["-KILL", "--", &group]).status().expect("kill runs");
            assert!(killed.success());
            child.wait().expect("it ends");
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A certificate authority, and a key and certificate for `localhost` that it has signed, as PEM files in a folder.
pub struct Certificates(TempDir);

impl Certificates {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut extensions =
            std::fs::File::create(folder.path().join("extensions")).expect("a file");
        writeln!(extensions, "subjectAltName=DNS:localhost,IP:127.0.0.1").expect("written");
        for arguments in [
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
            "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr",
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out server.pem",
        ] {
            let run = Command::new("openssl")
                .args(arguments.split(' '))
                .current_dir(folder.path())
                .output();
            let output = run.expect("openssl is installed");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Self(folder)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}
