//! What the script depends on: the snapshot, by content, and reference data, by names, sizes and times.
//!
//! Which files the snapshot consists of is [`storage::snapshot`]'s to say, except that the job file, the output and the
//! inputs are none of the script wherever they stand.

use std::fs::File;
use std::path::Path;
use std::time::UNIX_EPOCH;

use blake3::Hasher;
use ignore::WalkBuilder;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use protocol::{ItemPath, JobSpec, Snapshot};
use storage::{Error, Source, snapshot};

use super::paths::below;

/// Names, sizes and times of so many files of reference data are compared.
const SIDE_INPUT_FILES_MAX: usize = 100_000;

/// Digest of the snapshot of a job's script: sorted relative paths and contents.
pub fn digest_snapshot(spec: &JobSpec, job_file: &Path) -> Result<String, Error> {
    let mut hasher = Hasher::new();
    for (name, path) in snapshot::files(source(spec, &excluded(spec, job_file)))? {
        add_text(&mut hasher, name.as_os_str().as_encoded_bytes());
        let content = digest_file(&path).map_err(|error| Error::Unavailable {
            object: path.display().to_string(),
            message: format!("it cannot be read: {error}"),
        })?;
        hasher.update(content.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Packs the snapshot of a job's script into the file `archive`. Blocks.
pub fn pack_script(spec: &JobSpec, archive: &Path) -> Result<Snapshot, Error> {
    storage::pack(source(spec, &excluded(spec, Path::new(&spec.job_file))), archive)
}

fn source<'a>(spec: &'a JobSpec, excluded: &'a Gitignore) -> Source<'a> {
    Source::Scripts { folder: spec.source_directory.as_path(), entry_script: Some(&spec.entry_script), excluded }
}

/// Matches what is below `source_directory` and not part of the script: job file, output, inputs.
fn excluded(spec: &JobSpec, job_file: &Path) -> Gitignore {
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
