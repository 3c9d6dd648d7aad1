//! `gristmill dead-letters`: lists the messages that no worker or reducer of a target could read, sends them to their
//! queues again, or deletes them.

use anyhow::Result;
use clap::Args;
use engine::targets::Target;
use engine::words::counted;
use engine::{DeadLetter, DeadLetterAction, DeadLetters, Moved};

use crate::Exit;
use crate::target_flags::TargetFlags;

#[derive(Args, Debug)]
pub struct DeadLetterArguments {
    /// Send the messages to the queues of their jobs again, such as after an update of all roles to one version.
    #[arg(long, conflicts_with = "delete")]
    redrive: bool,
    /// Delete the messages.
    #[arg(long)]
    delete: bool,
    /// Only the messages of this job.
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Print one JSON list.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub target: TargetFlags,
}

pub async fn dead_letters(target: &Target, arguments: &DeadLetterArguments) -> Result<Exit> {
    let (job, json) = (arguments.job.as_deref(), arguments.json);
    let disposal = match (arguments.redrive, arguments.delete) {
        (true, _) => DeadLetterAction::Redrive,
        (_, true) => DeadLetterAction::Delete,
        _ => return list(target, job, json).await,
    };
    let (letters, others) = target.dispose_of_dead_letters(disposal, job).await?;
    if json {
        say!(out, "{}", serde_json::to_string(&letters).expect("plain data always serialises"));
    }
    let (done, left) = match disposal {
        DeadLetterAction::Redrive => (
            "sent to their queues again",
            "not whole messages of Gristmill, of jobs without queues, or not of this job",
        ),
        DeadLetterAction::Delete => ("deleted", "not of this job"),
    };
    say!(err, "{} {done}", counted(letters.len() as u64, "message"));
    if others > 0 {
        say!(err, "{} left: {left}", counted(others as u64, "message"));
    }
    Ok(Exit::Done)
}

async fn list(target: &Target, job: Option<&str>, json: bool) -> Result<Exit> {
    let DeadLetters { mut letters, is_partial, failure } = target.dead_letters().await?;
    letters.retain(|letter| job.is_none_or(|job| letter.job_id.as_deref() == Some(job)));
    if json {
        say!(out, "{}", serde_json::to_string(&letters).expect("plain data always serialises"));
    } else {
        letters.iter().for_each(|letter| say!(out, "{}", shown(letter)));
    }
    if let Some(error) = failure {
        return Err(error);
    }
    if letters.is_empty() {
        say!(err, "there are no dead letters in {}", target.queue()?.name(queue::DEAD_LETTERS));
    } else if is_partial {
        say!(err, "only the first {} are shown", letters.len());
    }
    Ok(Exit::Done)
}

fn shown(letter: &DeadLetter) -> String {
    let moved = letter.moved.as_ref();
    let moved = moved
        .map_or(String::new(), |Moved { queue, node, at }| format!("{at}  {queue}, by {node}: "));
    let job = letter.job_id.as_ref().map_or(String::new(), |job| format!("job {job}: "));
    format!("{moved}{job}{} ({} bytes)\n  {}", letter.reason, letter.bytes, letter.body)
}
