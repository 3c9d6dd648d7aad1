//! Kills processes that user code leaves behind. A child that has left its session (`setsid`, a daemon) would survive
//! the process group of its parent.
//!
//! The agent adopts such children (`PR_SET_CHILD_SUBREAPER`) instead of the machine's first process, so they become its
//! own children when their parent ends. An environment variable tells which Python process they belong to. The agent
//! signals only its own children, so it never hits a recycled process id.

use std::collections::BTreeMap;
use std::io::Result;
use std::path::Path;
use std::sync::{Mutex, Once};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};

/// Environment variable that names the Python process. Part of the contract with the Python package.
pub const PROCESS_VARIABLE: &str = "GRISTMILL_PROCESS";
/// Generations of processes to search: the agent adopts the children of each process that it kills.
const GENERATIONS_MAX: usize = 20;
/// Checks for the end of a killed process. Only one that hangs in the kernel takes longer.
const REAP_TRIES: u32 = 50;
const REAP_PAUSE: Duration = Duration::from_millis(2);

/// Running Python processes, by what they are. Locked while one starts, so that it does not count as an orphan.
static PYTHON_PROCESSES: Mutex<BTreeMap<i32, Kind>> = Mutex::new(BTreeMap::new());

/// The purpose of a Python process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It runs the script, and may leave processes behind.
    Worker,
    /// It forks workers, and leaves no processes behind.
    Template,
}

/// Starts a Python process, whose orphans become children of this process.
pub fn start<T>(
    kind: Kind,
    start: impl FnOnce() -> Result<T>,
    id: impl FnOnce(&T) -> Pid,
) -> Result<T> {
    static ADOPT: Once = Once::new();
    // SAFETY: sets a flag of this process.
    ADOPT.call_once(|| unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    });
    let mut processes = PYTHON_PROCESSES.lock().expect("no holder panics");
    let started = start()?;
    processes.insert(id(&started).as_raw_nonzero().get(), kind);
    Ok(started)
}

/// Registers a Python process that a template has forked. Fails if it is not an adopted child that leads its session.
pub fn register_forked(pid: Pid) -> Result<()> {
    let mut processes = PYTHON_PROCESSES.lock().expect("no holder panics");
    let number = pid.as_raw_nonzero().get();
    let found = Stat::of(number)
        .filter(|one| one.parent == std::process::id() as i32 && one.session == number);
    if found.is_none() || processes.contains_key(&number) {
        return Err(std::io::Error::other(format!(
            "process {number} is not a new child of this process"
        )));
    }
    processes.insert(number, Kind::Worker);
    Ok(())
}

/// Kills the orphans of a Python process that has been reaped. `marker`: the value of its variable.
pub fn kill(leader: Pid, marker: &str) {
    PYTHON_PROCESSES.lock().expect("no holder panics").remove(&leader.as_raw_nonzero().get());
    let variable = format!("{PROCESS_VARIABLE}={marker}");
    // The kernel's list may omit a child while another child, or a thread of this process, ends.
    let mut lists_without_any = 0;
    for _ in 0..GENERATIONS_MAX {
        let is_last = !PYTHON_PROCESSES
            .lock()
            .expect("no holder panics")
            .values()
            .any(|kind| *kind == Kind::Worker);
        let belongs = |pid: Pid| match environment_has(pid, variable.as_bytes()) {
            Some(belongs) => belongs,
            // Its environment is unreadable, and it can belong to no running Python process.
            None => is_last,
        };
        let left: Vec<Pid> = adopted()
            .into_iter()
            .filter_map(|(pid, is_over)| (is_over || belongs(pid)).then_some(pid))
            .collect();
        lists_without_any = if left.is_empty() { lists_without_any + 1 } else { 0 };
        if lists_without_any == 2 {
            return;
        }
        for &pid in &left {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        left.into_iter().for_each(reap);
    }
}

/// Reaps adopted children that have ended by themselves.
pub fn reap_ended() {
    adopted().into_iter().filter(|(_, is_over)| *is_over).for_each(|(pid, _)| reap(pid));
}

fn reap(pid: Pid) {
    for _ in 0..REAP_TRIES {
        match rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
            Ok(None) => std::thread::sleep(REAP_PAUSE),
            _ => return,
        }
    }
}

/// Returns the adopted children of this process, and whether they have ended. The children that it started itself are
/// Python processes or share its session.
fn adopted() -> Vec<(Pid, bool)> {
    let processes = PYTHON_PROCESSES.lock().expect("no holder panics");
    // Zero in a container that a process of another session has entered, so it is not a `Pid`.
    // SAFETY: only asks the kernel.
    let own_session = unsafe { libc::getsid(0) };
    let mut found = Vec::new();
    for pid in children() {
        let Some(child) = Stat::of(pid) else { continue };
        if !processes.contains_key(&pid)
            && child.session != own_session
            && child.parent == std::process::id() as i32
        {
            found.extend(Pid::from_raw(pid).map(|pid| (pid, child.state == 'Z')));
        }
    }
    found
}

/// Returns the process ids of the children of this process.
fn children() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists: Result<Vec<String>> = tasks
        .map(|task| std::fs::read_to_string(task.path().join("children")))
        // A thread may have ended since it was listed.
        .filter(|list| !matches!(list, Err(error) if error.raw_os_error() == Some(libc::ESRCH)))
        .collect();
    match lists {
        Ok(lists) => lists
            .iter()
            .flat_map(|list| list.split_whitespace())
            .filter_map(|pid| pid.parse().ok())
            .collect(),
        // The kernel does not list children.
        Err(_) => {
            let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
        }
    }
}

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// `R`, `S`, `D`, `T`, `Z`, …
    pub state: char,
    parent: i32,
    session: i32,
}

impl Stat {
    /// Reads the fields of a process. Returns `None` if it has ended and been reaped.
    pub fn of(pid: i32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain any character.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        Some(Self { state, parent, session })
    }
}

/// Returns whether a process has this variable, or `None` if its environment cannot be read.
pub(crate) fn environment_has(pid: Pid, variable: &[u8]) -> Option<bool> {
    let path = Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join("environ");
    let environment = std::fs::read(path).ok().filter(|environment| !environment.is_empty())?;
    Some(environment.split(|byte| *byte == 0).any(|one| one == variable))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// A shell in a session of its own that leaves a child in yet another session, and ends.
    fn leaves_a_daemon(marker: &str, file: &Path) -> Pid {
        let script = format!(
            "setsid sh -c 'echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000' & exit 0",
            file.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env(PROCESS_VARIABLE, marker);
        // SAFETY: `setsid` is async-signal-safe.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(|_| ())?)) };
        let mut shell =
            start(Kind::Worker, || command.spawn(), Pid::from_child).expect("a shell starts");
        let pid = Pid::from_child(&shell);
        shell.wait().expect("it ends");
        pid
    }

    fn read_pid(file: &Path) -> i32 {
        loop {
            if let Ok(text) = std::fs::read_to_string(file) {
                return text.trim().parse().expect("a process id");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn daemon_ends_with_its_own_process() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        let (first, second) = (leaves_a_daemon("one", &one), leaves_a_daemon("other", &other));
        let (first_daemon, second_daemon) = (read_pid(&one), read_pid(&other));
        kill(first, "one");
        assert!(Stat::of(first_daemon).is_none(), "killed and reaped");
        assert!(Stat::of(second_daemon).is_some(), "it belongs to another process");
        kill(second, "other");
        assert!(Stat::of(second_daemon).is_none());
    }
}
