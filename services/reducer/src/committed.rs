//! Reads the ledger of a job for callers that do not serve the job and change nothing.

use std::time::Duration;

use protocol::Progress;
use storage::JobStore;

use crate::Tally;
use crate::ledger::Ledger;

/// Segments that are read concurrently.
const SEGMENTS_AHEAD: usize = 4;

/// Returns the progress of a job that no reducer serves, updated with the readable part of its ledger. A killed reducer
/// has committed more than its last progress shows.
pub async fn committed(store: &JobStore, job_id: &str, progress: Progress) -> Progress {
    let mut tally = Tally::default();
    // What cannot be read is left out.
    let _ = read_into(&mut tally, store, job_id).await;
    committed_in(&tally, progress)
}

/// Returns the tally of the ledger of a job that no reducer serves.
pub async fn tally_of(store: &JobStore, job_id: &str) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    read_into(&mut tally, store, job_id).await?;
    Ok(tally)
}

async fn read_into(tally: &mut Tally, store: &JobStore, job_id: &str) -> anyhow::Result<()> {
    let mut ledger = Ledger::new(store.clone(), job_id, Duration::ZERO);
    while let Some(segment) = ledger.read_next(SEGMENTS_AHEAD).await? {
        for record in segment.records() {
            tally.apply_record(record);
        }
    }
    Ok(())
}

/// Returns the progress of a job that no reducer serves, updated with the tally of its ledger if that is newer: what
/// had ended may be pending again since another round began.
pub fn committed_in(tally: &Tally, mut progress: Progress) -> Progress {
    let shown = (progress.rounds.len().saturating_sub(1) as u64, progress.mini_batches.ended());
    if (tally.rounds(), tally.ended()) >= shown {
        tally.write_counts(&mut progress);
    }
    progress
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::{Counts, ResultEvent, Round};

    use super::*;
    use crate::Reducer;
    use crate::fixtures::{event, failed, fold, message, succeeded};

    #[test]
    fn round_that_a_killed_reducer_has_begun_is_newer_than_its_last_progress() {
        let mut tally = fold(&[event(succeeded(0, 1, 2, 2)), event(failed(1, 3, true, 2))]);
        let before = committed_in(&tally, Reducer::no_progress());
        assert_eq!((before.mini_batches.ended(), before.rounds.len()), (2, 0));
        tally.apply(&ResultEvent::Round(Round { failed: true, ..Round::default() }));
        let after = committed_in(&tally, before.clone());
        assert_eq!((after.mini_batches.ended(), after.rounds.len()), (1, 2));
        let damaged = fold(&[event(succeeded(0, 1, 2, 2))]);
        assert_eq!(committed_in(&damaged, before.clone()), before, "the progress is newer");
    }

    #[tokio::test]
    async fn ledger_completes_the_progress_of_a_killed_reducer() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::local(folder.path()).expect("it is there");
        for segment in 0..3 {
            let pieces = vec![Bytes::from(message(segment, b"row\n"))];
            store.commit_segment(segment, pieces).await.expect("writable");
        }
        let before = Reducer::no_progress();
        let after = committed(&store, "job", before.clone()).await;
        assert_eq!(after.mini_batches, Counts { total: 0, succeeded: 3, failed: 0 });
        assert_eq!((after.items.succeeded, after.at), (3, before.at));
        std::fs::write(store.segment_file(1).expect("a folder"), b"").expect("writable");
        let damaged = committed(&store, "job", before).await;
        assert_eq!(damaged.mini_batches.succeeded, 1, "the readable part counts");
        assert_eq!(committed(&store, "job", after.clone()).await, after, "the progress was newer");
    }
}
