//! `gristmill plan`: shows how the inputs are read, and the mini-batches, without running the job.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use engine::{Decisions, Engine};
use protocol::Descriptor;
use reducer::counted;
use serde::Serialize;
use storage::{PlanComplete, StoreOptions};

use crate::cost::CostArguments;
use crate::exit::Exit;
use crate::job_file_arguments::{JobFileArguments, refuse};
use crate::printed::Lines;
use crate::settings::Settings;
use crate::show::Show;
use crate::{cost, decisions};

/// Number of mini-batches that are shown by default.
const SHOWN: u64 = 20;

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
pub struct PlanArguments {
    #[command(flatten)]
    job: JobFileArguments,
    /// Show all mini-batches instead of the first 20.
    #[arg(long)]
    all: bool,
    /// Print each mini-batch as one JSON object on a line, then the totals.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cost: CostArguments,
}

/// Shows the mini-batches.
pub async fn plan(arguments: &PlanArguments, engine: &Engine, settings: &Settings) -> Result<ExitCode> {
    let options = StoreOptions::default();
    let checked = Show::during(async |events| arguments.job.check(&options, engine, settings, events)).await;
    let (parsed, surveys) = match checked {
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
    for descriptor in &mut plan {
        let descriptor = match descriptor {
            Ok(descriptor) => descriptor,
            Err(error) => {
                out.flush()?;
                say!(err, "{error:#}");
                return Ok(Exit::Invalid.into());
            }
        };
        let written = if arguments.cost.cost {
            descriptor_bytes += serde_json::to_vec(&descriptor).map_or(0, |text| text.len() as u64);
            Ok(())
        } else if arguments.json {
            serde_json::to_writer(&mut out, &descriptor).map_err(Into::into).and_then(|()| out.write_all(b"\n"))
        } else if arguments.all || shown < SHOWN {
            shown += 1;
            writeln!(out, "{:>8}  {}", descriptor.mini_batch, describe(&descriptor))
        } else {
            Ok(())
        };
        if written.is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let totals = plan.totals();
    let cost = arguments.cost.of(&parsed.spec, &totals, descriptor_bytes);
    if arguments.cost.cost && arguments.json {
        let _ = writeln!(out, "{}", cost::json(&cost)).and_then(|()| out.flush());
        return Ok(ExitCode::SUCCESS);
    }
    let _ = if arguments.json {
        let shown = Shown { totals: &totals, inputs: &decisions };
        writeln!(out, "{}", serde_json::to_string(&shown).expect("plain data serialises"))
    } else {
        if totals.mini_batches > shown && !arguments.cost.cost {
            let _ = writeln!(out, "          … and {} more (--all shows them)", totals.mini_batches - shown);
        }
        let items = totals.items.map_or(String::new(), |items| format!(", {}", counted(items, "item")));
        if let Some(left_out) = totals.left_out.line() {
            let _ = writeln!(out, "{}", left_out);
        }
        let (mini_batches, files) = (counted(totals.mini_batches, "mini-batch"), counted(totals.files, "file"));
        writeln!(out, "{mini_batches} of {files}{items}")
    };
    if arguments.cost.cost {
        for line in cost::lines(&cost) {
            let _ = writeln!(out, "{line}");
        }
    }
    let _ = out.flush();
    Ok(ExitCode::SUCCESS)
}

/// The last line of `--json`.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    totals: &'a PlanComplete,
    inputs: &'a [Decisions],
}

fn describe(descriptor: &Descriptor) -> String {
    let key: Vec<String> = descriptor.key().iter().map(|(name, value)| format!("{name}={value}")).collect();
    if key.is_empty() { descriptor.detail() } else { format!("{}  {}", key.join(" "), descriptor.detail()) }
}
