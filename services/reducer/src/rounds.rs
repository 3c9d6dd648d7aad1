//! Begins another round of a job: runs unfinished mini-batches, failed ones and rejected items,
//! each in its place.
//!
//! A mini-batch with rejected items runs only these. The process that begins the round first writes the other rows to an
//! object. The worker reads it, and announces them again together with the new rows, so a mini-batch has the rows of one
//! attempt in every round. If the round fails, no row is lost: the ledger holds both.
//!
//! A round may begin while the job runs. Then one of its reducers publishes the mini-batches of the
//! round: the first that claims the round in the store.
//!
//! Objects come first, then the round in the ledger, then the removal of the last result. A crash between two of these steps
//! leaves a job that another round continues.

use std::io::Read;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use protocol::{
    Descriptor, ErrorThresholds, Kept, OutputAction, PlanPosition, ResultEvent, Round, Work,
    milliseconds_since_epoch,
};
use queue::Message;
use storage::{JobStore, RoundRequest};
use tokio::runtime::Handle;

use crate::batch::Batch;
use crate::commit::Appended;
use crate::ledger::RowLocation;
use crate::output::Source;
use crate::rejects::{RejectedMiniBatch, Rejects};
use crate::thresholds::{exceeded, is_above, nothing_succeeded};
use crate::{CrashPoint, MiniBatchState, Peers, Reducer, Tally};

/// Objects that are written at once.
const WRITES_AT_ONCE: usize = 16;

/// The script that a round runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundScript {
    /// Digest of its files.
    pub digest: String,
    /// Whether it counts as changed since the round before, even if the files are equal.
    pub has_other_script: bool,
}

/// A round that has begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BegunRound {
    /// Failed mini-batches that run again.
    pub failed: u64,
    /// Rejected items that run again alone.
    pub items: u64,
    /// Mini-batches that succeeded without some of their items and run again as a whole.
    pub whole: u64,
    /// Whether the job runs, so that its reducers publish them.
    pub is_live: bool,
}

/// The rejects that a round runs.
#[derive(Default)]
struct RejectsToRun {
    kept: Vec<u64>,
    /// Items of these.
    items: u64,
    whole: Vec<u64>,
}

impl Reducer {
    /// Continues an interrupted round, and records that in the ledger.
    pub async fn go_on(&mut self, script: &RoundScript) -> anyhow::Result<()> {
        let round = Round { goes_on: true, ..self.round(script).await? };
        self.append_event(&ResultEvent::Round(round)).await?;
        Ok(())
    }

    /// Returns a round that runs nothing again.
    async fn round(&self, script: &RoundScript) -> anyhow::Result<Round> {
        let RoundScript { digest, has_other_script } = script;
        let before = self.tally.script().unwrap_or(&self.spec.snapshot_digest);
        let result = self.store.result().await.context("read the last result")?;
        Ok(Round {
            at: milliseconds_since_epoch(),
            id: format!("{:x}-{}", milliseconds_since_epoch(), self.options.writer),
            output: result.and_then(|result| result.output_version),
            script: digest.clone(),
            has_other_script: *has_other_script || before != digest,
            ..Round::default()
        })
    }

    /// Begins a round, and returns the ended work that it runs. Unless the job runs, that removes
    /// `result.json` and a request to cancel. `is_running`: the job has neither ended nor been
    /// canceled. `check` fails if the rejected items of a mini-batch cannot run again, and then no
    /// round begins.
    pub async fn begin_round(
        &mut self,
        request: RoundRequest,
        script: &RoundScript,
        is_running: bool,
        check: impl Fn(&Descriptor) -> anyhow::Result<()>,
    ) -> anyhow::Result<BegunRound> {
        let (begun, round) = loop {
            let is_live = is_running && self.tally.ended_as().is_none();
            let mut round = Round { failed: request.failed, is_live, ..self.round(script).await? };
            let failed = if request.failed { self.tally.mini_batches().failed } else { 0 };
            let collects_rows = self.spec.output.action == OutputAction::AppendRow;
            let fail_again = |round: &Round| {
                that_fail_again(&self.tally, round, &self.spec.thresholds, collects_rows)
            };
            let mut items = 0;
            // Rejects that would fail the job at once run even if the request leaves them out.
            if request.rejects || !fail_again(&round).is_empty() {
                let rejected = self.keep_rejected(&round.id, &check).await?;
                items = rejected.items;
                (round.rejects, round.items, round.whole) =
                    (rejected.kept, rejected.items, rejected.whole);
            }
            round.whole.extend(fail_again(&round));
            (self.options.crash)(CrashPoint::BeforeRound);
            let begun = BegunRound { failed, items, whole: round.whole.len() as u64, is_live };
            let mut batch = Batch::default();
            batch.add_event(&ResultEvent::Round(round.clone()));
            // Another reducer may end the job in the meantime.
            if self.append(batch).await? != Appended::TooLate {
                break (begun, round);
            }
        };
        tracing::info!(job.id = self.spec.job_id, "round {} begins: {begun:?}", round.id);
        (self.options.crash)(CrashPoint::AfterRound);
        self.forget_decided().await?;
        if round.is_live {
            return Ok(begun);
        }
        self.begin_times().await;
        self.show_progress();
        self.write_progress().await;
        self.store.reopen().await.context("reopen the job")?;
        Ok(begun)
    }

    /// Whether a round would run ended work again.
    pub fn lacks(&self, request: RoundRequest) -> bool {
        let is_of_success = |mini_batch| self.tally.state(mini_batch) == MiniBatchState::Succeeded;
        let named = || self.rejects.named(&self.tally).any(is_of_success);
        request.failed && self.tally.mini_batches().failed > 0 || request.rejects && named()
    }

    /// Returns the number of records that could not be read, and the first of them, if they fail the job in every round:
    /// they exceed its error threshold, or are all items of a job that must have rows.
    pub fn unread_that_fail_the_job(&self) -> Option<(u64, &str)> {
        let collects_rows = self.spec.output.action == OutputAction::AppendRow;
        let has_nothing = collects_rows && self.tally.is_complete();
        self.tally.warnings().records_unread().filter(|(records, _)| {
            is_above(*records, self.spec.thresholds.error_threshold)
                || has_nothing && *records >= self.tally.items().total
        })
    }

    /// Publishes the mini-batches of rounds that have begun while the job runs. After an error, the
    /// next check retries.
    pub(crate) async fn publish_rounds(&mut self) -> anyhow::Result<()> {
        let rounds = self.tally.rounds();
        let again = if rounds > self.rounds_published {
            self.tally.run_again_since(self.rounds_published)
        } else {
            vec![]
        };
        if let Some(tasks) = self.options.tasks.clone().filter(|_| !again.is_empty()) {
            let is_claimed = self.peers == Peers::Alone
                || self.store.claim_round(rounds, &self.options.writer).await?;
            let message = |&mini_batch: &u64| {
                let PlanPosition { chunk, line } = PlanPosition::of(mini_batch);
                // A descriptor may be too large for the queue.
                let planned =
                    Descriptor::new(&*self.spec.job_id, mini_batch, Work::Planned { chunk, line });
                let descriptor = Descriptor { again: self.tally.again(mini_batch), ..planned };
                Message::new(serde_json::to_vec(&descriptor).expect("descriptors always serialise"))
            };
            if is_claimed {
                tasks.send(again.iter().map(message).collect()).await?;
            }
        }
        self.rounds_published = rounds;
        Ok(())
    }

    /// Begins the round that another process has requested of a job of this machine.
    pub(crate) async fn take_round_request(&mut self) -> anyhow::Result<()> {
        if let Some(request) = self.store.round_requested().await? {
            let digest = self.spec.snapshot_digest.clone();
            let script = RoundScript { digest, has_other_script: false };
            self.begin_round(request, &script, true, |_| Ok(())).await?;
            self.store.forget_round_request().await?;
        }
        Ok(())
    }

    /// Writes the kept rows of mini-batches with rejected items.
    async fn keep_rejected(
        &self,
        round: &str,
        check: &impl Fn(&Descriptor) -> anyhow::Result<()>,
    ) -> anyhow::Result<RejectsToRun> {
        let records = self.rejects.records(&self.tally).into_iter();
        let records = records
            .filter(|record| self.tally.state(record.mini_batch) == MiniBatchState::Succeeded);
        let mut rejects = Rejects::of(&self.store, records.collect());
        let mut all = RejectsToRun::default();
        loop {
            let mini_batches = rejects.next().await.context("read the rejects of the job")?;
            if mini_batches.is_empty() {
                self.store.commit_parts().await?;
                return Ok(all);
            }
            let mut kept = Vec::new();
            for rejected in mini_batches.iter().filter(|rejected| rejected.can_run_again()) {
                rejected.descriptor.iter().try_for_each(check)?;
                let mini_batch = rejected.attempt.mini_batch;
                match self.kept(rejected).await? {
                    Some((what, content)) => {
                        all.kept.push(mini_batch);
                        all.items += what.items();
                        kept.push((Kept::name(mini_batch, round), content));
                    }
                    None => all.whole.push(mini_batch),
                }
            }
            write(&self.store, kept)
                .await
                .context("keep what mini-batches with rejected items have")?;
        }
    }

    /// Returns the kept rows of a mini-batch, and the object with them; `None`: it has no rows, or
    /// their places are unknown.
    async fn kept(&self, rejected: &RejectedMiniBatch) -> anyhow::Result<Option<(Kept, Vec<u8>)>> {
        let attempt = &rejected.attempt;
        let place = self.ledger.index.rows_of(attempt.mini_batch);
        let has_places = !attempt.pieces.is_empty() || place == RowLocation::None;
        if attempt.succeeded == 0
            || rejected.is_rejected_whole()
            || rejected.list_lost.is_some()
            || !has_places
        {
            return Ok(None);
        }
        let rows = self
            .read_rows(place)
            .await
            .with_context(|| crate::output::rows_of(attempt.mini_batch))?;
        let kept = Kept {
            ranges: rejected.rejected_ranges(),
            succeeded: attempt.succeeded,
            columns: attempt.columns.clone(),
            pieces: attempt.pieces.clone(),
            is_separate: rejected
                .descriptor
                .as_ref()
                .is_some_and(|planned| planned.again.is_some()),
        };
        let content = kept.encode(&rows);
        // A worker could not use unreadable rows.
        Ok(Kept::decode(&content).is_ok().then_some((kept, content)))
    }

    async fn read_rows(&self, place: RowLocation) -> anyhow::Result<Vec<u8>> {
        if place == RowLocation::None {
            return Ok(Vec::new());
        }
        let (store, index, runtime) =
            (self.store.clone(), self.ledger.index.clone(), Handle::current());
        let read = tokio::task::spawn_blocking(move || {
            let mut rows = Vec::new();
            Source::new(&store, &index, runtime).reader(place)?.read_to_end(&mut rows)?;
            anyhow::Ok(rows)
        });
        read.await.context("reading rows panicked")?
    }
}

/// Returns the mini-batches that would fail the job again at once, because they succeeded without
/// some of their items: otherwise no corrected script could continue the job. `collects_rows`: a
/// job without rows fails.
fn that_fail_again(
    tally: &Tally,
    round: &Round,
    limits: &ErrorThresholds,
    collects_rows: bool,
) -> Vec<u64> {
    let mut tally = tally.clone();
    tally.begin_round(round);
    let incomplete = tally.incomplete();
    if incomplete.is_empty() {
        return incomplete;
    }
    let has_nothing = collects_rows && tally.is_complete() && nothing_succeeded(&tally).is_some();
    let fails = has_nothing || exceeded(&tally, limits, false).is_some();
    if fails { incomplete } else { Vec::new() }
}

/// Writes parts, several at a time.
async fn write(store: &JobStore, parts: Vec<(String, Vec<u8>)>) -> storage::Result<()> {
    let writes = parts
        .into_iter()
        .map(|(name, content)| async move { store.put_part(&name, content.into()).await });
    stream::iter(writes).buffer_unordered(WRITES_AT_ONCE).try_collect().await
}

#[cfg(test)]
mod tests {
    use protocol::{Planned, ResultEvent};

    use super::*;
    use crate::fixtures::{event, failed, fold, succeeded};

    #[test]
    fn successes_whose_missing_items_fail_the_job_run_again() {
        let round = Round { failed: true, ..Round::default() };
        let again = |tally: &Tally, error_threshold, collects_rows| {
            let limits = ErrorThresholds { error_threshold, ..ErrorThresholds::default() };
            that_fail_again(tally, &round, &limits, collects_rows)
        };
        let tally = fold(&[
            event(succeeded(0, 1, 2, 2)),
            event(succeeded(1, 1, 3, 1)),
            event(failed(2, 3, true, 5)),
        ]);
        assert_eq!(again(&tally, 1, true), [1], "2 > 1");
        assert!(
            again(&tally, 2, true).is_empty() && again(&tally, -1, true).is_empty(),
            "the failed one runs anyway"
        );
        let pending = fold(&[event(succeeded(0, 1, 2, 0))]);
        assert!(again(&pending, -1, true).is_empty(), "others may have rows");
        let planned = ResultEvent::Planned(Planned { mini_batches: 1, items: None });
        let nothing = fold(&[event(succeeded(0, 1, 2, 0)), planned]);
        assert_eq!(again(&nothing, -1, true), [0]);
        assert!(again(&nothing, -1, false).is_empty(), "no row is wanted");
    }
}
