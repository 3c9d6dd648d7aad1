//! Large jobs that wait in a task queue with lanes, and a small one that comes later.

use std::time::Duration;

use queue::Queue;
use tokio::time::{Instant, sleep};

use super::{World, folder};
use crate::job::Job;
use crate::weather::{Dice, LANES, Pace, Scenario, Weather};
use crate::witness::Violation;

const SMALL: u64 = 5;
const LARGE_MIN: u64 = 300;
const LARGE_MAX: u64 = 400;
/// Of the runs of large jobs that take turns: more jobs share the nodes for longer.
const LONGER: Duration = Duration::from_secs(4);
const RUN_TIME: Duration = Duration::from_secs(1);
/// When the small job is submitted, after the last large one: every large one waits by then.
const LATER: Duration = Duration::from_secs(8);
/// The same where they take turns: each has had its first one.
const MUCH_LATER: Duration = Duration::from_secs(300);
/// Within this time of its submission a small job begins.
const BEGINS_WITHIN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(100);
/// Lanes that are short: they have only the first messages of jobs.
const SHORT_LANES: usize = 2;

/// The lanes of whole jobs when the small job begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// From its submission.
    pub after: Duration,
    /// Lanes in which messages of large jobs still wait.
    pub lanes: usize,
    /// Lanes in which they waited when the small job was submitted.
    pub lanes_before: usize,
}

/// Plays some large jobs and a small one, until the small one begins. Returns the first broken rule: it begins within
/// seconds, while each lane of large ones still has messages that wait, however many large jobs there are. This is about the
/// queue: a node has a place for each job.
pub fn run_lanes(scenario: Scenario, large: u64) -> Result<Queued, Violation> {
    let dice = Dice::new(scenario.seed, "large and small");
    let nodes = 1 + dice.below(3);
    let mini_batches = LARGE_MIN + dice.below(LARGE_MAX - LARGE_MIN);
    let jobs = Submitted { large, mini_batches, run_time: RUN_TIME, later: LATER };
    play(scenario, Weather { nodes, places: 64, has_delays: true, ..weather() }, jobs)
}

/// Does the same where the large jobs take turns in the places of the nodes, four each.
pub fn run_places(scenario: Scenario, large: u64) -> Result<Queued, Violation> {
    let nodes = 1 + Dice::new(scenario.seed, "large and small").below(3);
    let jobs = Submitted { large, mini_batches: LARGE_MAX, run_time: LONGER, later: MUCH_LATER };
    play(scenario, Weather { nodes, places: 4, has_delays: false, ..weather() }, jobs)
}

/// The jobs of a run.
#[derive(Clone, Copy)]
struct Submitted {
    large: u64,
    /// Of a large one.
    mini_batches: u64,
    run_time: Duration,
    /// When the small one comes, after the last large one.
    later: Duration,
}

fn weather() -> Weather {
    Weather {
        reducers: 1,
        delay: 0.2,
        delay_max: Duration::from_secs(1),
        ends: Duration::from_secs(3600),
        job_idle: Duration::from_secs(24 * 3600),
        provision_max: Duration::from_secs(1),
        lanes: LANES,
        bundle_max: 1,
        message_bytes_max: 32 << 10,
        pace: Pace::PRODUCTION,
        ..Weather::default()
    }
}

fn play(scenario: Scenario, weather: Weather, jobs: Submitted) -> Result<Queued, Violation> {
    let Submitted { large, mini_batches, run_time, later } = jobs;
    let folder = folder();
    let job = |number: u64| {
        let is_small = number == large;
        let mut job = if is_small { Job::sized(SMALL, RUN_TIME) } else { Job::sized(mini_batches, run_time) };
        job.number = number;
        job.begins = Duration::from_secs(number) + if is_small { later } else { Duration::ZERO };
        job
    };
    super::in_virtual_time(scenario.seed, async {
        World::new((0..=large).map(job).collect(), weather, scenario, folder.path()).play_lanes(large).await
    })
}

impl World {
    async fn play_lanes(self, large: u64) -> Result<Queued, Violation> {
        let jobs: Vec<_> = self.witness.jobs().cloned().collect();
        let small = jobs.iter().find(|job| job.job.number == large).expect("it is one of the jobs").clone();
        let queued = async {
            sleep(small.job.begins).await;
            let (submitted, lanes_before) = (Instant::now(), self.lanes_in_use().await);
            while small.attempts() == 0 && submitted.elapsed() < BEGINS_WITHIN && self.witness.violation().is_none() {
                sleep(LOOK).await;
            }
            Queued { after: submitted.elapsed(), lanes: self.lanes_in_use().await, lanes_before }
        };
        let queued = tokio::select! {
            queued = queued => queued,
            played = self.play_once(&jobs) => {
                played?;
                unreachable!("the large jobs last longer than the small one waits")
            }
        };
        if let Some(violation) = self.witness.violation() {
            return Err(violation);
        }
        if queued.after >= BEGINS_WITHIN || queued.lanes < queued.lanes_before || queued.lanes_before == 0 {
            return Err(Violation {
                rule: "a small job begins within seconds while large ones wait",
                detail: format!("{queued:?}"),
            });
        }
        Ok(queued)
    }

    /// Returns the number of lanes with messages that wait, apart from those of the small job and from the short lanes.
    async fn lanes_in_use(&self) -> usize {
        let mut count = 0;
        for lane in &self.tasks[..self.tasks.len() - SHORT_LANES] {
            count += usize::from(lane.depth().await.expect("memory answers").visible > SMALL);
        }
        count
    }
}
