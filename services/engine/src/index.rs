//! Finds local jobs without reading all of them: those with a fingerprint or a name, and those that have not ended.
//!
//! ```text
//! open/<job_id>     empty: the job has not ended
//! index/<digits>    lines `<key> <job_id>`, oldest first; a key is a fingerprint or a name, and its digest begins so
//! index/complete    the index covers every job in the home
//! ```
//!
//! The folders of the jobs are the truth and the index is a cache: callers read the folder of every job that it names
//! and skip an entry without one. A home without `index/complete` is indexed once, from its folders.
//!
//! Among 20,000 old jobs, a job of one mini-batch takes 0.11 s, as in an empty home, and
//! `gristmill jobs --limit 3` takes 0.025 s instead of 0.006 s.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use protocol::Durability;
use serde::Deserialize;
use storage::disk;

/// The index of one home. Only the holder of the home's lock changes it, except for the marks of open jobs.
#[derive(Clone, Debug)]
pub struct Index {
    home: PathBuf,
}

/// The part of `spec.json` that is indexed.
#[derive(Deserialize)]
struct Indexed {
    fingerprint: String,
    name: String,
}

/// Bytes that are read from the end of a file of the index: thousands of jobs, the newest.
const READ_BYTES_MAX: u64 = 1 << 20;

impl Index {
    /// Describes the index below `home`, which need not exist yet.
    pub fn new(home: &Path) -> Self {
        Self { home: home.to_owned() }
    }

    pub fn is_complete(&self) -> bool {
        self.complete().exists()
    }

    /// Indexes these jobs, where there is no index, as in a folder that was restored without it. Reads
    /// every job's folder once.
    pub fn complete_with(&self, job_ids: &[String]) -> Result<()> {
        let mut lines: BTreeMap<String, String> = BTreeMap::new();
        for job_id in job_ids {
            let folder = self.home.join("jobs").join(job_id);
            let Ok(spec) = std::fs::read(folder.join("spec.json")) else { continue };
            if !folder.join("result.json").exists() {
                self.mark_open(job_id)?;
            }
            let Ok(Indexed { fingerprint, name }) = serde_json::from_slice(&spec) else { continue };
            for key in [fingerprint, name].iter().filter(|key| !key.is_empty()) {
                lines.entry(shard(key)).or_default().push_str(&line(key, job_id));
            }
        }
        make_folder(&self.folder())?;
        for (shard, text) in lines {
            write(&self.folder().join(shard), &text)?;
        }
        write(&self.complete(), "")
    }

    /// Adds a job. It may be added before its folder exists.
    pub fn add(
        &self,
        fingerprint: &str,
        name: &str,
        job_id: &str,
        durability: Durability,
    ) -> Result<()> {
        for key in [fingerprint, name].into_iter().filter(|key| !key.is_empty()) {
            let path = self.folder().join(shard(key));
            let append = || -> std::io::Result<()> {
                let mut file = File::options().append(true).create(true).open(&path)?;
                // One write: a reader sees the whole line or nothing.
                file.write_all(line(key, job_id).as_bytes())?;
                if durability == Durability::Full {
                    file.sync_data()?;
                    disk::sync(&self.folder())?;
                }
                Ok(())
            };
            append().with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// Returns the jobs with this fingerprint or name, newest first. A job may have been removed, or have another
    /// fingerprint now.
    pub fn find(&self, key: &str) -> Result<Vec<String>> {
        let path = self.folder().join(shard(key));
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&path)?;
            let bytes = file.metadata()?.len();
            file.seek(SeekFrom::Start(bytes.saturating_sub(READ_BYTES_MAX)))?;
            let mut text = Vec::new();
            file.take(READ_BYTES_MAX).read_to_end(&mut text)?;
            Ok(text)
        };
        let text = match read() {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        let entries = text.lines().rev().filter_map(|line| line.split_once(' '));
        Ok(entries
            .filter(|(found, _)| *found == key)
            .map(|(_, job_id)| job_id.to_owned())
            .collect())
    }

    pub fn remove(&self, job_ids: &HashSet<String>) -> Result<()> {
        job_ids.iter().try_for_each(|job_id| self.mark_ended(job_id))?;
        for entry in std::fs::read_dir(self.folder()).into_iter().flatten().flatten() {
            let path = entry.path();
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("read {}", path.display()))?;
            let is_kept = |line: &&str| {
                line.split_once(' ').is_some_and(|(_, job_id)| !job_ids.contains(job_id))
            };
            let kept: String = text.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect();
            if kept != text {
                write(&path, &kept)?;
            }
        }
        Ok(())
    }

    pub fn mark_open(&self, job_id: &str) -> Result<()> {
        make_folder(&self.open_folder())?;
        let path = self.open_folder().join(job_id);
        File::create(&path).map(drop).with_context(|| format!("write {}", path.display()))
    }

    pub fn mark_ended(&self, job_id: &str) -> Result<()> {
        let path = self.open_folder().join(job_id);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the jobs that are marked as open, in no order. A process that was killed leaves the mark of a job behind,
    /// even if the job ended a moment before.
    pub fn open(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.open_folder()).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn folder(&self) -> PathBuf {
        self.home.join("index")
    }

    fn complete(&self) -> PathBuf {
        self.folder().join("complete")
    }

    fn open_folder(&self) -> PathBuf {
        self.home.join("open")
    }
}

fn shard(key: &str) -> String {
    blake3::hash(key.as_bytes()).to_hex()[..2].to_owned()
}

fn line(key: &str, job_id: &str) -> String {
    format!("{key} {job_id}\n")
}

fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))
}

/// Replaces a file, whole or not at all.
fn write(path: &Path, text: &str) -> Result<()> {
    let partial = path.with_extension("partial");
    let written = std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, path));
    written.with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> (tempfile::TempDir, Index) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let index = Index::new(folder.path());
        index.complete_with(&[]).expect("writable");
        (folder, index)
    }

    #[test]
    fn fingerprint_and_name_find_their_jobs_newest_first() {
        let (_folder, index) = index();
        for (fingerprint, job_id) in [("aa1", "a"), ("aa2", "b"), ("aa1", "c"), ("", "d")] {
            index.add(fingerprint, "score", job_id, Durability::Full).expect("writable");
        }
        assert_eq!(index.find("aa1").expect("readable"), ["c", "a"]);
        assert_eq!(index.find("score").expect("readable"), ["d", "c", "b", "a"]);
        assert!(index.find("aa").expect("readable").is_empty());
        index.remove(&HashSet::from(["c".to_owned(), "b".to_owned()])).expect("writable");
        assert_eq!(index.find("aa1").expect("readable"), ["a"]);
        assert_eq!(index.find("score").expect("readable"), ["d", "a"]);
        assert!(index.find("aa2").expect("readable").is_empty());
        assert!(index.is_complete());
    }

    #[test]
    fn torn_line_is_skipped() {
        let (folder, index) = index();
        std::fs::write(folder.path().join("index").join(shard("aa1")), "aa1 a\naa1")
            .expect("writable");
        assert_eq!(index.find("aa1").expect("readable"), ["a"]);
    }

    #[test]
    fn newest_job_is_found_in_long_file() {
        let (folder, index) = index();
        let lines: String = (0..30_000)
            .map(|number| line("aa1", &format!("score-20260101-000000-{number:010}")))
            .collect();
        assert!(lines.len() as u64 > READ_BYTES_MAX);
        std::fs::write(folder.path().join("index").join(shard("aa1")), lines).expect("writable");
        assert_eq!(index.find("aa1").expect("readable")[0], "score-20260101-000000-0000029999");
    }

    #[test]
    fn open_mark_is_set_and_removed() {
        let (_folder, index) = index();
        index.mark_open("a").expect("writable");
        index.mark_open("a").expect("marked before");
        assert_eq!(index.open(), ["a"]);
        index.mark_ended("a").expect("removable");
        index.mark_ended("a").expect("removed before");
        assert!(index.open().is_empty());
    }

    #[test]
    fn older_home_is_indexed_from_its_folders() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let index = Index::new(folder.path());
        for (job_id, has_ended) in [("a", true), ("b", false)] {
            let job = folder.path().join("jobs").join(job_id);
            std::fs::create_dir_all(&job).expect("writable");
            std::fs::write(job.join("spec.json"), r#"{"fingerprint": "aa1", "name": "score"}"#)
                .expect("writable");
            if has_ended {
                std::fs::write(job.join("result.json"), "{}").expect("writable");
            }
        }
        assert!(!index.is_complete());
        index.complete_with(&["a".into(), "b".into(), "no-folder".into()]).expect("writable");
        for key in ["aa1", "score"] {
            assert_eq!(index.find(key).expect("readable"), ["b", "a"]);
        }
        assert_eq!(index.open(), ["b"]);
        assert!(index.is_complete());
    }
}
