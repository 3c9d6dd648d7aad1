//! Health, metrics and traces of a role, for monitoring.
//!
//! A role records events where they happen, at the cost of an atomic store. The executable decides where to publish
//! them, if at all.

mod health;
pub mod metrics;
pub mod trace;

pub use health::{Duty, Health};
pub use metrics::{GaugeContribution, Role, Scrape, metrics};
