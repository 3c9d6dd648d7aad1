//! The register of assets: outputs with a `name`, which later steps and jobs read as `azureml:NAME:VERSION`.
//!
//! Each version is a file `data/NAME/VERSION.json` or `models/NAME/VERSION.json` with `path`, `type` and `job_id`. A
//! version names a place and copies nothing.

use std::fs::Permissions;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::versioned::{NameTable, Versioned, version_order};
use crate::Fault;

/// An output of a step that a register keeps once the step has completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Name in the register.
    pub name: String,
    /// `None`: one more than the newest.
    pub version: Option<String>,
    /// An absolute path or a URL.
    pub path: String,
    /// `uri_file`, `uri_folder`, `mltable`, `mlflow_model`, ….
    pub kind: String,
}

/// One version of an asset.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    path: String,
    #[serde(rename = "type")]
    kind: String,
    /// The job that wrote it.
    #[serde(default)]
    job_id: String,
}

/// The folder of a register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Register(Option<PathBuf>);

impl Register {
    /// Describes the register in a folder, which need not exist.
    pub fn new(folder: PathBuf) -> Self {
        Self(Some(folder))
    }

    /// Returns the path or URL of a registered name. Fails if its file is damaged, since another version would be other
    /// data.
    pub fn find(
        &self,
        table: NameTable,
        wanted: Versioned<'_>,
    ) -> std::result::Result<Option<String>, Fault> {
        let Some(folder) = self.folder(table, wanted.name) else { return Ok(None) };
        let version = wanted
            .version
            .map(str::to_owned)
            .or_else(|| newest(&folder))
            .filter(|version| is_plain(version));
        let Some(version) = version else { return Ok(None) };
        match read(&folder, &version) {
            Ok(record) => Ok(Some(record.path)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let file = file_of(&folder, &version);
                Err(Fault::only(format!(
                    "{} cannot be read: {error}; remove it, or write it again",
                    file.display()
                )))
            }
        }
    }

    /// Adds an asset that a job has written, and returns its version. If the same job has registered the newest
    /// version, it returns that one.
    pub fn add(&self, asset: &Asset, job_id: &str) -> Result<String> {
        let table = NameTable::of_type(&asset.kind);
        let no_name = || {
            let message = format!(
                "{:?} cannot name an asset; use letters, digits, `-`, `_` and `.`, and do not begin with `.`",
                asset.name
            );
            Error::new(ErrorKind::InvalidInput, message)
        };
        let folder = self.folder(table, &asset.name).ok_or_else(no_name)?;
        let Asset { path, kind, .. } = asset.clone();
        let record = Record { path, kind, job_id: job_id.to_owned() };
        let newest = newest(&folder);
        if let (None, Some(newest)) = (&asset.version, &newest)
            && read(&folder, newest).is_ok_and(|earlier| earlier == record)
        {
            return Ok(newest.clone());
        }
        std::fs::create_dir_all(&folder)?;
        // Other processes may be reading it.
        let mode = Permissions::from_mode(0o644);
        let mut new = tempfile::Builder::new().permissions(mode).tempfile_in(&folder)?;
        serde_json::to_writer(&mut new, &record)?;
        if let Some(version) = &asset.version {
            new.persist(file_of(&folder, version))?;
            return Ok(version.clone());
        }
        let mut number = newest.and_then(|newest| newest.parse::<u64>().ok()).unwrap_or(0);
        loop {
            number = number.saturating_add(1);
            match new.persist_noclobber(file_of(&folder, &number.to_string())) {
                Ok(_) => return Ok(number.to_string()),
                // Another job has taken this version in the meantime.
                Err(taken)
                    if taken.error.kind() == ErrorKind::AlreadyExists && number < u64::MAX =>
                {
                    new = taken.file
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns every registered name.
    pub fn names(&self, table: NameTable) -> Vec<String> {
        let folder = self
            .0
            .as_ref()
            .filter(|_| table != NameTable::Components)
            .map(|folder| folder.join(table.word()));
        let entries = folder
            .and_then(|folder| std::fs::read_dir(folder).ok())
            .into_iter()
            .flatten()
            .flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn folder(&self, table: NameTable, name: &str) -> Option<PathBuf> {
        let folder =
            self.0.as_ref().filter(|_| is_plain(name) && table != NameTable::Components)?;
        Some(folder.join(table.word()).join(name))
    }
}

/// Returns whether a text can be the name or version of an asset, which become file names.
pub fn is_plain(text: &str) -> bool {
    let is_known = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    !text.is_empty() && !text.starts_with('.') && text.chars().all(is_known)
}

fn newest(folder: &Path) -> Option<String> {
    let names = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let versions = names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned));
    versions
        .filter(|version| is_plain(version))
        .max_by(|left, right| version_order(left).cmp(&version_order(right)))
}

fn file_of(folder: &Path, version: &str) -> PathBuf {
    folder.join(format!("{version}.json"))
}

fn read(folder: &Path, version: &str) -> Result<Record> {
    Ok(serde_json::from_slice(&std::fs::read(file_of(folder, version))?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_an_asset_are_kept_and_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let register = Register::new(folder.path().join("assets"));
        let found = |version| register.find(NameTable::Data, Versioned { name: "rows", version });
        let find = |version| found(version).expect("readable");
        let asset = |version: Option<&str>, path: &str| Asset {
            name: "rows".to_owned(),
            version: version.map(str::to_owned),
            path: path.to_owned(),
            kind: "uri_folder".to_owned(),
        };
        assert_eq!(find(None), None);
        for (version, path, job, expected) in [
            (None, "/a", "job-1", "1"),
            (None, "/a", "job-1", "1"),
            (None, "/a", "job-2", "2"),
            (Some("9"), "/b", "job-3", "9"),
            (None, "/c", "job-4", "10"),
            (Some("9"), "/d", "job-5", "9"),
        ] {
            assert_eq!(register.add(&asset(version, path), job).expect("writable"), expected);
        }
        assert_eq!(find(None).as_deref(), Some("/c"));
        assert_eq!(find(Some("9")).as_deref(), Some("/d"));
        assert_eq!(find(Some("../rows/9")), None);
        let text =
            std::fs::read_to_string(folder.path().join("assets/data/rows/10.json")).expect("there");
        assert_eq!(text, r#"{"path":"/c","type":"uri_folder","job_id":"job-4"}"#);
        // As another program writes it.
        std::fs::write(
            folder.path().join("assets/data/rows/11.json"),
            r#"{"path": "/e", "type": "x"}"#,
        )
        .expect("writable");
        assert_eq!(find(None).as_deref(), Some("/e"));
        std::fs::write(folder.path().join("assets/data/rows/11.json"), "{").expect("writable");
        let damaged = format!("{:?}", found(None).expect_err("damaged"));
        assert!(
            damaged.contains("data/rows/11.json cannot be read: EOF while parsing"),
            "{damaged}"
        );
        assert_eq!(find(Some("10")).as_deref(), Some("/c"));
        assert_eq!(register.names(NameTable::Data), ["rows"]);
        assert_eq!(register.names(NameTable::Models), Vec::<String>::new());
    }

    #[test]
    fn concurrent_registrations_get_distinct_versions() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let register = Register::new(folder.path().to_owned());
        let add = |job: usize| {
            let (name, path, kind) =
                ("rows".to_owned(), format!("/{job}"), "uri_folder".to_owned());
            let asset = Asset { name, version: None, path, kind };
            register
                .add(&asset, &format!("job-{job}"))
                .expect("writable")
                .parse::<usize>()
                .expect("a number")
        };
        let mut versions: Vec<usize> = std::thread::scope(|scope| {
            let jobs: Vec<_> = (0..16)
                .map(|job| {
                    scope.spawn({
                        let add = &add;
                        move || add(job)
                    })
                })
                .collect();
            jobs.into_iter().map(|job| job.join().expect("no panic")).collect()
        });
        versions.sort_unstable();
        assert_eq!(versions, (1..=16).collect::<Vec<_>>());
    }
}
