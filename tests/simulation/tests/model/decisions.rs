//! The decisions of the roles' own code, as functions of the values of the model: what the scheduler of a worker makes
//! of a delivery, what a reducer makes of the ledger and of messages, and what a publisher still has to publish.
//!
//! Equal questions have equal answers, so each thread remembers them.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::thread::LocalKey;
use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::{
    Attempt, AttemptStatus, Descriptor, Ending, ErrorReport, JobSpec, JobState, Planned,
    ProcessEvent, ResultEvent, Round, Work, decode_records, encode_record,
};
use reducer::MiniBatchState;
use reducer::simulation_api::LedgerView;
use worker::scheduler::{
    Action, Announcement, Config, Event, LeasedDelivery, Outcome, ProcessId, Scheduler, Stop,
    Timestamp,
};

/// Tries of a mini-batch.
pub const TRIES_MAX: u8 = 2;
/// Deliveries of a mini-batch that may be lost with their node.
pub const LOST_MAX: u8 = 1;

static SPEC: LazyLock<Arc<JobSpec>> = LazyLock::new(|| {
    let (run_max_try, lost_delivery_max) = (u32::from(TRIES_MAX), u32::from(LOST_MAX));
    Arc::new(JobSpec { run_max_try, lost_delivery_max, ..JobSpec::example() })
});
static NOW: LazyLock<Timestamp> =
    LazyLock::new(|| Timestamp { instant: Instant::now(), milliseconds: 0 });

/// A message of the task queue: what differs between descriptors of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    pub mini_batch: u8,
    pub tries_spent: u8,
    pub lost: u8,
}

/// A record of the result queue or of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Record {
    Planned { mini_batches: u8 },
    Attempt(Tried),
    Reopened,
    Ended(End),
}

/// The segments of a ledger.
pub type Ledger = Vec<Vec<Record>>;

/// A ledger, and the records of messages that its reducer has received.
type LedgerAndMessages = (Ledger, Vec<Record>);

/// An attempt: the task as it was run, with all lost deliveries, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tried {
    pub task: Task,
    pub end: TryEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TryEnd {
    Succeeded,
    Raised,
    /// It was not run.
    LostTooOften,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    Completed,
    Failed,
}

/// What happens to a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// No process has begun it.
    Waits,
    Succeeds,
    Raises,
    /// The node drains before a process begins it.
    Drained,
}

/// What a worker sends because of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Answer {
    /// The attempt to announce.
    pub tried: Option<Tried>,
    /// The descriptor to publish: of the next try, or that of a returned mini-batch.
    pub next: Option<Task>,
}

fn remember<K, Q, V>(
    memory: &'static LocalKey<RefCell<HashMap<K, V>>>,
    key: &Q,
    answer: impl FnOnce() -> V,
) -> V
where
    K: Borrow<Q> + Eq + Hash,
    Q: ToOwned<Owned = K> + Eq + Hash + ?Sized,
    V: Clone,
{
    if let Some(known) = memory.with_borrow(|memory| memory.get(key).cloned()) {
        return known;
    }
    let value = answer();
    memory.with_borrow_mut(|memory| memory.insert(key.to_owned(), value.clone()));
    value
}

// ---- worker -----------------------------------------------------------------------------------------------------

thread_local! {
    static ANSWERS: RefCell<HashMap<(Task, u8, Fate), Option<Answer>>> = RefCell::default();
    static BYTES: RefCell<HashMap<Record, Bytes>> = RefCell::default();
    static SEGMENTS: RefCell<HashMap<LedgerAndMessages, Vec<Record>>> = RefCell::default();
    static VIEWS: RefCell<HashMap<Ledger, Rc<View>>> = RefCell::default();
}

/// Returns the deliveries of a mini-batch that were lost before this one, the `count`th of its message.
pub fn lost_before(task: Task, count: u8) -> u8 {
    let lost = worker::scheduler::deliveries_lost(&descriptor(task), u32::from(count));
    u8::try_from(lost).expect("few deliveries")
}

/// Returns what the scheduler of a node sends because of the `count`th delivery of a message; `None`: nothing yet.
pub fn answer(task: Task, count: u8, fate: Fate) -> Option<Answer> {
    remember(&ANSWERS, &(task, count, fate), || {
        let announcement = schedule(task, count, fate)?;
        Some(match announcement {
            Announcement::Outcome(outcome) => {
                let Outcome { attempt, next_try, .. } = *outcome;
                Answer { tried: Some(tried(&attempt)), next: next_try.as_ref().map(task_of) }
            }
            Announcement::Return { descriptor, .. } => {
                Answer { tried: None, next: Some(task_of(&descriptor)) }
            }
            Announcement::Drop { .. } => unreachable!("the model has no speculative runs"),
            Announcement::Event(event) => unreachable!("only mini-batches are kept: {event:?}"),
        })
    })
}

fn descriptor(task: Task) -> Descriptor {
    let (tries_spent, deliveries_lost) = (u32::from(task.tries_spent), u32::from(task.lost));
    Descriptor {
        tries_spent,
        deliveries_lost,
        ..Descriptor::new("job", u64::from(task.mini_batch), Work::Rank)
    }
}

fn small(number: impl TryInto<u8>) -> u8 {
    number.try_into().unwrap_or_else(|_| panic!("numbers of a small world fit into a byte"))
}

fn task_of(descriptor: &Descriptor) -> Task {
    let Descriptor { mini_batch, tries_spent, deliveries_lost, .. } = *descriptor;
    Task {
        mini_batch: small(mini_batch),
        tries_spent: small(tries_spent),
        lost: small(deliveries_lost),
    }
}

fn tried(attempt: &Attempt) -> Tried {
    let end = match attempt.status {
        AttemptStatus::Succeeded => TryEnd::Succeeded,
        AttemptStatus::RunRaised => TryEnd::Raised,
        AttemptStatus::LostTooOften => TryEnd::LostTooOften,
        other => unreachable!("no attempt ends so: {other:?}"),
    };
    let (mini_batch, lost) = (small(attempt.mini_batch), small(attempt.deliveries_lost));
    Tried { task: Task { mini_batch, tries_spent: small(attempt.try_number - 1), lost }, end }
}

/// Drives the scheduler of a node with one process, and returns what it announces of the mini-batch.
fn schedule(task: Task, count: u8, fate: Fate) -> Option<Announcement> {
    let now = *NOW;
    let config = Config {
        spec: SPEC.clone(),
        node: "node".to_owned(),
        processes: 1,
        allocation: None,
        first_process: 0,
        gpus: 0,
        prefetch_bytes_max: u64::MAX,
        grace: Duration::from_secs(30),
        lease_max: None,
        is_alone: false,
        fetches_checkpoints: false,
    };
    let mut scheduler = Scheduler::new(config, now);
    // The node has no other job.
    scheduler.access(worker::Access::Exclusive);
    let process = ProcessId { slot: 0, number: 0 };
    let frame = |frame, rows| Event::Frame { process, frame, rows };
    if fate != Fate::Drained {
        let ready = ProcessEvent::Ready {
            init_seconds: 0.0,
            import_seconds: 0.0,
            python_version: "3".into(),
            takes: protocol::TableForm::Frame,
        };
        scheduler.handle(frame(ready, Bytes::new()), now);
    }
    scheduler.schedule(now, false);
    let delivered = LeasedDelivery {
        lease: 1,
        descriptor: descriptor(task),
        receive_count: u32::from(count),
        deaths: 0,
        bytes: 0,
    };
    scheduler.handle(Event::Received(vec![delivered]), now);
    scheduler.schedule(now, false);
    match fate {
        Fate::Waits => {}
        Fate::Succeeds => {
            let ending = Ending { sequence: 1, returned: 1, ..Ending::empty() };
            let rows = format!("row {}\n", task.mini_batch);
            scheduler.handle(frame(ProcessEvent::Answered(ending), rows.into()), now);
        }
        Fate::Raises => {
            let ending = Ending {
                sequence: 1,
                ..Ending::failed(AttemptStatus::RunRaised, ErrorReport::default())
            };
            scheduler.handle(frame(ProcessEvent::Answered(ending), Bytes::new()), now);
        }
        Fate::Drained => scheduler.handle(Event::Stop(Stop::Drain), now),
    }
    scheduler.schedule(now, false);
    std::iter::from_fn(|| scheduler.next_action()).find_map(|action| match action {
        Action::Announce(
            announcement @ (Announcement::Outcome(_) | Announcement::Return { .. }),
        ) => Some(announcement),
        _ => None,
    })
}

// ---- reducer ----------------------------------------------------------------------------------------------------

fn bytes_of(record: Record) -> Bytes {
    remember(&BYTES, &record, || {
        let mut rows = Bytes::new();
        let event = match record {
            Record::Planned { mini_batches } => {
                ResultEvent::Planned(Planned { mini_batches: u64::from(mini_batches), items: None })
            }
            Record::Reopened => ResultEvent::Round(Round { failed: true, ..Round::default() }),
            Record::Ended(End::Completed) => {
                ResultEvent::Ended { state: JobState::Completed, cause: None, error: None }
            }
            Record::Ended(End::Failed) => ResultEvent::Ended {
                state: JobState::Failed,
                cause: Some("too many failures".into()),
                error: None,
            },
            Record::Attempt(Tried { task, end }) => {
                let fate = match end {
                    TryEnd::Succeeded => Fate::Succeeds,
                    TryEnd::Raised => Fate::Raises,
                    TryEnd::LostTooOften => Fate::Waits,
                };
                let Some(Announcement::Outcome(outcome)) = schedule(task, 1, fate) else {
                    unreachable!("it was announced before: {record:?}")
                };
                let mut attempt = outcome.attempt;
                rows = outcome.rows;
                // As the announcer does.
                attempt.rows =
                    if rows.is_empty() { protocol::Rows::None } else { protocol::Rows::Inline };
                ResultEvent::Attempt(Box::new(attempt))
            }
        };
        let mut body = Vec::new();
        encode_record(&event, &rows, &mut body);
        body.into()
    })
}

fn records_of(bytes: &Bytes) -> Vec<Record> {
    decode_records(bytes).map(|record| record_of(&record.expect("a record").event)).collect()
}

fn record_of(event: &ResultEvent) -> Record {
    match event {
        ResultEvent::Planned(planned) => {
            Record::Planned { mini_batches: small(planned.mini_batches) }
        }
        ResultEvent::Attempt(attempt) => Record::Attempt(tried(attempt)),
        ResultEvent::Round(_) => Record::Reopened,
        ResultEvent::Ended { state: JobState::Completed, .. } => Record::Ended(End::Completed),
        ResultEvent::Ended { .. } => Record::Ended(End::Failed),
        other => unreachable!("no role of the model sends it: {other:?}"),
    }
}

fn segments(ledger: &[Vec<Record>]) -> Vec<Bytes> {
    let segment = |records: &Vec<Record>| {
        records.iter().map(|record| bytes_of(*record)).collect::<Vec<_>>().concat()
    };
    ledger.iter().map(|records| segment(records).into()).collect()
}

/// Returns the segment that a reducer commits next if it knows this ledger and has received these records.
pub fn next_segment(known: &[Vec<Record>], received: &[Record]) -> Vec<Record> {
    remember(&SEGMENTS, &(known.to_vec(), received.to_vec()), || {
        let messages: Vec<Bytes> = received.iter().map(|record| bytes_of(*record)).collect();
        let known = LedgerView::read(segments(known)).expect("a ledger");
        records_of(&known.next_segment(&messages).expect("messages"))
    })
}

/// What a ledger tells.
#[derive(Debug, PartialEq, Eq)]
pub struct View {
    pub mini_batches: Vec<MiniBatchState>,
    /// Counts of all, succeeded and failed mini-batches.
    pub counts: (u64, u64, u64),
    /// What `retry` would publish of each mini-batch.
    pub pending: Vec<Option<Task>>,
    pub is_planned: bool,
    /// The end in the ledger.
    pub ended: Option<End>,
    /// The end that a reducer decides on.
    pub verdict: Option<End>,
    /// Mini-batches whose rows are in the final file, in order.
    pub rows: Vec<u8>,
}

/// Returns what a ledger tells a reducer about a job with this many mini-batches.
pub fn view(ledger: &[Vec<Record>], mini_batches: u8) -> Rc<View> {
    remember(&VIEWS, ledger, || {
        let known = LedgerView::read(segments(ledger)).expect("a ledger");
        let tally = known.tally();
        let states: Vec<_> =
            (0..mini_batches).map(|mini_batch| tally.state(u64::from(mini_batch))).collect();
        let counts = tally.mini_batches();
        let end = |state| if state == JobState::Completed { End::Completed } else { End::Failed };
        let verdict = known.end(&SPEC).map(|event| match record_of(&event) {
            Record::Ended(end) => end,
            other => unreachable!("not an end: {other:?}"),
        });
        let rows: BTreeMap<u64, Bytes> = known.rows();
        for (mini_batch, row) in &rows {
            assert_eq!(
                *row,
                format!("row {mini_batch}\n"),
                "the index leads to rows of another mini-batch"
            );
        }
        Rc::new(View {
            pending: (0..mini_batches).map(|mini_batch| pending(tally, mini_batch)).collect(),
            mini_batches: states,
            counts: (counts.total, counts.succeeded, counts.failed),
            is_planned: tally.planned().is_some(),
            ended: tally.ended_as().map(|(state, ..)| end(state)),
            verdict,
            rows: rows.into_keys().map(small).collect(),
        })
    })
}

/// Returns the task that `retry` publishes, as `engine::unfinished` decides it.
fn pending(tally: &reducer::Tally, mini_batch: u8) -> Option<Task> {
    let number = u64::from(mini_batch);
    let (tries_spent, lost) =
        (small(tally.tries_spent(number)), small(tally.deliveries_lost(number)));
    (!tally.state(number).has_ended()).then_some(Task { mini_batch, tries_spent, lost })
}
