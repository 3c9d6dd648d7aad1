//! Every rule holds in each world, and the checker finds each planted bug.

use std::collections::BTreeMap;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};

use crate::Action;
use crate::state::{Bug, Faults, Script, State, World};

/// Explores a world until a rule is broken. Returns the broken rules, each with the steps that lead there.
fn explore(name: &str, world: World) -> BTreeMap<&'static str, Path<State, Action>> {
    let began = Instant::now();
    let checker =
        world.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let broken: BTreeMap<_, _> = checker.discoveries().into_iter().collect();
    let (states, time) = (checker.unique_state_count(), began.elapsed());
    println!(
        "{name}: {states} states in {:.1} s, depth {}",
        time.as_secs_f64(),
        checker.max_depth()
    );
    broken
}

fn every_rule_holds(name: &str, world: World) {
    if let Some((rule, path)) = explore(name, world).pop_first() {
        let last = path.last_state().clone();
        panic!("{name}: {rule}\n{:#?}\n{last:#?}", path.into_actions());
    }
}

/// One mini-batch, each try of which may succeed or fail, one worker, one reducer; nothing goes wrong.
fn calm() -> World {
    World {
        scripts: vec![Script::Flaky],
        workers: 1,
        capacity: 1,
        reducers: 1,
        batch: 1,
        bundles: false,
        faults: Faults::default(),
        old_receipt_deletes: true,
        retry_waits: true,
        bug: None,
    }
}

fn with(faults: Faults) -> World {
    World { faults, ..calm() }
}

fn crashes() -> World {
    World { workers: 2, ..with(Faults { worker_crashes: 1, ..Faults::default() }) }
}

fn lapses() -> World {
    World { workers: 2, ..with(Faults { task_lapses: 1, ..Faults::default() }) }
}

fn publishers() -> World {
    with(Faults { publisher_crashes: 1, ..Faults::default() })
}

fn drains() -> World {
    let scripts = vec![Script::Succeeds, Script::Raises];
    World { scripts, capacity: 2, ..with(Faults { drains: 1, ..Faults::default() }) }
}

/// Two mini-batches in one message.
fn bundles() -> World {
    let scripts = vec![Script::Succeeds, Script::Succeeds];
    let faults = Faults { worker_crashes: 1, ..Faults::default() };
    World { scripts, capacity: 2, bundles: true, ..with(faults) }
}

fn two_reducers() -> World {
    let faults = Faults { result_lapses: 1, reducer_crashes: 1, ..Faults::default() };
    World { reducers: 2, ..with(faults) }
}

#[test]
fn crashed_nodes() {
    every_rule_holds("crashed nodes", crashes());
}

#[test]
fn lapsed_leases() {
    every_rule_holds("lapsed leases", lapses());
}

#[test]
fn drained_nodes() {
    every_rule_holds("drained nodes", drains());
}

#[test]
fn crashed_publishers() {
    every_rule_holds("crashed publishers", World { reducers: 2, ..publishers() });
}

#[test]
fn bundled_mini_batches() {
    every_rule_holds("bundled mini-batches", bundles());
}

#[test]
fn several_reducers() {
    every_rule_holds("several reducers", two_reducers());
}

#[test]
fn two_mini_batches() {
    let scripts = vec![Script::Succeeds, Script::Raises];
    every_rule_holds("two mini-batches", World { scripts, reducers: 2, ..calm() });
}

#[test]
fn lost_answers() {
    every_rule_holds("lost answers", with(Faults { unanswered: 1, ..Faults::default() }));
}

/// A job that fails, and fails again, with two reducers.
fn retries() -> World {
    World {
        scripts: vec![Script::Raises],
        reducers: 2,
        ..with(Faults { retries: 1, ..Faults::default() })
    }
}

#[test]
fn retried_jobs() {
    every_rule_holds("retried jobs", with(Faults { retries: 1, ..Faults::default() }));
}

#[test]
fn retried_jobs_of_two_reducers() {
    every_rule_holds("retried jobs of two reducers", retries());
}

fn finds(bug: Bug, world: World, rules: &[&str]) {
    let broken = explore(&format!("{bug:?}"), World { bug: Some(bug), ..world });
    let names: Vec<_> = broken.keys().copied().collect();
    assert!(!names.is_empty(), "{bug:?} was not found");
    assert!(names.iter().all(|rule| rules.contains(rule)), "{bug:?} broke other rules: {names:?}");
}

/// Each planted bug breaks one of these rules in this world.
macro_rules! bugs {
    ($($bug:ident in $world:expr => $($rule:literal),+;)*) => {
        #[allow(non_snake_case, reason = "tests are named after bugs")]
        mod finds {
            use super::*;
            $(#[test]
            fn $bug() {
                finds(Bug::$bug, $world, &[$($rule),+]);
            })*
        }
    };
}

bugs! {
    AcknowledgesBeforeAnnouncing in crashes() => "announce, then acknowledge", "every job ends";
    AcknowledgesBeforePublishing in crashes() => "publish the next try, then acknowledge", "every job ends";
    IgnoresLostLeases in lapses() => "nothing is announced after a lost lease";
    ForgetsTries in calm() => "every try counts", "every job ends";
    ForgetsLostDeliveries in with(Faults { worker_crashes: 2, ..Faults::default() }) => "lost deliveries have a limit";
    KeepsWhatItShouldGiveBack in drains() => "every job ends";
    NodeDropsOpenJobs in calm() => "every job ends";
    PublishesBeforePlanning in calm() => "published mini-batches are in the plan";
    ForgetsToPublishAgain in publishers() => "every job ends";
    AcknowledgesBeforeCommitting in calm() => "commit, then acknowledge", "every job ends";
    CommitsUnconditionally in two_reducers() => "a segment is committed once";
    CommitsTwice in two_reducers() => "an attempt is committed at most once";
    FailureBeatsSuccess in lapses() => "commit, then acknowledge", "every job ends";
    EndsAlone in calm() => "every mini-batch counts once";
    EndsBundlesEarly in bundles() => "every job ends";
    BelievesThatItKnowsAll in retries() => "every job ends", "commit, then acknowledge";
    EndsReopenedJobs in retries() => "every job ends", "every mini-batch counts once";
    WritesInPlace in calm() => "the final file appears whole", "every row once, in order";
}
