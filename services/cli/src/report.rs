//! `gristmill report`: writes the portal's pages of a job to one file.

use std::path::PathBuf;

use anyhow::{Context, Result};
use engine::Purpose;
use portal::{Access, Options, OwnJobs};

use crate::portal::WORDS;
use crate::{Exit, Settings, TargetFlags, complete};

#[derive(Debug, clap::Args)]
pub struct ReportArguments {
    /// Id of a job, the beginning of an id, or a name: the running or newest job of that name.
    #[arg(add = complete::jobs())]
    job: String,
    /// Write one HTML file that needs no server [default: JOB_ID.html]. Without this flag, print one JSON object.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    html: Option<Option<PathBuf>>,
    #[command(flatten)]
    target: TargetFlags,
}

pub async fn report(arguments: &ReportArguments, settings: &Settings) -> Result<Exit> {
    let target = arguments.target.find(None, settings)?;
    let jobs = settings.engine.jobs_of(target.as_ref()).await?;
    let job_id = jobs.find(&arguments.job, Purpose::Look).await?.spec.job_id;
    let own_jobs = OwnJobs::default();
    own_jobs.add(&job_id);
    let options = Options {
        engine: settings.engine.clone(),
        jobs,
        target,
        targets: Vec::new(),
        own_jobs,
        are_steps: false,
        is_read_only: true,
        access: Access::default(),
        words: WORDS,
    };
    let report = portal::report(&options, &job_id).await?;
    let Some(file) = &arguments.html else {
        say!(out, "{report}");
        return Ok(Exit::Done);
    };
    let file = file.clone().unwrap_or_else(|| PathBuf::from(format!("{job_id}.html")));
    let problem = || format!("write {}", file.display());
    std::fs::write(&file, portal::html(&report)).with_context(problem)?;
    say!(out, "{}", file.display());
    Ok(Exit::Done)
}
