//! A process that can die or stand still at any call it makes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::weather::{Dice, Weather};

/// One life of a process. Clones are the same life.
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
    frozen_until: watch::Sender<Option<Instant>>,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Works,
    /// It fails, and nothing has happened.
    Fails,
    /// It fails, although it has happened.
    AnswerLost,
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

    fn is_stormy(&self) -> bool {
        Instant::now() < self.shared.calm_from
    }

    /// With that probability, while the weather lasts.
    pub fn happens(&self, probability: impl Fn(&Weather) -> f64) -> bool {
        self.is_stormy() && self.dice().happens(probability(self.weather()))
    }

    /// Nothing is heard of it any more.
    pub fn kill(&self) {
        self.shared.dead.send_replace(true);
    }

    /// Waits for its death.
    pub async fn dead(&self) {
        let _ = self.shared.dead.subscribe().wait_for(|dead| *dead).await;
    }

    fn is_dead(&self) -> bool {
        *self.shared.dead.borrow()
    }

    pub fn freeze(&self, time: Duration) {
        self.shared.frozen_until.send_replace(Some(Instant::now() + time));
    }

    /// Waits while it stands still; for ever if it is dead.
    pub async fn alive(&self) {
        loop {
            if self.is_dead() {
                std::future::pending::<()>().await;
            }
            let until = *self.shared.frozen_until.borrow();
            match until {
                Some(until) if until > Instant::now() => sleep_until(until).await,
                _ => return,
            }
        }
    }

    /// Before a call: waits as long as it takes to arrive, and says what becomes of it.
    pub async fn call(&self) -> Fate {
        self.alive().await;
        // A call takes some time even in good weather, so that others come in between.
        sleep(Duration::from_millis(1 + self.dice().below(20))).await;
        if self.happens(|weather| weather.delay / 2.0) {
            sleep(self.dice().time(self.weather().delay_max)).await;
        }
        self.alive().await;
        if self.happens(|weather| weather.fail) {
            return if self.dice().happens(0.5) { Fate::Fails } else { Fate::AnswerLost };
        }
        Fate::Works
    }

    /// After a call: waits for the answer.
    pub async fn answer(&self) {
        if self.happens(|weather| weather.delay / 2.0) {
            sleep(self.dice().time(self.weather().delay_max)).await;
        }
        self.alive().await;
    }
}
