//! `gristmill plan`: shows how the inputs are read, and the mini-batches, without running the job.

use std::io::Write;

use anyhow::Result;
use engine::Decisions;
use engine::words::counted;
use partitioner::LargestMiniBatch;
use protocol::{Descriptor, Isolate};
use serde::Serialize;
use storage::PlanComplete;

use crate::cost::CostArguments;
use crate::printed::Lines;
use crate::{Exit, JobFileArguments, Settings, cost, decisions, refuse};

const SHOWN: u64 = 20;

#[derive(Debug, clap::Args)]
pub struct PlanArguments {
    #[command(flatten)]
    pub job: JobFileArguments,
    /// Show all mini-batches instead of the first 20.
    #[arg(long)]
    all: bool,
    /// Print each mini-batch as one JSON object on a line, then the totals.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cost: CostArguments,
}

pub async fn plan(arguments: &PlanArguments, settings: &Settings) -> Result<Exit> {
    let (parsed, surveys) = match arguments.job.check(settings).await {
        Ok(checked) => checked,
        Err(error) => return refuse(error, arguments.json),
    };
    let decisions = match arguments.cost.cost || parsed.spec.rank_mini_batch_count > 0 {
        true => Vec::new(),
        false => Decisions::of(&parsed, surveys),
    };
    let mut plan = parsed.listings.plan(&parsed.spec);
    // A closed pipe (`| head`) ends the command, and is not an error.
    let mut out = Lines::new();
    if !arguments.json {
        for line in decisions.iter().flat_map(decisions::lines) {
            let _ = writeln!(out, "{line}");
        }
    }
    let mut shown = 0;
    let mut descriptor_bytes = 0;
    let mut largest = LargestMiniBatch::of(&parsed.spec);
    for descriptor in &mut plan {
        let descriptor = match descriptor {
            Ok(descriptor) => descriptor,
            Err(error) => {
                out.flush()?;
                say!(err, "{error:#}");
                return Ok(Exit::Invalid);
            }
        };
        largest.add(&descriptor);
        let written = if arguments.cost.cost {
            descriptor_bytes += serde_json::to_vec(&descriptor).map_or(0, |text| text.len() as u64);
            Ok(())
        } else if arguments.json {
            serde_json::to_writer(&mut out, &descriptor)
                .map_err(Into::into)
                .and_then(|()| out.write_all(b"\n"))
        } else if arguments.all || shown < SHOWN {
            shown += 1;
            writeln!(out, "{:>8}  {}", descriptor.mini_batch, describe(&descriptor))
        } else {
            Ok(())
        };
        if written.is_err() {
            return Ok(Exit::Done);
        }
    }
    let totals = plan.totals();
    let is_divided = parsed.spec.isolate != Isolate::Off;
    let extra_runs =
        if is_divided { parsed.spec.extra_runs_for_one(largest.items()) } else { None };
    let cost = arguments.cost.of(&parsed.spec, &totals, descriptor_bytes);
    let last = match (arguments.cost.cost, arguments.json) {
        (true, true) => vec![cost::json(&cost).to_string()],
        (_, true) => {
            let shown = Shown {
                totals: &totals,
                inputs: &decisions,
                extra_runs_for_one: extra_runs.map(|(_, runs)| runs),
            };
            vec![serde_json::to_string(&shown).expect("plain data serialises")]
        }
        (is_cost, false) => {
            let more = totals.mini_batches.saturating_sub(shown);
            let more = (more > 0 && !is_cost)
                .then(|| format!("          … and {more} more (--all shows them)"));
            let items =
                totals.items.map_or(String::new(), |items| format!(", {}", counted(items, "item")));
            let (mini_batches, files) =
                (counted(totals.mini_batches, "mini-batch"), counted(totals.files, "file"));
            let sum = format!("{mini_batches} of {files}{items}");
            let costs = if is_cost { cost::lines(&cost) } else { Vec::new() };
            let isolation = extra_runs.map(|(items, runs)| {
                let larger = largest.items().filter(|largest| *largest > items).map(|largest| {
                    format!(
                        "; a larger one fails as a whole, and the largest has {}",
                        counted(largest, "item")
                    )
                });
                let runs = counted(runs, "extra run");
                let larger = larger.unwrap_or_default();
                format!(
                    "isolate: one bad item in a mini-batch of {items} costs at most {runs}{larger}"
                )
            });
            more.into_iter()
                .chain(totals.left_out.line())
                .chain([sum])
                .chain(isolation)
                .chain(costs)
                .collect()
        }
    };
    for line in last {
        let _ = writeln!(out, "{line}");
    }
    let _ = out.flush();
    Ok(Exit::Done)
}

/// The last line of `--json`.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    totals: &'a PlanComplete,
    inputs: &'a [Decisions],
    /// Maximum number of extra runs for one bad item in the largest mini-batch, if the job isolates.
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_runs_for_one: Option<u64>,
}

fn describe(descriptor: &Descriptor) -> String {
    let key: Vec<String> =
        descriptor.key().iter().map(|(name, value)| format!("{name}={value}")).collect();
    if key.is_empty() {
        descriptor.detail()
    } else {
        format!("{}  {}", key.join(" "), descriptor.detail())
    }
}
