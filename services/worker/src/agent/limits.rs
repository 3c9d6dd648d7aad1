//! Answers the processes that ask whether the limits of the job allow a request.

use std::collections::{HashMap, HashSet};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use protocol::{ProcessEvent, ToProcess};

use super::Executor;
use crate::limit::{self, Key, LimitRequest, Limiter, SharedLimiter};
use crate::scheduler::{Event, ProcessId};

/// Shorter waits are not reported.
const REPORT_MIN: Duration = Duration::from_millis(1);
/// Least time between two reports of the same wait.
const REPORT_EVERY: Duration = Duration::from_millis(250);

/// The limits of the job, which bound what its processes request together.
pub(super) struct RequestLimits {
    limiter: SharedLimiter,
    /// Until when the waits of processes are reported to the scheduler.
    reported: HashMap<ProcessId, Instant>,
    /// Processes that have asked since their last attempt.
    asked: HashSet<ProcessId>,
}

impl RequestLimits {
    pub(super) fn new(limiter: SharedLimiter) -> Self {
        Self { limiter, reported: HashMap::new(), asked: HashSet::new() }
    }

    fn limiter(&self) -> MutexGuard<'_, Limiter> {
        self.limiter.lock().expect("no holder panics")
    }

    /// Whether a process waits for a request that it wants to make.
    pub(super) fn waits(&self, process: ProcessId) -> bool {
        self.limiter().waits(process)
    }

    /// Whether a process has asked since the last call.
    pub(super) fn has_asked(&mut self, process: ProcessId) -> bool {
        self.asked.remove(&process)
    }

    fn ask(&mut self, ask: LimitRequest) {
        self.limiter().ask(ask, limit::now());
        self.asked.insert(ask.key.0);
        self.reported.entry(ask.key.0).or_insert_with(Instant::now);
    }

    /// Returns the acquisitions that are allowed now, and how long processes have waited since the last report.
    fn grant(&mut self) -> (Vec<Key>, Vec<(ProcessId, Duration)>) {
        let now = Instant::now();
        let (mut granted, mut waited) = (Vec::new(), Vec::new());
        if self.reported.is_empty() {
            return (granted, waited);
        }
        let mut limiter = self.limiter.lock().expect("no holder panics");
        granted.extend(limiter.grant(limit::now()));
        self.reported.retain(|process, since| {
            let (waits, time) = (limiter.waits(*process), now - *since);
            if time >= REPORT_EVERY || (!waits && time >= REPORT_MIN) {
                waited.push((*process, time));
                *since = now;
            }
            waits
        });
        (granted, waited)
    }
}

impl Executor {
    /// Handles a frame about the limits of the job.
    pub(super) async fn limit(&mut self, process: ProcessId, frame: ProcessEvent) {
        let Some(limits) = &mut self.limits else { return };
        match frame {
            ProcessEvent::Acquire { id, requests, tokens, place } => {
                // The process refuses larger ones.
                let most = self.agent.spec.limits;
                let requests = most
                    .requests_per_minute
                    .map_or(requests, |most| u64::from(requests).min(most) as u32);
                let tokens = most.tokens_per_minute.map_or(tokens, |most| tokens.min(most));
                limits.ask(LimitRequest { key: (process, id), requests, tokens, place });
            }
            ProcessEvent::Release { id } => limits.limiter().release((process, id)),
            _ => return,
        }
        self.grant().await;
    }

    /// Forgets the requests of a process that has ended.
    pub(super) async fn limits_forget(&mut self, process: ProcessId) {
        let Some(limits) = &mut self.limits else { return };
        limits.limiter().forget(process);
        self.grant().await;
    }

    /// Lets the processes make the requests that the limits of the job allow by now.
    pub(super) async fn grant(&mut self) {
        let Some(limits) = &mut self.limits else { return };
        let (granted, waited) = limits.grant();
        for (process, time) in waited {
            self.handle(Event::Limited { process, time }).await;
        }
        for of_process in granted.chunk_by(|(one, _), (next, _)| one == next) {
            let ids = of_process.iter().map(|(_, id)| *id).collect();
            self.send(of_process[0].0, &ToProcess::Granted { ids }, Vec::new());
        }
    }
}
