//! The speculative run of a slow mini-batch, beside the original.
//!
//! The ledger has only the run that counts. The records of copies in the store tell which
//! mini-batches had one, and the state of the mini-batch tells its end.

use engine::MiniBatchState;
use engine::history::AttemptSummary;
use futures::{StreamExt, stream};
use serde::Serialize;

use crate::watched::View;

/// Records of copies that are read for one page.
const RECORDS_MAX: u64 = 512;
const READS_AT_ONCE: usize = 16;

/// The end of a speculative run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeculativeRun {
    /// The copy succeeded first, and the original was stopped.
    Won,
    /// The original succeeded first, and the copy was stopped, or had failed.
    Stopped,
    /// The mini-batch has not ended.
    Open,
    /// Neither run succeeded.
    Failed,
}

/// Returns the end of the speculative run of a mini-batch; `None`: it had none, or none is
/// recorded.
pub async fn of(
    view: &View,
    number: u64,
    state: MiniBatchState,
    attempts: &[AttemptSummary],
) -> Option<SpeculativeRun> {
    let is_copied = attempts.iter().any(AttemptSummary::is_copy) || was_copied(view, number).await;
    is_copied.then(|| match state {
        MiniBatchState::Succeeded
            if attempts.iter().any(|attempt| attempt.is_copy() && attempt.counts()) =>
        {
            SpeculativeRun::Won
        }
        MiniBatchState::Succeeded => SpeculativeRun::Stopped,
        MiniBatchState::Pending | MiniBatchState::Retrying if view.state().may_have_processes() => {
            SpeculativeRun::Open
        }
        _ => SpeculativeRun::Failed,
    })
}

/// Whether a mini-batch was copied.
async fn was_copied(view: &View, number: u64) -> bool {
    if !view.snapshot.spec.speculation {
        return false;
    }
    let store = view.snapshot.store.clone();
    let records = stream::iter(0..RECORDS_MAX).map(move |epoch| {
        let store = store.clone();
        async move { store.copies(epoch).await.ok().flatten() }
    });
    let mut records = records.buffered(READS_AT_ONCE);
    while let Some(Some(mini_batches)) = records.next().await {
        if mini_batches.contains(&number) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use protocol::Attempt;
    use protocol::AttemptStatus::{RunRaised, Succeeded};

    use super::*;
    use crate::fixtures::{stored, tried};

    #[tokio::test]
    async fn records_show_how_speculative_runs_ended() {
        let won = Attempt { copy: true, ..tried(1, 1, Succeeded) };
        let (_folder, mut view) =
            stored(&[tried(0, 1, Succeeded), won, tried(2, 1, RunRaised), tried(3, 1, Succeeded)])
                .await;
        let store = view.snapshot.store.clone();
        for (epoch, mini_batches) in [(0, vec![0]), (1, vec![1, 2])] {
            store.create_copies(epoch, "r", &mini_batches).await.expect("writable");
        }
        let told = async |view: &View, number| {
            let (state, attempts) = {
                let history = view.history();
                (history.state(number), history.attempts_of(number).copied().collect::<Vec<_>>())
            };
            of(view, number, state, &attempts).await
        };
        assert_eq!(told(&view, 0).await, None, "the job does not speculate");
        Arc::get_mut(&mut view.snapshot).expect("one holder").spec.speculation = true;
        let all = [
            told(&view, 0).await,
            told(&view, 1).await,
            told(&view, 2).await,
            told(&view, 3).await,
        ];
        assert_eq!(
            all,
            [
                Some(SpeculativeRun::Stopped),
                Some(SpeculativeRun::Won),
                Some(SpeculativeRun::Open),
                None
            ]
        );
    }
}
