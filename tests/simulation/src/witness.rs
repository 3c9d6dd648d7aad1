//! Sees every call as it takes effect, and reports a broken rule at once. Each job has a witness of its own.

mod items;
mod job;
mod runs;
mod schedules;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use protocol::{Descriptor, Quotas, ResultEvent, decode_records, job_of_message, job_of_queues};
use queue::{Delivery, Message, Receipt};

pub(crate) use job::JobWitness;
pub(crate) use runs::Runs;
use schedules::Schedules;

use crate::weather::Weather;

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
    /// The limits of jobs at a time, and of each owner.
    limits: Quotas,
    /// The open jobs with messages.
    begun: Mutex<BTreeSet<String>>,
    schedules: Schedules,
    pub runs: Arc<Runs>,
}

impl Witness {
    /// Sees nothing yet.
    pub fn new(jobs: impl IntoIterator<Item = JobWitness>, weather: &Weather) -> Self {
        let limits = weather.limits();
        Self {
            jobs: jobs.into_iter().map(|job| (job.job.id(), Arc::new(job))).collect(),
            violation: Mutex::default(),
            visits: Mutex::default(),
            begun: Mutex::default(),
            schedules: Schedules::new(limits.limit_in_flight(), weather.lag()),
            runs: Runs::new(limits.clone(), weather.lag()),
            limits,
        }
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
        self.visits.lock().expect("no holder panics").remove(name);
    }

    /// Returns a node that has not left every job.
    pub fn node_with_jobs(&self) -> Option<String> {
        let visits = self.visits.lock().expect("no holder panics");
        visits
            .iter()
            .find(|(_, jobs)| **jobs > 0)
            .map(|(node, jobs)| format!("{node} has {jobs} jobs"))
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
            let job_id =
                job_of_message(&message.body).unwrap_or_else(|_| descriptor(&message.body).job_id);
            let job = self.of(&job_id);
            let mut begun = self.begun.lock().expect("no holder panics");
            // A job may end before all its messages are published.
            if job.result().is_some() || begun.contains(&job_id) {
                continue;
            }
            let owners: Vec<&str> =
                begun.iter().map(|job_id| self.of(job_id).job.owner.as_str()).collect();
            if let Some(full) = self.limits.full(&job.job.owner, &owners) {
                let detail = format!("{job_id} begins, and {full}: {begun:?}");
                self.report("no more jobs run than quotas allow", detail);
            }
            begun.insert(job_id);
        }
    }

    /// Queues of this name are about to be deleted.
    pub fn deletes_queues(&self, name: &str) {
        let is_listed =
            self.schedules.last().jobs.iter().any(|job| job.queues().as_deref() == Some(name));
        let has_ended =
            job_of_queues(name).is_none_or(|(job_id, _)| self.of(job_id).result().is_some());
        if is_listed && !has_ended {
            self.report("queues last as long as their job", name.to_owned());
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
    pub fn written(&self, path: &str, bytes: &[u8], by: &str) {
        if let Some(node) = path.strip_prefix("workers/") {
            self.runs.entered(node);
        }
        if path.starts_with("schedule/")
            && let Some((rule, detail)) = self.schedules.committed(bytes, by, &self.jobs)
        {
            self.report(rule, detail);
        }
        let in_job = path.strip_prefix("jobs/").and_then(|path| path.split_once('/'));
        if let Some((job_id, name)) = in_job {
            self.of(job_id).written(name, bytes);
            if name == "result.json" {
                self.runs.ended(&self.of(job_id).job);
            }
        }
    }

    /// A role has read an object.
    pub fn read(&self, path: &str, by: &str) {
        let in_job = path.strip_prefix("jobs/").and_then(|path| path.split_once('/'));
        if let Some((job_id, "plan/complete.json")) = in_job {
            self.schedules.has_read_plan(by, job_id);
        }
    }

    /// `path` is that of an object that is deleted.
    pub fn deleted(&self, path: &str) {
        if let Some(job_id) = path.strip_prefix("open/") {
            self.begun.lock().expect("no holder panics").remove(job_id);
        }
        if let Some(node) = path.strip_prefix("workers/") {
            self.runs.left(node);
        }
    }

    /// Returns the jobs that the last schedule lists.
    pub fn scheduled(&self) -> Vec<String> {
        self.schedules.last().jobs.into_iter().map(|job| job.job_id).collect()
    }
}

pub(crate) fn descriptor(body: &[u8]) -> Descriptor {
    serde_json::from_slice(body).expect("only descriptors are sent")
}

pub(crate) fn events(body: &[u8]) -> Vec<ResultEvent> {
    let body = bytes::Bytes::copy_from_slice(body);
    decode_records(&body).map(|record| record.expect("only records are sent").event).collect()
}
