//! Tests of the file and its statements.

use super::*;
use crate::ManualClock;

fn open(folder: &tempfile::TempDir) -> Store {
    let options =
        SqliteOptions { clock: Clock::Manual(ManualClock::new()), ..SqliteOptions::default() };
    Store::open(&folder.path().join("queue.db"), options, true).expect("opens")
}

fn plan(store: &Store, statement: &str) -> String {
    let mut explain =
        store.connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).expect("is SQL");
    let parameters = vec![0; explain.parameter_count()];
    let rows =
        explain.query_map(rusqlite::params_from_iter(parameters), |row| row.get::<_, String>(3));
    rows.expect("runs").collect::<Result<Vec<_>, _>>().expect("runs").join("\n")
}

#[test]
fn statements_find_rows_by_index() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder);
    let visible = "SEARCH message USING INDEX message_by_visible_at (visible_at<?)\n\
                   SEARCH large_body USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN";
    assert_eq!(
        plan(&store, VISIBLE),
        visible,
        "the index is the order of claims: nothing is scanned or sorted"
    );
    for statement in [CLAIM, UNCLAIM, SET_LEASE, DELETE] {
        let plan = plan(&store, statement);
        assert_eq!(plan, "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)", "{statement}");
    }
    let hidden = plan(&store, COUNT_HIDDEN);
    assert!(
        hidden.starts_with("SEARCH message USING INDEX message_by_visible_at (visible_at>?)"),
        "{hidden}"
    );
    assert_eq!(
        plan(&store, DELETE_LARGE_BODY),
        "SEARCH large_body USING INTEGER PRIMARY KEY (rowid=?)"
    );
    assert_eq!(
        plan(&store, NEXT_VISIBLE),
        "SEARCH message USING COVERING INDEX message_by_visible_at"
    );
    assert_eq!(plan(&store, COUNT), "SCAN message USING COVERING INDEX message_by_visible_at");
}

#[test]
fn claims_and_extensions_do_not_rewrite_large_bodies() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder);
    store.send(&[Message::new(vec![1; 2_000_000])]).expect("sends");
    let log = folder.path().join("queue.db-wal");
    let empty_the_log = "PRAGMA wal_checkpoint(TRUNCATE)";
    store.connection.query_row(empty_the_log, [], |_| Ok(())).expect("checkpoints");
    let claimed = store.claim(1, Duration::from_secs(60)).expect("claims");
    assert!(
        store
            .extend(&[(claimed[0].receipt.clone(), Duration::from_secs(90))])
            .expect("extends")
            .is_empty()
    );
    let written = std::fs::metadata(log).expect("exists").len();
    assert!(written < 100_000, "{written} bytes written");
}

fn large_bodies(store: &Store) -> i64 {
    store
        .connection
        .query_row("SELECT count(*) FROM large_body", [], |row| row.get(0))
        .expect("counts")
}

#[test]
fn body_of_any_size_is_stored_and_removed_with_its_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder);
    let bodies: Vec<_> =
        [0, 1, LARGE_BODY_BYTES - 1, LARGE_BODY_BYTES, 1_000_000].map(|size| vec![7; size]).into();
    let messages: Vec<_> = bodies.iter().map(|body| Message::new(body.clone())).collect();
    let minute = Duration::from_secs(60);
    store.send(&messages).expect("sends");
    let deliveries = store.claim(10, minute).expect("claims");
    assert_eq!(
        deliveries.iter().map(|delivery| delivery.body.to_vec()).collect::<Vec<_>>(),
        bodies
    );
    assert_eq!(large_bodies(&store), 2);
    let receipts: Vec<_> = deliveries.into_iter().map(|delivery| delivery.receipt).collect();
    store.acknowledge(&receipts[..4]).expect("acknowledges");
    assert_eq!(large_bodies(&store), 1, "the other is not acknowledged");
    store.release(&receipts[4..]).expect("releases");
    let again = store.claim(1, minute).expect("claims").remove(0);
    store.acknowledge(&receipts[4..]).expect("too late");
    assert_eq!(large_bodies(&store), 1, "another receiver holds it");
    assert_eq!(again.body, bodies[4]);
}

#[test]
fn claim_stops_at_its_size_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder);
    store.send(&vec![Message::new(vec![1; CLAIM_BYTES_MAX / 4]); 6]).expect("sends");
    let numbers = |messages_max| -> Vec<i64> {
        let deliveries = store.claim(messages_max, Duration::from_secs(60)).expect("claims");
        deliveries.iter().map(|delivery| delivery.receipt.numbers().0).collect()
    };
    assert_eq!(numbers(100), [1, 2, 3, 4]);
    assert_eq!(numbers(1), [5]);
    assert_eq!(numbers(100), [6]);
}

#[test]
fn full_disk_fails_one_transaction_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder);
    let path = folder.path().join("queue.db");
    store.connection.pragma_update(None, "max_page_count", 40).expect("sets a limit");
    let small = Message::new("small");
    store.send(std::slice::from_ref(&small)).expect("fits");
    let large = Message::new(vec![0; 1 << 20]);
    let error = store
        .in_transaction(|store| store.send(&[small.clone(), large.clone()]))
        .expect_err("does not fit");
    let error = explain(&path, error);
    assert!(matches!(&error, Error::Misconfigured { .. }), "{error:?}");
    let expected = format!(
        "queue {} cannot be used: the disk is full; free some space and run again",
        path.display()
    );
    assert_eq!(format!("{error:#}"), expected);
    assert_eq!(store.claim(10, Duration::from_secs(60)).expect("still works").len(), 1);
}
