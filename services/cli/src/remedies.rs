//! Remedies as commands, flags and environment variables.

use anyhow::Error;
use engine::targets::TargetRef;
use engine::{Blocker, Busy, Hint, Remedy};
use protocol::WaitsFor;

/// Returns the flags by which a command finds this target, with a leading blank.
pub fn flags(target: &TargetRef) -> String {
    match target {
        TargetRef::ThisMachine => String::new(),
        TargetRef::Named(name) => format!(" --target {name}"),
        TargetRef::Addresses { queue, store } => {
            let queue = queue.as_ref().map_or(String::new(), |queue| format!(" --queue '{queue}'"));
            let store = store.as_ref().map_or(String::new(), |store| format!(" --store {store}"));
            queue + &store
        }
    }
}

/// Returns a remedy as the second half of a sentence.
pub fn text(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Retry { job_id, target } => {
            format!("continue with: gristmill retry {job_id}{}", flags(target))
        }
        Remedy::RunAgain(TargetRef::ThisMachine) => "run its job file again".to_owned(),
        Remedy::RunAgain(_) => "enqueue its job file again".to_owned(),
        Remedy::ListJobs(TargetRef::ThisMachine) => {
            "list the jobs with: gristmill jobs (those of a target: --target NAME)".to_owned()
        }
        Remedy::ListJobs(target) => format!("list the jobs with: gristmill jobs{}", flags(target)),
        Remedy::Cancel => "`gristmill cancel` stops it".to_owned(),
        Remedy::CreateQueues(target) => {
            format!("create missing queues with: gristmill doctor --create{}", flags(target))
        }
        Remedy::StartReducer(target) => {
            format!("start one with: gristmill reducer{}", flags(target))
        }
        Remedy::NameTarget { without_file: false } => "name a target with --target NAME".to_owned(),
        Remedy::NameTarget { without_file: true } => {
            "name a target with --target NAME, and its file with --config FILE".to_owned()
        }
        Remedy::GiveKey(key) => format!("or pass --{key}"),
        Remedy::SetHome => "GRISTMILL_HOME names another folder".to_owned(),
        Remedy::FreeHome => {
            "`gristmill clean` removes old jobs, and GRISTMILL_HOME names another folder".to_owned()
        }
        Remedy::SetPackage => "set GRISTMILL_PYTHON_PACKAGE to the folder that holds it".to_owned(),
        Remedy::SetPython => "set GRISTMILL_PYTHON to another interpreter".to_owned(),
        Remedy::EnlargeSharedMemory => "in a container: docker run --shm-size=1g".to_owned(),
        Remedy::CheckForJob => "--job JOB_FILE compares it with the deadlines of a job".to_owned(),
    }
}

pub fn after(message: &str, remedy: Option<&Remedy>) -> String {
    remedy.map_or_else(|| message.to_owned(), |remedy| format!("{message}; {}", text(remedy)))
}

/// Returns an error with its causes and its remedy, on one line unless a cause has several.
pub fn message(error: &Error) -> String {
    match Busy::of(error) {
        Some(busy) => self::busy(busy),
        None => after(&format!("{error:#}"), Remedy::of(error).as_ref()),
    }
}

/// Returns the reason why a job cannot run now, and the remedy.
pub fn busy(busy: &Busy) -> String {
    match busy {
        Busy::Running(job_id) => format!("{busy}; `gristmill status {job_id}` shows its progress"),
        Busy::SameOutput { job_id: Some(id), target, .. } => {
            format!("{busy}; wait for it, or stop it with: gristmill cancel {id}{}", flags(target))
        }
        Busy::SameOutput { job_id: None, .. } => format!("{busy}; wait for it"),
        Busy::Full { target, .. } => {
            format!(
                "{busy}; enqueue it again later (`gristmill jobs{}` shows all jobs)",
                flags(target)
            )
        }
    }
}

/// Returns the reason why a job waits, and the remedy, on one line.
pub fn hint(hint: &Hint) -> String {
    let Hint { job_id, target, blocker } = hint;
    let flags = flags(target);
    let retry = format!("gristmill retry {job_id}{flags}");
    let worker = format!("start one with: gristmill worker{flags}");
    let reducer = format!("start one with: gristmill reducer{flags}");
    match blocker {
        Blocker::FirstReducer => format!("{blocker}; {reducer}"),
        Blocker::Reducer(_) => format!(
            "{blocker}; results wait in the queue; {reducer}; if one runs, `gristmill doctor{flags}` says why it cannot write"
        ),
        Blocker::Trouble { .. } | Blocker::Node { .. } | Blocker::Start(_) => blocker.to_string(),
        Blocker::Schedule(WaitsFor::Worker(_)) => format!("{blocker}; {worker}"),
        Blocker::Schedule(WaitsFor::AbleWorker { .. }) => {
            format!("{blocker}; correct the cause there, or {worker}")
        }
        Blocker::Schedule(WaitsFor::FittingWorker(unfit)) => {
            let labels = unfit.requires.labels.iter();
            let labels: String =
                labels.map(|(name, value)| format!(" --label {name}={value}")).collect();
            let node =
                if unfit.requires.has_sizes() { "one on a machine that does" } else { "one" };
            format!(
                "{blocker}; start {node} with: gristmill worker{flags}{labels}; or cancel the job, and enqueue it with \
                 another `requires`"
            )
        }
        Blocker::Schedule(_) => format!("{blocker}; `gristmill jobs{flags}` shows all jobs"),
        Blocker::Worker { planned: true, .. } => format!("{blocker}; {worker}"),
        Blocker::Worker { planned: false, .. } => {
            format!("{blocker}; {worker}; if no `enqueue` is planning it, continue with: {retry}")
        }
        Blocker::Progress(_) => {
            format!(
                "{blocker}; it is stopped (Ctrl-Z; `fg` continues it), or its disk does not answer"
            )
        }
        Blocker::Process | Blocker::Publication => format!("{blocker}; continue with: {retry}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::Since;
    use protocol::{ReachedQuota, Requirements, Unfit};

    use super::*;

    fn hinted(blocker: Blocker, target: TargetRef) -> String {
        hint(&Hint { job_id: "job".to_owned(), target, blocker })
    }

    #[test]
    fn hint_names_command_and_target() {
        let target = || TargetRef::Named("t".to_owned());
        let since = Since { at: 0, age: Duration::from_secs(25) };
        let text = hinted(Blocker::Worker { since, planned: true }, target());
        assert!(
            text.starts_with("no worker has been heard from since ") && text.contains("(25 s ago)"),
            "{text}"
        );
        assert!(text.ends_with("; start one with: gristmill worker --target t"), "{text}");
        let text = hinted(Blocker::Worker { since, planned: false }, target());
        assert!(text.ends_with("continue with: gristmill retry job --target t"), "{text}");
        let text = hinted(Blocker::Reducer(since), target());
        assert!(
            text.ends_with(
                "; results wait in the queue; start one with: gristmill reducer --target t; if one runs, `gristmill doctor --target t` \
                 says why it cannot write"
            ),
            "{text}"
        );
        let labels = [("zone".to_owned(), "b".to_owned())].into();
        let requires = Requirements { labels, ..Requirements::default() };
        let lacks = "its label zone is a, the job requires b".to_owned();
        let unfit = Unfit { requires, nodes: 2, nearest: "a1".to_owned(), lacks };
        assert_eq!(
            hinted(Blocker::Schedule(WaitsFor::FittingWorker(unfit.clone())), target()),
            "none of the 2 workers meets `requires` (label zone=b); a1 comes nearest: its label zone is a, the job requires \
             b; start one with: gristmill worker --target t --label zone=b; or cancel the job, and enqueue it with \
             another `requires`"
        );
        let requires = Requirements { gpus: 1, ..Requirements::default() };
        let lacks = "it has no GPU, the job requires 1".to_owned();
        assert_eq!(
            hinted(
                Blocker::Schedule(WaitsFor::FittingWorker(Unfit {
                    requires,
                    nodes: 1,
                    lacks,
                    ..unfit
                })),
                target()
            ),
            "the only worker, a1, does not meet `requires` (1 GPU): it has no GPU, the job requires 1; start one on a \
             machine that does with: gristmill worker --target t; or cancel the job, and enqueue it with another \
             `requires`"
        );
        let full = ReachedQuota { owner: Some("ana".to_owned()), running: 3, limit: 3 };
        assert_eq!(
            hinted(Blocker::Schedule(WaitsFor::Quota(full)), target()),
            "owner ana may run 3 jobs at a time, and runs 3 (quota of the target); `gristmill jobs --target t` shows all jobs"
        );
        let unable = WaitsFor::AbleWorker { workers: 1, reason: "its disk is full".to_owned() };
        assert_eq!(
            hinted(Blocker::Schedule(unable), target()),
            "the only worker that fits cannot prepare the job: its disk is full; correct the cause there, or start one with: \
             gristmill worker --target t"
        );
        let text = hinted(Blocker::Schedule(WaitsFor::Worker(Default::default())), target());
        assert_eq!(text, "no worker is running; start one with: gristmill worker --target t");
        let expected = "no reducer has looked at it yet; start one with: gristmill reducer";
        assert_eq!(hinted(Blocker::FirstReducer, TargetRef::ThisMachine), expected);
    }

    #[test]
    fn remedy_of_an_error_has_the_flags_of_its_target() {
        let (problem, target) = ("no such job".to_owned(), TargetRef::Named("prod".to_owned()));
        let text = message(&engine::Error::NoSuchJob { problem, target }.into());
        assert!(text.ends_with("; list the jobs with: gristmill jobs --target prod"), "{text}");
        let busy = engine::Error::from(Busy::Running("a-1".to_owned()));
        assert_eq!(
            message(&busy.into()),
            "job a-1 is running; `gristmill status a-1` shows its progress"
        );
    }

    #[test]
    fn target_without_name_is_found_by_its_addresses() {
        let (queue, store) = (Some("sqs://a".to_owned()), Some("s3://b".to_owned()));
        assert_eq!(
            flags(&TargetRef::Addresses { queue, store }),
            " --queue 'sqs://a' --store s3://b"
        );
        assert_eq!(flags(&TargetRef::Addresses { queue: None, store: None }), "");
    }
}
