//! Decides when a job ends, and how. Pure: tally and time in, the end out.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::{ErrorReport, JobSpec, JobState, OutputAction, ResultEvent};

use crate::job_liveness::{JobLiveness, Timestamp};
use crate::progress::Waits;
use crate::stalls::{self, Elapsed, Stall};
use crate::thresholds::{self, Limits};
use crate::{Options, Tally};

/// The end of a job, before the reducer writes the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Complete,
    Failed(String),
    Stalled(Stall),
    Canceled(Option<String>),
}

impl From<Stall> for End {
    fn from(stall: Stall) -> Self {
        Self::Stalled(stall)
    }
}

impl End {
    /// Reads an end from the ledger.
    pub fn from_ledger(
        (state, cause, error): (JobState, Option<&str>, Option<&ErrorReport>),
    ) -> Self {
        let cause = cause.map(str::to_owned);
        match (state, error) {
            (JobState::Completed, _) => Self::Complete,
            (JobState::Canceled, _) => Self::Canceled(cause),
            (_, None) => Self::Failed(cause.unwrap_or_default()),
            (_, Some(error)) => Self::Stalled(Stall {
                cause: cause.unwrap_or_default(),
                error: Some(error.clone().into()),
            }),
        }
    }

    /// Returns the event for the ledger.
    pub fn event(&self) -> ResultEvent {
        let (state, cause, error) = match self {
            Self::Complete => (JobState::Completed, None, None),
            Self::Failed(cause) => (JobState::Failed, Some(cause.clone()), None),
            Self::Stalled(Stall { cause, error }) => {
                (JobState::Failed, Some(cause.clone()), error.clone())
            }
            Self::Canceled(cause) => (JobState::Canceled, cause.clone(), None),
        };
        ResultEvent::Ended { state, cause, error }
    }
}

/// The effects of a segment of the ledger.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentEffects {
    /// The first worker arrived.
    pub has_arrived: bool,
    /// An attempt ended.
    pub has_progressed: bool,
    /// At least one event is from a worker.
    pub is_from_worker: bool,
}

/// Compares a job with its limits.
#[derive(Debug)]
pub(crate) struct Judge {
    limits: Limits,
    collects_rows: bool,
    runs_without_rows: bool,
    began: Timestamp,
    pub job_liveness: JobLiveness,
    pub waits: Waits,
    /// Some nodes that may run the job, as in [`Workers`](crate::Workers).
    pub able: Option<BTreeSet<String>>,
    /// When a mini-batch was created, the first process started, or an attempt ended, in time attended by workers;
    /// `None` before the first mini-batch.
    progressed: Option<Duration>,
    /// Since when processes are in `init()`, in time attended by workers.
    in_init_since: Option<Duration>,
    /// How often a process has left `init()`.
    times_ready: u64,
    /// How often a node has stopped because the script did not start.
    stops: usize,
}

impl Judge {
    /// Starts to watch a job.
    pub fn new(spec: &JobSpec, options: &Options, began: Timestamp) -> Self {
        Self {
            limits: Limits::new(spec, options),
            collects_rows: spec.output.action == OutputAction::AppendRow,
            runs_without_rows: spec.run_without_rows,
            began,
            job_liveness: JobLiveness::new(options.silence, began),
            waits: Waits::default(),
            able: Some(BTreeSet::new()),
            progressed: None,
            in_init_since: None,
            times_ready: 0,
            stops: 0,
        }
    }

    /// Records the effects of a segment. `is_new`: it was committed just now.
    pub fn committed(&mut self, news: SegmentEffects, tally: &Tally, is_new: bool, now: Timestamp) {
        if is_new && news.is_from_worker {
            self.job_liveness.heard(now);
        }
        let attended = self.job_liveness.attended();
        if news.has_progressed || news.has_arrived && self.progressed.is_some() {
            // Before this, no process could make progress.
            self.progressed = Some(attended);
        }
        let times_ready = tally.nodes().times_ready();
        let (_, stops) = tally.nodes().stopped_nodes();
        if std::mem::replace(&mut self.times_ready, times_ready) != times_ready
            || std::mem::replace(&mut self.stops, stops) != stops
        {
            // Between two checks, a process may have been ready and replaced. After a stop, another node prepares the job.
            self.in_init_since = None;
        }
        self.in_init_since =
            tally.nodes().is_in_init().then(|| self.in_init_since.unwrap_or(attended));
    }

    /// Restarts the limit on time without progress, when a reducer takes over.
    pub fn resume(&mut self) {
        self.progressed = self.progressed.map(|_| Duration::ZERO);
    }

    /// Whether no mini-batch has been created yet.
    pub fn has_no_mini_batch(&self) -> bool {
        self.progressed.is_none()
    }

    /// Records the end of an attempt that is not committed because the ledger holds an equal one:
    /// workers make progress.
    pub fn attempt_ended(&mut self) {
        self.progressed = self.progressed.map(|_| self.job_liveness.attended());
    }

    /// Records that a mini-batch exists.
    pub fn mini_batch_exists(&mut self) {
        self.progressed = Some(self.job_liveness.attended());
    }

    /// Whether no process can make progress.
    pub fn is_deserted(&self, tally: &Tally) -> bool {
        self.limits.peers.is_deserted(tally.nodes())
    }

    /// Returns the end of the job that the committed events cause. `polled`: mini-batches that have
    /// another try count as failed.
    pub fn end(&self, tally: &Tally, polled: bool, now: Timestamp) -> Option<End> {
        if let Some(committed) = tally.ended_as() {
            return Some(End::from_ledger(committed));
        }
        if let Some(cause) = tally.plan_failure() {
            return Some(End::Failed(cause.to_owned()));
        }
        let polled = polled && !tally.is_complete();
        let cause = match self.limits.is_command {
            true => thresholds::command_failed(tally),
            false => thresholds::exceeded(tally, &self.limits.thresholds, polled),
        };
        if let Some(cause) = cause {
            return Some(End::Failed(cause));
        }
        if tally.is_complete() {
            let needs_rows =
                self.collects_rows && !(self.runs_without_rows && thresholds::has_no_items(tally));
            let nothing = if needs_rows { thresholds::nothing_succeeded(tally) } else { None };
            return Some(nothing.map_or(End::Complete, End::Failed));
        }
        let waiting = || self.waits.at(now.instant, tally.nodes());
        let (able, elapsed) = (self.able.as_ref(), self.elapsed(now));
        stalls::init_failure(tally.nodes(), waiting, &self.limits, &elapsed, able).map(End::from)
    }

    /// Returns the end of a job without progress.
    pub fn stalled(&self, tally: &Tally, now: Timestamp) -> Option<End> {
        let waiting = || self.waits.at(now.instant, tally.nodes());
        stalls::stalled(tally, waiting, &self.limits, &self.elapsed(now)).map(End::from)
    }

    fn elapsed(&self, now: Timestamp) -> Elapsed {
        let attended = self.job_liveness.attended();
        Elapsed {
            since_start: self.limits.peers.age(now.instant - self.began.instant, attended),
            since_progress: self.progressed.map(|progressed| attended.saturating_sub(progressed)),
            in_init: self.in_init_since.map(|since| attended.saturating_sub(since)),
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Planned, SlotPhase, Waiting};

    use super::*;
    use crate::fixtures::{ended, event, failed, fold, ready, spec, started, succeeded, waiting};

    const SILENCE: Duration = Duration::from_secs(5);
    const PROGRESSED: SegmentEffects =
        SegmentEffects { has_arrived: false, has_progressed: true, is_from_worker: true };

    fn judge(options: Options) -> (Judge, Timestamp) {
        let began = Timestamp::now();
        let spec =
            JobSpec { progress_update_timeout_seconds: 60, ..spec(std::path::Path::new("/out")) };
        (Judge::new(&spec, &Options { silence: SILENCE, ..options }, began), began)
    }

    fn tally(events: impl IntoIterator<Item = ResultEvent>) -> Tally {
        fold(&events.into_iter().collect::<Vec<_>>())
    }

    fn planned(mini_batches: u64) -> ResultEvent {
        ResultEvent::Planned(Planned { mini_batches, items: None })
    }

    #[test]
    fn committed_end_precedes_every_limit() {
        let (judge, now) = judge(Options::default());
        let ended = |state, cause: &str| ResultEvent::Ended {
            state,
            cause: Some(cause.to_owned()),
            error: None,
        };
        let all_failed = [planned(1), event(failed(0, 3, true, 1))];
        assert!(matches!(judge.end(&tally(all_failed.clone()), false, now), Some(End::Failed(_))));
        let canceled = all_failed.into_iter().chain([ended(JobState::Canceled, "by the user")]);
        assert_eq!(
            judge.end(&tally(canceled), false, now),
            Some(End::Canceled(Some("by the user".into())))
        );
        let hung = Stall { cause: "z".into(), error: Some(Box::default()) };
        let failed = [End::Failed("x".into()), End::Stalled(hung)];
        let canceled = [End::Canceled(None), End::Canceled(Some("y".into()))];
        for end in [End::Complete].into_iter().chain(failed).chain(canceled) {
            assert_eq!(judge.end(&tally([end.event()]), false, now), Some(end), "as committed");
        }
    }

    #[test]
    fn complete_job_without_rows_fails_only_if_it_collects_rows() {
        let (mut judge, now) = judge(Options::default());
        let empty = tally([planned(1), event(succeeded(0, 1, 5, 0))]);
        assert!(matches!(judge.end(&empty, false, now), Some(End::Failed(_))));
        judge.collects_rows = false;
        assert_eq!(judge.end(&empty, false, now), Some(End::Complete));
        let some = tally([planned(2), event(succeeded(0, 1, 5, 0))]);
        assert_eq!(judge.end(&some, false, now), None);
    }

    #[test]
    fn job_whose_inputs_have_no_items_completes_if_it_runs_without_rows() {
        let (mut judge, now) = judge(Options::default());
        let end = |judge: &Judge, only| judge.end(&tally([planned(1), event(only)]), false, now);
        let no_rows = succeeded(0, 1, 0, 0);
        assert!(matches!(end(&judge, no_rows.clone()), Some(End::Failed(_))));
        judge.runs_without_rows = true;
        assert_eq!(end(&judge, no_rows), Some(End::Complete));
        let raised = failed(0, 3, true, 0);
        let Some(End::Failed(cause)) = end(&judge, raised) else { panic!("run() failed") };
        assert!(cause.starts_with("The only mini-batch failed"), "{cause}");
    }

    #[test]
    fn each_replacement_has_its_own_time_for_init() {
        let (mut judge, mut now) = judge(Options::default());
        let mut tally = tally([planned(9), started("0", "process000")]);
        for number in 0..5 {
            judge.committed(PROGRESSED, &tally, true, now);
            for _ in 0..25 {
                now = now.after(Duration::from_secs(4));
                judge.job_liveness.heard(now);
            }
            assert_eq!(judge.end(&tally, false, now), None, "after {number} replacements");
            tally.apply(&ready("0", "process000"));
            tally.apply(&ended("0", "process000"));
            tally.apply(&started("0", "process000"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cause_of_a_standstill_counts_seconds_until_it_ends_the_job() {
        let waiting = |phase| Waiting { mini_batch: None, phase, ..waiting("process000", 0, 8) };
        let stalls = [
            (SlotPhase::Init, 53, "in init() for 3 min 40 s"),
            (SlotPhase::Run, 16, "in run() for 1 min 12 s"),
        ];
        for (phase, looks, expected) in stalls {
            let (mut judge, mut now) = judge(Options::default());
            let reported = waiting(phase);
            let event = ResultEvent::Waiting(Box::new(reported.clone()));
            let tally = tally([started("0", "process000"), event]);
            judge.mini_batch_exists();
            judge.committed(PROGRESSED, &tally, true, now);
            judge.waits.note(&reported, tally.nodes());
            for _ in 0..looks {
                now = now.after(Duration::from_secs(4));
                judge.job_liveness.heard(now);
            }
            let end = if phase == SlotPhase::Init {
                judge.end(&tally, false, now)
            } else {
                judge.stalled(&tally, now)
            };
            let Some(End::Stalled(Stall { cause, error })) = end else { panic!("{end:?}") };
            let error = error.expect("a process waits").message;
            assert!(cause.contains(expected) && error.contains(expected), "{cause} {error}");
        }
    }

    #[test]
    fn only_time_with_workers_counts_towards_the_timeout() {
        let (mut judge, began) = judge(Options::shared());
        let tally = tally([started("a", "process000"), event(succeeded(0, 1, 1, 1))]);
        judge.committed(PROGRESSED, &tally, true, began);
        let hour = began.after(Duration::from_secs(3600));
        judge.job_liveness.heard(hour);
        assert_eq!(judge.stalled(&tally, hour), None, "no worker was there");
        let mut now = hour;
        for _ in 0..15 {
            now = now.after(Duration::from_secs(4));
            judge.job_liveness.heard(now);
        }
        assert_eq!(judge.stalled(&tally, now), None, "60 s are allowed");
        now = now.after(Duration::from_secs(1));
        judge.job_liveness.heard(now);
        assert!(
            matches!(judge.stalled(&tally, now), Some(End::Stalled(stall)) if stall.cause.contains("60 seconds"))
        );
        judge.resume();
        judge.mini_batch_exists();
        assert_eq!(judge.stalled(&tally, now), None, "the limit restarts");
    }
}
