//! Reports of a job in a remote store: written to a temporary folder and periodically copied to the store in the
//! background.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use storage::JobStore;
use tempfile::TempDir;
use tokio::task::{JoinHandle, JoinSet};

/// Larger files are copied once, at the end, because each copy transfers a growing file from its beginning.
const COPIED_OFTEN_BYTES_MAX: u64 = 8 << 20;
/// The report that a reducer continues where the previous one ended.
const CONTINUED_REPORT: &str = "sys/master_role.txt";

/// Files sent to the store with a hash of their content; `None` for large files and failed copies.
type Sent = HashMap<PathBuf, Option<u64>>;

/// A file with a hash of its content; `None` for large files.
type FoundFile = (PathBuf, Option<u64>);

/// Which changed files to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// Files small enough to be copied often.
    Small,
    /// Files sent before.
    SentBefore,
    All,
}

#[derive(Debug)]
pub(super) struct Upload {
    folder: TempDir,
    store: JobStore,
    copying: Copying,
}

#[derive(Debug)]
enum Copying {
    UnderWay(JoinHandle<Sent>),
    Done(Sent),
}

impl Upload {
    pub async fn new(store: JobStore) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("gristmill-reports-").tempdir()?;
        if let Ok(bytes) = store.log(CONTINUED_REPORT).await {
            let path = folder.path().join(CONTINUED_REPORT);
            fs::create_dir_all(path.parent().expect("in a folder"))?;
            fs::write(path, bytes)?;
        }
        Ok(Self { folder, store, copying: Copying::Done(Sent::new()) })
    }

    /// Returns the folder that is copied to `logs/`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts to copy changed files, unless the last copy is still running.
    pub async fn copy(&mut self) {
        if !matches!(&self.copying, Copying::UnderWay(copying) if !copying.is_finished()) {
            self.begin(Which::Small).await;
        }
    }

    /// Copies all changed files and waits. The caller writes no more reports.
    pub async fn finish(&mut self) {
        self.copy_and_wait(Which::All).await;
    }

    /// Whether the store may hold a file of this reducer.
    pub async fn has_sent(&mut self) -> bool {
        !self.sent().await.is_empty()
    }

    /// Copies the files again that were sent before, and waits.
    pub async fn send_again(&mut self) {
        self.copy_and_wait(Which::SentBefore).await;
    }

    async fn copy_and_wait(&mut self, which: Which) {
        self.begin(which).await;
        self.sent().await;
    }

    async fn begin(&mut self, which: Which) {
        let sent = std::mem::take(self.sent().await);
        self.copying = Copying::UnderWay(tokio::spawn(copy(
            self.folder.path().to_owned(),
            self.store.clone(),
            sent,
            which,
        )));
    }

    /// Returns the sent files once no copy is running.
    async fn sent(&mut self) -> &mut Sent {
        if let Copying::UnderWay(copying) = &mut self.copying {
            self.copying = Copying::Done(copying.await.unwrap_or_default());
        }
        match &mut self.copying {
            Copying::Done(sent) => sent,
            Copying::UnderWay(_) => unreachable!("it was waited for"),
        }
    }
}

async fn copy(folder: PathBuf, store: JobStore, mut sent: Sent, which: Which) -> Sent {
    let root = folder.clone();
    let files = tokio::task::spawn_blocking(move || {
        let mut files = Vec::new();
        collect(&root, &mut files).map(|()| files)
    });
    let files = match files.await.expect("listing does not panic") {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(file.path = %folder.display(), error = %format!("{error:#}"), "cannot read reports; the job continues without them");
            return sent;
        }
    };
    let mut puts = JoinSet::new();
    for (file, hash) in files {
        let is_selected = match which {
            Which::Small => hash.is_some(),
            Which::SentBefore => sent.contains_key(&file),
            Which::All => true,
        };
        if !is_selected || hash.is_some() && sent.get(&file) == Some(&hash) {
            continue;
        }
        let (store, folder) = (store.clone(), folder.clone());
        puts.spawn(async move {
            let relative =
                file.strip_prefix(&folder).expect("found below it").to_string_lossy().into_owned();
            let put = match hash {
                Some(_) => store.put_log_file(&relative, &file).await,
                None => store.move_log_file(&relative, &file).await,
            };
            (put, file, hash)
        });
    }
    while let Some(put) = puts.join_next().await {
        match put.expect("copying does not panic") {
            (Ok(()), file, hash) => drop(sent.insert(file, hash)),
            (Err(error), file, _) => {
                sent.insert(file, None);
                tracing::warn!(error = %format!("{error:#}"), "cannot copy a report to the store, trying again later");
            }
        }
    }
    sent
}

/// Collects all files below a folder except empty ones.
fn collect(folder: &Path, files: &mut Vec<FoundFile>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
            continue;
        }
        let bytes = entry.metadata()?.len();
        if bytes > COPIED_OFTEN_BYTES_MAX {
            files.push((entry.path(), None));
        } else if bytes > 0 {
            let mut file = fs::File::open(entry.path())?;
            let mut hasher = DefaultHasher::new();
            let mut piece = vec![0; 64 << 10];
            loop {
                match file.read(&mut piece)? {
                    0 => break,
                    length => hasher.write(&piece[..length]),
                }
            }
            files.push((entry.path(), Some(hasher.finish())));
        }
    }
    Ok(())
}
