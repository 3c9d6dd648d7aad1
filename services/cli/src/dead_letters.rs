//! `gristmill dead-letters`: lists the messages that no worker or reducer of a target could read.

use anyhow::Result;
use engine::targets::{Role, Target};
use engine::{DeadLetter, DeadLetters, Moved};

use crate::Exit;

pub async fn dead_letters(target: &Target, json: bool) -> Result<Exit> {
    let DeadLetters { letters, is_partial, failure } = target.dead_letters().await?;
    if json {
        say!(out, "{}", serde_json::to_string(&letters).expect("plain data always serialises"));
    } else {
        letters.iter().for_each(|letter| say!(out, "{}", shown(letter)));
    }
    if let Some(error) = failure {
        return Err(error);
    }
    if letters.is_empty() {
        say!(err, "there are no dead letters in {}", target.queue()?.name(Role::DeadLetters));
    } else if is_partial {
        say!(err, "only the first {} are shown", letters.len());
    }
    Ok(Exit::Done)
}

fn shown(letter: &DeadLetter) -> String {
    let moved = letter.moved.as_ref();
    let moved = moved.map_or(String::new(), |Moved { queue, node, at }| format!("{at}  {queue}, by {node}: "));
    let job = letter.job_id.as_ref().map_or(String::new(), |job| format!("job {job}: "));
    format!("{moved}{job}{} ({} bytes)\n  {}", letter.reason, letter.bytes, letter.body)
}
