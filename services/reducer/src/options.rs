//! What a reducer can be told, and the points at which a test may stop it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use protocol::milliseconds_since_epoch;
use queue::Queue;

/// How a reducer works. The default is right for a job on one machine.
#[derive(Clone)]
pub struct Options {
    /// Name of this reducer in logs and temporary files; unique among those that may run at once.
    pub writer: String,
    /// Processes a node, where the job leaves it open and the caller knows.
    pub process_count_per_node: Option<u32>,
    /// Other machines work on the job: nodes come and go and outlive this reducer, which believes what the ledger says
    /// of them, and other reducers may serve the job at the same time. `false`: all there is ends with this process.
    pub shared: bool,
    /// Age of a job before failures of `init()` all over it end it.
    pub init_failure_age: Duration,
    /// Period of the progress overview and the summaries, and of the thresholds that are polled.
    pub report_interval: Duration,
    /// Period of `progress.json`, and of looking for a request to cancel; where the job is shared, also of looking
    /// for what others have committed.
    pub progress_interval: Duration,
    /// Segments are committed no more often than this while messages keep coming.
    pub commit_interval: Duration,
    /// For how long a store that does not answer is tried before the reducer stops.
    pub store_patience: Duration,
    /// For how long a received message stays invisible to others: what a dead reducer had received is seen by the
    /// next after this.
    pub visibility: Duration,
    /// How long one call to the result queue waits for the first message.
    pub receive_wait: Duration,
    /// For how long the final file is still written after this reducer was told to stop. Then it is left to the next one,
    /// which writes it from the beginning.
    pub output_grace: Duration,
    /// Where messages go that cannot be read to their end; `None`: only into the logs.
    pub dead_letters: Option<Arc<dyn Queue>>,
    /// Whether reports are written for people.
    pub reports: bool,
    /// Called at every step of the write path.
    pub crash: Arc<dyn Fn(CrashPoint) + Send + Sync>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            writer: std::process::id().to_string(),
            process_count_per_node: None,
            shared: false,
            init_failure_age: Duration::from_secs(120),
            report_interval: Duration::from_secs(10),
            progress_interval: Duration::from_secs(1),
            // 40 objects a second at most.
            commit_interval: Duration::from_millis(25),
            // A full disk stays full.
            store_patience: Duration::from_secs(4),
            visibility: Duration::from_secs(60),
            receive_wait: Duration::from_secs(1),
            output_grace: Duration::from_secs(30),
            dead_letters: None,
            reports: true,
            crash: Arc::new(|_| {}),
        }
    }
}

impl Options {
    /// For jobs of a compute target, which many machines work on and where every request to the store has a price.
    pub fn shared() -> Self {
        Self {
            // Process ids alone are alike in containers.
            writer: format!("{}-{:x}", std::process::id(), milliseconds_since_epoch()),
            shared: true,
            progress_interval: Duration::from_secs(3),
            commit_interval: Duration::from_millis(200),
            store_patience: Duration::from_secs(120),
            receive_wait: Duration::from_secs(20),
            ..Self::default()
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Options").field("writer", &self.writer).finish_non_exhaustive()
    }
}

macro_rules! crash_points {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Steps of the write path, in order. A job killed at any of them is finished by the next reducer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Messages were received.
    BeforeSegmentCommit,
    /// They are in the ledger, and not yet acknowledged.
    AfterSegmentCommit,
    /// They are acknowledged.
    AfterAcknowledge,
    /// Every mini-batch has ended.
    BeforeOutput,
    /// Some of the final file is written, under a temporary name.
    DuringOutput,
    /// All of it is.
    BeforeRename,
    /// The final file stands.
    AfterRename,
    /// `result.json` stands; parts are still there.
    AfterResult,
}
