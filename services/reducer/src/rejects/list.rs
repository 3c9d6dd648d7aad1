//! The object that has all rejected items of a mini-batch with too many for its record in the ledger.

use anyhow::{Context, anyhow, ensure};
use protocol::{Attempt, RejectedList};
use storage::JobStore;

/// Reads such an object. Fails if it is missing or damaged, or the store does not answer.
pub(crate) async fn read_list(
    store: &JobStore,
    name: &str,
    bytes: u64,
) -> anyhow::Result<RejectedList> {
    let content = store.part(name).await.with_context(|| format!("read parts/{name}"))?;
    ensure!(
        content.len() as u64 == bytes,
        "parts/{name} has {} bytes instead of {bytes}",
        content.len()
    );
    serde_json::from_slice(&content).with_context(|| format!("read parts/{name}"))
}

/// Completes an attempt with its rejected items and pieces from such an object. Returns its size, or why it cannot be
/// used: it is missing or damaged. Fails if the store does not answer.
pub(super) async fn complete(
    store: &JobStore,
    attempt: &mut Attempt,
) -> anyhow::Result<anyhow::Result<u64>> {
    let Some(part) = attempt.rejected_part.take() else { return Ok(Ok(0)) };
    let list = match read_list(store, &part.name, part.bytes).await {
        Err(error) => match error.downcast_ref() {
            None | Some(storage::Error::NotFound { .. } | storage::Error::Damaged { .. }) => {
                return Ok(Err(error));
            }
            Some(_) => return Err(error),
        },
        Ok(list) => list,
    };
    let items =
        list.rejected.iter().fold(0u64, |items, rejected| items.saturating_add(rejected.items));
    if items != part.items {
        return Ok(Err(anyhow!(
            "parts/{} names {items} items instead of {}",
            part.name,
            part.items
        )));
    }
    (attempt.rejected, attempt.pieces) = (list.rejected, list.pieces);
    Ok(Ok(part.bytes))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::{ErrorReport, REJECTED_MAX, Rejected, Rows, encode_record};

    use super::*;
    use crate::Rejects;
    use crate::fixtures::{event, succeeded};

    const NAME: &str = "0000000000-3-0-0-17-rejected";

    fn rejected(item: u64) -> Rejected {
        let error = ErrorReport { category: "ValueError".into(), ..ErrorReport::default() };
        Rejected { detail: format!("row {item}"), error, ..crate::fixtures::rejected(item) }
    }

    /// A job of 10 000 rows, every second of which is rejected, and the content of the object with their list.
    async fn job() -> (tempfile::TempDir, JobStore, Vec<u8>) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::local(folder.path()).expect("it exists");
        let mut attempt = Attempt {
            rejected: (0..5000).map(|row| rejected(2 * row)).collect(),
            pieces: (0..5000).map(|row| (2 * row + 1, 3)).collect(),
            rows: Rows::None,
            ..succeeded(0, 3, 10_000, 5000)
        };
        let moved = attempt.move_rejected(REJECTED_MAX, || NAME.to_owned());
        let (_, content) = moved.expect("too many for a message");
        let mut record = Vec::new();
        encode_record(&event(attempt), b"", &mut record);
        store.commit_segment(0, vec![Bytes::from(record)]).await.expect("writable");
        (folder, store, content)
    }

    async fn items(store: &JobStore) -> Vec<(Option<u64>, u64, String)> {
        let mut rejects = Rejects::find(store, "job").await.expect("readable");
        let [mini_batch] = &rejects.next().await.expect("readable")[..] else {
            panic!("one mini-batch")
        };
        assert!(mini_batch.can_run_again());
        let shown = |reject: super::super::Reject<'_>| {
            (reject.item, reject.items, reject.error.message.clone())
        };
        let shown = mini_batch.rejects(&[]).map(shown).collect();
        assert!(rejects.next().await.expect("readable").is_empty());
        shown
    }

    #[tokio::test]
    async fn every_item_of_the_list_is_a_reject() {
        let (_folder, store, content) = job().await;
        store.put_part(NAME, content.into()).await.expect("writable");
        let expected: Vec<_> = (0..5000).map(|row| (Some(2 * row), 1, String::new())).collect();
        assert_eq!(items(&store).await, expected);
    }

    #[tokio::test]
    async fn items_of_a_lost_list_are_counted() {
        let (_folder, store, content) = job().await;
        let other = String::from_utf8(content.clone()).expect("JSON").replacen(
            "\"items\":1",
            "\"items\":9",
            1,
        );
        for damaged in [
            None,
            Some(content[1..].to_vec()),
            Some(vec![b'x'; content.len()]),
            Some(other.into_bytes()),
        ] {
            if let Some(damaged) = damaged {
                store.put_part(NAME, damaged.into()).await.expect("writable");
            }
            let items = items(&store).await;
            assert_eq!(
                (items.len(), items[255].0),
                (257, Some(510)),
                "those of the record, and the rest"
            );
            let (item, count, message) = &items[256];
            assert_eq!((*item, *count), (None, 4744));
            assert!(message.starts_with("the list of these items cannot be read: "), "{message}");
            assert!(message.contains(NAME), "{message}");
        }
    }
}
