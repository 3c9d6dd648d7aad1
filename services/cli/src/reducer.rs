//! `gristmill reducer`: runs a reducer of a compute target.

use std::time::Duration;

use anyhow::{Context, Result};
use engine::{ReducingOptions, new_node_name};
use telemetry::Role;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use worker::hide_process;

use crate::{Exit, ListenFlag, ObservedRole, Settings, TargetFlags, life, watch_signals};

#[derive(Debug, clap::Args)]
pub struct ReducerArguments {
    /// Exit after this time without an open job.
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,
    #[command(flatten)]
    listen: ListenFlag,
    #[command(flatten)]
    target: TargetFlags,
}

pub async fn reducer(arguments: ReducerArguments, settings: &Settings) -> Result<Exit> {
    hide_process();
    let target = arguments.target.require(None, settings)?;
    let mut watched = ObservedRole::start(Role::Reducer, &target, &arguments.listen, settings)?;
    let (store, mut queues) = tokio::try_join!(target.open_store(), target.open_queues_to_work())?;
    watched.ready(&mut queues);
    let name = new_node_name();
    let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
    let _signals = AbortOnDropHandle::new(tokio::spawn(watch_signals(stop.clone(), kill.clone())));
    life!("reducer {name} is ready for the jobs of target {} ({})", target.name, store.url());
    watched.print_address();
    let options = ReducingOptions {
        idle_exit: arguments.idle_exit.map(Duration::from_secs),
        tidies: arguments.idle_exit.is_some(),
        health: watched.health.clone(),
        ..ReducingOptions::default()
    };
    let _ending = watched.until_ending(stop.clone());
    let served = tokio::select! {
        served = settings.engine.reduce(&name, store, &queues, options, stop.clone()) => served,
        () = kill.cancelled() => {
            life!("reducer {name} ends: stopped by a second signal; the queue redelivers its messages");
            return Ok(Exit::Canceled);
        }
    };
    let _ = kill.run_until_cancelled(queues.close()).await;
    served.with_context(|| format!("reducer {name} failed"))?;
    let idle = arguments.idle_exit.unwrap_or_default();
    match stop.is_cancelled() {
        true => life!("reducer {name} ends: stopped by a signal"),
        false => life!("reducer {name} ends: no open job for {idle} s"),
    }
    Ok(Exit::Done)
}
