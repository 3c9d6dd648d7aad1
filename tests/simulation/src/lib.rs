//! A simulated fleet: several jobs on several nodes with several reducers, in virtual time, under the weather of a seed.
//!
//! The production code makes every decision: `Partitioner`, with the `turns` of a target that has quotas; for reducers
//! `Service` with its `Demultiplexer`; for a node
//! its `EventLoop` with `Demultiplexer`, `Roster` (which jobs it serves, seats included), executor and errands, and for each
//! job a `Scheduler` with leases and announcer. The simulation plays the rest. Queue and store lose answers, delay, duplicate,
//! reorder and fail. Nodes, reducers and partitioners die, freeze and return; nodes are drained, and lose their machine
//! after a notice. Python processes fail to start, run slowly, hang and die; provisioning and preparation take long or
//! fail. Jobs begin and end while others run, and users cancel some. Time is tokio's paused clock, and the seed determines
//! all chance.
//!
//! [`run`] plays one seed and returns the first broken rule.
//! `GRISTMILL_SEED=<seed> cargo nextest run -p simulation one_seed --no-capture` plays a seed again.
//!
//! Rules are checked where a breach shows at once: at the queue and the store, when a call arrives (`witness`), and at
//! the end (`rules`). Planted bugs ([`Bug`]) show that the rules are checked at all: the test finds each of them.
//!
//! | file | what it plays |
//! |---|---|
//! | `fleet` | a seed: jobs, roles, and their lives |
//! | `fleet/publish` | publishers, and the turns of jobs where there are quotas |
//! | `node` | a node: provisions jobs and runs agents for the event loop of a node |
//! | `agent` | one job on a node: executes the actions of its scheduler |
//! | `process` | a Python process |
//! | `gpus`, `shares` | what the jobs of a node have of its GPUs and processes |
//! | `actor`, `weather` | how a role dies, freezes and fails, and how often |
//! | `fleet/lanes` | a small job beside large ones, in a task queue with lanes ([`run_lanes`]), and on full nodes ([`run_places`]) |
//! | `fleet/nodes` | nodes that fail a job ([`run_broken`]), and a job that kills nodes beside another one ([`run_poison`]) |
//! | `counts` | what roles ask of queues and store, for one large job on many nodes ([`run_size`]) |
//! | `memory` | counts what roles allocate |
//! | `queue_layer`, `store_layer` | queue and store as one role sees them |
//! | `job` | the jobs, and what their scripts do |
//! | `witness`, `rules` | the rules |

mod actor;
mod agent;
mod counts;
mod fleet;
mod gpus;
mod job;
mod memory;
mod node;
mod process;
mod queue_layer;
mod rules;
mod shares;
mod store_layer;
mod weather;
mod witness;

pub use counts::Requests;
pub use fleet::{Broken, Ended, run_broken, run_poison};
pub use fleet::{LATENCY, Meter, Needed, Played, Queued, Size, Sized, run, run_lanes, run_places, run_size};
pub use memory::CountedMemory;
pub use weather::{Bug, Scenario};
pub use witness::Violation;
