//! A simulated fleet: several jobs on several nodes with several reducers, in virtual time, under the weather of a seed.
//!
//! The production code makes every decision: `Partitioner` makes the plan of a job; a reducer is a `Fleet` with its
//! `Planner`, which keeps the schedule of the target and the queues of jobs; a node is a `Driver` with its `Allocations`
//! (which jobs it works on), and for each job a `Scheduler` with leases and announcer. The simulation plays the rest.
//! Broker, queues and store lose answers, delay, duplicate, reorder and fail. Nodes, reducers and processes that plan die,
//! freeze and return; nodes are drained, and lose their machine after a notice. Python processes fail to start, run slowly,
//! hang and die; provisioning and preparation take long or fail. Jobs begin and end while others run, and users cancel
//! some. Time is tokio's paused clock, by which the store dates its objects, and the seed determines all chance.
//!
//! [`run`] plays one seed and returns the first broken rule.
//! `GRISTMILL_SEED=<seed> cargo nextest run -p simulation one_seed --no-capture` plays a seed again.
//!
//! Rules are checked where a breach shows at once: at broker, queues and store, when a call arrives (`witness`), and at
//! the end (`rules`). Planted bugs ([`Bug`]) show that the rules are checked at all: the test finds each of them.
//!
//! | file | what it plays |
//! |---|---|
//! | `fleet` | a seed: jobs, roles, and their lives |
//! | `fleet/publish` | who plans a job, and who publishes it |
//! | `node` | a node: provisions jobs and runs agents for the driver of a node |
//! | `agent` | one job on a node: executes the actions of its scheduler |
//! | `process` | a Python process |
//! | `gpus`, `agent_allocations` | what the jobs of a node have of its GPUs, and an agent of its share |
//! | `actor`, `weather` | how a role dies, freezes and fails, and how often |
//! | `fleet/small` | a small job beside large ones that have every node ([`run_small`]) |
//! | `fleet/nodes` | nodes that fail a job ([`run_broken`]), and a job that kills nodes beside another one ([`run_poison`]) |
//! | `fleet/size`, `counts` | what roles ask of queues and store, for one large job on many nodes ([`run_size`]) |
//! | `memory` | counts what roles allocate |
//! | `broker_layer`, `queue_layer`, `store_layer` | broker, queues and store as one role sees them |
//! | `dated` | the store of all roles |
//! | `job` | the jobs, and what their scripts do |
//! | `witness`, `rules` | the rules |
//!
//! Not played: what `Node::run` starts around the driver (caches, control groups of memory, task
//! protection, the removal of leftovers), and memory that runs short.

mod actor;
mod agent;
mod agent_allocations;
mod broker_layer;
mod counts;
mod dated;
mod fleet;
mod gpus;
mod job;
mod memory;
mod node;
mod process;
mod queue_layer;
mod rules;
mod store_layer;
mod weather;
mod witness;

pub use counts::Requests;
pub use fleet::{Broken, Ended, run_broken, run_poison};
pub use fleet::{LATENCY, Meter, Needed, Played, Size, Sized, Waited, run, run_size, run_small};
pub use memory::CountedMemory;
pub use weather::{Bug, Scenario};
pub use witness::Violation;
