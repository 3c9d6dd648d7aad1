//! A user of its own for each job of a worker, so that its scripts reach neither the files and processes of other jobs, nor
//! those of the worker.
//!
//! The worker is root, and its scripts run as users without an account, from a range. A job gets the same user again, if it
//! is free. The workers of a machine that have the same `GRISTMILL_HOME` share the range:
//!
//! ```text
//! users/<id>     locked while a job has the user; the kernel releases the lock of a killed worker
//! ```
//!
//! The worker is root in folders that belong to a job, so it follows no links there: [`open`].

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::unix::fs::{
    DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown, lchown,
};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::variables::Environment;

/// Tries to end the processes of a user, which may kill the one that tries.
const KILLS_MAX: u32 = 100;
/// Folders in which GPUs have their device files, and how the names begin.
const GPU_DEVICES: [(&str, &str); 3] = [("/dev", "nvidia"), ("/dev", "kfd"), ("/dev/dri", "")];

/// Folders of a job for its user alone.
pub(crate) const HOME: &str = "home";
pub(crate) const TEMPORARY: &str = "tmp";

/// The ids of users and groups that jobs may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRange(RangeInclusive<u32>);

impl Default for UserRange {
    fn default() -> Self {
        Self(20_000..=29_999)
    }
}

impl UserRange {
    /// Lets all users read the files that this process creates from now on; those of a job are in
    /// folders that only its user can enter.
    pub fn share_new_files(&self) {
        rustix::process::umask(Mode::from_raw_mode(0o022));
    }
}

impl FromStr for UserRange {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let ends = text
            .split_once('-')
            .and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        match ends {
            Some((first, last)) if 0 < first && first <= last && last < u32::MAX => {
                Ok(Self(first..=last))
            }
            _ => bail!(
                "{text:?} must be the first and the last id of a range of users, such as 20000-29999"
            ),
        }
    }
}

/// The users of the jobs of a worker.
#[derive(Debug)]
pub(crate) struct JobUsers {
    ids: RangeInclusive<u32>,
    /// Groups whose members may use the GPUs.
    groups: Arc<[u32]>,
    locks: PathBuf,
}

/// The user of a job. Dropping the value ends all processes of the user.
#[derive(Debug)]
pub struct JobUser {
    id: u32,
    groups: Arc<[u32]>,
    _lock: File,
}

impl JobUsers {
    /// Makes the work folder of a worker ready, and `folders` in it: jobs get through them, but
    /// cannot list them. `needed`: the paths that every job must be able to read. Fails if it
    /// cannot, or if this process may not change users.
    pub(crate) fn start(
        UserRange(ids): UserRange,
        work_folder: &Path,
        folders: impl Iterator<Item = PathBuf>,
        needed: &[&Path],
    ) -> Result<Self> {
        let locks = work_folder.join("users");
        let passed =
            [work_folder.to_owned()].into_iter().chain(folders).map(|folder| (folder, 0o711));
        for (folder, mode) in passed.chain([(locks.clone(), 0o700)]) {
            make_folder(&folder, mode).with_context(|| format!("create {}", folder.display()))?;
        }
        let first = *ids.start();
        for path in [work_folder].iter().chain(needed) {
            if !can_enter(first, path)? {
                bail!(
                    "users of jobs, such as {first}, cannot read {}: give all users the right to read it and to get through \
                     the folders above it, or start the worker with --job-users none, and its scripts run as root",
                    path.display()
                );
            }
        }
        Ok(Self { ids, groups: gpu_groups().into(), locks })
    }

    /// Lends a user to a job. Blocks briefly.
    pub(crate) fn lend(&self, job_id: &str) -> Result<JobUser> {
        let count = self.ids.end() - self.ids.start() + 1;
        let digest = blake3::hash(job_id.as_bytes());
        let begin =
            u32::from_le_bytes(*digest.as_bytes().first_chunk().expect("it is longer")) % count;
        for offset in 0..count {
            let id = self.ids.start() + (begin + offset) % count;
            let path = self.locks.join(id.to_string());
            let lock =
                File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
            let lock = lock.with_context(|| format!("open {}", path.display()))?;
            if lock.try_lock().is_ok() && !has_account(id) {
                // A killed worker may have left some.
                kill_all(id).with_context(|| format!("end the processes of user {id}"))?;
                return Ok(JobUser { id, groups: self.groups.clone(), _lock: lock });
            }
        }
        bail!(
            "jobs or accounts of this machine have all {count} users: start the worker with others (--job-users)"
        )
    }
}

impl JobUser {
    /// Makes a folder of the job, in which the user may only read.
    pub(crate) fn admit(&self, folder: &Path) -> io::Result<()> {
        let folder = make_folder(folder, 0o750)?;
        fchown(folder, Some(0), Some(self.id))
    }

    /// Makes a folder for this user alone.
    pub(crate) fn own(&self, folder: &Path) -> io::Result<()> {
        let folder = make_folder(folder, 0o700)?;
        fchown(folder, Some(self.id), Some(self.id))
    }

    /// Gives a folder, and everything in it, to this user alone.
    pub(crate) fn own_all(&self, folder: &Path) -> io::Result<()> {
        self.own(folder)?;
        give(folder, self.id)
    }

    /// Returns the closure that makes a child process one of this user, between `fork` and `exec`.
    pub(crate) fn becoming(&self) -> impl Fn() -> io::Result<()> + Send + Sync + use<> {
        let (id, groups) = (self.id, self.groups.clone());
        move || {
            give_pipe(libc::STDOUT_FILENO, id);
            give_pipe(libc::STDERR_FILENO, id);
            // SAFETY: these calls are async-signal-safe, and the groups live as long as the closure.
            let has_become = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::setgroups(groups.len(), groups.as_ptr()) == 0
                    && libc::setresgid(id, id, id) == 0
                    && libc::setresuid(id, id, id) == 0
            };
            if has_become { Ok(()) } else { Err(io::Error::last_os_error()) }
        }
    }

    /// Makes the folders of the job on this node. The script cannot change those that the worker walks through.
    pub(crate) fn move_in(&self, folder: &Path, node: &str) -> io::Result<()> {
        for name in ["", "scratch", "logs", "logs/sys", "logs/sys/node"] {
            self.admit(&folder.join(name))?;
        }
        let of_node = Path::new("logs/sys/node").join(node);
        for name in [
            Path::new(HOME),
            Path::new(TEMPORARY),
            Path::new("checkpoints"),
            Path::new("logs/user"),
            &of_node,
        ] {
            self.own(&folder.join(name))?;
        }
        let errors = folder.join("logs/user/error");
        self.own(&errors)?;
        self.own(&errors.join(node))?;
        self.own(&folder.join("logs/sys/printed"))
    }

    /// Returns the environment variables that name the user and its folders.
    pub(crate) fn variables(&self, folder: &Path) -> Environment {
        let name = format!("job-{}", self.id);
        vec![
            ("HOME".into(), folder.join(HOME).into()),
            ("TMPDIR".into(), folder.join(TEMPORARY).into()),
            ("USER".into(), name.clone().into()),
            ("LOGNAME".into(), name.into()),
        ]
    }

    /// Ends every process of this user.
    pub(crate) fn kill_all(&self) {
        if let Err(error) = kill_all(self.id) {
            tracing::warn!("processes of the job of user {} may still run: {error}", self.id);
        }
    }
}

impl Drop for JobUser {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// Gives a folder, and everything in it, to this process. Nothing else may write to it meanwhile.
pub(crate) fn take_back(folder: &Path) -> io::Result<()> {
    give(folder, 0)
}

fn give(path: &Path, id: u32) -> io::Result<()> {
    lchown(path, Some(id), Some(id))?;
    if path.symlink_metadata()?.is_dir() {
        for entry in std::fs::read_dir(path)? {
            give(&entry?.path(), id)?;
        }
    }
    Ok(())
}

/// Closes a folder to every user except root.
pub(crate) fn close(folder: &Path) -> io::Result<()> {
    chown(folder, Some(0), Some(0))?;
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))
}

/// Makes a folder, or changes the mode of one, and returns it open: a script that may write beside it cannot put a link in
/// its place.
fn make_folder(folder: &Path, mode: u32) -> io::Result<File> {
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let folder = File::from(rustix::fs::openat(CWD, folder, flags, Mode::empty())?);
    folder.set_permissions(Permissions::from_mode(mode))?;
    Ok(folder)
}

/// Opens a file that scripts may have written, without following links, which could lead to files of other jobs or of the
/// worker. The path to the folder of the job must be free of links, too.
pub(crate) fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    // A pipe in the place of a file would block.
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mode =
        if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o666) } else { Mode::empty() };
    let file = match rustix::fs::openat2(CWD, path, flags, mode, ResolveFlags::NO_SYMLINKS) {
        // The kernel, or the filter of a container, does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(CWD, path, flags, mode)?,
        opened => opened?,
    };
    let file = File::from(file);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Gives a pipe to a user, whose script may open its output by name (`/dev/stdout`). Async-signal-safe.
fn give_pipe(descriptor: libc::c_int, id: u32) {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the value is read only where `fstat` has written it.
    unsafe {
        if libc::fstat(descriptor, status.as_mut_ptr()) == 0
            && status.assume_init_ref().st_mode & libc::S_IFMT == libc::S_IFIFO
        {
            libc::fchown(descriptor, id, id);
        }
    }
}

/// Whether this process belongs to root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a person or a service has this user.
fn has_account(id: u32) -> bool {
    let mut account = MaybeUninit::uninit();
    let (mut buffer, mut found) = ([0; 16 * 1024], std::ptr::null_mut());
    // SAFETY: all pointers are valid for the call, which gets the length of the buffer.
    let status = unsafe {
        libc::getpwuid_r(id, account.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found)
    };
    !found.is_null() || status == libc::ERANGE
}

/// Whether a user can read a file, or get into a folder.
fn can_enter(id: u32, path: &Path) -> Result<bool> {
    let text = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    let mode = if path.is_dir() { libc::X_OK } else { libc::R_OK };
    let answer = in_child(|| {
        // SAFETY: async-signal-safe calls with a text that lives longer.
        unsafe {
            match libc::setgroups(0, std::ptr::null()) == 0
                && libc::setresgid(id, id, id) == 0
                && libc::setresuid(id, id, id) == 0
            {
                false => 2,
                true => i32::from(libc::access(text.as_ptr(), mode) != 0),
            }
        }
    });
    match answer.context("start a process")? {
        0 => Ok(true),
        1 => Ok(false),
        _ => bail!(
            "this worker may not change users: it must be root, with the rights that root usually has"
        ),
    }
}

/// Ends every process of a user. One call of the kernel reaches all of them, so none can escape by starting others.
fn kill_all(id: u32) -> io::Result<()> {
    for _ in 0..KILLS_MAX {
        let answer = in_child(|| {
            // SAFETY: async-signal-safe calls.
            unsafe {
                // The first process does not belong to the user. If it can be reached, this process has kept rights with
                // which it would reach every process.
                if libc::setresuid(id, id, id) != 0 || libc::kill(1, 0) == 0 {
                    return 1;
                }
                libc::kill(-1, libc::SIGKILL);
            }
            0
        })?;
        match answer {
            0 => return Ok(()),
            1 => return Err(io::ErrorKind::PermissionDenied.into()),
            // Something has killed it.
            _ => {}
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

/// Returns the exit status of `act` in a child process; -1: it was killed. `act` makes only async-signal-safe calls.
fn in_child(act: impl FnOnce() -> libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the child only calls `act`, and ends.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: ends the child without any handlers.
        0 => unsafe { libc::_exit(act()) },
        child => child,
    };
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 })
}

/// Returns the groups of the device files of GPUs.
fn gpu_groups() -> Vec<u32> {
    let mut groups: Vec<u32> = Vec::new();
    for (folder, beginning) in GPU_DEVICES {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_named = entry.file_name().as_encoded_bytes().starts_with(beginning.as_bytes());
            if let Ok(metadata) = entry.metadata()
                && is_named
                && metadata.file_type().is_char_device()
                && metadata.gid() != 0
            {
                groups.push(metadata.gid());
            }
        }
    }
    groups.sort_unstable();
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// Each test has a range of its own: they end the processes of its users.
    fn users(folder: &Path, range: &str) -> JobUsers {
        JobUsers::start(range.parse().expect("valid"), folder, std::iter::empty(), &[])
            .expect("root may do it")
    }

    /// Returns a folder that all users can enter, unless this process is not root.
    fn folder_of_root() -> Option<tempfile::TempDir> {
        let folder = tempfile::tempdir().expect("temporary folder");
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("own folder");
        is_root().then_some(folder)
    }

    #[test]
    fn range_is_first_and_last_id() {
        assert_eq!("20000-29999".parse::<UserRange>().expect("valid"), UserRange::default());
        for text in ["", "1000", "0-10", "10-9", "a-b", "1-4294967295", "-5"] {
            text.parse::<UserRange>().expect_err(text);
        }
    }

    #[test]
    fn accounts_of_the_machine_are_known() {
        assert!(has_account(0) && !has_account(41_000));
    }

    #[test]
    fn job_gets_its_user_again_and_no_two_jobs_share_one() {
        let Some(folder) = folder_of_root() else { return };
        let users = users(folder.path(), "41000-41002");
        let first = users.lend("one").expect("free");
        let id = first.id;
        drop(first);
        let all = ["one", "two", "three"].map(|job| users.lend(job).expect("free"));
        assert_eq!(all[0].id, id);
        let mut ids = all.each_ref().map(|user| user.id);
        ids.sort_unstable();
        assert_eq!(ids, [41000, 41001, 41002]);
        let error = users.lend("four").expect_err("none is left").to_string();
        assert!(error.contains("all 3 users"), "{error}");
    }

    #[test]
    fn processes_of_a_job_end_with_its_user() {
        let Some(folder) = folder_of_root() else { return };
        let user = users(folder.path(), "41010-41010").lend("one").expect("free");
        let mut command = Command::new("sh");
        command.args(["-c", "id -u; id -G; grep NoNewPrivs /proc/self/status; trap '' TERM; setsid sleep 1000 & wait"]);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.stdout(writer);
        // SAFETY: `becoming` makes only async-signal-safe calls.
        unsafe { command.pre_exec(user.becoming()) };
        let mut shell = command.spawn().expect("a shell starts");
        drop(command);
        let lines = std::io::BufRead::lines(std::io::BufReader::new(reader));
        let mut lines = lines.map(|line| line.expect("text"));
        let id = user.id.to_string();
        assert_eq!(lines.next().as_ref(), Some(&id));
        assert!(lines.next().expect("groups").split(' ').all(|group| group != "0"));
        assert_eq!(lines.next().as_deref(), Some("NoNewPrivs:\t1"));
        drop(user);
        assert!(!shell.wait().expect("it ends").success());
        assert_eq!(lines.next(), None, "all that could write to the pipe have ended");
    }

    #[test]
    fn unreachable_folder_is_named_with_the_remedy() {
        let Some(folder) = folder_of_root() else { return };
        let deep = folder.path().join("closed/file");
        std::fs::create_dir(folder.path().join("closed")).expect("writable");
        std::fs::write(&deep, "").expect("writable");
        std::fs::set_permissions(folder.path().join("closed"), Permissions::from_mode(0o700))
            .expect("own folder");
        let range = "41020-41020".parse().expect("valid");
        let error = JobUsers::start(range, folder.path(), std::iter::empty(), &[&deep])
            .expect_err("closed")
            .to_string();
        assert!(
            error.contains("cannot read")
                && error.contains("closed/file")
                && error.contains("--job-users none"),
            "{error}"
        );
    }

    #[test]
    fn links_and_pipes_in_the_place_of_a_file_are_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let folder = folder.path().canonicalize().expect("there");
        std::fs::create_dir(folder.join("real")).expect("writable");
        std::fs::write(folder.join("real/file"), "secret").expect("writable");
        symlink(folder.join("real/file"), folder.join("link")).expect("writable");
        symlink(folder.join("real"), folder.join("linked")).expect("writable");
        rustix::fs::mknodat(CWD, folder.join("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0)
            .expect("writable");
        open(&folder.join("real/file"), OFlags::RDONLY).expect("a file");
        for name in ["link", "linked/file", "pipe"] {
            open(&folder.join(name), OFlags::RDONLY).expect_err(name);
        }
        open(&folder.join("link"), OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
            .expect_err("a link");
        open(&folder.join("new"), OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE).expect("made");
    }
}
