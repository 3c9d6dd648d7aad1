//! `gristmill replay`: runs the rejected items of an ended job again.

use std::path::PathBuf;

use anyhow::{Context, Result};
use engine::ReplayOptions;
use engine::targets::TargetRef;

use crate::outcome::report;
use crate::retry::RetryArguments;
use crate::{Exit, Settings, Show, follow, refuse, stop_on_signals};

#[derive(Debug, clap::Args)]
pub struct ReplayArguments {
    #[command(flatten)]
    pub retry: RetryArguments,
    /// Write the rows to a file of their own, in the folder of the new job, and leave the output of JOB as it is.
    #[arg(long)]
    separate: bool,
    /// Run the entry script of this folder instead: a corrected copy of the folder that JOB ran.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    source_directory: Option<PathBuf>,
}

pub async fn replay(arguments: ReplayArguments, settings: &Settings) -> Result<Exit> {
    let ReplayArguments { retry, separate, source_directory } = arguments;
    let absolute = |folder: PathBuf| std::path::absolute(&folder).with_context(|| format!("find {}", folder.display()));
    let options = ReplayOptions { separate, source_directory: source_directory.map(absolute).transpose()? };
    if let Some(target) = retry.target.find(None, settings)? {
        let (events, show) = Show::start();
        let replay = settings.engine.replay_on(&retry.job, &options, &target, &events).await?;
        return follow::publish(replay, retry.follows(), &target, events, show).await;
    }
    let (stop, _signals) = stop_on_signals();
    match Show::during(async |events| settings.engine.replay(&retry.job, &options, &stop, events).await).await {
        Ok(result) => Ok(report(&result, retry.json, &TargetRef::ThisMachine)),
        Err(error) => refuse(error, retry.json),
    }
}
