//! Converts messages to events for the scheduler.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use protocol::{Activity, Descriptor, Ending, ProcessEvent, SLOT_PHASES};

use queue::Delivery;

use super::examine::quote_pipes;
use super::processes::Running;
use super::usage::MeasuredProcess;
use super::{Executor, Message, now};
use crate::dead_letters::dead_letter;
use crate::python_process::Report;
use crate::resident::resident;
use crate::scheduler::{Event, LeasedDelivery, ProcessId, ProcessSnapshot, deliveries_lost};
use crate::{Agent, CrashPoint, orphans, prepare};

/// Time between two searches for ended children of the script that the agent has adopted.
const REAP_EVERY: Duration = Duration::from_secs(5);
/// Time between two reads of the store: which copied mini-batches are decided, and which nodes work
/// on a job that fails here.
const LOOK_EVERY: Duration = Duration::from_secs(4);
/// Least time between two measurements of the memory of a process: quick mini-batches share one.
const MEASURE_EVERY: Duration = Duration::from_millis(20);

impl Executor {
    pub(super) async fn receive(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Received(received) => {
                self.received(received?).await;
                self.note_held()?;
            }
            Message::Process { process, report } => self.process_reported(process, report).await,
            Message::Template(report) => self.template_reported(report).await,
            Message::LeaseLost(lease) => {
                let snapshots = self.snapshots();
                self.handle(Event::LeasesLost { leases: vec![lease], snapshots }).await;
            }
            Message::Event(event) => self.handle(*event).await,
        }
        Ok(())
    }

    fn note_held(&self) -> Result<()> {
        let Some(file) = &self.held_file else { return Ok(()) };
        file.write(&self.scheduler.held()).context("note which mini-batches are held")
    }

    pub(super) async fn tick(&mut self) {
        let mut snapshots = self.snapshots();
        let mut phases = [0; SLOT_PHASES.len()];
        for (seen, running) in snapshots.iter_mut().zip(self.running.iter_mut().flatten()) {
            phases[seen.phase as usize] += 1;
            seen.stacks = running.stacks.as_mut().and_then(|dump| dump.result(&self.agent.package));
            running.stacks.take_if(|_| seen.stacks.is_some());
            running.log.flush();
        }
        self.processes.iter_mut().zip(phases).for_each(|(share, count)| share.set(count));
        self.leases_held.set(self.leases.count());
        self.publish_activity(&snapshots);
        if self.reaped.elapsed() > REAP_EVERY {
            self.reaped = Instant::now();
            orphans::reap_ended();
        }
        self.grant().await;
        self.check_template().await;
        self.handle(Event::Tick(snapshots)).await;
        self.check_decided();
        self.check_members();
    }

    fn publish_activity(&mut self, snapshots: &[ProcessSnapshot]) {
        let processes = self.running.iter().flatten().map(|running| MeasuredProcess {
            name: running.id.name(),
            pid: running.process.id(),
            gpus: running.gpus.clone(),
        });
        let activity = Activity {
            held: self.leases.count() as u64,
            running: self.scheduler.running(snapshots),
            usage: self.usage.of(&self.agent.node, processes).to_vec(),
        };
        self.agent.activity.send_if_modified(|known| {
            let is_new = *known != activity;
            *known = activity;
            is_new
        });
    }

    /// Reads which copied mini-batches have succeeded elsewhere, if one runs for long here and the
    /// job speculates.
    fn check_decided(&mut self) {
        if self.looked.elapsed() < LOOK_EVERY || !self.scheduler.has_long_run(now()) {
            return;
        }
        self.looked = Instant::now();
        let (store, messages) = (self.agent.store.clone(), self.messages.clone());
        tokio::spawn(async move {
            match store.decided().await {
                Ok(decided) if decided.is_empty() => {}
                Ok(decided) => drop(messages.send(Message::Event(Event::Decided(decided).into()))),
                // The next read may succeed, and the end of the job stops the run as well.
                Err(error) => {
                    tracing::debug!("cannot read which speculative runs are decided: {error:#}")
                }
            }
        });
    }

    /// Reads which nodes work on the job, if an attempt has failed here.
    fn check_members(&mut self) {
        if !self.scheduler.asks_for_members()
            || self.looked_for_members.is_some_and(|at| at.elapsed() < LOOK_EVERY)
        {
            return;
        }
        self.looked_for_members = Some(Instant::now());
        let (store, messages) = (self.agent.store.clone(), self.messages.clone());
        tokio::spawn(async move {
            match store.members().await {
                Ok(members) => drop(messages.send(Message::Event(Event::Members(members).into()))),
                Err(error) => {
                    tracing::debug!("cannot determine which nodes work on the job: {error:#}")
                }
            }
        });
    }

    /// Returns the status page of each process, by slot.
    pub(super) fn snapshots(&self) -> Vec<ProcessSnapshot> {
        let see = |running: &Running| {
            let (phase, sequence, elapsed) = running.process.page.read();
            let frame_incomplete_for = running.process.frame_incomplete_for();
            ProcessSnapshot {
                process: running.id,
                phase,
                sequence,
                elapsed,
                frame_incomplete_for,
                stacks: None,
            }
        };
        self.running.iter().flatten().map(see).collect()
    }

    async fn received(&mut self, deliveries: Vec<Delivery>) {
        if !deliveries.is_empty() {
            (self.agent.crash)(CrashPoint::AfterReceive);
        }
        let (mut delivered, mut dead_lettered) = (Vec::with_capacity(deliveries.len()), Vec::new());
        for delivery in deliveries {
            let descriptor = match self.read(&delivery) {
                Ok(descriptor) => descriptor,
                Err(error) => {
                    let reason = format!("{error:#}");
                    let line =
                        format!("removing a message that is not a mini-batch of the job: {reason}");
                    let line = self.dead_lettered.next("", &line, Instant::now());
                    line.into_iter().for_each(|line| self.log.main("ERROR", &line));
                    dead_lettered.push((delivery, reason));
                    continue;
                }
            };
            delivered.push(LeasedDelivery {
                lease: self.leases.hold(delivery.receipt, delivery.leased_at),
                receive_count: delivery.receive_count,
                deaths: self.deaths(&descriptor, delivery.receive_count),
                bytes: prepare::expected_bytes(&descriptor),
                descriptor,
            });
        }
        self.handle(Event::Received(delivered)).await;
        if dead_lettered.is_empty() {
            return;
        }
        let Agent { tasks, node, dead_letters, spec, .. } = self.agent.clone();
        // The loop does not wait for a queue that may be away.
        tokio::spawn(async move {
            if let Err(error) =
                dead_letter(&*tasks, dead_letters.as_deref(), &node, &spec.job_id, dead_lettered)
                    .await
            {
                tracing::warn!("messages stay in the task queue for now: {error:#}");
            }
        });
    }

    /// Returns how often a node of this machine has died while it ran only this mini-batch.
    fn deaths(&self, descriptor: &Descriptor, receive_count: u32) -> u32 {
        match deliveries_lost(descriptor, receive_count) {
            // The usual case.
            0 => 0,
            _ => self.node_lock.deaths(descriptor.mini_batch),
        }
    }

    fn read(&self, delivery: &Delivery) -> Result<Descriptor> {
        let descriptor = Descriptor::of_message(&delivery.body)?;
        self.preparer.check(&descriptor)?;
        Ok(descriptor)
    }

    async fn process_reported(&mut self, process: ProcessId, report: Report) {
        let Some(running) = self.running(process) else { return };
        let (phase, sequence, _) = running.process.page.read();
        let ran = matches!(report, Report::Exited(_)).then(|| running.process.page.ran()).flatten();
        match report {
            Report::Events(frames) => {
                if let Some(bytes) = self.measure(process, &frames) {
                    self.handle(Event::Measured { process, bytes }).await;
                }
                for (frame, rows) in frames {
                    if matches!(frame, ProcessEvent::Acquire { .. } | ProcessEvent::Release { .. })
                    {
                        self.limit(process, frame).await;
                        continue;
                    }
                    let frame = self.complete(process, frame).await;
                    self.handle(Event::Frame { process, frame, rows }).await;
                }
            }
            Report::Broken(how) => {
                self.handle(Event::ConnectionDamaged { process, phase, how }).await
            }
            Report::Exited(code) => {
                self.limits_forget(process).await;
                self.handle(Event::Exited { process, code, phase, sequence, ran }).await;
            }
        }
    }

    /// Measures the memory of a process that has answered, unless it was measured just before.
    fn measure(&mut self, process: ProcessId, frames: &[(ProcessEvent, Bytes)]) -> Option<u64> {
        if self.agent.spec.process_max_memory == 0 {
            return None;
        }
        let running = self.running(process)?;
        let is_fresh = frames.iter().any(|(frame, _)| matches!(frame, ProcessEvent::Ready { .. }));
        if !is_fresh && running.measured.is_some_and(|measured| measured.elapsed() < MEASURE_EVERY)
        {
            return None;
        }
        running.measured = Some(Instant::now());
        resident(running.process.id())
    }

    /// Adds the output of native code and child processes to a failure.
    async fn complete(&mut self, process: ProcessId, mut frame: ProcessEvent) -> ProcessEvent {
        match &mut frame {
            ProcessEvent::InitFailed { error, .. } => {
                if let Some(running) = self.running(process) {
                    quote_pipes(error, running.process.pipes.clone(), running.started).await;
                }
            }
            ProcessEvent::Answered(Ending { sequence, error, .. }) => {
                let began =
                    self.scheduler.hand_over_of(process, *sequence).map(|(_, began)| began.instant);
                if let (Some(error), Some(running), Some(began)) =
                    (error, self.running(process), began)
                {
                    quote_pipes(error, running.process.pipes.clone(), began).await;
                }
                (self.agent.crash)(CrashPoint::AfterRun);
            }
            _ => {}
        }
        frame
    }
}
