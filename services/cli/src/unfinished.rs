//! What of a job still has to be published, and why: told to people, and to the partitioner.

use std::collections::{BTreeMap, HashMap};

use partitioner::Pending;
use protocol::JobSpec;
use reducer::{MiniBatchState, Tally};

/// What still has to be published, and what it has spent.
pub struct Unfinished {
    /// Mini-batches that are not simply pending: `None` needs no message.
    known: BTreeMap<u64, Option<Pending>>,
    interrupted: usize,
    retrying: usize,
    /// Mini-batches of the whole job; `None`: not all are known.
    planned: Option<u64>,
}

impl Unfinished {
    /// A new job: everything.
    pub fn all() -> Self {
        Self { known: BTreeMap::new(), interrupted: 0, retrying: 0, planned: None }
    }

    /// What the tally does not know as ended; `interrupted` was in the hands of nodes that are gone.
    pub fn new(tally: &Tally, interrupted: HashMap<u64, u32>) -> Self {
        let mut unfinished = Self { planned: tally.planned().map(|planned| planned.mini_batches), ..Self::all() };
        let seen = unfinished.planned.unwrap_or(0);
        let seen = seen.max(tally.seen()).max(interrupted.keys().max().map_or(0, |last| last + 1));
        for mini_batch in 0..seen {
            let pending = match tally.state(mini_batch) {
                MiniBatchState::Succeeded | MiniBatchState::Failed => None,
                MiniBatchState::Pending | MiniBatchState::Retrying => {
                    let lost = interrupted.get(&mini_batch).copied();
                    let pending = Pending {
                        tries_spent: tally.tries_spent(mini_batch),
                        deliveries_lost: lost.unwrap_or_else(|| tally.deliveries_lost(mini_batch)),
                    };
                    if pending == Pending::default() {
                        continue;
                    }
                    unfinished.interrupted += usize::from(lost.is_some());
                    unfinished.retrying += usize::from(lost.is_none());
                    Some(pending)
                }
            };
            unfinished.known.insert(mini_batch, pending);
        }
        unfinished
    }

    /// What to publish of a mini-batch. `None`: nothing.
    pub fn pending(&self, mini_batch: u64) -> Option<Pending> {
        self.known.get(&mini_batch).copied().unwrap_or(Some(Pending::default()))
    }

    /// Why each group of mini-batches runs again or not.
    pub fn explain(&self, spec: &JobSpec, committed: u64, announced: u64, failed: u64, reopened: bool) -> String {
        let mut lines = vec![format!("continuing job {}:", spec.job_id)];
        let mut line = |count: u64, what: &str| {
            if count > 0 {
                lines.push(format!("  {count} mini-batches {what}"));
            }
        };
        line(committed, "are committed and do not run again");
        line(announced, "had been announced and are committed now; they do not run again");
        line(failed, if reopened { "had failed and run again, with all their tries" } else { "have failed for good" });
        line(
            self.interrupted as u64,
            &format!(
                "were interrupted in a node and run again; this costs no try (a mini-batch may be lost {} times)",
                spec.lost_delivery_max
            ),
        );
        line(self.retrying as u64, "had failed a try and run again");
        let told = self.known.len() as u64 + if reopened { failed } else { 0 };
        if self.planned.is_none_or(|planned| planned > told) {
            lines.push("  all others have not been tried yet".to_owned());
        }
        lines.join("\n")
    }
}

/// What to tell about successes that were taken back.
pub fn lost_rows(mini_batches: &[u64]) -> Option<String> {
    let first = mini_batches.first()?;
    Some(format!(
        "warning: the rows of {} mini-batches that had succeeded (the first is mini-batch {first}) are not there any more, \
         or not whole: a power cut takes what was not on the disk yet, and a completed job keeps only its output; these \
         mini-batches run again",
        mini_batches.len()
    ))
}
