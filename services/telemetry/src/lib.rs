//! What a role tells about itself while it works, for machines that watch it.
//!
//! The one idea: a role only notes what happens, at the place where it happens, and at the price of an atomic store.
//! Who looks at it, and whether anybody does, is decided by the executable.

mod health;
pub mod metrics;
pub mod trace;

pub use health::{Duty, Health};
pub use metrics::{Role, Scrape, Share, metrics};
