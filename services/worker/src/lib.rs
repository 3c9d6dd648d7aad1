//! The worker: an agent takes the mini-batches of one job from the task queue, has them ready before a Python process
//! asks, supervises the processes that call user code, and announces what came of it. A node of a fleet runs one for
//! every job that has messages there.
//!
//! | file | what it does |
//! |---|---|
//! | `node` | a worker of a fleet: which jobs are here, what they need, when they leave |
//! | `agent` | one job: the only loop that decides; everything else reports to it |
//! | `slot` | what one Python process is busy with, and how an attempt ended |
//! | `python_process` | start, talk to, look at and kill one interpreter |
//! | `prepare` | a descriptor becomes what `run()` gets: paths, or a table in shared memory |
//! | `side_inputs` | reference data by URL becomes paths of this machine |
//! | `announce` | write, announce, acknowledge, in that order |
//! | `lease` | what is held is extended; what is lost stops |
//! | `counts` | what announcements add to the metrics |
//! | `monitor` | samples of processor, memory, disk and network |
//!
//! It knows the queue and the storage, and neither the partitioner nor the reducer.

mod agent;
mod allocator;
mod announce;
mod capped_log;
mod counts;
mod dead_letters;
mod environment;
mod gpu;
mod lease;
mod memory_files;
mod messages;
mod monitor;
mod node;
mod node_log;
mod prepare;
mod python_process;
mod scratch;
mod side_inputs;
mod slot;

pub use agent::{Agent, Stop, Timing};
pub use allocator::keep_freed_memory;
pub use environment::interpreter;
pub use gpu::{count_by_driver, default_process_count};
pub use node::{Ended, Node, NodeOptions, SpotNotice, TaskProtection};
pub use side_inputs::fetch_side_inputs;

/// What a node decides, without the Python processes it decides about: a simulation of the protocol makes its nodes of
/// these.
pub mod decisions {
    pub use crate::announce::{Announcement, Announcements, Announcer, Outcome, RowsRoom};
    pub use crate::lease::{LeaseId, Leases};
    pub use crate::slot::{Ending, InPipe, Prepared, Worker, conclude, deliveries_lost, lost_too_often};
}

macro_rules! crash_points {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Steps of the write path, in order. A job killed at any of them is finished by the next run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CrashPoint {
            $($(#[$doc])* $name,)*
        }

        impl CrashPoint {
            /// Every step: a crash test goes through them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

crash_points! {
    /// Deliveries are leased, nothing is done with them yet.
    AfterReceive,
    /// A process has been handed mini-batches.
    AfterHandOver,
    /// A process has answered; nothing is written.
    AfterRun,
    /// Rows are about to be written as a part.
    BeforePart,
    /// The part is written, nobody knows of it.
    AfterPart,
    /// Outcomes are in the result queue, deliveries still leased.
    AfterAnnounce,
    /// The next try is published, the old delivery still leased.
    AfterRepublish,
    /// The task queue has forgotten the deliveries.
    AfterTaskAcknowledge,
}

/// Called at every crash point. Does nothing but in crash tests.
pub type Crash = fn(CrashPoint);
