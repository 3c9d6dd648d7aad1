//! A small world, and its state: two queues, a store, and what each role remembers.

use crate::decisions::{Answer, End, Record, Task};

/// A mistake of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    AcknowledgesBeforeAnnouncing,
    AcknowledgesBeforePublishing,
    IgnoresLostLeases,
    /// Publishes the next try with no try spent.
    ForgetsTries,
    ForgetsLostDeliveries,
    /// Acknowledges what it should return when it drains.
    KeepsWhatItShouldGiveBack,
    /// Drops messages of a job without a look whether it has ended.
    NodeDropsOpenJobs,
    PublishesBeforePlanning,
    /// Publishes nothing when it continues after a crash.
    ForgetsToPublishAgain,
    AcknowledgesBeforeCommitting,
    /// Overwrites segments, as if it owned the ledger.
    CommitsUnconditionally,
    /// Tries the next number after a lost commit, and does not drop what the other reducer has committed.
    CommitsTwice,
    /// Drops a success that comes after a failure.
    FailureBeatsSuccess,
    /// Ends the job as it knows it, without a record in the ledger.
    EndsAlone,
    /// Writes the final file in place.
    WritesInPlace,
    /// Ends a job by a decision that precedes a retry.
    EndsReopenedJobs,
    /// Takes an outcome of a reopened job for one of its first run, of which it knows.
    BelievesThatItKnowsAll,
    /// Acknowledges a bundle together with its first member.
    EndsBundlesEarly,
}

/// How a try of a mini-batch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    Succeeds,
    Raises,
    /// Each try ends either way.
    Flaky,
}

/// What may still go wrong, or be asked for, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    pub worker_crashes: u8,
    pub reducer_crashes: u8,
    pub publisher_crashes: u8,
    /// A mini-batch is delivered again while its holder lives: the lease has expired, or the queue delivers twice.
    pub task_lapses: u8,
    /// The same for results.
    pub result_lapses: u8,
    /// A call takes effect, and its caller does not learn it.
    pub unanswered: u8,
    pub drains: u8,
    pub retries: u8,
}

/// A world to be explored.
#[derive(Clone, Debug)]
pub struct World {
    /// One for each mini-batch.
    pub scripts: Vec<Script>,
    pub workers: u8,
    /// Mini-batches that a worker holds at a time.
    pub capacity: usize,
    pub reducers: u8,
    /// Messages that a reducer holds at a time.
    pub batch: usize,
    pub faults: Faults,
    /// Mini-batches that are published together travel in one message.
    pub bundles: bool,
    /// An old receipt may delete a message that was delivered again.
    pub old_receipt_deletes: bool,
    /// `retry` begins only when no reducer is between its agreement on an end and its last write.
    pub retry_waits: bool,
    pub bug: Option<Bug>,
}

impl World {
    pub fn mini_batches(&self) -> u8 {
        u8::try_from(self.scripts.len()).expect("a small world")
    }

    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

/// The body of a message of the task queue: a mini-batch, or a bundle of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parcel {
    pub first: Task,
    pub second: Option<Task>,
}

impl Parcel {
    pub fn alone(first: Task) -> Self {
        Self { first, second: None }
    }

    pub fn members(self) -> impl Iterator<Item = Task> {
        std::iter::once(self.first).chain(self.second)
    }
}

/// A message in a queue, with the number of its deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message<T> {
    pub body: T,
    pub count: u8,
    pub id: u8,
}

/// Names no message.
pub const GONE: u8 = u8::MAX;

/// A queue that delivers in any order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Queue<T>(pub Vec<Message<T>>);

impl<T: Copy> Queue<T> {
    /// Ids of deleted messages are [`GONE`] once a step is over, so none is used again while a receipt names it.
    pub fn send(&mut self, body: T) {
        let id = (0..GONE).find(|id| self.get(*id).is_none()).expect("few messages");
        self.0.push(Message { body, count: 0, id });
    }

    pub fn get(&self, id: u8) -> Option<&Message<T>> {
        self.0.iter().find(|message| message.id == id)
    }

    /// Delivers a message, and returns it.
    pub fn deliver(&mut self, id: u8) -> Message<T> {
        let message = self.0.iter_mut().find(|message| message.id == id).expect("it is there");
        message.count += 1;
        *message
    }

    /// Deletes a message by the receipt of a delivery. `old_too`: also if it was delivered again since.
    pub fn acknowledge(&mut self, receipt: Receipt, old_too: bool) {
        self.0.retain(|message| {
            message.id != receipt.id || message.count != receipt.count && !old_too
        });
    }

    /// Whether a receipt is that of the last delivery of a message.
    pub fn is_current(&self, receipt: Receipt) -> bool {
        self.get(receipt.id).is_some_and(|message| message.count == receipt.count)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt {
    pub count: u8,
    pub id: u8,
}

/// A mini-batch that a worker holds, and what it has done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeldTask {
    pub task: Task,
    /// `None`: no process has answered.
    pub answer: Option<Answer>,
    pub is_announced: bool,
    pub is_published: bool,
    pub is_acknowledged: bool,
    /// The worker knows that it has lost the lease.
    pub knows_lost: bool,
    /// The other member of its bundle has not ended in this delivery, so the service must not forget the bundle.
    pub keeps_bundle: bool,
    pub receipt: Receipt,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Worker {
    pub held: Vec<HeldTask>,
    pub is_draining: bool,
}

/// A result that a reducer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeldResult {
    pub record: Record,
    pub is_committed: bool,
    pub receipt: Receipt,
}

/// What a reducer is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The job is not open here.
    Closed,
    /// It receives and commits.
    Working,
    /// It commits the end of the job.
    Agreeing(End),
    /// It writes the final file.
    Writing(End),
    /// The file of a completed job is half written, in place.
    HalfWritten,
    /// It looks whether the job has been reopened.
    Looking(Summary),
    /// It writes the result.
    Recording(Summary),
}

/// `result.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Summary {
    pub end: End,
    pub total: u8,
    pub succeeded: u8,
    pub failed: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reducer {
    pub step: Step,
    /// Segments that it has read.
    pub known: usize,
    pub held: Vec<HeldResult>,
}

/// What a publisher is about to do: `enqueue`, or `retry`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Publisher {
    /// It writes the plan.
    Planning(Vec<Option<Task>>),
    /// It publishes the first of these.
    Publishing(Vec<Option<Task>>),
    Announcing,
    Gone,
    /// `retry` reads ledger and result.
    Opening,
    /// `retry` commits that the job is open again, and knows this many segments.
    Reopening(usize),
    /// `retry` removes the result.
    Clearing(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub tasks: Queue<Parcel>,
    pub results: Queue<Record>,
    pub workers: Vec<Worker>,
    pub reducers: Vec<Reducer>,
    pub publisher: Publisher,
    pub is_planned: bool,
    pub ledger: Vec<Vec<Record>>,
    /// Mini-batches whose rows are in the final file.
    pub output: Option<Vec<u8>>,
    pub result: Option<Summary>,
    pub faults: Faults,
    /// The rule that the last step has broken.
    pub broken: Option<&'static str>,
}

impl State {
    pub fn first(world: &World) -> Self {
        let new = |mini_batch| Some(Task { mini_batch, tries_spent: 0, lost: 0 });
        let all = (0..world.mini_batches()).map(new).collect();
        let publishes_first = world.has(Bug::PublishesBeforePlanning);
        let reducer = Reducer { step: Step::Working, known: 0, held: vec![] };
        Self {
            tasks: Queue(vec![]),
            results: Queue(vec![]),
            workers: vec![Worker::default(); usize::from(world.workers)],
            reducers: vec![reducer; usize::from(world.reducers)],
            publisher: if publishes_first {
                Publisher::Publishing(all)
            } else {
                Publisher::Planning(all)
            },
            is_planned: false,
            ledger: vec![],
            output: None,
            result: None,
            faults: world.faults,
            broken: None,
        }
    }

    /// Breaks a rule; the first one of a step counts.
    pub fn breaks(&mut self, rule: &'static str) {
        self.broken.get_or_insert(rule);
    }

    /// Whether a living worker has a lease of the message.
    pub fn is_task_leased(&self, id: u8) -> bool {
        let held = self.workers.iter().flat_map(|worker| &worker.held);
        held.map(|held| held.receipt)
            .any(|receipt| receipt.id == id && self.tasks.is_current(receipt))
    }

    /// Whether a living reducer has a lease of the message.
    pub fn is_result_leased(&self, id: u8) -> bool {
        let held = self.reducers.iter().flat_map(|reducer| &reducer.held);
        held.map(|held| held.receipt)
            .any(|receipt| receipt.id == id && self.results.is_current(receipt))
    }

    /// Whether a reducer is between its agreement on an end and its last write.
    pub fn is_being_ended(&self) -> bool {
        self.reducers.iter().any(|reducer| {
            !matches!(reducer.step, Step::Closed | Step::Working | Step::Agreeing(_))
        })
    }

    /// Makes equal what differs only in the order of workers, reducers or messages, or in their names.
    pub fn canonical(mut self) -> Self {
        for worker in &mut self.workers {
            worker.held.sort_unstable();
            worker.is_draining &= !worker.held.is_empty();
        }
        self.workers.sort_by_cached_key(|worker| {
            let mut named = worker.clone();
            named.held.iter_mut().for_each(|held| held.receipt.id = 0);
            named
        });
        for reducer in &mut self.reducers {
            reducer.held.sort_unstable();
        }
        self.reducers.sort_by_cached_key(|reducer| {
            let mut named = reducer.clone();
            named.held.iter_mut().for_each(|held| held.receipt.id = 0);
            named
        });
        let receipts = self
            .workers
            .iter_mut()
            .flat_map(|worker| &mut worker.held)
            .map(|held| &mut held.receipt);
        rename(&mut self.tasks, receipts.collect());
        let receipts = self
            .reducers
            .iter_mut()
            .flat_map(|reducer| &mut reducer.held)
            .map(|held| &mut held.receipt);
        rename(&mut self.results, receipts.collect());
        self
    }
}

/// Orders the messages of a queue by what they are and who has them, and numbers them in this order.
fn rename<T: Copy + Ord>(queue: &mut Queue<T>, mut receipts: Vec<&mut Receipt>) {
    queue.0.sort_by_cached_key(|message| {
        let holders: Vec<usize> = (0..)
            .zip(&receipts)
            .filter(|(_, receipt)| receipt.id == message.id)
            .map(|(at, _)| at)
            .collect();
        (message.body, message.count, holders)
    });
    let ids: Vec<u8> = queue.0.iter().map(|message| message.id).collect();
    let new = |id: u8| {
        ids.iter().position(|known| *known == id).map_or(GONE, |at| u8::try_from(at).expect("few"))
    };
    receipts.iter_mut().for_each(|receipt| receipt.id = new(receipt.id));
    queue.0.iter_mut().for_each(|message| message.id = new(message.id));
    receipts.iter_mut().filter(|receipt| receipt.id == GONE).for_each(|receipt| receipt.count = 0);
}
