//! A publisher: `enqueue`, and `retry`, which continues a job after a crash or opens an ended one again. The ledger
//! decides what it publishes ([`view`](crate::decisions::view)). By hand: the order of its steps.

use crate::Action;
use crate::decisions::{End, Record, Task, view};
use crate::reducer::truth;
use crate::state::{Bug, Parcel, Publisher, State, Summary, World};

/// Whether `retry` would do anything.
fn can_retry(world: &World, state: &State) -> bool {
    let is_all_done = matches!(state.result, Some(Summary { end: End::Completed, failed: 0, .. }));
    !is_all_done && (!world.retry_waits || !state.is_being_ended())
}

pub fn actions(world: &World, state: &State, actions: &mut Vec<Action>) {
    if state.publisher == Publisher::Gone {
        if state.faults.retries > 0 && can_retry(world, state) {
            actions.push(Action::Retry);
        }
        return;
    }
    if state.publisher == Publisher::Opening && !can_retry(world, state) && state.result.is_none() {
        // The user waits.
        return;
    }
    actions.push(Action::Publish { is_unanswered: false });
    let sends = matches!(
        state.publisher,
        Publisher::Publishing(_) | Publisher::Announcing | Publisher::Reopening(_)
    );
    if sends && state.faults.unanswered > 0 {
        actions.push(Action::Publish { is_unanswered: true });
    }
    if state.faults.publisher_crashes > 0 && state.publisher != Publisher::Opening {
        actions.push(Action::CrashPublisher);
    }
}

/// Takes the next step. Unanswered: it will take it again.
pub fn publish(world: &World, state: &mut State, is_unanswered: bool) {
    state.faults.unanswered -= u8::from(is_unanswered);
    let before = state.publisher.clone();
    state.publisher = match before.clone() {
        Publisher::Planning(tasks) => {
            state.is_planned = true;
            if tasks.iter().any(Option::is_some) {
                Publisher::Publishing(tasks)
            } else {
                Publisher::Announcing
            }
        }
        Publisher::Publishing(mut tasks) => {
            if !state.is_planned {
                state.breaks("published mini-batches are in the plan");
            }
            // One call, unless the publisher may die in the middle of it.
            let count = if world.faults.publisher_crashes > 0 { 1 } else { tasks.len() };
            let sent: Vec<Task> = tasks
                .iter_mut()
                .filter(|task| task.is_some())
                .take(count)
                .filter_map(Option::take)
                .collect();
            for together in sent.chunks(if world.bundles { 2 } else { 1 }) {
                state.tasks.send(Parcel { first: together[0], second: together.get(1).copied() });
            }
            match tasks.iter().any(Option::is_some) {
                true => Publisher::Publishing(tasks),
                false if state.is_planned => Publisher::Announcing,
                false => Publisher::Planning(tasks),
            }
        }
        Publisher::Announcing => {
            state.results.send(Record::Planned { mini_batches: world.mini_batches() });
            Publisher::Gone
        }
        Publisher::Gone => unreachable!("it has ended"),
        Publisher::Opening => match truth(world, state).ended.is_some() || state.result.is_some() {
            _ if !can_retry(world, state) => Publisher::Gone,
            true => Publisher::Reopening(state.ledger.len()),
            false => publishing(world, state, state.ledger.len()),
        },
        Publisher::Reopening(known) if known == state.ledger.len() => {
            state.ledger.push(vec![Record::Reopened]);
            Publisher::Clearing(known + 1)
        }
        Publisher::Reopening(_) => Publisher::Reopening(state.ledger.len()),
        Publisher::Clearing(known) => {
            state.result = None;
            publishing(world, state, known)
        }
    };
    if is_unanswered {
        state.publisher = before;
    }
}

/// Publishes what is pending by the segments that it knows.
fn publishing(world: &World, state: &State, known: usize) -> Publisher {
    let mut pending = view(&state.ledger[..known], world.mini_batches()).pending.clone();
    if world.has(Bug::ForgetsToPublishAgain) {
        pending.fill(None);
    }
    if state.is_planned { Publisher::Publishing(pending) } else { Publisher::Planning(pending) }
}

pub fn retry(state: &mut State) {
    state.faults.retries -= 1;
    state.publisher = Publisher::Opening;
}

/// The publisher dies, and its user runs `retry`.
pub fn crash(state: &mut State) {
    state.faults.publisher_crashes -= 1;
    state.publisher = Publisher::Opening;
}
