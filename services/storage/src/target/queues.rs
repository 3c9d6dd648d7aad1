//! Records the existing queues of jobs in `queues/<name>`, because not every service can list its queues.
//!
//! A reducer writes the entry before it creates the queues, and removes it after it has deleted them. So other reducers
//! find queues that a killed reducer has left.

use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore};

use super::TargetStore;
use crate::{Error, Result};

impl TargetStore {
    /// Records that queues of this name are about to be created.
    pub async fn put_queues(&self, name: &str) -> Result<()> {
        self.write(&entry(name), Vec::new()).await
    }

    /// Records that the queues of this name have been deleted.
    pub async fn remove_queues(&self, name: &str) -> Result<()> {
        self.delete(&entry(name)).await
    }

    /// Returns the names of queues that may exist, sorted.
    pub async fn queues(&self) -> Result<Vec<String>> {
        let name = |meta: ObjectMeta| meta.location.filename().map(str::to_owned);
        let listed = self.store.list(Some(&self.path("queues")));
        let names = listed
            .try_filter_map(|meta| std::future::ready(Ok(name(meta))))
            .try_collect::<Vec<_>>()
            .await;
        let mut names = names.map_err(|error| Error::from_store(&self.name("queues"), error))?;
        names.sort();
        Ok(names)
    }
}

fn entry(name: &str) -> String {
    format!("queues/{name}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::targets;

    #[tokio::test]
    async fn names_of_queues_are_kept_until_they_are_removed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            assert_eq!(target.queues().await.expect("readable"), [""; 0]);
            for name in ["b.2", "a.1", "b.2"] {
                target.put_queues(name).await.expect("writable");
            }
            assert_eq!(target.queues().await.expect("readable"), ["a.1", "b.2"]);
            for _ in 0..2 {
                target.remove_queues("a.1").await.expect("writable");
            }
            assert_eq!(target.queues().await.expect("readable"), ["b.2"]);
        }
    }
}
