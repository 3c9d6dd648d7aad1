//! Shows the events of the engine while a command runs: notices as lines, progress as a bar or as lines; or all but
//! progress as JSON.

use engine::{Event, Events, Notice};
use portal::OwnJobs;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::{event_lines, notices, printed, progress, remedies};

/// Shows events until the command has its result.
#[derive(Debug)]
pub struct Show {
    showing: JoinHandle<()>,
    finish: CancellationToken,
}

impl Show {
    /// Shows the events of this work, and returns its result when all of them are shown.
    pub async fn during<T>(work: impl AsyncFnOnce(&Events) -> T) -> T {
        let (events, show) = Self::start();
        let result = work(&events).await;
        show.finish(events).await;
        result
    }

    pub fn start() -> (Events, Self) {
        Self::start_with(OwnJobs::default())
    }

    /// Starts to show events, and adds the id of each job to `jobs` as soon as it is known.
    pub fn start_with(jobs: OwnJobs) -> (Events, Self) {
        let (events, mut stream) = engine::events();
        let finish = CancellationToken::new();
        let finished = finish.clone();
        let showing = tokio::spawn(async move {
            let mut progress: Option<AbortOnDropHandle<()>> = None;
            let mut waits_for = None;
            // A document with several steps is checked as a whole, and each step again.
            let mut decisions = Vec::new();
            loop {
                let event = tokio::select! {
                    // Events that were sent before the end are shown.
                    biased;
                    event = stream.recv() => event,
                    () = finished.cancelled() => None,
                };
                let Some(event) = event else { return };
                if let Event::Job(job_id) | Event::Reused(job_id) = &event {
                    jobs.add(job_id);
                }
                if let Event::Notice(Notice::Continuing(continuation)) = &event {
                    jobs.add(&continuation.job_id);
                }
                if let Event::Notice(notice @ (Notice::Doubt(_) | Notice::Decision(_))) = &event {
                    if decisions.contains(notice) {
                        continue;
                    }
                    decisions.push(notice.clone());
                }
                if printed::streams_events() {
                    event_lines::objects(&event).iter().for_each(printed::event);
                    continue;
                }
                match event {
                    Event::Step { name, number, count } => {
                        say!(note, "step {name} ({number} of {count})")
                    }
                    Event::Job(job_id) => say!(note, "job {job_id}"),
                    Event::Reused(_) => {}
                    Event::Progress { latest, hint } => {
                        let showing = progress::show(latest, hint, waits_for.take());
                        progress = Some(AbortOnDropHandle::new(showing));
                    }
                    Event::ProgressEnded => {
                        if let Some(progress) = progress.take() {
                            progress.abort();
                            let _ = progress.await;
                        }
                    }
                    Event::Notice(notice) => {
                        if let Notice::Waiting(hint) = &notice {
                            waits_for = Some(remedies::hint(hint));
                        }
                        match notice.is_warning() {
                            true => say!(err, "{}", notices::text(&notice)),
                            false => say!(note, "{}", notices::text(&notice)),
                        }
                    }
                }
            }
        });
        (events, Self { showing, finish })
    }

    /// Waits until all sent events are shown, so that none follows the next output of the command. Does not wait for a
    /// thread that still prepares something for a job that has stopped.
    pub async fn finish(self, events: Events) {
        drop(events);
        self.finish.cancel();
        let _ = self.showing.await;
    }
}
