//! Every rule holds in thousands of seeds, and the rules find every planted bug.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use simulation::{Bug, Played, Scenario, Violation, run};
use tokio::time::Instant;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Seeds of each run; `GRISTMILL_SEEDS` asks for more.
const SEEDS: u64 = 600;
/// A bug must show within this many seeds.
const SEEDS_FOR_A_BUG: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Plays seeds on all cores until a rule breaks.
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
                        Ok(one) => played.lock().expect("no holder panics").push(one),
                        Err(violation) => {
                            next.store(seeds, Ordering::SeqCst);
                            broken.lock().expect("no holder panics").get_or_insert((seed, violation));
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
        "{} seeds, {} jobs, {} runs of user code, {} lives of roles, {} jobs retried, {} hours",
        played.len(),
        sum(|played| played.jobs),
        sum(|played| played.attempts),
        sum(|played| played.lives),
        sum(|played| played.retried),
        sum(|played| played.time.as_secs()) / 3600
    );
}

/// Virtual time, for log lines.
struct VirtualTime(Instant);

impl FormatTime for VirtualTime {
    fn format_time(&self, line: &mut Writer<'_>) -> std::fmt::Result {
        write!(line, "{:8.3}", self.0.elapsed().as_secs_f64())
    }
}

/// Plays the seed in `GRISTMILL_SEED` alone, with the log lines of all roles.
#[test]
fn one_seed() {
    let Some(seed) = number("GRISTMILL_SEED") else { return };
    let timer = VirtualTime(Instant::now());
    tracing_subscriber::fmt().with_timer(timer).with_ansi(false).with_max_level(tracing::Level::INFO).init();
    println!("{:?}", run(Scenario { seed, bug: None }).unwrap_or_else(|violation| panic!("seed {seed}: {violation}")));
}

#[test]
fn equal_seeds_play_equally() {
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
    acknowledgement_before_announcement_is_found: AcknowledgesBeforeAnnouncing =>
        "announce, then acknowledge", "publish the next try, then acknowledge", "publish again, then acknowledge";
    announcement_before_write_is_found: AnnouncesBeforeWriting => "write, then announce";
    ignored_lost_lease_is_found: IgnoresLostLeases => "nothing is announced after a lost lease";
    forgotten_try_is_found: ForgetsTries => "every try counts";
    forgotten_lost_delivery_is_found: ForgetsLostDeliveries => "lost deliveries have a limit";
    acknowledgement_before_commit_is_found: AcknowledgesBeforeCommitting => "commit, then acknowledge";
    overwritten_segment_is_found: CommitsUnconditionally => "a segment is committed once";
    counted_duplicate_is_found: CountsDuplicates => "every mini-batch counts once", "commit, then acknowledge";
    failure_that_beats_success_is_found: FailureBeatsSuccess => "commit, then acknowledge";
    final_file_written_in_place_is_found: WritesInPlace => "the final file appears whole";
    publication_before_plan_is_found: PublishesBeforePlanning => "published mini-batches are in the plan";
    swallowed_cause_is_found: SwallowsCauses => "every end has a named cause";
    endless_wait_is_found: WaitsForEver => "every job ends";
    drain_that_keeps_mini_batches_is_found: KeepsWhatItShouldGiveBack => "a node that leaves returns what it holds";
    recalled_mini_batch_that_runs_is_found: RunsWhatIsRecalled => "a delivery is run once";
    ignored_spot_notice_is_found: IgnoresSpotNotices => "a node that is told to stop begins nothing";
    slow_run_that_holds_up_others_is_found: NeverRecalls => "nothing waits behind a slow run";
    death_without_blame_is_found: BlamesNobodyForDeaths => "a delivery is run once";
    forgotten_slow_preparation_is_found: ForgetsSlowPreparations =>
        "while queue and store keep their promises, a job is completed", "every mini-batch counts once",
        "a node that leaves returns what it holds";
    service_that_drops_an_open_job_is_found: ServiceDropsOpenJobs => "commit, then acknowledge";
    node_that_drops_an_open_job_is_found: NodeDropsOpenJobs => "publish again, then acknowledge";
    node_that_keeps_jobs_it_may_not_serve_is_found: KeepsWhatItTurnsAway =>
        "while queue and store keep their promises, a job is completed", "every mini-batch counts once", "every job ends";
    node_that_stays_on_an_ended_job_is_found: StaysOnEndedJobs => "nothing is left of an ended job";
    seat_taken_from_another_node_is_found: TakesSeatsOfOthers => "one node takes a seat";
    seat_without_renewal_is_found: NeverRenewsSeats => "a node works under its seat";
}
