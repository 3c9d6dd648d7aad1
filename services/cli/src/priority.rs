//! `gristmill priority`: changes the priority of a job that waits or runs.

use anyhow::Result;
use engine::Jobs;
use protocol::Priority;

use crate::{Exit, TargetFlags, complete};

#[derive(Debug, clap::Args)]
pub struct PriorityArguments {
    /// Id of a job, the beginning of an id, or a name: the running job of that name.
    #[arg(add = complete::jobs())]
    job: String,
    /// The new priority.
    #[arg(value_parser = PRIORITIES)]
    priority: String,
    #[command(flatten)]
    pub target: TargetFlags,
}

/// The words of all priorities.
pub const PRIORITIES: [&str; 3] = ["low", "normal", "high"];

pub async fn priority(arguments: &PriorityArguments, jobs: &Jobs) -> Result<Exit> {
    let priority = Priority::of_word(&arguments.priority).unwrap_or_default();
    let engine::Reprioritised { job_id, before } =
        jobs.change_priority(&arguments.job, priority).await?;
    let word = priority.word();
    match before == priority {
        true => say!(out, "job {job_id} already has priority {word}"),
        false => say!(
            out,
            "job {job_id} now has priority {word} instead of {}; it takes effect within seconds",
            before.word()
        ),
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_priority_has_its_word() {
        assert_eq!(PRIORITIES, Priority::ALL.map(Priority::word));
    }
}
