//! `gristmill validate`: checks a job file and everything that it names, without running the job.

use anyhow::Result;
use job_file::Problem;
use serde_json::json;

use crate::{Exit, JobFileArguments, Settings, refuse, steps};

#[derive(Debug, clap::Args)]
pub struct ValidateArguments {
    #[command(flatten)]
    pub job: JobFileArguments,
    /// Print one JSON object: whether the job is valid, and its problems with file, line and field.
    #[arg(long)]
    pub json: bool,
}

pub async fn validate(arguments: &ValidateArguments, settings: &Settings) -> Result<Exit> {
    match steps::validate(&arguments.job, settings).await {
        Ok(None) => {}
        Ok(Some(checked)) => {
            say_valid(arguments, &checked.warnings, &checked.notes);
            return Ok(Exit::Done);
        }
        Err(error) => return refuse(error, arguments.json),
    }
    let parsed = match arguments.job.check(settings).await {
        Ok((parsed, _)) => parsed,
        Err(error) => return refuse(error, arguments.json),
    };
    say_valid(arguments, &parsed.warnings, &parsed.spec.notes);
    Ok(Exit::Done)
}

fn say_valid(arguments: &ValidateArguments, warnings: &[Problem], notes: &[String]) {
    if arguments.json {
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        say!(
            out,
            "{}",
            json!({ "valid": true, "problems": [], "warnings": warnings, "notes": notes })
        );
    } else {
        say!(out, "{} is valid", job_file::shown(&arguments.job.job_file));
    }
}
