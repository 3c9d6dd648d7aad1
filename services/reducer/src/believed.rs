//! Checks on result messages. A principal with write access to the result queue can report the end
//! of a mini-batch, as workers do. It cannot report events that only reducers write, name rows of
//! another mini-batch, invent mini-batches, or shorten the plan.

use protocol::{
    Attempt, AttemptStatus, PlanPosition, Planned, REJECTED_MAX, ResultEvent, Rows, is_part_of,
};
use storage::{JobStore, Result};

use crate::batch::{Batch, Event, RecordView, Unreadable};

/// Limit on items and warnings of one result: more than any process can produce, and sums of such counts cannot
/// overflow.
const COUNT_MAX: u64 = u32::MAX as u64;

/// Returns why an event from the queue is refused on its content alone.
pub(crate) fn refused(record: RecordView<'_>) -> Option<String> {
    match record.event {
        Event::Success(success) => {
            refused_attempt(success.mini_batch, success.total, record.rows(success))
        }
        Event::Other(event) => refused_event(event),
    }
}

fn refused_event(event: &ResultEvent) -> Option<String> {
    let only_reducers = |what: &str| Some(format!("only a reducer may report that {what}"));
    match event {
        ResultEvent::Attempt(attempt) => {
            let count = attempt.total.max(attempt.warnings_total).max(attempt.items_kept);
            let reason = refused_attempt(attempt.mini_batch, count, attempt.core().rows);
            reason.or_else(|| refused_rejects(attempt))
        }
        ResultEvent::Round(_) => only_reducers("a round begins"),
        ResultEvent::Ended { .. } => only_reducers("a job has ended"),
        ResultEvent::RowsLost { .. } => only_reducers("rows are lost"),
        ResultEvent::CutShort => only_reducers("a segment was cut short"),
        ResultEvent::Duplicates { .. } => only_reducers("attempts were delivered twice"),
        ResultEvent::Job { .. }
        | ResultEvent::Planned(_)
        | ResultEvent::PlanFailed { .. }
        | ResultEvent::ProcessStarted { .. }
        | ResultEvent::ProcessReady { .. }
        | ResultEvent::InitFailed { .. }
        | ResultEvent::ProcessEnded { .. }
        | ResultEvent::NodeStopped { .. }
        | ResultEvent::Waiting(_)
        | ResultEvent::Working { .. } => None,
    }
}

fn refused_attempt(mini_batch: u64, count: u64, rows: Rows<&str>) -> Option<String> {
    if count > COUNT_MAX {
        return Some(format!(
            "mini-batch {mini_batch} claims more than {COUNT_MAX} items or warnings"
        ));
    }
    match rows {
        Rows::Part { name, .. } if !is_part_of(name, mini_batch) => {
            Some(format!("{name:?} is not a part of mini-batch {mini_batch}"))
        }
        _ => None,
    }
}

/// Rejected items must be among the items that have no result, and those of a failure all its items.
fn refused_rejects(attempt: &Attempt) -> Option<String> {
    let Attempt { mini_batch, rejected, rejected_part, .. } = attempt;
    let items = attempt.items_rejected();
    let names_none = rejected.is_empty() && rejected_part.is_none();
    let is_possible =
        attempt.status == AttemptStatus::Succeeded || names_none || items == attempt.total;
    if !is_possible || items > attempt.failed() || rejected.len() > REJECTED_MAX {
        return Some(format!("mini-batch {mini_batch} claims to have rejected {items} items"));
    }
    let part = rejected_part.as_deref()?;
    let others = part.others.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
    let named = rejected.iter().fold(0u64, |items, rejected| items.saturating_add(rejected.items));
    if others.saturating_add(named) > part.items {
        return Some(format!(
            "mini-batch {mini_batch} claims to have rejected {items} items and more"
        ));
    }
    (!is_part_of(&part.name, *mini_batch))
        .then(|| format!("{:?} is not a part of mini-batch {mini_batch}", part.name))
}

/// What is known of the plan in the store, which holds a chunk before its first mini-batch is sent, and the totals before
/// they are announced.
#[derive(Debug, Default)]
pub(crate) struct KnownPlan {
    /// Number of mini-batches of the chunks that are known to exist.
    mini_batches: u64,
    totals: Option<Planned>,
}

impl KnownPlan {
    /// Removes the events of a batch that name mini-batches outside the plan, or another plan.
    pub async fn take_refused(
        &mut self,
        batch: &mut Batch,
        store: &JobStore,
    ) -> Result<Vec<Unreadable>> {
        self.learn(batch.events(), store).await?;
        Ok(batch.take_refused(|record| self.refused(record.event)))
    }

    /// Returns why the first invalid event of a segment contradicts the plan: somebody has changed
    /// ledger or plan.
    pub async fn contradicted(
        &mut self,
        segment: &Batch,
        store: &JobStore,
    ) -> Result<Option<String>> {
        self.learn(segment.events(), store).await?;
        Ok(segment.events().find_map(|event| self.refused(event)))
    }

    fn refused(&self, event: &Event) -> Option<String> {
        match (event.attempted(), event.other()) {
            (Some(mini_batch), _) if mini_batch >= self.mini_batches => {
                Some(format!("mini-batch {mini_batch} is not in the plan"))
            }
            (_, Some(ResultEvent::Planned(planned))) if self.totals.as_ref() != Some(planned) => {
                Some(format!(
                    "the plan in the store does not have {} mini-batches",
                    planned.mini_batches
                ))
            }
            _ => None,
        }
    }

    /// Reads the parts of the plan that the check of these events needs.
    async fn learn<'a>(
        &mut self,
        events: impl Iterator<Item = &'a Event>,
        store: &JobStore,
    ) -> Result<()> {
        let mut unknown = Vec::new();
        let mut names_totals = false;
        for event in events {
            unknown.extend(event.attempted().filter(|&mini_batch| mini_batch >= self.mini_batches));
            names_totals |= matches!(event.other(), Some(ResultEvent::Planned(_)));
        }
        if self.totals.is_some() || unknown.is_empty() && !names_totals {
            return Ok(());
        }
        if let Some(complete) = store.plan_complete().await? {
            self.mini_batches = complete.mini_batches;
            self.totals =
                Some(Planned { mini_batches: complete.mini_batches, items: complete.items });
            return Ok(());
        }
        unknown.sort_unstable();
        for number in unknown {
            let chunk = PlanPosition::of(number).chunk;
            if number < self.mini_batches {
                continue;
            }
            // Chunks are created in order: none follows a missing one.
            if !store.has_plan_chunk(chunk).await? {
                break;
            }
            self.mini_batches = PlanPosition::first_of(chunk.saturating_add(1));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use object_store::memory::InMemory;
    use protocol::{JobState, Rejected, RejectedPart, encode_record};
    use storage::PlanComplete;

    use super::*;
    use crate::fixtures::{event, failed, rejected, succeeded};

    fn batch(events: &[ResultEvent]) -> Batch {
        let mut body = Vec::new();
        events.iter().for_each(|event| encode_record(event, b"", &mut body));
        let mut batch = Batch::default();
        assert!(batch.add(&Bytes::from(body)).is_none());
        batch
    }

    fn attempt(mini_batch: u64) -> ResultEvent {
        event(succeeded(mini_batch, 1, 1, 1))
    }

    fn part(mini_batch: u64, name: &str) -> ResultEvent {
        let mut attempt = succeeded(mini_batch, 1, 1, 1);
        attempt.rows = Rows::Part { name: name.to_owned(), bytes: 4 };
        event(attempt)
    }

    /// Returns the reasons against the compact form and the JSON form of an event.
    fn reasons(event: &ResultEvent) -> [Option<String>; 2] {
        let read = batch(std::slice::from_ref(event));
        let record = read.records().next().expect("one");
        assert!(matches!(record.event, Event::Success(_)));
        [refused(record), refused_event(event)]
    }

    #[test]
    fn event_that_only_reducers_write_is_refused() {
        for event in [
            ResultEvent::Ended { state: JobState::Completed, cause: None, error: None },
            ResultEvent::Round(protocol::Round { failed: true, ..Default::default() }),
            ResultEvent::RowsLost { mini_batches: vec![0] },
            ResultEvent::CutShort,
            ResultEvent::Duplicates { count: u64::MAX },
        ] {
            let reason = refused_event(&event).expect("refused");
            assert!(reason.starts_with("only a reducer"), "{reason}");
        }
        assert_eq!(reasons(&attempt(7)), [None, None]);
    }

    #[test]
    fn part_of_another_mini_batch_is_refused() {
        assert_eq!(reasons(&part(7, "0000000007-1-0-node-17")), [None, None]);
        for name in [
            "0000000008-1-0-node-17",
            "../../jobs/other/parts/0000000007-1",
            "7-/../../spec.json",
            "/etc/shadow",
        ] {
            for reason in reasons(&part(7, name)) {
                assert!(
                    reason.expect("refused").ends_with("is not a part of mini-batch 7"),
                    "{name}"
                );
            }
        }
        let mut many = succeeded(7, 1, 1, 1);
        many.total = u64::MAX;
        assert!(reasons(&event(many)).iter().all(Option::is_some));
    }

    #[test]
    fn more_rejected_items_than_failed_ones_are_refused() {
        let claim = |attempt: Attempt, items| {
            let rejected = vec![Rejected { items, ..rejected(0) }];
            refused_event(&event(Attempt { rejected, ..attempt })).is_some()
        };
        assert!(!claim(succeeded(7, 1, 10, 8), 2));
        assert!(claim(succeeded(7, 1, 10, 8), 3) && claim(succeeded(7, 1, 10, 8), u64::MAX));
        assert!(claim(failed(7, 1, true, 10), 1), "it failed as a whole");
        assert!(!claim(failed(7, 1, true, 10), 10));
    }

    #[test]
    fn list_of_rejected_items_must_be_possible() {
        let claim = |attempt: Attempt, name: &str, items, others| {
            let others = vec![("KeyError".to_owned(), others)];
            let part =
                RejectedPart { name: name.into(), bytes: 1, items, has_failed_runs: true, others };
            let attempt = Attempt { rejected_part: Some(Box::new(part)), ..attempt };
            refused_event(&event(attempt))
        };
        let success = || succeeded(7, 1, 1000, 300);
        assert_eq!(claim(success(), "0000000007-1-0-node-17-rejected", 700, 444), None);
        let foreign =
            claim(success(), "0000000008-1-0-node-17-rejected", 700, 444).expect("refused");
        assert!(foreign.ends_with("is not a part of mini-batch 7"), "{foreign}");
        assert!(claim(success(), "../../spec.json", 700, 444).is_some());
        assert!(claim(success(), "7-1", 701, 444).is_some(), "more than have no result");
        assert!(claim(success(), "7-1", 700, u64::MAX).is_some(), "more than are rejected");
        assert!(claim(failed(7, 1, true, 10), "7-1", 1, 1).is_some(), "it failed as a whole");
    }

    #[tokio::test]
    async fn mini_batch_outside_the_plan_is_refused() {
        let store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
        for chunk in 0..2 {
            store.create_plan_chunk(chunk, Bytes::from_static(b"{}\n")).await.expect("writable");
        }
        let mut plan = KnownPlan::default();
        let mut batch_of = batch(&[attempt(1024), attempt(0), attempt(1023), attempt(u64::MAX)]);
        let refused = plan.take_refused(&mut batch_of, &store).await.expect("readable");
        let reasons: Vec<&str> = refused.iter().map(|refused| refused.reason.as_str()).collect();
        assert_eq!(
            reasons,
            [
                "mini-batch 1024 is not in the plan",
                "mini-batch 18446744073709551615 is not in the plan"
            ]
        );
        assert_eq!(batch_of.events().count(), 2);

        store.create_plan_chunk(2, Bytes::from_static(b"{}\n")).await.expect("writable");
        let refused =
            plan.take_refused(&mut batch(&[attempt(1024)]), &store).await.expect("readable");
        assert!(refused.is_empty(), "chunk 2 exists now");
    }

    #[tokio::test]
    async fn plan_totals_must_match_the_store() {
        let store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
        let mut plan = KnownPlan::default();
        let planned = |mini_batches| ResultEvent::Planned(Planned { mini_batches, items: None });
        let early = plan.take_refused(&mut batch(&[planned(0)]), &store).await.expect("readable");
        assert_eq!(early[0].reason, "the plan in the store does not have 0 mini-batches");
        let complete = PlanComplete { mini_batches: 3, files: 3, ..PlanComplete::default() };
        store.put_plan_complete(&complete).await.expect("writable");
        let mut events = batch(&[planned(3), planned(2), attempt(2), attempt(3)]);
        let refused = plan.take_refused(&mut events, &store).await.expect("readable");
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert_eq!(events.events().count(), 2);
    }
}
