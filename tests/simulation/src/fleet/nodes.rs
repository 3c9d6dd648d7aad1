//! Nodes that fail a job where others do not, and a job that kills nodes beside an innocent one.

use std::time::Duration;

use protocol::JobResult;

use super::in_virtual_time;
use crate::job::Job;
use crate::rules;
use crate::weather::{Dice, Pace, Scenario, Weather};
use crate::witness::Violation;

const RUN_TIME: Duration = Duration::from_secs(2);
/// Deaths that every job may cause a node.
const LOST_MAX: u32 = 10;

/// The nodes of a fleet that fail runs.
#[derive(Clone, Copy, Debug)]
pub struct Broken {
    /// All nodes.
    pub nodes: u64,
    /// Those that fail runs.
    pub broken: u64,
    /// How often.
    pub probability: f64,
}

/// How a job has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its result.
    pub result: JobResult,
    /// Runs of user code.
    pub attempts: u64,
    /// Lives of nodes and reducers.
    pub lives: u64,
}

fn weather(nodes: u64, reducers: u64) -> Weather {
    Weather {
        nodes,
        reducers,
        has_delays: true,
        provision_max: Duration::from_secs(1),
        bundle_max: 1,
        message_bytes_max: 32 << 10,
        pace: Pace::PRODUCTION,
        ..Weather::default()
    }
}

/// Plays a job on a fleet of which some nodes fail runs.
pub fn run_broken(scenario: Scenario, broken: Broken) -> Result<Ended, Violation> {
    let dice = Dice::new(scenario.seed, "broken nodes");
    let mut job = Job::sized(100 + dice.below(200), RUN_TIME);
    (job.broken_nodes, job.speculation) =
        (Some((broken.broken, broken.probability)), dice.happens(0.5));
    let mut ended = play(scenario, weather(broken.nodes, 1 + dice.below(2)), vec![job])?;
    Ok(ended.pop().expect("one job"))
}

/// Plays a job of which these mini-batches kill their node, beside an innocent one, and returns both ends.
pub fn run_poison(scenario: Scenario, nodes: u64) -> Result<[Ended; 2], Violation> {
    let dice = Dice::new(scenario.seed, "poison");
    let of = |number, mini_batches| {
        let mut job = Job::sized(mini_batches, Duration::from_secs(1 + dice.below(20)));
        (job.number, job.lost_delivery_max) = (number, LOST_MAX);
        job
    };
    let (mut poison, mut innocent) = (of(0, 6), of(1, 4 + dice.below(30)));
    (poison.poison, innocent.begins) = (Some(dice.below(6)), dice.time(Duration::from_secs(20)));
    let ended = play(scenario, weather(nodes, 1), vec![poison, innocent])?;
    Ok(ended.try_into().expect("two jobs"))
}

fn play(scenario: Scenario, weather: Weather, jobs: Vec<Job>) -> Result<Vec<Ended>, Violation> {
    in_virtual_time(jobs, weather, scenario, async |world| {
        let jobs: Vec<_> = world.witness.jobs().cloned().collect();
        let results = world.play_once(&jobs).await?;
        let lives = world.lives.load(std::sync::atomic::Ordering::SeqCst);
        let mut ended = Vec::new();
        for (job, result) in jobs.iter().zip(results) {
            let result = result.expect("every job ends");
            if job.job.broken_nodes.is_none() {
                rules::check(job, &result)?;
            }
            ended.push(Ended { result, attempts: job.attempts(), lives });
        }
        Ok(ended)
    })
}
