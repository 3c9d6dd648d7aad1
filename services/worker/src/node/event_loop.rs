//! The loop of a node: waits for whatever comes first, and lets roster and executor handle it. The simulation runs it too,
//! with a [`Host`] of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use queue::{LeaseClock, Queue};
use storage::TargetStore;
use telemetry::{Health, metrics};
use tokio::sync::watch;

use super::Ended;
use super::driver::every;
use super::executor::{Executor, Host, Trouble};
use super::pause::Pauses;
use super::quotas::watch_parts;
use super::registration::Registration;
use super::roster::{Config, Event};
use crate::agent::Timing;
use crate::stop::Stop;

/// A node that is about to receive.
pub struct EventLoop<H: Host> {
    pub host: H,
    pub config: Config,
    pub target: TargetStore,
    /// Task queue and result queue of the target.
    pub queues: [Arc<dyn Queue>; 2],
    pub timing: Timing,
    /// How often the node looks for what is due.
    pub tick: Duration,
    /// How often it looks whether memory is short.
    pub memory_every: Duration,
    /// Where the node shows that it makes progress.
    pub health: Health,
}

impl<H: Host> EventLoop<H> {
    /// Works until `stop` says so, there is no work, or a notice comes that the machine is taken away. Returns everything it
    /// holds to the queue. An error means that a queue cannot be used.
    pub async fn run(
        self,
        mut stop: watch::Receiver<Stop>,
        spot_notice: impl Future<Output = String>,
    ) -> Result<Ended> {
        let Self { host, config, target, queues, timing, tick, memory_every, health } = self;
        let mut spot_notice = std::pin::pin!(spot_notice);
        let node = config.node.clone();
        let (mut parts, _watching) = watch_parts(target.clone(), node.clone()).await;
        let mut executor = Executor::start(host.clone(), config, target.clone(), queues, timing);
        let states = watch::Sender::new(executor.roster.state());
        let registration = Registration::start(target, states.subscribe());
        let first = *stop.borrow_and_update();
        executor.handle(Event::Stop(first));
        let first = parts.borrow_and_update().clone();
        executor.handle(Event::Parts(first));
        let (mut tick, mut memory) = (every(tick), every(memory_every));
        let alive = health.coming_round("the loop of the node");
        let mut pauses = Pauses::watch(LeaseClock::System);
        let mut failure = Ok(());
        while !executor.roster.is_over() {
            alive.beat();
            metrics().jobs_open.set(executor.roster.jobs() as i64);
            let event = tokio::select! {
                // Rare events come first, so however many others there are, the node looks for what is due.
                biased;
                stop = Stop::next(&mut stop) => Event::Stop(stop),
                notice = &mut spot_notice, if !executor.roster.is_stopping() => {
                    tracing::warn!("the cloud will reclaim this machine ({notice}): draining");
                    Event::SpotNotice
                }
                Ok(()) = parts.changed() => Event::Parts(parts.borrow_and_update().clone()),
                pause = pauses.next() => Event::Slept(pause.asleep),
                _ = memory.tick() => Event::MemoryIsShort(host.memory_is_short()),
                _ = tick.tick() => executor.tick(),
                event = executor.next() => match event {
                    Ok(event) => event,
                    Err(Trouble::Unreadable(messages)) => {
                        executor.bury(messages);
                        continue;
                    }
                    Err(Trouble::Failed(error)) => {
                        failure = failure.and(Err(error.into()));
                        Event::Stop(Stop::Drain)
                    }
                },
            };
            host.handles().await;
            let has_looked = matches!(event, Event::Tick(_));
            executor.handle(event);
            host.handled(&executor.roster, has_looked);
            if has_looked {
                let state = executor.roster.state();
                states.send_if_modified(|known| {
                    let is_new = *known != state;
                    *known = state;
                    is_new
                });
            }
        }
        metrics().jobs_open.set(0);
        // A reader may have been about to take some messages when it ended.
        executor.drain().await;
        registration.remove().await;
        failure.map(|()| executor.roster.ended())
    }
}
