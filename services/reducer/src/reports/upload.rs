//! Reports of a job whose folder is elsewhere: written to a temporary folder, and copied to the job's store from time to
//! time, in the background.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use storage::JobStore;
use tempfile::TempDir;
use tokio::task::{JoinHandle, JoinSet};

/// Larger files get there once, at the end: they grow all the time, and copying begins at their beginning.
const COPIED_OFTEN_BYTES_MAX: u64 = 8 << 20;
/// Goes on where a former reducer ended.
const CONTINUED: &str = "sys/master_role.txt";

/// What the store has: a hash of every file that is copied often.
type Sent = HashMap<PathBuf, u64>;

/// A file, and a hash of what it holds; `None`: it is larger than what is copied often.
type Found = (PathBuf, Option<u64>);

#[derive(Debug)]
pub(super) struct Upload {
    folder: TempDir,
    store: JobStore,
    copying: JoinHandle<Sent>,
}

impl Upload {
    pub async fn new(store: JobStore) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("gristmill-reports-").tempdir()?;
        if let Ok(bytes) = store.log(CONTINUED).await {
            let path = folder.path().join(CONTINUED);
            fs::create_dir_all(path.parent().expect("in a folder"))?;
            fs::write(path, bytes)?;
        }
        Ok(Self { folder, store, copying: tokio::spawn(async { Sent::new() }) })
    }

    /// The folder that is copied to `logs/`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Begins to copy what has changed, unless the last time has not ended yet.
    pub async fn copy(&mut self) {
        if self.copying.is_finished() {
            self.begin(false).await;
        }
    }

    /// Copies everything that has changed, and waits for it. Nothing is written any more.
    pub async fn finish(&mut self) {
        self.begin(true).await;
        let sent = (&mut self.copying).await.unwrap_or_default();
        self.copying = tokio::spawn(async { sent });
    }

    async fn begin(&mut self, is_last: bool) {
        let sent = (&mut self.copying).await.unwrap_or_default();
        self.copying = tokio::spawn(copy(self.folder.path().to_owned(), self.store.clone(), sent, is_last));
    }
}

async fn copy(folder: PathBuf, store: JobStore, mut sent: Sent, is_last: bool) -> Sent {
    let root = folder.clone();
    let files = tokio::task::spawn_blocking(move || {
        let mut files = Vec::new();
        collect(&root, &mut files).map(|()| files)
    });
    let files = match files.await.expect("listing does not panic") {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(file.path = %folder.display(), %error, "reports cannot be read, the job goes on without them");
            return sent;
        }
    };
    let mut puts = JoinSet::new();
    for (file, hash) in files {
        let is_due = match hash {
            Some(hash) => sent.get(&file) != Some(&hash),
            None => is_last,
        };
        if !is_due {
            continue;
        }
        let (store, folder) = (store.clone(), folder.clone());
        puts.spawn(async move {
            let relative = file.strip_prefix(&folder).expect("found below it").to_string_lossy().into_owned();
            let put = match hash {
                Some(_) => store.put_log_file(&relative, &file).await,
                None => store.move_log_file(&relative, &file).await,
            };
            (put, file, hash)
        });
    }
    while let Some(put) = puts.join_next().await {
        match put.expect("copying does not panic") {
            (Ok(()), file, hash) => sent.extend(hash.map(|hash| (file, hash))),
            (Err(error), ..) => tracing::warn!(%error, "a report cannot be copied to the store, trying again later"),
        }
    }
    sent
}

/// Every file below a folder, but for empty ones.
fn collect(folder: &Path, files: &mut Vec<Found>) -> io::Result<()> {
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
