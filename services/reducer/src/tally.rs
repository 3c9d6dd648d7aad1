//! What the events of a job add up to. A pure fold: no I/O, no clock, so that a restarted reducer that reads the same
//! ledger stands where the former one stood.
//!
//! Delivered at least once, counted once: of each mini-batch exactly one successful attempt counts, the first that
//! was committed. A success beats a failure recorded before it, a failure never undoes a success, and an attempt that
//! is announced twice changes nothing the second time.

use protocol::{Attempt, AttemptStatus, Counts, JobState, Planned, ResultEvent};

use crate::batch::{Event, Process, Success};
use crate::failures::Failures;
use crate::fleet::Fleet;

/// Where one mini-batch stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MiniBatchState {
    /// No attempt of it has ended.
    #[default]
    Pending,
    /// Its last try failed, and another one follows.
    Retrying,
    /// Its tries are spent.
    Failed,
    /// One attempt succeeded: final.
    Succeeded,
}

/// What an event did to the tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The attempt is the one that counts: its rows are the rows of the mini-batch.
    Won,
    /// It was news.
    Counted,
    /// It was known already, or came too late to matter.
    Nothing,
}

/// 20 bytes, because there may be ten million of them. Item counts saturate at `u32::MAX`, far beyond what one
/// result can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    total: u32,
    succeeded: u32,
    /// Largest number of a failed try.
    tries: u32,
    /// Largest number of a failed try that was to be followed by another.
    retries: u32,
    deliveries_lost: u16,
    state: MiniBatchState,
}

/// Room for so many mini-batches, if there is as much: vectors that grow by and by copy themselves again and again.
pub(crate) fn reserve<T>(entries: &mut Vec<T>, mini_batches: u64) {
    let more = usize::try_from(mini_batches).unwrap_or(usize::MAX).saturating_sub(entries.len());
    // Without it they grow by and by.
    let _ = entries.try_reserve_exact(more);
}

/// The fold of all committed events.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    entries: Vec<Entry>,
    planned: Option<Planned>,
    plan_failure: Option<String>,
    succeeded: u64,
    failed: u64,
    retrying: u64,
    items_succeeded: u64,
    items_failed: u64,
    retries: u64,
    deliveries_lost: u64,
    warnings: u64,
    duplicates: u64,
    ended_as: Option<(JobState, Option<String>)>,
    failures: Failures,
    fleet: Fleet,
}

impl Tally {
    /// Takes in one event.
    pub fn apply(&mut self, event: &ResultEvent) -> Effect {
        match event {
            ResultEvent::Attempt(attempt) => {
                self.fleet.attempt_ended(&attempt.node, &attempt.process);
                let effect = self.apply_attempt(attempt);
                self.duplicates += u64::from(effect == Effect::Nothing);
                effect
            }
            ResultEvent::Planned(planned) => {
                let effect = if self.planned.is_some() { Effect::Nothing } else { Effect::Counted };
                self.planned.get_or_insert_with(|| planned.clone());
                self.plan_failure = None;
                reserve(&mut self.entries, planned.mini_batches);
                effect
            }
            ResultEvent::PlanFailed { cause } => {
                self.plan_failure.get_or_insert_with(|| cause.clone());
                Effect::Counted
            }
            ResultEvent::Reopened { .. } => {
                self.reopen();
                Effect::Counted
            }
            ResultEvent::RowsLost { mini_batches } => {
                mini_batches.iter().for_each(|&mini_batch| self.lose(mini_batch));
                Effect::Counted
            }
            ResultEvent::Ended { state, cause } => {
                let effect = if self.ended_as.is_some() { Effect::Nothing } else { Effect::Counted };
                self.ended_as.get_or_insert_with(|| (*state, cause.clone()));
                effect
            }
            ResultEvent::Duplicates { count } => {
                self.duplicates += count;
                Effect::Counted
            }
            ResultEvent::Job { .. } => Effect::Nothing,
            other => {
                if let ResultEvent::InitFailed { error, .. } = other {
                    self.failures.init_failed(error);
                }
                self.fleet.apply(other);
                Effect::Counted
            }
        }
    }

    /// Takes in an ordinary success, made by this process.
    pub(crate) fn apply_success(&mut self, success: &Success, process: &Process) -> Effect {
        self.fleet.attempt_ended(&process.node, &process.name);
        let effect = match self.delivered(success.mini_batch, success.deliveries_lost) {
            Some(index) => self.succeed(index, success.total, success.succeeded),
            None => Effect::Nothing,
        };
        self.duplicates += u64::from(effect == Effect::Nothing);
        effect
    }

    /// Whether an event would change nothing: it was committed before, or comes too late to matter.
    pub(crate) fn is_known(&self, event: &Event) -> bool {
        match event {
            Event::Success(success) => self.is_known_success(success.mini_batch, success.deliveries_lost),
            Event::Other(event) => self.is_known_event(event),
        }
    }

    fn is_known_event(&self, event: &ResultEvent) -> bool {
        match event {
            ResultEvent::Attempt(attempt) => self.is_known_attempt(attempt),
            ResultEvent::Planned(_) => self.planned.is_some() && self.plan_failure.is_none(),
            ResultEvent::PlanFailed { .. } => self.plan_failure.is_some(),
            ResultEvent::Ended { .. } => self.ended_as.is_some(),
            ResultEvent::Job { .. } => true,
            _ => false,
        }
    }

    fn is_known_success(&self, mini_batch: u64, deliveries_lost: u32) -> bool {
        let entry = self.entry(mini_batch);
        self.is_outside_plan(mini_batch)
            || entry.state == MiniBatchState::Succeeded && deliveries_lost <= u32::from(entry.deliveries_lost)
    }

    fn is_known_attempt(&self, attempt: &Attempt) -> bool {
        if attempt.status == AttemptStatus::Succeeded {
            return self.is_known_success(attempt.mini_batch, attempt.deliveries_lost);
        }
        let entry = self.entry(attempt.mini_batch);
        if self.is_outside_plan(attempt.mini_batch) {
            return true;
        }
        if attempt.deliveries_lost > u32::from(entry.deliveries_lost) {
            return false;
        }
        if attempt.try_number > entry.tries {
            return false;
        }
        match entry.state {
            MiniBatchState::Pending => false,
            _ if !attempt.is_final => attempt.try_number <= entry.retries,
            MiniBatchState::Retrying => false,
            MiniBatchState::Failed => attempt.total <= u64::from(entry.total),
            MiniBatchState::Succeeded => true,
        }
    }

    fn is_outside_plan(&self, mini_batch: u64) -> bool {
        self.planned.as_ref().is_some_and(|planned| mini_batch >= planned.mini_batches)
    }

    fn apply_attempt(&mut self, attempt: &Attempt) -> Effect {
        let Some(index) = self.delivered(attempt.mini_batch, attempt.deliveries_lost) else { return Effect::Nothing };
        if attempt.status != AttemptStatus::Succeeded {
            return self.fail(index, attempt);
        }
        let effect = self.succeed(index, attempt.total, attempt.succeeded);
        if effect == Effect::Won {
            self.warnings += attempt.warnings_total.max(attempt.warnings.len() as u64);
        }
        effect
    }

    /// An attempt of a mini-batch has ended, and before it so many deliveries were lost. Returns the position of its
    /// entry, unless it is outside the plan.
    fn delivered(&mut self, mini_batch: u64, deliveries_lost: u32) -> Option<usize> {
        if self.is_outside_plan(mini_batch) {
            return None;
        }
        let index = usize::try_from(mini_batch).expect("64-bit machine");
        if self.entries.len() <= index {
            self.entries.resize(index + 1, Entry::default());
        }
        let lost = u16::try_from(deliveries_lost).unwrap_or(u16::MAX);
        let entry = &mut self.entries[index];
        self.deliveries_lost += u64::from(lost.saturating_sub(entry.deliveries_lost));
        entry.deliveries_lost = entry.deliveries_lost.max(lost);
        Some(index)
    }

    fn succeed(&mut self, index: usize, total: u64, succeeded: u64) -> Effect {
        let entry = &mut self.entries[index];
        match entry.state {
            MiniBatchState::Succeeded => return Effect::Nothing,
            MiniBatchState::Failed => {
                self.failed -= 1;
                self.items_failed -= u64::from(entry.total);
                self.failures.forgive(index as u64);
            }
            MiniBatchState::Retrying => self.retrying -= 1,
            MiniBatchState::Pending => {}
        }
        entry.state = MiniBatchState::Succeeded;
        entry.total = u32::try_from(total).unwrap_or(u32::MAX);
        entry.succeeded = u32::try_from(succeeded).unwrap_or(u32::MAX).min(entry.total);
        self.succeeded += 1;
        self.items_succeeded += u64::from(entry.succeeded);
        self.items_failed += u64::from(entry.total - entry.succeeded);
        self.failures.attempt_succeeded();
        Effect::Won
    }

    fn fail(&mut self, index: usize, attempt: &Attempt) -> Effect {
        let entry = &mut self.entries[index];
        let mut effect = Effect::Nothing;
        if attempt.try_number > entry.tries {
            entry.tries = attempt.try_number;
            self.failures.attempt_failed(attempt);
            effect = Effect::Counted;
        }
        if !attempt.is_final {
            self.retries += u64::from(attempt.try_number.saturating_sub(entry.retries));
            entry.retries = entry.retries.max(attempt.try_number);
            if entry.state == MiniBatchState::Pending {
                entry.state = MiniBatchState::Retrying;
                self.retrying += 1;
            }
            return effect;
        }
        // Where the items could not be counted there was at least one: empty mini-batches do not fail.
        let total = u32::try_from(attempt.total).unwrap_or(u32::MAX).max(1);
        match entry.state {
            MiniBatchState::Succeeded => return effect,
            MiniBatchState::Failed => {
                // One attempt could not count the items, another could.
                self.items_failed += u64::from(total.saturating_sub(entry.total));
                entry.total = entry.total.max(total);
                return effect;
            }
            MiniBatchState::Retrying => self.retrying -= 1,
            MiniBatchState::Pending => {}
        }
        entry.state = MiniBatchState::Failed;
        entry.total = total;
        self.failed += 1;
        self.items_failed += u64::from(total);
        self.failures.given_up(attempt);
        Effect::Counted
    }

    /// A success has to be had again. What was spent on the mini-batch stays spent.
    fn lose(&mut self, mini_batch: u64) {
        let entry = usize::try_from(mini_batch).ok().and_then(|index| self.entries.get_mut(index));
        let Some(entry) = entry.filter(|entry| entry.state == MiniBatchState::Succeeded) else { return };
        self.succeeded -= 1;
        self.items_succeeded -= u64::from(entry.succeeded);
        self.items_failed -= u64::from(entry.total - entry.succeeded);
        *entry = Entry { state: MiniBatchState::Pending, total: 0, succeeded: 0, ..*entry };
    }

    fn reopen(&mut self) {
        for entry in &mut self.entries {
            match entry.state {
                MiniBatchState::Failed => self.items_failed -= u64::from(entry.total),
                MiniBatchState::Retrying | MiniBatchState::Pending => {}
                MiniBatchState::Succeeded => continue,
            }
            *entry = Entry::default();
        }
        self.failed = 0;
        self.retrying = 0;
        self.failures = Failures::default();
        self.ended_as = None;
        self.begin_session();
    }

    /// Forgets nodes, processes and a failure to plan: those the ledger knows belong to a run that is over.
    pub fn begin_session(&mut self) {
        self.fleet = Fleet::default();
        self.plan_failure = None;
    }

    /// Where a mini-batch stands.
    pub fn state(&self, mini_batch: u64) -> MiniBatchState {
        self.entry(mini_batch).state
    }

    /// Tries that user code has spent on a mini-batch, as `tries_spent` of its next descriptor.
    pub fn tries_spent(&self, mini_batch: u64) -> u32 {
        self.entry(mini_batch).tries
    }

    /// Deliveries of a mini-batch lost with their node, as `deliveries_lost` of its next descriptor.
    pub fn deliveries_lost(&self, mini_batch: u64) -> u32 {
        u32::from(self.entry(mini_batch).deliveries_lost)
    }

    fn entry(&self, mini_batch: u64) -> Entry {
        usize::try_from(mini_batch).ok().and_then(|index| self.entries.get(index)).copied().unwrap_or_default()
    }

    /// One more than the largest mini-batch of which anything is known.
    pub fn seen(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The plan's totals, once known.
    pub fn planned(&self) -> Option<&Planned> {
        self.planned.as_ref()
    }

    /// Why the job cannot be planned, if it cannot.
    pub fn plan_failure(&self) -> Option<&str> {
        self.plan_failure.as_deref()
    }

    /// How the job ended, and why, once that is committed.
    pub fn ended_as(&self) -> Option<(JobState, Option<&str>)> {
        self.ended_as.as_ref().map(|(state, cause)| (*state, cause.as_deref()))
    }

    /// Mini-batches, by how they ended. `total` is 0 until the plan is complete.
    pub fn mini_batches(&self) -> Counts {
        let total = self.planned.as_ref().map_or(0, |planned| planned.mini_batches);
        Counts { total, succeeded: self.succeeded, failed: self.failed }
    }

    /// Items, by how they ended. `total` is what the plan says, else the items of the mini-batches that ended.
    pub fn items(&self) -> Counts {
        let ended = self.items_succeeded + self.items_failed;
        let total = self.planned.as_ref().and_then(|planned| planned.items).unwrap_or(ended);
        Counts { total, succeeded: self.items_succeeded, failed: self.items_failed }
    }

    /// Mini-batches that will not be attempted again.
    pub fn ended(&self) -> u64 {
        self.succeeded + self.failed
    }

    /// Whether the plan is complete and every mini-batch of it has ended.
    pub fn is_complete(&self) -> bool {
        self.planned.as_ref().is_some_and(|planned| self.ended() >= planned.mini_batches)
    }

    /// Mini-batches whose latest known attempt failed, whether or not another try follows.
    pub fn currently_failed(&self) -> u64 {
        self.failed + self.retrying
    }

    /// Mini-batches that failed and are tried again.
    pub fn retrying(&self) -> u64 {
        self.retrying
    }

    /// Failed tries that were followed by another.
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// Deliveries lost with their node, of all mini-batches.
    pub fn deliveries_lost_total(&self) -> u64 {
        self.deliveries_lost
    }

    /// Warnings of the attempts that count.
    pub fn warnings(&self) -> u64 {
        self.warnings
    }

    /// Deliveries of attempts that counted for nothing.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// What went wrong, grouped.
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Nodes and processes.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch::Batch;
    use crate::fixtures::{attempt, failed, succeeded};

    fn fold(events: &[ResultEvent]) -> Tally {
        let mut tally = Tally::default();
        for event in events {
            tally.apply(event);
        }
        tally
    }

    fn event(attempt: Attempt) -> ResultEvent {
        ResultEvent::Attempt(Box::new(attempt))
    }

    #[test]
    fn an_entry_stays_small() {
        assert_eq!(size_of::<Entry>(), 20);
    }

    #[test]
    fn the_first_success_counts_and_later_attempts_change_nothing() {
        let mut tally = Tally::default();
        assert_eq!(tally.apply(&event(succeeded(0, 1, 10, 7))), Effect::Won);
        assert_eq!(tally.apply(&event(succeeded(0, 2, 10, 10))), Effect::Nothing);
        tally.apply(&event(failed(0, 2, true, 10)));
        assert_eq!(tally.items(), Counts { total: 10, succeeded: 7, failed: 3 });
        assert_eq!(tally.mini_batches(), Counts { total: 0, succeeded: 1, failed: 0 });
    }

    #[test]
    fn a_late_success_beats_a_failure() {
        let tally = fold(&[event(failed(3, 3, true, 10)), event(succeeded(3, 1, 10, 10))]);
        assert_eq!(tally.state(3), MiniBatchState::Succeeded);
        assert_eq!(tally.items(), Counts { total: 10, succeeded: 10, failed: 0 });
        assert_eq!(tally.mini_batches().failed, 0);
        assert_eq!(tally.failures().given_up_first().count(), 0);
    }

    #[test]
    fn a_failed_first_try_counts_as_failed_until_the_next_succeeds() {
        let mut tally = fold(&[event(failed(0, 1, false, 10))]);
        assert_eq!((tally.currently_failed(), tally.ended(), tally.retries()), (1, 0, 1));
        assert_eq!(tally.items().failed, 0);
        tally.apply(&event(succeeded(0, 2, 10, 10)));
        assert_eq!((tally.currently_failed(), tally.ended(), tally.retries()), (0, 1, 1));
    }

    #[test]
    fn reopening_makes_failures_pending_and_keeps_successes() {
        let mut tally = fold(&[
            event(succeeded(0, 1, 2, 1)),
            event(failed(1, 3, true, 5)),
            event(failed(2, 1, false, 5)),
            ResultEvent::Planned(Planned { mini_batches: 3, items: None }),
        ]);
        assert!(!tally.is_complete());
        tally.apply(&ResultEvent::Reopened { at: 1 });
        assert_eq!((tally.state(1), tally.tries_spent(1)), (MiniBatchState::Pending, 0));
        assert_eq!((tally.state(2), tally.tries_spent(2)), (MiniBatchState::Pending, 0));
        assert_eq!(tally.items(), Counts { total: 2, succeeded: 1, failed: 1 });
        assert_eq!((tally.currently_failed(), tally.ended()), (0, 1));
        tally.apply(&event(succeeded(1, 1, 5, 5)));
        tally.apply(&event(failed(2, 3, true, 5)));
        assert!(tally.is_complete());
    }

    #[test]
    fn both_counts_of_a_mini_batch_are_kept_apart() {
        let mut lost = failed(0, 2, false, 1);
        lost.deliveries_lost = 4;
        let tally = fold(&[event(lost.clone()), event(lost)]);
        assert_eq!((tally.tries_spent(0), tally.deliveries_lost(0)), (2, 4));
        assert_eq!((tally.retries(), tally.deliveries_lost_total()), (2, 4));
    }

    #[test]
    fn room_for_all_mini_batches_is_made_once_if_there_is_as_much() {
        let planned = |mini_batches| ResultEvent::Planned(Planned { mini_batches, items: None });
        let mut tally = fold(&[event(succeeded(2, 1, 1, 1)), planned(1000)]);
        let room = tally.entries.capacity();
        tally.apply(&event(succeeded(999, 1, 1, 1)));
        assert_eq!((room, tally.entries.capacity()), (1000, 1000));

        let mut tally = fold(&[planned(u64::MAX)]);
        assert_eq!(tally.apply(&event(succeeded(5, 1, 1, 1))), Effect::Won);
    }

    #[test]
    fn a_mini_batch_outside_the_plan_is_ignored() {
        let mut tally = fold(&[ResultEvent::Planned(Planned { mini_batches: 1, items: Some(1) })]);
        assert_eq!(tally.apply(&event(succeeded(u64::MAX, 1, 1, 1))), Effect::Nothing);
    }

    /// Attempts as real jobs make them: all attempts of one mini-batch agree on its items, the successful ones on
    /// how many succeeded, and a try is final when it is the third.
    fn attempts() -> impl Strategy<Value = Vec<ResultEvent>> {
        let one =
            (0..12u64, 1..=3u32, prop::bool::weighted(0.4), 0..3u32).prop_map(|(mini_batch, number, good, lost)| {
                let total = mini_batch % 4;
                let status = if good { AttemptStatus::Succeeded } else { AttemptStatus::RunRaised };
                let succeeded = if good { total / 2 } else { 0 };
                let mut attempt = attempt(mini_batch, number, status, good || number == 3, total, succeeded);
                attempt.deliveries_lost = lost;
                event(attempt)
            });
        prop::collection::vec(one, 0..60)
    }

    type Standing = (Counts, Counts, u64, u64, u64, Vec<(MiniBatchState, u32, u32)>);

    fn standing(tally: &Tally) -> Standing {
        (
            tally.mini_batches(),
            tally.items(),
            tally.currently_failed(),
            tally.retries(),
            tally.deliveries_lost_total(),
            (0..12).map(|id| (tally.state(id), tally.tries_spent(id), tally.deliveries_lost(id))).collect(),
        )
    }

    proptest! {
        #[test]
        fn order_and_duplicates_do_not_matter(
            (events, shuffled) in attempts().prop_flat_map(|events| {
                let twice: Vec<_> = events.iter().chain(&events).cloned().collect();
                (Just(events), Just(twice).prop_shuffle())
            })
        ) {
            prop_assert_eq!(standing(&fold(&events)), standing(&fold(&shuffled)));
        }

        #[test]
        fn what_is_known_changes_nothing(events in attempts()) {
            let mut tally = Tally::default();
            let mut filtered = Tally::default();
            for event in events.iter().chain(&events) {
                let (known, before) = (tally.is_known_event(event), standing(&tally));
                let effect = tally.apply(event);
                if known {
                    prop_assert_eq!((effect, standing(&tally)), (Effect::Nothing, before));
                }
                if !filtered.is_known_event(event) {
                    filtered.apply(event);
                }
            }
            prop_assert_eq!(standing(&tally), standing(&filtered));
            prop_assert!(events.iter().all(|event| tally.is_known_event(event)), "all have been delivered");
        }

        /// As they are most often read, and as JSON.
        #[test]
        fn an_ordinary_success_counts_in_either_form(events in attempts()) {
            let mut batch = Batch::default();
            events.iter().for_each(|event| batch.add_event(event));
            let mut read = Tally::default();
            let mut effects = Vec::new();
            batch.retain_in_segment(|record, _| {
                let known = read.is_known(record.event);
                let effect = match record.event {
                    Event::Success(success) => read.apply_success(success, record.process(success)),
                    Event::Other(event) => read.apply(event),
                };
                effects.push((known, effect));
                true
            });
            let mut tally = Tally::default();
            let expected: Vec<_> =
                events.iter().map(|event| (tally.is_known_event(event), tally.apply(event))).collect();
            prop_assert_eq!(effects, expected);
            prop_assert_eq!(standing(&read), standing(&tally));
        }

        #[test]
        fn items_and_mini_batches_are_conserved(events in attempts()) {
            let tally = fold(&events);
            let states: Vec<_> = (0..12).map(|id| tally.state(id)).collect();
            let count = |wanted| states.iter().filter(|state| **state == wanted).count() as u64;
            prop_assert_eq!(count(MiniBatchState::Succeeded), tally.mini_batches().succeeded);
            prop_assert_eq!(count(MiniBatchState::Failed), tally.mini_batches().failed);
            prop_assert_eq!(count(MiniBatchState::Retrying), tally.retrying());
            let ended = (0..12u64).zip(&states);
            let items: u64 = ended
                .map(|(id, state)| match state {
                    MiniBatchState::Succeeded => id % 4,
                    MiniBatchState::Failed => (id % 4).max(1),
                    MiniBatchState::Pending | MiniBatchState::Retrying => 0,
                })
                .sum();
            prop_assert_eq!(tally.items().succeeded + tally.items().failed, items);
        }

        #[test]
        fn exactly_one_attempt_of_each_success_wins(events in attempts()) {
            let mut tally = Tally::default();
            let won = events.iter().filter(|event| tally.apply(event) == Effect::Won).count() as u64;
            prop_assert_eq!(won, tally.mini_batches().succeeded);
        }

        #[test]
        fn what_is_lost_can_be_had_again(events in attempts()) {
            let mut tally = fold(&events);
            let (before, won) = (standing(&tally), tally.mini_batches().succeeded);
            let lost: Vec<u64> = (0..12).filter(|&id| tally.state(id) == MiniBatchState::Succeeded).collect();
            tally.apply(&ResultEvent::RowsLost { mini_batches: (0..12).collect() });
            prop_assert_eq!(tally.mini_batches().succeeded, 0);
            prop_assert_eq!(tally.items().succeeded, 0);
            prop_assert!(lost.iter().all(|&id| tally.state(id) == MiniBatchState::Pending));
            let again = events.iter().filter(|event| tally.apply(event) == Effect::Won).count() as u64;
            prop_assert_eq!((again, standing(&tally)), (won, before));
        }

        #[test]
        fn reopening_leaves_only_successes(events in attempts()) {
            let mut tally = fold(&events);
            let succeeded = tally.mini_batches().succeeded;
            let items = tally.items().succeeded;
            tally.apply(&ResultEvent::Reopened { at: 0 });
            prop_assert_eq!(tally.mini_batches(), Counts { total: 0, succeeded, failed: 0 });
            prop_assert_eq!(tally.items().succeeded, items);
            prop_assert_eq!(tally.currently_failed(), 0);
            let again = fold(&events.iter().cloned().chain([ResultEvent::Reopened { at: 0 }]).collect::<Vec<_>>());
            prop_assert_eq!(standing(&tally), standing(&again));
        }
    }
}
