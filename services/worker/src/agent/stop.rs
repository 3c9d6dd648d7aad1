//! The end of an agent: what has not begun goes back at once, what runs may finish for a while.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::Result;
use protocol::{Descriptor, ResultEvent};

use super::processes::Slot;
use super::{Dispatcher, SHUTDOWN_TIME, Stop, Waiting};
use crate::announce::Announcement;
use crate::slot::Prepared;

impl Dispatcher {
    pub(super) async fn stop(&mut self, stop: Stop) -> Result<()> {
        if stop <= self.stop {
            return Ok(());
        }
        self.stop = stop;
        self.receiving = None;
        let patience = if stop == Stop::Finish { SHUTDOWN_TIME } else { self.agent.timing.grace };
        self.stop_deadline = Some(Instant::now() + patience);
        self.log.main(
            "INFO",
            match stop {
                Stop::No => "working",
                Stop::Finish => "the job is done",
                Stop::Drain => "draining: what runs may finish, the rest is given back",
                Stop::Kill => "stopping at once",
            },
        );
        if stop == Stop::Kill {
            self.kill_processes();
        }
        if stop == Stop::Drain {
            self.recall_all();
        }
        self.finish_idle_processes();
        Ok(())
    }

    /// Whether nothing is left to be done here.
    pub(super) fn is_over(&self) -> bool {
        match self.stop {
            Stop::No => false,
            Stop::Kill => true,
            Stop::Finish | Stop::Drain => {
                let too_late = self.stop_deadline.is_some_and(|deadline| Instant::now() > deadline);
                too_late || self.slots.iter().all(Slot::is_empty)
            }
        }
    }

    /// Gives back what nothing here will begin: the job goes on elsewhere at once, not when this agent has ended. What
    /// a process was handed and had not begun joins it as soon as the process has said so.
    pub(super) async fn give_back_waiting(&mut self) -> Result<()> {
        if !matches!(self.stop, Stop::Finish | Stop::Drain) {
            return Ok(());
        }
        for waiting in self.take_waiting() {
            self.give_back(waiting).await?;
        }
        Ok(())
    }

    /// A delivery that is held longer than the queue allows is lost. What would not end before that goes back.
    pub(super) async fn give_back_old(&mut self) -> Result<()> {
        let Some(lease_max) = self.agent.tasks.limits().lease_max else { return Ok(()) };
        let limit = self.limit();
        let leases = self.leases.clone();
        let is_old = |lease| leases.age(lease).is_some_and(|age| age + limit > lease_max && age > lease_max / 4);
        let (old, left): (VecDeque<_>, _) =
            std::mem::take(&mut self.to_prepare).into_iter().partition(|waiting| is_old(waiting.lease));
        self.to_prepare = left;
        let (old_ready, left): (VecDeque<_>, _) =
            std::mem::take(&mut self.ready).into_iter().partition(|prepared| is_old(prepared.lease));
        self.ready = left;
        for waiting in old.into_iter().chain(old_ready.into_iter().map(Waiting::from)) {
            self.give_back(waiting).await?;
        }
        Ok(())
    }

    async fn give_back(&self, waiting: Waiting) -> Result<()> {
        let Waiting { lease, descriptor, deliveries_lost } = waiting;
        let descriptor = Descriptor { deliveries_lost, ..descriptor };
        self.announce(Announcement::GiveBack { lease, descriptor: Box::new(descriptor) }).await
    }

    /// What no process has.
    fn take_waiting(&mut self) -> Vec<Waiting> {
        let preparing = self.preparing.drain().map(|(_, preparing)| preparing.waiting);
        let ready = self.ready.drain(..).map(Waiting::from);
        self.to_prepare.drain(..).chain(preparing).chain(ready).collect()
    }

    /// Ends what is left and returns it, with its receipts.
    pub(super) async fn close(&mut self) -> Result<Vec<(queue::Receipt, Descriptor)>> {
        self.receiving = None;
        self.kill_processes();
        let mut held = self.take_waiting();
        held.extend(self.slots.iter_mut().flat_map(Slot::take_back).map(Waiting::from));
        for slot in 0..self.slots.len() {
            self.forget_process(slot);
        }
        let stopped = ResultEvent::NodeStopped { node: self.agent.node.clone(), cause: self.gave_up.clone() };
        self.tell(stopped).await?;
        self.log.main("INFO", &format!("stopped; {} mini-batches are given back", held.len()));
        let receipt = |Waiting { lease, descriptor, deliveries_lost }: Waiting| {
            let receipt = self.leases.receipt(lease)?;
            self.leases.end(lease);
            Some((receipt, Descriptor { deliveries_lost, ..descriptor }))
        };
        Ok(held.into_iter().filter_map(receipt).collect())
    }
}

impl From<Prepared> for Waiting {
    fn from(prepared: Prepared) -> Self {
        let Prepared { lease, descriptor, deliveries_lost, .. } = prepared;
        Self { lease, descriptor, deliveries_lost }
    }
}
