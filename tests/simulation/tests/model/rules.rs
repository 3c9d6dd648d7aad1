//! The rules. A step that breaks one is marked where it happens ([`State::breaks`](crate::state::State::breaks)); the
//! rules here look at whole states. Those that the simulation has too have the same names.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use stateright::{Model, Property};

use crate::Action;
use crate::decisions::{End, Record, TryEnd};
use crate::reducer::truth;
use crate::state::{Publisher, Script, State, Summary, World};

/// Rules that steps break.
const OF_STEPS: [&str; 9] = [
    "announce, then acknowledge",
    "publish the next try, then acknowledge",
    "publish again, then acknowledge",
    "nothing is announced after a lost lease",
    "every try counts",
    "lost deliveries have a limit",
    "published mini-batches are in the plan",
    "commit, then acknowledge",
    "a segment is committed once",
];

/// Rules that the simulation does not have.
const ONLY_HERE: [&str; 1] = ["an attempt is committed at most once"];

/// More steps than any job needs once nothing goes wrong.
const STEPS_MAX: usize = 500;

/// Returns all rules.
pub fn rules() -> Vec<Property<World>> {
    macro_rules! of_steps {
        ($($at:literal),+) => {
            vec![$(Property::always(OF_STEPS[$at], |_, state: &State| state.broken != Some(OF_STEPS[$at]))),+]
        };
    }
    let mut rules = of_steps!(0, 1, 2, 3, 4, 5, 6, 7, 8);
    rules.extend([
        Property::always("an attempt is committed at most once", is_committed_once),
        Property::always("every mini-batch counts once", counts_once),
        Property::always("the same rows as in an undisturbed run", has_expected_rows),
        Property::always("the final file appears whole", is_whole),
        Property::always("every row once, in order", has_every_row),
        Property::always("every job ends", ends),
    ]);
    rules
}

/// The ledger may hold two successes of a mini-batch, because the second tells of more lost deliveries; the tally counts
/// one. It holds no success twice.
fn is_committed_once(_: &World, state: &State) -> bool {
    let records = state.ledger.iter().flatten();
    let mut successes = records.filter(
        |record| matches!(record, Record::Attempt(tried) if tried.end == TryEnd::Succeeded),
    );
    let mut seen = HashSet::new();
    successes.all(|success| seen.insert(success))
}

/// The result counts each mini-batch as succeeded or as failed, as the ledger does.
fn counts_once(world: &World, state: &State) -> bool {
    let Some(Summary { end, total, succeeded, failed }) = state.result else { return true };
    if state.publisher != Publisher::Gone {
        return true;
    }
    let truth = truth(world, state);
    let counts = (u64::from(total), u64::from(succeeded), u64::from(failed));
    counts == truth.counts && truth.ended == Some(end) && succeeded + failed == world.mini_batches()
}

/// Without flaky mini-batches, and with fewer lost deliveries than a mini-batch may have, a completed job has the rows of
/// every mini-batch that can succeed.
fn has_expected_rows(world: &World, state: &State) -> bool {
    let Some(Summary { end: End::Completed, .. }) = state.result else { return true };
    let lost = world.faults.worker_crashes + world.faults.task_lapses;
    if lost > crate::decisions::LOST_MAX
        || world.scripts.contains(&Script::Flaky)
        || state.publisher != Publisher::Gone
    {
        return true;
    }
    let good =
        (0..world.mini_batches()).filter(|at| world.scripts[usize::from(*at)] == Script::Succeeds);
    state.output.as_deref().is_some_and(|rows| good.eq(rows.iter().copied()))
}

/// While the job is not open again, the final file has all rows of the ledger, or is absent.
fn is_whole(world: &World, state: &State) -> bool {
    let truth = truth(world, state);
    state
        .output
        .as_ref()
        .is_none_or(|rows| truth.ended.is_none() || *rows == truth.rows || has_old_output(state))
}

/// The file is that of the end before `retry`.
fn has_old_output(state: &State) -> bool {
    state.ledger.iter().flatten().any(|record| *record == Record::Reopened)
        && state.result.is_none()
}

/// The final file of a completed job has the rows of the successes in the ledger.
fn has_every_row(world: &World, state: &State) -> bool {
    match state.result {
        Some(Summary { end: End::Completed, .. }) if state.publisher == Publisher::Gone => {
            state.output.as_ref() == Some(&truth(world, state).rows)
        }
        _ => true,
    }
}

/// Whether the job has ended, and nobody will open it again or write to it.
pub fn is_over(state: &State) -> bool {
    let may_retry = state.faults.retries > 0
        && !matches!(state.result, Some(Summary { end: End::Completed, failed: 0, .. }));
    state.result.is_some()
        && state.publisher == Publisher::Gone
        && !may_retry
        && !state.is_being_ended()
}

thread_local! {
    /// States from which the job ends.
    static ENDING: RefCell<HashSet<u64>> = RefCell::default();
}

/// Whether the job ends if nothing goes wrong from now on: roles take the steps that they can take.
fn ends(world: &World, state: &State) -> bool {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let mut path = vec![hasher.hash_one(state)];
    let mut next = state.clone();
    for _ in 0..STEPS_MAX {
        let is_known =
            path.last().is_some_and(|last| ENDING.with_borrow(|ending| ending.contains(last)));
        let has_ended = next.result.is_some() && next.publisher == Publisher::Gone;
        // After another rule is broken, nothing is taken further.
        if is_known || has_ended || next.broken.is_some() {
            ENDING.with_borrow_mut(|ending| ending.extend(path));
            return true;
        }
        let mut actions = Vec::new();
        world.actions(&next, &mut actions);
        let step = actions.into_iter().filter_map(|action| Some((action.urgency(&next)?, action)));
        let Some((_, action)) = step.min_by_key(|(urgency, _)| *urgency) else { return false };
        next = world.next_state(&next, action).expect("every action leads somewhere");
        path.push(hasher.hash_one(&next));
    }
    false
}

impl Action {
    /// Returns how soon a role takes this step if nothing goes wrong, soonest first; `None`: something goes wrong.
    fn urgency(&self, state: &State) -> Option<u8> {
        match self {
            Self::CrashWorker { .. }
            | Self::CrashReducer { .. }
            | Self::CrashPublisher
            | Self::Drain { .. }
            | Self::Retry
            | Self::AcknowledgeOld { .. }
            | Self::Receive { is_lapse: true, .. }
            | Self::Collect { is_lapse: true, .. }
            | Self::Send { is_unanswered: true, .. }
            | Self::Commit { is_unanswered: true, .. }
            | Self::Finish { is_unanswered: true, .. }
            | Self::Publish { is_unanswered: true }
            | Self::AcknowledgeResults { old_too: true, .. } => None,
            // Only a bug does this in an open job.
            Self::Drop { .. } if state.result.is_none() => None,
            Self::NoticeLoss { .. } => Some(0),
            Self::Send { .. } | Self::Drop { .. } | Self::AcknowledgeResults { .. } => Some(1),
            Self::Run { .. } | Self::Finish { .. } | Self::Leave { .. } => Some(2),
            Self::Commit { .. } | Self::CatchUp { .. } => Some(3),
            Self::Publish { .. } => Some(4),
            Self::Receive { .. }
            | Self::Collect { .. }
            | Self::Open { .. }
            | Self::DropResult { .. } => Some(5),
        }
    }
}

#[test]
fn rules_have_the_names_of_those_of_the_simulation() {
    let sources = sources_below(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    for rule in rules() {
        let is_there = sources.contains(&format!("\"{}\"", rule.name));
        assert_eq!(is_there, !ONLY_HERE.contains(&rule.name), "{}", rule.name);
    }
}

fn sources_below(folder: &std::path::Path) -> String {
    let files =
        std::fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path());
    let texts = files.map(|path| match path.is_dir() {
        true => sources_below(&path),
        false => std::fs::read_to_string(path).expect("readable"),
    });
    texts.collect()
}
