//! `gristmill plan --cost`: the requests of a job to SQS and S3, and their price.

use anyhow::{Context, Result, bail};
use engine::cost::{Cost, LIST_PRICES, PRICES_FROM, Prices, Workload};
use protocol::JobSpec;
use storage::PlanComplete;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cost")]
pub struct CostArguments {
    /// Estimate the requests of the job to SQS and S3, and their cost at the list prices of us-east-1.
    #[arg(long)]
    pub cost: bool,
    /// Mean time of one run.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = positive, requires = "cost")]
    run_seconds: f64,
    /// Mean size of the rows of one mini-batch.
    #[arg(long, value_name = "BYTES", default_value_t = 1024, requires = "cost")]
    row_bytes: u64,
    /// Number of nodes, if the job file does not set node_count.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), requires = "cost")]
    nodes: u32,
    /// Processes on each node, if the job file does not set process_count_per_node.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..), requires = "cost")]
    processes: u32,
    /// Price in US dollars instead of the list price: for a million requests to SQS (sqs), for a thousand PUT and LIST
    /// (put) or GET (get) requests to S3, for example `sqs=0.5`. May be repeated.
    #[arg(long = "price", value_name = "KIND=DOLLARS", value_parser = price, requires = "cost")]
    prices: Vec<Price>,
}

/// A setter of one price, and the dollars that the user gives.
type Price = (fn(&mut Prices, f64), f64);

fn price(text: &str) -> Result<Price> {
    let (kind, dollars) = text.split_once('=').context("write KIND=DOLLARS")?;
    let dollars =
        dollars.parse().ok().filter(|dollars| *dollars >= 0.0 && f64::is_finite(*dollars));
    let dollars = dollars.context("the price must be a number, at least 0")?;
    let set: fn(&mut Prices, f64) = match kind {
        "sqs" => |prices, dollars| prices.sqs_million = dollars,
        "put" => |prices, dollars| prices.put_thousand = dollars,
        "get" => |prices, dollars| prices.get_thousand = dollars,
        _ => bail!("the kinds are sqs, put and get"),
    };
    Ok((set, dollars))
}

fn positive(text: &str) -> Result<f64> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0 && f64::is_finite(*seconds));
    seconds.context("must be a number above 0")
}

impl CostArguments {
    pub fn of(&self, spec: &JobSpec, totals: &PlanComplete, descriptor_bytes: u64) -> Cost {
        let mut prices = LIST_PRICES;
        self.prices.iter().for_each(|(set, dollars)| set(&mut prices, *dollars));
        let Self { run_seconds, row_bytes, nodes, processes, .. } = *self;
        let assumed = Workload {
            descriptor_bytes,
            run_seconds,
            row_bytes,
            nodes,
            processes,
            ..Workload::default()
        };
        Cost::of(spec, totals, assumed, prices)
    }
}

fn prices_from(prices: &Prices) -> &'static str {
    if *prices == LIST_PRICES { PRICES_FROM } else { "the prices given" }
}

pub fn json(cost: &Cost) -> serde_json::Value {
    let (queue, store) = cost.dollars();
    serde_json::json!({
        "workload": cost.workload,
        "requests": cost.requests,
        "prices": cost.prices,
        "prices_from": prices_from(&cost.prices),
        "dollars": queue + store,
        "dollars_per_million_mini_batches": cost.dollars_per_million(),
    })
}

pub fn lines(cost: &Cost) -> Vec<String> {
    let (work, requests) = (&cost.workload, &cost.requests);
    let (queue, store) = cost.dollars();
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
            queue + store,
            cost.dollars_per_million()
        ),
        format!("  prices: {}", prices_from(&cost.prices)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_price_is_rejected() {
        let (set, dollars) = price("put=0.0054").expect("a price");
        let mut prices = LIST_PRICES;
        set(&mut prices, dollars);
        assert_eq!(prices, Prices { put_thousand: 0.0054, ..LIST_PRICES });
        for wrong in ["put", "list=1", "sqs=-1", "get=free", "get=inf"] {
            assert!(price(wrong).is_err(), "{wrong}");
        }
    }
}
