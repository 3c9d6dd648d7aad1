//! `gristmill convert`: prints the job file of each step of a document.

use anyhow::Result;

use crate::{Exit, JobFileArguments, Settings, refuse};

#[derive(Debug, clap::Args)]
pub struct ConvertArguments {
    #[command(flatten)]
    pub job: JobFileArguments,
}

pub fn convert(arguments: &ConvertArguments, settings: &Settings) -> Result<Exit> {
    let converted = || {
        let document = arguments.job.document(None, settings)?;
        let shown = job_file::shown(&document.path);
        let Some(steps) = settings.engine.document_steps(&document)? else {
            return Err(arguments.job.invalid("it is already a job file".to_owned()));
        };
        let several = steps.steps().len() > 1;
        let mut text = format!("# From {shown}. Paths are relative to its folder.\n");
        for (index, step) in steps.steps().iter().enumerate() {
            if several {
                let needs = match step.needs.as_slice() {
                    [] => String::new(),
                    needs => format!(", after {}", needs.join(", ")),
                };
                text += &format!("---\n# Step {}{needs}\n", step.name);
            }
            text += &steps.job_file(index).map_err(engine::Error::Invalid)?;
        }
        Ok((text, steps))
    };
    match converted() {
        Ok((text, steps)) => {
            steps.warnings.iter().for_each(|warning| say!(err, "{warning}"));
            say!(out, "{}", text.trim_end());
            Ok(Exit::Done)
        }
        Err(error) => refuse(error, false),
    }
}
