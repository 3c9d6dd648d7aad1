//! A simulated Python process. It runs mini-batches as the job's script says, and shows its phase on a status page.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use protocol::{
    AttemptStatus, Ending, ErrorReport, FailedItems, MiniBatchFrame, ProcessEvent, RestartChance,
    SlotPhase,
};
use queue::Receipt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use worker::scheduler::{ProcessId, ProcessSnapshot};

use crate::actor::Actor;
use crate::agent::Message;
use crate::job::PROCESSES;
use crate::weather::Bug;
use crate::witness::{JobWitness, Runs};

/// What a failure on a broken GPU says.
pub(crate) const GPU_GONE: &str = "CUDA error: no CUDA-capable device is detected";
/// How much longer a slow run takes. A node that freezes with it for less than a lease still ends it in time.
const SLOW: Duration = Duration::from_secs(35);

/// A message to a process.
pub(crate) enum ProcessCommand {
    Run(Box<MiniBatchFrame>, Option<Receipt>),
    Finish,
}

/// The processes of a job, on all nodes.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    /// The number of the next process: after those of earlier visits, which a real node finds in its log files.
    pub processes: AtomicU32,
    pub init_failures: AtomicU32,
}

/// A simulated process. Dropping it kills it.
pub(crate) struct Process {
    page: Arc<Mutex<Page>>,
    orders: mpsc::UnboundedSender<ProcessCommand>,
    last_sent: u64,
    living: AbortOnDropHandle<()>,
}

/// The status page, which process and node share.
struct Page {
    phase: SlotPhase,
    sequence: u64,
    since: Instant,
    recalled: Range<u64>,
    memory: u64,
}

/// What a process needs to live.
pub(crate) struct ProcessContext {
    pub id: ProcessId,
    pub actor: Actor,
    pub witness: Arc<JobWitness>,
    pub runs: Arc<Runs>,
    pub bug: Option<Bug>,
    pub messages: mpsc::UnboundedSender<Message>,
    /// The GPU that it has for itself.
    pub gpu: Option<u32>,
    /// It may fail to start, or die between two mini-batches.
    pub may_fail: bool,
}

impl Process {
    pub fn start(life: ProcessContext) -> Self {
        let page = Page {
            phase: SlotPhase::Starting,
            sequence: 0,
            since: Instant::now(),
            recalled: 0..0,
            memory: 0,
        };
        let page = Arc::new(Mutex::new(page));
        let (orders, received) = mpsc::unbounded_channel();
        let living = AbortOnDropHandle::new(tokio::spawn(life.live(page.clone(), received)));
        Self { page, orders, last_sent: 0, living }
    }

    pub fn send(&mut self, order: ProcessCommand) {
        if let ProcessCommand::Run(frame, _) = &order {
            self.last_sent = frame.sequence;
        }
        let _ = self.orders.send(order);
    }

    /// Ends the process. Its last phase stays on the page.
    pub fn kill(&self) {
        self.living.abort();
    }

    /// Recalls mini-batches, and returns whether the process has begun none of them, as a real status page does.
    pub fn recall(&self, sequences: Range<u64>) -> bool {
        let mut page = self.page.lock().expect("no holder panics");
        page.recalled = sequences;
        page.sequence < page.recalled.start
    }

    pub fn snapshot(&self, process: ProcessId) -> ProcessSnapshot {
        let Page { phase, sequence, since, .. } = *self.page.lock().expect("no holder panics");
        let elapsed = since.elapsed();
        ProcessSnapshot {
            process,
            phase,
            sequence,
            elapsed,
            frame_incomplete_for: None,
            stacks: None,
        }
    }

    /// Returns the memory that the process occupies.
    pub fn memory(&self) -> u64 {
        self.page.lock().expect("no holder panics").memory
    }

    /// Returns for how long the process has run a mini-batch while another one waits behind it.
    pub fn holds_up_for(&self) -> Option<Duration> {
        let page = self.page.lock().expect("no holder panics");
        (page.phase == SlotPhase::Run && self.has_more(&page)).then(|| page.since.elapsed())
    }

    /// Returns for how long the process has waited for a mini-batch.
    pub fn idle_for(&self) -> Option<Duration> {
        let page = self.page.lock().expect("no holder panics");
        (page.phase == SlotPhase::Idle && !self.has_more(&page)).then(|| page.since.elapsed())
    }

    fn has_more(&self, page: &Page) -> bool {
        self.last_sent > page.sequence && !page.recalled.contains(&self.last_sent)
    }
}

impl ProcessContext {
    async fn live(
        self,
        page: Arc<Mutex<Page>>,
        mut orders: mpsc::UnboundedReceiver<ProcessCommand>,
    ) {
        let enter = |phase, sequence: Option<u64>| {
            let mut page = page.lock().expect("no holder panics");
            (page.phase, page.since) = (phase, Instant::now());
            page.sequence = sequence.unwrap_or(page.sequence);
        };
        let (dice, job) = (self.actor.dice(), &self.witness.job);
        let grow = |by: u64| page.lock().expect("no holder panics").memory += by;
        let mut runs = 0;
        enter(SlotPhase::Init, None);
        grow(job.memory);
        self.pass(dice.time(Duration::from_secs(10))).await;
        if self.has_accident() && self.init_may_fail() {
            let error = ErrorReport { category: "Simulated".into(), ..ErrorReport::default() };
            self.send(
                ProcessEvent::InitFailed { error, chance: RestartChance::Likely },
                Bytes::new(),
            );
            return self.exit(72);
        }
        enter(SlotPhase::Idle, None);
        self.send(
            ProcessEvent::Ready {
                init_seconds: 0.0,
                import_seconds: 0.0,
                python_version: "3".into(),
                takes: protocol::TableForm::Frame,
            },
            Bytes::new(),
        );
        while let Some(order) = orders.recv().await {
            if self.has_accident() {
                return self.exit(-11);
            }
            let ProcessCommand::Run(frame, receipt) = order else {
                enter(SlotPhase::Shutdown, None);
                self.pass(dice.time(Duration::from_secs(5))).await;
                return self.exit(0);
            };
            // In this order: the node writes the range before it reads the phase.
            enter(SlotPhase::Run, Some(frame.sequence));
            let is_recalled =
                page.lock().expect("no holder panics").recalled.contains(&frame.sequence);
            if is_recalled && self.bug != Some(Bug::RunsWhatIsRecalled) {
                enter(SlotPhase::Idle, None);
                self.send(ProcessEvent::Recalled { sequence: frame.sequence }, Bytes::new());
                continue;
            }
            if let Some(receipt) = &receipt {
                let resumes = match self.bug {
                    Some(Bug::IgnoresCheckpoints) => false,
                    // Another rule is to find it.
                    Some(Bug::ForgetsLostDeliveries) => true,
                    _ => frame.resumes,
                };
                self.witness.began(receipt, frame.items, resumes, self.has_broken_gpu());
            }
            let (_running, too_many) = self.runs.began(job, self.actor.name());
            if let Some((rule, detail)) = too_many {
                self.witness.report(rule, detail);
            }
            runs += 1;
            if job.process_max_runs > 0 && runs > job.process_max_runs {
                let detail = format!("run {runs} of {:?} on {}", self.id, self.actor.name());
                self.witness.report("a process makes no more runs than it may", detail);
            }
            let is_slow = job.is_slow(frame.mini_batch)
                && receipt.as_ref().is_some_and(|receipt| !self.witness.is_copy(receipt));
            let Some((ending, rows)) = self.run(&frame, is_slow).await else {
                return self.exit(-11);
            };
            grow(runs % 2 * job.leak);
            enter(SlotPhase::Idle, None);
            self.send(ProcessEvent::Answered(ending), rows);
        }
    }

    /// Returns how the run ended, and its rows; `None`: the process dies.
    async fn run(&self, frame: &MiniBatchFrame, is_slow: bool) -> Option<(Ending, Bytes)> {
        let (job, dice) = (&self.witness.job, self.actor.dice());
        let (sequence, began) = (frame.sequence, Instant::now());
        if let Some((nodes, probability)) = job.broken_nodes
            && (0..nodes).any(|node| self.actor.name().starts_with(&format!("Node-{node}-")))
            && dice.happens(probability)
        {
            self.pass(Duration::from_millis(1)).await;
            let error =
                ErrorReport { message: "a folder is not mounted".into(), ..ErrorReport::default() };
            return Some((
                Ending { sequence, ..Ending::failed(AttemptStatus::RunRaised, error) },
                Bytes::new(),
            ));
        }
        let drawn = || Duration::from_millis(10) + dice.time(Duration::from_secs(30));
        let long = job.run_time.unwrap_or_else(drawn);
        let is_quick = job.quick && !dice.happens(0.3);
        self.pass(if is_quick { Duration::from_millis(1) } else { long }).await;
        if is_slow {
            self.pass(SLOW).await;
        }
        if job.poison == Some(frame.mini_batch) {
            self.actor.kill();
            self.actor.alive().await;
        }
        if self.has_broken_gpu() {
            let error = ErrorReport { message: GPU_GONE.into(), ..ErrorReport::default() };
            let failed = Ending { sequence, ..Ending::failed(AttemptStatus::RunRaised, error) };
            return (!dice.happens(0.3)).then_some((failed, Bytes::new()));
        }
        let status = match job.flaky == Some(frame.mini_batch) && dice.happens(0.5) {
            true => AttemptStatus::RunRaised,
            false => job.ends_of(frame.mini_batch, self.range_of(frame), frame.try_number),
        };
        let run_seconds = began.elapsed().as_secs_f64();
        let items = self.items_of(frame);
        let failed = job.failed_items(frame.mini_batch, items.clone());
        let names_failed =
            job.by_item && frame.names_failed_items && failed.len() < items.clone().count();
        match status {
            AttemptStatus::ProcessDied => None,
            AttemptStatus::RunTimedOut => std::future::pending().await,
            AttemptStatus::RunRaised if !names_failed || failed.is_empty() => {
                let error =
                    ErrorReport { message: "as the script says".into(), ..ErrorReport::default() };
                let items_tried = job.by_item && frame.names_failed_items && !failed.is_empty();
                // Some scripts show on which item they work, and some show another.
                let suspect = match frame.mini_batch % 3 {
                    0 => failed.keys().next().map(|item| item - items.start),
                    1 => Some((items.end - items.start) / 2),
                    _ => None,
                };
                let ending = Ending {
                    sequence,
                    run_seconds,
                    items_tried,
                    suspect,
                    ..Ending::failed(status, error)
                };
                Some((ending, Bytes::new()))
            }
            _ => {
                let (answer, rows) = self.answer(frame.mini_batch, items, &failed);
                Some((Ending { sequence, run_seconds, ..answer }, rows))
            }
        }
    }

    /// Returns the answer about some items of a mini-batch, of which these have failed, and the rows of the others.
    fn answer(
        &self,
        mini_batch: u64,
        items: Range<u64>,
        failed: &BTreeMap<u64, AttemptStatus>,
    ) -> (Ending, Bytes) {
        let job = &self.witness.job;
        if failed.is_empty() {
            return (
                Ending { returned: items.end - items.start, ..Ending::empty() },
                job.rows(mini_batch, items),
            );
        }
        // An answer counts from the first of its items.
        let first = if self.bug == Some(Bug::CountsFromTheMiniBatch) { 0 } else { items.start };
        let (mut rows, mut pieces, mut joins) = (Vec::new(), Vec::new(), false);
        for item in items.clone() {
            let good = (!failed.contains_key(&item)).then(|| job.rows(mini_batch, item..item + 1));
            match (&good, pieces.last_mut()) {
                (Some(row), Some((_, bytes))) if joins || self.bug == Some(Bug::JoinsPieces) => {
                    *bytes += row.len() as u64;
                }
                (Some(row), _) => pieces.push((item - first, row.len() as u64)),
                (None, _) => {}
            }
            joins = good.is_some();
            rows.extend(good);
        }
        let error = || ErrorReport { message: "no total".into(), ..ErrorReport::default() };
        let failed_items = failed.iter().map(|(item, status)| FailedItems {
            item: item - first,
            items: 1,
            status: *status,
            error: error(),
        });
        let returned = rows.len() as u64;
        let ending =
            Ending { returned, failed_items: failed_items.collect(), pieces, ..Ending::empty() };
        (ending, rows.concat().into())
    }

    fn has_broken_gpu(&self) -> bool {
        self.gpu.is_some() && self.gpu == self.witness.job.broken_gpu
    }

    /// Returns the items that it was handed.
    fn range_of(&self, frame: &MiniBatchFrame) -> Range<u64> {
        match frame.items {
            Some((first, end))
                if self.bug == Some(Bug::RunsTheFirstItems) && self.witness.job.is_mended =>
            {
                0..end - first
            }
            Some((first, end)) => first..end,
            None => 0..self.witness.job.items(frame.mini_batch),
        }
    }

    /// Returns the items that it runs.
    fn items_of(&self, frame: &MiniBatchFrame) -> Range<u64> {
        match self.range_of(frame) {
            range if self.bug == Some(Bug::RunsMoreThanTheRange) && frame.items.is_some() => {
                0..range.end
            }
            range => range,
        }
    }

    /// Lets time pass. A process freezes with its node.
    async fn pass(&self, time: Duration) {
        sleep(time).await;
        self.actor.alive().await;
    }

    fn has_accident(&self) -> bool {
        self.may_fail && self.actor.happens(|weather| weather.accident)
    }

    /// Whether `init()` may fail once more, on any node: less often than makes the job fail.
    fn init_may_fail(&self) -> bool {
        self.witness.starts.init_failures.fetch_add(1, Ordering::SeqCst) + 1 < 2 * PROCESSES
    }

    fn send(&self, event: ProcessEvent, rows: Bytes) {
        let _ = self.messages.send(Message::Frame(self.id, Box::new(event), rows));
    }

    fn exit(&self, code: i32) {
        let _ = self.messages.send(Message::Exited(self.id, code));
    }
}
