//! Estimates the requests of a job to SQS and S3, and their cost.
//!
//! The formula follows the engine's batching, which follows the load: messages that accumulate during one round travel in
//! the next. So the counts depend on the time of one run, which the plan does not know; the caller assumes it.
//!
//! | request | how many |
//! |---|---|
//! | send descriptors | tens of each chunk of 512, at most: those of quick mini-batches share messages once the first have ended; a request is billed once for each 64 KiB |
//! | receive descriptors | a node receives when a quarter of its mini-batches is used up: `P × depth / 4` at a time, ten a request |
//! | extend leases | all deliveries of a node (`2 × P × depth`), in tens, every 4 s, if they are not done by then |
//! | send outcomes | one a round of a node; a round takes about 50 ms, and a message is full at 128 KiB |
//! | delete descriptors | the outcomes of each round, in tens |
//! | receive and delete outcomes | the messages of 200 ms, in tens; and an empty receive and a look for the queue of tasks, both every 20 s |
//! | PUT | chunks of the plan, a ledger segment every 200 ms at most, progress every 2 s, reports every 10 s, logs |
//! | PUT | each node's entry, every 2 s |
//! | GET | of each node, the next schedule, every second |
//! | GET | of a reducer, the next schedule every second, and each node's entry every 2 s |
//! | GET | requests to cancel and commits of other reducers, every 2 s; the ledger at the end |
//! | GET | of each node, with `speculation`: the decided speculative runs, every 4 s while a run takes longer than 2 s |
//! | LIST | open jobs and nodes, every second |
//! | PUT of rows | a part for each mini-batch with more than 64 KiB of them; the output, 8 MiB at a time |
//! | GET of parts | each part below 5 MiB is read for the output; a larger one is copied by S3, with one PUT |
//! | LIST of inputs | of inputs in a store: each page |
//! | GET of inputs | of inputs in a store: each file, or a block for each mini-batch of a table, and beginnings of files |
//!
//! `P` is the number of processes of a node, and `depth` the number of mini-batches that a process
//! gets at a time: 20 ms of work. The requests of nodes and reducers every second serve all jobs of
//! the target, and count as if this job were alone. Not included: retries, quotas (every 30 s),
//! waits for workers and because of quotas (per hour of a job and reducer 1800 PUT of progress and
//! the requests above), item checkpoints, storage, and the bytes of requests that leave the region.

use protocol::{Input, InputKind, ItemPath, JobSpec, PlanPosition};
use serde::Serialize;
use storage::PlanComplete;

/// List prices in US dollars for us-east-1 without free tiers: standard queues, and S3, which takes the same for LIST as for
/// PUT.
pub const LIST_PRICES: Prices =
    Prices { sqs_million: 0.40, put_thousand: 0.005, get_thousand: 0.0004 };
/// Region, date and source of the list prices.
pub const PRICES_FROM: &str = "us-east-1, March 2026 (https://aws.amazon.com/sqs/pricing/, https://aws.amazon.com/s3/pricing/)";

/// Prices of requests, in US dollars.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prices {
    /// A million requests to SQS.
    pub sqs_million: f64,
    /// A thousand PUT or LIST requests to S3.
    pub put_thousand: f64,
    /// A thousand GET requests to S3.
    pub get_thousand: f64,
}

const BATCH: f64 = 10.0;
const BILLED_BYTES: f64 = 64.0 * 1024.0;
/// Work that a process gets at a time, and the most mini-batches.
const PIPE_SECONDS: f64 = 0.02;
const PIPE_MAX: f64 = 256.0;
const RECEIVE_MAX: f64 = 512.0;
/// Half a lease.
const EXTENSION_SECONDS: f64 = 4.0;
/// Announcing and acknowledging, at the latencies within a region.
const ROUND_SECONDS: f64 = 0.05;
const MESSAGE_BYTES: f64 = 128.0 * 1024.0;
/// An outcome without its rows.
const OUTCOME_BYTES: f64 = 600.0;
const COMMIT_SECONDS: f64 = 0.2;
const SEGMENT_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
/// Larger rows are not part of a message.
const INLINE_BYTES_MAX: u64 = 64 * 1024;
/// The final file is uploaded in pieces of this size, or of its 4500th part if that is larger. S3 itself copies a part that
/// is at least as large as its smallest piece, half a GiB per request.
const UPLOAD_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
const UPLOAD_BYTES_MIN: f64 = 5.0 * 1024.0 * 1024.0;
const UPLOADS_MAX: f64 = 4500.0;
const COPY_BYTES: f64 = 512.0 * 1024.0 * 1024.0;
const LISTED: u64 = 1000;
/// Before a table in a store is planned, the check reads the size and the beginning of its first object.
const TABLE_GETS: u64 = 3;
const PROGRESS_SECONDS: f64 = 2.0;
const REPORT_SECONDS: f64 = 10.0;
/// Report files that change continuously.
const REPORTS: f64 = 6.0;
/// Log files of a node, and of each of its processes.
const NODE_LOGS: f64 = 3.0;
const PROCESS_LOGS: f64 = 2.0;
/// A log that grows is uploaded after 5 s, 10 s, … 120 s.
const LOG_SECONDS: f64 = 120.0;
const LOG_UPLOADS_AT_FIRST: f64 = 5.0;
/// Time between two reads of the decided speculative runs by a node.
const DECIDED_SECONDS: f64 = 4.0;
/// The shortest run during which it reads them.
const LONG_RUN_SECONDS: f64 = 2.0;
/// Time between two renewals of a node's entry in the list of workers.
const REGISTRATION_SECONDS: f64 = storage::WORKER_PERIOD_AT_WORK.as_secs() as f64;
/// Time between two requests for the next schedule, and of a reducer between two listings of open
/// jobs and of nodes.
const SCHEDULE_SECONDS: f64 = 1.0;
/// Time until a log that grows is uploaded first.
const LOG_LOOK_SECONDS: f64 = 5.0;
const POLL_SECONDS: f64 = 20.0;
const START_SECONDS: f64 = 5.0;

/// The work that decides the number of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Workload {
    /// Mini-batches of the job.
    pub mini_batches: u64,
    /// Bytes of all descriptors.
    pub descriptor_bytes: u64,
    /// Nodes that work on the job.
    pub nodes: u32,
    /// Python processes on each node.
    pub processes: u32,
    /// Mean time of one run.
    pub run_seconds: f64,
    /// Mean size of the rows of one mini-batch.
    pub row_bytes: u64,
    /// Reads of inputs in a store.
    pub input_gets: u64,
    /// Listings of them.
    pub input_lists: u64,
    /// Whether slow mini-batches have speculative runs.
    pub speculates: bool,
}

/// Requests by kind, of all roles together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Requests {
    /// Batches of messages that are sent.
    pub queue_sends: u64,
    /// Receives, with and without messages.
    pub queue_receives: u64,
    /// Batches of acknowledged messages.
    pub queue_deletes: u64,
    /// Batches of extended leases.
    pub queue_extensions: u64,
    /// Further requests that SQS bills, for each 64 KiB.
    pub queue_billed_extra: u64,
    /// Objects that are written.
    pub puts: u64,
    /// Objects that are read.
    pub gets: u64,
    /// Pages of listings.
    pub lists: u64,
}

impl Requests {
    /// Estimates the requests of a workload.
    pub fn of(work: &Workload) -> Self {
        let mini_batches = work.mini_batches as f64;
        let (nodes, processes) = (f64::from(work.nodes), f64::from(work.processes));
        let seconds = START_SECONDS + mini_batches * work.run_seconds / (nodes * processes);
        let depth = (1.0 + (PIPE_SECONDS / work.run_seconds).floor()).min(PIPE_MAX);
        let held = 2.0 * processes * depth;
        // From its receive to its end, a mini-batch waits for as many as its process has at a time.
        let outlasts = 2.0 * depth * work.run_seconds >= EXTENSION_SECONDS;
        let extensions =
            if outlasts { seconds / EXTENSION_SECONDS * (held / BATCH).ceil() } else { 0.0 };

        let chunks = PlanPosition::chunks_for(work.mini_batches) as f64;
        let sends = (mini_batches / BATCH).ceil() + chunks;
        let asked = (processes * depth / 4.0).clamp(1.0, RECEIVE_MAX).min(mini_batches.max(1.0));
        let receives = (mini_batches / asked * (asked / BATCH).max(1.0)).ceil()
            + nodes * (seconds / POLL_SECONDS).ceil();

        // A node's outcomes of one round.
        let round = (processes / work.run_seconds * ROUND_SECONDS)
            .clamp(1.0, (mini_batches / nodes).max(1.0));
        let rounds = (mini_batches / round).ceil();
        let is_inline = work.row_bytes <= INLINE_BYTES_MAX;
        let outcome_bytes = OUTCOME_BYTES + if is_inline { work.row_bytes as f64 } else { 0.0 };
        let messages_a_round = (round * outcome_bytes / MESSAGE_BYTES).ceil();
        let messages = rounds * messages_a_round;
        let result_sends = rounds * (messages_a_round / BATCH).ceil() + 1.0;
        let deletes = rounds * (round / BATCH).ceil();

        // The reducer's messages of one commit.
        let commit = (messages / seconds * COMMIT_SECONDS).max(1.0);
        let commits = (messages / commit).ceil().max(mini_batches * outcome_bytes / SEGMENT_BYTES);
        let in_tens = commits * (commit / BATCH).ceil();
        let result_receives = in_tens + 2.0 * (seconds / POLL_SECONDS).ceil();

        let bytes = work.descriptor_bytes as f64 + mini_batches * outcome_bytes;
        // Sent and received.
        let billed = (2.0 * bytes / BILLED_BYTES).ceil();
        let bodies = sends + receives + result_sends + result_receives;

        let log_files = nodes * (NODE_LOGS + processes * PROCESS_LOGS);
        let log_uploads = log_files
            * (LOG_UPLOADS_AT_FIRST.min(seconds / LOG_LOOK_SECONDS) + seconds / LOG_SECONDS);
        let (rows_put, rows_got) = rows(mini_batches, work.row_bytes as f64, is_inline);
        let looks = work.speculates && work.run_seconds > LONG_RUN_SECONDS;
        let looks = if looks { nodes * seconds / DECIDED_SECONDS } else { 0.0 };
        let puts = rows_put
            + chunks
            + commits
            + nodes * (1.0 + seconds / REGISTRATION_SECONDS)
            + seconds / PROGRESS_SECONDS
            + REPORTS * seconds / REPORT_SECONDS
            + log_uploads;
        // Of the reducer: cancel requests and commits of others.
        let watches = 2.0 * seconds / PROGRESS_SECONDS;
        let schedules =
            (nodes + 1.0) * seconds / SCHEDULE_SECONDS + nodes * seconds / REGISTRATION_SECONDS;
        let gets = rows_got + watches + schedules + looks + commits;
        let whole = |number: f64| number.ceil() as u64;
        Self {
            queue_sends: whole(sends + result_sends),
            queue_receives: whole(receives + result_receives),
            queue_deletes: whole(deletes + in_tens),
            queue_extensions: whole(nodes * extensions),
            queue_billed_extra: whole((billed - bodies).max(0.0)),
            // Job, identity, column types, plan, markers, snapshots, final file, result; and the first look-ups of each role.
            puts: whole(puts) + 12,
            gets: whole(gets) + 20 + 5 * u64::from(work.nodes) + work.input_gets,
            lists: whole(2.0 * seconds / SCHEDULE_SECONDS) + 4 + work.input_lists,
        }
    }

    /// Returns the number of requests to SQS.
    pub fn queue_calls(&self) -> u64 {
        self.queue_sends + self.queue_receives + self.queue_deletes + self.queue_extensions
    }
}

/// Returns the PUT and GET requests that turn rows into parts and the final file.
fn rows(mini_batches: f64, row_bytes: f64, is_inline: bool) -> (f64, f64) {
    let bytes = mini_batches * row_bytes;
    let upload = UPLOAD_BYTES.max(bytes / UPLOADS_MAX);
    let uploads = (bytes / upload).ceil();
    if is_inline {
        return (uploads, 0.0);
    }
    if row_bytes >= UPLOAD_BYTES_MIN.max(bytes / UPLOADS_MAX) {
        let copies = (row_bytes / COPY_BYTES).ceil();
        return (mini_batches * (1.0 + copies), 0.0);
    }
    (mini_batches + uploads, mini_batches)
}

/// The estimated requests of a job, with their cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The workload that causes them.
    pub workload: Workload,
    /// Their numbers.
    pub requests: Requests,
    /// Their prices.
    pub prices: Prices,
}

impl Cost {
    /// Estimates the requests of a planned job, and their cost. `assumed`: the values that neither
    /// the job nor its plan has.
    pub fn of(spec: &JobSpec, totals: &PlanComplete, assumed: Workload, prices: Prices) -> Self {
        let in_a_store = |kind: InputKind| {
            let is_there =
                |input: &&Input| input.kind == kind && input.paths.iter().any(ItemPath::is_url);
            spec.inputs.iter().filter(is_there).count() as u64
        };
        let (files, tables) = (in_a_store(InputKind::File), in_a_store(InputKind::Tabular));
        let input_gets = match (files, tables) {
            (0, 0) => 0,
            (_, 0) => totals.files,
            // In addition to blocks: the beginning or the footer of each file, for planning and for reading.
            (_, tables) => totals.mini_batches + 2 * totals.files + tables * TABLE_GETS,
        };
        let workload = Workload {
            mini_batches: totals.mini_batches,
            nodes: spec.node_count.unwrap_or(assumed.nodes),
            processes: spec.process_count_per_node.unwrap_or(assumed.processes),
            input_gets,
            input_lists: match files + tables {
                0 => 0,
                // The last page of each input may be short.
                inputs => totals.files.div_ceil(LISTED) + inputs,
            },
            speculates: spec.speculation,
            ..assumed
        };
        Self { requests: Requests::of(&workload), workload, prices }
    }

    /// Returns the cost in US dollars of SQS and of S3.
    pub fn dollars(&self) -> (f64, f64) {
        let requests = &self.requests;
        let queue = (requests.queue_calls() + requests.queue_billed_extra) as f64 / 1e6
            * self.prices.sqs_million;
        let store = (requests.puts + requests.lists) as f64 / 1e3 * self.prices.put_thousand;
        (queue, store + requests.gets as f64 / 1e3 * self.prices.get_thousand)
    }

    /// Returns the cost in US dollars of a million mini-batches like these.
    pub fn dollars_per_million(&self) -> f64 {
        let (queue, store) = self.dollars();
        (queue + store) * 1e6 / (self.workload.mini_batches.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(mini_batches: u64, run_seconds: f64, processes: u32) -> Workload {
        let descriptor_bytes = mini_batches * 200;
        let rest = Workload { nodes: 1, row_bytes: 1024, ..Workload::default() };
        Workload { mini_batches, descriptor_bytes, processes, run_seconds, ..rest }
    }

    fn cost(workload: Workload) -> Cost {
        Cost { requests: Requests::of(&workload), workload, prices: LIST_PRICES }
    }

    #[test]
    fn quick_runs_share_requests_and_slow_ones_do_not() {
        let quick = Requests::of(&workload(10_000, 0.001, 2));
        assert!((3_000..4_000).contains(&quick.queue_calls()), "{quick:?}");
        assert!(quick.puts < 600 && quick.gets < 1_500 && quick.lists < 100, "{quick:?}");
        assert_eq!(quick.queue_extensions, 0, "they end before their leases need it");
        let slow = Requests::of(&workload(10_000, 10.0, 2));
        assert!(
            (12_500..12_600).contains(&slow.queue_extensions),
            "one every four seconds: {slow:?}"
        );
        // Descriptors and results are received, announced and deleted one by one.
        assert!(
            (50_000..60_000).contains(&(slow.queue_calls() - slow.queue_extensions)),
            "{slow:?}"
        );
    }

    #[test]
    fn million_mini_batches_cost_less_than_half_a_dollar() {
        let cost = cost(workload(1_000_000, 0.001, 8));
        // Three requests for ten mini-batches, and those above 64 KiB.
        let (queue, store) = cost.dollars();
        assert!((0.12..0.40).contains(&(queue + store)), "{cost:?}");
        assert_eq!(cost.dollars_per_million(), queue + store);
    }

    #[test]
    fn large_rows_are_written_and_read_once_each() {
        let of = |row_bytes| cost(Workload { row_bytes, ..workload(10_000, 1.0, 8) });
        let (inline, small) = (of(INLINE_BYTES_MAX), of(INLINE_BYTES_MAX + 1));
        assert!(small.requests.puts > inline.requests.puts + 5_000, "{small:?}");
        assert!(small.requests.gets > inline.requests.gets + 5_000, "{small:?}");
        // From 5 MiB on the store copies a part itself, instead of a download and an upload in pieces of 8 MiB.
        let of = |row_bytes| cost(Workload { row_bytes, ..workload(1_000, 1.0, 8) }).requests;
        let (read, copied) = (of(4 << 20), of(6 << 20));
        assert_eq!((read.gets - copied.gets, copied.puts - read.puts), (1_000, 500));
    }

    #[test]
    fn reads_of_inputs_in_a_store_are_counted() {
        let work = workload(10_000, 1.0, 8);
        let (near, far) =
            (cost(work), cost(Workload { input_gets: 10_000, input_lists: 10, ..work }));
        assert_eq!(far.requests.gets - near.requests.gets, 10_000);
        assert_eq!(far.requests.lists - near.requests.lists, 10);
        let difference = far.dollars().1 - near.dollars().1;
        assert!((difference - (10.0 * 0.0004 + 0.01 * 0.005)).abs() < 1e-9);
    }

    #[test]
    fn speculation_costs_requests_of_each_node() {
        // 2 500 seconds on each of two nodes.
        let work = Workload { nodes: 2, ..workload(10_000, 2.5, 5) };
        let of = |work: Workload| cost(work).requests;
        let speculating = of(Workload { speculates: true, ..work });
        assert_eq!(speculating.puts, of(work).puts);
        assert!((speculating.gets - of(work).gets).abs_diff(1_252) <= 1, "{speculating:?}");
    }

    #[test]
    fn more_work_never_needs_fewer_requests() {
        for run_seconds in [0.0005, 0.05, 5.0] {
            let calls = [1, 100, 10_000, 1_000_000]
                .map(|count| Requests::of(&workload(count, run_seconds, 4)).queue_calls());
            assert!(calls.is_sorted(), "{calls:?}");
        }
    }
}
