//! The queues of mini-batches agree with their stages, whatever happens to them.

use proptest::prelude::*;

use protocol::{AttemptStatus, Ending, ErrorReport, Isolate, JobSpec};

use super::*;
use crate::scheduler::process_health::WearLimits;
use crate::scheduler::tests::{delivered, id, read, table};
use crate::scheduler::{Event, LeasedDelivery};

const LEASES: u64 = 12;

impl MiniBatches {
    /// Checks that queues and stages agree.
    pub(in crate::scheduler) fn check(&self) {
        let in_stage = |is_meant: fn(&Stage) -> bool| self.leases(|held| is_meant(&held.stage));
        let sorted = |queue: &VecDeque<LeaseId>| {
            let mut leases = Vec::from_iter(queue.iter().copied());
            leases.sort_unstable();
            leases
        };
        assert_eq!(sorted(&self.waiting), in_stage(|stage| matches!(stage, Stage::Waiting { .. })));
        assert_eq!(
            sorted(&self.postponed),
            in_stage(|stage| matches!(stage, Stage::Postponed { .. }))
        );
        assert_eq!(
            sorted(&self.preparing),
            in_stage(|stage| matches!(stage, Stage::Preparing { .. }))
        );
        assert_eq!(sorted(&self.ready), in_stage(|stage| matches!(stage, Stage::Ready(_))));
        assert_eq!(
            sorted(&self.isolated.iter().copied().collect()),
            self.leases(|held| held.isolation.is_some())
        );
        assert_eq!(self.copies, self.leases(|held| held.descriptor.copy).len());
        assert!(self.abandoned.keys().all(|lease| !self.held.contains_key(lease)));
        let held: u64 = self.held.values().map(MiniBatch::bytes).sum();
        assert_eq!(self.bytes, held + self.abandoned.values().sum::<u64>());
    }
}

/// The mini-batches of a node with two processes.
struct Held {
    mini_batches: MiniBatches,
    processes: [Process; 2],
    now: Timestamp,
}

impl Held {
    fn new() -> Self {
        let now = Timestamp { instant: std::time::Instant::now(), milliseconds: 0 };
        let limits = WearLimits::of(&JobSpec::example());
        let processes =
            [0, 1].map(|number| Process::starting(id(number), None, vec![], limits, now.instant));
        Self { mini_batches: MiniBatches::default(), processes, now }
    }

    /// Takes one step of a mini-batch, or of all, if it can.
    fn step(&mut self, what: u8, lease: LeaseId, process: usize) {
        let (held, now) = (&mut self.mini_batches, self.now);
        let pipe = &mut self.processes[process].pipe;
        match what {
            0 | 1 if held.get(lease).is_none() && !held.abandoned.contains_key(&lease) => {
                let LeasedDelivery { descriptor, .. } =
                    if lease.is_multiple_of(2) { table(lease, 1) } else { delivered(lease) };
                let descriptor = Descriptor { copy: what == 1, ..descriptor };
                held.add(lease, MiniBatch::received(descriptor, 0, now.instant, 1));
            }
            2 => held.resume(1),
            3 => drop(held.prepare(false, |_, _| process == 0, now)),
            4 => {
                let Event::Prepared { descriptor, preparation, .. } = read(lease, 1) else {
                    unreachable!("it is one")
                };
                held.prepared(lease, *descriptor, preparation, now);
            }
            5 => {
                let copies = held.put_copies_last().len();
                assert!(
                    held.ready()
                        .skip(held.ready().len() - copies)
                        .all(|lease| held.get(lease).is_some())
                );
            }
            6 => {
                let leases: Vec<_> = held.ready().skip(lease as usize % 3).take(2).collect();
                held.hand_over(
                    &leases,
                    &mut self.processes[process],
                    None,
                    false,
                    protocol::TableForm::Frame,
                    now,
                );
            }
            7 => held.take_back(&pipe.recall(now), false),
            8 => held.take_back(&pipe.take(), true),
            9 | 10 => {
                let Some(front) = pipe.front() else { return };
                pipe.answered(front.sequence, None, now);
                if what == 9 {
                    held.remove(front.lease);
                    return;
                }
                if !held.is_isolated(front.lease) {
                    let ending = Ending::failed(AttemptStatus::RunRaised, ErrorReport::default());
                    held.isolate(
                        front.lease,
                        Isolation::new(0..2, Isolate::Items, ending, id(0), [now; 2], now.instant),
                    );
                }
                held.wait_again(front.lease);
            }
            11 => drop(held.lose_lease(lease)),
            12 => drop(held.take(|held| held.descriptor.mini_batch == lease)),
            13 => assert!(held.take_last(1).iter().all(|(_, taken)| taken.isolation.is_none())),
            _ => {}
        }
    }

    fn check(&self) {
        self.mini_batches.check();
        let handed =
            self.mini_batches.leases(|held| matches!(held.stage, Stage::PipedMiniBatch { .. }));
        let in_pipe = |lease: &LeaseId| match self.mini_batches.get(*lease).map(|held| &held.stage)
        {
            Some(Stage::PipedMiniBatch { process, sequence, .. }) => {
                self.processes[process.slot].pipe.get(*sequence)
            }
            _ => None,
        };
        assert!(
            handed.iter().all(|lease| in_pipe(lease).is_some_and(|handed| handed.lease == *lease))
        );
        assert_eq!(
            handed.len(),
            self.processes.iter().map(|process| process.pipe.len()).sum::<usize>()
        );
    }
}

proptest! {
    #[test]
    fn queues_agree_with_stages(steps in proptest::collection::vec((0..14_u8, 0..LEASES, 0..2_usize), 0..200)) {
        let mut held = Held::new();
        for (what, lease, process) in steps {
            held.step(what, lease, process);
            held.check();
        }
    }
}
