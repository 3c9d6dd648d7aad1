//! What the process is doing, in shared memory: the agent reads it while user code holds the interpreter.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};
use protocol::{STATUS_PAGE_BYTES, status_offset};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::time::{ClockId, clock_gettime};

/// The mapped page.
#[pyclass(frozen)]
pub struct StatusPage {
    page: MmapRaw,
    enabled: AtomicBool,
}

#[pymethods]
impl StatusPage {
    /// Maps the page behind `fd`, which stays the caller's.
    #[new]
    fn new(fd: RawFd) -> PyResult<Self> {
        // SAFETY: the file is only borrowed; `ManuallyDrop` leaves it open.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let page = MmapOptions::new()
            .len(STATUS_PAGE_BYTES)
            .map_raw(&*file)
            .map_err(|error| PyOSError::new_err(format!("cannot map the status page: {error}")))?;
        Ok(Self { page, enabled: AtomicBool::new(true) })
    }

    /// The process works on hand-over `sequence` (0: none) and has just entered `phase`.
    fn set(&self, sequence: u64, phase: u8) {
        if !self.enabled.load(Ordering::Relaxed) {
            return;
        }
        let now = clock_gettime(ClockId::Monotonic);
        let nanoseconds = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        self.field(status_offset::SINCE).store(nanoseconds, Ordering::Release);
        self.field(status_offset::STATE).store((sequence << 8) | u64::from(phase), Ordering::Release);
    }

    /// Begins hand-over `sequence` with `phase`. `False`: the agent has taken it back, and it must not be worked on.
    fn begin(&self, sequence: u64, phase: u8) -> bool {
        self.set(sequence, phase);
        fence(Ordering::SeqCst);
        let end = self.field(status_offset::RECALL_END).load(Ordering::Acquire);
        let first = self.field(status_offset::RECALL_FIRST).load(Ordering::Acquire);
        !(first..end).contains(&sequence)
    }

    /// A forked child shares the page and must leave it alone.
    fn disable(&self) {
        self.enabled.store(false, Ordering::Relaxed);
    }
}

impl StatusPage {
    fn field(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: all offsets are multiples of 8 within the page, the mapping lives as long as `self`, and every
        // access to these bytes, in either process, is atomic.
        unsafe { AtomicU64::from_ptr(self.page.as_mut_ptr().add(offset).cast()) }
    }
}
