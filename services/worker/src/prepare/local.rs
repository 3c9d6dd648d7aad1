//! Detects local inputs that have changed since the job was planned, by size and modification time.
//!
//! The worker compares tables after it has read them, so that it has read the planned version. The Python process
//! compares files just before it calls `run()`. A missing file is not reported here, but where it is opened.

use std::fs;

use anyhow::{Result, bail};
use chrono::{DateTime, SecondsFormat};
use protocol::{Block, FileVersion, ItemPath};

/// Fails if the file of one of the blocks has another size or time than in the plan.
pub(super) fn check_blocks(blocks: &[Block]) -> Result<()> {
    let mut last = None;
    for block in blocks {
        // Blocks of one file follow each other.
        if last.replace(&block.path) != Some(&block.path) {
            check_file(&block.path, block.version.as_ref())?;
        }
    }
    Ok(())
}

/// Fails if a local file has another size or time than in the plan.
pub(super) fn check_file(path: &ItemPath, planned: Option<&FileVersion>) -> Result<()> {
    let Some(planned) = planned.filter(|planned| planned.modified.is_some()) else { return Ok(()) };
    match version_now(path).filter(|now| now != planned) {
        Some(now) => bail!(changed(path, planned, &now)),
        None => Ok(()),
    }
}

fn version_now(path: &ItemPath) -> Option<FileVersion> {
    fs::metadata(path.as_path()).ok().map(|metadata| FileVersion::of_file(&metadata))
}

fn changed(path: &ItemPath, planned: &FileVersion, now: &FileVersion) -> String {
    format!(
        "input changed since the job was planned: {} (planned as {}; now {}); start a new job with the inputs as they are, and \
         let nothing write to them while it runs",
        path.display(),
        describe(planned),
        describe(now)
    )
}

fn describe(version: &FileVersion) -> String {
    let modified = DateTime::from_timestamp_nanos(version.modified.unwrap_or_default());
    format!(
        "{} bytes, modified {}",
        version.bytes,
        modified.to_rfc3339_opts(SecondsFormat::AutoSi, true)
    )
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use protocol::BlockRange;

    use super::*;

    #[test]
    fn changed_file_is_named() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("a.csv");
        let path = ItemPath::from(file.as_path());
        let write = |text: &str, seconds: u64| {
            fs::write(&file, text).expect("writable");
            let opened = fs::File::options().write(true).open(&file).expect("writable");
            opened.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).expect("ours");
        };
        write("id\n1\n", 1000);
        let planned = version_now(&path).expect("there");
        let range = BlockRange::Lines { first: 0, last: 9 };
        let block = Block {
            path: path.clone(),
            version: Some(planned.clone()),
            range,
            path_columns: vec![],
        };
        let blocks = [block.clone(), block];
        let check = || {
            let result = check_blocks(&blocks).map_err(|error| error.to_string());
            let now = version_now(&path).map_or(planned.stamp(), |now| now.stamp());
            assert_eq!(now == planned.stamp(), result.is_ok());
            assert_eq!(check_file(&path, Some(&planned)).is_ok(), result.is_ok());
            result
        };
        assert_eq!(check(), Ok(()));
        write("id\n1\n2\n", 1000);
        let expected = "(planned as 5 bytes, modified 1970-01-01T00:16:40Z; now 7 bytes, modified 1970-01-01T00:16:40Z)";
        assert!(check().expect_err("appended to").contains(expected));
        write("id\n2\n", 1001);
        check().expect_err("other content of the same size");
        write("id", 1000);
        check().expect_err("cut short");
        write("id\n1\n", 1000);
        assert_eq!(check(), Ok(()));
        fs::remove_file(&file).expect("there");
        assert_eq!(check(), Ok(()), "a missing file fails when it is opened");
    }
}
