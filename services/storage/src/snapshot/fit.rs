//! Selects the files of an oversized folder of scripts that travel: code, needed files, and as many others as fit.

use super::walk::too_large;
use super::{Limit, SnapshotFile};
use crate::Result;

/// The largest number of files that the message names.
const NAMED: usize = 5;

/// Leaves out the largest files that are neither code nor needed until the rest fits [`Limit::SCRIPTS`]. Returns the
/// remaining files, and the names of those left out, for people.
///
/// Fails with [`Error::TooLarge`](crate::Error::TooLarge) if code and needed files alone are too large.
pub fn fit(
    files: Vec<SnapshotFile>,
    is_needed: impl Fn(&SnapshotFile) -> bool,
) -> Result<(Vec<SnapshotFile>, Option<String>)> {
    let limit = Limit::SCRIPTS;
    let (mut bytes, mut count) = (files.iter().map(|file| file.bytes).sum::<u64>(), files.len());
    if bytes <= limit.bytes && count <= limit.files {
        return Ok((files, None));
    }
    let (mut kept, mut rest): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| file.is_code() || is_needed(file));
    rest.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.cmp(other)));
    let mut left_out = 0;
    while left_out < rest.len() && (bytes > limit.bytes || count > limit.files) {
        bytes -= rest[left_out].bytes;
        count -= 1;
        left_out += 1;
    }
    if bytes > limit.bytes || count > limit.files {
        let advice = "list large data in side_inputs, list unused files in a file .amlignore (same rules \
                      as .gitignore), or move the script to its own folder";
        return Err(too_large(&kept, limit, advice));
    }
    let named: Vec<String> = rest[..left_out.min(NAMED)].iter().map(SnapshotFile::shown).collect();
    let more =
        if left_out > NAMED { format!(" and {} more", left_out - NAMED) } else { String::new() };
    kept.extend(rest.drain(left_out..));
    kept.sort();
    Ok((kept, Some(named.join(", ") + &more)))
}
