//! Copies the output of a process and its children on an inherited descriptor to a file, up to a limit.
//!
//! They write to a pipe, so an endless loop of writes fills neither the disk nor the agent's memory.

use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::node_log::append_to;
use crate::printed::RecentOutput;

const CHUNK_BYTES: usize = 64 * 1024;

/// Reads `from` to its end. Creates the file when the first byte arrives. Drops output beyond `bytes_max`, and notes
/// that in the file's last line. A failure to write is logged once and does not stop the work. `latest` keeps the end.
pub async fn copy(
    mut from: impl AsyncRead + Unpin,
    to: PathBuf,
    bytes_max: u64,
    latest: RecentOutput,
) {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut file = None;
    let mut left = bytes_max;
    loop {
        let length = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => length,
        };
        latest.add(&buffer[..length]);
        if left == 0 {
            continue;
        }
        let keep = length.min(usize::try_from(left).unwrap_or(usize::MAX));
        left -= keep as u64;
        if let Err(error) = append(&mut file, &to, &buffer[..keep], left == 0) {
            tracing::warn!(file.path = %to.display(), %error, "cannot write to a log file, dropping further output");
            left = 0;
        }
    }
}

fn append(
    file: &mut Option<std::fs::File>,
    path: &Path,
    bytes: &[u8],
    cut: bool,
) -> std::io::Result<()> {
    use std::io::Write;
    let file = match file {
        Some(file) => file,
        None => file.insert(append_to(path)?),
    };
    file.write_all(bytes)?;
    if cut {
        file.write_all(b"\n[the log is cut here: it has reached its limit]\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_beyond_the_limit_is_dropped_with_a_note() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("deep/log.txt");
        copy(&[b'x'; 300_000][..], path.clone(), 100_000, RecentOutput::default()).await;
        let text = std::fs::read_to_string(path).expect("written");
        assert_eq!(text.matches('x').count(), 100_000);
        assert!(text.ends_with("[the log is cut here: it has reached its limit]\n"));
    }

    #[tokio::test]
    async fn no_output_creates_no_file() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("log.txt");
        copy(&b""[..], path.clone(), 10, RecentOutput::default()).await;
        assert!(!path.exists());
    }
}
