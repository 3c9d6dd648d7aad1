//! `gristmill validate`: checks a job file and everything that it names, without running the job.

use anyhow::Result;
use serde_json::json;

use crate::{Exit, JobFileArguments, Settings, refuse, steps};

#[derive(Debug, clap::Args)]
pub struct ValidateArguments {
    #[command(flatten)]
    job: JobFileArguments,
    /// Print one JSON object: whether the job is valid, and its problems with file, line and field.
    #[arg(long)]
    pub json: bool,
}

pub async fn validate(arguments: &ValidateArguments, settings: &Settings) -> Result<Exit> {
    match steps::validate(&arguments.job, settings).await {
        Ok(None) => {}
        Ok(Some(())) => {
            match arguments.json {
                true => say!(out, "{}", json!({ "valid": true, "problems": [], "warnings": [], "notes": [] })),
                false => say!(out, "{} is valid", job_file::shown(&arguments.job.job_file)),
            }
            return Ok(Exit::Done);
        }
        Err(error) => return refuse(error, arguments.json),
    }
    let parsed = match arguments.job.check(settings).await {
        Ok((parsed, _)) => parsed,
        Err(error) => return refuse(error, arguments.json),
    };
    if arguments.json {
        let warnings: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
        let notes = parsed.spec.notes;
        say!(out, "{}", json!({ "valid": true, "problems": [], "warnings": warnings, "notes": notes }));
    } else {
        say!(out, "{} is valid", job_file::shown(&arguments.job.job_file));
    }
    Ok(Exit::Done)
}
