//! The table of backends in `services/README.md` says what the code says.

use std::path::Path;
use std::time::Duration;

use queue::{
    Bundles, Limits, MemoryOptions, MemoryQueue, Queue, RabbitOptions, SqliteOptions, SqliteQueue,
    SqsQueue,
};

/// Returns the cells of a row, without its name.
fn cells(page: &str, row: &str) -> Vec<String> {
    let line = page
        .lines()
        .find(|line| line.starts_with(&format!("| {row} |")))
        .unwrap_or_else(|| panic!("no {row}"));
    line.trim_matches('|').split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()
}

fn time(time: Duration) -> String {
    match time.as_secs() {
        0 => "none".to_owned(),
        seconds if time == Duration::MAX || seconds == u64::MAX => "any time".to_owned(),
        seconds if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        seconds => format!("{} min", seconds / 60),
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        usize::MAX => "any".to_owned(),
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

#[tokio::test]
async fn table_of_backends_has_the_limits_of_the_code() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let folder = tempfile::tempdir().expect("a folder");
    let sqlite =
        SqliteQueue::open(folder.path().join("queue.db"), SqliteOptions::default()).expect("opens");
    let rabbit = RabbitOptions::new("amqp://host", "p");
    // As much as SQS allows by default.
    let sqs = SqsQueue::limits_of(256 << 10);
    let limits: [Limits; 4] = [
        sqlite.limits(),
        sqs,
        rabbit.limits(),
        MemoryQueue::new(MemoryOptions::default()).limits(),
    ];
    let row = |name: &str, show: &dyn Fn(&Limits) -> String| {
        assert_eq!(cells(&page, name), limits.iter().map(show).collect::<Vec<_>>(), "{name}");
    };
    row("leases end", &|limits| {
        if limits.timed_lease { "by time" } else { "with their connection" }.to_owned()
    });
    row("longest lease", &|limits| limits.lease_max.map_or("any time".to_owned(), time));
    row("longest delay", &|limits| time(limits.delay_max));
    row("largest body", &|limits| size(limits.message_bytes_max));

    let bundled =
        Bundles::new(std::sync::Arc::new(sqlite), |member| member.body.clone()).limits().bundle_max;
    let expected = ["1", &bundled.to_string(), "1", "1"].map(str::to_owned);
    assert_eq!(cells(&page, "mini-batches in a message"), expected);
}
