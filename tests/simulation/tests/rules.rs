//! Thousands of seeds keep every rule, and every planted bug is found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use simulation::{Bug, Played, Scenario, Violation, run};

/// Played each time; `GRISTMILL_SEEDS` asks for more.
const SEEDS: u64 = 10_000;
/// A bug must show within so many seeds.
const SEEDS_FOR_A_BUG: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Plays seeds on all cores until one of them breaks a rule.
fn play(seeds: u64, bug: Option<Bug>) -> (Vec<Played>, Option<(u64, Violation)>) {
    let (next, played, broken) = (AtomicU64::new(0), Mutex::new(Vec::new()), Mutex::new(None));
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds {
                        return;
                    }
                    match run(Scenario { seed, bug }) {
                        Ok(one) => played.lock().expect("nobody panics holding it").push(one),
                        Err(violation) => {
                            next.store(seeds, Ordering::SeqCst);
                            broken.lock().expect("nobody panics holding it").get_or_insert((seed, violation));
                        }
                    }
                }
            });
        }
    });
    (played.into_inner().expect("all ended"), broken.into_inner().expect("all ended"))
}

#[test]
fn every_rule_holds_in_any_weather() {
    let (played, broken) = play(number("GRISTMILL_SEEDS").unwrap_or(SEEDS), None);
    if let Some((seed, violation)) = broken {
        panic!(
            "seed {seed}: {violation}\nagain: GRISTMILL_SEED={seed} cargo nextest run -p simulation one_seed --no-capture"
        );
    }
    let sum = |of: fn(&Played) -> u64| played.iter().map(of).sum::<u64>();
    println!(
        "{} seeds, {} runs of user code, {} lives of processes, {} jobs retried, {} hours",
        played.len(),
        sum(|played| played.attempts),
        sum(|played| played.lives),
        sum(|played| u64::from(played.retried)),
        sum(|played| played.time.as_secs()) / 3600
    );
}

/// Plays the seed in `GRISTMILL_SEED` alone.
#[test]
fn one_seed() {
    let seed = number("GRISTMILL_SEED").unwrap_or(0);
    println!("{:?}", run(Scenario { seed, bug: None }).unwrap_or_else(|violation| panic!("seed {seed}: {violation}")));
}

/// The same seed is the same story.
#[test]
fn a_seed_says_it_all() {
    for seed in 0..50 {
        let once = run(Scenario { seed, bug: None }).map(|played| format!("{played:?}"));
        let again = run(Scenario { seed, bug: None }).map(|played| format!("{played:?}"));
        assert_eq!(once, again, "seed {seed}");
    }
}

fn found(bug: Bug, rules: &[&str]) {
    let (_, broken) = play(SEEDS_FOR_A_BUG, Some(bug));
    let (seed, violation) = broken.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS_FOR_A_BUG} seeds"));
    assert!(rules.contains(&violation.rule), "{bug:?} with seed {seed} broke another rule: {violation}");
}

macro_rules! bugs {
    ($($name:ident: $bug:ident => $($rule:literal),+;)*) => {
        $(#[test]
        fn $name() {
            found(Bug::$bug, &[$($rule),+]);
        })*
    };
}

bugs! {
    who_acknowledges_before_announcing_is_found: AcknowledgesBeforeAnnouncing =>
        "announce, then acknowledge", "publish the next try, then acknowledge";
    who_announces_before_writing_is_found: AnnouncesBeforeWriting => "write, then announce";
    who_ignores_lost_leases_is_found: IgnoresLostLeases => "nothing is announced after a lost lease";
    who_forgets_tries_is_found: ForgetsTries => "every try counts";
    who_forgets_lost_deliveries_is_found: ForgetsLostDeliveries => "lost deliveries have a limit";
    who_acknowledges_before_committing_is_found: AcknowledgesBeforeCommitting => "commit, then acknowledge";
    who_commits_unconditionally_is_found: CommitsUnconditionally => "a segment is committed once";
    who_counts_duplicates_is_found: CountsDuplicates => "every mini-batch counts once", "commit, then acknowledge";
    who_lets_failure_beat_success_is_found: FailureBeatsSuccess => "commit, then acknowledge";
    who_writes_in_place_is_found: WritesInPlace => "the final file appears whole";
    who_publishes_before_planning_is_found: PublishesBeforePlanning => "what is published stands in the plan";
    who_swallows_causes_is_found: SwallowsCauses => "every end has a named cause";
    who_waits_for_ever_is_found: WaitsForEver => "every job ends";
}
