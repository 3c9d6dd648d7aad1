//! Publishes copies of slow mini-batches, and tells nodes which are decided. `speculation.rs`
//! chooses the mini-batches.
//!
//! A record of the copies, created if absent, precedes their messages, so that several reducers
//! publish no second copy of a mini-batch. The ledger knows only which run won.
//!
//! The failure of a copy is announced but not committed, and its lost deliveries do not count, so a
//! job can lose a copy at any time. A mini-batch that fails while its copy runs does not end the
//! job yet. `copies/decided` names the copied mini-batches that have succeeded; nodes read it every
//! four seconds while a run is long, and only then drop the slower run.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use protocol::{Attempt, Copies, Descriptor, PlanPosition, Work};
use queue::Message;
use storage::Commit;
use tokio::time::Instant;

use crate::failures::error_sentence;
use crate::{Peers, Reducer};

/// How much longer than the limit of an attempt a copy may take: it waits for a process, too.
const COPY_SLACK: Duration = Duration::from_secs(60);

/// A mini-batch to copy.
struct SlowMiniBatch {
    descriptor: Descriptor,
    /// Its first item.
    detail: String,
    age: Duration,
}

impl Reducer {
    /// Returns the number of copies so far.
    pub(crate) fn copies(&self) -> Copies {
        Copies { started: self.speculation.started(), won: self.tally.copies_won() }
    }

    /// Reads which mini-batches earlier reducers have copied.
    pub(crate) async fn open_copies(&mut self) -> anyhow::Result<()> {
        if self.spec.speculation {
            // Copies on one machine have ended with their process.
            let until = (self.peers == Peers::Many).then(|| Instant::now() + self.copy_time());
            self.read_copies(until).await.context("read which mini-batches have been copied")?;
        }
        Ok(())
    }

    /// Clears the decided copies, so that nodes run their mini-batches again.
    pub(crate) async fn forget_decided(&self) -> anyhow::Result<()> {
        if self.spec.speculation {
            self.store.forget_decided().await.context("let nodes run mini-batches again")?;
        }
        Ok(())
    }

    /// Copies slow mini-batches, and tells nodes which copies are decided. The job does not depend
    /// on it.
    pub(crate) async fn speculate(&mut self) {
        if !self.spec.speculation || self.tally.is_complete() {
            return;
        }
        if let Err(error) = self.try_speculate().await {
            tracing::warn!(
                job.id = self.spec.job_id,
                "cannot run slow mini-batches speculatively now: {error:#}"
            );
        }
    }

    async fn try_speculate(&mut self) -> anyhow::Result<()> {
        let over = self.speculation.over(&self.tally);
        if over != self.speculation.decided {
            self.store.put_decided(&over).await?;
            self.speculation.decided = over;
        }
        let (Some(tasks), Some(planned)) = (self.options.tasks.clone(), self.tally.planned())
        else {
            return Ok(());
        };
        let mini_batches = planned.mini_batches;
        let open = mini_batches.saturating_sub(self.tally.ended());
        // `init()` of a process may take longer than a mini-batch.
        let processes = self.processes_ready(&(self.options.workers)());
        let now = Instant::now();
        let Some(idle_for) = self.speculation.idle_for(open, processes, now) else { return Ok(()) };
        let until = now + self.copy_time();
        if self.peers == Peers::Many {
            self.read_copies(Some(until)).await?;
        }
        let most = self.speculation.budget(mini_batches).min(processes);
        let slow = self.slow(idle_for, most).await?;
        // Unstarted mini-batches come first.
        if slow.is_empty() || tasks.depth().await?.visible > 0 {
            return Ok(());
        }
        let numbers: Vec<u64> = slow.iter().map(|slow| slow.descriptor.mini_batch).collect();
        let epoch = self.speculation.epochs;
        if self.store.create_copies(epoch, &self.options.writer, &numbers).await? == Commit::Lost {
            // The next check reads the copies of the other reducer.
            return Ok(());
        }
        self.speculation.copied(&numbers, Some(until));
        let message = |slow: &SlowMiniBatch| {
            let body = serde_json::to_vec(&slow.descriptor).expect("descriptors always serialise");
            Message::new(body)
        };
        tasks.send(slow.iter().map(message).collect()).await?;
        for SlowMiniBatch { descriptor, detail, age } in slow {
            let line = format!(
                "Mini-batch {} ({detail}) takes far longer than others, {} s so far; a speculative run starts.",
                descriptor.mini_batch,
                age.as_secs()
            );
            tracing::info!(
                job.id = self.spec.job_id,
                mini_batch.id = descriptor.mini_batch,
                "{line}"
            );
            self.reports.decided(&line).await;
        }
        Ok(())
    }

    /// Returns open mini-batches that take too long, at most this many.
    async fn slow(&mut self, idle_for: Duration, most: u64) -> anyhow::Result<Vec<SlowMiniBatch>> {
        let mut slow = Vec::new();
        let mut plan: Option<(u64, Bytes)> = None;
        let Some(least) = self.speculation.run_times.slow_after(None) else { return Ok(slow) };
        let reported: HashMap<u64, Duration> = self
            .waiting()
            .iter()
            .filter_map(|waiting| Some((waiting.mini_batch?, Duration::from_secs(waiting.seconds))))
            .collect();
        let age = |mini_batch| {
            reported.get(&mini_batch).map_or(idle_for, |reported| idle_for.max(*reported))
        };
        if idle_for <= least && reported.values().all(|reported| *reported <= least) {
            return Ok(slow);
        }
        self.speculation.look(&self.tally);
        for &mini_batch in &self.speculation.open {
            if slow.len() as u64 >= most {
                break;
            }
            let age = age(mini_batch);
            if age <= least || self.speculation.is_copied(mini_batch) {
                continue;
            }
            let PlanPosition { chunk, line } = PlanPosition::of(mini_batch);
            let lines = match &plan {
                Some((number, lines)) if *number == chunk => lines.clone(),
                _ => plan.insert((chunk, self.store.plan_chunk(chunk).await?)).1.clone(),
            };
            let Some(descriptor) = planned(&lines, line) else { continue };
            if self
                .speculation
                .run_times
                .slow_after(descriptor.items())
                .is_some_and(|limit| age > limit)
            {
                let detail = descriptor.detail();
                let descriptor = Descriptor {
                    tries_spent: self.tally.tries_spent(mini_batch),
                    deliveries_lost: self.tally.deliveries_lost(mini_batch),
                    again: self.tally.again(mini_batch),
                    copy: true,
                    // A descriptor may be too large for the queue.
                    work: Work::Planned { chunk, line },
                    ..descriptor
                };
                slow.push(SlowMiniBatch { descriptor, detail, age });
            }
        }
        Ok(slow)
    }

    /// Reads the copies that other reducers have published.
    async fn read_copies(&mut self, until: Option<Instant>) -> anyhow::Result<()> {
        while let Some(mini_batches) = self.store.copies(self.speculation.epochs).await? {
            self.speculation.copied(&mini_batches, until);
        }
        Ok(())
    }

    /// Records the failure of a copy, which costs nothing: the original continues.
    pub(crate) fn copy_failed(&mut self, attempt: &Attempt) {
        self.speculation.failed(attempt.mini_batch);
        let error = attempt.error.as_ref().map(|error| error_sentence(error)).unwrap_or_default();
        tracing::info!(
            job.id = self.spec.job_id,
            mini_batch.id = attempt.mini_batch,
            node.id = attempt.node.as_str(),
            "the speculative run of mini-batch {} failed, which spends no try: {error}",
            attempt.mini_batch
        );
    }

    /// Returns how long a copy may take.
    fn copy_time(&self) -> Duration {
        let spec = &self.spec;
        Duration::from_secs(
            spec.run_invocation_timeout_seconds + spec.task_overhead_timeout_seconds,
        ) + COPY_SLACK
    }
}

/// Returns a mini-batch of a chunk of the plan.
fn planned(lines: &Bytes, line: u64) -> Option<Descriptor> {
    let line = lines.split(|byte| *byte == b'\n').nth(usize::try_from(line).ok()?)?;
    serde_json::from_slice(line).ok()
}
