//! Tells nodes which of them work on the job, and which must not. `exclusions.rs` decides.
//!
//! Nodes read `control/members` every four seconds once an attempt has failed there. An excluded
//! node returns its mini-batches and tries the job again after a minute (`EXCLUDED_FOR` of
//! `planner.rs`); its first success ends the exclusion. Log, status and summary name the node.

use std::collections::BTreeMap;

use protocol::Members;

use crate::{Peers, Reducer};

impl Reducer {
    /// Reads the members that nodes last received.
    pub(crate) async fn open_members(&mut self) -> anyhow::Result<()> {
        if self.peers == Peers::Many {
            self.members = self.store.members().await?;
        }
        Ok(())
    }

    /// Writes changed members for the nodes. A job with one node needs none.
    pub(crate) async fn publish_members(&mut self) {
        if self.peers != Peers::Many || self.tally.is_complete() {
            return;
        }
        let nodes = self.tally.nodes();
        let members = match nodes.nodes_seen() {
            0 | 1 => Members::default(),
            _ => nodes.exclusions.members(nodes.working()),
        };
        if members == self.members {
            return;
        }
        if let Err(error) = self.store.put_members(&members).await {
            tracing::warn!(
                job.id = self.spec.job_id,
                "cannot tell nodes which of them work on the job: {error:#}"
            );
            return;
        }
        for line in changes(&self.members.excluded, &members.excluded) {
            tracing::warn!(job.id = self.spec.job_id, "{line}");
            self.reports.decided(&line).await;
        }
        self.members = members;
    }
}

/// Returns in sentences which nodes are excluded now, or no more.
fn changes(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let excluded = now.iter().filter(|(node, _)| !before.contains_key(*node));
    let excluded = excluded.map(|(node, why)| {
        format!("Node {node} is excluded from the job: {why}. Its mini-batches are tried on other nodes.")
    });
    let included = before.keys().filter(|node| !now.contains_key(*node));
    let included = included.map(|node| format!("Node {node} is no longer excluded from the job."));
    excluded.chain(included).collect()
}
