//! `gristmill run`.

use anyhow::{Context, Result};
use engine::targets::TargetRef;
use engine::{Events, FollowEnd};
use portal::OwnJobs;
use protocol::JobResult;
use storage::StoreOptions;

use crate::outcome::{report, say_reused};
use crate::portal::serve;
use crate::steps::{CompletedSteps, StepsDocument};
use crate::{Exit, JobFileArguments, Settings, Show, TargetFlags, refuse, stop_on_signals};

#[derive(Debug, clap::Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub job: JobFileArguments,
    /// Print one JSON object at the end, and nothing else, on standard output.
    #[arg(long)]
    pub json: bool,
    /// With --json: before the result, print one JSON object for each event: `job`, `step`, `warning` and `note`.
    #[arg(long, requires = "json")]
    pub events: bool,
    /// Start a new job instead of continuing an unfinished one or reusing a result.
    #[arg(long)]
    fresh: bool,
    /// Show the job in a browser while this command runs it, and print the address of the page.
    #[arg(long)]
    portal: bool,
    #[command(flatten)]
    target: TargetFlags,
}

pub async fn run(arguments: RunArguments, settings: &Settings) -> Result<Exit> {
    let own_jobs = OwnJobs::default();
    let shown = arguments.portal.then_some(&own_jobs);
    let (events, show) = Show::start_with(own_jobs.clone());
    let several = run_steps(&arguments, settings, &events, shown).await;
    show.finish(events).await;
    match several {
        Ok(None) => {}
        Ok(Some(ran)) => return Ok(ran.report(arguments.json)),
        Err(error) => return refuse(error, arguments.json),
    }
    let (events, show) = Show::start_with(own_jobs.clone());
    let ran = run_job(&arguments, settings, own_jobs, &events).await;
    show.finish(events).await;
    match ran {
        Ok((Some(result), target)) => {
            if !arguments.json {
                say_reused(&result);
            }
            Ok(report(&result, arguments.json, &target))
        }
        Ok((None, _)) => Ok(Exit::Canceled
            .because("this command was stopped twice, before the job ended", arguments.json)),
        Err(error) => refuse(error, arguments.json),
    }
}

/// Runs the steps of a document. `None`: it has only one, or is a job file. `shown`: a portal shows their jobs
/// meanwhile.
async fn run_steps(
    arguments: &RunArguments,
    settings: &Settings,
    events: &Events,
    shown: Option<&OwnJobs>,
) -> engine::Result<Option<CompletedSteps>> {
    let RunArguments { job, target, .. } = arguments;
    let Some(several) = StepsDocument::read(job, Some(target), settings, events)? else {
        return Ok(None);
    };
    let target = target
        .find(None, settings)
        .map_err(|error| job.invalid(format!("compute target: {error:#}")))?;
    several.run(target, arguments.fresh, settings, events, shown).await.map(Some)
}

/// Returns the result, unless the command was stopped before the job ended, and the target where later commands find
/// it.
async fn run_job(
    arguments: &RunArguments,
    settings: &Settings,
    own_jobs: OwnJobs,
    events: &Events,
) -> engine::Result<(Option<Box<JobResult>>, TargetRef)> {
    let mut parsed = arguments.job.read(Some(&arguments.target), settings, events)?;
    let named = parsed.compute_target.clone();
    let target = arguments.target.find(named.as_deref(), settings).with_context(|| match &named {
        Some(named) => format!("compute_target {named}"),
        None => "compute target".to_owned(),
    });
    let Some(target) = target.map_err(|error| arguments.job.invalid(format!("{error:#}")))? else {
        let check = settings.engine.check(&mut parsed, &StoreOptions::default(), true, events)?;
        if arguments.portal {
            serve(None, settings, own_jobs, false)?;
        }
        let (stop, _signals) = stop_on_signals();
        let result = settings.engine.run(parsed, check, arguments.fresh, &stop, events).await?;
        return Ok((Some(Box::new(result)), TargetRef::ThisMachine));
    };
    settings.engine.check(&mut parsed, &target.store_options(), true, events)?.finish()?;
    if arguments.portal {
        serve(Some(target.clone()), settings, own_jobs, false)?;
    }
    let (stop, _signals) = stop_on_signals();
    let result =
        match settings.engine.run_on(parsed, &target, arguments.fresh, &stop, events).await? {
            FollowEnd::Ended(result) => Some(result),
            FollowEnd::Stopped | FollowEnd::Interrupted => None,
        };
    Ok((result, target.reference()))
}
