//! No node may eat a job, and no job may fail another.

use protocol::{JobResult, JobState};
use simulation::{Broken, Scenario, run_broken, run_poison};

/// Seeds of each; `GRISTMILL_SEEDS` asks for more.
const SEEDS: u64 = 20;

fn seeds() -> u64 {
    std::env::var("GRISTMILL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// Plays all seeds, and returns the results.
fn play(nodes: u64, broken: u64, probability: f64) -> Vec<JobResult> {
    let play = |seed| {
        let ended = run_broken(Scenario { seed, bug: None }, Broken { nodes, broken, probability });
        let ended = ended.unwrap_or_else(|violation| {
            panic!("{broken} of {nodes} nodes, seed {seed}: {violation}")
        });
        let counts = ended.result.mini_batches;
        println!(
            "{broken} of {nodes} nodes, seed {seed}: {counts:?}, {} attempts, {:?}",
            ended.attempts, ended.result.notes
        );
        ended.result
    };
    (0..seeds()).map(play).collect()
}

/// Returns how many nodes the result names as excluded.
fn excluded(result: &JobResult) -> usize {
    result.notes.iter().filter(|note| note.contains("is excluded from the job")).count()
}

#[test]
fn node_on_which_every_run_fails_loses_no_mini_batch_and_is_named() {
    for (nodes, broken) in [(2, 1), (3, 1)] {
        for result in play(nodes, broken, 1.0) {
            assert_eq!(
                (result.state, result.mini_batches.failed),
                (JobState::Completed, 0),
                "{result:?}"
            );
            assert_eq!(excluded(&result), broken as usize, "{:?}", result.notes);
        }
    }
}

/// Where most nodes fail, both may try a mini-batch before they know of the healthy one.
#[test]
fn most_nodes_on_which_every_run_fails_lose_few_mini_batches_and_are_named() {
    for result in play(3, 2, 1.0) {
        assert_eq!(result.state, JobState::Completed, "{result:?}");
        assert!(20 * result.mini_batches.failed <= result.mini_batches.total, "{result:?}");
        assert_eq!(excluded(&result), 2, "{:?}", result.notes);
    }
}

/// All tries of a mini-batch may run on that node, and fail, while the other one is busy.
#[test]
fn node_on_which_every_tenth_run_fails_loses_hardly_any_mini_batch_and_goes_on() {
    let results = play(2, 1, 0.1);
    for result in &results {
        assert_eq!(result.state, JobState::Completed, "{result:?}");
        assert_eq!(excluded(result), 0, "{:?}", result.notes);
    }
    let lost: u64 = results.iter().map(|result| result.mini_batches.failed).sum();
    let all: u64 = results.iter().map(|result| result.mini_batches.total).sum();
    assert!(1000 * lost <= all, "{lost} of {all}");
}

#[test]
fn fleet_on_which_every_run_fails_excludes_no_node() {
    for nodes in [1, 2, 3] {
        for result in play(nodes, nodes, 1.0) {
            assert_eq!(result.mini_batches.failed, result.mini_batches.total, "{result:?}");
            assert_eq!(excluded(&result), 0, "{:?}", result.notes);
        }
    }
}

#[test]
fn job_that_kills_nodes_does_not_fail_another() {
    for nodes in [1, 2] {
        for seed in 0..seeds() {
            let ended = run_poison(Scenario { seed, bug: None }, nodes);
            let [poison, innocent] =
                ended.unwrap_or_else(|violation| panic!("{nodes} nodes, seed {seed}: {violation}"));
            println!(
                "{nodes} nodes, seed {seed}: {} lives, {:?}",
                poison.lives, innocent.result.mini_batches
            );
            assert_eq!(
                innocent.result.mini_batches.failed, 0,
                "{nodes} nodes, seed {seed}: {innocent:?}"
            );
            assert_eq!(
                poison.result.mini_batches.failed, 1,
                "{nodes} nodes, seed {seed}: {poison:?}"
            );
        }
    }
}
