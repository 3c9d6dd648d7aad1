//! How bad it gets, drawn from the seed: what fails how often, and for how long.

use std::sync::Mutex;
use std::time::Duration;

use protocol::{OwnerQuota, Quotas};

/// Mistakes that a role could make, planted between the role and the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "most are named after what they do")]
pub enum Bug {
    // Of a node:
    AcknowledgesBeforeAnnouncing,
    /// Announces rows before they are written.
    AnnouncesBeforeWriting,
    IgnoresLostLeases,
    /// Leases mini-batches for so long that other nodes wait for those of a dead one.
    LeasesForLong,
    /// Acknowledges what travelled with a mini-batch together with it.
    EndsBundlesEarly,
    /// Publishes the next try with no try spent.
    ForgetsTries,
    ForgetsLostDeliveries,
    /// Keeps mini-batches that it has not begun when it drains.
    KeepsWhatItShouldGiveBack,
    IgnoresSpotNotices,
    /// Recalls nothing from behind a slow run.
    NeverRecalls,
    /// Takes a process that died in a run for an idle one.
    BlamesNobodyForDeaths,
    /// Takes no notice of `process_max_runs`.
    IgnoresRunLimits,
    /// Does not measure the memory of processes.
    IgnoresMemory,
    /// Keeps all processes of a job while other jobs have work.
    IgnoresAllocations,
    /// Gives GPUs to another job before the processes of the last one have left them.
    GrowsBeforeItShrinks,
    /// Follows the first schedule that gives it a job, and reads no later one.
    BelievesAStaleSchedule,
    /// Drops what a failure tells about its GPU.
    HidesGpuTroubles,
    /// Does not announce a mini-batch whose preparation took too long.
    ForgetsSlowPreparations,
    /// Leaves an item out of those that it has rejected.
    ForgetsRejectedItems,
    /// Announces the failure of a speculative run as that of the first.
    CountsCopies,
    /// Drops the slower start of a mini-batch before a success is committed.
    DropsTheSlowerTooEarly,
    /// Does not tell a job why it cannot work on it.
    TellsNoReason,
    /// Does not end without work.
    StaysIdle,
    // Of a process:
    RunsWhatIsRecalled,
    /// Runs items before its range as well.
    RunsMoreThanTheRange,
    /// Names failed items by their positions in the whole mini-batch.
    CountsFromTheMiniBatch,
    /// Says that the rows before and after a failed item are one piece.
    JoinsPieces,
    /// Runs the first items of a mini-batch instead of those that an earlier round has rejected.
    RunsTheFirstItems,
    /// Does not look for what earlier attempts have handed back.
    IgnoresCheckpoints,
    // Of a reducer:
    AcknowledgesBeforeCommitting,
    /// Overwrites segments.
    CommitsUnconditionally,
    /// Counts a repeated result for another mini-batch.
    CountsDuplicates,
    /// Drops a success that comes after a failure.
    FailureBeatsSuccess,
    /// Writes the final file in place.
    WritesInPlace,
    /// Writes a result without its cause.
    SwallowsCauses,
    /// Never fails a job without progress, and says of every node that it holds one mini-batch more than it does.
    WaitsForEver,
    /// Starts a mini-batch a second time, and then a third.
    CopiesTwice,
    /// Takes a store that does not answer for the absence of a job, and marks it as ended.
    ServiceDropsOpenJobs,
    /// Deletes the queues of a job that runs.
    DeletesQueuesEarly,
    /// Deletes no queues.
    LeaksQueues,
    // Of the planner in a reducer:
    /// Looks for open jobs once a minute.
    LooksSeldom,
    /// Overwrites the schedule that another one has committed.
    SchedulesUnconditionally,
    /// Gives the GPUs of one job to another one as well.
    GivesGpusTwice,
    /// Takes every job for one of normal priority.
    IgnoresPriorities,
    /// Takes every job for one that may have a whole node.
    IgnoresMaxShare,
    /// Takes every job for one that requires nothing of a node.
    IgnoresRequires,
    /// Takes every job for one that may have all nodes.
    IgnoresNodeCount,
    /// Admits any number of jobs.
    IgnoresQuotas,
    /// Gives an owner any number of processes.
    IgnoresInFlight,
}

/// What is played.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The seed of all chance.
    pub seed: u64,
    /// The planted mistake.
    pub bug: Option<Bug>,
}

/// Numbers that follow from a seed and a name.
#[derive(Debug)]
pub(crate) struct Dice(Mutex<fastrand::Rng>);

impl Dice {
    pub fn new(seed: u64, name: &str) -> Self {
        let mixed = name.bytes().fold(seed ^ 0x9e37_79b9_7f4a_7c15, |mixed, byte| {
            (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
        });
        Self(Mutex::new(fastrand::Rng::with_seed(mixed)))
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.0.lock().expect("no holder panics"))
    }

    /// Returns true with this probability.
    pub fn happens(&self, probability: f64) -> bool {
        probability > 0.0 && self.draw(fastrand::Rng::f64) < probability
    }

    pub fn below(&self, end: u64) -> u64 {
        self.draw(|rng| rng.u64(0..end.max(1)))
    }

    /// Returns a time; short ones are likelier than long ones.
    pub fn time(&self, max: Duration) -> Duration {
        max.mul_f64(self.draw(fastrand::Rng::f64).powi(3))
    }

    pub fn between(&self, min: Duration, max: Duration) -> Duration {
        min + (max - min).mul_f64(self.draw(fastrand::Rng::f64))
    }

    pub fn shuffle<T>(&self, items: &mut [T]) {
        self.draw(|rng| rng.shuffle(items));
    }
}

/// How often roles look around.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Between two looks of a node for what is due.
    pub tick: Duration,
    /// Between two looks of a reducer at a job.
    pub progress: Duration,
    /// After which nodes count as absent.
    pub silence: Duration,
}

impl Pace {
    /// The pace of the real roles.
    pub const PRODUCTION: Self = Self {
        tick: Duration::from_millis(250),
        progress: Duration::from_secs(4),
        silence: Duration::from_secs(6),
    };
}

impl Default for Pace {
    /// Slower than in production: looking around is most of the work of the simulation.
    fn default() -> Self {
        Self {
            tick: Duration::from_secs(4),
            progress: Duration::from_secs(30),
            silence: Duration::from_secs(300),
        }
    }
}

/// The weather of one seed. It ends: afterwards everything works, and every job must end. By default nothing goes wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weather {
    /// A call fails, with or without effect.
    pub fail: f64,
    /// A call takes up to `delay_max` longer.
    pub delay: f64,
    pub delay_max: Duration,
    /// A message is delivered twice.
    pub duplicate: f64,
    /// A message is overtaken by later ones.
    pub reorder: f64,
    /// A message vanishes, which no queue should allow.
    pub vanish: f64,
    /// Mean time between two crashes of one role; zero: none.
    pub crash_every: Duration,
    /// A role freezes instead of dying.
    pub freeze: f64,
    pub freeze_max: Duration,
    /// A node is drained instead of dying.
    pub drain: f64,
    /// A node is told that its machine will be taken away, before it is.
    pub spot: f64,
    /// From the notice to the end of the machine.
    pub spot_time: Duration,
    /// A Python process does not start, or dies between two mini-batches; provisioning fails, or memory is short.
    pub accident: f64,
    /// A reducer is asked to stop, and restarts.
    pub stop: f64,
    pub nodes: u64,
    pub reducers: u64,
    /// An old receipt deletes a message that was delivered again.
    pub old_receipt_deletes: bool,
    /// The task queues can delay messages.
    pub has_delays: bool,
    /// A node ends after this long without work.
    pub idle_exit: Option<Duration>,
    /// The longest time that provisioning takes.
    pub provision_max: Duration,
    /// Jobs that may have queues at a time; 0: any number.
    pub jobs_max: u32,
    /// Mini-batches that a publisher sends in one message; 0: as many as it decides.
    pub bundle_max: usize,
    /// The largest message of a queue.
    pub message_bytes_max: usize,
    /// A process that plans moves time on while it waits for an answer. Time stands still while its listing waits for room for
    /// another chunk of the plan, so a wait for time to pass would never end.
    pub drives_time: bool,
    /// Milliseconds that each request to the store takes longer.
    pub latency: u64,
    pub pace: Pace,
    /// How many jobs may run at a time.
    pub quotas: Quotas,
    /// Whether nodes have labels.
    pub has_labels: bool,
    /// How long the weather lasts.
    pub ends: Duration,
}

/// Returns the quotas of a seed; most have none.
pub(crate) fn quotas_of(seed: u64) -> Quotas {
    let dice = Dice::new(seed, "quotas");
    let limits = [(Some(1), None), (Some(2), Some(1)), (None, Some(1))];
    let (max_jobs, of_owner) =
        if dice.happens(0.25) { limits[dice.below(3) as usize] } else { (None, None) };
    let dice = Dice::new(seed, "in flight");
    let max_in_flight = dice.happens(0.15).then(|| 1 + dice.below(5) as u32);
    let each_owner = OwnerQuota { max_jobs: of_owner, max_in_flight };
    Quotas { max_jobs, each_owner, ..Quotas::default() }
}

impl Weather {
    pub fn of(seed: u64) -> Self {
        let dice = Dice::new(seed, "weather");
        let maybe = |probability: f64, value: f64| {
            if dice.happens(probability) { value * dice.draw(fastrand::Rng::f64) } else { 0.0 }
        };
        let seconds = Duration::from_secs;
        let quotas = quotas_of(seed);
        let jobs_max = [0, 0, 1, 2][Dice::new(seed, "queues").below(4) as usize];
        let weather = Self {
            fail: maybe(0.6, 0.3),
            delay: maybe(0.7, 0.5),
            delay_max: seconds([1, 5, 20, 60][dice.below(4) as usize]),
            duplicate: maybe(0.5, 0.5),
            reorder: maybe(0.5, 0.5),
            // A job that stands still would keep its turn for longer than others have patience.
            vanish: if dice.happens(0.1) && quotas == Quotas::default() { 0.05 } else { 0.0 },
            crash_every: if dice.happens(0.6) {
                seconds(5 + dice.below(60))
            } else {
                Duration::ZERO
            },
            freeze: maybe(0.5, 0.8),
            freeze_max: seconds(90),
            nodes: 1 + dice.below(3),
            reducers: 1 + dice.below(2),
            old_receipt_deletes: dice.happens(0.5),
            ends: seconds(20 + dice.below(180)),
            drain: maybe(0.5, 0.8),
            spot: maybe(0.4, 0.8),
            spot_time: seconds(20 + dice.below(110)),
            accident: maybe(0.5, 0.5),
            stop: maybe(0.4, 1.0),
            has_delays: dice.happens(0.7),
            provision_max: seconds([1, 10, 60][dice.below(3) as usize]),
            idle_exit: dice.happens(0.4).then(|| seconds(15 + dice.below(185))),
            jobs_max,
            bundle_max: if dice.happens(0.5) { 2 + dice.below(7) as usize } else { 1 },
            message_bytes_max: 32 * 1024,
            drives_time: false,
            latency: 0,
            pace: Pace::default(),
            quotas,
            has_labels: Dice::new(seed, "labels").happens(0.3),
        };
        // A job that stands still would keep its queues for longer than others have patience.
        let jobs_max = if weather.vanish > 0.0 { 0 } else { jobs_max };
        Self { jobs_max, ..weather }
    }

    /// Returns the limits of jobs at a time, those of the broker included.
    pub fn limits(&self) -> Quotas {
        let of_broker = (self.jobs_max > 0).then_some(self.jobs_max);
        let max_jobs = [self.quotas.max_jobs, of_broker].into_iter().flatten().min();
        Quotas { max_jobs, ..self.quotas.clone() }
    }

    /// Returns how old what a role knows may be.
    pub fn lag(&self) -> Duration {
        let delays = if self.delay > 0.0 { 6 * self.delay_max } else { Duration::ZERO };
        let freeze = if self.freeze > 0.0 { self.freeze_max } else { Duration::ZERO };
        delays + freeze + Duration::from_secs(10)
    }

    /// Whether the target has quotas.
    pub fn has_quotas(&self) -> bool {
        self.quotas != Quotas::default()
    }
}
