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
const RUN_TIME: Duration = Duration::from_secs(1);
/// When the small job is submitted, after the last large one: every large one waits by then.
const LATER: Duration = Duration::from_secs(8);
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
/// seconds, while each lane of large ones still has messages that wait, however many large jobs there are.
pub fn run_lanes(scenario: Scenario, large: u64) -> Result<Queued, Violation> {
    let folder = folder();
    let dice = Dice::new(scenario.seed, "large and small");
    let weather = Weather {
        nodes: 1 + dice.below(3),
        reducers: 1,
        delay: 0.2,
        delay_max: Duration::from_secs(1),
        ends: Duration::from_secs(3600),
        has_delays: true,
        job_idle: Duration::from_secs(24 * 3600),
        provision_max: Duration::from_secs(1),
        // This is about the queue: a node has a place for each job.
        places: 64,
        lanes: LANES,
        bundle_max: 1,
        message_bytes_max: 32 << 10,
        pace: Pace::PRODUCTION,
        ..Weather::default()
    };
    let job = |number: u64| {
        let mini_batches = if number == large { SMALL } else { LARGE_MIN + dice.below(LARGE_MAX - LARGE_MIN) };
        let begins = Duration::from_secs(number) + if number == large { LATER } else { Duration::ZERO };
        let mut job = Job::sized(mini_batches, RUN_TIME);
        (job.number, job.begins) = (number, begins);
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
