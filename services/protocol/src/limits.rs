//! `limits`: bounds on the requests of all processes of a job to a service, and their division
//! among nodes.
//!
//! Shares are parts of [`WHOLE_LIMIT`]. A node reports what it needs ([`LimitNeed`] in its `NodeState`), and the schedule of the
//! target says what it may use ([`LimitShare`]).

use serde::{Deserialize, Serialize};

/// Limits that a service sets its callers. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateLimits {
    /// Requests in any minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// Tokens in any minute, as the script counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Requests at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u32>,
}

impl RateLimits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The whole of the limits of a job. 1 to 16 nodes can divide it equally.
pub const WHOLE_LIMIT: u32 = 720_720;

/// The need of a node for a share of the limits of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitNeed {
    /// Random number of the limiter of the node. It takes another one when its share has lapsed.
    pub id: u64,
    /// The share that it could use; 0: it makes no requests.
    pub want: u32,
    /// The share of the places that it has not released.
    pub held: u32,
    /// The smallest share that is of use.
    pub least: u32,
}

impl LimitNeed {
    /// Returns whether the node uses the service.
    pub fn is_used(&self) -> bool {
        self.want > 0 || self.held > 0
    }
}

/// The share of a node in the limits of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitShare {
    /// Name of the node.
    pub node: String,
    /// Job id.
    pub job_id: String,
    /// The limiter that may use it ([`LimitNeed::id`]).
    pub id: u64,
    /// The share.
    pub parts: u32,
    /// The share that the node may use until it follows the schedule `since` or a later one.
    pub lent: u32,
    /// Number of the schedule that has lowered the share.
    pub since: u64,
    /// Since when the node has had a share, or waited for one, milliseconds since the epoch.
    pub slice_since: u64,
}

/// Divides the limits anew among nodes that have these shares, and may still use what is lent to them.
///
/// No node gets less than it wants while others get more. If the limits are too small for all, the first nodes that use the
/// service get a share. What no node wants goes to the first nodes in equal parts, at hand for their next requests. Shares that
/// are enough for every node do not move. A node gets more only of what no other node may use.
pub fn divide_limits(needs: &[LimitNeed], parts: &[u32], lent: &[u32]) -> Vec<u32> {
    let in_use: Vec<u32> =
        needs.iter().zip(lent).map(|(need, lent)| need.held.max(*lent)).collect();
    let mut free = WHOLE_LIMIT
        .saturating_sub(in_use.iter().fold(0, |sum, in_use| sum.saturating_add(*in_use)));
    let mut targets = targets(needs, parts);
    for (target, in_use) in targets.iter_mut().zip(in_use) {
        *target = (*target).min(in_use + free);
        free -= target.saturating_sub(in_use);
    }
    targets
}

/// Returns the share that each node should have.
fn targets(needs: &[LimitNeed], parts: &[u32]) -> Vec<u32> {
    let least = least_of(needs);
    let holders_max = (WHOLE_LIMIT / least) as usize;
    let mut holders: Vec<usize> =
        (0..needs.len()).filter(|node| needs[*node].is_used()).take(holders_max).collect();
    holders.sort_by_key(|node| needs[*node].want);
    let mut targets = vec![0; needs.len()];
    let (mut rest, mut left) = (WHOLE_LIMIT, holders.len() as u32);
    for node in holders {
        targets[node] = needs[node].want.max(needs[node].held).max(least).min(rest / left);
        rest -= targets[node];
        left -= 1;
    }
    let holders_max = holders_max.min(needs.len());
    let has_share = parts.iter().take(holders_max).all(|parts| *parts > 0);
    if has_share && parts.iter().zip(&targets).all(|(parts, target)| parts >= target) {
        return parts.to_vec();
    }
    targets[..holders_max].iter_mut().for_each(|target| *target += rest / holders_max as u32);
    targets
}

/// Returns the smallest share that is of use to every node that uses the service.
fn least_of(needs: &[LimitNeed]) -> u32 {
    let using = needs.iter().filter(|need| need.is_used());
    using.map(|need| need.least).max().unwrap_or_default().clamp(1, WHOLE_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: u32 = WHOLE_LIMIT;

    /// Divides among nodes of which each has nothing, wants the first number, and can use the second or more.
    fn divided(needs: &[(u32, u32)]) -> Vec<u32> {
        let need = |(want, least): &(u32, u32)| LimitNeed {
            want: *want,
            least: *least,
            ..LimitNeed::default()
        };
        divide_limits(
            &needs.iter().map(need).collect::<Vec<_>>(),
            &vec![0; needs.len()],
            &vec![0; needs.len()],
        )
    }

    #[test]
    fn nodes_that_want_little_leave_the_rest_to_others() {
        assert_eq!(divided(&[]), [0; 0]);
        assert_eq!(divided(&[(W, 1)]), [W]);
        assert_eq!(divided(&[(W, 1), (W, 1), (W, 1)]), [W / 3; 3]);
        assert_eq!(divided(&[(W / 10, 1), (W, 1), (0, 1)]), [W / 10, W / 10 * 9, 0]);
    }

    #[test]
    fn what_no_node_wants_is_divided_equally() {
        assert_eq!(divided(&[(W / 2, 1), (0, 1)]), [W / 4 * 3, W / 4]);
    }

    #[test]
    fn first_nodes_have_a_limit_that_is_too_small_for_all() {
        assert_eq!(divided(&[(W, W), (W, W)]), [W, 0]);
        let idle = (0, W);
        assert_eq!(
            divided(&[(W, W / 2), (W, W / 2), (W, 1), idle]),
            [W / 2, W / 2, 0, 0],
            "what idle nodes need does not count"
        );
    }

    #[test]
    fn shares_that_are_enough_do_not_move() {
        let want = |want| LimitNeed { want, least: 1, ..LimitNeed::default() };
        assert_eq!(divide_limits(&[want(W / 3), want(W / 4)], &[W / 2; 2], &[0; 2]), [W / 2; 2]);
        assert_eq!(
            divide_limits(&[want(W / 3), want(W)], &[W / 2; 2], &[0; 2]),
            [W / 3, W / 3 * 2]
        );
    }

    #[test]
    fn node_gets_nothing_that_another_may_still_use() {
        let all = LimitNeed { want: W, least: 1, ..LimitNeed::default() };
        assert_eq!(divide_limits(&[all, all], &[W, 0], &[W, 0]), [W / 2, 0]);
        assert_eq!(divide_limits(&[all, all], &[W / 2, 0], &[W / 2, 0]), [W / 2, W / 2]);
        let holds = LimitNeed { held: W / 4 * 3, ..LimitNeed::default() };
        assert_eq!(
            divide_limits(&[holds, all], &[W / 2, 0], &[W / 2, 0])[1],
            W / 4,
            "its places are not released"
        );
    }
}
