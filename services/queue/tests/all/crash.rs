//! A killed process loses no message: a test kills a child that works on a queue, and checks the remaining messages.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use queue::{Clock, ManualClock, Message, Queue, Receive, SqliteOptions, SqliteQueue};

const PATH_VARIABLE: &str = "QUEUE_CRASH_TEST_PATH";
const LEASE: Duration = Duration::from_secs(3600);

/// Is the child: sends, receives and acknowledges, and prints each step, until it is killed. As a test of its own, it
/// does nothing.
#[tokio::test]
async fn child_works_until_killed() {
    let Some(path) = std::env::var_os(PATH_VARIABLE) else { return };
    let queue = SqliteQueue::open(Path::new(&path), SqliteOptions::default()).expect("opens");
    for round in 0.. {
        let bodies: Vec<String> = (0..10).map(|number| format!("{round}-{number}")).collect();
        queue
            .send(bodies.iter().map(|body| Message::new(body.clone())).collect())
            .await
            .expect("sends");
        bodies.iter().for_each(|body| println!("sent {body}"));
        let request = Receive { messages_max: 5, visibility: LEASE, wait: Duration::ZERO };
        let deliveries = queue.receive(request).await.expect("receives");
        let body =
            |index: usize| String::from_utf8(deliveries[index].body.to_vec()).expect("is text");
        (0..5).for_each(|index| println!("leased {}", body(index)));
        println!("acknowledging {}", body(0));
        let lost = queue.acknowledge(&[deliveries[0].receipt.clone()]).await.expect("acknowledges");
        assert!(lost.is_empty());
        println!("acknowledged {}", body(0));
    }
}

/// Runs the child until it has printed 500 lines, kills it, and returns all lines.
fn run_and_kill_child(path: &Path) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().expect("has a path"))
        .args(["--exact", "crash::child_works_until_killed", "--nocapture"])
        .env(PATH_VARIABLE, path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    let mut printed: Vec<String> =
        lines.by_ref().take(500).map(|line| line.expect("is text")).collect();
    child.kill().expect("SIGKILL");
    child.wait().expect("is dead");
    // The last lines are still in the pipe, and complete, because short writes to a pipe are atomic.
    printed.extend(lines.map_while(Result::ok));
    printed
}

/// Returns the bodies in the lines that begin with this verb.
fn bodies<'a>(lines: &'a [String], verb: &str) -> BTreeSet<&'a str> {
    lines.iter().filter_map(|line| line.strip_prefix(verb)?.strip_prefix(' ')).collect()
}

#[tokio::test]
async fn killed_process_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    let lines = run_and_kill_child(&path);
    let (sent, leased) = (bodies(&lines, "sent"), bodies(&lines, "leased"));
    let (acknowledging, acknowledged) =
        (bodies(&lines, "acknowledging"), bodies(&lines, "acknowledged"));
    assert!(sent.len() > 200 && acknowledged.len() > 20, "the child did too little: {lines:?}");

    let later = ManualClock::at(std::time::SystemTime::now());
    let options = SqliteOptions { clock: Clock::Manual(later.clone()), ..SqliteOptions::default() };
    let queue = SqliteQueue::open(&path, options).expect("opens after the crash");
    let request = Receive { messages_max: usize::MAX, visibility: LEASE, wait: Duration::ZERO };
    let visible = queue.receive(request).await.expect("receives");
    let visible: BTreeSet<_> = visible
        .iter()
        .map(|delivery| std::str::from_utf8(&delivery.body).expect("is text"))
        .collect();
    assert!(leased.is_disjoint(&visible), "a lease was lost");

    later.advance(LEASE * 2);
    let deliveries = queue.receive(request).await.expect("receives");
    let remaining: BTreeSet<_> = deliveries
        .iter()
        .map(|delivery| std::str::from_utf8(&delivery.body).expect("is text"))
        .collect();
    assert_eq!(remaining.len(), deliveries.len(), "a message was duplicated");
    for body in sent {
        assert!(
            remaining.contains(body) || acknowledging.contains(body),
            "{body} was sent and is lost"
        );
        assert!(
            !remaining.contains(body) || !acknowledged.contains(body),
            "{body} was acknowledged and returned"
        );
    }
    for delivery in &deliveries {
        let body = std::str::from_utf8(&delivery.body).expect("is text");
        if leased.contains(body) {
            assert_eq!(delivery.receive_count, 2, "{body} was leased before");
        }
    }
}
