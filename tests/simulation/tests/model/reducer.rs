//! A reducer. The reducer's own code decides what is new in messages, what the ledger means, how the job ends and which
//! rows the final file has ([`next_segment`], [`view`]). By hand: the loop around a commit that is lost, the agreement
//! on the end, the order of the last writes, leases and crashes.

use std::rc::Rc;

use crate::Action;
use crate::decisions::{End, Record, TryEnd, View, next_segment, view};
use crate::state::{Bug, HeldResult, Receipt, State, Step, Summary, World};

fn sees(world: &World, state: &State, reducer: usize) -> Rc<View> {
    view(&state.ledger[..state.reducers[reducer].known], world.mini_batches())
}

/// Returns what the whole ledger tells.
pub fn truth(world: &World, state: &State) -> Rc<View> {
    view(&state.ledger, world.mini_batches())
}

pub fn actions(world: &World, state: &State, reducer: usize, actions: &mut Vec<Action>) {
    let this = &state.reducers[reducer];
    match this.step {
        Step::Closed => {
            if state.result.is_none() {
                actions.push(Action::Open { reducer });
            }
            return;
        }
        Step::Working => work(world, state, reducer, actions),
        _ => {
            let is_call = matches!(this.step, Step::Agreeing(_) | Step::Recording(_));
            actions.push(Action::Finish { reducer, is_unanswered: false });
            if is_call && state.faults.unanswered > 0 {
                actions.push(Action::Finish { reducer, is_unanswered: true });
            }
        }
    }
    if state.faults.reducer_crashes > 0 {
        actions.push(Action::CrashReducer { reducer });
    }
}

fn work(world: &World, state: &State, reducer: usize, actions: &mut Vec<Action>) {
    let this = &state.reducers[reducer];
    let mut committed = this.held.iter().filter(|held| held.is_committed).peekable();
    if committed.peek().is_some() {
        actions.push(Action::AcknowledgeResults { reducer, old_too: false });
        let is_old = |held: &HeldResult| {
            state.results.get(held.receipt.id).is_some() && !state.results.is_current(held.receipt)
        };
        if world.old_receipt_deletes && committed.any(is_old) {
            actions.push(Action::AcknowledgeResults { reducer, old_too: true });
        }
    }
    if sees(world, state, reducer).verdict.is_some() {
        actions.push(Action::Finish { reducer, is_unanswered: false });
        return;
    }
    if state.result.is_some() {
        actions.push(Action::Leave { reducer });
    }
    if this.held.iter().any(|held| !held.is_committed) {
        actions.push(Action::Commit { reducer, is_unanswered: false });
        if state.faults.unanswered > 0 {
            actions.push(Action::Commit { reducer, is_unanswered: true });
        }
    }
    if this.known < state.ledger.len() {
        actions.push(Action::CatchUp { reducer });
    }
    for message in state.results.0.iter().filter(|_| this.held.len() < world.batch) {
        let is_leased = state.is_result_leased(message.id);
        if !is_leased || state.faults.result_lapses > 0 {
            actions.push(Action::Collect { reducer, id: message.id, is_lapse: is_leased });
        }
    }
}

pub fn collect(world: &World, state: &mut State, reducer: usize, id: u8, is_lapse: bool) {
    state.faults.result_lapses -= u8::from(is_lapse);
    let message = state.results.deliver(id);
    let receipt = Receipt { count: message.count, id };
    let is_committed = world.has(Bug::AcknowledgesBeforeCommitting);
    state.reducers[reducer].held.push(HeldResult { record: message.body, is_committed, receipt });
}

/// The result of appending records to the ledger.
enum Appended {
    Committed,
    Known,
    /// Another reducer has ended the job, which may be open again meanwhile.
    TooLate,
    /// The commit was lost, and what the other reducer has committed is read: the caller tries again.
    Again,
}

/// Makes one pass through the loop of `Reducer::append`.
fn append(world: &World, state: &mut State, reducer: usize, records: &[Record]) -> Appended {
    let known = state.reducers[reducer].known;
    let segment = match known {
        _ if world.has(Bug::CommitsTwice) && known > 0 => {
            // The records as they were received before the commit was lost.
            let before = known - 1;
            next_segment(&state.ledger[..before], records)
        }
        _ => next_segment(&state.ledger[..known], records),
    };
    let is_outdated = reopened(&state.ledger) != reopened(&state.ledger[..known]);
    if segment.is_empty() {
        if world.has(Bug::BelievesThatItKnowsAll) {
            return Appended::Known;
        }
        state.reducers[reducer].known = state.ledger.len();
        return if is_outdated { Appended::TooLate } else { Appended::Known };
    }
    let had_ended = sees(world, state, reducer).ended.is_some();
    if known == state.ledger.len() {
        state.ledger.push(segment);
        state.reducers[reducer].known += 1;
        return Appended::Committed;
    }
    if world.has(Bug::CommitsUnconditionally) {
        state.breaks("a segment is committed once");
        state.ledger[known] = segment;
        state.reducers[reducer].known += 1;
        return Appended::Committed;
    }
    state.reducers[reducer].known = state.ledger.len();
    let is_reopened = is_outdated && !world.has(Bug::EndsReopenedJobs);
    let is_too_late = is_reopened || !had_ended && sees(world, state, reducer).ended.is_some();
    if is_too_late { Appended::TooLate } else { Appended::Again }
}

/// Returns how often the job was reopened.
fn reopened(ledger: &[Vec<Record>]) -> usize {
    ledger.iter().flatten().filter(|record| **record == Record::Reopened).count()
}

/// Commits what it holds. Unanswered: the store has the segment, and the reducer will try again.
pub fn commit(world: &World, state: &mut State, reducer: usize, is_unanswered: bool) {
    let this = &state.reducers[reducer];
    let records: Vec<Record> =
        this.held.iter().filter(|held| !held.is_committed).map(|held| held.record).collect();
    let seen = sees(world, state, reducer);
    let is_dropped = |record: &Record| match record {
        Record::Attempt(tried) if world.has(Bug::FailureBeatsSuccess) => {
            let state = seen.mini_batches[usize::from(tried.task.mini_batch)];
            tried.end == TryEnd::Succeeded && state == reducer::MiniBatchState::Failed
        }
        _ => false,
    };
    let records: Vec<Record> = records.into_iter().filter(|record| !is_dropped(record)).collect();
    let known = this.known;
    let appended = append(world, state, reducer, &records);
    if is_unanswered {
        state.faults.unanswered -= 1;
        state.reducers[reducer].known = known;
        return;
    }
    let this = &mut state.reducers[reducer];
    match appended {
        Appended::Committed | Appended::Known => {
            this.held.iter_mut().for_each(|held| held.is_committed = true)
        }
        Appended::TooLate => this.held.retain(|held| held.is_committed),
        Appended::Again => {}
    }
}

pub fn acknowledge(world: &World, state: &mut State, reducer: usize, old_too: bool) {
    let held = std::mem::take(&mut state.reducers[reducer].held);
    let (committed, others): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|held| held.is_committed);
    state.reducers[reducer].held = others;
    for HeldResult { record, receipt, .. } in committed {
        // After a retry, a failure of the run before it would count as new.
        let is_there = state.ledger.iter().flatten().any(|committed| *committed == record);
        let is_in_ledger = is_there || next_segment(&state.ledger, &[record]).is_empty();
        if !is_in_ledger && truth(world, state).ended.is_none() {
            state.breaks("commit, then acknowledge");
        }
        state.results.acknowledge(receipt, old_too);
    }
}

/// Takes the next step towards the end of the job.
pub fn finish(world: &World, state: &mut State, reducer: usize, is_unanswered: bool) {
    state.faults.unanswered -= u8::from(is_unanswered);
    let seen = sees(world, state, reducer);
    let this = &mut state.reducers[reducer];
    match this.step {
        Step::Closed => unreachable!("it serves no job"),
        Step::Working => {
            let Some(end) = seen.verdict else { unreachable!("the job ends") };
            this.held.retain(|held| held.is_committed);
            this.step =
                if world.has(Bug::EndsAlone) { Step::Writing(end) } else { Step::Agreeing(end) };
        }
        Step::Agreeing(end) => {
            let known = this.known;
            match append(world, state, reducer, &[Record::Ended(end)]) {
                _ if is_unanswered => state.reducers[reducer].known = known,
                Appended::Committed => state.reducers[reducer].step = Step::Writing(end),
                Appended::Again => {}
                Appended::Known | Appended::TooLate if state.result.is_some() => {
                    close(state, reducer)
                }
                Appended::Known | Appended::TooLate => {
                    state.reducers[reducer].known = state.ledger.len();
                    let ended = sees(world, state, reducer).ended;
                    state.reducers[reducer].step = ended.map_or(Step::Working, Step::Writing);
                }
            }
        }
        Step::Writing(End::Completed) if world.has(Bug::WritesInPlace) => {
            state.output = Some(seen.rows[..seen.rows.len() / 2].to_vec());
            this.step = Step::HalfWritten;
        }
        Step::Writing(End::Completed) | Step::HalfWritten => {
            state.output = Some(seen.rows.clone());
            this.step = Step::Looking(summary(End::Completed, &seen));
        }
        Step::Writing(End::Failed) => this.step = Step::Looking(summary(End::Failed, &seen)),
        Step::Looking(summary) => {
            this.known = state.ledger.len();
            let is_open = sees(world, state, reducer).ended.is_none() && !world.has(Bug::EndsAlone);
            state.reducers[reducer].step =
                if is_open { Step::Working } else { Step::Recording(summary) };
        }
        Step::Recording(summary) => {
            state.result.get_or_insert(summary);
            if !is_unanswered {
                close(state, reducer);
            }
        }
    }
}

fn summary(end: End, seen: &View) -> Summary {
    let (total, succeeded, failed) = seen.counts;
    let small = |count: u64| u8::try_from(count).expect("a small world");
    Summary { end, total: small(total), succeeded: small(succeeded), failed: small(failed) }
}

/// Leaves a job, and releases what it holds.
pub fn close(state: &mut State, reducer: usize) {
    state.reducers[reducer] = crate::state::Reducer { step: Step::Closed, known: 0, held: vec![] };
}

pub fn open(state: &mut State, reducer: usize) {
    let known = state.ledger.len();
    state.reducers[reducer] = crate::state::Reducer { step: Step::Working, known, held: vec![] };
}
