//! Walks local folders lazily: memory holds only the names in the folders on the way to the current file.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use protocol::{ItemPath, JobSpec};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use storage::LeftOut;
use tracing::debug;

use crate::glob::{Glob, States};

/// The file beside the data of a table of Azure ML that describes it.
const MLTABLE: &[u8] = b"MLTable";
/// Folders on the way to a file that stay open, so that the kernel finds a file by its name alone. Deeper ones are
/// found by their paths: the process may have few descriptors.
const OPEN_FOLDERS_MAX: usize = 32;

/// Names that are not part of an input, unless a pattern names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// Names that begin with a dot, as systems and editors create them.
    Dots,
    /// Also names that begin with an underscore, as Hadoop, Spark and Arrow create them beside tables. `_key=value` is
    /// a partition. And `MLTable`.
    DotsAndUnderscores,
}

impl Hidden {
    pub(crate) fn covers(self, name: &[u8]) -> bool {
        match name.first() {
            Some(b'.') => true,
            Some(b'M') => self == Self::DotsAndUnderscores && name == MLTABLE,
            Some(b'_') => self == Self::DotsAndUnderscores && !name.contains(&b'='),
            _ => false,
        }
    }

    /// Returns why a name with this beginning is left out.
    pub(crate) fn reason(name: &[u8]) -> String {
        if name == MLTABLE {
            return "describes a table".to_owned();
        }
        format!("begins with `{}`", char::from(name.first().copied().unwrap_or(b'.')))
    }
}

/// The output folders and the output file of a job, as far as they exist: device and inode of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outputs(Vec<(u64, u64)>);

impl Outputs {
    pub(crate) fn of(spec: &JobSpec) -> Self {
        let folders = std::iter::once(&spec.output.folder).chain(spec.outputs.values());
        let folders = folders
            .filter(|folder| !folder.is_url() && !folder.as_bytes().is_empty())
            .map(ItemPath::as_path);
        let paths =
            folders.flat_map(|folder| [folder.to_owned(), folder.join(&spec.output.file_name)]);
        Self(
            paths
                .filter_map(|path| fs::metadata(path).ok())
                .map(|found| (found.dev(), found.ino()))
                .collect(),
        )
    }

    fn contain(&self, identity: (u64, u64)) -> io::Result<()> {
        match self.0.contains(&identity) {
            true => Err(io::Error::other(
                "it leads to the output, so the next run would read what this one writes; remove the link, or choose \
                 another output",
            )),
            false => Ok(()),
        }
    }
}

/// A walk over the files of a folder, which follows links.
///
/// Without a glob: the files of a folder sorted by name, then its sub-folders, sorted by name. With one: the files that
/// match, in the order of their whole paths. Names are compared as bytes.
pub(crate) struct Walk {
    glob: Option<Glob>,
    hidden: Hidden,
    left_out: LeftOut,
    /// The folders on the way to the current file, outermost first.
    open: Vec<Folder>,
    /// The folder to read next, and whether a link leads to it.
    next: Option<(PathBuf, States, bool)>,
    /// The folders to which no link may lead.
    outputs: Outputs,
    /// Number of folders that the whole glob matched.
    folders_matched: u64,
}

/// One file of a walk.
#[derive(Debug)]
pub(crate) struct FoundFile {
    pub(crate) path: PathBuf,
    /// Metadata of the file, or of the target of a link; `None` if it cannot be read.
    pub(crate) stat: Option<Stat>,
    /// Whether it is the first file of its folder.
    pub(crate) first_of_folder: bool,
}

/// A folder that cannot be read.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

struct Folder {
    path: PathBuf,
    descriptor: Option<OwnedFd>,
    /// Device and inode, so that a folder that contains itself through a link is not entered again.
    identity: (u64, u64),
    /// Whether a link leads to it, or to a folder above it.
    is_linked: bool,
    states: States,
    entries: Entries,
    position: usize,
    found_any: bool,
}

impl Walk {
    pub(crate) fn folder(root: PathBuf, hidden: Hidden, outputs: Outputs) -> Self {
        Self::new(None, root, States::new(), hidden, outputs)
    }

    pub(crate) fn glob(base: PathBuf, glob: Glob, hidden: Hidden, outputs: Outputs) -> Self {
        let start = glob.start();
        Self::new(Some(glob), base, start, hidden, outputs)
    }

    fn new(
        glob: Option<Glob>,
        root: PathBuf,
        start: States,
        hidden: Hidden,
        outputs: Outputs,
    ) -> Self {
        let next = Some((root, start, false));
        Self {
            glob,
            hidden,
            left_out: LeftOut::default(),
            open: Vec::new(),
            next,
            outputs,
            folders_matched: 0,
        }
    }

    /// Returns the names left out so far.
    pub(crate) fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// Returns the number of folders that the whole glob matched: the user may have meant the files in them.
    pub(crate) fn folders_matched(&self) -> u64 {
        self.folders_matched
    }

    fn enter(&mut self, path: PathBuf, states: States, is_linked: bool) -> Result<(), Unreadable> {
        let mut read = || -> io::Result<_> {
            let metadata = fs::metadata(&path)?;
            let identity = (metadata.dev(), metadata.ino());
            if is_linked {
                self.outputs.contain(identity)?;
            }
            if self.open.iter().any(|folder| folder.identity == identity) {
                debug!(file.path = %path.display(), "skipped a link back to a folder that contains it");
                let path = ItemPath::from(path.as_path()).display();
                self.left_out.add(|| format!("{path} (a link back to a folder that contains it)"));
                return Ok(None);
            }
            let mut entries = Entries::read(&path, &mut self.left_out)?;
            match self.glob {
                None => entries.sort_files_first(),
                Some(_) => entries.sort_as_paths(),
            }
            Ok(Some((identity, entries)))
        };
        match read() {
            Ok(Some((identity, entries))) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let open = || rustix::fs::open(&path, flags, Mode::empty()).ok();
                let descriptor = (self.open.len() < OPEN_FOLDERS_MAX).then(open).flatten();
                let (position, found_any) = (0, false);
                self.open.push(Folder {
                    path,
                    descriptor,
                    identity,
                    is_linked,
                    states,
                    entries,
                    position,
                    found_any,
                });
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => Err(Unreadable { path, error }),
        }
    }
}

impl Iterator for Walk {
    type Item = Result<FoundFile, Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((path, states, is_linked)) = self.next.take()
                && let Err(unreadable) = self.enter(path, states, is_linked)
            {
                self.open.clear();
                return Some(Err(unreadable));
            }
            let folder = self.open.last_mut()?;
            let Some((name, is_folder, is_link)) = folder.entries.get(folder.position) else {
                self.open.pop();
                continue;
            };
            folder.position += 1;
            let is_hidden = self.hidden.covers(name);
            let states = match &self.glob {
                None => States::new(),
                Some(glob) => glob.step(&folder.states, name, is_hidden),
            };
            if is_hidden && states.is_empty() {
                let is_wanted = match &self.glob {
                    None => true,
                    Some(glob) => {
                        let states = glob.step(&folder.states, name, false);
                        if is_folder { glob.leads_on(&states) } else { glob.is_match(&states) }
                    }
                };
                if is_wanted {
                    let path = folder.path.join(OsStr::from_bytes(name));
                    let path = ItemPath::from(path).display();
                    self.left_out.add(|| format!("{path} ({})", Hidden::reason(name)));
                }
                continue;
            }
            let (matched, leads_on) = match &self.glob {
                None => (true, true),
                Some(glob) => (glob.is_match(&states), glob.leads_on(&states)),
            };
            let path = || folder.path.join(OsStr::from_bytes(name));
            if is_folder {
                self.folders_matched += u64::from(matched && !leads_on);
                self.next = leads_on.then(|| (path(), states, is_link || folder.is_linked));
            } else if matched {
                let path = path();
                let stat = match &folder.descriptor {
                    Some(descriptor) => rustix::fs::statat(descriptor, name, AtFlags::empty()),
                    None => rustix::fs::stat(&path),
                };
                let stat = stat.ok();
                if let Some(stat) = stat.as_ref().filter(|_| is_link)
                    && let Err(error) = self.outputs.contain((stat.st_dev, stat.st_ino))
                {
                    self.open.clear();
                    return Some(Err(Unreadable { path, error }));
                }
                let found = FoundFile { path, stat, first_of_folder: !folder.found_any };
                folder.found_any = true;
                return Some(Ok(found));
            }
        }
    }
}

/// The names in one folder, even a million of them, in one allocation.
struct Entries {
    names: Vec<u8>,
    spans: Vec<Span>,
}

struct Span {
    start: usize,
    length: u32,
    is_folder: bool,
    is_link: bool,
}

impl Span {
    fn name<'a>(&self, names: &'a [u8]) -> &'a [u8] {
        &names[self.start..self.start + self.length as usize]
    }
}

impl Entries {
    fn read(folder: &Path, left_out: &mut LeftOut) -> io::Result<Self> {
        let mut entries = Self { names: Vec::new(), spans: Vec::new() };
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let Some(is_folder) = is_folder(&entry) else {
                debug!(file.path = %entry.path().display(), "skipped a name that is neither a file nor a folder");
                let path = ItemPath::from(entry.path()).display();
                left_out.add(|| format!("{path} (neither a file nor a folder)"));
                continue;
            };
            let length = u32::try_from(name.len()).expect("names are at most 255 bytes long");
            entries.spans.push(Span { start: entries.names.len(), length, is_folder, is_link });
            entries.names.extend_from_slice(name.as_bytes());
        }
        Ok(entries)
    }

    fn sort_files_first(&mut self) {
        let names = &self.names;
        self.spans.sort_unstable_by(|left, right| {
            (left.is_folder, left.name(names)).cmp(&(right.is_folder, right.name(names)))
        });
    }

    /// Sorts folders by their names with a slash, so that a depth-first walk returns whole paths in order.
    fn sort_as_paths(&mut self) {
        let names = &self.names;
        let key =
            |span: &Span| span.name(names).iter().copied().chain(span.is_folder.then_some(b'/'));
        self.spans.sort_unstable_by(|left, right| key(left).cmp(key(right)));
    }

    /// Returns the name, whether it is a folder, and whether it is a link.
    fn get(&self, position: usize) -> Option<(&[u8], bool, bool)> {
        self.spans.get(position).map(|span| (span.name(&self.names), span.is_folder, span.is_link))
    }
}

/// Returns whether an entry is a folder; `None` for pipes, sockets and devices. A broken link counts as a file, which
/// fails when it is opened.
fn is_folder(entry: &fs::DirEntry) -> Option<bool> {
    let kind = match entry.file_type() {
        Ok(kind) if kind.is_symlink() => {
            fs::metadata(entry.path()).map(|metadata| metadata.file_type())
        }
        kind => kind,
    };
    match kind {
        Ok(kind) if kind.is_dir() => Some(true),
        Ok(kind) if !kind.is_file() => None,
        Ok(_) | Err(_) => Some(false),
    }
}
