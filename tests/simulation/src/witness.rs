//! Sees every call as it takes effect, and reports a broken rule at once. Each job has a witness of its own.

mod in_flight;
mod items;
mod job;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use protocol::{Descriptor, Quotas, ResultEvent, decode_records, job_of_message};
use queue::{Delivery, Message, Receipt};
use tokio::time::Instant;

pub(crate) use in_flight::InFlight;
pub(crate) use job::JobWitness;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule, in a few words.
    pub rule: &'static str,
    /// What broke it.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.rule, self.detail)
    }
}

/// Sees everything.
#[derive(Debug)]
pub(crate) struct Witness {
    jobs: BTreeMap<String, Arc<JobWitness>>,
    violation: Mutex<Option<Violation>>,
    /// Jobs that each living node has.
    visits: Mutex<BTreeMap<String, usize>>,
    quotas: Quotas,
    crowd: Mutex<Crowd>,
    pub in_flight: Arc<InFlight>,
}

/// The open jobs of the target.
#[derive(Debug, Default)]
struct Crowd {
    /// When their markers were written last.
    marked: BTreeMap<String, Instant>,
    /// Those with messages.
    begun: BTreeSet<String>,
}

impl Witness {
    pub fn new(jobs: impl IntoIterator<Item = JobWitness>, quotas: Quotas) -> Self {
        let jobs = jobs.into_iter().map(|job| (job.job.id(), Arc::new(job))).collect();
        let (in_flight, crowd) = (InFlight::new(quotas.clone()), Mutex::default());
        Self { jobs, violation: Mutex::default(), visits: Mutex::default(), quotas, crowd, in_flight }
    }

    /// Returns the witness of a job.
    pub fn of(&self, job_id: &str) -> &Arc<JobWitness> {
        &self.jobs[job_id]
    }

    pub fn jobs(&self) -> impl Iterator<Item = &Arc<JobWitness>> {
        self.jobs.values()
    }

    /// Returns the first broken rule.
    pub fn violation(&self) -> Option<Violation> {
        let own = self.violation.lock().expect("no holder panics").clone();
        own.or_else(|| self.jobs().find_map(|job| job.violation()))
    }

    pub fn report(&self, rule: &'static str, detail: String) {
        self.violation.lock().expect("no holder panics").get_or_insert(Violation { rule, detail });
    }

    // ---- nodes -------------------------------------------------------------------------------------------------

    /// A node has visits of this many jobs.
    pub fn visits(&self, node: &str, jobs: usize) {
        self.visits.lock().expect("no holder panics").insert(node.to_owned(), jobs);
    }

    /// A role is dead.
    pub fn died(&self, name: &str) {
        self.in_flight.node_ended(name);
        self.visits.lock().expect("no holder panics").remove(name);
    }

    /// Returns a node that has not left every job.
    pub fn node_with_jobs(&self) -> Option<String> {
        let visits = self.visits.lock().expect("no holder panics");
        visits.iter().find(|(_, jobs)| **jobs > 0).map(|(node, jobs)| format!("{node} has {jobs} jobs"))
    }

    // ---- queues ------------------------------------------------------------------------------------------------

    /// Shows descriptors that are published to the witnesses of their jobs.
    pub fn published(&self, messages: &[Message], see: impl Fn(&JobWitness, &Descriptor)) {
        for descriptor in messages.iter().map(|message| descriptor(&message.body)) {
            see(self.of(&descriptor.job_id), &descriptor);
        }
    }

    /// Messages of jobs are published, so that these jobs run.
    pub fn begun(&self, messages: &[Message]) {
        for message in messages {
            let job = self.of(&message.group);
            let mut crowd = self.crowd.lock().expect("no holder panics");
            // A job may end before all its messages are published.
            if job.result().is_some() || crowd.begun.contains(&message.group) {
                continue;
            }
            let owners: Vec<&str> = crowd.begun.iter().map(|job_id| self.of(job_id).job.owner.as_str()).collect();
            if let Some(full) = self.quotas.full(&job.job.owner, &owners) {
                let detail = format!("{} begins, and {full}: {:?}", message.group, crowd.begun);
                self.report("no more jobs run than quotas allow", detail);
            }
            crowd.begun.insert(message.group.clone());
        }
    }

    pub fn delivered(&self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            let descriptor = descriptor(&delivery.body);
            self.of(&descriptor.job_id).delivered(delivery, &descriptor);
        }
    }

    /// Returns the deliveries that agents have.
    pub fn handed_of<'a>(&self, receipts: impl Iterator<Item = &'a Receipt>) -> HashSet<Receipt> {
        receipts.filter(|receipt| self.jobs().any(|job| job.is_handed(receipt))).cloned().collect()
    }

    pub fn announced(&self, messages: &[Message]) {
        for message in messages {
            for event in events(&message.body) {
                if let ResultEvent::Attempt(attempt) = event {
                    self.of_results(&message.body).announced(&attempt);
                }
            }
        }
    }

    /// Returns the witness of the job that a result message names.
    pub fn of_results(&self, body: &bytes::Bytes) -> &Arc<JobWitness> {
        self.of(&job_of_message(body).expect("every message names its job"))
    }

    // ---- store -------------------------------------------------------------------------------------------------

    /// `path` is that of the object in the store.
    pub fn written(&self, path: &str, bytes: &[u8]) {
        if let Some(job_id) = path.strip_prefix("open/") {
            self.crowd.lock().expect("no holder panics").marked.insert(job_id.to_owned(), Instant::now());
        }
        let in_job = path.strip_prefix("jobs/").and_then(|path| path.split_once('/'));
        if let Some((job_id, name)) = in_job {
            self.of(job_id).written(name, bytes);
        }
    }
    /// `path` is that of an object that is deleted.
    pub fn deleted(&self, path: &str) {
        if let Some(job_id) = path.strip_prefix("open/") {
            self.crowd.lock().expect("no holder panics").begun.remove(job_id);
        }
    }

    /// Returns when the marker of an open job was written, by virtual time.
    pub fn marked(&self, path: &str) -> Option<Instant> {
        self.crowd.lock().expect("no holder panics").marked.get(path.strip_prefix("open/")?).copied()
    }
}

pub(crate) fn descriptor(body: &[u8]) -> Descriptor {
    serde_json::from_slice(body).expect("only descriptors are sent")
}

pub(crate) fn events(body: &[u8]) -> Vec<ResultEvent> {
    let body = bytes::Bytes::copy_from_slice(body);
    decode_records(&body).map(|record| record.expect("only records are sent").event).collect()
}
