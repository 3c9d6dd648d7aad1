//! Any sequence of calls returns the same results as a simple model of a queue.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use queue::{
    Clock, Delivery, Depth, ManualClock, MemoryOptions, MemoryQueue, Message, Queue, Receipt,
    Receive, SqliteOptions, SqliteQueue,
};

#[derive(Clone, Debug)]
enum Step {
    Send {
        delays: Vec<u64>,
    },
    Receive {
        messages_max: usize,
        visibility: u64,
    },
    /// Receipts are chosen by index among all that were ever issued.
    Extend {
        leases: Vec<(prop::sample::Index, u64)>,
    },
    Acknowledge {
        receipts: Vec<prop::sample::Index>,
    },
    Release {
        receipts: Vec<prop::sample::Index>,
    },
    Pass {
        time: u64,
    },
    Depth,
    /// Drops the queue, if it outlives that, and opens it again.
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let delay = prop_oneof![3 => Just(0), 1 => 1..20_u64];
    let some = || vec(any::<prop::sample::Index>(), 1..6);
    prop_oneof![
        6 => vec(delay, 1..6).prop_map(|delays| Step::Send { delays }),
        8 => (0..6_usize, 1..20_u64)
            .prop_map(|(messages_max, visibility)| Step::Receive { messages_max, visibility }),
        4 => vec((any::<prop::sample::Index>(), 0..20_u64), 1..6).prop_map(|leases| Step::Extend { leases }),
        6 => some().prop_map(|receipts| Step::Acknowledge { receipts }),
        2 => some().prop_map(|receipts| Step::Release { receipts }),
        6 => (1..10_u64).prop_map(|time| Step::Pass { time }),
        2 => Just(Step::Depth),
        1 => Just(Step::Reopen),
    ]
}

/// A simple model of a queue. It numbers messages in the order of sending, and their number is their body.
struct Model {
    /// The time in milliseconds, from 1. A message with `visible_at` 0 is visible at any time.
    now: u64,
    sent: usize,
    messages: Vec<ModelMessage>,
}

struct ModelMessage {
    number: usize,
    visible_at: u64,
    count: u32,
}

/// The number of a message and of one of its deliveries.
type ModelReceipt = (usize, u32);

impl Model {
    fn new() -> Self {
        Self { now: 1, sent: 0, messages: Vec::new() }
    }

    fn send(&mut self, delays: &[u64]) -> Vec<Message> {
        let now = self.now;
        let message = |delay: &u64| {
            let number = self.sent;
            self.sent += 1;
            self.messages.push(ModelMessage {
                number,
                visible_at: if *delay == 0 { 0 } else { now + delay },
                count: 0,
            });
            Message { delay: milliseconds(*delay), ..Message::new(number.to_string()) }
        };
        delays.iter().map(message).collect()
    }

    fn receive(&mut self, messages_max: usize, visibility: u64) -> Vec<ModelReceipt> {
        self.messages.sort_by_key(|message| (message.visible_at, message.number));
        let now = self.now;
        let visible =
            self.messages.iter_mut().filter(|message| message.visible_at <= now).take(messages_max);
        let claim = |message: &mut ModelMessage| {
            message.visible_at = now + visibility;
            message.count += 1;
            (message.number, message.count)
        };
        visible.map(claim).collect()
    }

    fn leased(&mut self, receipt: ModelReceipt) -> Option<&mut ModelMessage> {
        let now = self.now;
        self.messages
            .iter_mut()
            .find(|message| (message.number, message.count) == receipt && message.visible_at > now)
    }

    fn extend(&mut self, receipt: ModelReceipt, visibility: u64) -> bool {
        let visible_at = self.now + visibility;
        self.leased(receipt).map(|message| message.visible_at = visible_at).is_some()
    }

    fn release(&mut self, receipt: ModelReceipt) {
        if let Some(message) = self.leased(receipt) {
            message.visible_at = 0;
        }
    }

    fn acknowledge(&mut self, receipt: ModelReceipt) -> bool {
        let before = self.messages.len();
        self.messages.retain(|message| (message.number, message.count) != receipt);
        self.messages.len() < before
    }

    fn depth(&self) -> Depth {
        let count = |wanted: fn(bool, bool) -> bool| {
            let matches =
                |message: &&ModelMessage| wanted(message.visible_at <= self.now, message.count > 0);
            self.messages.iter().filter(matches).count() as u64
        };
        Depth {
            visible: count(|visible, _| visible),
            in_flight: count(|visible, received| !visible && received),
            delayed: count(|visible, received| !visible && !received),
        }
    }
}

fn milliseconds(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Returns the receipts that the model issues for these deliveries.
fn numbers(deliveries: &[Delivery]) -> Vec<ModelReceipt> {
    let number = |delivery: &Delivery| {
        std::str::from_utf8(&delivery.body).expect("text").parse().expect("a number")
    };
    deliveries.iter().map(|delivery| (number(delivery), delivery.receive_count)).collect()
}

/// All receipts ever issued, each with the receipt of the model.
#[derive(Default)]
struct Receipts(Vec<(Receipt, ModelReceipt)>);

impl Receipts {
    fn choose(&self, indices: &[prop::sample::Index]) -> Vec<(Receipt, ModelReceipt)> {
        if self.0.is_empty() {
            Vec::new()
        } else {
            indices.iter().map(|index| index.get(&self.0).clone()).collect()
        }
    }
}

/// Takes a step and compares the result with the model.
async fn check(
    queue: &dyn Queue,
    clock: &ManualClock,
    model: &mut Model,
    receipts: &mut Receipts,
    step: &Step,
) {
    match step {
        Step::Send { delays } => queue.send(model.send(delays)).await.expect("sends"),
        Step::Receive { messages_max, visibility } => {
            let request = Receive {
                messages_max: *messages_max,
                visibility: milliseconds(*visibility),
                wait: Duration::ZERO,
            };
            let deliveries = queue.receive(request).await.expect("receives");
            assert_eq!(numbers(&deliveries), model.receive(*messages_max, *visibility));
            let issued = deliveries.iter().map(|delivery| {
                (delivery.receipt.clone(), numbers(std::slice::from_ref(delivery))[0])
            });
            receipts.0.extend(issued);
        }
        Step::Extend { leases } => {
            let indices: Vec<_> = leases.iter().map(|(index, _)| *index).collect();
            let chosen = receipts.choose(&indices);
            let leases: Vec<_> =
                chosen.iter().zip(leases).map(|(chosen, (_, time))| (chosen, *time)).collect();
            let asked: Vec<_> = leases
                .iter()
                .map(|((receipt, _), time)| (receipt.clone(), milliseconds(*time)))
                .collect();
            let lost = queue.extend(&asked).await.expect("extends");
            let expected: Vec<_> = leases
                .iter()
                .filter(|((_, of_model), time)| !model.extend(*of_model, *time))
                .map(|(chosen, _)| chosen.0.clone())
                .collect();
            assert_eq!(lost, expected);
        }
        Step::Acknowledge { receipts: indices } => {
            let chosen = receipts.choose(indices);
            let asked: Vec<_> = chosen.iter().map(|(receipt, _)| receipt.clone()).collect();
            let lost = queue.acknowledge(&asked).await.expect("acknowledges");
            let expected = chosen.into_iter().filter(|(_, of_model)| !model.acknowledge(*of_model));
            assert_eq!(lost, expected.map(|(receipt, _)| receipt).collect::<Vec<_>>());
        }
        Step::Release { receipts: indices } => {
            let chosen = receipts.choose(indices);
            let asked: Vec<_> = chosen.iter().map(|(receipt, _)| receipt.clone()).collect();
            queue.release(&asked).await.expect("releases");
            chosen.iter().for_each(|(_, of_model)| model.release(*of_model));
        }
        Step::Pass { time } => {
            model.now += time;
            clock.advance(milliseconds(*time));
        }
        Step::Depth => assert_eq!(queue.depth().await.expect("answers"), model.depth()),
        Step::Reopen => {}
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("starts")
}

async fn check_sqlite(steps: &[Step]) {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = ManualClock::new();
    let open = || {
        let options =
            SqliteOptions { clock: Clock::Manual(clock.clone()), ..SqliteOptions::default() };
        SqliteQueue::open(folder.path().join("queue.db"), options).expect("opens")
    };
    let (mut queue, mut model, mut receipts) = (open(), Model::new(), Receipts::default());
    for step in steps {
        if matches!(step, Step::Reopen) {
            drop(queue);
            queue = open();
        }
        check(&queue, &clock, &mut model, &mut receipts, step).await;
    }
}

async fn check_memory(steps: &[Step]) {
    let clock = ManualClock::new();
    let options = MemoryOptions { clock: Clock::Manual(clock.clone()), ..MemoryOptions::default() };
    let (queue, mut model, mut receipts) =
        (MemoryQueue::new(options), Model::new(), Receipts::default());
    for step in steps {
        check(&queue, &clock, &mut model, &mut receipts, step).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sqlite_queue_matches_the_model(steps in vec(step(), 1..60)) {
        runtime().block_on(check_sqlite(&steps));
    }

    #[test]
    fn memory_queue_matches_the_model(steps in vec(step(), 1..60)) {
        runtime().block_on(check_memory(&steps));
    }
}
