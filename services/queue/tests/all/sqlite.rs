//! The SQLite queue beyond the contract: its openers share a file that outlives them.

use std::path::Path;
use std::time::Duration;

use queue::{
    Clock, Delivery, Error, ManualClock, Message, Queue, Receive, SqliteOptions, SqliteQueue,
};

const LEASE: Duration = Duration::from_secs(60);

fn request(messages_max: usize) -> Receive {
    Receive { messages_max, visibility: LEASE, wait: Duration::ZERO }
}

fn waiting_request() -> Receive {
    Receive { wait: Duration::from_secs(3600), ..request(10) }
}

fn open(path: &Path) -> SqliteQueue {
    SqliteQueue::open(path, SqliteOptions::default()).expect("opens")
}

fn open_at(path: &Path, clock: &ManualClock) -> SqliteQueue {
    let options = SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
    SqliteQueue::open(path, options).expect("opens")
}

async fn send(queue: &SqliteQueue, bodies: &[&'static str]) {
    queue.send(bodies.iter().map(|body| Message::new(*body)).collect()).await.expect("sends");
}

async fn receive(queue: &SqliteQueue, request: Receive) -> Vec<Delivery> {
    queue.receive(request).await.expect("receives")
}

fn bodies(deliveries: &[Delivery]) -> Vec<&[u8]> {
    deliveries.iter().map(|delivery| &delivery.body[..]).collect()
}

#[tokio::test]
async fn messages_and_leases_outlive_the_queue() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, clock) = (folder.path().join("queue.db"), ManualClock::new());
    let queue = open_at(&path, &clock);
    send(&queue, &["a", "b"]).await;
    let held = receive(&queue, request(1)).await;
    drop(queue);

    let queue = open_at(&path, &clock);
    assert_eq!(bodies(&receive(&queue, request(10)).await), [b"b"]);
    clock.advance(LEASE);
    let again = receive(&queue, request(10)).await;
    assert_eq!(bodies(&again), [b"a", b"b"]);
    assert_eq!(again[0].receive_count, 2);
    assert_eq!(
        queue.acknowledge(&[held[0].receipt.clone()]).await.expect("answers"),
        [held[0].receipt.clone()]
    );
}

#[tokio::test]
async fn receipts_are_never_reused() {
    let folder = tempfile::tempdir().expect("a folder");
    let queue = open(&folder.path().join("queue.db"));
    send(&queue, &["a"]).await;
    let old = receive(&queue, request(1)).await.remove(0).receipt;
    queue.acknowledge(std::slice::from_ref(&old)).await.expect("answers");
    send(&queue, &["b"]).await;
    let new = receive(&queue, request(1)).await.remove(0).receipt;
    assert_ne!(old, new);
    assert_eq!(queue.acknowledge(&[old.clone(), new]).await.expect("answers"), [old]);
}

#[tokio::test]
async fn two_openers_share_a_queue_and_wake_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    let (one, other) = (open(&path), open(&path));
    let (received, ()) = tokio::join!(receive(&one, waiting_request()), send(&other, &["a"]));
    assert_eq!(bodies(&received), [b"a"]);
    assert!(receive(&other, request(1)).await.is_empty());
    let release = async { other.release(&[received[0].receipt.clone()]).await.expect("releases") };
    let (again, ()) = tokio::join!(receive(&one, waiting_request()), release);
    assert_eq!(again[0].receive_count, 2);
}

#[tokio::test]
async fn lease_expires_by_the_wall_clock() {
    let folder = tempfile::tempdir().expect("a folder");
    let queue = open(&folder.path().join("queue.db"));
    send(&queue, &["a"]).await;
    let short = Receive { visibility: Duration::from_millis(1), ..waiting_request() };
    assert_eq!(receive(&queue, short).await[0].receive_count, 1);
    assert_eq!(receive(&queue, waiting_request()).await[0].receive_count, 2);
}

#[test]
fn file_can_be_created_by_many_openers_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    std::thread::scope(|scope| {
        let openers: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&path))).collect();
        openers.into_iter().for_each(|opener| drop(opener.join().expect("opens")));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_openers_lose_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let queue = open(&path);
            tokio::spawn(async move {
                let mut taken = Vec::new();
                for round in 0..50 {
                    let body = format!("{worker} {round}");
                    queue.send(vec![Message::new(body)]).await.expect("sends");
                    let deliveries = receive(&queue, request(3)).await;
                    let receipts: Vec<_> =
                        deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
                    assert!(queue.acknowledge(&receipts).await.expect("acknowledges").is_empty());
                    taken.extend(deliveries.into_iter().map(|delivery| delivery.body));
                }
                taken
            })
        })
        .collect();
    let mut taken = Vec::new();
    for worker in workers {
        taken.extend(worker.await.expect("does not panic"));
    }
    taken.extend(
        receive(&open(&path), request(1000)).await.into_iter().map(|delivery| delivery.body),
    );
    taken.sort();
    let mut sent: Vec<String> =
        (0..4).flat_map(|worker| (0..50).map(move |round| format!("{worker} {round}"))).collect();
    sent.sort();
    assert_eq!(taken, sent);
}

fn refusal(path: &Path) -> String {
    let error = SqliteQueue::open(path, SqliteOptions::default()).expect_err("does not open");
    assert!(matches!(error, Error::Misconfigured { .. }), "{error:?}");
    let text = format!("{error:#}");
    text.strip_prefix(&format!("queue {} cannot be used: ", path.display()))
        .expect("names it")
        .to_owned()
}

#[test]
fn other_file_is_rejected_by_name_and_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    std::fs::write(&path, "name,digit\n".repeat(1000)).expect("writes");
    assert_eq!(refusal(&path), "it is not a queue file; choose another path");
    assert_eq!(std::fs::read(&path).expect("reads"), "name,digit\n".repeat(1000).into_bytes());

    let path = folder.path().join("other.db");
    rusqlite::Connection::open(&path)
        .and_then(|other| other.execute_batch("CREATE TABLE mine (a)"))
        .expect("creates");
    let before = std::fs::read(&path).expect("reads");
    assert_eq!(
        refusal(&path),
        "it is another application's database, or a queue of another build; choose another path"
    );
    assert!(std::fs::read(&path).expect("reads") == before, "the file was changed");
}

#[test]
fn unusable_path_is_rejected_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let no_file =
        "the file cannot be opened or created; check that its folder exists and is writable";
    assert_eq!(refusal(&folder.path().join("missing/queue.db")), no_file);
    assert_eq!(refusal(folder.path()), no_file);
}

#[tokio::test]
async fn damaged_file_is_reported_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    let queue = open(&path);
    queue.send(vec![Message::new(vec![b'x'; 1000]); 1000]).await.expect("sends");
    drop(queue);
    let mut bytes = std::fs::read(&path).expect("reads");
    bytes[8192..].fill(0xee);
    std::fs::write(&path, bytes).expect("writes");
    let queue = open(&path);
    let error = queue.receive(request(1)).await.expect_err("the pages make no sense");
    let expected = format!(
        "queue {} cannot be used: the file is damaged; move it away and run again",
        path.display()
    );
    assert_eq!(format!("{error:#}"), expected);
}

#[tokio::test]
async fn locked_file_is_unavailable_until_it_is_unlocked() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.db");
    let options =
        SqliteOptions { lock_wait_max: Duration::from_millis(1), ..SqliteOptions::default() };
    let queue = SqliteQueue::open(&path, options).expect("opens");
    let other = rusqlite::Connection::open(&path).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("locks");
    let sent = queue.send(vec![Message::new("a")]).await;
    assert!(matches!(sent, Err(Error::Unavailable { .. })), "{sent:?}");
    other.execute_batch("ROLLBACK").expect("unlocks");
    send(&queue, &["b"]).await;
    assert_eq!(bodies(&receive(&queue, request(10)).await), [b"b"]);
}
