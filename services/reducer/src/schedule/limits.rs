//! Divides the `limits` of a job among its nodes.
//!
//! The shares that nodes may use never exceed the limit. A node gets only parts that no other node may use. A node that
//! loses parts may use them until it confirms the schedule that takes them away. A dead node may use its share until
//! its entry expires, but its limiter stops using the share before that.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use protocol::{LimitNeed, LimitShare, NodeState, Schedule, divide_limits};

/// The time for which a node keeps its share while others wait for theirs, in milliseconds.
const TIME_SLICE: u64 = 60_000;

/// A node that works on a job with limits.
struct LimitedNode<'a> {
    node: &'a str,
    need: LimitNeed,
    before: Option<&'a LimitShare>,
    /// The number of parts that it may use now.
    lent: u32,
}

/// Returns the shares of all nodes and jobs in the schedule after `previous`.
pub(super) fn shares(nodes: &[NodeState], previous: &Schedule, now: u64) -> Vec<LimitShare> {
    let before: HashMap<(&str, &str), &LimitShare> =
        previous.limit_shares.iter().map(|share| ((&*share.job_id, &*share.node), share)).collect();
    let mut jobs: BTreeMap<&str, Vec<LimitedNode<'_>>> = BTreeMap::new();
    for node in nodes {
        for (job_id, running) in &node.jobs {
            let Some(need) = running.limits else { continue };
            let before =
                before.get(&(&**job_id, &*node.name)).copied().filter(|share| share.id == need.id);
            let lent = before.map_or(0, |share| {
                if node.schedule < share.since { share.lent } else { share.parts }
            });
            jobs.entry(job_id).or_default().push(LimitedNode {
                node: &node.name,
                need,
                before,
                lent,
            });
        }
    }
    let number = previous.number + 1;
    let mut shares: Vec<LimitShare> = jobs
        .into_iter()
        .flat_map(|(job_id, limited_nodes)| divided(job_id, limited_nodes, number, now))
        .collect();
    shares
        .sort_unstable_by(|one, other| (&one.job_id, &one.node).cmp(&(&other.job_id, &other.node)));
    shares
}

/// Divides the limits of one job.
fn divided(
    job_id: &str,
    mut limited_nodes: Vec<LimitedNode<'_>>,
    number: u64,
    now: u64,
) -> Vec<LimitShare> {
    limited_nodes.sort_by_cached_key(|node| node.rank(now));
    let needs: Vec<LimitNeed> = limited_nodes.iter().map(|node| node.need).collect();
    let parts_before: Vec<u32> = limited_nodes.iter().map(|node| node.parts()).collect();
    let lent: Vec<u32> = limited_nodes.iter().map(|node| node.lent).collect();
    let parts = divide_limits(&needs, &parts_before, &lent);
    let shares =
        limited_nodes.iter().zip(parts).zip(parts_before).map(|((node, parts), parts_before)| {
            let before = node.before;
            let since =
                before.filter(|_| parts >= parts_before).map_or(number, |share| share.since);
            let is_same_slice = |share: &&LimitShare| (share.parts > 0) == (parts > 0);
            LimitShare {
                node: node.node.to_owned(),
                job_id: job_id.to_owned(),
                id: node.need.id,
                parts,
                lent: node.lent.max(parts),
                since,
                slice_since: before.filter(is_same_slice).map_or(now, |share| share.slice_since),
            }
        });
    shares.collect()
}

impl LimitedNode<'_> {
    fn parts(&self) -> u32 {
        self.before.map_or(0, |share| share.parts)
    }

    /// Returns the sort key of the order in which nodes get a share if the limits are too small for all.
    fn rank(&self, now: u64) -> (Reverse<bool>, u8, u64, String) {
        let since = self.before.map_or(now, |share| share.slice_since);
        let rank = match self.parts() {
            0 => 1,
            _ if now.saturating_sub(since) < TIME_SLICE => 0,
            _ => 2,
        };
        (Reverse(self.need.is_used()), rank, since, self.node.to_owned())
    }
}
