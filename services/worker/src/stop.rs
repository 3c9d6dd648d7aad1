//! Stops agents and nodes, in steps: a later step is always more urgent.

use tokio::sync::watch;

/// The order to an agent or a node. Larger values are more urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Work.
    #[default]
    No,
    /// The job is done: let processes call `shutdown()` and end.
    Finish,
    /// Accept nothing new, return unstarted mini-batches, and wait a while for running ones.
    Drain,
    /// Kill running processes and return every mini-batch.
    Kill,
}

impl Stop {
    /// Raises this stop. Returns whether `to` was larger.
    pub fn raise(&mut self, to: Self) -> bool {
        let is_larger = to > *self;
        *self = to.max(*self);
        is_larger
    }

    /// Waits for the next stop. Returns [`Stop::Kill`] if the sender is dropped.
    pub async fn next(stop: &mut watch::Receiver<Self>) -> Self {
        stop.changed().await.map_or(Self::Kill, |()| *stop.borrow_and_update())
    }
}

/// Stops agents and nodes. Clones send to the same receivers.
#[derive(Clone, Debug, Default)]
pub struct StopSender(watch::Sender<Stop>);

impl StopSender {
    /// Raises the stop of all receivers; a stop that is not larger than the last one changes nothing.
    pub fn raise(&self, to: Stop) {
        self.0.send_if_modified(|stop| stop.raise(to));
    }

    /// Returns the largest stop so far.
    pub fn current(&self) -> Stop {
        *self.0.borrow()
    }

    /// Returns a receiver.
    pub fn subscribe(&self) -> watch::Receiver<Stop> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stop_is_only_raised() {
        let sender = StopSender::default();
        let mut stop = sender.subscribe();
        sender.raise(Stop::Drain);
        assert_eq!(Stop::next(&mut stop).await, Stop::Drain);
        sender.raise(Stop::Finish);
        assert_eq!(
            (sender.current(), stop.has_changed().expect("there is a sender")),
            (Stop::Drain, false)
        );
    }

    #[tokio::test]
    async fn lost_sender_kills() {
        let mut stop = StopSender::default().subscribe();
        assert_eq!(Stop::next(&mut stop).await, Stop::Kill);
    }
}
