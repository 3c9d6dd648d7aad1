//! Job files in a new folder with a script and data beside them: their values, and the messages about mistakes.

mod accepted;
mod argument_rules;
mod azure;
mod azure_environments;
mod azure_nested;
mod azure_refused;
mod azure_steps;
mod destinations;
mod fingerprints;
mod mltable;
mod refused;
mod requires;
mod result_schema;
mod table;
mod whole_files;

use std::path::{Path, PathBuf};

use protocol::JobSpec;
use tempfile::TempDir;

use crate::{AzureNames, Context, DocumentOverrides, ModelFolders, Parsed, Problem, load};

/// A folder like a user's, with script, data and reference data. `job.yaml` is never written.
struct Workplace {
    folder: TempDir,
}

/// A valid job, one key a line, so that tests can replace keys.
const BASE: &str = "\
name: job
entry_script: entry.py
source_directory: code
inputs: [{name: data, type: file, path: data}]
output: output
output_action: append_row
";

impl Workplace {
    fn new() -> Self {
        let workplace = Self { folder: TempDir::new().expect("a temporary folder") };
        workplace.write("code/entry.py", "def run(files): return files\n");
        workplace.write("code/models/score.py", "def run(files): return files\n");
        workplace.write("data/a.txt", "a");
        workplace.write("tables/t.csv", "id\n1\n");
        workplace.write("labels.txt", "zero\n");
        workplace.write("requirements.txt", "pandas\n");
        workplace
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("has a folder"))
            .expect("the folder can be made");
        std::fs::write(path, text).expect("the file can be written");
    }

    fn context(&self) -> Context {
        Context {
            working_directory: self.folder.path().to_owned(),
            home_directory: Some(self.path("home")),
            interpreter: PathBuf::from("/usr/bin/default-python"),
            search_path: vec![self.path("nowhere"), self.path("bin")],
            compute_target: None,
            models: ModelFolders { registry: self.path("home/models"), directory: None },
            azure: AzureNames::default(),
            files: self.path("home/document-files"),
        }
    }

    fn load(&self, text: &str, overrides: &[(&str, &str)]) -> Result<Parsed, Vec<Problem>> {
        let overrides: Vec<(String, String)> =
            overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let overrides = DocumentOverrides { overrides, ..DocumentOverrides::default() };
        load(Path::new("job.yaml"), text, &overrides, &self.context())
    }

    /// The specification of [`BASE`] with the keys of `changes` in place of its own.
    fn spec(&self, changes: &str) -> JobSpec {
        self.parsed(changes).spec
    }

    fn parsed(&self, changes: &str) -> Parsed {
        match self.load(&base_with(changes), &[]) {
            Ok(parsed) => parsed,
            Err(problems) => panic!("{changes}\n{}", lines(&problems)),
        }
    }

    /// The warnings about [`BASE`] with the keys of `changes` in place of its own.
    fn warnings(&self, changes: &str) -> Vec<String> {
        self.parsed(changes).warnings.iter().map(ToString::to_string).collect()
    }

    /// The problems of [`BASE`] with the keys of `changes` in place of its own, one a line.
    fn problems(&self, changes: &str) -> String {
        self.load(&base_with(changes), &[])
            .map_or_else(|problems| lines(&problems), |_| String::new())
    }

    /// The problems of [`BASE`] with these values of `--set`, one a line.
    fn override_problems(&self, overrides: &[(&str, &str)]) -> String {
        self.load(BASE, overrides).map_or_else(|problems| lines(&problems), |_| String::new())
    }
}

/// Keys of `changes` replace those of [`BASE`]; `key: null` takes one away. `TABLE` and `FILE` stand for the type and
/// the path of an input.
fn base_with(changes: &str) -> String {
    let changes = changes
        .replace("TABLE", "type: tabular, path: tables")
        .replace("FILE", "type: file, path: data");
    let key = |line: &str| line.split_once(':').map_or(String::new(), |(key, _)| key.to_owned());
    let changed: Vec<String> =
        changes.lines().filter(|line| !line.starts_with([' ', '-'])).map(key).collect();
    let kept: String = BASE
        .lines()
        .filter(|line| !changed.contains(&key(line)))
        .map(|line| format!("{line}\n"))
        .collect();
    format!("{kept}{changes}\n")
}

/// Returns the value, which must have been read without mistakes.
fn sound<T>(read: Result<T, Vec<Problem>>) -> T {
    read.unwrap_or_else(|problems| panic!("{}", lines(&problems)))
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}
