//! The file: its schema, and every statement that runs on it.
//!
//! There is one table with an index, and a table for large bodies. `visible_at` is the time (milliseconds of the
//! queue's [`Clock`]) from which a message may be received. It is in the past for a new or released message, and in the
//! future because of a delay (`receive_count` 0) or a lease. The index defines the order of claims.
//!
//! SQLite reads a whole row to change one of its columns. So the row that every claim, extension and release changes
//! contains the body only if it is small.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row, params};

use super::SqliteOptions;
use super::failure::{explain, misconfigured};
use crate::{Clock, Delivery, Depth, Error, LeaseClock, Message, Receipt};

/// The connection to a queue file. All calls block.
#[derive(Debug)]
pub(super) struct Store {
    connection: Connection,
    clock: Clock,
}

/// The kind of a SQLite file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Empty,
    /// A queue with the schema of this build.
    Queue,
    /// Another application's database, or a queue with another schema.
    Other,
    ReadOnly,
}

/// Marks a SQLite file as a queue ("GmQu").
const APPLICATION_ID: i32 = 0x476d_5175;
const SCHEMA_VERSION: i32 = 1;

/// The tables and index of a queue. AUTOINCREMENT never reuses an id, so a receipt (id, delivery) identifies one
/// delivery permanently. A message with a row in `large_body` has an empty `body`.
const SCHEMA: &str = "
    CREATE TABLE message (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        visible_at INTEGER NOT NULL,
        receive_count INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE INDEX message_by_visible_at ON message (visible_at);
    CREATE TABLE large_body (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
";

/// A body of this size (half a page) or more has its own row in `large_body`.
const LARGE_BODY_BYTES: usize = 4096;

/// The `visible_at` of a message that is visible now. It is in the past (2004), so that new messages come first and in
/// the order of their ids. SQLite stores it with the same length as current dates (6 bytes), so that a claim overwrites
/// the row in place, without moving the body.
const VISIBLE_NOW: i64 = 1 << 40;

/// The number of 8 KiB pages between two checkpoints: 16 MiB, so that SQLite syncs the file a few times a second at
/// full load.
const CHECKPOINT_PAGES: i32 = 2048;

/// A claim ends with the message that brings it to this size. This bounds the memory of a receiver that requests many
/// messages.
const CLAIM_BYTES_MAX: usize = 16 << 20;

const INSERT: &str = "INSERT INTO message (visible_at, receive_count, body) VALUES (?1, 0, ?2)";
const INSERT_LARGE_BODY: &str =
    "INSERT INTO large_body (id, body) VALUES (last_insert_rowid(), ?1)";
const VISIBLE: &str = "
    SELECT id, receive_count, message.body, large_body.body FROM message LEFT JOIN large_body USING (id)
    WHERE visible_at <= ?1 ORDER BY visible_at, id LIMIT ?2";
const CLAIM: &str = "UPDATE message SET visible_at = ?1, receive_count = ?2 WHERE id = ?3";
const UNCLAIM: &str = "
    UPDATE message SET visible_at = ?1, receive_count = receive_count - 1 WHERE id = ?2 AND receive_count = ?3";
const SET_LEASE: &str =
    "UPDATE message SET visible_at = ?1 WHERE id = ?2 AND receive_count = ?3 AND visible_at > ?4";
const DELETE: &str = "DELETE FROM message WHERE id = ?1 AND receive_count = ?2";
const HAS_LARGE_BODIES: &str = "SELECT EXISTS (SELECT 1 FROM large_body)";
const DELETE_LARGE_BODY: &str = "DELETE FROM large_body WHERE id = ?1";
const NEXT_VISIBLE: &str = "SELECT min(visible_at) FROM message";
const COUNT: &str = "SELECT count(*) FROM message";
const COUNT_HIDDEN: &str = "
    SELECT count(*), count(*) FILTER (WHERE receive_count > 0) FROM message WHERE visible_at > ?1";

impl Store {
    /// Opens the queue in the file. With `create`, creates the file if it is absent.
    pub(super) fn open(path: &Path, options: SqliteOptions, create: bool) -> Result<Self, Error> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
        let connection =
            Connection::open_with_flags(path, flags).map_err(|error| explain(path, error))?;
        let store = Self { connection, clock: options.clock.clone() };
        match store.prepare_file(&options).map_err(|error| explain(path, error))? {
            FileKind::Queue => Ok(store),
            FileKind::ReadOnly => {
                Err(misconfigured(path, "the file cannot be written; check its permissions".into()))
            }
            FileKind::Empty | FileKind::Other => Err(misconfigured(
                path,
                "it is another application's database, or a queue of another build; choose another path".into(),
            )),
        }
    }

    /// Turns an empty file into a queue. Leaves any other file unchanged.
    fn prepare_file(&self, options: &SqliteOptions) -> rusqlite::Result<FileKind> {
        self.connection.busy_timeout(options.lock_wait_max)?;
        // In a transaction, this process sees all or nothing of a queue that another process is creating.
        self.run("BEGIN")?;
        let kind = self.file_kind()?;
        self.run("COMMIT")?;
        if matches!(kind, FileKind::Other | FileKind::ReadOnly) {
            return Ok(kind);
        }
        configure(&self.connection, options)?;
        self.in_transaction(|store| {
            // Another process may have created the queue meanwhile.
            if store.file_kind()? == FileKind::Empty {
                store.connection.execute_batch(SCHEMA)?;
                store.connection.pragma_update(None, "application_id", APPLICATION_ID)?;
                store.connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            }
            store.file_kind()
        })
    }

    fn file_kind(&self) -> rusqlite::Result<FileKind> {
        let read =
            |pragma| self.connection.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
        let marks = (read("application_id")?, read("user_version")?);
        let empty = !self.connection.prepare("SELECT 1 FROM sqlite_schema")?.exists([])?;
        Ok(match marks {
            _ if self.connection.is_readonly("main")? => FileKind::ReadOnly,
            (APPLICATION_ID, SCHEMA_VERSION) => FileKind::Queue,
            (0, 0) if empty => FileKind::Empty,
            _ => FileKind::Other,
        })
    }

    /// Runs `work` as one transaction that holds the write lock from the start.
    pub(super) fn in_transaction<T>(
        &self,
        work: impl FnOnce(&Self) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.run("BEGIN IMMEDIATE")?;
        let result = work(self).and_then(|value| self.run("COMMIT").map(|()| value));
        // Some failures end the transaction themselves. The caller needs the first failure, not that of the rollback.
        if result.is_err() && !self.connection.is_autocommit() {
            let _ = self.run("ROLLBACK");
        }
        result
    }

    fn run(&self, statement: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(drop)
    }

    pub(super) fn send(&self, messages: &[Message]) -> rusqlite::Result<()> {
        let mut insert = self.connection.prepare_cached(INSERT)?;
        for message in messages {
            let delayed = !message.delay.is_zero();
            let visible_at = if delayed { self.clock.after(message.delay) } else { VISIBLE_NOW };
            let is_large = message.body.len() >= LARGE_BODY_BYTES;
            insert.execute(params![visible_at, if is_large { &[] } else { &message.body[..] }])?;
            if is_large {
                self.connection.prepare_cached(INSERT_LARGE_BODY)?.execute([&message.body[..]])?;
            }
        }
        Ok(())
    }

    /// Returns whether a claim would find a message.
    pub(super) fn has_visible(&self) -> rusqlite::Result<bool> {
        let next: Option<i64> =
            self.connection.prepare_cached(NEXT_VISIBLE)?.query_row([], |row| row.get(0))?;
        Ok(next.is_some_and(|visible_at| visible_at <= self.now()))
    }

    pub(super) fn claim(
        &self,
        messages_max: usize,
        visibility: Duration,
    ) -> rusqlite::Result<Vec<Delivery>> {
        let limit = i64::try_from(messages_max).unwrap_or(i64::MAX);
        let mut visible = self.connection.prepare_cached(VISIBLE)?;
        let mut rows = visible.query(params![self.now(), limit])?;
        let leased_at = LeaseClock::System.now();
        let mut deliveries = Vec::new();
        let mut bytes = 0;
        while bytes < CLAIM_BYTES_MAX
            && let Some(row) = rows.next()?
        {
            let body = body(row, 2, 3)?;
            bytes += body.len();
            let receive_count = row.get::<_, u32>(1)? + 1;
            let receipt = Receipt::numbered(row.get(0)?, receive_count);
            deliveries.push(Delivery { body, receipt, receive_count, leased_at });
        }
        drop(rows);
        let mut claim = self.connection.prepare_cached(CLAIM)?;
        let leased_until = self.clock.after(visibility);
        for (message, delivery) in deliveries.iter().map(|delivery| delivery.receipt.numbers()) {
            claim.execute(params![leased_until, delivery, message])?;
        }
        Ok(deliveries)
    }

    /// Undoes claims that reached no receiver, and their receive counts.
    pub(super) fn unclaim(&self, receipts: &[Receipt]) -> rusqlite::Result<()> {
        let mut unclaim = self.connection.prepare_cached(UNCLAIM)?;
        for receipt in receipts {
            let (message, delivery) = receipt.numbers();
            unclaim.execute(params![VISIBLE_NOW, message, delivery])?;
        }
        Ok(())
    }

    pub(super) fn extend(&self, leases: &[(Receipt, Duration)]) -> rusqlite::Result<Vec<Receipt>> {
        let now = self.now();
        let leases =
            leases.iter().map(|(receipt, visibility)| (receipt, self.clock.after(*visibility)));
        self.set_leases(leases, now)
    }

    pub(super) fn release(&self, receipts: &[Receipt]) -> rusqlite::Result<()> {
        let now = self.now();
        self.set_leases(receipts.iter().map(|receipt| (receipt, VISIBLE_NOW)), now).map(drop)
    }

    fn set_leases<'a>(
        &self,
        leases: impl Iterator<Item = (&'a Receipt, i64)>,
        now: i64,
    ) -> rusqlite::Result<Vec<Receipt>> {
        let mut set_lease = self.connection.prepare_cached(SET_LEASE)?;
        let mut lost = Vec::new();
        for (receipt, visible_at) in leases {
            let (message, delivery) = receipt.numbers();
            if set_lease.execute(params![visible_at, message, delivery, now])? == 0 {
                lost.push(receipt.clone());
            }
        }
        Ok(lost)
    }

    pub(super) fn acknowledge(&self, receipts: &[Receipt]) -> rusqlite::Result<Vec<Receipt>> {
        let mut delete = self.connection.prepare_cached(DELETE)?;
        let mut delete_large_body = self.connection.prepare_cached(DELETE_LARGE_BODY)?;
        let has_large_bodies =
            self.connection.prepare_cached(HAS_LARGE_BODIES)?.query_row([], |row| row.get(0))?;
        let mut lost = Vec::new();
        for receipt in receipts {
            if delete.execute(receipt.numbers())? == 0 {
                lost.push(receipt.clone());
            } else if has_large_bodies {
                delete_large_body.execute([receipt.numbers().0])?;
            }
        }
        Ok(lost)
    }

    pub(super) fn depth(&self) -> rusqlite::Result<Depth> {
        let total: i64 = self.connection.prepare_cached(COUNT)?.query_row([], |row| row.get(0))?;
        let mut count_hidden = self.connection.prepare_cached(COUNT_HIDDEN)?;
        let (hidden, in_flight): (i64, i64) =
            count_hidden.query_row([self.now()], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let count = |messages: i64| u64::try_from(messages).expect("counts are not negative");
        Ok(Depth {
            visible: count(total - hidden),
            in_flight: count(in_flight),
            delayed: count(hidden - in_flight),
        })
    }

    /// Returns the current time, or [`VISIBLE_NOW`] if the machine's clock shows an earlier time, such as 1970.
    fn now(&self) -> i64 {
        self.clock.now_milliseconds().max(VISIBLE_NOW)
    }
}

/// Returns the body of a message: the column `large` of `large_body`, or else the column `column` of `message`.
fn body(row: &Row<'_>, column: usize, large: usize) -> rusqlite::Result<Bytes> {
    let body = match row.get_ref(large)? {
        ValueRef::Null => row.get_ref(column)?,
        large => large,
    };
    Ok(Bytes::copy_from_slice(body.as_blob()?))
}

fn configure(connection: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(32);
    connection.pragma_update(None, "page_size", 8192)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    use_write_ahead_log(connection, options.lock_wait_max)?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)
}

/// Sets WAL mode. Retries, because SQLite itself does not wait for the lock while another process opens the new file.
fn use_write_ahead_log(connection: &Connection, lock_wait_max: Duration) -> rusqlite::Result<()> {
    let deadline = Instant::now() + lock_wait_max;
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests;
