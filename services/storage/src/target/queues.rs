//! Records the existing queues of jobs in `queues/<name>`, because not every service can list its queues.
//!
//! A reducer writes the entry before it creates the queues, and removes it after it has deleted them. So other reducers
//! find queues that a killed reducer has left.

use super::TargetStore;
use crate::Result;

impl TargetStore {
    /// Records that queues of this name are about to be created.
    pub async fn put_queues(&self, name: &str) -> Result<()> {
        self.objects.put(&entry(name), "").await
    }

    /// Records that the queues of this name have been deleted.
    pub async fn remove_queues(&self, name: &str) -> Result<()> {
        self.objects.delete(&entry(name)).await
    }

    /// Returns the names of queues that may exist, sorted.
    pub async fn queues(&self) -> Result<Vec<String>> {
        let listed = self.objects.list("queues").await?;
        let mut names: Vec<_> =
            listed.iter().filter_map(|meta| meta.location.filename().map(str::to_owned)).collect();
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
