//! The files of one input, in the order in which they are planned.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use protocol::{FileVersion, Input, InputKind, ItemPath};
use rustix::fs::Stat;
use storage::LeftOut;
use url::Url;

use crate::error::{Error, Result};
use crate::glob::{Glob, is_glob, split_base, unescape};
use crate::remote::{Object, Objects, Remote, parse_url, readable_below};
use crate::walk::{Hidden, Outputs, Unreadable, Walk};

/// The way to include hidden names.
const NAME_HIDDEN: &str = "a pattern with the same beginning includes them, such as _*";

/// One file of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) path: ItemPath,
    /// Size in bytes; `None` if unknown, as for a broken link.
    pub(crate) size: Option<u64>,
    /// The listed version; `None` if unknown.
    pub(crate) version: Option<FileVersion>,
    /// Distinguishes a changed file from an unchanged one.
    stamp: Stamp,
    /// Files of different groups never share a mini-batch: a folder of a listed folder is a group, and so are all files
    /// and globs between two listed folders.
    pub(crate) group: u64,
}

/// Totals of the files listed so far, over all inputs.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) left_out: LeftOut,
    digest: blake3::Hasher,
}

/// Distinguishes a changed file from an unchanged one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stamp {
    Modified(i64, i64),
    Object(String),
    Unknown,
}

impl Tally {
    pub(crate) fn begin_input(&mut self, input: &Input) {
        self.digest.update(b"input");
        self.update(input.name.as_bytes());
    }

    pub(crate) fn add(&mut self, listed: &Listed) {
        self.files += 1;
        self.update(listed.path.as_bytes());
        self.digest.update(&listed.size.unwrap_or(u64::MAX).to_le_bytes());
        match &listed.stamp {
            Stamp::Modified(seconds, nanoseconds) => {
                self.digest.update(&seconds.to_le_bytes());
                self.digest.update(&nanoseconds.to_le_bytes());
            }
            Stamp::Object(stamp) => self.update(stamp.as_bytes()),
            Stamp::Unknown => {}
        }
    }

    /// Includes the length, so that neighbouring values stay distinct.
    fn update(&mut self, bytes: &[u8]) {
        self.digest.update(&(bytes.len() as u64).to_le_bytes());
        self.digest.update(bytes);
    }

    pub(crate) fn digest(&self) -> String {
        self.digest.finalize().to_hex().to_string()
    }
}

/// The files of one input. Ends after the first error.
pub(crate) struct Listing {
    input: String,
    paths: Vec<ItemPath>,
    /// Number of paths begun.
    paths_begun: usize,
    source: Source,
    /// The pattern of the source, if it has one, and the number of files before it.
    pattern: Option<(ItemPath, u64)>,
    remote: Arc<Remote>,
    hidden: Hidden,
    outputs: Outputs,
    /// Names that were left out among objects, and by walks that have ended.
    left_out: LeftOut,
    group: u64,
    after_folder: bool,
    files: u64,
    ended: bool,
}

/// The source of the next files.
enum Source {
    Nothing,
    Local(Walk),
    /// The objects below `base`, or those of them that match the glob.
    Remote {
        objects: Objects,
        base: Url,
        glob: Option<Glob>,
        /// The folder of the last object.
        parent: String,
    },
}

impl Listing {
    pub(crate) fn new(input: &Input, remote: Arc<Remote>, outputs: Outputs) -> Self {
        #[cfg(test)]
        remote.listings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self {
            input: input.name.clone(),
            paths: input.paths.clone(),
            paths_begun: 0,
            source: Source::Nothing,
            pattern: None,
            remote,
            hidden: match input.kind {
                InputKind::File => Hidden::Dots,
                InputKind::Tabular => Hidden::DotsAndUnderscores,
            },
            outputs,
            left_out: LeftOut::default(),
            group: 0,
            after_folder: false,
            files: 0,
            ended: false,
        }
    }

    /// Returns the names that were left out, once the listing has ended.
    pub(crate) fn left_out(&self) -> LeftOut {
        self.left_out.clone()
    }

    fn try_next(&mut self) -> Result<Option<Listed>> {
        loop {
            let listed = match &mut self.source {
                Source::Nothing => None,
                Source::Local(walk) => match walk.next() {
                    None => None,
                    Some(Err(unreadable)) => {
                        return Err(unreadable_folder(&self.input, unreadable));
                    }
                    Some(Ok(found)) => {
                        self.group += u64::from(self.pattern.is_none() && found.first_of_folder);
                        Some(self.local(found.path, found.stat))
                    }
                },
                Source::Remote { objects, base, glob, parent } => match objects.next() {
                    None => None,
                    Some(Err(error)) => {
                        return Err(Error::bad_input(&self.input, "its objects cannot be listed")
                            .because(error));
                    }
                    Some(Ok(object)) => {
                        let glob = glob.as_ref();
                        let hidden = || hidden_below(base, &object, self.hidden);
                        let is_listed = match glob {
                            None => hidden().is_none(),
                            Some(glob) => object_matches(glob, base, &object, Some(self.hidden)),
                        };
                        if !is_listed {
                            if let Some(reason) = hidden()
                                && glob.is_none_or(|glob| object_matches(glob, base, &object, None))
                            {
                                self.left_out.add(|| format!("{} ({reason})", object.url));
                            }
                            continue;
                        }
                        let path = object.url.path();
                        let folder = path.rfind('/').map_or("", |slash| &path[..slash]);
                        if glob.is_none() && folder != parent {
                            self.group += 1;
                            folder.clone_into(parent);
                        }
                        Some(self.object(&object))
                    }
                },
            };
            if listed.is_some() {
                return Ok(listed);
            }
            if let Some((pattern, files_before)) = self.pattern.take()
                && self.files == files_before
            {
                return Err(self.no_match(&pattern));
            }
            if let Source::Local(walk) = &self.source {
                self.left_out.merge(walk.left_out().clone());
            }
            self.source = Source::Nothing;
            let Some(path) = self.paths.get(self.paths_begun).cloned() else { break };
            self.paths_begun += 1;
            if let Some(listed) = self.open(path)? {
                return Ok(Some(listed));
            }
        }
        if self.files == 0 {
            return Err(self.no_files());
        }
        Ok(None)
    }

    /// Begins the next path. Returns a single file immediately.
    fn open(&mut self, path: ItemPath) -> Result<Option<Listed>> {
        if path.is_url() {
            let Some(url) = parse_url(path.as_bytes()) else {
                return Err(
                    self.bad_path(&path, "is not a URL; correct it, or write an absolute path")
                );
            };
            return match url.to_file_path() {
                Ok(local) if url.scheme() == "file" => self.open_local(ItemPath::from(local)),
                _ => self.open_remote(path, &url),
            };
        }
        self.open_local(path)
    }

    fn open_local(&mut self, path: ItemPath) -> Result<Option<Listed>> {
        match fs::metadata(path.as_path()) {
            Ok(metadata) if metadata.is_dir() => {
                self.begin(true);
                self.source = Source::Local(Walk::folder(
                    path.as_path().to_owned(),
                    self.hidden,
                    self.outputs.clone(),
                ));
                Ok(None)
            }
            Ok(metadata) if metadata.is_file() => {
                self.begin(false);
                Ok(Some(
                    self.local(path.as_path().to_owned(), rustix::fs::stat(path.as_path()).ok()),
                ))
            }
            Ok(_) => Err(self.bad_path(&path, "is neither a file nor a folder; name one of these")),
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_glob(path.as_bytes()) => {
                let (base, pattern) = split_base(path.as_bytes());
                let glob = Glob::parse(pattern).map_err(|error| {
                    self.bad_path(&path, "is not a valid pattern").because(error)
                })?;
                let base = ItemPath::from(unescape(base));
                if !base.as_path().is_dir() {
                    return Err(self.bad_path(
                        &path,
                        format_args!("matches no file: there is no {}", base.display()),
                    ));
                }
                self.begin(false);
                let walk =
                    Walk::glob(base.as_path().to_owned(), glob, self.hidden, self.outputs.clone());
                self.source = Source::Local(walk);
                self.pattern = Some((path, self.files));
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(self.bad_path(&path, "does not exist; correct the path, or put the data there"))
            }
            Err(error) => Err(self.bad_path(&path, cannot_read(&error)).because(error)),
        }
    }

    fn open_remote(&mut self, path: ItemPath, url: &Url) -> Result<Option<Listed>> {
        let text = url.as_str();
        let pattern_start = (!url.scheme().starts_with("http"))
            .then(|| path.as_bytes().iter().position(is_url_pattern));
        if let Some(Some(start)) = pattern_start {
            let slash = path.as_bytes()[..start]
                .iter()
                .rposition(|&byte| byte == b'/')
                .map_or(0, |slash| slash + 1);
            let (base, pattern) = path.as_bytes().split_at(slash);
            let glob = Glob::parse(pattern)
                .map_err(|error| self.bad_path(&path, "is not a valid pattern").because(error))?;
            let Some(base) = parse_url(base) else {
                return Err(self
                    .bad_path(&path, "has a pattern in the name of its bucket; name one bucket"));
            };
            return self.open_objects(path, base, Some(glob));
        }
        if url.path().ends_with('/') || url.path().is_empty() {
            let mut base = url.clone();
            if base.path().is_empty() {
                base.set_path("/");
            }
            return self.open_objects(path, base, None);
        }
        match self.remote.head(url) {
            Ok(Some(object)) => {
                self.begin(false);
                Ok(Some(self.object(&object)))
            }
            Ok(None) => {
                Err(self
                    .bad_path(&path, format_args!("does not exist; write {text}/ for a folder")))
            }
            Err(error) => Err(self.bad_path(&path, "cannot be read").because(error)),
        }
    }

    fn open_objects(
        &mut self,
        path: ItemPath,
        base: Url,
        glob: Option<Glob>,
    ) -> Result<Option<Listed>> {
        self.begin(glob.is_none());
        let objects = self
            .remote
            .list(&base)
            .map_err(|error| self.bad_path(&path, "cannot be listed").because(error))?;
        self.pattern = glob.is_some().then_some((path, self.files));
        self.source = Source::Remote { objects, base, glob, parent: String::new() };
        Ok(None)
    }

    /// Begins a group, so that files before and after a folder stay separate.
    fn begin(&mut self, folder: bool) {
        self.group += u64::from(folder || self.after_folder);
        self.after_folder = folder;
    }

    fn local(&mut self, path: PathBuf, stat: Option<Stat>) -> Listed {
        let known =
            stat.map(|stat| (stat.st_size as u64, stat.st_mtime, stat.st_mtime_nsec as i64));
        let size = known.map(|(bytes, ..)| bytes);
        let version = known.map(|(bytes, seconds, nanoseconds)| {
            FileVersion::modified(bytes, seconds, nanoseconds)
        });
        let stamp = known.map_or(Stamp::Unknown, |(_, seconds, nanoseconds)| {
            Stamp::Modified(seconds, nanoseconds)
        });
        self.listed(path.into(), size, version, stamp)
    }

    fn object(&mut self, object: &Object) -> Listed {
        let version = FileVersion { bytes: object.size, etag: object.etag.clone(), modified: None };
        let path = ItemPath::from(object.url.as_str());
        self.listed(path, Some(object.size), Some(version), Stamp::Object(object.stamp.clone()))
    }

    fn listed(
        &mut self,
        path: ItemPath,
        size: Option<u64>,
        version: Option<FileVersion>,
        stamp: Stamp,
    ) -> Listed {
        self.files += 1;
        Listed { path, size, version, stamp, group: self.group }
    }

    fn no_match(&self, pattern: &ItemPath) -> Error {
        let (kind, folders, left_out) = match &self.source {
            Source::Local(walk) => ("file", walk.folders_matched(), walk.left_out().line()),
            _ => ("object", 0, self.left_out.line()),
        };
        let hint = match (folders, left_out) {
            (0, None) => "correct the pattern".to_owned(),
            (0, Some(left_out)) => format!("{left_out}; {NAME_HIDDEN}"),
            (1, _) => "it matches a folder: add /** to take the files in it".to_owned(),
            (folders, _) => {
                format!("it matches {folders} folders: add /** to take the files in them")
            }
        };
        self.bad_path(pattern, format_args!("matches no {kind}; {hint}"))
    }

    fn no_files(&self) -> Error {
        let advice = match self.left_out.line() {
            None => "put files there, or correct the job file".to_owned(),
            Some(left_out) => format!("{left_out}; {NAME_HIDDEN}"),
        };
        match &self.paths[..] {
            [path] => self.bad_path(path, format_args!("holds no files; {advice}")),
            paths => Error::bad_input(
                &self.input,
                format_args!("none of its {} paths holds a file; {advice}", paths.len()),
            ),
        }
    }

    fn bad_path(&self, path: &ItemPath, message: impl std::fmt::Display) -> Error {
        Error::bad_path(&self.input, path, message)
    }
}

impl Iterator for Listing {
    type Item = Result<Listed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.try_next().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Returns whether a byte begins a pattern in a URL, where `?` begins the query instead.
fn is_url_pattern(byte: &u8) -> bool {
    matches!(byte, b'*' | b'[' | b'{')
}

/// Returns whether a glob matches an object. Without `hidden`, hidden names match like any other.
fn object_matches(glob: &Glob, base: &Url, object: &Object, hidden: Option<Hidden>) -> bool {
    let relative = readable_below(base, &object.url);
    let states = relative.split('/').map(str::as_bytes).fold(glob.start(), |states, name| {
        let is_hidden = hidden.is_some_and(|hidden| hidden.covers(name));
        glob.step(&states, name, is_hidden)
    });
    glob.is_match(&states)
}

/// Returns why an object below `base` is hidden, if it is.
fn hidden_below(base: &Url, object: &Object, hidden: Hidden) -> Option<String> {
    let relative = readable_below(base, &object.url);
    let name = relative.split('/').find(|name| hidden.covers(name.as_bytes()))?;
    Some(Hidden::reason(name.as_bytes()))
}

fn cannot_read(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "cannot be read; give the user that runs the job the right to read it"
        }
        _ => "cannot be read",
    }
}

fn unreadable_folder(input: &str, Unreadable { path, error }: Unreadable) -> Error {
    Error::bad_path(input, &ItemPath::from(path), cannot_read(&error)).because(error)
}
