//! `limits`: the rates at which all processes of a job together may call a service.

use protocol::RateLimits;

use crate::Section;
use crate::keys::LIMITS;
use crate::values::integer;

/// Larger numbers are typing mistakes.
const RATE_MAX: i64 = 1_000_000_000_000;
const CONCURRENT_MAX: i64 = 1_000_000;

pub fn read_limits(top: &Section<'_>) -> RateLimits {
    let allowed =
        "a mapping: {requests_per_minute: 600, tokens_per_minute: 100000, concurrent: 16}";
    let Some(section) = top.below("limits", LIMITS, allowed) else { return RateLimits::default() };
    let rate = |key| section.value(key, |node| integer(node, 1, RATE_MAX));
    RateLimits {
        requests_per_minute: rate("requests_per_minute"),
        tokens_per_minute: rate("tokens_per_minute"),
        concurrent: section.value("concurrent", |node| integer(node, 1, CONCURRENT_MAX)),
    }
}
