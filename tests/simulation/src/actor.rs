//! A role that can die or freeze at any call it makes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, advance, sleep, sleep_until};

use crate::weather::{Dice, Weather};

/// Why a node should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopRequest {
    /// Somebody drains it.
    Drain,
    /// Its machine will be taken away.
    SpotNotice,
}

/// One life of a role. Clones are the same life.
#[derive(Clone, Debug)]
pub(crate) struct Actor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    dice: Dice,
    weather: Weather,
    calm_from: Instant,
    dead: watch::Sender<bool>,
    /// What a node was told first, and when.
    told: watch::Sender<Option<(StopRequest, Instant)>>,
    frozen_until: watch::Sender<Option<Instant>>,
}

impl Actor {
    pub fn new(name: String, seed: u64, weather: Weather, calm_from: Instant) -> Self {
        let dice = Dice::new(seed, &name);
        let shared = Shared {
            name,
            dice,
            weather,
            calm_from,
            dead: watch::Sender::new(false),
            told: watch::Sender::new(None),
            frozen_until: watch::Sender::new(None),
        };
        Self { shared: Arc::new(shared) }
    }

    pub fn name(&self) -> &str {
        &self.shared.name
    }

    pub fn dice(&self) -> &Dice {
        &self.shared.dice
    }

    pub fn weather(&self) -> &Weather {
        &self.shared.weather
    }

    /// Returns true with this probability, and never after the weather has ended.
    pub fn happens(&self, probability: impl Fn(&Weather) -> f64) -> bool {
        Instant::now() < self.shared.calm_from && self.dice().happens(probability(self.weather()))
    }

    /// Ends this life.
    pub fn kill(&self) {
        self.shared.dead.send_replace(true);
    }

    /// Tells a node to stop.
    pub fn tell(&self, told: StopRequest) {
        self.shared.told.send_modify(|before| {
            before.get_or_insert((told, Instant::now()));
        });
    }

    /// Waits until the stop of the node is requested.
    pub async fn told(&self) -> StopRequest {
        let mut told = self.shared.told.subscribe();
        let told = told.wait_for(Option::is_some).await.ok().and_then(|told| *told);
        told.expect("the sender lives as long as this actor").0
    }

    /// Whether the stop was requested long enough ago for the node to know. A frozen node learns nothing.
    pub fn is_told_to_stop(&self) -> bool {
        let hears_at = |told: Instant| self.thawed_at().map_or(told, |thawed| told.max(thawed));
        self.shared
            .told
            .borrow()
            .is_some_and(|(_, at)| hears_at(at).elapsed() > Duration::from_secs(1))
    }

    /// Waits for its death.
    pub async fn dead(&self) {
        let _ = self.shared.dead.subscribe().wait_for(|dead| *dead).await;
    }

    pub fn freeze(&self, time: Duration) {
        // A call that began before may freeze it again.
        let until = Some(Instant::now() + time);
        self.shared.frozen_until.send_modify(|frozen| *frozen = until.max(*frozen));
    }

    /// Returns the end of the last freeze.
    pub fn thawed_at(&self) -> Option<Instant> {
        *self.shared.frozen_until.borrow()
    }

    /// Waits while the role is frozen; for ever if it is dead.
    pub async fn alive(&self) {
        loop {
            if *self.shared.dead.borrow() {
                std::future::pending::<()>().await;
            }
            let until = *self.shared.frozen_until.borrow();
            match until {
                Some(until) if until > Instant::now() => sleep_until(until).await,
                _ => return,
            }
        }
    }

    /// Makes a call, which may take long, fail without effect, or take effect and lose its answer.
    pub async fn call<T, E>(
        &self,
        failed: impl Fn() -> E,
        work: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.alive().await;
        // A call takes some time even in good weather, so that other calls come in between.
        self.wait_for_answer().await;
        self.delay().await;
        let fails = self.happens(|weather| weather.fail);
        if fails && self.dice().happens(0.5) {
            return Err(failed());
        }
        let done = work().await;
        self.delay().await;
        if fails { Err(failed()) } else { done }
    }

    /// Waits for the answer to a request.
    pub async fn wait_for_answer(&self) {
        self.wait(1 + self.dice().below(20)).await;
    }

    /// Waits for this long.
    pub async fn wait(&self, milliseconds: u64) {
        if !self.weather().drives_time {
            return sleep(Duration::from_millis(milliseconds)).await;
        }
        for _ in 0..milliseconds {
            advance(Duration::from_millis(1)).await;
        }
    }

    async fn delay(&self) {
        if self.happens(|weather| weather.delay / 2.0) {
            sleep(self.dice().time(self.weather().delay_max)).await;
        }
        self.alive().await;
    }
}
