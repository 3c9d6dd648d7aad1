//! A file that somebody has edited since an earlier round of the job, or an earlier job, wrote it; or that has rows of a
//! retry with another script, which a new job does not have. It is kept beside the new one.
//!
//! A reducer that dies after it has written the new file leaves a file that the next reducer takes for an edited one. It has
//! the same bytes as the file of the next reducer, so the two are compared afterwards.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context;
use protocol::{FileVersion, Replaceable};
use storage::Error;

use super::Assembly;

const BUFFER_BYTES: usize = 1 << 20;

/// An edited file that is kept.
pub(super) struct EditedFile {
    version: FileVersion,
    /// The last part of the name under which it is kept, from 1.
    number: u64,
}

impl Assembly<'_> {
    /// Keeps the file at `path`, a path or URL, if it is not the one that may be replaced.
    pub(super) fn keep_edited(&self, path: &str) -> anyhow::Result<Option<EditedFile>> {
        let own = match self.replaceable {
            Replaceable::Anything => return Ok(None),
            Replaceable::Version(own) => Some(own),
            Replaceable::Nothing => None,
        };
        let Some(version) = self.version(path)?.filter(|found| Some(found) != own) else {
            return Ok(None);
        };
        // Writing the output fails, and the error names the folder.
        if Path::new(path).is_dir() {
            return Ok(None);
        }
        let mut number = 1;
        while self.version(&kept_name(path, number))?.is_some() {
            number += 1;
        }
        let name = kept_name(path, number);
        let kept = match path.contains("://") {
            true => self
                .runtime
                .block_on(self.store.stores().copy(path, &name))
                .map_err(anyhow::Error::from),
            // The file stays where it is until the new one replaces it.
            false => fs::hard_link(path, &name)
                .or_else(|_| fs::rename(path, &name))
                .map_err(anyhow::Error::from),
        };
        kept.with_context(|| format!("keep {path}, which {}, as {name}", self.why_kept()))?;
        Ok(Some(EditedFile { version, number }))
    }

    /// Returns a warning about the file that is kept, once `path` is the new one.
    pub(super) fn warn_of_edited(
        &self,
        path: &str,
        EditedFile { version, number }: EditedFile,
    ) -> anyhow::Result<Option<String>> {
        let (is_url, mut name) = (path.contains("://"), kept_name(path, number));
        let is_own = match is_url {
            true => self.version(path)? == Some(version),
            false => have_same_bytes(path, &name)?,
        };
        if is_own {
            // A reducer that died after its write may have kept the file before.
            let before = kept_name(path, number - 1);
            let is_kept = number > 1 && (is_url || has_changed_since(&before, &name)?);
            if !is_url {
                fs::remove_file(&name)?;
            }
            if !is_kept {
                return Ok(None);
            }
            name = before;
        }
        Ok(Some(format!("{path} {}; the changed file is kept as {name}", self.why_kept())))
    }

    fn why_kept(&self) -> &'static str {
        match self.replaceable {
            Replaceable::Nothing => {
                "was completed by a retry with another script, or by a job whose record cannot be read"
            }
            _ => "was changed after the job had written it",
        }
    }

    fn version(&self, path: &str) -> storage::Result<Option<FileVersion>> {
        match self.runtime.block_on(self.store.stores().version(path)) {
            Ok(version) => Ok(Some(version)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn kept_name(path: &str, number: u64) -> String {
    format!("{path}.edited-{number}")
}

/// Whether a file was renamed or changed after another one was written.
fn has_changed_since(file: &str, written: &str) -> io::Result<bool> {
    let (file, written) = (fs::metadata(file)?, fs::metadata(written)?);
    Ok((file.ctime(), file.ctime_nsec()) >= (written.mtime(), written.mtime_nsec()))
}

fn have_same_bytes(one: &str, other: &str) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let mut left = one.metadata()?.len();
    if other.metadata()?.len() != left {
        return Ok(false);
    }
    let (mut piece, mut same) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    while left > 0 {
        let bytes = usize::try_from(left).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
        one.read_exact(&mut piece[..bytes])?;
        other.read_exact(&mut same[..bytes])?;
        if piece[..bytes] != same[..bytes] {
            return Ok(false);
        }
        left -= bytes as u64;
    }
    Ok(true)
}
