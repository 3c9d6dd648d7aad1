//! What the witness knows of one job, and its rules.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use protocol::{
    Attempt, AttemptStatus, Descriptor, JobResult, JobSpec, JobState, PlanPosition, Progress,
    RejectedList, ResultEvent,
};
use queue::{Delivery, Receipt};
use tokio::time::Instant;

use super::items::{has_all_items, hash_of, parts_of};
use super::{Violation, events};
use crate::job::Job;
use crate::process::Starts;

/// One delivery of a descriptor.
#[derive(Debug)]
struct Held {
    mini_batch: u64,
    tries_spent: u32,
    deliveries_lost: u32,
    is_copy: bool,
    was_interrupted: bool,
    at: Instant,
    /// An agent has it.
    is_handed: bool,
    /// When its node was told that the lease is lost.
    lost: Option<Instant>,
    /// How often user code has begun each range of items under it; `None`: all items.
    begun: HashMap<Option<(u64, u64)>, u32>,
    end: Option<End>,
}

/// How an agent ends a delivery.
#[derive(Debug)]
enum End {
    /// By an attempt; `next`: the tries spent before the next one.
    Attempt { name: String, next: Option<u32> },
    /// By returning it, with this many tries spent.
    Returned { spent: u32 },
    /// Without an outcome.
    Dropped,
}

#[derive(Debug, Default)]
struct State {
    held: HashMap<Receipt, Held>,
    /// Attempts that may not be announced.
    silenced: HashSet<String>,
    /// Attempts of speculative runs.
    copies: HashSet<String>,
    /// Mini-batches with speculative runs.
    copied: HashSet<u64>,
    /// Attempts that the result queue holds or has held.
    announced: HashSet<String>,
    /// Attempts that have a name.
    named: u64,
    /// The nodes that have started processes.
    nodes: HashSet<String>,
    /// Mini-batch and number of announced tries after which another follows.
    failed_tries: HashSet<(u64, u32)>,
    /// Mini-batch and tries spent, of what agents have returned.
    returned: HashSet<(u64, u32)>,
    /// Mini-batch and tries spent, of the descriptors that nodes have published, and when.
    published: HashMap<(u64, u32), Instant>,
    is_canceled: bool,
    plan_chunks: HashSet<String>,
    /// The parts, with their content where it is a list of rejected items.
    parts: HashMap<String, RejectedList>,
    /// Hashes of their content.
    segments: HashMap<String, u64>,
    succeeded: HashSet<u64>,
    /// Highest try of each mini-batch in the ledger.
    tried: HashMap<u64, u32>,
    planned: bool,
    ended: bool,
    result: Option<JobResult>,
    results: HashMap<Receipt, Vec<ResultEvent>>,
    attempts: u64,
}

/// Sees everything about one job.
#[derive(Debug)]
pub(crate) struct JobWitness {
    pub job: Job,
    pub spec: JobSpec,
    pub output: PathBuf,
    pub starts: Starts,
    /// The mini-batches of a later round; `None`: all.
    runs: Option<BTreeSet<u64>>,
    violation: Mutex<Option<Violation>>,
    state: Mutex<State>,
}

const TRIES_MAX: u32 = 3;

/// Returns the tries spent on a mini-batch, in a way that tells speculative runs apart.
fn spent_of(descriptor: &Descriptor) -> u32 {
    descriptor.tries_spent + if descriptor.copy { 1000 } else { 0 }
}

impl JobWitness {
    pub fn new(job: Job, spec: JobSpec, output: PathBuf) -> Self {
        let (starts, runs, violation, state) = Default::default();
        Self { job, spec, output, starts, runs, violation, state }
    }

    /// Returns a witness of the next round of the job, which knows what the store holds.
    pub fn mended(&self) -> Self {
        let runs = self.runs.clone().unwrap_or_else(|| self.job.lacking());
        let next = Self {
            runs: Some(runs),
            ..Self::new(self.job.mended(), self.spec.clone(), self.output.clone())
        };
        let last = self.state();
        *next.state() = State {
            plan_chunks: last.plan_chunks.clone(),
            parts: last.parts.clone(),
            segments: last.segments.clone(),
            succeeded: last.succeeded.clone(),
            planned: last.planned,
            named: last.named,
            ..State::default()
        };
        drop(last);
        next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    pub fn violation(&self) -> Option<Violation> {
        self.violation.lock().expect("no holder panics").clone()
    }

    pub fn attempts(&self) -> u64 {
        self.state().attempts
    }

    /// Reports a broken rule; the first one counts.
    pub fn report(&self, rule: &'static str, detail: String) {
        self.violation.lock().expect("no holder panics").get_or_insert(Violation { rule, detail });
    }

    /// A node starts a process.
    pub fn works_on(&self, node: &str) {
        self.state().nodes.insert(node.to_owned());
    }

    /// Whether a node has started a process.
    pub fn has_begun(&self) -> bool {
        !self.state().nodes.is_empty()
    }

    // ---- task queue --------------------------------------------------------------------------------------------

    pub fn published_by_reducer(&self, descriptor: &Descriptor) {
        let (mini_batch, mut state) = (descriptor.mini_batch, self.state());
        if descriptor.copy {
            if !state.copied.insert(mini_batch) {
                self.report(
                    "a slow mini-batch is started once more",
                    format!("mini-batch {mini_batch}"),
                );
            }
            return;
        }
        let chunk = format!("{:010}", PlanPosition::of(mini_batch).chunk);
        if !state.plan_chunks.contains(&chunk) {
            self.report(
                "published mini-batches are in the plan",
                format!("mini-batch {mini_batch}"),
            );
        }
    }

    pub fn published_by_node(&self, descriptor: &Descriptor) {
        let (mini_batch, spent) = (descriptor.mini_batch, spent_of(descriptor));
        let mut state = self.state();
        state.published.insert((mini_batch, spent), Instant::now());
        let is_known = state.failed_tries.contains(&(mini_batch, spent))
            || state.returned.contains(&(mini_batch, spent));
        if !is_known {
            self.report(
                "every try counts",
                format!("mini-batch {mini_batch} continues with {spent} tries spent"),
            );
        }
    }

    pub fn delivered(&self, delivery: &Delivery, descriptor: &Descriptor) {
        let held = Held {
            mini_batch: descriptor.mini_batch,
            tries_spent: spent_of(descriptor),
            deliveries_lost: descriptor.deliveries_lost + delivery.receive_count - 1,
            is_copy: descriptor.copy,
            was_interrupted: descriptor.was_interrupted,
            at: Instant::now(),
            is_handed: false,
            lost: None,
            begun: HashMap::new(),
            end: None,
        };
        self.state().held.insert(delivery.receipt.clone(), held);
    }

    /// An agent has a delivery.
    pub fn handed(&self, receipt: &Receipt) {
        if let Some(held) = self.state().held.get_mut(receipt) {
            held.is_handed = true;
        }
    }

    pub fn is_copy(&self, receipt: &Receipt) -> bool {
        self.state().held.get(receipt).is_some_and(|held| held.is_copy)
    }

    pub fn is_handed(&self, receipt: &Receipt) -> bool {
        self.state().held.get(receipt).is_some_and(|held| held.is_handed)
    }

    /// An agent is told that it has lost these leases.
    pub fn told_lost(&self, receipts: &[Receipt]) {
        let mut state = self.state();
        for receipt in receipts {
            if let Some(held) = state.held.get_mut(receipt) {
                held.lost.get_or_insert(Instant::now());
            }
        }
    }

    /// User code begins on a node, with all items or with a range of them. `resumes`: it looks for what earlier attempts
    /// have handed back. `in_vain`: whatever it does will fail, and not because of the items.
    pub fn began(
        &self,
        receipt: &Receipt,
        items: Option<(u64, u64)>,
        resumes: bool,
        in_vain: bool,
    ) {
        let limit = self.job.lost_delivery_max;
        let mut state = self.state();
        state.attempts += 1;
        let Some(held) = state.held.get_mut(receipt) else { return };
        if held.deliveries_lost > limit {
            let detail = format!(
                "mini-batch {} begins after {} lost deliveries",
                held.mini_batch, held.deliveries_lost
            );
            self.report("lost deliveries have a limit", detail);
        }
        let Held { tries_spent, deliveries_lost, was_interrupted, is_copy, begun, .. } = &*held;
        let is_later = *is_copy
            || *tries_spent > 0
            || *deliveries_lost > 0
            || *was_interrupted
            || !begun.is_empty();
        if is_later && !resumes {
            self.report(
                "a later attempt looks for checkpoints",
                format!("mini-batch {}", held.mini_batch),
            );
        }
        if !in_vain {
            let runs = held.begun.entry(items).or_default();
            *runs += 1;
            // What an earlier round has rejected has all its tries under one delivery.
            if *runs > if self.job.is_mended && items.is_some() { TRIES_MAX } else { 1 } {
                self.report("a delivery is run once", format!("mini-batch {}", held.mini_batch));
            }
        }
    }

    /// An agent is about to return a mini-batch.
    pub fn returned(&self, receipt: Option<&Receipt>, descriptor: &Descriptor) {
        let (mini_batch, spent) = (descriptor.mini_batch, spent_of(descriptor));
        let mut state = self.state();
        state.returned.insert((mini_batch, spent));
        if let Some(held) = receipt.and_then(|receipt| state.held.get_mut(receipt)) {
            held.end = Some(End::Returned { spent });
            if !held.begun.is_empty() && !descriptor.was_interrupted {
                self.report(
                    "a later attempt looks for checkpoints",
                    format!("mini-batch {mini_batch} was returned"),
                );
            }
        }
    }

    /// An agent is about to acknowledge a delivery without an outcome.
    pub fn dropped(&self, receipt: Option<&Receipt>) {
        let mut state = self.state();
        if let Some(held) = receipt.and_then(|receipt| state.held.get_mut(receipt)) {
            held.end = Some(End::Dropped);
        }
    }

    /// Returns a number that names an attempt.
    pub fn name_attempt(&self) -> u64 {
        let mut state = self.state();
        state.named += 1;
        state.named
    }

    /// A node is about to announce an attempt. `next`: the tries spent before the next one.
    pub fn submitted(&self, receipt: &Receipt, attempt: &str, next: Option<u32>) {
        let mut state = self.state();
        let Some(held) = state.held.get_mut(receipt) else { return };
        held.end = Some(End::Attempt { name: attempt.to_owned(), next });
        let is_copy = held.is_copy;
        let held_lost = held.lost;
        if is_copy {
            state.copies.insert(attempt.to_owned());
        }
        if held_lost.is_some_and(|lost| lost < Instant::now()) {
            state.silenced.insert(attempt.to_owned());
        }
    }

    pub fn acknowledged_tasks(&self, receipts: &[Receipt]) {
        let mut state = self.state();
        for receipt in receipts {
            let Some(held) = state.held.get(receipt) else { continue };
            let Held { mini_batch, tries_spent, is_copy, at, is_handed, end, .. } = held;
            let is_published = |spent: u32| {
                state.published.get(&(*mini_batch, spent)).is_some_and(|time| time >= at)
            };
            let broken = match end {
                // Nodes drop what is left of a job that is over.
                _ if state.is_canceled || state.ended || state.result.is_some() => None,
                Some(End::Attempt { name, .. }) if !state.announced.contains(name) => {
                    Some("announce, then acknowledge")
                }
                Some(End::Dropped) if !is_copy && !state.succeeded.contains(mini_batch) => {
                    Some("commit, then drop the slower start")
                }
                None if *is_handed => Some("announce, then acknowledge"),
                None if !is_published(*tries_spent) => Some("publish again, then acknowledge"),
                Some(End::Attempt { next: Some(spent), .. }) if !is_published(*spent) => {
                    Some("publish the next try, then acknowledge")
                }
                Some(End::Returned { spent }) if !is_published(*spent) => {
                    Some("publish again, then acknowledge")
                }
                _ => None,
            };
            if let Some(rule) = broken {
                self.report(rule, format!("mini-batch {mini_batch}"));
            }
            // A job of very many mini-batches keeps nothing of those that are over.
            if self.job.run_time.is_some()
                && let Some(Held { end: Some(End::Attempt { name, .. }), .. }) =
                    state.held.remove(receipt)
            {
                state.announced.remove(&name);
            }
        }
    }

    // ---- result queue ------------------------------------------------------------------------------------------

    pub fn announced(&self, attempt: &Attempt) {
        let mut state = self.state();
        state.announced.insert(attempt.process.to_string());
        if !attempt.is_final && !attempt.copy {
            state.failed_tries.insert((attempt.mini_batch, attempt.try_number));
        }
        // A node on which attempts fail in a row leaves even the last try to others, and once to one that it does not know
        // yet. Where none takes it, because they are dead, it runs the mini-batch itself, once for each.
        let tries_max = TRIES_MAX + state.nodes.len() as u32;
        let broken = if state.silenced.contains(attempt.process.as_str()) {
            Some("nothing is announced after a lost lease")
        } else if state.copies.contains(attempt.process.as_str()) && !attempt.copy {
            Some("a speculative run spends no try")
        } else if attempt.try_number > tries_max {
            Some("every try counts")
        } else if parts_of(attempt).any(|part| !state.parts.contains_key(part)) {
            Some("write, then announce")
        } else if !has_all_items(attempt, &self.job, |list| &state.parts[list]) {
            Some("every item has a result or is rejected")
        } else {
            None
        };
        if let Some(rule) = broken {
            let Attempt { mini_batch, try_number, process, .. } = attempt;
            self.report(rule, format!("mini-batch {mini_batch}, try {try_number}, by {process}"));
        }
    }

    pub fn delivered_results(&self, delivery: &Delivery) {
        self.state().results.insert(delivery.receipt.clone(), events(&delivery.body));
    }

    pub fn acknowledged_results(&self, receipts: &[Receipt]) {
        let mut state = self.state();
        for receipt in receipts {
            let Some(events) = state.results.remove(receipt) else { continue };
            let missing = events.iter().find_map(|event| match event {
                _ if state.ended => None,
                ResultEvent::Planned(_) if !state.planned => {
                    Some("the totals of the plan".to_owned())
                }
                ResultEvent::Attempt(attempt)
                    if attempt.copy && attempt.status != AttemptStatus::Succeeded =>
                {
                    None
                }
                ResultEvent::Attempt(attempt) => {
                    let mini_batch = attempt.mini_batch;
                    let tried = state
                        .tried
                        .get(&mini_batch)
                        .is_some_and(|tried| *tried >= attempt.try_number);
                    let is_failure = attempt.status != AttemptStatus::Succeeded;
                    let known = state.succeeded.contains(&mini_batch) || is_failure && tried;
                    (!known).then(|| format!("mini-batch {mini_batch}, {:?}", attempt.status))
                }
                _ => None,
            });
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
            let list = serde_json::from_slice(bytes).unwrap_or_default();
            self.state().parts.insert(part.to_owned(), list);
        } else if path == "result.json" {
            let result: JobResult = serde_json::from_slice(bytes).expect("a result");
            let is_named = result
                .cause
                .as_ref()
                .is_some_and(|cause| !cause.is_empty() && !cause.contains('\n'));
            if result.state != JobState::Completed && !is_named {
                self.report("every end has a named cause", format!("{result:?}"));
            }
            self.state().result.get_or_insert(result);
        } else if path == "control/cancel" {
            self.state().is_canceled = true;
        } else if path == "progress.json" {
            // The service reports a panic as the trouble of one job.
            let progress: Progress = serde_json::from_slice(bytes).expect("progress");
            if let Some(trouble) =
                progress.trouble.filter(|trouble| trouble.reason.contains("panicked"))
            {
                self.report("no role panics", trouble.reason);
            }
        }
    }

    fn committed(&self, segment: &str, bytes: &[u8]) {
        let mut state = self.state();
        let former = state.segments.insert(segment.to_owned(), hash_of(bytes));
        if former.is_some_and(|former| former != hash_of(bytes)) {
            return self.report(
                "a segment is committed once",
                format!("segment {segment} was overwritten"),
            );
        }
        let records = storage::records_of(&Bytes::copy_from_slice(bytes)).expect("a whole segment");
        for event in events(&records) {
            match event {
                ResultEvent::Planned(_) => state.planned = true,
                ResultEvent::Ended { .. } => state.ended = true,
                ResultEvent::Round(round) => {
                    (state.ended, state.result, state.is_canceled) = (false, None, false);
                    state
                        .succeeded
                        .retain(|one| !round.rejects.contains(one) && !round.whole.contains(one));
                    state.tried.clear();
                }
                ResultEvent::RowsLost { mini_batches: lost } => {
                    state.succeeded.retain(|one| !lost.contains(one))
                }
                ResultEvent::Attempt(attempt) if !state.ended => {
                    if attempt.copy && attempt.status != AttemptStatus::Succeeded {
                        self.report(
                            "a speculative run spends no try",
                            format!("mini-batch {}", attempt.mini_batch),
                        );
                    }
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

    /// Returns how the job ended, since it was last opened.
    pub fn result(&self) -> Option<JobResult> {
        self.state().result.clone()
    }

    /// Returns how many mini-batches of the round have no try in the ledger.
    pub fn untried(&self) -> u64 {
        let all = self.runs.as_ref().map_or(self.job.mini_batches, |runs| runs.len() as u64);
        all.saturating_sub(self.state().tried.len() as u64)
    }

    /// Whether the ledger has a failed try of the mini-batch, and no success.
    pub fn has_failed(&self, mini_batch: u64) -> bool {
        let state = self.state();
        state.tried.contains_key(&mini_batch) && !state.succeeded.contains(&mini_batch)
    }

    /// Returns the mini-batches whose success was committed while the job was open.
    pub fn succeeded(&self) -> HashSet<u64> {
        self.state().succeeded.clone()
    }

    /// Checks that the final file is whole or absent.
    pub fn look_at_output(&self) {
        let Ok(bytes) = std::fs::read(&self.output) else { return };
        let succeeded = self.succeeded();
        let is_before = self.job.output_before().is_some_and(|before| bytes == before);
        if !is_before && bytes != self.job.output(|mini_batch| succeeded.contains(&mini_batch)) {
            self.report(
                "the final file appears whole",
                format!("{} bytes of it are there", bytes.len()),
            );
        }
    }
}
