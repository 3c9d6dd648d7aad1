//! `gristmill plan --cost`: the requests of a job to SQS and S3, and their price.

use engine::cost::{Assumptions, Cost, LIST_PRICES, PRICES_FROM, Prices};
use protocol::JobSpec;
use storage::PlanComplete;

/// Arguments of `plan --cost`.
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

/// A price of the user.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Price {
    Sqs(f64),
    Put(f64),
    Get(f64),
}

fn price(text: &str) -> Result<Price, String> {
    let (kind, dollars) = text.split_once('=').ok_or("write KIND=DOLLARS")?;
    let dollars = dollars.parse().ok().filter(|dollars| *dollars >= 0.0 && f64::is_finite(*dollars));
    let dollars = dollars.ok_or("the price must be a number, at least 0")?;
    match kind {
        "sqs" => Ok(Price::Sqs(dollars)),
        "put" => Ok(Price::Put(dollars)),
        "get" => Ok(Price::Get(dollars)),
        _ => Err("the kinds are sqs, put and get".to_owned()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0 && f64::is_finite(*seconds));
    seconds.ok_or_else(|| "must be a number above 0".to_owned())
}

impl CostArguments {
    /// Estimates the cost of a planned job.
    pub fn of(&self, spec: &JobSpec, totals: &PlanComplete, descriptor_bytes: u64) -> Cost {
        let mut prices = LIST_PRICES;
        for price in &self.prices {
            match *price {
                Price::Sqs(dollars) => prices.sqs_million = dollars,
                Price::Put(dollars) => prices.put_thousand = dollars,
                Price::Get(dollars) => prices.get_thousand = dollars,
            }
        }
        let Self { run_seconds, row_bytes, nodes, processes, .. } = *self;
        Cost::of(spec, totals, descriptor_bytes, &Assumptions { run_seconds, row_bytes, nodes, processes, prices })
    }
}

fn prices_from(prices: &Prices) -> &'static str {
    if *prices == LIST_PRICES { PRICES_FROM } else { "the prices given" }
}

/// Returns the JSON object of `plan --cost --json`.
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

/// Returns the lines of `plan --cost`.
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
        assert_eq!(price("put=0.0054"), Ok(Price::Put(0.0054)));
        for wrong in ["put", "list=1", "sqs=-1", "get=free", "get=inf"] {
            assert!(price(wrong).is_err(), "{wrong}");
        }
    }
}
