//! Which files a snapshot consists of. The only walk: digests and packing agree because both call it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ignore::gitignore::Gitignore;
use ignore::{DirEntry, WalkBuilder};

use super::{Limit, MARK, SnapshotFile, Source, file_name};
use crate::{Error, Result};

/// So many of the largest files are named when a source is too large.
const NAMED: usize = 3;

/// The files of a source, sorted by their names in the snapshot.
///
/// [`Error::TooLarge`] as soon as the source's limit is passed.
pub fn files(source: Source<'_>) -> Result<Vec<SnapshotFile>> {
    let (root, walk) = match source {
        Source::Data(file) if file.is_file() => return Ok(vec![(file_name(file)?.into(), file.to_owned())]),
        Source::Data(folder) => (folder, data_walk(folder)),
        Source::Scripts { folder, excluded, entry_script } => {
            (folder, script_walk(folder, excluded.clone(), entry_script.map(|script| folder.join(script))))
        }
    };
    let mut found = Found::default();
    for entry in walk {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_gone(&error) && root.exists() => continue,
            Err(error) => return Err(unreadable(root, &error)),
        };
        if !entry.file_type().is_some_and(|file_type| file_type.is_file()) {
            continue;
        }
        let name = entry.path().strip_prefix(root).expect("walked from there").to_owned();
        let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
        found.bytes += bytes;
        found.sizes.push(bytes);
        found.files.push((name, entry.into_path()));
        if found.bytes > source.limit().bytes || found.files.len() > source.limit().files {
            return Err(found.too_large(source));
        }
    }
    let mut files = found.files;
    if let Source::Scripts { folder, entry_script: Some(entry_script), .. } = source
        && !files.iter().any(|(name, _)| name == Path::new(entry_script))
    {
        // Excluded or not, the script itself counts.
        files.push((PathBuf::from(entry_script), folder.join(entry_script)));
    }
    files.sort();
    Ok(files)
}

#[derive(Default)]
struct Found {
    files: Vec<SnapshotFile>,
    /// Of each of `files`.
    sizes: Vec<u64>,
    bytes: u64,
}

impl Found {
    fn too_large(self, source: Source<'_>) -> Error {
        let Limit { bytes, files } = source.limit();
        let advice = match source {
            Source::Scripts { folder, .. } => format!(
                "name what the script does not import in a file .amlignore (same rules as .gitignore) in {}, or give \
                 the script a folder of its own",
                folder.display()
            ),
            Source::Data(_) => "put it into a store and name it by its URL".to_owned(),
        };
        let mut largest: Vec<_> = self.sizes.iter().zip(&self.files).collect();
        largest.sort_by(|left, right| right.0.cmp(left.0));
        let named =
            largest.iter().take(NAMED).map(|(bytes, (name, _))| format!("{} ({})", name.display(), size(**bytes)));
        Error::TooLarge {
            found: format!(
                "{} files of {} and more to come; the largest so far: {}",
                self.files.len(),
                size(self.bytes),
                named.collect::<Vec<_>>().join(", ")
            ),
            allowed: format!("{files} files of {}; {advice}", size(bytes)),
        }
    }
}

fn size(bytes: u64) -> String {
    const MEGABYTE: u64 = 1024 * 1024;
    if bytes >= MEGABYTE { format!("{} MB", bytes / MEGABYTE) } else { format!("{bytes} bytes") }
}

fn data_walk(root: &Path) -> ignore::Walk {
    WalkBuilder::new(root).standard_filters(false).follow_links(true).build()
}

fn script_walk(root: &Path, excluded: Gitignore, entry_script: Option<PathBuf>) -> ignore::Walk {
    let holds_script = move |folder: &Path| entry_script.as_ref().is_some_and(|script| script.starts_with(folder));
    let is_script = move |entry: &DirEntry| {
        let is_folder = entry.file_type().is_some_and(|file_type| file_type.is_dir());
        let is_tool = is_folder
            && (entry.file_name() == ".git"
                || entry.file_name() == "__pycache__"
                || entry.path().join("pyvenv.cfg").is_file()
                || entry.path().join(MARK).is_file() && !holds_script(entry.path()));
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
        error => error.io_error().is_some_and(|error| error.kind() == ErrorKind::NotFound),
    }
}

fn unreadable(root: &Path, error: &ignore::Error) -> Error {
    Error::Unavailable { object: root.display().to_string(), message: error.to_string() }
}
