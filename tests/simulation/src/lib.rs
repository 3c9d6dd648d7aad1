//! The protocol of a fleet, simulated: thousands of jobs in virtual time, each under its own bad weather.
//!
//! What decides is the production code: `Partitioner`, `Reducer`, and of a node its leases, its announcer and its
//! rules for tries and lost deliveries (`worker::decisions`). What surrounds it is simulated: queue and store drop
//! answers, delay, duplicate, reorder and fail; nodes, reducers and partitioners die, stand still and come back; user
//! code ends as the job's script says. Time is tokio's paused clock, and all chance comes from the seed.
//!
//! [`run`] plays one seed and returns the first rule that was broken. A seed that fails is played again by
//! `GRISTMILL_SEED=<seed> cargo nextest run -p simulation one_seed --no-capture`.
//!
//! Rules are checked where they can be seen at once: at the queue and the store, when a call arrives (`witness`), and
//! at the end (`rules`). That they are checked at all is shown by bugs that are planted between a role and the world
//! ([`Bug`]): each must be found.

mod actor;
mod fleet;
mod job;
mod node;
mod queue_layer;
mod rules;
mod store_layer;
mod weather;
mod witness;

pub use fleet::{Played, run};
pub use weather::{Bug, Scenario};
pub use witness::Violation;
