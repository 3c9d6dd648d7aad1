//! A worker. The scheduler of the worker decides what a delivery becomes ([`answer`]). By hand: the order of what the
//! announcer does, leases, crashes, the look of a node whether a job is over, and bundles (`queue/src/bundles.rs`): the
//! members of a bundle share a lease, the bundle is acknowledged with the last of them, and the members of a bundle that
//! was delivered before are sent again alone.

use crate::Action;
use crate::decisions::{Answer, Fate, LOST_MAX, Record, TRIES_MAX, Task, answer, lost_before};
use crate::state::{Bug, GONE, HeldTask, Parcel, Receipt, Script, State, World};

/// What an announcer does for a mini-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    Announce,
    Publish,
    Acknowledge,
}

impl HeldTask {
    /// Returns what the announcer does next; `None`: everything is done.
    fn next_duty(&self, world: &World) -> Option<Duty> {
        let Answer { tried, next } = self.answer?;
        let order = match world.bug {
            Some(Bug::AcknowledgesBeforeAnnouncing) => {
                [Duty::Acknowledge, Duty::Announce, Duty::Publish]
            }
            Some(Bug::AcknowledgesBeforePublishing) => {
                [Duty::Announce, Duty::Acknowledge, Duty::Publish]
            }
            // `Announcer::announce` of the worker.
            _ => [Duty::Announce, Duty::Publish, Duty::Acknowledge],
        };
        order.into_iter().find(|duty| match duty {
            Duty::Announce => tried.is_some() && !self.is_announced,
            Duty::Publish => next.is_some() && !self.is_published,
            Duty::Acknowledge => !self.is_acknowledged,
        })
    }
}

pub fn actions(world: &World, state: &State, worker: usize, actions: &mut Vec<Action>) {
    let this = &state.workers[worker];
    for (slot, held) in this.held.iter().enumerate() {
        let is_lost = !state.tasks.is_current(held.receipt) && !held.is_acknowledged;
        let has_sent = held.is_announced || held.is_published;
        if is_lost && !has_sent && !held.knows_lost {
            actions.push(Action::NoticeLoss { worker, slot });
        }
        if held.answer.is_none() {
            match world.scripts[usize::from(held.task.mini_batch)] {
                Script::Succeeds => {
                    actions.push(Action::Run { worker, slot, fate: Fate::Succeeds })
                }
                Script::Raises => actions.push(Action::Run { worker, slot, fate: Fate::Raises }),
                Script::Flaky => {
                    actions.extend([Fate::Succeeds, Fate::Raises].map(|fate| Action::Run {
                        worker,
                        slot,
                        fate,
                    }));
                }
            }
            // After the look of a node at the job that it has messages of.
            if state.result.is_some() || world.has(Bug::NodeDropsOpenJobs) {
                actions.push(Action::Drop { worker, slot });
            }
        }
        match held.next_duty(world) {
            Some(Duty::Acknowledge) => {
                actions.push(Action::Send { worker, slot, is_unanswered: false });
                let is_old = state.tasks.get(held.receipt.id).is_some() && is_lost;
                if is_old && world.old_receipt_deletes {
                    actions.push(Action::AcknowledgeOld { worker, slot });
                }
            }
            Some(_) => {
                actions.push(Action::Send { worker, slot, is_unanswered: false });
                if state.faults.unanswered > 0 {
                    actions.push(Action::Send { worker, slot, is_unanswered: true });
                }
            }
            None => {}
        }
    }
    if this.held.len() < world.capacity && !this.is_draining {
        for message in &state.tasks.0 {
            let is_leased = state.is_task_leased(message.id);
            if !is_leased || state.faults.task_lapses > 0 {
                actions.push(Action::Receive { worker, id: message.id, is_lapse: is_leased });
            }
        }
    }
    if !this.held.is_empty() {
        if state.faults.worker_crashes > 0 {
            actions.push(Action::CrashWorker { worker });
        }
        if state.faults.drains > 0 && !this.is_draining {
            actions.push(Action::Drain { worker });
        }
    }
}

pub fn receive(world: &World, state: &mut State, worker: usize, id: u8, is_lapse: bool) {
    state.faults.task_lapses -= u8::from(is_lapse);
    let message = state.tasks.deliver(id);
    let is_bundle = message.body.second.is_some();
    for task in message.body.members() {
        let held = HeldTask {
            task,
            answer: None,
            is_announced: false,
            is_published: false,
            is_acknowledged: false,
            knows_lost: false,
            keeps_bundle: is_bundle,
            receipt: Receipt { count: message.count, id },
        };
        begin(world, state, worker, held, is_bundle && message.count > 1);
    }
}

/// Takes a mini-batch. `again_alone`: it goes back to the queue, in a message of its own.
fn begin(world: &World, state: &mut State, worker: usize, mut held: HeldTask, again_alone: bool) {
    held.answer = match again_alone {
        true => {
            let next = Task { lost: lost_before(held.task, held.receipt.count), ..held.task };
            Some(Answer { tried: None, next: Some(next) })
        }
        false => answers(world, held, Fate::Waits),
    };
    state.workers[worker].held.push(held);
    // Where nothing looks at a mini-batch that waits, its run is no step of its own: fewer states, the same histories.
    let is_watched =
        world.faults.drains + world.faults.retries > 0 || world.has(Bug::NodeDropsOpenJobs);
    if held.answer.is_none() && !is_watched {
        let slot = state.workers[worker].held.len() - 1;
        match world.scripts[usize::from(held.task.mini_batch)] {
            Script::Succeeds => run(world, state, worker, slot, Fate::Succeeds),
            Script::Raises => run(world, state, worker, slot, Fate::Raises),
            Script::Flaky => {}
        }
    }
}

fn answers(world: &World, held: HeldTask, fate: Fate) -> Option<Answer> {
    let HeldTask { task, receipt, .. } = held;
    let mut answer = match world.bug {
        Some(Bug::ForgetsLostDeliveries) => answer(Task { lost: 0, ..task }, 1, fate),
        _ => answer(task, receipt.count, fate),
    };
    if world.has(Bug::ForgetsTries)
        && let Some(Answer { tried: Some(_), next: Some(next) }) = &mut answer
    {
        next.tries_spent = task.tries_spent;
    }
    answer
}

pub fn run(world: &World, state: &mut State, worker: usize, slot: usize, fate: Fate) {
    let held = state.workers[worker].held[slot];
    if lost_before(held.task, held.receipt.count) > LOST_MAX {
        state.breaks("lost deliveries have a limit");
    }
    state.workers[worker].held[slot].answer = answers(world, held, fate);
}

/// Does what the announcer does next. Unanswered: it will do it again.
pub fn send(
    world: &World,
    state: &mut State,
    worker: usize,
    slot: usize,
    is_unanswered: bool,
    old_too: bool,
) {
    state.faults.unanswered -= u8::from(is_unanswered);
    let mut held = state.workers[worker].held[slot];
    let Some(Answer { tried, next }) = held.answer else { unreachable!("only answers are sent") };
    match held.next_duty(world) {
        Some(Duty::Announce) => {
            let Some(tried) = tried else { unreachable!("it is announced") };
            if held.knows_lost {
                state.breaks("nothing is announced after a lost lease");
            }
            if tried.task.tries_spent >= TRIES_MAX {
                state.breaks("every try counts");
            }
            state.results.send(Record::Attempt(tried));
            held.is_announced = !is_unanswered;
        }
        Some(Duty::Publish) => {
            let Some(next) = next else { unreachable!("it is published") };
            if next.tries_spent != held.task.tries_spent + u8::from(tried.is_some()) {
                state.breaks("every try counts");
            }
            state.tasks.send(Parcel::alone(next));
            held.is_published = !is_unanswered;
        }
        Some(Duty::Acknowledge) => {
            if tried.is_some() && !held.is_announced {
                state.breaks("announce, then acknowledge");
            }
            if next.is_some() && !held.is_published {
                let is_try = tried.is_some();
                let rules =
                    ["publish again, then acknowledge", "publish the next try, then acknowledge"];
                state.breaks(rules[usize::from(is_try)]);
            }
            if !held.keeps_bundle || world.has(Bug::EndsBundlesEarly) {
                state.tasks.acknowledge(held.receipt, old_too);
            }
            end_member(state, worker, held.receipt);
            (held.is_acknowledged, held.receipt) = (true, Receipt { count: 0, id: GONE });
        }
        None => unreachable!("everything is done"),
    }
    state.workers[worker].held[slot] = held;
    if held.next_duty(world).is_none() {
        state.workers[worker].held.remove(slot);
    }
}

/// A member of a bundle has ended: the other one acknowledges the bundle.
fn end_member(state: &mut State, worker: usize, receipt: Receipt) {
    let others = state.workers[worker].held.iter_mut().filter(|other| other.receipt == receipt);
    others.for_each(|other| other.keeps_bundle = false);
}

/// The node learns that it has lost a lease, and stops the work.
pub fn notice_loss(world: &World, state: &mut State, worker: usize, slot: usize) {
    match world.bug {
        Some(Bug::IgnoresLostLeases) => state.workers[worker].held[slot].knows_lost = true,
        _ => drop(state.workers[worker].held.remove(slot)),
    }
}

/// The node has seen that the job is over, and acknowledges a message that is of no use.
pub fn drop_message(state: &mut State, worker: usize, slot: usize) {
    let held = state.workers[worker].held.remove(slot);
    if !held.keeps_bundle {
        state.tasks.acknowledge(held.receipt, false);
    }
    end_member(state, worker, held.receipt);
}

/// The node returns what it has not begun, and receives nothing more.
pub fn drain(world: &World, state: &mut State, worker: usize) {
    state.faults.drains -= 1;
    let keeps = world.has(Bug::KeepsWhatItShouldGiveBack);
    let this = &mut state.workers[worker];
    this.is_draining = true;
    for held in this.held.iter_mut().filter(|held| held.answer.is_none()) {
        held.answer = answers(world, *held, Fate::Drained);
        held.is_published = keeps;
    }
}

pub fn crash(state: &mut State, worker: usize) {
    state.faults.worker_crashes -= 1;
    state.workers[worker] = Default::default();
}
