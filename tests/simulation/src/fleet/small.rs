//! A small job that comes while large ones have every node.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{World, in_virtual_time};
use crate::job::{Job, SLOTS};
use crate::weather::{Dice, Pace, Scenario, Weather};
use crate::witness::Violation;

const SMALL: u64 = 5;
const LARGE: u64 = 400;
const RUN_TIME: Duration = Duration::from_secs(1);
/// Of the runs of large jobs: more jobs share the nodes for longer.
const LONGER: Duration = Duration::from_secs(4);
const PROVISION_MAX: Duration = Duration::from_secs(1);
/// When the small job is submitted, after the last large one has had its first slice.
const LATER: Duration = Duration::from_secs(60);
/// The first slice of a job, and the time until it may end.
const SLICE: Duration = Duration::from_secs(45);
/// Within this time of its submission, and of its provisioning, a small job begins.
const BEGINS_WITHIN: Duration = Duration::from_secs(5);
/// Within this time it ends: its processes take up to ten seconds to be ready.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// How long a small job has waited, from its submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// Until its first process started.
    pub begun_after: Duration,
    /// Until its end.
    pub ended_after: Duration,
}

/// Plays some large jobs and a small one, until the small one has ended. Returns the first broken rule: each large job has
/// its turn, and the small one begins within seconds and ends soon, however many large ones there are.
pub fn run_small(scenario: Scenario, large: u64) -> Result<Waited, Violation> {
    let dice = Dice::new(scenario.seed, "large and small");
    let nodes = 1 + dice.below(3);
    let weather = Weather {
        nodes,
        reducers: 1 + dice.below(2),
        delay: 0.2,
        delay_max: Duration::from_secs(1),
        ends: Duration::from_secs(24 * 3600),
        provision_max: PROVISION_MAX,
        has_delays: dice.happens(0.5),
        bundle_max: 1,
        message_bytes_max: 32 << 10,
        pace: Pace::PRODUCTION,
        ..Weather::default()
    };
    let turns = u32::try_from(large / (u64::from(SLOTS) * nodes)).unwrap_or(u32::MAX);
    let later = LATER + turns * SLICE;
    let job = |number: u64| {
        let is_small = number == large;
        let mut job =
            if is_small { Job::sized(SMALL, RUN_TIME) } else { Job::sized(LARGE, LONGER) };
        job.number = number;
        job.begins = Duration::from_secs(number) + if is_small { later } else { Duration::ZERO };
        job
    };
    let jobs = (0..=large).map(job).collect();
    in_virtual_time(jobs, weather, scenario, async |world| world.play_small(large).await)
}

impl World {
    async fn play_small(self, large: u64) -> Result<Waited, Violation> {
        let jobs: Vec<_> = self.witness.jobs().cloned().collect();
        let small =
            jobs.iter().find(|job| job.job.number == large).expect("it is one of the jobs").clone();
        let waits = async |is_over: &dyn Fn() -> bool, submitted: Instant, most: Duration| {
            while !is_over() && submitted.elapsed() < most && self.witness.violation().is_none() {
                sleep(LOOK).await;
            }
            submitted.elapsed()
        };
        let waited = async {
            sleep(small.job.begins).await;
            let waits_still = jobs.iter().find(|job| job.job.number != large && !job.has_begun());
            if let Some(job) = waits_still {
                self.witness.report("each job has its turn", job.spec.job_id.clone());
            }
            let submitted = Instant::now();
            let begun_after =
                waits(&|| small.has_begun(), submitted, BEGINS_WITHIN + PROVISION_MAX).await;
            Waited {
                begun_after,
                ended_after: waits(&|| small.result().is_some(), submitted, ENDS_WITHIN).await,
            }
        };
        let waited = tokio::select! {
            waited = waited => waited,
            played = self.play_once(&jobs) => {
                played?;
                unreachable!("the large jobs last longer than the small one")
            }
        };
        if let Some(violation) = self.witness.violation() {
            return Err(violation);
        }
        let detail = format!("{waited:?}");
        if waited.begun_after >= BEGINS_WITHIN + PROVISION_MAX {
            return Err(Violation {
                rule: "a small job begins within seconds beside large ones",
                detail,
            });
        }
        if waited.ended_after >= ENDS_WITHIN {
            return Err(Violation { rule: "a small job ends soon beside large ones", detail });
        }
        Ok(waited)
    }
}
