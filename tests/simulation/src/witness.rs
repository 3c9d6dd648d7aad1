//! Sees every call as it takes effect, and knows at once when a rule is broken.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use protocol::{Attempt, AttemptStatus, Descriptor, JobResult, JobState, ResultEvent, Rows, decode_records};
use queue::{Delivery, Message, Receipt};
use storage::PLAN_CHUNK_MINI_BATCHES;
use tokio::time::Instant;

use crate::job::Job;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule, in a few words.
    pub rule: &'static str,
    /// By what.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.rule, self.detail)
    }
}

/// What is known of one delivery of a descriptor.
#[derive(Debug)]
struct Held {
    mini_batch: u64,
    deliveries_lost: u32,
    /// When its node was told that it is lost.
    lost: Option<Instant>,
    /// The attempt that was made under it, and the tries that the next one has behind it.
    attempt: Option<(String, Option<u32>)>,
}

#[derive(Debug, Default)]
struct State {
    violation: Option<Violation>,
    held: HashMap<Receipt, Held>,
    /// Attempts that nobody may hear of.
    silenced: HashSet<String>,
    /// Attempts that the result queue holds or has held.
    announced: HashSet<String>,
    /// Mini-batch and number of announced tries after which another follows.
    failed_tries: HashSet<(u64, u32)>,
    /// Mini-batch and tries spent, of published descriptors.
    published: HashSet<(u64, u32)>,
    plan_chunks: HashSet<String>,
    parts: HashSet<String>,
    segments: HashMap<String, Vec<u8>>,
    succeeded: HashSet<u64>,
    /// Highest try of each mini-batch in the ledger.
    tried: HashMap<u64, u32>,
    planned: bool,
    ended: bool,
    results: HashMap<Receipt, Vec<ResultEvent>>,
    attempts: u64,
}

/// Sees everything.
#[derive(Debug)]
pub(crate) struct Witness {
    pub job: Job,
    pub output: PathBuf,
    state: Mutex<State>,
}

const TRIES_MAX: u32 = 3;

impl Witness {
    pub fn new(job: Job, output: PathBuf) -> Self {
        Self { job, output, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics holding it")
    }

    pub fn violation(&self) -> Option<Violation> {
        self.state().violation.clone()
    }

    pub fn attempts(&self) -> u64 {
        self.state().attempts
    }

    /// The first one counts.
    pub fn report(&self, rule: &'static str, detail: String) {
        self.state().violation.get_or_insert(Violation { rule, detail });
    }

    // ---- task queue --------------------------------------------------------------------------------------------

    pub fn published_by_partitioner(&self, messages: &[Message]) {
        for descriptor in messages.iter().map(descriptor) {
            let chunk = format!("{:010}", descriptor.mini_batch / PLAN_CHUNK_MINI_BATCHES);
            if !self.state().plan_chunks.contains(&chunk) {
                self.report("what is published stands in the plan", format!("mini-batch {}", descriptor.mini_batch));
            }
        }
    }

    pub fn published_by_node(&self, messages: &[Message]) {
        for descriptor in messages.iter().map(descriptor) {
            let (mini_batch, spent) = (descriptor.mini_batch, descriptor.tries_spent);
            self.state().published.insert((mini_batch, spent));
            if !self.state().failed_tries.contains(&(mini_batch, spent)) {
                let detail = format!("mini-batch {mini_batch} goes on with {spent} tries behind it");
                self.report("every try counts", detail);
            }
        }
    }

    pub fn delivered(&self, deliveries: &[Delivery]) {
        let mut state = self.state();
        for delivery in deliveries {
            let descriptor: Descriptor = serde_json::from_slice(&delivery.body).expect("only descriptors are sent");
            let held = Held {
                mini_batch: descriptor.mini_batch,
                deliveries_lost: descriptor.deliveries_lost + delivery.receive_count - 1,
                lost: None,
                attempt: None,
            };
            state.held.insert(delivery.receipt.clone(), held);
        }
    }

    pub fn told_lost(&self, receipts: &[Receipt]) {
        let mut state = self.state();
        for receipt in receipts {
            if let Some(held) = state.held.get_mut(receipt) {
                held.lost.get_or_insert(Instant::now());
            }
        }
    }

    /// User code begins.
    pub fn began(&self, receipt: &Receipt) {
        let limit = self.job.lost_delivery_max;
        let mut state = self.state();
        state.attempts += 1;
        let Some(held) = state.held.get(receipt) else { return };
        if held.deliveries_lost > limit {
            let detail =
                format!("mini-batch {} begins after {} lost deliveries", held.mini_batch, held.deliveries_lost);
            drop(state);
            self.report("lost deliveries have a limit", detail);
        }
    }

    /// A node is about to announce an attempt. `next`: the tries that the next one has behind it.
    pub fn submitted(&self, receipt: &Receipt, attempt: &str, next: Option<u32>) {
        let mut state = self.state();
        let Some(held) = state.held.get_mut(receipt) else { return };
        held.attempt = Some((attempt.to_owned(), next));
        if held.lost.is_some_and(|lost| lost < Instant::now()) {
            state.silenced.insert(attempt.to_owned());
        }
    }

    pub fn acknowledged_tasks(&self, receipts: &[Receipt]) {
        for receipt in receipts {
            let state = self.state();
            let Some(Held { mini_batch, attempt, .. }) = state.held.get(receipt) else { continue };
            let broken = match attempt {
                Some((attempt, _)) if !state.announced.contains(attempt) => Some("announce, then acknowledge"),
                None => Some("announce, then acknowledge"),
                Some((_, Some(spent))) if !state.published.contains(&(*mini_batch, *spent)) => {
                    Some("publish the next try, then acknowledge")
                }
                Some(_) => None,
            };
            let detail = format!("mini-batch {mini_batch}");
            drop(state);
            if let Some(rule) = broken {
                self.report(rule, detail);
            }
        }
    }

    // ---- result queue ------------------------------------------------------------------------------------------

    pub fn announced(&self, messages: &[Message]) {
        for message in messages {
            for event in events(&message.body) {
                if let ResultEvent::Attempt(attempt) = event {
                    self.announced_attempt(&attempt);
                }
            }
        }
    }

    fn announced_attempt(&self, attempt: &Attempt) {
        let mut state = self.state();
        state.announced.insert(attempt.process.to_string());
        if !attempt.is_final {
            state.failed_tries.insert((attempt.mini_batch, attempt.try_number));
        }
        let who = format!("mini-batch {}, try {}, by {}", attempt.mini_batch, attempt.try_number, attempt.process);
        let broken = if state.silenced.contains(attempt.process.as_str()) {
            Some("nothing is announced after a lost lease")
        } else if attempt.try_number > TRIES_MAX {
            Some("every try counts")
        } else if let Rows::Part { name, .. } = &attempt.rows
            && !state.parts.contains(name)
        {
            Some("write, then announce")
        } else {
            None
        };
        drop(state);
        if let Some(rule) = broken {
            self.report(rule, who);
        }
    }

    pub fn delivered_results(&self, deliveries: &[Delivery]) {
        let mut state = self.state();
        for delivery in deliveries {
            state.results.insert(delivery.receipt.clone(), events(&delivery.body));
        }
    }

    pub fn acknowledged_results(&self, receipts: &[Receipt]) {
        for receipt in receipts {
            let state = self.state();
            let Some(events) = state.results.get(receipt) else { continue };
            let missing = events.iter().find_map(|event| match event {
                _ if state.ended => None,
                ResultEvent::Planned(_) if !state.planned => Some("the totals of the plan".to_owned()),
                ResultEvent::Attempt(attempt) => {
                    let mini_batch = attempt.mini_batch;
                    let tried = state.tried.get(&mini_batch).is_some_and(|tried| *tried >= attempt.try_number);
                    let is_failure = attempt.status != AttemptStatus::Succeeded;
                    let known = state.succeeded.contains(&mini_batch) || is_failure && tried;
                    (!known).then(|| format!("mini-batch {mini_batch}, {:?}", attempt.status))
                }
                _ => None,
            });
            drop(state);
            if let Some(missing) = missing {
                self.report("commit, then acknowledge", missing);
            }
        }
    }

    // ---- store -------------------------------------------------------------------------------------------------

    pub fn written(&self, path: &str, bytes: &[u8]) {
        if let Some(segment) = path.strip_prefix("ledger/") {
            self.committed(segment, bytes);
        } else if let Some(chunk) = path.strip_prefix("plan/") {
            self.state().plan_chunks.insert(chunk.to_owned());
        } else if let Some(part) = path.strip_prefix("parts/") {
            self.state().parts.insert(part.to_owned());
        } else if path == "result.json" {
            let result: JobResult = serde_json::from_slice(bytes).expect("a result");
            let is_named = result.cause.as_ref().is_some_and(|cause| !cause.is_empty() && !cause.contains('\n'));
            if result.state != JobState::Completed && !is_named {
                self.report("every end has a named cause", format!("{result:?}"));
            }
        }
    }

    fn committed(&self, segment: &str, bytes: &[u8]) {
        let mut state = self.state();
        if state.segments.get(segment).is_some_and(|former| former != bytes) {
            drop(state);
            return self.report("a segment is committed once", format!("segment {segment} was overwritten"));
        }
        state.segments.insert(segment.to_owned(), bytes.to_vec());
        for event in events(bytes) {
            match event {
                ResultEvent::Planned(_) => state.planned = true,
                ResultEvent::Ended { .. } => state.ended = true,
                ResultEvent::Reopened { .. } => state.ended = false,
                ResultEvent::Attempt(attempt) if !state.ended => {
                    if attempt.status == AttemptStatus::Succeeded {
                        state.succeeded.insert(attempt.mini_batch);
                    }
                    let tried = state.tried.entry(attempt.mini_batch).or_default();
                    *tried = attempt.try_number.max(*tried);
                }
                _ => {}
            }
        }
    }

    /// Whether a try of it that failed is in the ledger.
    pub fn has_failed(&self, mini_batch: u64) -> bool {
        let state = self.state();
        state.tried.contains_key(&mini_batch) && !state.succeeded.contains(&mini_batch)
    }

    /// Mini-batches whose success was committed while the job was open.
    pub fn succeeded(&self) -> HashSet<u64> {
        self.state().succeeded.clone()
    }

    /// The final file is there and whole, or it is not there.
    pub fn look_at_output(&self) {
        let Ok(bytes) = std::fs::read(&self.output) else { return };
        let succeeded = self.succeeded();
        if bytes != self.job.output(|mini_batch| succeeded.contains(&mini_batch)) {
            self.report("the final file appears whole", format!("{} bytes of it are there", bytes.len()));
        }
    }
}

fn descriptor(message: &Message) -> Descriptor {
    serde_json::from_slice(&message.body).expect("only descriptors are sent")
}

pub(crate) fn events(body: &[u8]) -> Vec<ResultEvent> {
    let body = bytes::Bytes::copy_from_slice(body);
    decode_records(&body).map(|record| record.expect("only records are sent").event).collect()
}
