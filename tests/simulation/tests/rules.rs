//! Every rule holds in thousands of seeds, and the rules find every planted bug.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use simulation::{Bug, Played, Scenario, Violation, run, run_small};
use tokio::time::Instant;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Seeds of each run; `GRISTMILL_SEEDS` asks for more.
const SEEDS: u64 = 400;
/// One seed in this many is played twice.
const PLAYED_TWICE: u64 = 8;
/// Numbers of large jobs beside a small one.
const LARGE_JOBS: [u64; 6] = [1, 2, 5, 9, 20, 50];
/// Seeds of each.
const SEEDS_OF_SMALL: u64 = 5;
/// A bug must show within this many seeds.
const SEEDS_FOR_A_BUG: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Plays seeds on all cores until a rule breaks; of several broken seeds it returns the lowest, on any number of cores.
/// Panics if a seed plays in two ways.
fn play(seeds: u64, bug: Option<Bug>) -> (Vec<Played>, Option<(u64, Violation)>) {
    let (next, played) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let broken = Mutex::new(None::<(u64, Violation)>);
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
                        Ok(one) => {
                            if bug.is_none() && seed.is_multiple_of(PLAYED_TWICE) {
                                let again = run(Scenario { seed, bug }).expect("no rule broke");
                                assert_eq!(format!("{one:?}"), format!("{again:?}"), "seed {seed}");
                            }
                            played.lock().expect("no holder panics").push(one);
                        }
                        Err(violation) => {
                            next.store(seeds, Ordering::SeqCst);
                            let mut broken = broken.lock().expect("no holder panics");
                            if broken.as_ref().is_none_or(|(lowest, _)| seed < *lowest) {
                                *broken = Some((seed, violation));
                            }
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
        "{} seeds, {} jobs, {} runs of user code, {} lives of roles, {} jobs retried, {} in another round, {} hours",
        played.len(),
        sum(|played| played.jobs),
        sum(|played| played.attempts),
        sum(|played| played.lives),
        sum(|played| played.retried),
        sum(|played| played.mended),
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
    tracing_subscriber::fmt()
        .with_timer(timer)
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO)
        .init();
    println!(
        "{:?}",
        run(Scenario { seed, bug: None })
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation}"))
    );
}

/// A small job does not wait for large ones that have every node.
#[test]
fn small_job_begins_and_ends_beside_large_ones() {
    for large in LARGE_JOBS {
        for seed in 0..number("GRISTMILL_SEEDS").unwrap_or(SEEDS_OF_SMALL) {
            let waited = run_small(Scenario { seed, bug: None }, large);
            let waited = waited
                .unwrap_or_else(|violation| panic!("{large} large jobs, seed {seed}: {violation}"));
            println!("{large} large jobs, seed {seed}: {waited:?}");
        }
    }
}

#[test]
fn finds_small_jobs_that_wait() {
    // A look may come just in time.
    let mut played = (0..SEEDS_OF_SMALL)
        .map(|seed| run_small(Scenario { seed, bug: Some(Bug::LooksSeldom) }, 5));
    let broken = played.find_map(Result::err).expect("the small job waits");
    assert_eq!(broken.rule, "a small job begins within seconds beside large ones", "{broken}");
}

fn found(bug: Bug, rules: &[&str]) {
    let (_, broken) = play(SEEDS_FOR_A_BUG, Some(bug));
    let (seed, violation) =
        broken.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS_FOR_A_BUG} seeds"));
    assert!(
        rules.contains(&violation.rule),
        "{bug:?} with seed {seed} broke another rule: {violation}"
    );
}

/// Each planted bug breaks one of these rules.
macro_rules! bugs {
    ($($bug:ident: $($rule:literal),+;)*) => {
        #[allow(non_snake_case, reason = "tests are named after bugs")]
        mod finds {
            use super::*;
            $(#[test]
            fn $bug() {
                found(Bug::$bug, &[$($rule),+]);
            })*
        }
    };
}

bugs! {
    AcknowledgesBeforeAnnouncing:
        "announce, then acknowledge", "publish the next try, then acknowledge", "publish again, then acknowledge";
    AnnouncesBeforeWriting: "write, then announce";
    IgnoresLostLeases: "nothing is announced after a lost lease";
    LeasesForLong: "mini-batches of a dead node are redelivered within ten seconds";
    EndsBundlesEarly:
        "while queue and store keep their promises, a job is completed", "every mini-batch counts once", "every job ends";
    ForgetsTries: "every try counts", "publish the next try, then acknowledge";
    ForgetsLostDeliveries:
        "lost deliveries have a limit", "while queue and store keep their promises, a job is completed";
    AcknowledgesBeforeCommitting: "commit, then acknowledge";
    CommitsUnconditionally: "a segment is committed once";
    CountsDuplicates:
        "every mini-batch counts once", "commit, then acknowledge", "nothing is left of an ended job";
    FailureBeatsSuccess: "commit, then acknowledge";
    WritesInPlace: "the final file appears whole";
    SwallowsCauses: "every end has a named cause";
    WaitsForEver: "every job ends";
    KeepsWhatItShouldGiveBack:
        "a node that leaves returns what it holds", "while queue and store keep their promises, a job is completed";
    RunsWhatIsRecalled:
        "a delivery is run once", "a later attempt looks for checkpoints", "nothing waits behind a slow run";
    RunsMoreThanTheRange: "every row once, in order", "the final file appears whole", "every item has a result or is rejected";
    CountsFromTheMiniBatch: "every item has a result or is rejected";
    JoinsPieces: "every row once, in order", "the final file appears whole";
    RunsTheFirstItems: "every row once, in order", "the final file appears whole";
    IgnoresCheckpoints: "a later attempt looks for checkpoints";
    ForgetsRejectedItems: "every item has a result or is rejected", "no role panics";
    IgnoresSpotNotices: "a stopping node starts no mini-batch";
    NeverRecalls: "nothing waits behind a slow run";
    IgnoresRunLimits: "a process makes no more runs than it may";
    IgnoresMemory: "a process above its memory gets no mini-batch";
    IgnoresAllocations:
        "an agent keeps to its allocation", "no GPU is in processes of two jobs of a node at a time";
    GrowsBeforeItShrinks: "no GPU is in processes of two jobs of a node at a time";
    BelievesAStaleSchedule:
        "every job ends", "a job runs on no more nodes than its node_count",
        "no more of an owner is in flight than its quota";
    IgnoresPriorities: "jobs with work divide a node by weight";
    IgnoresMaxShare: "a job has no more of a node than its max_share";
    IgnoresRequires: "a job runs only on nodes that it fits";
    IgnoresNodeCount: "a job has no more nodes than its node_count";
    IgnoresInFlight: "no more of an owner is in flight than its quota";
    IgnoresQuotas: "no more jobs run than quotas allow";
    GivesGpusTwice: "a schedule gives each GPU to one job";
    SchedulesUnconditionally: "a schedule is committed once";
    DeletesQueuesEarly: "queues last as long as their job";
    LeaksQueues: "nothing is left of an ended job";
    HidesGpuTroubles:
        "a GPU that keeps failing is taken out of use", "a mini-batch that failed on a GPU is tried elsewhere next",
        "every item has a result or is rejected";
    BlamesNobodyForDeaths: "a delivery is run once";
    ForgetsSlowPreparations:
        "while queue and store keep their promises, a job is completed", "every mini-batch counts once",
        "a node that leaves returns what it holds";
    CountsCopies: "a speculative run spends no try";
    DropsTheSlowerTooEarly: "commit, then drop the slower start";
    CopiesTwice: "a slow mini-batch is started once more";
    ServiceDropsOpenJobs:
        "commit, then acknowledge", "while queue and store keep their promises, a job is completed", "every job ends";
    TellsNoReason: "every job ends";
    StaysIdle: "an idle node ends";
}
