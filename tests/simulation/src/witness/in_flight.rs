//! Runs of user code in progress on all nodes, against `max_in_flight` of their owners.
//!
//! The limit holds while every node knows the same workers: for half a minute after a worker has started more may run, and
//! runs that have begun go on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use protocol::Quotas;
use tokio::time::Instant;

use crate::actor::Actor;

/// How long after all nodes know the same workers their agents know their shares.
const SLACK: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    quotas: Quotas,
    fleet: Mutex<Fleet>,
}

#[derive(Debug, Default)]
struct Fleet {
    /// The workers that each living node knows, itself included; `None`: it has read no list yet.
    known: BTreeMap<String, Option<BTreeSet<String>>>,
    /// Since when all of them know the same ones.
    agreed_since: Option<Instant>,
    /// The owners of runs in progress, and when these began; `None`: on a node that could not know its part.
    runs: BTreeMap<u64, (String, Option<Instant>)>,
    last_run: u64,
}

/// A run in progress, until this is dropped.
#[derive(Debug)]
pub(crate) struct Run {
    of: Arc<InFlight>,
    number: u64,
}

impl InFlight {
    pub fn new(quotas: Quotas) -> Arc<Self> {
        Arc::new(Self { quotas, fleet: Mutex::default() })
    }

    fn fleet(&self) -> MutexGuard<'_, Fleet> {
        self.fleet.lock().expect("no holder panics")
    }

    pub fn node_began(&self, node: &str) {
        self.fleet().knows(node, None);
    }

    pub fn node_ended(&self, node: &str) {
        let mut fleet = self.fleet();
        fleet.known.remove(node);
        fleet.agree();
    }

    /// A node has read the list of workers.
    pub fn listed(&self, node: &str, workers: BTreeSet<String>) {
        let mut fleet = self.fleet();
        if fleet.known.contains_key(node) {
            fleet.knows(node, Some(workers));
        }
    }

    /// A run begins. Returns what is wrong if the owner may not have so many.
    pub fn began(self: &Arc<Self>, owner: &str, node: &Actor) -> (Run, Option<String>) {
        let mut fleet = self.fleet();
        fleet.last_run += 1;
        let number = fleet.last_run;
        let is_awake = node.thawed_at().is_none_or(|thawed| Instant::now() >= thawed + SLACK);
        fleet.runs.insert(number, (owner.to_owned(), is_awake.then(Instant::now)));
        let too_many = self.quotas.of(owner).max_in_flight.filter(|limit| fleet.in_flight(owner) > *limit as usize);
        let detail = too_many.map(|limit| format!("{owner} may have {limit}: {:?}, {:?}", fleet.runs, fleet.known));
        (Run { of: self.clone(), number }, detail)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.of.fleet().runs.remove(&self.number);
    }
}

impl Fleet {
    fn knows(&mut self, node: &str, workers: Option<BTreeSet<String>>) {
        let with_itself = workers.map(|mut workers| {
            workers.insert(node.to_owned());
            workers
        });
        self.known.insert(node.to_owned(), with_itself);
        self.agree();
    }

    fn agree(&mut self) {
        let mut known = self.known.values();
        let first = known.next().cloned().flatten();
        let is_agreed = first.is_some() && known.all(|workers| *workers == first);
        self.agreed_since = self.agreed_since.or_else(|| Some(Instant::now())).filter(|_| is_agreed);
    }

    /// Returns the number of runs of an owner that began while all nodes knew their parts.
    fn in_flight(&self, owner: &str) -> usize {
        let Some(since) = self.agreed_since.map(|since| since + SLACK) else { return 0 };
        let runs = self.runs.values().filter(|(of, began)| of == owner && began.is_some_and(|began| began >= since));
        runs.count()
    }
}
