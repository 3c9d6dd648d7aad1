//! How bad it gets, drawn from the seed: what fails how often, and for how long.

use std::sync::Mutex;
use std::time::Duration;

/// Mistakes that a role could make, planted between it and the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A node acknowledges before it announces.
    AcknowledgesBeforeAnnouncing,
    /// A node announces rows before they are written.
    AnnouncesBeforeWriting,
    /// A node does not notice that a lease is lost.
    IgnoresLostLeases,
    /// A failed try is published again as if it had cost nothing.
    ForgetsTries,
    /// Deliveries that were lost are not counted.
    ForgetsLostDeliveries,
    /// A reducer acknowledges before it commits.
    AcknowledgesBeforeCommitting,
    /// Segments are written without the condition that they are absent.
    CommitsUnconditionally,
    /// A repeated result passes for that of another mini-batch.
    CountsDuplicates,
    /// A success that comes after a failure is dropped.
    FailureBeatsSuccess,
    /// The final file is written in place.
    WritesInPlace,
    /// Descriptors are published before they stand in the plan.
    PublishesBeforePlanning,
    /// The cause of a failure does not reach the result.
    SwallowsCauses,
    /// Nobody gives a job up that stands still.
    WaitsForEver,
}

/// What is played.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// All chance comes from it.
    pub seed: u64,
    /// A mistake, if one is planted.
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
        draw(&mut self.0.lock().expect("nobody panics holding it"))
    }

    /// With that probability.
    pub fn happens(&self, probability: f64) -> bool {
        probability > 0.0 && self.draw(fastrand::Rng::f64) < probability
    }

    pub fn below(&self, end: u64) -> u64 {
        self.draw(|rng| rng.u64(0..end.max(1)))
    }

    /// Short times are likelier than long ones.
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

/// The weather of one seed. It ends: afterwards everything works, and the job must too.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    /// A call fails, with or without its effect.
    pub fail: f64,
    /// A call takes up to `delay_max` longer.
    pub delay: f64,
    pub delay_max: Duration,
    /// A delivery happens twice.
    pub duplicate: f64,
    /// A message comes later than those behind it.
    pub reorder: f64,
    /// A message vanishes, which no queue should let happen.
    pub vanish: f64,
    /// Mean time between two crashes of one process; zero: none.
    pub crash_every: Duration,
    /// A process stands still instead of dying.
    pub freeze: f64,
    pub freeze_max: Duration,
    pub nodes: u64,
    pub reducers: u64,
    /// An old receipt deletes a message that was delivered again.
    pub old_receipt_deletes: bool,
    /// From here on it is calm.
    pub ends: Duration,
}

impl Weather {
    pub fn of(seed: u64) -> Self {
        let dice = Dice::new(seed, "weather");
        let maybe = |probability: f64, value: f64| {
            if dice.happens(probability) { value * dice.draw(fastrand::Rng::f64) } else { 0.0 }
        };
        let seconds = Duration::from_secs;
        Self {
            fail: maybe(0.6, 0.3),
            delay: maybe(0.7, 0.5),
            delay_max: seconds([1, 5, 20, 60][dice.below(4) as usize]),
            duplicate: maybe(0.5, 0.5),
            reorder: maybe(0.5, 0.5),
            vanish: if dice.happens(0.1) { 0.05 } else { 0.0 },
            crash_every: if dice.happens(0.6) { seconds(5 + dice.below(60)) } else { Duration::ZERO },
            freeze: maybe(0.5, 0.8),
            freeze_max: seconds(90),
            nodes: 1 + dice.below(3),
            reducers: 1 + dice.below(2),
            old_receipt_deletes: dice.happens(0.5),
            ends: seconds(20 + dice.below(180)),
        }
    }

    /// Nothing goes wrong.
    pub fn calm() -> Self {
        Self {
            fail: 0.0,
            delay: 0.0,
            delay_max: Duration::ZERO,
            duplicate: 0.0,
            reorder: 0.0,
            vanish: 0.0,
            crash_every: Duration::ZERO,
            freeze: 0.0,
            freeze_max: Duration::ZERO,
            nodes: 2,
            reducers: 1,
            old_receipt_deletes: false,
            ends: Duration::ZERO,
        }
    }
}
