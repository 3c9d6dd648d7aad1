//! Executes the actions of the scheduler.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use protocol::{ResultEvent, SlotPhase, ToProcess, Waiting};
use telemetry::metrics::CAUSE;
use telemetry::{metrics, trace};
use tokio_util::task::AbortOnDropHandle;

use super::stacks::{StackDump, state_of};
use super::{Executor, Message};
use crate::announce::processed;
use crate::scheduler::{Action, Announcement, Event, Outcome, ProcessId};
use crate::{CrashPoint, scratch};

impl Executor {
    /// Returns the answer to the action, if the scheduler expects an immediate one.
    pub(super) async fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Receive { messages_max } => self.start_receiving(messages_max),
            Action::StopReceiving => self.receiving = None,
            Action::Prepare { lease, descriptor, resumes_since } => {
                let (preparer, messages) = (self.preparer.clone(), self.messages.clone());
                let checkpoints = self.checkpoints.clone();
                tokio::spawn(async move {
                    checkpoints.fetch(descriptor.mini_batch, resumes_since).await;
                    let (descriptor, preparation) = preparer.prepare(*descriptor).await;
                    let descriptor = descriptor.into();
                    let event = Event::Prepared { lease, descriptor, preparation };
                    let _ = messages.send(Message::Event(event.into()));
                });
            }
            Action::Start { process, gpus, sees } => return self.start(process, gpus, sees),
            Action::HandOver { process, frames, files } => {
                self.send(process, &ToProcess::MiniBatches { mini_batches: frames }, files);
                (self.agent.crash)(CrashPoint::AfterHandOver);
            }
            Action::Begin { lease, deadline } => self.leases.start(lease, deadline.into()),
            Action::Wait { lease } => self.leases.wait(lease),
            Action::Recall { process, sequences } => {
                let in_time = self.running(process)?.process.page.recall(sequences);
                return Some(Event::RecallAnswered { process, in_time });
            }
            Action::DumpStacks { process, patience } => {
                let file = self.log.system_file(&process.name(), "stack.txt");
                let running = self.running(process)?;
                running.stacks = Some(StackDump::request(&running.process, file, patience));
            }
            Action::Finish(process) => self.send(process, &ToProcess::Finish, Vec::new()),
            Action::Kill(process) => match self.running(process) {
                Some(running) => running.process.kill(),
                None => return self.kill_waiting(process),
            },
            Action::Examine { process, code, phase, sequence, since } => {
                let findings = Box::new(self.examine(process, code, phase, sequence, since)?);
                return Some(Event::Examined { process, findings });
            }
            Action::Forget(process) => self.forget(process),
            Action::BeginAlone { mini_batch } => {
                if let Err(error) = self.node_lock.begin(mini_batch) {
                    tracing::warn!("cannot note that mini-batch {mini_batch} runs alone: {error}");
                }
            }
            Action::EndAlone { mini_batch } => self.node_lock.end(mini_batch),
            Action::ReuseTable(table) => self.preparer.recycle(table),
            Action::Announce(announcement) => self.announce(announcement),
            Action::Notice { process, waiting } => self.notice(process, *waiting),
            Action::Log { level, message } => self.log.main(level, &message),
            Action::UserError { process, mini_batch, error } => {
                let pid = self.running(process).map_or(0, |running| running.process.id());
                self.log.user_error(&process.name(), pid, mini_batch, &error);
            }
        }
        None
    }

    fn start_receiving(&mut self, messages_max: usize) {
        let (leases, tasks, messages) =
            (self.leases.clone(), self.agent.tasks.clone(), self.messages.clone());
        self.receiving = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let _ = messages.send(Message::Received(leases.receive(&*tasks, messages_max).await));
        })));
    }

    pub(super) fn send(&mut self, process: ProcessId, frame: &ToProcess, files: Vec<Arc<OwnedFd>>) {
        if let Some(running) = self.running(process) {
            running.process.send(frame, files);
        }
    }

    pub(super) fn announce(&mut self, mut announcement: Announcement) {
        match &mut announcement {
            Announcement::Outcome(outcome) => self.record(outcome),
            Announcement::Event(ResultEvent::ProcessEnded { wear: Some(wear), .. }) => {
                metrics().processes_replaced.get_or_create(&[(CAUSE, wear.word())]).inc();
            }
            Announcement::Event(_) | Announcement::Return { .. } | Announcement::Drop { .. } => {}
        }
        self.announcements.send(announcement);
    }

    /// Completes an attempt with facts that the scheduler lacks, and adds it to the logs.
    fn record(&mut self, Outcome { process, attempt, .. }: &mut Outcome) {
        if let (Some(limits), Some(process)) = (&mut self.limits, *process) {
            attempt.asked_limits = limits.has_asked(process);
        }
        attempt.traceparent =
            trace::go_on(attempt.traceparent, || processed(&self.agent.spec.job_id, attempt));
        if let Some(running) = process.and_then(|process| self.running(process)) {
            running.log.attempt(running.process.id(), attempt);
        }
        tracing::debug!(
            job.id = self.agent.spec.job_id,
            mini_batch.id = attempt.mini_batch,
            attempt.number = attempt.try_number,
            node.id = attempt.node.as_str(),
            process.id = attempt.process.as_str(),
            attempt.outcome = attempt.status.word(),
            attempt.seconds = attempt.elapsed_seconds,
            traceparent = attempt.traceparent.map(tracing::field::display),
            "attempt ended"
        );
    }

    fn notice(&mut self, process: Option<ProcessId>, mut waiting: Waiting) {
        if let Some(process) = process {
            waiting.printed = self.printed_so_far(process);
            if self.limits.as_ref().is_some_and(|limits| limits.waits(process)) {
                "waiting for the limits of the job".clone_into(&mut waiting.detail);
            }
        }
        if let Some(running) = process.and_then(|process| self.running(process))
            && waiting.stack.is_empty()
            && waiting.detail.is_empty()
        {
            state_of(running.process.id()).clone_into(&mut waiting.detail);
        }
        if self.agent.spec.is_command() {
            waiting = of_command(waiting);
        }
        let line = format!("long: {waiting}");
        self.log.main("INFO", &line);
        tracing::info!(job.id = self.agent.spec.job_id, "{line}");
        self.announce(Announcement::Event(ResultEvent::Waiting(waiting.into())));
    }

    fn forget(&mut self, process: ProcessId) {
        if self.running(process).is_none() {
            return;
        }
        if let Some(mut running) = self.running[process.slot].take() {
            running.log.flush();
            scratch::remove(&running.scratch);
        }
    }
}

/// Returns the wait for a command in its own words: its script only waits for it, in the only mini-batch.
fn of_command(waiting: Waiting) -> Waiting {
    match waiting.phase {
        SlotPhase::Run => Waiting {
            phase: SlotPhase::Command,
            mini_batch: None,
            detail: String::new(),
            stack: String::new(),
            ..waiting
        },
        _ => waiting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_a_command_names_no_mini_batch() {
        let waiting = |phase| Waiting {
            node: "0".into(),
            process: "process000".into(),
            mini_batch: Some(0),
            phase,
            seconds: 16,
            since: 0,
            detail: "it sleeps".into(),
            stack: "  File \"command_step.py\", line 3 in run".into(),
            printed: "epoch 1".into(),
        };
        let command = of_command(waiting(SlotPhase::Run));
        assert_eq!(command.to_string(), "node 0, process000, in the command for 16 s");
        assert_eq!(command.printed, "epoch 1");
        assert_eq!(of_command(waiting(SlotPhase::Init)).mini_batch, Some(0));
    }
}
