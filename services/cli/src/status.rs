//! `gristmill status`: shows the state of a job, the reason why it waits, or its result. Reads only the store.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Result;
use engine::words::{counted, kept, took};
use engine::{FollowEnd, Jobs, State, Status, follow};
use protocol::{Counts, Progress};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::summary::{rounds, summary};
use crate::{Exit, Show, TargetFlags, complete, printed, remedies, watch_for_stop};

const WATCH_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct StatusArguments {
    /// Id of a job, the beginning of an id, or a name: the running or newest job of that name.
    #[arg(add = complete::jobs())]
    pub job: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Show the status every second until the job has ended. The exit status says how it ended.
    #[arg(long, conflicts_with = "wait")]
    pub watch: bool,
    /// Wait until the job has ended. Exit status: 0 completed, 42 failed, 130 canceled, 124 not ended.
    #[arg(long)]
    pub wait: bool,
    /// With --wait: stop waiting after this many seconds, with exit status 124. The job continues. 0: check once.
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    pub timeout: Option<u64>,
    #[command(flatten)]
    pub target: TargetFlags,
}

pub async fn status(jobs: &Jobs, arguments: &StatusArguments) -> Result<Exit> {
    if arguments.wait {
        return wait(jobs, arguments).await;
    }
    if arguments.watch {
        return watch(jobs, arguments).await;
    }
    say!(out, "{}", shown(&jobs.status(&arguments.job).await?, jobs, arguments.json));
    Ok(Exit::Done)
}

async fn watch(jobs: &Jobs, arguments: &StatusArguments) -> Result<Exit> {
    let redraws = !arguments.json && std::io::stdout().is_terminal();
    let mut look = jobs.look(&arguments.job).await?;
    loop {
        let status = look.status(jobs).await?;
        let text = shown(&status, jobs, arguments.json);
        // A terminal shows only the latest status. Other outputs keep all of them.
        if redraws {
            printed::clear_screen();
        }
        let has_reader = printed::out(&text);
        match look.result() {
            Some(result) => return Ok(Exit::of(result.state)),
            None if status.state == State::Interrupted => return Ok(Exit::NotEnded),
            None if has_reader => {}
            None => return Ok(Exit::Done),
        }
        tokio::time::sleep(WATCH_EVERY).await;
        look.again(jobs).await?;
    }
}

async fn wait(jobs: &Jobs, arguments: &StatusArguments) -> Result<Exit> {
    let stopped = CancellationToken::new();
    let _signals = watch_for_stop(stopped.clone());
    let _timer = arguments.timeout.map(|seconds| {
        let stopped = stopped.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            stopped.cancel();
        }))
    });
    if arguments.timeout == Some(0) {
        stopped.cancel();
    }
    let mut look = jobs.look(&arguments.job).await?;
    let exit = match look.result() {
        Some(result) => Exit::of(result.state),
        None => {
            let (events, show) = Show::start();
            let followed = follow(jobs, look.job_id(), &Notify::new(), &stopped, &events).await;
            show.finish(events).await;
            look.again(jobs).await?;
            match followed? {
                FollowEnd::Ended(result) => Exit::of(result.state),
                FollowEnd::Stopped | FollowEnd::Interrupted => Exit::NotEnded,
            }
        }
    };
    say!(out, "{}", shown(&look.status(jobs).await?, jobs, arguments.json));
    Ok(exit)
}

fn shown(status: &Status, jobs: &Jobs, json: bool) -> String {
    if json {
        return serde_json::to_string(&status.document(remedies::hint))
            .expect("plain data always serialises");
    }
    if let Some(result) = &status.result {
        let summary = summary(result, jobs.target());
        return match status.output_changed {
            true => format!(
                "{summary}\n  note: the output has been changed or replaced since the job ended"
            ),
            false => summary,
        };
    }
    let mut lines = vec![heading(status)];
    if matches!(jobs, Jobs::There { .. }) {
        let owner =
            status.owner.iter().map(|owner| format!("owner: {owner}; ")).collect::<String>();
        lines.push(format!("  {owner}priority: {}", status.priority.word()));
    }
    lines.extend(status.progress.iter().flat_map(|progress| described(progress, status.state)));
    if status.builds.len() > 1 {
        let builds = status.builds.join(", ");
        let flags = remedies::flags(jobs.target());
        lines.push(format!(
            "  note: several builds are at work: {builds}; `gristmill doctor{flags}` shows which node runs which"
        ));
    }
    lines.push(format!("  logs: {}", status.logs));
    lines.join("\n")
}

fn heading(status: &Status) -> String {
    let (job_id, word) = (&status.job_id, status.state.word());
    match &status.hint {
        Some(hint) => format!("job {job_id} is {word}: {}", remedies::hint(hint)),
        None => format!("job {job_id} is {word}"),
    }
}

/// Returns the progress of a job that has not ended, as lines.
fn described(progress: &Progress, state: State) -> Vec<String> {
    let Counts { total, succeeded, failed } = progress.mini_batches;
    let retrying = match progress.retrying {
        0 => String::new(),
        retrying => format!(", {retrying} to be tried again"),
    };
    let counts = match progress.planned {
        true => format!("{succeeded} of {total} succeeded, {failed} failed{retrying}"),
        false => {
            format!("{succeeded} succeeded, {failed} failed{retrying}; not all are planned yet")
        }
    };
    let elapsed = took(progress.elapsed_seconds, progress.worked_seconds);
    let mut lines = vec![
        format!("  mini-batches: {counts}, after {elapsed}"),
        format!(
            "  items: {} succeeded, {} failed",
            progress.items.succeeded, progress.items.failed
        ),
    ];
    if progress.extra_runs > 0 {
        lines.push(format!("  isolation: {}", counted(progress.extra_runs, "extra run")));
    }
    if progress.items_kept > 0 {
        lines.push(format!("  checkpoints: {}", kept(progress.items_kept)));
    }
    lines.extend(progress.waited.sentence().map(|waits| format!("  processes {waits}")));
    if progress.copies != Default::default() {
        lines.push(format!("  speculation: {}", progress.copies.sentence()));
    }
    // The numbers are outdated once the processes have ended.
    if matches!(state, State::Running | State::Canceling) && progress.silent_since.is_none() {
        let nodes = counted(progress.nodes_at_work, "node");
        let retries = counted(progress.retries, "retry");
        lines.push(format!("  processes: {} on {nodes}; {retries}", progress.processes));
        lines.extend(progress.waiting.iter().map(|waiting| format!("  waiting for {waiting}")));
    }
    lines.extend(progress.notes.iter().map(|note| format!("  note: {note}")));
    lines.extend(rounds(&progress.rounds));
    lines.extend(progress.step.iter().map(|step| format!("  {step}")));
    lines
}

#[cfg(test)]
mod tests {
    use engine::targets::TargetRef;
    use engine::{Blocker, Hint};
    use protocol::Priority;

    use super::*;

    fn progress() -> Progress {
        let items = Counts { total: 20, succeeded: 3, failed: 1 };
        let nothing = Progress {
            elapsed_seconds: 75.0,
            worked_seconds: 75.0,
            planned: true,
            ..reducer::Reducer::no_progress()
        };
        Progress {
            mini_batches: items,
            items,
            retries: 1,
            processes: 2,
            nodes_at_work: 1,
            nodes: 1,
            ..nothing
        }
    }

    #[test]
    fn progress_is_described_with_every_count() {
        let expected = [
            "  mini-batches: 3 of 20 succeeded, 1 failed, after 1 min 15 s",
            "  items: 3 succeeded, 1 failed",
            "  processes: 2 on 1 node; 1 retry",
        ];
        assert_eq!(described(&progress(), State::Running), expected);
        let isolated = Progress { extra_runs: 12, ..progress() };
        assert_eq!(described(&isolated, State::Running)[2], "  isolation: 12 extra runs");
        let waited =
            protocol::WaitTimes { limits_milliseconds: 725_000, services_milliseconds: 180_000 };
        let kept = Progress { items_kept: 30, waited, ..progress() };
        let expected = [
            "  checkpoints: 30 items were kept from earlier tries",
            "  processes waited 12 min 5 s for the limits of the job, 3 min for a service",
        ];
        assert_eq!(described(&kept, State::Running)[2..4], expected);
        let copies = protocol::Copies { started: 2, won: 1 };
        let speculating = Progress { copies, ..progress() };
        assert_eq!(
            described(&speculating, State::Running)[2],
            "  speculation: 2 speculative runs, 1 won"
        );
        let planning = Progress {
            planned: false,
            retrying: 8,
            nodes_at_work: 2,
            nodes: 3,
            retries: 8,
            ..progress()
        };
        let lines = described(&planning, State::Running);
        let expected = "  mini-batches: 3 succeeded, 1 failed, 8 to be tried again; not all are planned yet, after 1 min 15 s";
        assert_eq!(lines[0], expected);
        assert_eq!(lines[2], "  processes: 2 on 2 nodes; 8 retries");
    }

    #[test]
    fn processes_of_silent_workers_are_not_counted() {
        let silent = Progress { silent_since: Some(0), ..progress() };
        for (progress, state) in [
            (&silent, State::Waiting),
            (&silent, State::Running),
            (&progress(), State::Interrupted),
        ] {
            assert!(
                described(progress, state).iter().all(|line| !line.contains("processes")),
                "{state}"
            );
        }
    }

    #[test]
    fn heading_names_the_reason_of_a_wait() {
        let status = |state, hint| {
            let (job_id, source_directory, logs) = ("a".into(), String::new(), String::new());
            Status {
                job_id,
                state,
                hint,
                owner: None,
                priority: Priority::Normal,
                result: None,
                progress: None,
                builds: Vec::new(),
                output_changed: false,
                source_directory,
                logs,
            }
        };
        let hint = Hint {
            job_id: "a".into(),
            target: TargetRef::ThisMachine,
            blocker: Blocker::FirstReducer,
        };
        let expected =
            "job a is queued: no reducer has looked at it yet; start one with: gristmill reducer";
        assert_eq!(heading(&status(State::Queued, Some(hint))), expected);
        assert_eq!(heading(&status(State::Running, None)), "job a is running");
    }
}
