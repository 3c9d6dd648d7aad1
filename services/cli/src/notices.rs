//! The text of notices: one line each, or one line with details below.

use engine::words::counted;
use engine::{BegunRound, Continuation, NewJobReason, NothingMissing, Notice};
use job_file::Difference;

use crate::remedies;

const DIFFERENCES_NAMED: usize = 3;

pub fn text(notice: &Notice) -> String {
    let sentence = sentence(notice);
    match notice {
        notice if is_doubt(notice) => format!("warning: {sentence}"),
        Notice::Decision(_) => format!("note: {sentence}"),
        _ => sentence,
    }
}

/// Returns whether a notice warns of something that may not be as the user intends it.
pub fn is_doubt(notice: &Notice) -> bool {
    let is_news = matches!(
        notice,
        Notice::SetAside { .. }
            | Notice::InputsChanged(_)
            | Notice::NewJob { .. }
            | Notice::NothingToDo { .. }
            | Notice::NothingMissing { .. }
            | Notice::Waiting(_)
            | Notice::CancelRequested { .. }
    );
    notice.is_warning() && !is_news
}

/// Returns the text of a notice without its kind.
pub fn sentence(notice: &Notice) -> String {
    match notice {
        Notice::Doubt(problem) => problem.to_string(),
        Notice::Decision(text) => text.clone(),
        Notice::StoreSilent { url, seconds } => {
            format!("{url} has not answered for {seconds}s; whether the job can use it is unknown")
        }
        Notice::UnusableHere { problem, how } => {
            format!("from this machine, {problem}; {}", how.by())
        }
        Notice::InterpreterSilent { python, seconds } => {
            format!(
                "{} has not answered for {seconds}s; the script is not checked",
                python.display()
            )
        }
        Notice::CheckedWithDefault(python) => {
            format!("checked with {}; GRISTMILL_PYTHON names another interpreter", python.display())
        }
        Notice::SetAside { folder, to } => {
            format!(
                "the files of an earlier run in {} are now in {}",
                folder.display(),
                to.display()
            )
        }
        Notice::InputsChanged(job_id) => format!(
            "the inputs have changed since job {job_id} was planned, so this is a new job; `gristmill retry {job_id}` \
             continues the old one as planned"
        ),
        Notice::NewJob { earlier, reason } => new_job(earlier, reason),
        Notice::NothingToDo { job_id, left, unnamed } => nothing_to_do(job_id, *left, *unnamed),
        Notice::RoundRequested(job_id) => format!(
            "job {job_id} runs what has failed so far again, with the script that its processes have loaded; \
             `gristmill status {job_id} --wait` waits for its end"
        ),
        Notice::NothingMissing { job_id, state, unended, failed } => {
            nothing_missing(job_id, *state, *unended, *failed)
        }
        Notice::DamagedResult => {
            "result.json cannot be read and is removed; the result is determined again".to_owned()
        }
        Notice::Changed { while_running: false, script, differences } => {
            let subject = if *script {
                "the script has changed"
            } else {
                "the data or models of the script have changed"
            };
            let details = if differences.is_empty() {
                String::new()
            } else {
                format!(" ({})", named(differences))
            };
            format!(
                "{subject} since the job began{details}: committed rows come from before the change, and \
                 further rows from after it"
            )
        }
        Notice::Changed { while_running: true, script, differences } => {
            let subject = match script {
                true => "the script, or a module beside it, was changed".to_owned(),
                false => named(differences),
            };
            format!("{subject} while the job ran: rows may come from either version")
        }
        Notice::LedgerMended(segments) => {
            let (plural, are) = if *segments == 1 { ("", "is") } else { ("s", "are") };
            format!(
                "{segments} segment{plural} of the ledger {are} empty or truncated, as after a power cut; \
                 mini-batches recorded only there run again"
            )
        }
        Notice::RowsLost { mini_batches, first } => {
            let mini_batches = counted(*mini_batches, "mini-batch");
            format!(
                "the rows of {mini_batches} that had succeeded (the first is mini-batch {first}) are missing or \
                 incomplete, as after a power cut; they run again"
            )
        }
        Notice::Continuing(continuation) => continuing(continuation),
        Notice::LargeScriptFolder(incomplete) => incomplete.to_string(),
        Notice::CreatingEnvironment { file, folder } => {
            format!(
                "creating a Python environment from {} (once; kept in {})",
                file.display(),
                folder.display()
            )
        }
        Notice::WaitingForProcesses => {
            "all mini-batches have ended; waiting for the Python processes to end: shutdown(), a \
                                        thread or an exit handler of the script is still running"
                .to_owned()
        }
        Notice::Waiting(hint) => format!("waiting: {}", remedies::hint(hint)),
        Notice::CancelRequested { job_id, seconds } => {
            format!("asked job {job_id} to stop; waiting up to {seconds} s for its end")
        }
        Notice::LocalPaths { paths, more, queue } => {
            let more = if *more > 0 { format!(" and {more} more") } else { String::new() };
            format!(
                "{}{more} are paths of this machine, and the nodes at {queue} may be other machines: they need \
                 the same files at the same place (a shared disk); URLs (s3://…) work everywhere",
                paths.join(", ")
            )
        }
        Notice::NoWorkerFits(unfit) => format!("{unfit}; the job waits for one that does"),
    }
}

fn nothing_to_do(job_id: &str, (failed, rejected): (u64, u64), unnamed: u64) -> String {
    let left: Vec<_> = [(failed, "failed mini-batch"), (rejected, "rejected item")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, noun)| counted(count, noun))
        .collect();
    match (left.is_empty(), unnamed) {
        (false, _) => format!(
            "job {job_id} is completed; --only leaves out what is left: {}",
            left.join(" and ")
        ),
        (true, 0) => format!("job {job_id} is completed, and nothing failed: nothing to do"),
        (true, _) => format!(
            "job {job_id} is completed, and a retry cannot run its {} without a result, whose places are unknown or may change: \
             see its rejects, correct the input or the script, and run the job again",
            counted(unnamed, "item")
        ),
    }
}

fn nothing_missing(
    job_id: &str,
    state: NothingMissing,
    unended: Option<u64>,
    failed: u64,
) -> String {
    let later = match failed {
        0 => String::new(),
        1 => "; 1 mini-batch has failed so far".to_owned(),
        _ => format!("; {failed} mini-batches have failed so far"),
    };
    match state {
        NothingMissing::Published => {
            let others = match unended {
                Some(1) => "1 mini-batch is in its queue or at a worker".to_owned(),
                Some(unended) => format!("{unended} mini-batches are in its queue or at a worker"),
                None => "its mini-batches are in its queue or at a worker".to_owned(),
            };
            let lost = "; `retry --republish` publishes them again if the queue has lost them";
            format!("job {job_id} has not ended, and there is nothing to do: {others}{later}{lost}")
        }
        NothingMissing::BeingPlanned => {
            format!(
                "job {job_id} has not ended, and there is nothing to do: another process plans it{later}"
            )
        }
        NothingMissing::Ending => {
            format!(
                "job {job_id} is ending, and there is nothing to do until a reducer has written its result{later}"
            )
        }
    }
}

fn new_job(earlier: &str, reason: &NewJobReason) -> String {
    let completed = |reason: String| {
        format!("job {earlier} has completed, and this is a new job, because {reason}")
    };
    let retry = format!("`gristmill retry {earlier}` continues the old one");
    match reason {
        NewJobReason::Unfinished(differences) => {
            let reason = named(differences);
            format!("job {earlier} is unfinished, and this is a new job, because {reason}; {retry}")
        }
        NewJobReason::Completed(differences) => completed(named(differences)),
        NewJobReason::InputsChanged(Some(input)) => {
            completed(format!("the files of input {input} have changed"))
        }
        NewJobReason::InputsChanged(None) => {
            completed("the files of its inputs have changed".to_owned())
        }
        NewJobReason::OutputChanged(output) => {
            completed(format!("its output {output} is missing, or was changed since"))
        }
        NewJobReason::SeveralVersions => {
            completed("it has run more than one version of its script or side inputs".to_owned())
        }
        NewJobReason::Failed(differences) if differences.is_empty() => {
            format!("job {earlier} has failures, and this is a new job; {retry}")
        }
        NewJobReason::Failed(differences) => {
            let reason = named(differences);
            format!("job {earlier} has failures, and this is a new job, because {reason}; {retry}")
        }
    }
}

fn named(differences: &[Difference]) -> String {
    let named: Vec<String> =
        differences.iter().take(DIFFERENCES_NAMED).map(ToString::to_string).collect();
    let more = differences.len().saturating_sub(DIFFERENCES_NAMED);
    let named = named.join(", ");
    if more > 0 { format!("{named} and {more} more differ") } else { named }
}

fn continuing(continuation: &Continuation) -> String {
    let BegunRound { failed, items, whole, .. } = continuation.round;
    let mut text = format!("continuing job {}:", continuation.job_id);
    let mut line_of = |count: u64, noun: &str, one: &str, several: &str| {
        if count > 0 {
            text +=
                &format!("\n  {} {}", counted(count, noun), if count == 1 { one } else { several });
        }
    };
    let mut line = |count, one: &str, several: &str| line_of(count, "mini-batch", one, several);
    line(
        continuation.committed,
        "is committed and does not run again",
        "are committed and do not run again",
    );
    line(
        failed,
        "failed before and runs again, with all its tries",
        "failed before and run again, with all their tries",
    );
    line(
        continuation.failed,
        "has failed and does not run in this round",
        "have failed and do not run in this round",
    );
    line(
        whole,
        "succeeded before, but without some of its items; it runs again as a whole",
        "succeeded before, but without some of their items; they run again as a whole",
    );
    let limit = counted(u64::from(continuation.lost_delivery_max), "time");
    let cost = format!("this uses up no try (a mini-batch may be lost {limit})");
    line(
        continuation.interrupted,
        &format!("was interrupted with its node and runs again; {cost}"),
        &format!("were interrupted with their node and run again; {cost}"),
    );
    line(
        continuation.retrying,
        "had failed a try and runs again",
        "had failed a try and run again",
    );
    line(
        continuation.again,
        "of an interrupted round runs again",
        "of an interrupted round run again",
    );
    line(
        continuation.partial,
        "of an interrupted round runs its rejected items again; the rows of other items stay",
        "of an interrupted round run their rejected items again; the rows of other items stay",
    );
    let [one, several] =
        ["runs again; the rows of other items stay", "run again; the rows of other items stay"];
    line_of(items, "rejected item", one, several);
    match continuation.others {
        Some(others) => line_of(others, "mini-batch", "has no result yet", "have no result yet"),
        None if !text.contains('\n') => text += "\n  no mini-batch has a result yet",
        None => text += "\n  all others have no result yet",
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_named_only_beside_mini_batches_that_ran() {
        let none = Continuation {
            job_id: "test".into(),
            committed: 0,
            failed: 0,
            interrupted: 0,
            retrying: 0,
            again: 0,
            partial: 0,
            others: None,
            round: BegunRound::default(),
            lost_delivery_max: 10,
        };
        assert_eq!(continuing(&none), "continuing job test:\n  no mini-batch has a result yet");
        let round = BegunRound { failed: 1, items: 2, ..BegunRound::default() };
        let again = Continuation { round, others: Some(0), ..none.clone() };
        assert_eq!(
            continuing(&again),
            "continuing job test:\n  1 mini-batch failed before and runs again, with all its tries\n  2 rejected items \
             run again; the rows of other items stay"
        );
        let interrupted = Continuation { again: 1, partial: 2, others: Some(0), ..none.clone() };
        assert_eq!(
            continuing(&interrupted),
            "continuing job test:\n  1 mini-batch of an interrupted round runs again\n  2 mini-batches of an interrupted \
             round run their rejected items again; the rows of other items stay"
        );
        let known = Continuation { others: Some(1), ..none.clone() };
        assert_eq!(continuing(&known), "continuing job test:\n  1 mini-batch has no result yet");
        let some = Continuation { committed: 2, ..none };
        assert_eq!(
            continuing(&some),
            "continuing job test:\n  2 mini-batches are committed and do not run again\n  all others have no result yet"
        );
    }
}
