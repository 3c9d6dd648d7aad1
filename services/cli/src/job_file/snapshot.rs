//! Digests of what the script depends on: the snapshot by content, reference data by names, sizes and times.
//!
//! The snapshot is every file below `source_directory` that `.amlignore` or `.gitignore` there does not exclude, without
//! `.git`, `__pycache__`, virtual environments, logs (`*.log`, `nohup.out`), the job file, the output and the inputs: none of
//! them is the script.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use blake3::Hasher;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::{DirEntry, WalkBuilder};
use protocol::{ItemPath, JobSpec};

use super::paths::below;

/// Larger than any folder of scripts; a larger one holds data.
const SNAPSHOT_BYTES_MAX: u64 = 300 * 1024 * 1024;
/// As many files as can be read at every start without being noticed.
const SNAPSHOT_FILES_MAX: usize = 20_000;
/// Names, sizes and times of so many files of reference data are compared.
const SIDE_INPUT_FILES_MAX: usize = 100_000;

/// Why there is no digest.
#[derive(Debug)]
pub enum Error {
    /// The snapshot is larger than it may be.
    TooLarge {
        /// What was counted until the limit was passed.
        found: String,
        /// The limit.
        allowed: String,
    },
    /// A file cannot be read.
    Unreadable {
        /// The file and the reason.
        message: String,
    },
}

/// Digest of the snapshot: sorted relative paths and contents.
pub fn digest_snapshot(source_directory: &Path, entry_script: &str, excluded: &Gitignore) -> Result<String, Error> {
    let mut files: Vec<(PathBuf, PathBuf)> = Vec::new();
    let mut bytes = 0;
    for entry in snapshot_walk(source_directory, excluded.clone()) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(Error::Unreadable { message: error.to_string() }),
        };
        if !entry.file_type().is_some_and(|file_type| file_type.is_file()) {
            continue;
        }
        let relative = entry.path().strip_prefix(source_directory).expect("walked from there").to_owned();
        bytes += entry.metadata().map_or(0, |metadata| metadata.len());
        files.push((relative, entry.into_path()));
        if bytes > SNAPSHOT_BYTES_MAX || files.len() > SNAPSHOT_FILES_MAX {
            let megabytes = bytes / (1024 * 1024);
            return Err(Error::TooLarge {
                found: format!("{} files of {megabytes} MB and more to come", files.len()),
                allowed: format!(
                    "{SNAPSHOT_FILES_MAX} files of {} MB; name what the script does not import in a file .amlignore \
                     (same rules as .gitignore) in {}, or give the script a folder of its own",
                    SNAPSHOT_BYTES_MAX / (1024 * 1024),
                    source_directory.display()
                ),
            });
        }
    }
    // Excluded or not, the script itself counts.
    let entry_script = PathBuf::from(entry_script);
    if !files.iter().any(|(relative, _)| *relative == entry_script) {
        files.push((entry_script.clone(), source_directory.join(entry_script)));
    }
    files.sort();
    let mut hasher = Hasher::new();
    for (relative, path) in &files {
        add_text(&mut hasher, relative.as_os_str().as_encoded_bytes());
        let content = digest_file(path)
            .map_err(|error| Error::Unreadable { message: format!("{} cannot be read: {error}", path.display()) })?;
        hasher.update(content.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn snapshot_walk(root: &Path, excluded: Gitignore) -> ignore::Walk {
    let is_script = move |entry: &DirEntry| {
        let is_folder = entry.file_type().is_some_and(|file_type| file_type.is_dir());
        let is_tool = is_folder
            && (entry.file_name() == ".git"
                || entry.file_name() == "__pycache__"
                || entry.path().join("pyvenv.cfg").is_file());
        // What a shell was told to write beside the script: `gristmill run job.yaml > run.log`.
        let is_log = !is_folder && entry.path().extension().is_some_and(|extension| extension == "log");
        let is_log = is_log || entry.file_name() == "nohup.out";
        entry.depth() == 0 || !is_tool && !is_log && !excluded.matched(entry.path(), is_folder).is_ignore()
    };
    WalkBuilder::new(root)
        .hidden(false)
        .parents(false)
        .ignore(false)
        .git_global(false)
        .git_exclude(false)
        .git_ignore(true)
        .require_git(false)
        .add_custom_ignore_filename(".amlignore")
        .follow_links(true)
        .filter_entry(is_script)
        .build()
}

/// A dangling or circular link, or a file removed meanwhile.
fn is_gone(error: &ignore::Error) -> bool {
    match error {
        ignore::Error::Loop { .. } => true,
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithPath { err, .. } => is_gone(err),
        error => error.io_error().is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound),
    }
}

/// Matches what is below `source_directory` and not part of the script: job file, output, inputs.
pub fn excluded(spec: &JobSpec, job_file: &Path) -> Gitignore {
    let root = spec.source_directory.as_path();
    let script = root.join(&spec.entry_script);
    let mut builder = GitignoreBuilder::new(root);
    let mut add = |path: &Path, is_glob: bool| {
        // A folder that the script itself is in cannot be left out.
        if let Some(relative) = below(root, path)
            && !script.starts_with(root.join(&relative))
            && let Some(text) = relative.to_str()
        {
            let pattern = if is_glob { text.to_owned() } else { escape(text) };
            // A pattern that cannot be read excludes nothing: the snapshot is larger, never wrong.
            let _ = builder.add_line(None, &format!("/{pattern}"));
        }
    };
    add(job_file, false);
    for path in spec.inputs.iter().flat_map(|input| &input.paths).chain([&spec.output.folder]) {
        if !path.is_url() && !path.as_bytes().is_empty() {
            add(path.as_path(), super::paths::glob_folder(path.as_path()).is_some());
        }
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

fn escape(literal: &str) -> String {
    let special = |character: char| r"*?[]{}!\# ".contains(character);
    literal.chars().flat_map(|character| special(character).then_some('\\').into_iter().chain([character])).collect()
}

/// Digest of the names, sizes and modification times of reference data; of URLs, the text.
pub fn digest_side_inputs<'a>(side_inputs: impl Iterator<Item = (&'a String, &'a ItemPath)>) -> String {
    let mut hasher = Hasher::new();
    for (name, path) in side_inputs {
        add_text(&mut hasher, name.as_bytes());
        add_text(&mut hasher, path.as_bytes());
        if path.is_url() {
            continue;
        }
        let mut walk = WalkBuilder::new(path.as_path());
        walk.standard_filters(false).follow_links(true).sort_by_file_name(|left, right| left.cmp(right));
        for entry in walk.build().filter_map(Result::ok).take(SIDE_INPUT_FILES_MAX) {
            let Ok(metadata) = entry.metadata() else { continue };
            let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            if metadata.is_file() {
                add_text(&mut hasher, entry.path().as_os_str().as_encoded_bytes());
                hasher.update(&metadata.len().to_le_bytes());
                hasher.update(&modified.map_or(0, |time| time.as_nanos()).to_le_bytes());
            }
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// Digest of one file's content.
pub fn digest_file(path: &Path) -> std::io::Result<blake3::Hash> {
    let mut hasher = Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize())
}

/// With its length in front, so that two lists of texts never look alike.
fn add_text(hasher: &mut Hasher, text: &[u8]) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text);
}
