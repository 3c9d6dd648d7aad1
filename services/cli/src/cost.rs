//! `gristmill plan --cost`: how many requests a job makes to SQS and S3, and what they cost at list prices.
//!
//! The formula follows the engine's batching, which follows the load: what accumulates while one round is under way
//! travels in the next. So the counts depend on how long a run takes, which the plan cannot know; the user says it.
//!
//! | request | how many |
//! |---|---|
//! | send descriptors | tens of each chunk of 512; a request is billed once for each 64 KiB |
//! | receive descriptors | a node asks when a quarter of what it holds is used up: `P × depth / 4` at a time, ten a request |
//! | extend leases | all that a node holds (`2 × P × depth`), in tens, every 10 s |
//! | send outcomes | one a round of a node; a round takes about 50 ms, and a message is full at 128 KiB |
//! | delete descriptors | the outcomes of each round, in tens |
//! | receive and delete outcomes | the messages of 200 ms, in tens; and an empty receive every 20 s |
//! | PUT | chunks of the plan, a ledger segment every 200 ms at most, progress every 3 s, reports every 10 s, logs |
//! | GET | looks for cancel requests and for what others commit, every 2 to 3 s; the ledger at the end |
//! | LIST | open jobs, every 5 s |
//! | PUT of rows | a part for each mini-batch with more than 64 KiB of them; the output, 8 MiB at a time |
//! | GET of parts | each part below 5 MiB is read for the output; a larger one is copied by S3, with one PUT |
//! | GET of inputs | of inputs in a store: each file, or a block for each mini-batch of a table |
//!
//! `P` are the processes of a node, and `depth` the mini-batches that a process is handed: 20 ms of work. Retries come
//! on top, and so do storage and, where a request leaves the region, its bytes.

use protocol::{InputKind, ItemPath, JobSpec};
use serde::Serialize;
use storage::PlanComplete;

/// List prices in US dollars for us-east-1 without free tiers. Messages of a job are a fair-queue group, which costs
/// 0.10 a million more than the 0.40 of standard queues. S3 takes the same for LIST as for PUT.
const LIST_PRICES: Prices = Prices { sqs_million: 0.50, put_thousand: 0.005, get_thousand: 0.0004 };
/// Where they stand, and when they stood there.
const PRICES_FROM: &str =
    "us-east-1, March 2026 (https://aws.amazon.com/sqs/pricing/, https://aws.amazon.com/s3/pricing/)";

/// What requests cost, in US dollars.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Prices {
    sqs_million: f64,
    put_thousand: f64,
    get_thousand: f64,
}

/// SQS takes so many messages in one request.
const BATCH: f64 = 10.0;
/// And counts so many bytes as one.
const BILLED_BYTES: f64 = 64.0 * 1024.0;
const CHUNK_MINI_BATCHES: f64 = storage::PLAN_CHUNK_MINI_BATCHES as f64;
/// Work that a process is handed at a time, and at most so many mini-batches.
const PIPE_SECONDS: f64 = 0.02;
const PIPE_MAX: f64 = 256.0;
/// A node asks for no more than this.
const RECEIVE_MAX: f64 = 512.0;
const HEARTBEAT_SECONDS: f64 = 10.0;
/// Announcing and acknowledging, at the latencies within a region.
const ROUND_SECONDS: f64 = 0.05;
const MESSAGE_BYTES: f64 = 128.0 * 1024.0;
/// An outcome without its rows.
const OUTCOME_BYTES: f64 = 600.0;
const COMMIT_SECONDS: f64 = 0.2;
const SEGMENT_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
/// Rows of more bytes are no part of a message.
const INLINE_BYTES_MAX: u64 = 64 * 1024;
/// The final file is uploaded in pieces of so many bytes, and of at least its 4500th part. S3 copies a part that is as
/// large as the smallest piece that it takes, half a GiB in a request.
const UPLOAD_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
const UPLOAD_BYTES_MIN: f64 = 5.0 * 1024.0 * 1024.0;
const UPLOADS_MAX: f64 = 4500.0;
const COPY_BYTES: f64 = 512.0 * 1024.0 * 1024.0;
/// Keys in one answer to LIST.
const LISTED: u64 = 1000;
const PROGRESS_SECONDS: f64 = 3.0;
const REPORT_SECONDS: f64 = 10.0;
/// Report files that change all the time.
const REPORTS: f64 = 6.0;
/// Log files of a node, and of each of its processes.
const NODE_LOGS: f64 = 3.0;
const PROCESS_LOGS: f64 = 2.0;
/// A log that grows is uploaded after 5 s, 10 s, … 120 s.
const LOG_SECONDS: f64 = 120.0;
const LOG_UPLOADS_AT_FIRST: f64 = 5.0;
const WATCH_SECONDS: f64 = 2.0;
const LOOK_SECONDS: f64 = 5.0;
const POLL_SECONDS: f64 = 20.0;
/// Starting interpreters and importing.
const START_SECONDS: f64 = 5.0;

/// What the counts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Mini-batches of the job.
    pub mini_batches: u64,
    /// Bytes of all descriptors.
    pub descriptor_bytes: u64,
    /// Nodes that work on it.
    pub nodes: u32,
    /// Python processes of each.
    pub processes: u32,
    /// Mean time of one run.
    pub run_seconds: f64,
    /// Mean size of the rows of one mini-batch.
    pub row_bytes: u64,
    /// Reads of inputs that lie in a store.
    pub input_gets: u64,
    /// Listings of them.
    pub input_lists: u64,
}

/// Arguments of `plan --cost`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cost")]
pub struct CostArguments {
    /// Count the requests of the job to SQS and S3, and price them at the list prices of us-east-1.
    #[arg(long)]
    pub cost: bool,
    /// Mean time of one run.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = positive, requires = "cost")]
    run_seconds: f64,
    /// Mean size of the rows of one mini-batch.
    #[arg(long, value_name = "BYTES", default_value_t = 1024, requires = "cost")]
    row_bytes: u64,
    /// Nodes, if the job does not say node_count.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), requires = "cost")]
    nodes: u32,
    /// Processes of a node, if the job does not say process_count_per_node.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..), requires = "cost")]
    processes: u32,
    /// Another price in US dollars than that of us-east-1: of a million requests to SQS (sqs), of a thousand PUT and
    /// LIST (put) or GET (get) to S3, for example `sqs=0.5`. May be repeated.
    #[arg(long = "price", value_name = "KIND=DOLLARS", value_parser = price, requires = "cost")]
    prices: Vec<Price>,
}

/// A price that the user knows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Price {
    Sqs(f64),
    Put(f64),
    Get(f64),
}

fn price(text: &str) -> Result<Price, String> {
    let (kind, dollars) = text.split_once('=').ok_or("KIND=DOLLARS")?;
    let dollars = dollars.parse().ok().filter(|dollars| *dollars >= 0.0 && f64::is_finite(*dollars));
    let dollars = dollars.ok_or("the price is a number")?;
    match kind {
        "sqs" => Ok(Price::Sqs(dollars)),
        "put" => Ok(Price::Put(dollars)),
        "get" => Ok(Price::Get(dollars)),
        _ => Err("the kinds are sqs, put and get".to_owned()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|seconds| *seconds > 0.0 && f64::is_finite(*seconds)).ok_or("above 0".to_owned())
}

impl CostArguments {
    /// What the job costs, as far as anybody knows.
    pub fn of(&self, spec: &JobSpec, totals: &PlanComplete, descriptor_bytes: u64) -> Cost {
        let lie_in_a_store = spec.inputs.iter().any(|input| input.paths.iter().any(ItemPath::is_url));
        let is_tabular = spec.inputs.iter().any(|input| input.kind == InputKind::Tabular);
        let input_gets = match (lie_in_a_store, is_tabular) {
            (false, _) => 0,
            (true, false) => totals.files,
            // Besides blocks the beginning or the footer of each file, for planning and for reading.
            (true, true) => totals.mini_batches + 2 * totals.files,
        };
        let mut prices = LIST_PRICES;
        for price in &self.prices {
            match *price {
                Price::Sqs(dollars) => prices.sqs_million = dollars,
                Price::Put(dollars) => prices.put_thousand = dollars,
                Price::Get(dollars) => prices.get_thousand = dollars,
            }
        }
        let workload = Workload {
            mini_batches: totals.mini_batches,
            descriptor_bytes,
            nodes: spec.node_count.unwrap_or(self.nodes),
            processes: spec.process_count_per_node.unwrap_or(self.processes),
            run_seconds: self.run_seconds,
            row_bytes: self.row_bytes,
            input_gets,
            input_lists: if lie_in_a_store { totals.files.div_ceil(LISTED) } else { 0 },
        };
        Cost { requests: Requests::of(&workload), workload, prices }
    }
}

/// Requests by kind, of all roles together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Requests {
    /// To SQS, of each kind.
    pub queue_sends: u64,
    /// As above.
    pub queue_receives: u64,
    /// As above.
    pub queue_deletes: u64,
    /// As above.
    pub queue_extensions: u64,
    /// What SQS counts beyond these, for 64 KiB each.
    pub queue_billed_extra: u64,
    /// To S3.
    pub puts: u64,
    /// As above.
    pub gets: u64,
    /// As above.
    pub lists: u64,
}

impl Requests {
    /// Counts.
    pub fn of(work: &Workload) -> Self {
        let mini_batches = work.mini_batches as f64;
        let (nodes, processes) = (f64::from(work.nodes), f64::from(work.processes));
        let seconds = START_SECONDS + mini_batches * work.run_seconds / (nodes * processes);
        let depth = (1.0 + (PIPE_SECONDS / work.run_seconds).floor()).min(PIPE_MAX);
        let held = 2.0 * processes * depth;

        let chunks = (mini_batches / CHUNK_MINI_BATCHES).ceil();
        let sends = (mini_batches / BATCH).ceil() + chunks;
        let asked = (processes * depth / 4.0).clamp(1.0, RECEIVE_MAX).min(mini_batches.max(1.0));
        let receives =
            (mini_batches / asked * (asked / BATCH).max(1.0)).ceil() + nodes * (seconds / POLL_SECONDS).ceil();

        // A node's outcomes of one round.
        let round = (processes / work.run_seconds * ROUND_SECONDS).clamp(1.0, (mini_batches / nodes).max(1.0));
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
        let result_receives = in_tens + (seconds / POLL_SECONDS).ceil();

        let bytes = work.descriptor_bytes as f64 + mini_batches * outcome_bytes;
        // Sent and received.
        let billed = (2.0 * bytes / BILLED_BYTES).ceil();
        let bodies = sends + receives + result_sends + result_receives;

        let log_files = nodes * (NODE_LOGS + processes * PROCESS_LOGS);
        let log_uploads = log_files * (LOG_UPLOADS_AT_FIRST.min(seconds / LOOK_SECONDS) + seconds / LOG_SECONDS);
        let (rows_put, rows_got) = rows(mini_batches, work.row_bytes as f64, is_inline);
        let puts =
            rows_put + chunks + commits + seconds / PROGRESS_SECONDS + REPORTS * seconds / REPORT_SECONDS + log_uploads;
        let gets = rows_got + 2.0 * seconds / PROGRESS_SECONDS + nodes * seconds / WATCH_SECONDS + commits;
        let whole = |number: f64| number.ceil() as u64;
        Self {
            queue_sends: whole(sends + result_sends),
            queue_receives: whole(receives + result_receives),
            queue_deletes: whole(deletes + in_tens),
            queue_extensions: whole(nodes * (seconds / HEARTBEAT_SECONDS).floor() * (held / BATCH).ceil()),
            queue_billed_extra: whole((billed - bodies).max(0.0)),
            // Job, column types, plan, markers, snapshots, final file, result; and what each role looks up at first.
            puts: whole(puts) + 10,
            gets: whole(gets) + 20 + 5 * u64::from(work.nodes) + work.input_gets,
            lists: whole(seconds / LOOK_SECONDS) + 2 + work.input_lists,
        }
    }

    fn queue_calls(&self) -> u64 {
        self.queue_sends + self.queue_receives + self.queue_deletes + self.queue_extensions
    }

    /// SQS and S3, in US dollars.
    fn dollars(&self, prices: &Prices) -> (f64, f64) {
        let queue = (self.queue_calls() + self.queue_billed_extra) as f64 / 1e6 * prices.sqs_million;
        let store = (self.puts + self.lists) as f64 / 1e3 * prices.put_thousand;
        (queue, store + self.gets as f64 / 1e3 * prices.get_thousand)
    }
}

/// PUT and GET requests that rows need to become parts, and the final file.
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

/// What a job costs, and why.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    workload: Workload,
    requests: Requests,
    prices: Prices,
}

impl Cost {
    fn dollars(&self) -> f64 {
        let (queue, store) = self.requests.dollars(&self.prices);
        queue + store
    }

    fn per_million(&self) -> f64 {
        self.dollars() * 1e6 / (self.workload.mini_batches.max(1) as f64)
    }

    fn prices_from(&self) -> &'static str {
        if self.prices == LIST_PRICES { PRICES_FROM } else { "the prices given" }
    }

    /// What `plan --cost --json` prints.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "workload": self.workload,
            "requests": self.requests,
            "prices": self.prices,
            "prices_from": self.prices_from(),
            "dollars": self.dollars(),
            "dollars_per_million_mini_batches": self.per_million(),
        })
    }

    /// What `plan --cost` prints.
    pub fn lines(&self) -> Vec<String> {
        let (work, requests) = (&self.workload, &self.requests);
        let (queue, store) = requests.dollars(&self.prices);
        vec![
            format!(
                "requests, with runs of {} s and {} bytes of rows each, on {} nodes of {} processes:",
                work.run_seconds, work.row_bytes, work.nodes, work.processes
            ),
            format!(
                "  SQS {:>10}  ({} sends, {} receives, {} deletes, {} extensions; {} more for messages above 64 KiB)",
                requests.queue_calls(),
                requests.queue_sends,
                requests.queue_receives,
                requests.queue_deletes,
                requests.queue_extensions,
                requests.queue_billed_extra
            ),
            format!("  S3  {:>10}  PUT, {} GET, {} LIST", requests.puts, requests.gets, requests.lists),
            format!(
                "  about ${:.4} (SQS ${queue:.4}, S3 ${store:.4}), ${:.2} per 1 000 000 mini-batches like these",
                self.dollars(),
                self.per_million()
            ),
            format!("  prices: {}", self.prices_from()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(mini_batches: u64, run_seconds: f64, processes: u32) -> Workload {
        Workload {
            mini_batches,
            descriptor_bytes: mini_batches * 200,
            nodes: 1,
            processes,
            run_seconds,
            row_bytes: 1024,
            input_gets: 0,
            input_lists: 0,
        }
    }

    fn cost(workload: Workload) -> Cost {
        Cost { requests: Requests::of(&workload), workload, prices: LIST_PRICES }
    }

    #[test]
    fn quick_runs_travel_in_tens_and_slow_ones_alone() {
        let quick = Requests::of(&workload(10_000, 0.001, 2));
        assert!((3_000..4_000).contains(&quick.queue_calls()), "{quick:?}");
        assert!(quick.puts < 600 && quick.gets < 1_500 && quick.lists < 100, "{quick:?}");
        let slow = Requests::of(&workload(10_000, 10.0, 2));
        // Received, announced and deleted one by one; everything of the results too.
        assert!((50_000..60_000).contains(&(slow.queue_calls() - slow.queue_extensions)), "{slow:?}");
    }

    #[test]
    fn what_a_million_mini_batches_cost() {
        let cost = cost(workload(1_000_000, 0.001, 8));
        // Three requests for ten mini-batches, and what is above 64 KiB.
        assert!((0.15..0.40).contains(&cost.dollars()), "{cost:?}");
        assert_eq!(cost.per_million(), cost.dollars());
    }

    #[test]
    fn rows_that_are_no_part_of_a_message_are_written_and_read_once_each() {
        let of = |row_bytes| cost(Workload { row_bytes, ..workload(10_000, 1.0, 8) });
        let (inline, small) = (of(INLINE_BYTES_MAX), of(INLINE_BYTES_MAX + 1));
        assert!(small.requests.puts > inline.requests.puts + 5_000, "{small:?}");
        assert!(small.requests.gets > inline.requests.gets + 5_000, "{small:?}");
        // From 5 MiB on a part is copied by the store itself, and not read and uploaded in pieces of 8 MiB.
        let of = |row_bytes| cost(Workload { row_bytes, ..workload(1_000, 1.0, 8) }).requests;
        let (read, copied) = (of(4 << 20), of(6 << 20));
        assert_eq!((read.gets - copied.gets, copied.puts - read.puts), (1_000, 500));
    }

    #[test]
    fn reading_inputs_from_a_store_is_counted() {
        let work = workload(10_000, 1.0, 8);
        let (near, far) = (cost(work), cost(Workload { input_gets: 10_000, input_lists: 10, ..work }));
        assert_eq!(far.requests.gets - near.requests.gets, 10_000);
        assert_eq!(far.requests.lists - near.requests.lists, 10);
        assert!((far.dollars() - near.dollars() - (10.0 * 0.0004 + 0.01 * 0.005)).abs() < 1e-9);
    }

    #[test]
    fn a_price_that_is_given_goes_before_that_of_the_list() {
        assert_eq!(price("put=0.0054"), Ok(Price::Put(0.0054)));
        for wrong in ["put", "list=1", "sqs=-1", "get=free", "get=inf"] {
            assert!(price(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn more_work_is_never_fewer_requests() {
        for run_seconds in [0.0005, 0.05, 5.0] {
            let calls =
                [1, 100, 10_000, 1_000_000].map(|count| Requests::of(&workload(count, run_seconds, 4)).queue_calls());
            assert!(calls.is_sorted(), "{calls:?}");
        }
    }
}
