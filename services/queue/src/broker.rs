//! The queues of a compute target: two of its own, and two for each job while the job may run.
//!
//! A worker receives only from the queues of the jobs that it works on, so no job waits behind the messages of another
//! one. With one queue for all jobs, a node would receive messages that it may not or cannot run. Fairness and limits
//! would then need mechanisms of their own, none of which sees the whole fleet.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Error, Queue};

/// The end of the name of the queue through which commands wake reducers. The content of its messages has no meaning,
/// and a lost message delays the reducers by up to four seconds.
pub const CONTROL: &str = "control";

/// The end of the name of the queue for messages that no role can read.
pub const DEAD_LETTERS: &str = "dead-letters";

/// Creates, opens and deletes the queues of a target.
///
/// The name of a job consists of letters, digits, `-`, `_` and `.`. A service that allows fewer characters, or shorter
/// names, replaces it by one that it allows, which depends on the name alone.
#[async_trait]
pub trait Broker: Send + Sync + Debug {
    /// Opens the queues of the target itself, and creates those that do not exist. SQS and RabbitMQ create them only if
    /// the options say so. Nothing deletes them.
    async fn target(&self) -> Result<TargetQueues, Error>;

    /// Creates the queues of a job that do not exist, and opens both.
    async fn create(&self, name: &str) -> Result<JobQueues, Error>;

    /// Opens the queues of a job. Fails with [`Error::Absent`] if one of them does not exist.
    async fn open(&self, name: &str) -> Result<JobQueues, Error>;

    /// Deletes the queues of a job with their messages, and does nothing if they do not exist. Later calls on an open
    /// queue fail, mostly with [`Error::Absent`], or find no messages.
    async fn delete(&self, name: &str) -> Result<(), Error>;

    /// Returns what the service calls the task queue of a job.
    fn name_of_tasks(&self, name: &str) -> String;

    /// Returns how many jobs may have queues at a time.
    fn jobs_max(&self) -> u32;

    /// Waits until every acknowledgement has reached the service and the last receive from the queues of jobs, which could
    /// hide messages, has ended. Ends the leases of this process where leases end with their connection
    /// ([`Limits::timed_lease`](crate::Limits::timed_lease) is false). The caller must not use the queues of this broker
    /// afterwards.
    async fn close(&self);
}

/// The queues of a target itself.
#[derive(Clone, Debug)]
pub struct TargetQueues {
    /// News for reducers.
    pub control: Arc<dyn Queue>,
    /// Messages that no role can read.
    pub dead_letters: Arc<dyn Queue>,
    /// Whether this call has created the control queue.
    pub are_new: bool,
}

/// The queues of a job.
#[derive(Clone, Debug)]
pub struct JobQueues {
    /// Descriptors of mini-batches.
    pub tasks: Arc<dyn Queue>,
    /// Results.
    pub results: Arc<dyn Queue>,
}

/// The names that a service allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Naming {
    /// The largest number of characters.
    pub characters_max: usize,
    /// The characters that are allowed besides ASCII letters and digits.
    pub marks: &'static str,
}

impl Naming {
    /// Returns `NAME-tasks` and `NAME-results`. If the name is too long or has other characters, its beginning and a
    /// digest replace it in both.
    pub(crate) fn names(self, name: &str) -> [String; 2] {
        let is_allowed =
            |character: char| character.is_ascii_alphanumeric() || self.marks.contains(character);
        let room = self.characters_max - "-results".len();
        let name = if name.len() <= room && name.chars().all(is_allowed) {
            name.to_owned()
        } else {
            let digest = &blake3::hash(name.as_bytes()).to_hex()[..DIGEST_DIGITS];
            let allowed =
                name.chars().map(|character| if is_allowed(character) { character } else { '-' });
            let beginning: String = allowed.take(room - DIGEST_DIGITS - 1).collect();
            format!("{beginning}-{digest}")
        };
        ["tasks", "results"].map(|suffix| format!("{name}-{suffix}"))
    }
}

/// Enough hexadecimal digits that no two of a million names collide.
const DIGEST_DIGITS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const NAMING: Naming = Naming { characters_max: 80, marks: "-_" };

    #[test]
    fn allowed_name_is_kept() {
        assert_eq!(NAMING.names("demo-job_1"), ["demo-job_1-tasks", "demo-job_1-results"]);
        let longest = "x".repeat(72);
        assert_eq!(NAMING.names(&longest)[1], format!("{longest}-results"));
    }

    #[test]
    fn replaced_names_keep_their_beginning_and_differ() {
        let [dotted, _] = NAMING.names("demo-a.b");
        assert_eq!(dotted, format!("demo-a-b-{}-tasks", &blake3::hash(b"demo-a.b").to_hex()[..16]));
        assert_ne!(dotted, NAMING.names("demo-a-b")[0]);
        let long = |last: &str| NAMING.names(&format!("{}{last}", "ü".repeat(200)));
        assert_eq!((long("1")[1].len(), long("1")), (80, long("1")));
        assert_ne!(long("1")[1], long("2")[1]);
    }
}
