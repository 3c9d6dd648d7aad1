//! Lets one job at a time have a node for itself, for a mini-batch that may kill the node, and remembers on disk which ones
//! did.
//!
//! Like a lock for many readers and one writer: agents that hold mini-batches are readers, and an agent that needs the node
//! for itself is the writer. Agents ask in each turn of their loops, before they hand mini-batches to processes.
//!
//! While the writer has the node or waits for it, all others return what they have not begun, and
//! begin nothing. The node notes the run in a file before it begins, and removes the file
//! afterwards: a file that is left names the mini-batch that killed the node.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// What a job may do on a node while mini-batches that may kill it run alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// It works beside others.
    #[default]
    Shared,
    /// No other job holds a mini-batch, or begins one.
    Exclusive,
    /// Another job has the node for itself, or waits for it: this one holds nothing that it need not.
    Denied,
}

/// What the agents of a node share.
#[derive(Clone, Debug, Default)]
pub struct Solitude {
    jobs: Arc<Mutex<Jobs>>,
    /// Where the node remembers which mini-batches killed it; other nodes of the machine may use it, too.
    folder: PathBuf,
}

#[derive(Debug, Default)]
struct Jobs {
    /// The job that has the node for itself, or waits for it.
    exclusive: Option<String>,
    /// Those that hold mini-batches.
    holding: BTreeSet<String>,
}

/// The part of one job, until it is dropped.
#[derive(Debug)]
pub struct Tenant {
    solitude: Solitude,
    job_id: String,
}

impl Solitude {
    pub fn new(folder: PathBuf) -> Self {
        Self { jobs: Arc::default(), folder }
    }

    /// Begins the part of a job.
    pub fn enter(&self, job_id: &str) -> Tenant {
        Tenant { solitude: self.clone(), job_id: job_id.to_owned() }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.access(false, false);
    }
}

impl Tenant {
    /// Returns what the job may do. `wants`: it needs the node for itself; `holds`: it holds mini-batches.
    pub fn access(&self, wants: bool, holds: bool) -> Access {
        let mut jobs = self.solitude.jobs.lock().expect("no holder panics");
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
        self.solitude.folder.join(format!("{}-{mini_batch}", self.job_id))
    }

    /// Returns how often a node of this machine has died while it ran only this mini-batch.
    pub fn deaths(&self, mini_batch: u64) -> u32 {
        let count = fs::read_to_string(self.file(mini_batch)).ok();
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Notes that a mini-batch is about to run alone. The note outlives the node.
    pub fn begin(&self, mini_batch: u64) -> io::Result<()> {
        let deaths = self.deaths(mini_batch).saturating_add(1);
        fs::create_dir_all(&self.solitude.folder)?;
        let mut file = File::create(self.file(mini_batch))?;
        file.write_all(deaths.to_string().as_bytes())?;
        file.sync_all()
    }

    /// Notes that it has not killed the node, or counts no more.
    pub fn end(&self, mini_batch: u64) {
        let _ = fs::remove_file(self.file(mini_batch));
    }
}

#[cfg(test)]
mod tests {
    use super::Access::{Denied, Exclusive, Shared};
    use super::*;

    #[test]
    fn one_job_at_a_time_has_the_node_for_itself_once_others_hold_nothing() {
        let solitude = Solitude::default();
        let [a, b] = ["a", "b"].map(|job| solitude.enter(job));
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
        let tenant = || Solitude::new(folder.path().join("alone")).enter("job");
        assert_eq!(tenant().deaths(3), 0);
        for deaths in 1..3 {
            tenant().begin(3).expect("writable");
            assert_eq!((tenant().deaths(3), tenant().deaths(4)), (deaths, 0));
        }
        tenant().end(3);
        assert_eq!(tenant().deaths(3), 0);
    }
}
