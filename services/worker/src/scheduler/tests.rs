//! Tests of each decision, as events and the resulting actions.

mod allocation;
mod copies;
mod ends;
mod gpus;
mod isolation;
mod isolations;
mod items;
mod kept;
mod pause;
mod peer_nodes;
mod quarantine;
mod wear;
mod work;

use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::{
    Attempt, AttemptStatus, Block, BlockRange, Descriptor, Ending, ErrorReport, FailedItems,
    JobSpec, Payload, Phases, ProcessEvent, RestartChance, SlotPhase, Work,
};

use super::process::Process;
use super::*;
use crate::prepare::Prepared;

/// The limit for loading, running and reporting of the example job.
const LIMIT: Duration = Duration::from_secs(90);
const GRACE: Duration = Duration::from_secs(10);

struct Node {
    scheduler: Scheduler,
    now: Timestamp,
    /// Phase, hand-over and duration of the phase of the process in each slot.
    doing: Vec<(SlotPhase, u64, Duration)>,
    requested: Vec<usize>,
}

/// Returns a node whose processes have started but are not ready.
fn starting(processes: u32) -> Node {
    starting_with(processes, |_| ())
}

fn starting_with(processes: u32, change: impl FnOnce(&mut Config)) -> Node {
    let mut config = Config {
        spec: Arc::new(JobSpec::example()),
        node: "0".into(),
        processes,
        allocation: None,
        first_process: 0,
        gpus: 0,
        prefetch_bytes_max: 100,
        grace: GRACE,
        fetches_checkpoints: false,
        lease_max: None,
        is_alone: false,
    };
    change(&mut config);
    let started = config.allocation.as_ref().map_or(processes, |allocation| allocation.processes);
    let now = Timestamp { instant: Instant::now(), milliseconds: 1_000_000 };
    let doing = vec![(SlotPhase::Init, 0, Duration::ZERO); processes as usize];
    let gpus =
        config.allocation.as_ref().map_or(config.gpus, |allocation| allocation.gpus.len() as u32);
    let asks_for_gpus = config.spec.asks_for_gpus();
    let mut node = Node { scheduler: Scheduler::new(config, now), now, doing, requested: vec![] };
    if asks_for_gpus {
        // The test looks at the starts.
        return node;
    }
    let with =
        |process| if process < gpus { format!(" with GPU {process}") } else { String::new() };
    let expected: Vec<_> =
        (0..started).map(|process| format!("start {process}{}", with(process))).collect();
    assert_eq!(node.actions(), expected.join(", "));
    node
}

/// Returns a node with ready processes that has received mini-batches without input, numbered from 0, each under the
/// lease with its number.
fn working(processes: u32, mini_batches: u64) -> Node {
    let mut node = starting(processes);
    node.begin(processes, mini_batches);
    node
}

/// Returns a node whose process 0 runs mini-batch 10 as its hand-over 2, with 11 behind it. Process 1 runs mini-batch
/// 1.
fn with_one_behind_a_run() -> Node {
    let mut node = working(2, 2);
    node.after(done(0, 1));
    assert_eq!(node.after(Event::Received((10..12).map(delivered).collect())), "0 gets 10");
    assert_eq!(node.after(Event::Tick(vec![])), "0 gets 11");
    node.runs(0, 2);
    node
}

pub(crate) fn descriptor(mini_batch: u64, work: Work) -> Descriptor {
    Descriptor::new("job", mini_batch, work)
}

pub(crate) fn moment() -> Timestamp {
    Timestamp { instant: Instant::now(), milliseconds: 0 }
}

/// Returns an attempt that began when its mini-batch was received, after two lost deliveries.
pub(crate) fn attempted(descriptor: Descriptor, began: Timestamp) -> EndedAttempt {
    EndedAttempt {
        prepared: Prepared::without_reading(&descriptor).expect("nothing to read"),
        descriptor,
        deliveries_lost: 2,
        received: began.instant,
        preparation: Duration::ZERO,
        began,
        waited: Default::default(),
    }
}

pub(super) fn delivered(number: u64) -> LeasedDelivery {
    LeasedDelivery {
        lease: number,
        descriptor: descriptor(number, Work::Rank),
        receive_count: 1,
        deaths: 0,
        bytes: 0,
    }
}

/// Returns a table, which must be read.
pub(super) fn table(number: u64, bytes: u64) -> LeasedDelivery {
    let block = Block {
        path: "/t.csv".into(),
        version: None,
        range: BlockRange::WholeText,
        path_columns: vec![],
    };
    let descriptor = descriptor(
        number,
        Work::Rows { input: 0, blocks: vec![block], rows_before: None, key: vec![] },
    );
    LeasedDelivery { bytes, ..LeasedDelivery { descriptor, ..delivered(number) } }
}

pub(super) fn read(number: u64, bytes: u64) -> Event {
    let ready = Prepared { bytes, ..Prepared::new(Payload::Rank, 3) };
    prepared(number, Preparation::Ready(ready.into()))
}

fn prepared(number: u64, preparation: Preparation) -> Event {
    Event::Prepared { lease: number, descriptor: table(number, 1).descriptor.into(), preparation }
}

pub(super) fn id(number: u32) -> ProcessId {
    ProcessId { slot: number as usize % 2, number }
}

fn done(process: u32, sequence: u64) -> Event {
    answered(process, Ending { sequence, returned: 1, ..Ending::empty() })
}

fn raised(process: u32, sequence: u64) -> Event {
    failed(process, sequence, ErrorReport::default())
}

fn failed(process: u32, sequence: u64, error: ErrorReport) -> Event {
    answered(process, Ending { sequence, ..Ending::failed(AttemptStatus::RunRaised, error) })
}

fn failed_item(item: u64, status: AttemptStatus) -> FailedItems {
    FailedItems { item, items: 1, status, error: ErrorReport::default() }
}

fn error(category: &str, message: &str) -> ErrorReport {
    ErrorReport { category: category.into(), message: message.into(), ..ErrorReport::default() }
}

fn answered(process: u32, ending: Ending) -> Event {
    frame(
        process,
        ProcessEvent::Answered(Ending { run_seconds: 0.001, process_seconds: 0.001, ..ending }),
    )
}

fn answered_with(process: u32, ending: Ending, rows: &'static str) -> Event {
    let frame = ProcessEvent::Answered(ending);
    Event::Frame { process: id(process), frame, rows: Bytes::from_static(rows.as_bytes()) }
}

/// Returns the report of a process that is ready.
fn started() -> ProcessEvent {
    ProcessEvent::Ready {
        init_seconds: 0.1,
        import_seconds: 0.0,
        python_version: "3".into(),
        takes: protocol::TableForm::Frame,
    }
}

fn frame(process: u32, frame: ProcessEvent) -> Event {
    Event::Frame { process: id(process), frame, rows: Bytes::new() }
}

fn exited(process: u32, phase: SlotPhase, sequence: u64) -> Event {
    Event::Exited { process: id(process), code: -9, phase, sequence, ran: None }
}

/// Returns the event of a process as one of a process with its number in the first slot.
fn in_first_slot(mut event: Event) -> Event {
    match &mut event {
        Event::Frame { process, .. }
        | Event::Exited { process, .. }
        | Event::Examined { process, .. } => process.slot = 0,
        other => unreachable!("{other:?}"),
    }
    event
}

fn examined(process: u32) -> Event {
    examined_with(process, false)
}

fn examined_with(process: u32, has_checkpoints: bool) -> Event {
    let findings = ExitReport {
        death: error("ProcessDied", "it died"),
        early: "it crashed".into(),
        chance: RestartChance::Perhaps,
        has_checkpoints,
    };
    Event::Examined { process: id(process), findings: findings.into() }
}

/// Returns the short form of an action, or `None` for actions that every test would have to repeat.
fn in_short(action: Action) -> Option<String> {
    let text = match action {
        Action::Receive { .. }
        | Action::Begin { .. }
        | Action::Wait { .. }
        | Action::Log { .. }
        | Action::UserError { .. } => return None,
        Action::Announce(Announcement::Event(event)) => match event {
            ResultEvent::NodeStopped { cause, .. } => {
                format!("stopped: {}", cause.unwrap_or_default())
            }
            ResultEvent::Working { mini_batch, .. } => format!("{mini_batch} goes on"),
            _ => return None,
        },
        Action::StopReceiving => "stop receiving".into(),
        Action::Prepare { lease, .. } => format!("prepare {lease}"),
        Action::Start { process, gpus: None, .. } => format!("start {}", process.number),
        Action::Start { process, gpus: Some(gpus), .. } => {
            format!("start {} with {gpus}", process.number)
        }
        Action::HandOver { process, frames, .. } => {
            let name = |frame: &MiniBatchFrame| match frame.items {
                Some((first, end)) if frame.only_kept => {
                    format!("{}[kept of {first}..{end}]", frame.mini_batch)
                }
                Some((first, end)) => format!("{}[{first}..{end}]", frame.mini_batch),
                None => frame.mini_batch.to_string(),
            };
            let frames: Vec<_> = frames.iter().map(name).collect();
            format!("{} gets {}", process.number, frames.join(" "))
        }
        Action::Recall { process, sequences } => {
            format!("recall {}..{} from {}", sequences.start, sequences.end, process.number)
        }
        Action::DumpStacks { process, .. } => format!("stacks of {}", process.number),
        Action::Finish(process) => format!("finish {}", process.number),
        Action::Kill(process) => format!("kill {}", process.number),
        Action::Examine { process, sequence, .. } => {
            format!("examine {} in {sequence}", process.number)
        }
        Action::Forget(process) => format!("forget {}", process.number),
        Action::BeginAlone { mini_batch } => format!("{mini_batch} begins alone"),
        Action::EndAlone { mini_batch } => format!("{mini_batch} ends alone"),
        Action::ReuseTable(_) => "reuse table".into(),
        Action::Announce(Announcement::Outcome(outcome)) => {
            let again = outcome.next_try.map_or("", |_| ", again");
            format!("{} {:?}{again}", outcome.attempt.mini_batch, outcome.attempt.status)
        }
        Action::Announce(Announcement::Return { descriptor, .. }) => {
            format!("return {}", descriptor.mini_batch)
        }
        Action::Announce(Announcement::Drop { lease }) => format!("drop {lease}"),
        Action::Notice { process, waiting } => {
            let name = process.map_or("the node".to_owned(), |process| process.number.to_string());
            // Without the time of day.
            let (detail, _) = waiting.detail.split_once(" until ").unwrap_or_default();
            let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
            format!(
                "{name} is in {} for {} s{detail}",
                waiting.phase.metric_word(),
                waiting.seconds
            )
        }
    };
    Some(text)
}

impl Node {
    fn actions(&mut self) -> String {
        let actions: Vec<_> = std::iter::from_fn(|| self.scheduler.next_action()).collect();
        self.requested.extend(actions.iter().filter_map(|action| match action {
            Action::Receive { messages_max } => Some(messages_max),
            _ => None,
        }));
        actions.into_iter().filter_map(in_short).collect::<Vec<_>>().join(", ")
    }

    /// Reports an event, and returns the resulting actions.
    fn after(&mut self, event: Event) -> String {
        self.scheduler.handle(event, self.now);
        self.scheduler.mini_batches.check();
        self.scheduler.schedule(self.now, false);
        self.scheduler.mini_batches.check();
        self.actions()
    }

    /// Reports an event, and returns the actions that follow from it before the node schedules others.
    fn handled(&mut self, event: Event) -> Vec<Action> {
        self.scheduler.handle(event, self.now);
        std::iter::from_fn(|| self.scheduler.next_action()).collect()
    }

    /// Reports an event that ends an attempt, and returns the first outcome.
    fn outcome(&mut self, event: Event) -> Box<Outcome> {
        let outcome = |action| match action {
            Action::Announce(Announcement::Outcome(outcome)) => Some(outcome),
            _ => None,
        };
        self.handled(event).into_iter().find_map(outcome).expect("an attempt ends")
    }

    /// Reports an event that ends an attempt, and returns it.
    fn attempt(&mut self, event: Event) -> Attempt {
        self.scheduler.handle(event, self.now);
        self.scheduler.schedule(self.now, false);
        let ended = |action| match action {
            Action::Announce(Announcement::Outcome(outcome)) => Some(outcome.attempt),
            _ => None,
        };
        let mut attempts: Vec<_> =
            std::iter::from_fn(|| self.scheduler.next_action()).filter_map(ended).collect();
        attempts.pop().expect("an attempt ends")
    }

    fn ready(&mut self, process: u32) {
        self.after(frame(process, started()));
        self.doing[process as usize % 2] = (SlotPhase::Idle, 0, Duration::ZERO);
    }

    /// Makes the first processes ready, and then delivers mini-batches without input, numbered from 0, each under the
    /// lease with its number. Returns the resulting actions.
    fn begin(&mut self, processes: u32, mini_batches: u64) -> String {
        (0..processes).for_each(|process| self.ready(process));
        self.after(Event::Received((0..mini_batches).map(delivered).collect()))
    }

    fn snapshots(&self) -> Vec<ProcessSnapshot> {
        let see = |process: &Process| {
            let (phase, sequence, elapsed) = self.doing[process.id.slot];
            ProcessSnapshot {
                process: process.id,
                phase,
                sequence,
                elapsed,
                frame_incomplete_for: None,
                stacks: None,
            }
        };
        self.scheduler.processes.iter().map(see).collect()
    }

    fn pass(&mut self, time: Duration) {
        self.now.instant += time;
        self.now.milliseconds += time.as_millis() as u64;
        self.doing.iter_mut().for_each(|(_, _, elapsed)| *elapsed += time);
    }

    /// Lets time pass, and returns the resulting actions.
    fn tick(&mut self, time: Duration) -> String {
        self.pass(time);
        let snapshots = self.snapshots();
        self.after(Event::Tick(snapshots))
    }

    fn stacks(&mut self, process: u32, stacks: &str) -> String {
        let mut snapshots = self.snapshots();
        for seen in snapshots.iter_mut().filter(|seen| seen.process == id(process)) {
            seen.stacks = Some(stacks.into());
        }
        self.after(Event::Tick(snapshots))
    }

    fn runs(&mut self, process: u32, sequence: u64) {
        self.doing[process as usize % 2] = (SlotPhase::Run, sequence, Duration::ZERO);
    }

    fn lost(&mut self, lease: LeaseId) -> String {
        let snapshots = self.snapshots();
        self.after(Event::LeasesLost { leases: vec![lease], snapshots })
    }
}
