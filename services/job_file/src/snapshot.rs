//! The files that the script depends on: its code, compared by content, and data, compared by names, sizes and times.
//!
//! [`storage::snapshot`] lists the files beside the script. The job file, the outputs and the inputs are not part of
//! the script, wherever they are. Code is what Python can import. Data beside the script counts if code, arguments or
//! variables mention it: see [`Words`].

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use blake3::Hasher;
use ignore::WalkBuilder;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use protocol::{ItemPath, JobSpec, Snapshot};
use serde::{Deserialize, Serialize};
use storage::snapshot::{Listing, SnapshotFile};
use storage::{Error, Source, snapshot};

use crate::paths::{below, glob_folder};
use crate::words::Words;

/// Maximum number of files of reference data whose names, sizes and times are compared.
const SIDE_INPUT_FILES_MAX: usize = 100_000;
/// Maximum number of files of models, and of data beside the script, that are compared.
const STAMPS_MAX: usize = 10_000;

/// Size and time of a file, which tell its versions apart without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub bytes: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified: u64,
}

pub type Stamps = BTreeMap<String, Stamp>;

/// The files beside the script that belong to it.
#[derive(Debug, Default)]
pub struct AdjacentFiles {
    /// Digest of each file that Python can import.
    pub code: BTreeMap<String, String>,
    /// Data that code or other texts mention.
    pub data: Stamps,
    /// Whether files were left out, because there are too many.
    pub is_partial: bool,
}

/// Reads the files beside the script. `texts`: texts that may mention files, in addition to the code.
pub fn beside<'a>(
    spec: &JobSpec,
    job_file: &Path,
    texts: impl Iterator<Item = &'a str>,
) -> Result<AdjacentFiles, Error> {
    let Listing { files, is_partial } = list(spec, job_file)?;
    let (code, others): (Vec<_>, Vec<_>) = files.into_iter().partition(SnapshotFile::is_code);
    let mut words = (!others.is_empty()).then(Words::default);
    let code = code
        .iter()
        .map(|file| (shown(&file.name), digest_code(&file.path, words.as_mut())))
        .collect();
    let mut data = Stamps::new();
    if let Some(words) = &mut words {
        texts.for_each(|text| words.add(text.as_bytes()));
        let mentioned = others.iter().filter(|file| words.mention(&file.name)).take(STAMPS_MAX);
        data.extend(
            mentioned
                .filter_map(|file| Some((shown(&file.name), stamp(&file.path.metadata().ok()?)))),
        );
    }
    Ok(AdjacentFiles { code, data, is_partial })
}

/// Returns the digest of code: sorted relative paths and contents.
pub fn digest_of(code: &BTreeMap<String, String>) -> String {
    let mut hasher = Hasher::new();
    for (name, content) in code {
        add_text(&mut hasher, name.as_bytes());
        add_text(&mut hasher, content.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Packs the files of a job's script that travel into the file `archive`. Blocks. Returns a warning if it leaves out
/// files.
pub fn pack_script(
    spec: &JobSpec,
    archive: &Path,
) -> Result<(Snapshot, Option<Incomplete>), Error> {
    let Listing { files, is_partial } = list(spec, Path::new(&spec.job_file))?;
    let mut words = Words::default();
    for file in files.iter().filter(|file| file.is_code()) {
        digest_code(&file.path, Some(&mut words));
    }
    spec.argv
        .iter()
        .chain(spec.environment_variables.values())
        .for_each(|text| words.add(text.as_bytes()));
    let (files, left_out) = snapshot::fit(files, |file| words.mention(&file.name))?;
    let folder = spec.source_directory.display();
    let incomplete = match left_out {
        Some(files) => Some(Incomplete::LeftOut { folder, files }),
        None => is_partial.then_some(Incomplete::TooManyFiles { folder }),
    };
    Ok((snapshot::pack_files(&files, archive)?, incomplete))
}

/// A script folder that holds more than the engine reads or sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// Its files are too large to travel with a job.
    LeftOut {
        /// The folder.
        folder: String,
        /// The files that do not travel.
        files: String,
    },
    /// It has too many files.
    TooManyFiles {
        /// The folder.
        folder: String,
    },
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftOut { folder, files } => write!(
                f,
                "{folder} holds more than can travel with a job, so these files, which the script does not mention, \
                 stay behind: {files}; name files that the script needs in side_inputs, and the others in .amlignore"
            ),
            Self::TooManyFiles { folder } => write!(
                f,
                "{folder} holds more than {} files, so only those of its subfolders that are Python packages (with \
                 __init__.py) belong to the job; name data in .amlignore, or give the script a folder of its own",
                storage::Limit::SCRIPTS.files
            ),
        }
    }
}

fn list(spec: &JobSpec, job_file: &Path) -> Result<Listing, Error> {
    let excluded = excluded(spec, job_file);
    let folder = spec.source_directory.as_path();
    let entry_script = (!spec.has_built_in_script()).then_some(spec.entry_script.as_str());
    snapshot::files(Source::Scripts { folder, entry_script, excluded: &excluded })
}

/// Matches files below `source_directory` that are not part of the script: job file, outputs, inputs.
fn excluded(spec: &JobSpec, job_file: &Path) -> Gitignore {
    let root = spec.source_directory.as_path();
    let script = root.join(&spec.entry_script);
    let mut builder = GitignoreBuilder::new(root);
    let mut add = |path: &Path, is_glob: bool| {
        // A folder that contains the script cannot be left out.
        if let Some(relative) = below(root, path)
            && !script.starts_with(root.join(&relative))
            && let Some(text) = relative.to_str()
        {
            let pattern = if is_glob { text.to_owned() } else { escape(text) };
            // An invalid pattern excludes nothing: the snapshot becomes larger, never wrong.
            let _ = builder.add_line(None, &format!("/{pattern}"));
        }
    };
    add(job_file, false);
    let inputs = spec.inputs.iter().flat_map(|input| &input.paths);
    let paths = inputs.chain([&spec.output.folder]).chain(spec.outputs.values());
    for path in paths.filter(|path| !path.is_url() && !path.as_bytes().is_empty()) {
        add(path.as_path(), glob_folder(path.as_path()).is_some());
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

fn escape(literal: &str) -> String {
    let special = |character: char| r"*?[]{}!\# ".contains(character);
    literal
        .chars()
        .flat_map(|character| special(character).then_some('\\').into_iter().chain([character]))
        .collect()
}

/// Returns digests of reference data by name. A digest covers names, sizes and modification times of files, or the text
/// of a URL.
pub fn digest_side_inputs(side_inputs: &BTreeMap<String, ItemPath>) -> BTreeMap<String, String> {
    let digests = side_inputs.iter().map(|(name, path)| {
        let mut hasher = Hasher::new();
        add_text(&mut hasher, path.as_bytes());
        if !path.is_url() {
            for (path, Stamp { bytes, modified }) in walk(path.as_path()).take(SIDE_INPUT_FILES_MAX)
            {
                add_text(&mut hasher, path.as_os_str().as_encoded_bytes());
                hasher.update(&bytes.to_le_bytes());
                hasher.update(&modified.to_le_bytes());
            }
        }
        (name.clone(), hasher.finalize().to_hex().to_string())
    });
    digests.collect()
}

/// Returns the files below `folder`, by their paths in it.
pub fn stamps(folder: &Path) -> Stamps {
    let files = walk(folder).take(STAMPS_MAX);
    files.map(|(path, stamp)| (shown(path.strip_prefix(folder).unwrap_or(&path)), stamp)).collect()
}

fn walk(folder: &Path) -> impl Iterator<Item = (PathBuf, Stamp)> {
    let mut walk = WalkBuilder::new(folder);
    walk.standard_filters(false)
        .follow_links(true)
        .sort_by_file_name(|left, right| left.cmp(right));
    walk.build().filter_map(Result::ok).filter_map(|entry| {
        let metadata = entry.metadata().ok().filter(Metadata::is_file)?;
        let stamp = stamp(&metadata);
        Some((entry.into_path(), stamp))
    })
}

fn stamp(metadata: &Metadata) -> Stamp {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Stamp { bytes: metadata.len(), modified: modified.map_or(0, |time| time.as_nanos() as u64) }
}

/// Returns a name as text, with escaped bytes if it is not UTF-8.
fn shown(name: &Path) -> String {
    match name.to_str() {
        Some(name) => name.to_owned(),
        None => name.as_os_str().as_encoded_bytes().escape_ascii().to_string(),
    }
}

/// Returns the digest of a file that Python can import, or the error of an unreadable one, which Python cannot import
/// either. Adds the words of source code to `words`.
fn digest_code(path: &Path, words: Option<&mut Words>) -> String {
    let is_source = path.extension().is_some_and(|extension| extension == "py");
    let digest = match words {
        Some(words) if is_source => std::fs::read(path).map(|text| {
            words.add(&text);
            blake3::hash(&text)
        }),
        _ => digest_file(path),
    };
    digest.map_or_else(|error| error.kind().to_string(), |digest| digest.to_hex().to_string())
}

pub fn digest_file(path: &Path) -> std::io::Result<blake3::Hash> {
    let mut hasher = Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize())
}

/// Adds a text after its length, so that two different lists of texts never give the same bytes.
fn add_text(hasher: &mut Hasher, text: &[u8]) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text);
}
