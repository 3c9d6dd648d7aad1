//! `gristmill replay`: runs the rejected items of an ended job again.

use anyhow::Result;
use engine::targets::TargetRef;

use crate::run::{RetryArguments, report};
use crate::{Exit, Settings, Show, enqueue, refuse, stop_on_signals};

#[derive(Debug, clap::Args)]
pub struct ReplayArguments {
    #[command(flatten)]
    pub retry: RetryArguments,
    /// Write the rows to a file of their own, in the folder of the new job, and leave the output of JOB as it is.
    #[arg(long)]
    separate: bool,
}

pub async fn replay(arguments: ReplayArguments, settings: &Settings) -> Result<Exit> {
    let ReplayArguments { retry, separate } = arguments;
    if let Some(target) = retry.target.find(None, settings)? {
        let (events, show) = Show::start();
        let replay = settings.engine.replay_on(&retry.job, separate, &target, &events).await?;
        return enqueue::publish(replay, &retry, &target, events, show).await;
    }
    let (stop, _signals) = stop_on_signals();
    match Show::during(async |events| settings.engine.replay(&retry.job, separate, &stop, events).await).await {
        Ok(result) => Ok(report(&result, retry.json, &TargetRef::ThisMachine)),
        Err(error) => refuse(error, retry.json),
    }
}
