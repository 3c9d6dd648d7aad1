//! Control groups that limit the memory of jobs: one for the Python processes of each job on this node, inside one for all
//! jobs. A job that takes all memory then loses a process of its own, and worker and neighbours go on.
//!
//! ```text
//! group of the worker ── gristmill-worker      the worker, and what was in its group (version 2 only)
//!                     └─ gristmill-jobs-PID ── one for each job
//! ```
//!
//! Version 2 allows no processes in a group that divides memory, so the worker moves into a leaf. It does so only in a
//! group that is its own: one of a container, or one that systemd delegates (`Delegate=yes`). Everything is plain
//! reads and writes of files; [`plan`] changes nothing, and `doctor` shows its answer.

use std::fmt;
use std::fs::{self, File, read_to_string};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::memory;
use rustix::fs::Access;

const WORKER: &str = "gristmill-worker";
const JOBS: &str = "gristmill-jobs-";
/// Part of the memory of a node that jobs leave to the worker and the system, and the most that they leave.
const RESERVE_PART: u64 = 20;
const RESERVE_BYTES_MAX: u64 = 1 << 30;
/// Rounds of moving processes: others may start processes meanwhile.
const ROUNDS_MAX: usize = 10;
/// The kernel takes a moment to let go of the processes that have ended.
const REMOVALS_MAX: u32 = 10;
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);

/// Version of the hierarchy that limits memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn limit(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }

    /// The file with the line `oom_kill`.
    fn events(self) -> &'static str {
        match self {
            Self::One => "memory.oom_control",
            Self::Two => "memory.events",
        }
    }

    /// Returns how often a group has met its own limit.
    fn limit_met(self, folder: &Path) -> Option<u64> {
        match self {
            Self::One => read_to_string(folder.join("memory.failcnt")).ok()?.trim().parse().ok(),
            Self::Two => value(&folder.join("memory.events"), "oom "),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::One => "cgroup v1",
            Self::Two => "cgroup v2",
        })
    }
}

/// How a worker on this machine would limit the memory of jobs.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    version: Version,
    /// The group that becomes the parent of the groups of jobs.
    parent: PathBuf,
    /// Whether its processes move into a leaf first.
    moves: bool,
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, in {}", self.version, self.parent.display())
    }
}

/// The reason why a worker in this process cannot limit the memory of jobs.
#[derive(Debug, thiserror::Error)]
pub enum NoMemoryGroups {
    /// Control groups are absent.
    #[error("this kernel has no control groups")]
    Kernel,
    /// Control groups do not count memory.
    #[error("there is no hierarchy for memory")]
    Hierarchy,
    /// A container sees its group by a path of the host.
    #[error("its control group is outside of its namespace")]
    Namespace,
    /// The group cannot divide memory.
    #[error("{} has no memory controller", .0.display())]
    Controller(PathBuf),
    /// The group belongs to systemd.
    #[error("systemd does not delegate {}; set Delegate=yes in the unit of the worker", .0.display())]
    NotDelegated(PathBuf),
    /// A file of the group is missing, or belongs to another user.
    #[error("cannot write {}", path.display())]
    Access {
        /// The file.
        path: PathBuf,
        /// The answer of the kernel.
        source: io::Error,
    },
}

/// Returns how a worker of this process would limit the memory of jobs, or why it cannot.
pub fn plan() -> Result<Plan, NoMemoryGroups> {
    plan_below(Path::new("/"), rustix::process::geteuid().is_root())
}

fn plan_below(root: &Path, is_root: bool) -> Result<Plan, NoMemoryGroups> {
    let groups =
        read_to_string(root.join("proc/self/cgroup")).map_err(|_| NoMemoryGroups::Kernel)?;
    let mount = root.join("sys/fs/cgroup");
    if let Some(path) = groups.lines().find_map(path_of_version_1) {
        let top = mount.join("memory");
        let own = top.join(path);
        // A container without a namespace of its own sees the path that the host sees.
        let parent = if own.is_dir() { own } else { top };
        let plan = Plan { version: Version::One, parent, moves: false };
        return may_write(&plan.parent, &["memory.limit_in_bytes"]).map(|()| plan);
    }
    let path = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .ok_or(NoMemoryGroups::Hierarchy)?;
    if path.split('/').any(|part| part == "..") {
        return Err(NoMemoryGroups::Namespace);
    }
    let own = mount.join(path);
    let is_leaf = own.file_name().is_some_and(|name| name == WORKER);
    let parent = if is_leaf { own.parent().unwrap_or(&own).to_owned() } else { own };
    let controllers = read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
    if !controllers.split_whitespace().any(|controller| controller == "memory") {
        return Err(NoMemoryGroups::Controller(parent));
    }
    may_write(&parent, &["cgroup.procs", "cgroup.subtree_control"])?;
    // Groups that systemd has not delegated are its own, even where root can write.
    if is_root && !path.is_empty() && !is_delegated(&parent) {
        return Err(NoMemoryGroups::NotDelegated(parent));
    }
    // Only the root of the hierarchy has no type; it may have processes and divide memory.
    let moves = !is_leaf && parent.join("cgroup.type").exists();
    Ok(Plan { version: Version::Two, parent, moves })
}

/// Returns the path of `4:memory:/path` without the first slash.
pub(crate) fn path_of_version_1(line: &str) -> Option<&str> {
    let mut fields = line.splitn(3, ':').skip(1);
    let has_memory = fields.next()?.split(',').any(|controller| controller == "memory");
    fields.next()?.strip_prefix('/').filter(|_| has_memory)
}

fn may_write(folder: &Path, files: &[&str]) -> Result<(), NoMemoryGroups> {
    let paths = [folder.to_owned()].into_iter().chain(files.iter().map(|name| folder.join(name)));
    for path in paths {
        rustix::fs::access(&path, Access::WRITE_OK)
            .map_err(|errno| NoMemoryGroups::Access { path, source: errno.into() })?;
    }
    Ok(())
}

fn is_delegated(folder: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].into_iter().any(|name| {
        let mut value = [0; 8];
        rustix::fs::getxattr(folder, name, &mut value).is_ok_and(|length| value[..length] == *b"1")
    })
}

impl Plan {
    /// Creates the group for all jobs of a node with this memory. Moves the worker, if necessary.
    pub fn carry_out(self, node_memory: u64) -> io::Result<MemoryGroups> {
        let Self { version, parent, moves } = self;
        if moves {
            move_processes(&parent, &create(&parent, WORKER)?)?;
        }
        remove_left(&parent);
        let folder = create(&parent, &format!("{JOBS}{}", std::process::id()))?;
        match version {
            Version::One => drop(fs::write(folder.join("memory.use_hierarchy"), "1")),
            Version::Two => {
                fs::write(parent.join("cgroup.subtree_control"), "+memory")?;
                fs::write(folder.join("cgroup.subtree_control"), "+memory")?;
            }
        }
        if node_memory == 0 {
            return Err(io::Error::other("the memory of this machine is unknown"));
        }
        let limit = node_memory - (node_memory / RESERVE_PART).min(RESERVE_BYTES_MAX);
        let groups = MemoryGroups { version, folder, limit };
        fs::write(groups.folder.join(version.limit()), limit.to_string())?;
        Ok(groups)
    }
}

/// Moves all processes of a group, the caller included.
fn move_processes(from: &Path, to: &Path) -> io::Result<()> {
    for _ in 0..ROUNDS_MAX {
        let processes = read_to_string(from.join("cgroup.procs"))?;
        if processes.trim().is_empty() {
            break;
        }
        for process in processes.lines() {
            match fs::write(to.join("cgroup.procs"), process) {
                // It has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                moved => moved?,
            }
        }
    }
    Ok(())
}

/// Removes the groups of killed workers.
fn remove_left(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(JOBS)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove_all(&entry.path());
        }
    }
}

fn create(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let folder = parent.join(name);
    match fs::create_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(folder),
        created => created.map(|()| folder),
    }
}

/// Removes a group and those below it, except groups with processes.
fn remove_all(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            let _ = fs::remove_dir(entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// The groups of the jobs of this node.
#[derive(Debug)]
pub struct MemoryGroups {
    version: Version,
    folder: PathBuf,
    /// Memory of all jobs together.
    limit: u64,
}

impl MemoryGroups {
    /// Memory of all jobs of this node together.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Creates the group of a job. `max_memory`: its limit; 0: none but that of all jobs together.
    pub fn of_job(&self, job_id: &str, max_memory: u64) -> io::Result<MemoryGroup> {
        // The group of an earlier visit may not have disappeared yet.
        let mut names = (1_u64..)
            .map(|visit| if visit == 1 { job_id.to_owned() } else { format!("{job_id}.{visit}") });
        let folder = loop {
            let folder = self.folder.join(names.next().expect("the numbers do not end"));
            match fs::create_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => break created.map(|()| folder)?,
            }
        };
        let group =
            MemoryGroup { version: self.version, folder, own: max_memory, of_node: self.limit };
        if max_memory > 0 {
            fs::write(group.folder.join(self.version.limit()), max_memory.to_string())?;
        }
        Ok(group)
    }
}

impl Drop for MemoryGroups {
    fn drop(&mut self) {
        remove_all(&self.folder);
    }
}

/// The group of a job on this node, which is removed when the value is dropped.
#[derive(Debug)]
pub struct MemoryGroup {
    version: Version,
    folder: PathBuf,
    own: u64,
    of_node: u64,
}

impl MemoryGroup {
    /// Returns the file to which a process writes `0` to enter the group.
    pub fn entrance(&self) -> io::Result<File> {
        File::options().write(true).open(self.folder.join("cgroup.procs"))
    }

    /// Returns how many processes of the job the kernel has killed because memory ran out.
    pub fn kills(&self) -> Option<u64> {
        value(&self.folder.join(self.version.events()), "oom_kill ")
    }

    /// Returns the limit that such a process met, and the remedy, for the end of a sentence.
    pub fn why(&self) -> String {
        if self.own > 0 && self.version.limit_met(&self.folder).is_some_and(|count| count > 0) {
            return format!(
                "because the processes of the job on this node need more than its max_memory, {}: raise max_memory, or \
                 use smaller mini-batches or fewer processes (process_count_per_node)",
                memory(self.own)
            );
        }
        format!(
            "because the jobs of this node together need more than the {} that it has for jobs: use smaller mini-batches or \
             fewer processes (process_count_per_node), require larger nodes (requires.memory), or limit the jobs beside \
             it (max_memory)",
            memory(self.of_node)
        )
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let folder = std::mem::take(&mut self.folder);
        if fs::remove_dir(&folder).is_ok() {
            return;
        }
        std::thread::spawn(move || {
            for _ in 0..REMOVALS_MAX {
                std::thread::sleep(REMOVAL_PAUSE);
                if fs::remove_dir(&folder).is_ok() {
                    return;
                }
            }
            tracing::debug!(file.path = %folder.display(), "a control group stays until the worker ends");
        });
    }
}

/// Returns the number after a word at the beginning of a line of a file of the kernel; in bytes if it is one of kilobytes.
pub(crate) fn value(file: &Path, word: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(word))?.trim();
    match value.strip_suffix(" kB") {
        Some(kilobytes) => Some(kilobytes.parse::<u64>().ok()? * 1024),
        None => value.parse().ok(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
