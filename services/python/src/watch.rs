//! Ends the process when its agent ends.
//!
//! A thread watches the agent. It never takes the interpreter's lock, so it also ends a process whose user code holds
//! that lock forever. If the kernel allows it, the thread has its own table of descriptors, so it still watches when
//! user code closes every descriptor.
//!
//! It kills the process with all its descendants, even those in other sessions. The leases of the dead agent expire,
//! and the queue delivers the mini-batches again. That counts as a lost delivery, not as a try.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Signal, getpid, getrlimit, kill_process, kill_process_group};

/// Lowest descriptor for the socket: above those that `os.closerange(3, 256)` closes and that user code guesses. Higher
/// numbers enlarge the table of descriptors, which every fork copies.
const SOCKET_FD_MIN: u64 = 4000;
/// Number of descriptors to leave above the socket if the limit of descriptors is lower.
const FD_RESERVE: u64 = 16;
/// Maximum number of searches for processes to kill: processes may fork during a search.
const KILL_ROUNDS: usize = 20;

/// Moves a descriptor to a high number, closed on exec, and returns the number.
#[pyfunction]
pub fn move_out_of_reach(fd: RawFd) -> PyResult<RawFd> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = SOCKET_FD_MIN.min(limit.saturating_sub(FD_RESERVE)) as RawFd;
    // SAFETY: the caller passes ownership of the descriptor.
    let original = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_dupfd_cloexec(&original, lowest).map(IntoRawFd::into_raw_fd).map_err(
        |error| PyOSError::new_err(format!("cannot move the socket to the agent: {error}")),
    )
}

/// Overwrites the value that an environment variable had when this process started, so that `/proc/PID/environ` shows
/// the new one, and that of children that the process forks. The new value must not be longer. `os.environ` does not
/// change.
#[pyfunction]
pub fn rewrite_variable(name: CString, value: &str) -> PyResult<()> {
    // SAFETY: the caller has one thread, and nothing has replaced the variable since the start.
    unsafe {
        let found = libc::getenv(name.as_ptr());
        if found.is_null() || libc::strlen(found) < value.len() {
            return Err(PyOSError::new_err(format!("{name:?} has no room for {value}")));
        }
        let room = libc::strlen(found);
        std::ptr::copy_nonoverlapping(value.as_ptr().cast(), found, value.len());
        std::ptr::write_bytes(found.add(value.len()), 0, room - value.len());
    }
    Ok(())
}

/// Starts the thread that ends this process, its process group if it leads one, and every process whose environment
/// contains the variable `marker` (`NAME=VALUE`), as soon as the peer of socket `fd` closes it.
#[pyfunction]
#[pyo3(signature = (fd, marker=None))]
pub fn watch(fd: RawFd, marker: Option<String>) -> PyResult<()> {
    std::thread::Builder::new()
        .name("gristmill-watch".to_owned())
        .stack_size(64 * 1024)
        .spawn(move || wait_for_hang_up(fd, marker.as_deref()))
        .map(drop)
        .map_err(|error| {
            PyOSError::new_err(format!("cannot start the thread that watches the agent: {error}"))
        })
}

fn wait_for_hang_up(fd: RawFd, marker: Option<&str>) {
    // The interpreter must handle signals: a stack dump names the thread that handles its signal as the current one.
    block_signals();
    // SAFETY: this thread uses only the socket. If the kernel refuses, the table remains shared.
    unsafe { libc::unshare(libc::CLONE_FILES) };
    loop {
        // SAFETY: the process owns the descriptor for its whole life. If user code closes it in a shared table, `poll`
        // reports that, and the next answer to the agent fails.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut interest = [PollFd::new(&socket, PollFlags::empty())];
        match poll(&mut interest, None) {
            Ok(_) if interest[0].revents().contains(PollFlags::NVAL) => return,
            Ok(_) if interest[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) => {
                end_process_tree(marker)
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn block_signals() {
    // SAFETY: `sigfillset` initializes the set, and the mask applies only to this thread.
    unsafe {
        let mut every: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut every);
        libc::pthread_sigmask(libc::SIG_BLOCK, &every, std::ptr::null_mut());
    }
}

fn end_process_tree(marker: Option<&str>) -> ! {
    let own = getpid();
    // Children that have left the process group are found by their environment.
    if let Some(marker) = marker {
        for _ in 0..KILL_ROUNDS {
            let marked: Vec<Pid> =
                marked_processes(marker.as_bytes()).filter(|pid| *pid != own).collect();
            if marked.is_empty() {
                break;
            }
            for pid in marked {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
    // Not a `Pid`, because it is zero if the leader of the group is outside the container.
    // SAFETY: `getpgrp` only returns a number.
    if unsafe { libc::getpgrp() } == own.as_raw_nonzero().get() {
        let _ = kill_process_group(own, Signal::KILL);
    }
    let _ = kill_process(own, Signal::KILL);
    std::process::abort()
}

fn marked_processes(marker: &[u8]) -> impl Iterator<Item = Pid> {
    std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(move |entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        // A process that has ended has no environment.
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|variable| variable == marker).then_some(pid)
    })
}
