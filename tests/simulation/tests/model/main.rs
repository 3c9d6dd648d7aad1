//! A model of the protocol, checked exhaustively in small worlds: publish, lease, attempt, announce, commit, drain,
//! retry, and several reducers.
//!
//! The simulation draws some thousand histories of large worlds; the model takes every history of small ones. It is of
//! the code where the code is a pure function (`decisions`): the scheduler of a worker, the codec of records, and of a
//! reducer the choice of what is new, the tally, the index of rows, and the judge. By hand, and therefore only as good as
//! its reader, are the order of steps around them, the queues, the store, crashes and time: see the heads of the files.
//!
//! A queue delivers at least once, in any order, and again while a holder works; an old receipt may delete a message or
//! not. The store creates an object once. Every role may die between two steps; a call may take effect without an answer.
//! Every kind of fault has a budget in each world, so that the worlds are finite.
//!
//! "Exhaustively" means: up to collisions of 64-bit fingerprints, by which the checker (`stateright`) knows states.
//!
//! | file | what it holds |
//! |---|---|
//! | `decisions` | the decisions of the roles' code |
//! | `state` | worlds, their faults, planted bugs, and states |
//! | `publisher`, `worker`, `reducer` | the steps of the roles |
//! | `rules` | the rules |
//! | `worlds` | the tests: worlds in which every rule holds, and the bug that breaks each rule |

#![allow(missing_docs, reason = "the steps and faults are named after what they do")]

mod decisions;
mod publisher;
mod reducer;
mod rules;
mod state;
mod worker;
mod worlds;

use decisions::Fate;
use state::{State, World};
use stateright::{Model, Property};

/// One step of one role, or a fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Publish {
        is_unanswered: bool,
    },
    CrashPublisher,
    Retry,
    Receive {
        worker: usize,
        id: u8,
        is_lapse: bool,
    },
    Run {
        worker: usize,
        slot: usize,
        fate: Fate,
    },
    Send {
        worker: usize,
        slot: usize,
        is_unanswered: bool,
    },
    AcknowledgeOld {
        worker: usize,
        slot: usize,
    },
    NoticeLoss {
        worker: usize,
        slot: usize,
    },
    Drop {
        worker: usize,
        slot: usize,
    },
    Drain {
        worker: usize,
    },
    CrashWorker {
        worker: usize,
    },
    Open {
        reducer: usize,
    },
    Collect {
        reducer: usize,
        id: u8,
        is_lapse: bool,
    },
    Commit {
        reducer: usize,
        is_unanswered: bool,
    },
    AcknowledgeResults {
        reducer: usize,
        old_too: bool,
    },
    CatchUp {
        reducer: usize,
    },
    Leave {
        reducer: usize,
    },
    Finish {
        reducer: usize,
        is_unanswered: bool,
    },
    CrashReducer {
        reducer: usize,
    },
    /// A reducer has seen that the job is over, and acknowledges a result that is of no use.
    DropResult {
        id: u8,
    },
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(self).canonical()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if rules::is_over(state) || state.broken.is_some() {
            return;
        }
        publisher::actions(self, state, actions);
        (0..state.workers.len()).for_each(|worker| worker::actions(self, state, worker, actions));
        (0..state.reducers.len())
            .for_each(|reducer| reducer::actions(self, state, reducer, actions));
        if state.result.is_some() {
            let useless =
                state.results.0.iter().filter(|message| !state.is_result_leased(message.id));
            actions.extend(useless.map(|message| Action::DropResult { id: message.id }));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Publish { is_unanswered } => {
                publisher::publish(self, &mut state, is_unanswered)
            }
            Action::CrashPublisher => publisher::crash(&mut state),
            Action::Retry => publisher::retry(&mut state),
            Action::Receive { worker, id, is_lapse } => {
                worker::receive(self, &mut state, worker, id, is_lapse)
            }
            Action::Run { worker, slot, fate } => worker::run(self, &mut state, worker, slot, fate),
            Action::Send { worker, slot, is_unanswered } => {
                worker::send(self, &mut state, worker, slot, is_unanswered, false);
            }
            Action::AcknowledgeOld { worker, slot } => {
                worker::send(self, &mut state, worker, slot, false, true)
            }
            Action::NoticeLoss { worker, slot } => {
                worker::notice_loss(self, &mut state, worker, slot)
            }
            Action::Drop { worker, slot } => worker::drop_message(&mut state, worker, slot),
            Action::Drain { worker } => worker::drain(self, &mut state, worker),
            Action::CrashWorker { worker } => worker::crash(&mut state, worker),
            Action::Open { reducer } => reducer::open(&mut state, reducer),
            Action::Collect { reducer, id, is_lapse } => {
                reducer::collect(self, &mut state, reducer, id, is_lapse)
            }
            Action::Commit { reducer, is_unanswered } => {
                reducer::commit(self, &mut state, reducer, is_unanswered)
            }
            Action::AcknowledgeResults { reducer, old_too } => {
                reducer::acknowledge(self, &mut state, reducer, old_too);
            }
            Action::CatchUp { reducer } => state.reducers[reducer].known = state.ledger.len(),
            Action::Leave { reducer } => reducer::close(&mut state, reducer),
            Action::Finish { reducer, is_unanswered } => {
                reducer::finish(self, &mut state, reducer, is_unanswered)
            }
            Action::CrashReducer { reducer } => {
                state.faults.reducer_crashes -= 1;
                reducer::close(&mut state, reducer);
            }
            Action::DropResult { id } => state.results.0.retain(|message| message.id != id),
        }
        Some(state.canonical())
    }

    fn properties(&self) -> Vec<Property<World>> {
        rules::rules()
    }
}
