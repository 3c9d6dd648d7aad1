//! Health, metrics and traces of a role, for monitoring.
//!
//! A role records events where they happen, at the cost of an atomic store. The executable decides whether and where to
//! publish them.

mod health;
pub mod metrics;
pub mod trace;

pub use health::{Duty, Health};
pub use metrics::{GaugeContribution, Role, Scrape, metrics};
