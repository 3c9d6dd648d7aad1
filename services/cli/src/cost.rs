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
//!
//! `P` are the processes of a node, and `depth` the mini-batches that a process is handed: 20 ms of work. Retries, rows
//! that are no part of a message (more than 64 KiB) and reading the inputs come on top.

use protocol::JobSpec;
use serde::Serialize;

/// List prices in US dollars for us-east-1 without free tiers, from <https://aws.amazon.com/sqs/pricing/> and
/// <https://aws.amazon.com/s3/pricing/> as of March 2026. Messages of a job are a fair-queue group, which costs 0.10 a
/// million more than the 0.40 of standard queues.
const PRICES: Prices = Prices { queue_million: 0.50, put_thousand: 0.005, list_thousand: 0.005, get_thousand: 0.0004 };

struct Prices {
    queue_million: f64,
    put_thousand: f64,
    list_thousand: f64,
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
}

/// Arguments of `plan --cost`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cost")]
pub struct CostArguments {
    /// Count the requests of the job to SQS and S3, and price them at list prices (us-east-1).
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
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|seconds| *seconds > 0.0 && f64::is_finite(*seconds)).ok_or("above 0".to_owned())
}

impl CostArguments {
    /// The job's workload, as far as anybody knows.
    pub fn workload(&self, spec: &JobSpec, mini_batches: u64, descriptor_bytes: u64) -> Workload {
        Workload {
            mini_batches,
            descriptor_bytes,
            nodes: spec.node_count.unwrap_or(self.nodes),
            processes: spec.process_count_per_node.unwrap_or(self.processes),
            run_seconds: self.run_seconds,
            row_bytes: self.row_bytes,
        }
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
        let outcome_bytes = OUTCOME_BYTES + work.row_bytes as f64;
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
        let puts = chunks + commits + seconds / PROGRESS_SECONDS + REPORTS * seconds / REPORT_SECONDS + log_uploads;
        let gets = 2.0 * seconds / PROGRESS_SECONDS + nodes * seconds / WATCH_SECONDS + commits;
        let whole = |number: f64| number.ceil() as u64;
        Self {
            queue_sends: whole(sends + result_sends),
            queue_receives: whole(receives + result_receives),
            queue_deletes: whole(deletes + in_tens),
            queue_extensions: whole(nodes * (seconds / HEARTBEAT_SECONDS).floor() * (held / BATCH).ceil()),
            queue_billed_extra: whole((billed - bodies).max(0.0)),
            // Job, column types, plan, markers, snapshots, final file, result; and what each role looks up at first.
            puts: whole(puts) + 10,
            gets: whole(gets) + 20 + 5 * u64::from(work.nodes),
            lists: whole(seconds / LOOK_SECONDS) + 2,
        }
    }

    fn queue_calls(&self) -> u64 {
        self.queue_sends + self.queue_receives + self.queue_deletes + self.queue_extensions
    }

    /// At list prices, in US dollars.
    pub fn dollars(&self) -> f64 {
        let queue = (self.queue_calls() + self.queue_billed_extra) as f64 / 1e6 * PRICES.queue_million;
        let puts = self.puts as f64 / 1e3 * PRICES.put_thousand + self.lists as f64 / 1e3 * PRICES.list_thousand;
        queue + puts + self.gets as f64 / 1e3 * PRICES.get_thousand
    }
}

/// What `plan --cost --json` prints.
pub fn json(work: &Workload) -> serde_json::Value {
    let requests = Requests::of(work);
    serde_json::json!({
        "workload": work,
        "requests": requests,
        "dollars": requests.dollars(),
        "dollars_per_million_mini_batches": per_million(work, &requests),
    })
}

/// What `plan --cost` prints.
pub fn lines(work: &Workload) -> Vec<String> {
    let requests = Requests::of(work);
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
            "  about ${:.4} at list prices (us-east-1), ${:.2} per 1 000 000 mini-batches like these",
            requests.dollars(),
            per_million(work, &requests)
        ),
    ]
}

fn per_million(work: &Workload, requests: &Requests) -> f64 {
    requests.dollars() * 1e6 / (work.mini_batches.max(1) as f64)
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
        }
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
        let work = workload(1_000_000, 0.001, 8);
        let dollars = Requests::of(&work).dollars();
        // Three requests for ten mini-batches, and what is above 64 KiB.
        assert!((0.15..0.40).contains(&dollars), "{dollars}");
        assert_eq!(per_million(&work, &Requests::of(&work)), dollars);
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
