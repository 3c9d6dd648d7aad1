//! Records when a command reused the result of a job, instead of running the job again.

use protocol::milliseconds_since_epoch;
use serde::{Deserialize, Serialize};

use super::{JobStore, json};
use crate::{Error, Result};

const NAME: &str = "reused.json";
/// The largest number of times that are kept.
const TIMES_MAX: usize = 20;

/// The reuses of the result of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reuses {
    /// The number of reuses. Two at the same time may count as one.
    pub count: u64,
    /// The times of the latest reuses, in milliseconds since the epoch, oldest first.
    pub times: Vec<u64>,
}

impl JobStore {
    /// Returns how often the result of the job was reused.
    pub async fn reuses(&self) -> Result<Reuses> {
        match self.objects.json(NAME).await {
            Err(Error::NotFound { .. } | Error::Damaged { .. }) => Ok(Reuses::default()),
            reuses => reuses,
        }
    }

    /// Records that the result of the job is reused now.
    pub async fn add_reuse(&self) -> Result<()> {
        let Reuses { count, mut times } = self.reuses().await?;
        times.push(milliseconds_since_epoch());
        times.drain(..times.len().saturating_sub(TIMES_MAX));
        let reuses = Reuses { count: count.saturating_add(1), times };
        self.objects.put(NAME, json(&reuses)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reuses_are_counted_and_the_latest_times_are_kept() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = JobStore::local(folder.path()).expect("folder exists");
        assert_eq!(job.reuses().await.expect("readable"), Reuses::default());
        for _ in 0..=TIMES_MAX {
            job.add_reuse().await.expect("writable");
        }
        let Reuses { count, times } = job.reuses().await.expect("readable");
        assert_eq!((count, times.len()), (TIMES_MAX as u64 + 1, TIMES_MAX));
        assert!(times.is_sorted() && times[0] > 1_700_000_000_000, "{times:?}");
        std::fs::write(folder.path().join(NAME), "{").expect("writable");
        job.add_reuse().await.expect("writable");
        assert_eq!(job.reuses().await.expect("readable").count, 1, "a damaged record begins anew");
    }
}
