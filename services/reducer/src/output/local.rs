//! The final file in a folder: written under a temporary name and renamed when complete.
//!
//! A writer holds a lock on its temporary file. A file without a lock therefore belongs to a dead writer, and the next
//! writer first removes it, because it may occupy the space that is needed. A writer that has renamed its file removes
//! the temporary files of all others, so that a slow writer cannot replace the final file by an older state.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use storage::disk;

const BUFFER_BYTES: usize = 1 << 20;
/// The kernel starts to write this many bytes to disk while the next are appended. Otherwise the disk would stay idle
/// until the last row.
const DISK_WRITE_BYTES: u64 = 8 << 20;

/// The final file, being written.
pub(super) struct LocalFile {
    writer: BufWriter<File>,
    /// Bytes appended.
    length: u64,
    /// Bytes that the kernel has started to write.
    started: u64,
    folder: PathBuf,
    file_name: String,
    job_id: String,
    temporary: PathBuf,
}

impl LocalFile {
    pub fn create(
        folder: &Path,
        file_name: &str,
        job_id: &str,
        writer: &str,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)
            .with_context(|| format!("create output folder {}", folder.display()))?;
        let prefix = temporary_prefix(file_name, job_id);
        remove_temporary(folder, &prefix, abandoned)
            .with_context(|| format!("remove old temporary files from {}", folder.display()))?;
        let temporary = folder.join(format!("{prefix}{writer}.tmp"));
        let file =
            create_locked(&temporary).with_context(|| format!("create {}", temporary.display()))?;
        Ok(Self {
            writer: BufWriter::with_capacity(BUFFER_BYTES, file),
            length: 0,
            started: 0,
            folder: folder.to_owned(),
            file_name: file_name.to_owned(),
            job_id: job_id.to_owned(),
            temporary,
        })
    }

    /// Appends a file. The kernel copies or shares its blocks, and the bytes do not pass through this process.
    pub fn append_file(&mut self, file: &mut File) -> io::Result<u64> {
        let bytes = io::copy(file, &mut self.writer)?;
        self.appended(bytes);
        Ok(bytes)
    }

    fn appended(&mut self, bytes: u64) {
        self.length += bytes;
        let in_file = self.length - self.writer.buffer().len() as u64;
        if in_file - self.started >= DISK_WRITE_BYTES {
            // `finish` waits for the disk and reports errors.
            let _ = disk::begin_writing(self.writer.get_ref(), self.started..in_file);
            self.started = in_file;
        }
    }

    pub fn finish(&mut self) -> anyhow::Result<()> {
        self.writer.flush().context("write the last rows")?;
        self.writer.get_ref().sync_data().context("flush to disk")?;
        let path = self.folder.join(&self.file_name);
        match fs::rename(&self.temporary, &path) {
            Ok(()) => {
                // The next step removes parts, perhaps on another disk.
                disk::sync(&self.folder).context("flush the output folder to disk")?;
                // Remaining files cost only space.
                let prefix = temporary_prefix(&self.file_name, &self.job_id);
                let _ = remove_temporary(&self.folder, &prefix, |path| File::open(path).ok());
                Ok(())
            }
            // Another writer removed it after putting the same file in its place.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_file() => Ok(()),
            Err(error) => Err(error)
                .with_context(|| format!("rename the finished file to {}", path.display())),
        }
    }

    /// Removes the temporary file, whose space may be needed.
    pub fn abort(self) {
        let _ = fs::remove_file(&self.temporary);
        // Discards the buffer.
        let _ = self.writer.into_parts();
    }
}

impl Write for LocalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes)?;
        self.appended(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

fn temporary_prefix(file_name: &str, job_id: &str) -> String {
    // A file name may be as long as the file system allows.
    let beginning = &file_name[..file_name.floor_char_boundary(100)];
    format!(".{beginning}.{job_id}.")
}

/// Creates and locks a file. Before it is locked, another writer may take it for the file of a dead writer and remove
/// it; then this function creates it again.
fn create_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = File::create_new(path)?;
        // On a file system without locks, no lock can be acquired and nothing is removed.
        let _ = file.lock();
        if is_at(&file, path)? {
            return Ok(file);
        }
    }
}

/// Whether the path still names the file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(there) => Ok(there.ino() == file.metadata()?.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the temporary files for which `wanted` returns the open file, and keeps each open until it is removed.
fn remove_temporary(
    folder: &Path,
    prefix: &str,
    wanted: impl Fn(&Path) -> Option<File>,
) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let path = folder.join(&name);
        if name.to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(".tmp"))
            && let Some(_held) = wanted(&path)
        {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Returns the file, locked, if no living process writes to it.
fn abandoned(temporary: &Path) -> Option<File> {
    let file = File::open(temporary).ok()?;
    file.try_lock().ok()?;
    is_at(&file, temporary).ok()?.then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_does_not_remove_file_that_another_has_just_created() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let folder = folder.path();
        let write_often = |writer: usize| {
            for _ in 0..300 {
                let file = LocalFile::create(folder, "rows.txt", "job", &writer.to_string())
                    .expect("created");
                assert!(
                    is_at(file.writer.get_ref(), &file.temporary).expect("readable"),
                    "it still exists"
                );
                file.abort();
            }
        };
        std::thread::scope(|scope| {
            for writer in 0..4 {
                scope.spawn(move || write_often(writer));
            }
        });
    }
}
