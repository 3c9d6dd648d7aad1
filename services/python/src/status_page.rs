//! The current phase of the process, in shared memory that the agent can read while user code holds the interpreter.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};
use protocol::status_offset::PRINTED;
use protocol::{STATUS_PAGE_BYTES, SlotPhase, status_offset};
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
    /// Maps the page behind `fd`, which still belongs to the caller.
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

    /// Notes that the process works on hand-over `sequence` (0: none) and enters `phase`. Returns the time in seconds
    /// of a monotonic clock, so that the caller need not read it again.
    fn set(&self, sequence: u64, phase: u8) -> f64 {
        let now = clock_gettime(ClockId::Monotonic);
        let nanoseconds = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        if self.enabled.load(Ordering::Relaxed) {
            if phase == SlotPhase::Run as u8 {
                self.field(status_offset::RUN_SINCE).store(nanoseconds, Ordering::Release);
            }
            self.field(status_offset::SINCE).store(nanoseconds, Ordering::Release);
            self.field(status_offset::STATE)
                .store((sequence << 8) | u64::from(phase), Ordering::Release);
        }
        nanoseconds as f64 / 1e9
    }

    /// Starts hand-over `sequence` with `phase`. Returns the time, or `None` if the agent has recalled the hand-over,
    /// which then must not run.
    fn begin(&self, sequence: u64, phase: u8) -> Option<f64> {
        let now = self.set(sequence, phase);
        fence(Ordering::SeqCst);
        let end = self.field(status_offset::RECALL_END).load(Ordering::Acquire);
        let first = self.field(status_offset::RECALL_FIRST).load(Ordering::Acquire);
        (!(first..end).contains(&sequence)).then_some(now)
    }

    /// Notes that hand-over `attempt` is about to print to `stream` (0: stdout, 1: stderr) at `offset` of the file.
    /// Only the first call for each attempt has an effect, even among forked processes.
    fn note_printed(&self, stream: usize, attempt: u64, offset: u64) {
        let [attempt_field, offset_field] = PRINTED[stream];
        if self.field(attempt_field).load(Ordering::Acquire) == attempt + 1 {
            return;
        }
        self.field(offset_field).store(offset, Ordering::Release);
        self.field(attempt_field).store(attempt + 1, Ordering::Release);
    }

    /// Returns the offset of the output of hand-over `attempt` in the file of `stream`, or `None` if it has no output.
    fn printed_from(&self, stream: usize, attempt: u64) -> Option<u64> {
        let [attempt_field, offset_field] = PRINTED[stream];
        let is_noted = self.field(attempt_field).load(Ordering::Acquire) == attempt + 1;
        is_noted.then(|| self.field(offset_field).load(Ordering::Acquire))
    }

    /// Disables writes in a forked child, which shares the page with its parent.
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
