//! Item checkpoints: results that scripts hand back before their attempt has ended.
//!
//! Python processes write and read them (`python/package/gristmill/checkpoints.py`): one folder for each mini-batch, and
//! in it one file for each attempt that has handed anything back. A job with a folder keeps them there, where every node
//! finds them. Otherwise each node keeps its own: it uploads what its processes add, in pieces, and fetches what other
//! nodes have uploaded before a mini-batch is tried again. Once the success of a mini-batch is announced, its checkpoints
//! are removed.
//!
//! A later attempt reads what earlier ones have handed back, gets the remaining items, and answers
//! with the rows of all: scheduler, ledger and output treat it as an ordinary success. After the
//! last failed try of a mini-batch that nothing divides, the scheduler hands it over once more for
//! the kept rows alone (`only_kept`): `run` is not called, and the other items are rejected with
//! the error of that try.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::OFlags;
use storage::{CheckpointPiece, JobStore};
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::job_users::{self, JobUser};

/// Time between two uploads.
const PERIOD: Duration = Duration::from_secs(2);
/// Largest piece.
const PIECE_BYTES_MAX: u64 = 16 << 20;
/// Longest wait for the store at the start and the end of an agent.
pub const STORE_TIME: Duration = Duration::from_secs(5);

/// The checkpoints of one job on one node.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: Arc<Path>,
    /// `None`: all nodes share the folder.
    remote: Option<Arc<Remote>>,
    /// The user that writes them; `None`: the user of this process.
    user: Option<Arc<JobUser>>,
}

#[derive(Debug)]
struct Remote {
    store: JobStore,
    /// The uploaded files of each mini-batch, with the length that the store has.
    stored: Mutex<HashMap<u64, HashMap<String, u64>>>,
    /// An earlier run of the job has left checkpoints.
    are_old: AtomicBool,
    /// Held during the request, so that one listing serves all waiting preparations.
    last_look: AsyncMutex<Listing>,
}

/// The result of the last listing of the store.
#[derive(Clone, Copy, Debug, Default)]
enum Listing {
    #[default]
    None,
    /// No mini-batch of the job had checkpoints at this time.
    Empty(Instant),
    /// Mini-batches may have checkpoints.
    Found,
}

impl Remote {
    /// Returns whether any mini-batch of the job may have checkpoints that were uploaded before
    /// `since`. One listing serves all mini-batches that were received before it began: after the
    /// death of a node, another may receive hundreds.
    async fn may_have_any(&self, since: Instant) -> storage::Result<bool> {
        let mut last = self.last_look.lock().await;
        *last = match *last {
            Listing::Found => Listing::Found,
            Listing::Empty(at) if at >= since => Listing::Empty(at),
            _ => {
                let begun = Instant::now();
                if self.store.has_checkpoints().await? {
                    Listing::Found
                } else {
                    Listing::Empty(begun)
                }
            }
        };
        Ok(matches!(*last, Listing::Found))
    }

    /// Never held during a request to the store: the announcer and preparations need it.
    fn stored(&self) -> MutexGuard<'_, HashMap<u64, HashMap<String, u64>>> {
        self.stored.lock().expect("no holder panics")
    }

    /// Returns how much of a file the store has.
    fn stored_of(&self, file: &File) -> u64 {
        *self.stored().entry(file.mini_batch).or_default().entry(file.name.clone()).or_default()
    }

    /// Notes that the store has a file up to this length. Returns `false` if its mini-batch has been removed meanwhile.
    fn has_stored(&self, file: &File, bytes: u64) -> bool {
        match self.stored().get_mut(&file.mini_batch).and_then(|files| files.get_mut(&file.name)) {
            Some(known) => {
                *known = bytes;
                true
            }
            None => false,
        }
    }
}

/// A file of a mini-batch.
#[derive(Clone, Debug)]
struct File {
    mini_batch: u64,
    name: String,
}

impl Checkpoints {
    /// Finds the checkpoints of a job. `work_folder` is that of the job on this node. `user`: the
    /// user that runs the script, if it is not that of this process.
    pub fn new(store: &JobStore, work_folder: &Path, user: Option<Arc<JobUser>>) -> Self {
        match store.checkpoints_folder() {
            Some(folder) => Self { folder: folder.into(), remote: None, user },
            None => {
                let remote = Remote {
                    store: store.clone(),
                    stored: Mutex::default(),
                    are_old: AtomicBool::new(false),
                    last_look: AsyncMutex::default(),
                };
                // Links below it are those of scripts.
                let work_folder =
                    work_folder.canonicalize().unwrap_or_else(|_| work_folder.to_owned());
                Self {
                    folder: work_folder.join("checkpoints").into(),
                    remote: Some(remote.into()),
                    user,
                }
            }
        }
    }

    /// The folder, which exists once a script has handed something back.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Checks whether an earlier run of the job has left checkpoints, and then creates the folder,
    /// which tells processes to look there.
    pub async fn look(&self) {
        let Some(remote) = &self.remote else { return };
        match tokio::time::timeout(STORE_TIME, remote.may_have_any(Instant::now())).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => {
                remote.are_old.store(true, Ordering::Relaxed);
                let _ = tokio::fs::create_dir_all(&self.folder).await;
            }
            Ok(Err(error)) => {
                tracing::warn!("cannot look for results that the script has handed back: {error:#}")
            }
            Err(_) => {}
        }
    }

    /// Whether those of other nodes must be fetched.
    pub fn are_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// Uploads additions until the value is dropped, if the nodes do not share the folder.
    pub fn keep(&self) -> Option<AbortOnDropHandle<()>> {
        let checkpoints = self.remote.is_some().then(|| self.clone())?;
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                tokio::time::sleep(PERIOD).await;
                checkpoints.upload().await;
            }
        })))
    }

    /// Uploads the last additions of processes that have ended.
    pub async fn finish(&self) {
        let _ = tokio::time::timeout(STORE_TIME, self.upload()).await;
    }

    async fn upload(&self) {
        let Some(remote) = &self.remote else { return };
        let folder = self.folder.clone();
        let found = tokio::task::spawn_blocking(move || files(&folder)).await.unwrap_or_default();
        for (file, bytes) in found {
            let mut offset = remote.stored_of(&file);
            while offset < bytes {
                let (path, piece) = (self.path(&file), offset..bytes.min(offset + PIECE_BYTES_MAX));
                let Ok(Ok(content)) = tokio::task::spawn_blocking(move || read(&path, piece)).await
                else {
                    break;
                };
                let (piece, length) =
                    (CheckpointPiece { file: file.name.clone(), offset }, content.len());
                if let Err(error) =
                    remote.store.put_checkpoint(file.mini_batch, &piece, content).await
                {
                    tracing::warn!(
                        "cannot upload results that the script has handed back: {error:#}"
                    );
                    // The store does not answer; the next round goes on.
                    return;
                }
                offset += length as u64;
                if !remote.has_stored(&file, offset) {
                    let _ = remote.store.delete_checkpoints_of(file.mini_batch).await;
                    break;
                }
            }
        }
    }

    /// Fetches the checkpoints of a mini-batch from other nodes. `since`: when it was received, if
    /// an earlier attempt of it has ended. Without such an attempt, only an earlier run of the job
    /// can have left checkpoints. After an error, its items are computed again.
    pub async fn fetch(&self, mini_batch: u64, since: Option<Instant>) {
        if let Some(remote) = &self.remote
            && let Err(error) = self.fetch_from(remote, mini_batch, since).await
        {
            tracing::warn!(
                "cannot fetch results that other nodes have kept of mini-batch {mini_batch}: {error:#}"
            );
        }
    }

    async fn fetch_from(
        &self,
        remote: &Remote,
        mini_batch: u64,
        since: Option<Instant>,
    ) -> anyhow::Result<()> {
        let may_have_any = match since {
            Some(since) => remote.may_have_any(since).await?,
            None => remote.are_old.load(Ordering::Relaxed),
        };
        if !may_have_any {
            return Ok(());
        }
        let mut offsets = BTreeMap::<String, Vec<u64>>::new();
        for CheckpointPiece { file, offset } in remote.store.checkpoints_of(mini_batch).await? {
            offsets.entry(file).or_default().push(offset);
        }
        for (name, offsets) in offsets {
            let file = File { mini_batch, name };
            let path = self.path(&file);
            if path.exists() {
                continue;
            }
            let mut content = Vec::new();
            for offset in offsets {
                let piece = CheckpointPiece { file: file.name.clone(), offset };
                let bytes = remote.store.checkpoint(mini_batch, &piece).await?;
                // A node that has started again uploads its files again.
                let known = (content.len() as u64)
                    .checked_sub(offset)
                    .and_then(|known| usize::try_from(known).ok());
                let Some(known) = known else { break };
                content.extend_from_slice(bytes.get(known..).unwrap_or_default());
            }
            remote.stored().entry(mini_batch).or_default().insert(file.name, content.len() as u64);
            let user = self.user.clone();
            tokio::task::spawn_blocking(move || write(&path, &content, user.as_deref())).await??;
        }
        Ok(())
    }

    /// Removes, in a task of its own, the checkpoints of the mini-batches that are sent: no
    /// announcement waits for the store. The task ends once the sender is dropped.
    pub fn start_removing(&self) -> (mpsc::UnboundedSender<u64>, AbortOnDropHandle<()>) {
        let (sender, mut superfluous) = mpsc::unbounded_channel();
        let checkpoints = self.clone();
        let removing = async move {
            let mut mini_batches = Vec::new();
            while superfluous.recv_many(&mut mini_batches, usize::MAX).await > 0 {
                checkpoints.remove(&std::mem::take(&mut mini_batches)).await;
            }
        };
        (sender, AbortOnDropHandle::new(tokio::spawn(removing)))
    }

    /// Removes the checkpoints of mini-batches that have succeeded. Those that stay after an error
    /// are removed with the job.
    async fn remove(&self, mini_batches: &[u64]) {
        let folders: Vec<PathBuf> =
            mini_batches.iter().map(|mini_batch| self.folder_of(*mini_batch)).collect();
        let remove =
            move || folders.iter().for_each(|folder| drop(std::fs::remove_dir_all(folder)));
        let _ = tokio::task::spawn_blocking(remove).await;
        let Some(remote) = &self.remote else { return };
        for mini_batch in mini_batches {
            let was_stored = remote.stored().remove(mini_batch).is_some();
            if was_stored {
                let _ = remote.store.delete_checkpoints_of(*mini_batch).await;
            }
        }
    }

    fn folder_of(&self, mini_batch: u64) -> PathBuf {
        self.folder.join(mini_batch.to_string())
    }

    fn path(&self, file: &File) -> PathBuf {
        self.folder_of(file.mini_batch).join(&file.name)
    }
}

/// Returns all files and their sizes.
fn files(folder: &Path) -> Vec<(File, u64)> {
    let mut found = Vec::new();
    for folder in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Some(mini_batch) = folder.file_name().to_str().and_then(|name| name.parse().ok())
        else {
            continue;
        };
        for file in std::fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            if let (Ok(name), Ok(metadata)) = (file.file_name().into_string(), file.metadata()) {
                found.push((File { mini_batch, name }, metadata.len()));
            }
        }
    }
    found
}

fn write(path: &Path, content: &[u8], user: Option<&JobUser>) -> std::io::Result<()> {
    let folder = path.parent().expect("in a folder");
    std::fs::create_dir_all(folder)?;
    let mut file = job_users::open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
    file.write_all(content)?;
    // The next attempt adds files of its own.
    user.map_or(Ok(()), |user| user.own(folder))
}

fn read(path: &Path, range: std::ops::Range<u64>) -> std::io::Result<Bytes> {
    let mut file = job_users::open(path, OFlags::RDONLY)?;
    file.seek(SeekFrom::Start(range.start))?;
    let mut content = Vec::new();
    file.take(range.end - range.start).read_to_end(&mut content)?;
    match content.is_empty() {
        true => Err(std::io::ErrorKind::UnexpectedEof.into()),
        false => Ok(content.into()),
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::silent_store::SilentStore;

    fn write(checkpoints: &Checkpoints, name: &str, content: &str) {
        let path = checkpoints.folder().join(name);
        std::fs::create_dir_all(path.parent().expect("in a folder")).expect("writable");
        std::fs::write(path, content).expect("writable");
    }

    fn content(checkpoints: &Checkpoints, name: &str) -> Option<String> {
        std::fs::read_to_string(checkpoints.folder().join(name)).ok()
    }

    #[tokio::test]
    async fn another_node_gets_uploaded_checkpoints_until_the_mini_batch_succeeds() {
        let store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().expect("temporary folder"));
        let here = Checkpoints::new(&store, first.path(), None);
        assert!(here.are_remote());
        here.upload().await;
        write(&here, "7/a-1", "one");
        write(&here, "8/a-2", "other");
        here.upload().await;
        write(&here, "7/a-1", "one two");
        here.upload().await;
        here.upload().await;
        // A node that starts again forgets what it has uploaded.
        write(&here, "7/a-1", "one two three");
        Checkpoints::new(&store, first.path(), None).upload().await;

        let there = Checkpoints::new(&store, second.path(), None);
        there.fetch(7, None).await;
        assert!(!there.folder().exists(), "no earlier attempt is known");
        there.look().await;
        assert!(there.folder().exists());
        there.fetch(7, None).await;
        assert_eq!(content(&there, "7/a-1").as_deref(), Some("one two three"));
        assert_eq!(content(&there, "8/a-2"), None);
        write(&there, "7/b-1", "four");
        there.upload().await;
        assert_eq!(
            store.checkpoints_of(7).await.expect("readable").len(),
            3,
            "fetched checkpoints are not uploaded"
        );

        there.remove(&[7]).await;
        assert_eq!(content(&there, "7/a-1"), None);
        assert!(store.checkpoints_of(7).await.expect("readable").is_empty());
        assert_eq!(store.checkpoints_of(8).await.expect("readable").len(), 1);
        store.delete_checkpoints().await.expect("writable");
        assert!(store.checkpoints_of(8).await.expect("readable").is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn removal_and_fetching_do_not_wait_for_an_upload() {
        let (silent, folder) =
            (Arc::new(SilentStore::default()), tempfile::tempdir().expect("temporary folder"));
        let store = JobStore::new(silent.clone(), "jobs/job".into());
        let there = Checkpoints::new(&store, &folder.path().join("there"), None);
        write(&there, "8/a-1", "eight");
        there.upload().await;

        let here = Checkpoints::new(&store, &folder.path().join("here"), None);
        write(&here, "7/a-1", "seven");
        silent.is_silent.store(true, Ordering::SeqCst);
        let uploading = here.clone();
        let uploading =
            AbortOnDropHandle::new(tokio::spawn(async move { uploading.upload().await }));
        while here.remote.as_ref().expect("no folder").stored().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        silent.is_silent.store(false, Ordering::SeqCst);
        let both = async {
            here.fetch(8, Some(Instant::now())).await;
            here.remove(&[7]).await;
        };
        tokio::time::timeout(Duration::from_secs(60), both).await.expect("no lock is held");
        assert_eq!(
            (content(&here, "8/a-1").as_deref(), content(&here, "7/a-1")),
            (Some("eight"), None)
        );
        assert!(!uploading.is_finished(), "the store has not answered the upload");
    }

    #[tokio::test]
    async fn upload_that_ends_after_the_removal_is_removed_as_well() {
        let store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
        let folder = tempfile::tempdir().expect("temporary folder");
        let here = Checkpoints::new(&store, folder.path(), None);
        let remote = here.remote.as_ref().expect("no folder");
        let file = File { mini_batch: 7, name: "a-1".into() };
        assert_eq!(remote.stored_of(&file), 0);
        assert!(remote.has_stored(&file, 3));
        here.remove(&[7]).await;
        assert!(
            !remote.has_stored(&file, 6),
            "the uploader removes the piece that it has just written"
        );
    }

    #[tokio::test]
    async fn one_listing_serves_all_mini_batches_that_were_received_before_it() {
        let store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().expect("temporary folder"));
        let there = Checkpoints::new(&store, second.path(), None);
        let received = Instant::now();
        there.fetch(7, Some(received)).await;

        let here = Checkpoints::new(&store, first.path(), None);
        write(&here, "8/a-1", "one");
        here.upload().await;
        there.fetch(8, Some(received)).await;
        assert_eq!(content(&there, "8/a-1"), None, "the store is not asked again");
        there.fetch(8, Some(Instant::now())).await;
        assert_eq!(content(&there, "8/a-1").as_deref(), Some("one"), "received after the look");
    }

    #[tokio::test]
    async fn nodes_share_the_folder_of_a_job() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::local(folder.path()).expect("folder exists");
        let checkpoints = Checkpoints::new(&store, Path::new("/nowhere"), None);
        assert!(!checkpoints.are_remote() && checkpoints.keep().is_none());
        write(&checkpoints, "7/a-1", "one");
        write(&checkpoints, "8/a-1", "other");
        checkpoints.remove(&[7]).await;
        assert_eq!(content(&checkpoints, "7/a-1"), None);
        assert!(content(&checkpoints, "8/a-1").is_some());
        store.delete_checkpoints().await.expect("writable");
        store.delete_checkpoints().await.expect("nothing to remove");
        assert!(!checkpoints.folder().exists());
    }
}
