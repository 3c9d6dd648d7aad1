//! Requests and objects of a job grow no faster than its mini-batches, of which it may have ten
//! million.
//!
//! What grows with their number:
//!
//! - plan: an object for 512 mini-batches; several are read at a time when it is published again;
//! - queues: a message for each, or for up to 64 quick ones. In memory there is room for 16,384,
//!   and the rest is published from the plan. SQLite claims and acknowledges by an index; only
//!   `depth` counts every message;
//! - ledger: segments follow from time, five a second on a target and 40 on one machine, unless one
//!   would exceed 8 MiB. A reducer that starts reads all of them, up to 64 at a time;
//! - reducer: 20 bytes for the state of each, 20 for the place of its rows, 24 for each with
//!   rejects, and an entry for each part. All else has fixed limits, and no periodic check iterates
//!   over all, except once near the end (`speculation.rs`);
//! - retry: a bit for each that has ended or has a message, and an entry for each that has used
//!   tries;
//! - worker: nothing, it knows only what it holds;
//! - portal: 72 bytes for each attempt, of at most three million (`engine/src/history.rs`).
//!
//! `scripts/bench size` runs such a job with real processes.

use std::time::Duration;

use simulation::{CountedMemory, Size, Sized, run_size};

#[global_allocator]
static MEMORY: CountedMemory = CountedMemory;

const NODES: u64 = 20;
/// What AWS publishes: messages of a standard queue in flight, bytes of a message, and requests to S3 a second for each
/// prefix.
const IN_FLIGHT_MAX: u64 = 120_000;
const MESSAGE_BYTES_MAX: u64 = 256 << 10;
/// Messages of RabbitMQ for each mini-batch: a descriptor, and an outcome that may share its message.
const MESSAGES_MAX: u64 = 2;
const PUTS_A_SECOND_MAX: u64 = 3_500;
const GETS_A_SECOND_MAX: u64 = 5_500;

type Count = fn(&Sized) -> u64;

fn play(mini_batches: u64) -> Sized {
    let run_time = Duration::from_millis(200);
    let meter = CountedMemory::METER;
    run_size(Size { nodes: NODES, mini_batches, run_time, meter })
        .unwrap_or_else(|violation| panic!("{violation}"))
}

#[test]
fn requests_and_objects_grow_no_faster_than_a_job() {
    let (few, many) = (1_000, 10_000);
    let (small, large) = (play(few), play(many));
    let counts: [(&str, Count); 18] = [
        ("sends", |one| one.requests.sends),
        ("receives", |one| one.requests.receives),
        ("deletes", |one| one.requests.deletes),
        ("extensions", |one| one.requests.extensions),
        ("messages of RabbitMQ", |one| one.requests.messages),
        ("bytes of these messages", |one| one.requests.message_bytes),
        ("writes of the store", |one| one.requests.puts),
        ("reads of the store", |one| one.requests.gets),
        ("listings of the store", |one| one.requests.lists),
        ("segments of the ledger", |one| one.segments),
        ("objects of the plan", |one| one.plan_objects),
        ("requests of a restart", |one| one.restart.requests.all()),
        ("requests of a retry", |one| one.retry.requests.all()),
        ("requests of `status`", |one| one.status.requests.all()),
        ("memory of a reducer that opens the ledger", |one| one.restart.memory),
        ("memory of a publisher", |one| one.retry.memory),
        ("milliseconds of a restart", |one| one.restart.time.as_millis() as u64),
        ("milliseconds of a retry", |one| one.retry.time.as_millis() as u64),
    ];
    for (name, of) in counts {
        // A tenth more: where messages meet in one request depends on chance.
        let most = (of(&small) * many / few * 11 / 10).max(NODES);
        assert!(
            of(&large) <= most,
            "{name}: {} of {few} mini-batches, {} of {many}",
            of(&small),
            of(&large)
        );
    }
    for (mini_batches, sized) in [(few, small), (many, large)] {
        // Processes that start and end are announced too.
        assert!(sized.requests.messages <= MESSAGES_MAX * mini_batches + 100 * NODES, "{sized:?}");
        assert!(sized.in_flight_max <= IN_FLIGHT_MAX, "{sized:?}");
        assert!(sized.requests.message_bytes_max <= MESSAGE_BYTES_MAX, "{sized:?}");
        assert!(sized.requests.puts_a_second_max <= PUTS_A_SECOND_MAX, "{sized:?}");
        assert!(sized.requests.gets_a_second_max <= GETS_A_SECOND_MAX, "{sized:?}");
    }
}
