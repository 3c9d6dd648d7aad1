//! A process does not outlive its agent.
//!
//! The watch is a thread of its own that never takes the interpreter's lock, so it also ends a process whose user
//! code holds that lock forever.

use std::os::fd::{BorrowedFd, RawFd};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpgrp, getpid, kill_process, kill_process_group};

/// Ends this process, and its process group if it leads one, as soon as the peer of socket `fd` is gone.
#[pyfunction]
pub fn watch(fd: RawFd) -> PyResult<()> {
    std::thread::Builder::new()
        .name("gristmill-watch".to_owned())
        .stack_size(64 * 1024)
        .spawn(move || wait_for_hang_up(fd))
        .map(drop)
        .map_err(|error| PyOSError::new_err(format!("cannot start the thread that watches the agent: {error}")))
}

fn wait_for_hang_up(fd: RawFd) {
    loop {
        // SAFETY: the descriptor belongs to the process for its whole life. Should user code close it all the same,
        // poll says so, and the next answer to the agent fails.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut interest = [PollFd::new(&socket, PollFlags::empty())];
        match poll(&mut interest, None) {
            Ok(_) if interest[0].revents().contains(PollFlags::NVAL) => return,
            Ok(_) if interest[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) => end_process_group(),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn end_process_group() -> ! {
    let own = getpid();
    if getpgrp() == own {
        // Children that user code started go with it.
        let _ = kill_process_group(own, Signal::KILL);
    }
    let _ = kill_process(own, Signal::KILL);
    std::process::abort()
}
