//! A file that somebody has edited since an earlier round of the job wrote it. The next round keeps it beside the new one.
//!
//! A reducer that dies after it has written the new file leaves a file that the next reducer takes for an edited one. It has
//! the same bytes as the file of the next reducer, so the two are compared afterwards.

use std::fs::{self, File};
use std::io::{self, Read};

use anyhow::Context;
use protocol::FileVersion;
use storage::Error;

use super::Assembly;

const BUFFER_BYTES: usize = 1 << 20;

/// The file that an earlier round wrote.
#[derive(Clone, Debug)]
pub(crate) struct Earlier {
    /// Its version.
    pub version: FileVersion,
    /// The first round after it, and the one that writes now.
    pub rounds: (u64, u64),
}

/// An edited file that is kept.
pub(super) struct Edited {
    /// Its path or URL.
    name: String,
    version: FileVersion,
}

impl Assembly<'_> {
    /// Keeps the file at `path`, a path or URL, if it is not the one that an earlier round wrote.
    pub(super) fn keep_edited(&self, path: &str) -> anyhow::Result<Option<Edited>> {
        let Some(Earlier { version, rounds: (_, round) }) = &self.earlier else { return Ok(None) };
        let Some(found) = self.version(path)?.filter(|found| found != version) else { return Ok(None) };
        let name = kept_name(path, *round);
        if self.version(&name)?.is_none() {
            let kept = match path.contains("://") {
                true => self.runtime.block_on(self.store.stores().copy(path, &name)).map_err(anyhow::Error::from),
                // The file stays where it is until the new one replaces it.
                false => fs::hard_link(path, &name).or_else(|_| fs::rename(path, &name)).map_err(anyhow::Error::from),
            };
            kept.with_context(|| format!("keep {path}, which was changed since the job wrote it, as {name}"))?;
        }
        Ok(Some(Edited { name, version: found }))
    }

    /// Returns warnings about the files that are kept, once `path` is the new one.
    pub(super) fn warn_of_edited(&self, path: &str, kept: Option<Edited>) -> anyhow::Result<Vec<String>> {
        let Some(Earlier { rounds: (first, last), .. }) = self.earlier else { return Ok(Vec::new()) };
        let mut own = None;
        if let Some(Edited { name, version }) = kept {
            let is_own = match path.contains("://") {
                true => self.version(path)? == Some(version),
                false => have_same_bytes(path, &name)?,
            };
            if is_own && !path.contains("://") {
                fs::remove_file(&name)?;
            }
            own = is_own.then_some(name);
        }
        let mut warnings = Vec::new();
        for name in (first..=last).map(|round| kept_name(path, round)) {
            if own.as_ref() != Some(&name) && self.version(&name)?.is_some() {
                warnings.push(format!(
                    "{path} was changed after the job had written it; the changed file is kept as {name}"
                ));
            }
        }
        Ok(warnings)
    }

    fn version(&self, path: &str) -> storage::Result<Option<FileVersion>> {
        match self.runtime.block_on(self.store.stores().version(path)) {
            Ok(version) => Ok(Some(version)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn kept_name(path: &str, round: u64) -> String {
    format!("{path}.edited-{round}")
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
