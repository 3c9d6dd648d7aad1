//! What is believed of a result message. Whoever can write to the result queue can say how a mini-batch ended; that is
//! what workers are for. He cannot say what only a reducer says, name rows of another mini-batch, invent mini-batches,
//! or end the plan before its end.

use protocol::{Planned, ResultEvent, Rows, is_part_of};
use storage::{JobStore, PLAN_CHUNK_MINI_BATCHES, Result};

use crate::batch::{Batch, Event, Unreadable};

/// The items of one result, and its warnings: more than any process could have made, and sums of them stay numbers.
const COUNT_MAX: u64 = u32::MAX as u64;

/// Why an event is refused that came through the queue, by what it says alone.
pub(crate) fn refused(event: &Event) -> Option<String> {
    let only_reducers = |what: &str| Some(format!("only a reducer says that {what}"));
    let event = match event {
        Event::Success(success) => return refused_attempt(success.mini_batch, success.total, &success.rows),
        Event::Other(event) => &**event,
    };
    match event {
        ResultEvent::Attempt(attempt) => {
            refused_attempt(attempt.mini_batch, attempt.total.max(attempt.warnings_total), &attempt.rows)
        }
        ResultEvent::Reopened { .. } => only_reducers("a job was opened again"),
        ResultEvent::Ended { .. } => only_reducers("a job has ended"),
        ResultEvent::RowsLost { .. } => only_reducers("rows are lost"),
        ResultEvent::CutShort => only_reducers("a segment was cut short"),
        ResultEvent::Duplicates { .. } => only_reducers("attempts came twice"),
        ResultEvent::Job { .. }
        | ResultEvent::Planned(_)
        | ResultEvent::PlanFailed { .. }
        | ResultEvent::ProcessStarted { .. }
        | ResultEvent::ProcessReady { .. }
        | ResultEvent::InitFailed { .. }
        | ResultEvent::ProcessEnded { .. }
        | ResultEvent::NodeStopped { .. }
        | ResultEvent::Waiting(_) => None,
    }
}

fn refused_attempt(mini_batch: u64, count: u64, rows: &Rows) -> Option<String> {
    if count > COUNT_MAX {
        return Some(format!("mini-batch {mini_batch} would have more items or warnings than any"));
    }
    match rows {
        Rows::Part { name, .. } if !is_part_of(name, mini_batch) => {
            Some(format!("{name:?} is no part of mini-batch {mini_batch}"))
        }
        _ => None,
    }
}

/// What the store says was published. A chunk of the plan stands there before its first mini-batch is sent, and the
/// plan's totals before anybody is told of them.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// No mini-batch from this one on is known to be published.
    mini_batches: u64,
    totals: Option<Planned>,
}

impl Published {
    /// Takes those events out of a batch that speak of mini-batches which were never published, or of another plan.
    pub async fn take_refused(&mut self, batch: &mut Batch, store: &JobStore) -> Result<Vec<Unreadable>> {
        self.learn(batch.events(), store).await?;
        Ok(batch.take_refused(|event| self.refused(event)))
    }

    /// Why the first of these events of the ledger cannot be: somebody has changed it, or the plan.
    pub async fn contradicted(&mut self, segment: &Batch, store: &JobStore) -> Result<Option<String>> {
        self.learn(segment.events(), store).await?;
        Ok(segment.events().find_map(|event| self.refused(event)))
    }

    fn refused(&self, event: &Event) -> Option<String> {
        match (event.attempted(), event.other()) {
            (Some(mini_batch), _) if mini_batch >= self.mini_batches => {
                Some(format!("mini-batch {mini_batch} was never published"))
            }
            (_, Some(ResultEvent::Planned(planned))) if self.totals.as_ref() != Some(planned) => {
                Some(format!("the plan in the store is not one of {} mini-batches", planned.mini_batches))
            }
            _ => None,
        }
    }

    /// Asks the store for what is needed to judge these events.
    async fn learn<'a>(&mut self, events: impl Iterator<Item = &'a Event>, store: &JobStore) -> Result<()> {
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
            self.totals = Some(Planned { mini_batches: complete.mini_batches, items: complete.items });
            return Ok(());
        }
        unknown.sort_unstable();
        for number in unknown {
            let chunk = number / PLAN_CHUNK_MINI_BATCHES;
            if number < self.mini_batches {
                continue;
            }
            // Chunks are made in order: behind one that is missing there is none.
            if !store.has_plan_chunk(chunk).await? {
                break;
            }
            self.mini_batches = chunk.saturating_add(1).saturating_mul(PLAN_CHUNK_MINI_BATCHES);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use object_store::memory::InMemory;
    use protocol::{JobState, encode_record};
    use storage::PlanComplete;

    use super::*;
    use crate::fixtures::succeeded;

    fn batch(events: &[ResultEvent]) -> Batch {
        let mut body = Vec::new();
        events.iter().for_each(|event| encode_record(event, b"", &mut body));
        let mut batch = Batch::default();
        assert!(batch.add(&Bytes::from(body)).is_none());
        batch
    }

    fn attempt(mini_batch: u64) -> ResultEvent {
        ResultEvent::Attempt(Box::new(succeeded(mini_batch, 1, 1, 1)))
    }

    fn part(mini_batch: u64, name: &str) -> ResultEvent {
        let mut attempt = succeeded(mini_batch, 1, 1, 1);
        attempt.rows = Rows::Part { name: name.to_owned(), bytes: 4 };
        ResultEvent::Attempt(Box::new(attempt))
    }

    /// Of an ordinary success, and of the same written as JSON.
    fn reasons(event: &ResultEvent) -> [Option<String>; 2] {
        let read = batch(std::slice::from_ref(event));
        let read = read.events().next().expect("one");
        assert!(matches!(read, Event::Success(_)));
        [refused(read), refused(&event.clone().into())]
    }

    #[test]
    fn what_only_reducers_say_is_not_believed_of_others() {
        for event in [
            ResultEvent::Ended { state: JobState::Completed, cause: None },
            ResultEvent::Reopened { at: 0 },
            ResultEvent::RowsLost { mini_batches: vec![0] },
            ResultEvent::CutShort,
            ResultEvent::Duplicates { count: u64::MAX },
        ] {
            let reason = refused(&event.into()).expect("refused");
            assert!(reason.starts_with("only a reducer"), "{reason}");
        }
        assert_eq!(reasons(&attempt(7)), [None, None]);
    }

    #[test]
    fn rows_are_those_of_the_mini_batch_itself() {
        assert_eq!(reasons(&part(7, "0000000007-1-0-node-17")), [None, None]);
        for name in
            ["0000000008-1-0-node-17", "../../jobs/other/parts/0000000007-1", "7-/../../spec.json", "/etc/shadow"]
        {
            for reason in reasons(&part(7, name)) {
                assert!(reason.expect("refused").ends_with("is no part of mini-batch 7"), "{name}");
            }
        }
        let mut many = succeeded(7, 1, 1, 1);
        many.total = u64::MAX;
        assert!(reasons(&ResultEvent::Attempt(Box::new(many))).iter().all(Option::is_some));
    }

    #[tokio::test]
    async fn mini_batches_that_were_never_published_are_refused() {
        let store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
        for chunk in 0..2 {
            store.create_plan_chunk(chunk, Bytes::from_static(b"{}\n")).await.expect("writable");
        }
        let mut published = Published::default();
        let mut batch_of = batch(&[attempt(1024), attempt(0), attempt(1023), attempt(u64::MAX)]);
        let refused = published.take_refused(&mut batch_of, &store).await.expect("readable");
        let reasons: Vec<&str> = refused.iter().map(|refused| refused.reason.as_str()).collect();
        assert_eq!(
            reasons,
            ["mini-batch 1024 was never published", "mini-batch 18446744073709551615 was never published"]
        );
        assert_eq!(batch_of.events().count(), 2);

        store.create_plan_chunk(2, Bytes::from_static(b"{}\n")).await.expect("writable");
        let refused = published.take_refused(&mut batch(&[attempt(1024)]), &store).await.expect("readable");
        assert!(refused.is_empty(), "it is published now");
    }

    #[tokio::test]
    async fn the_plan_ends_where_the_store_says() {
        let store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
        let mut published = Published::default();
        let planned = |mini_batches| ResultEvent::Planned(Planned { mini_batches, items: None });
        let early = published.take_refused(&mut batch(&[planned(0)]), &store).await.expect("readable");
        assert_eq!(early[0].reason, "the plan in the store is not one of 0 mini-batches");
        let complete = PlanComplete { mini_batches: 3, items: None, files: 3, inputs_digest: String::new() };
        store.put_plan_complete(&complete).await.expect("writable");
        let mut events = batch(&[planned(3), planned(2), attempt(2), attempt(3)]);
        let refused = published.take_refused(&mut events, &store).await.expect("readable");
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert_eq!(events.events().count(), 2);
    }
}
