//! Quotas of a target, and the turns of jobs that wait because of them.
//!
//! `open/<job_id>` says whether a job runs, waits or begins. A job begins once it is in a turn: the numbered objects
//! `turns/<number>` are created if absent, so of two processes that let jobs begin at the same time one fails, and no
//! limit is exceeded. Its mini-batches are published after that; then the job runs.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use protocol::{Quotas, is_job_id};
use serde::{Deserialize, Serialize};

use super::TargetStore;
use crate::create::{Commit, create};
use crate::random::random_bits;
use crate::{Error, Result};

const WAITS: &[u8] = b"waits";
const BEGINS: &[u8] = b"begins";
/// Old turns that are kept.
const TURNS_KEPT: u64 = 16;

/// Whether an open job of a target may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnState {
    /// Its mini-batches are published, or being published by the command that enqueued it.
    Runs,
    /// It waits for its turn; [`JobStore::wait_reason`](crate::JobStore::wait_reason) says why.
    Waits,
    /// A reducer publishes its mini-batches.
    Begins,
}

/// A job that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenJob {
    /// Its id.
    pub job_id: String,
    /// Whether it runs. If not, it waits or begins.
    pub runs: bool,
    /// When that changed last, by the clock of the store.
    pub changed_at: DateTime<Utc>,
}

/// The jobs that have begun, and may not run yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Their ids.
    pub jobs: Vec<String>,
    /// Different for every turn, so that one of two equal ones is lost.
    claim: u64,
}

impl Turn {
    /// Creates a turn.
    pub fn new(jobs: Vec<String>) -> Self {
        Self { jobs, claim: random_bits() }
    }
}

impl TargetStore {
    /// Returns the quotas; `None`: the target has never had any.
    pub async fn quotas(&self) -> Result<Option<Quotas>> {
        match self.read("quotas.json").await? {
            Some(bytes) => {
                let quotas = serde_json::from_slice(&bytes);
                quotas.map(Some).map_err(|error| Error::damaged(self.name("quotas.json"), error))
            }
            None => Ok(None),
        }
    }

    /// Replaces the quotas.
    pub async fn put_quotas(&self, quotas: &Quotas) -> Result<()> {
        self.write("quotas.json", serde_json::to_vec_pretty(quotas).expect("plain data always serialises")).await
    }

    /// Says whether an open job runs, waits or begins.
    pub async fn put_turn_state(&self, job_id: &str, state: TurnState) -> Result<()> {
        let body = match state {
            TurnState::Runs => b"",
            TurnState::Waits => WAITS,
            TurnState::Begins => BEGINS,
        };
        self.write(&format!("open/{job_id}"), body.to_vec()).await
    }

    /// Returns whether a job runs, waits or begins; `None`: it is not open.
    pub async fn turn_state(&self, job_id: &str) -> Result<Option<TurnState>> {
        Ok(self.read(&format!("open/{job_id}")).await?.map(|body| match &body[..] {
            WAITS => TurnState::Waits,
            BEGINS => TurnState::Begins,
            _ => TurnState::Runs,
        }))
    }

    /// Returns the jobs that have not ended, sorted by their ids.
    pub async fn open_turns(&self) -> Result<Vec<OpenJob>> {
        let job = |meta: ObjectMeta| {
            let job_id = meta.location.filename().filter(|name| is_job_id(name))?.to_owned();
            Some(OpenJob { job_id, runs: meta.size == 0, changed_at: meta.last_modified })
        };
        let listed = self.store.list(Some(&self.path("open"))).try_filter_map(|meta| async move { Ok(job(meta)) });
        let jobs = listed.try_collect::<Vec<_>>().await;
        let mut jobs = jobs.map_err(|error| Error::from_store(&self.name("open"), error))?;
        jobs.sort_by(|one, other| one.job_id.cmp(&other.job_id));
        Ok(jobs)
    }

    /// Returns the last turn and its number; number 0 is empty.
    pub async fn last_turn(&self) -> Result<(u64, Turn)> {
        let listed = self
            .store
            .list(Some(&self.path("turns")))
            .try_filter_map(|meta| async move { Ok(meta.location.filename().and_then(|name| name.parse().ok())) });
        let last = listed.try_fold(0, |last: u64, number: u64| async move { Ok(last.max(number)) }).await;
        let last = last.map_err(|error| Error::from_store(&self.name("turns"), error))?;
        let bytes = if last == 0 { None } else { self.read(&turn(last)).await? };
        let read = bytes.map_or(Ok(Turn::default()), |bytes| serde_json::from_slice(&bytes));
        Ok((last, read.map_err(|error| Error::damaged(self.name(&turn(last)), error))?))
    }

    /// Creates the turn after the one with number `last`, and removes older ones. Returns `Lost` if another process has
    /// created it.
    pub async fn create_turn(&self, last: u64, next: &Turn) -> Result<Commit> {
        let (name, body) = (turn(last + 1), serde_json::to_vec(next).expect("plain data always serialises"));
        let commit = create(&*self.store, &self.path(&name), &self.name(&name), body.into()).await?;
        // A slow process may still try to create one of the last turns, which must then be there.
        if let Some(old) = last.checked_sub(TURNS_KEPT).filter(|_| commit == Commit::Committed) {
            let _ = self.store.delete(&self.path(&turn(old))).await;
        }
        Ok(commit)
    }

    pub(super) async fn write(&self, name: &str, body: Vec<u8>) -> Result<()> {
        let put = self.store.put(&self.path(name), body.into()).await;
        put.map(drop).map_err(|error| Error::from_store(&self.name(name), error))
    }

    pub(super) async fn read(&self, name: &str) -> Result<Option<Bytes>> {
        let read = async { self.store.get(&self.path(name)).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Error::from_store(&self.name(name), error)),
        }
    }
}

fn turn(number: u64) -> String {
    format!("turns/{number:010}")
}

#[cfg(test)]
mod tests {
    use protocol::OwnerQuota;

    use super::super::tests::targets;
    use super::*;

    const JOB: &str = "a-20261121-100203-ab12";

    #[tokio::test]
    async fn quotas_are_kept() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            assert_eq!(target.quotas().await.expect("readable"), None);
            let each_owner = OwnerQuota { max_jobs: Some(3), max_in_flight: Some(64) };
            let quotas = Quotas { max_jobs: Some(9), each_owner, ..Quotas::default() };
            target.put_quotas(&quotas).await.expect("writable");
            assert_eq!(target.quotas().await.expect("readable"), Some(quotas));
        }
    }

    #[tokio::test]
    async fn open_job_runs_waits_or_begins() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            assert_eq!(target.turn_state(JOB).await.expect("readable"), None);
            for state in [TurnState::Waits, TurnState::Begins, TurnState::Runs] {
                target.put_turn_state(JOB, state).await.expect("writable");
                assert_eq!(target.turn_state(JOB).await.expect("readable"), Some(state));
                let open = target.open_turns().await.expect("readable");
                let open: Vec<_> = open.iter().map(|job| (&*job.job_id, job.runs)).collect();
                assert_eq!(open, [(JOB, state == TurnState::Runs)]);
            }
            let job = target.job(JOB);
            assert_eq!(job.wait_reason().await.expect("readable"), None);
            job.put_wait_reason("owner ana has 1 of 1 jobs running\u{1b}[2J").await.expect("writable");
            let reason = job.wait_reason().await.expect("readable");
            assert_eq!(reason.as_deref(), Some("owner ana has 1 of 1 jobs running[2J"));
        }
    }

    #[tokio::test]
    async fn one_process_creates_the_next_turn() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            assert_eq!(target.last_turn().await.expect("readable"), (0, Turn::default()));
            for number in 0..20 {
                let turn = Turn::new(vec![format!("job-{number}")]);
                assert_eq!(target.create_turn(number, &turn).await.expect("writable"), Commit::Committed);
                assert_eq!(
                    target.create_turn(number, &Turn::new(turn.jobs.clone())).await.expect("is there"),
                    Commit::Lost
                );
                assert_eq!(target.last_turn().await.expect("readable"), (number + 1, turn));
            }
            assert_eq!(
                target.create_turn(15, &Turn::default()).await.expect("is there"),
                Commit::Lost,
                "a late process"
            );
        }
    }
}
