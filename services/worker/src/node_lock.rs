//! Gives one job at a time exclusive use of a node, for a mini-batch that may kill the node, and
//! records on disk the mini-batches that did.
//!
//! Like a lock for many readers and one writer: agents that hold mini-batches are readers, and an
//! agent that needs exclusive use is the writer. Agents ask in each iteration of their loops,
//! before they hand mini-batches to processes.
//!
//! While the writer has or awaits exclusive use, all others return unstarted mini-batches, and start
//! nothing. The node records the run in a file before it begins, and removes the file afterwards: a
//! file that is left names the mini-batch that killed the node.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// The access of a job to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// The job works beside others.
    #[default]
    Shared,
    /// No other job holds a mini-batch, or begins one.
    Exclusive,
    /// Another job has or awaits exclusive use: this one returns its unstarted mini-batches.
    Denied,
}

/// The lock that the agents of a node share.
#[derive(Clone, Debug, Default)]
pub struct NodeLock {
    jobs: Arc<Mutex<Jobs>>,
    /// The folder with the records of mini-batches that killed the node; other nodes of the machine
    /// may use it, too.
    folder: PathBuf,
}

#[derive(Debug, Default)]
struct Jobs {
    /// The job that has or awaits exclusive use.
    exclusive: Option<String>,
    /// The jobs that hold mini-batches.
    holding: BTreeSet<String>,
}

/// The handle of one job. Dropping it releases the node.
#[derive(Debug)]
pub struct NodeLockHolder {
    node_lock: NodeLock,
    job_id: String,
}

impl NodeLock {
    pub fn new(folder: PathBuf) -> Self {
        Self { jobs: Arc::default(), folder }
    }

    /// Returns the handle of a job.
    pub fn enter(&self, job_id: &str) -> NodeLockHolder {
        NodeLockHolder { node_lock: self.clone(), job_id: job_id.to_owned() }
    }
}

impl Drop for NodeLockHolder {
    fn drop(&mut self) {
        self.access(false, false);
    }
}

impl NodeLockHolder {
    /// Returns the access of the job. `wants`: it needs exclusive use; `holds`: it holds
    /// mini-batches.
    pub fn access(&self, wants: bool, holds: bool) -> Access {
        let mut jobs = self.node_lock.jobs.lock().expect("no holder panics");
        let job_id = self.job_id.as_str();
        match holds {
            true if !jobs.holding.contains(job_id) => drop(jobs.holding.insert(job_id.to_owned())),
            true => {}
            false => drop(jobs.holding.remove(job_id)),
        }
        match &jobs.exclusive {
            None if wants => jobs.exclusive = Some(job_id.to_owned()),
            Some(holder) if holder == job_id && !wants => jobs.exclusive = None,
            _ => {}
        }
        match &jobs.exclusive {
            Some(holder) if holder != job_id => Access::Denied,
            Some(_) if jobs.holding.iter().all(|holding| holding == job_id) => Access::Exclusive,
            _ => Access::Shared,
        }
    }

    fn file(&self, mini_batch: u64) -> PathBuf {
        self.node_lock.folder.join(format!("{}-{mini_batch}", self.job_id))
    }

    /// Returns how often a node of this machine has died while it ran only this mini-batch.
    pub fn deaths(&self, mini_batch: u64) -> u32 {
        let count = fs::read_to_string(self.file(mini_batch)).ok();
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Records that a mini-batch is about to run alone. The record outlives the node.
    pub fn begin(&self, mini_batch: u64) -> io::Result<()> {
        let deaths = self.deaths(mini_batch).saturating_add(1);
        fs::create_dir_all(&self.node_lock.folder)?;
        let mut file = File::create(self.file(mini_batch))?;
        file.write_all(deaths.to_string().as_bytes())?;
        file.sync_all()
    }

    /// Removes the record: the mini-batch has not killed the node, or its deaths no longer count.
    pub fn end(&self, mini_batch: u64) {
        let _ = fs::remove_file(self.file(mini_batch));
    }
}

#[cfg(test)]
mod tests {
    use super::Access::{Denied, Exclusive, Shared};
    use super::*;

    #[test]
    fn one_job_at_a_time_has_exclusive_use_once_others_hold_nothing() {
        let node_lock = NodeLock::default();
        let [a, b] = ["a", "b"].map(|job| node_lock.enter(job));
        assert_eq!(a.access(false, true), Shared);
        assert_eq!(b.access(true, true), Shared, "another job still holds a mini-batch");
        assert_eq!(a.access(false, true), Denied);
        assert_eq!(b.access(true, true), Shared);
        assert_eq!(a.access(true, false), Denied);
        assert_eq!(b.access(true, true), Exclusive);
        assert_eq!(b.access(false, true), Shared);
        assert_eq!(a.access(true, false), Shared, "the other one goes on");
        drop(b);
        assert_eq!(a.access(true, true), Exclusive);
    }

    #[test]
    fn deaths_are_remembered_until_the_mini_batch_has_run() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let node_lock = || NodeLock::new(folder.path().join("alone")).enter("job");
        assert_eq!(node_lock().deaths(3), 0);
        for deaths in 1..3 {
            node_lock().begin(3).expect("writable");
            assert_eq!((node_lock().deaths(3), node_lock().deaths(4)), (deaths, 0));
        }
        node_lock().end(3);
        assert_eq!(node_lock().deaths(3), 0);
    }
}
