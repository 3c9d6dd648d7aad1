//! Lists the files of a snapshot.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ignore::gitignore::Gitignore;
use ignore::{DirEntry, WalkBuilder};

use super::{Limit, MARK, SnapshotFile, Source, file_name};
use crate::{Error, Result};

/// The largest number of files that the message names.
const NAMED: usize = 3;

/// The files of a source.
#[derive(Debug, Default)]
pub struct Listing {
    /// The files, sorted by their names in the snapshot.
    pub files: Vec<SnapshotFile>,
    /// Whether the folder contains too many files, so that the listing has only the files of the folder itself and of
    /// Python packages (folders with `__init__.py`).
    pub is_partial: bool,
}

/// Lists the files of a source.
///
/// Fails with [`Error::TooLarge`] as soon as [`Source::Data`] exceeds its limit. Scripts have no limit here, because
/// [`fit`](super::fit()) selects the files that travel.
pub fn files(source: Source<'_>) -> Result<Listing> {
    match source {
        Source::Data(file) if file.is_file() => {
            let bytes = file.metadata().map_or(0, |metadata| metadata.len());
            let file = SnapshotFile { name: file_name(file)?.into(), path: file.to_owned(), bytes };
            Ok(Listing { files: vec![file], is_partial: false })
        }
        Source::Data(folder) => {
            let (files, exceeds) = collect(data_walk(folder), folder, Limit::DATA)?;
            match exceeds {
                true => Err(too_large(
                    &files,
                    Limit::DATA,
                    "put it into a store, and give its URL in the job file",
                )),
                false => Ok(Listing { files, is_partial: false }),
            }
        }
        Source::Scripts { folder, excluded, entry_script } => {
            let limit = Limit { bytes: u64::MAX, ..Limit::SCRIPTS };
            let script = entry_script.map(|script| folder.join(script));
            let (mut files, is_partial) = collect(
                script_walk(folder, excluded.clone(), script.clone(), false),
                folder,
                limit,
            )?;
            if is_partial {
                let packages = script_walk(folder, excluded.clone(), script.clone(), true);
                (files, _) = collect(packages, folder, Limit { files: usize::MAX, ..limit })?;
            }
            if let (Some(name), Some(path)) = (entry_script, script)
                && !files.iter().any(|file| file.name == Path::new(name))
            {
                // The script travels even if a file of patterns excludes it.
                let bytes = path.metadata().map_or(0, |metadata| metadata.len());
                files.push(SnapshotFile { name: PathBuf::from(name), path, bytes });
                files.sort();
            }
            Ok(Listing { files, is_partial })
        }
    }
}

/// Returns the files, sorted, and whether they exceed the limit, so that the list is incomplete.
fn collect(walk: ignore::Walk, root: &Path, limit: Limit) -> Result<(Vec<SnapshotFile>, bool)> {
    let (mut files, mut bytes, mut exceeds) = (Vec::new(), 0, false);
    for entry in walk {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_nothing(&error) && root.exists() => continue,
            Err(error) => return Err(unreadable(root, error)),
        };
        if !entry.file_type().is_some_and(|file_type| file_type.is_file()) {
            continue;
        }
        let name = entry.path().strip_prefix(root).expect("walked from there").to_owned();
        let file = SnapshotFile {
            name,
            bytes: entry.metadata().map_or(0, |data| data.len()),
            path: entry.into_path(),
        };
        bytes += file.bytes;
        files.push(file);
        exceeds = bytes > limit.bytes || files.len() > limit.files;
        if exceeds {
            break;
        }
    }
    files.sort();
    Ok((files, exceeds))
}

/// Returns the error that names the largest files.
pub(super) fn too_large(files: &[SnapshotFile], limit: Limit, advice: &str) -> Error {
    let mut largest: Vec<&SnapshotFile> = files.iter().collect();
    largest.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    let named: Vec<String> = largest.into_iter().take(NAMED).map(SnapshotFile::shown).collect();
    let bytes = files.iter().map(|file| file.bytes).sum();
    Error::TooLarge {
        found: format!(
            "{} files of {}; the largest: {}",
            files.len(),
            size(bytes),
            named.join(", ")
        ),
        allowed: format!("{} files of {}; {advice}", limit.files, size(limit.bytes)),
    }
}

impl SnapshotFile {
    /// Returns its name and size, for people.
    pub fn shown(&self) -> String {
        format!("{} ({})", self.name.display(), size(self.bytes))
    }

    /// Returns whether Python can import it.
    pub fn is_code(&self) -> bool {
        self.name.extension().is_some_and(|extension| {
            ["py", "pyc", "so", "pyd"].iter().any(|code| extension == *code)
        })
    }
}

fn size(bytes: u64) -> String {
    const MEGABYTE: u64 = 1024 * 1024;
    if bytes >= MEGABYTE { format!("{} MB", bytes / MEGABYTE) } else { format!("{bytes} bytes") }
}

fn data_walk(root: &Path) -> ignore::Walk {
    WalkBuilder::new(root).standard_filters(false).follow_links(true).build()
}

/// The folders that editors, tools and version control create beside code.
const TOOL_FOLDERS: &[&str] = &[
    ".git",
    ".hg",
    ".svn",
    ".vscode",
    ".idea",
    ".ipynb_checkpoints",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".tox",
    ".nox",
];
/// The files of systems, editors and shells (`gristmill run job.yaml > run.log`).
const TOOL_FILES: &[&str] = &[".DS_Store", "Thumbs.db", "desktop.ini", "nohup.out", "4913"];
const TOOL_SUFFIXES: &[&str] = &[".log", "~", ".swp", ".swo", ".swx"];

fn is_of_a_tool(name: &OsStr, is_folder: bool) -> bool {
    let name = name.to_string_lossy();
    match is_folder {
        true => TOOL_FOLDERS.contains(&&*name),
        false => {
            TOOL_FILES.contains(&&*name)
                || TOOL_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
                // Emacs: a lock and an autosave. LibreOffice and macOS: a lock and attributes of a file.
                || [".#", "#", ".~lock.", "._"].iter().any(|prefix| name.starts_with(prefix))
        }
    }
}

fn script_walk(
    root: &Path,
    excluded: Gitignore,
    entry_script: Option<PathBuf>,
    packages_only: bool,
) -> ignore::Walk {
    let real_root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    // A link to a folder around the root would list all files twice.
    let leads_back =
        move |folder: &Path| folder.canonicalize().is_ok_and(|real| real_root.starts_with(real));
    let holds_script =
        move |folder: &Path| entry_script.as_ref().is_some_and(|script| script.starts_with(folder));
    let is_script = move |entry: &DirEntry| {
        let (path, is_folder) =
            (entry.path(), entry.file_type().is_some_and(|file_type| file_type.is_dir()));
        let is_environment =
            || path.join("pyvenv.cfg").is_file() || path.join("conda-meta").is_dir();
        let is_kept_apart =
            || path.join(MARK).is_file() || packages_only && !path.join("__init__.py").is_file();
        let is_left_out = is_of_a_tool(entry.file_name(), is_folder)
            || is_folder && (is_environment() || is_kept_apart() && !holds_script(path))
            || is_folder && entry.path_is_symlink() && leads_back(path)
            || excluded.matched(path, is_folder).is_ignore();
        entry.depth() == 0 || !is_left_out
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

/// Returns whether an error means that there is no file to pack: a dangling or circular link, a file that was removed
/// meanwhile, or a folder that this user, and so the script, cannot read.
fn is_nothing(error: &ignore::Error) -> bool {
    match error {
        ignore::Error::Loop { .. } => true,
        ignore::Error::WithPath { path, err } => path.is_symlink() || is_nothing(err),
        ignore::Error::WithDepth { err, .. } => is_nothing(err),
        error => {
            let kind = error.io_error().map(std::io::Error::kind);
            matches!(kind, Some(ErrorKind::NotFound | ErrorKind::PermissionDenied))
        }
    }
}

fn unreadable(root: &Path, error: ignore::Error) -> Error {
    Error::unavailable(&root.display().to_string(), error)
}
