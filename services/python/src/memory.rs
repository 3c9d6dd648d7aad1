//! How the process keeps memory that it has freed.

use pyo3::prelude::*;

/// Freed memory that stays with the process, bytes. What the C library arrives at by itself once a block of half that
/// size was freed. The agent does the same (`worker/src/allocator.rs`).
#[cfg(target_env = "gnu")]
const KEPT_BYTES: i32 = 64 << 20;

/// Has the C library keep what is freed: a frame is as large as the one before it, and getting its pages from the
/// kernel again takes longer than filling them.
#[pyfunction]
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: plain settings of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES / 2);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        // Scripts may have threads of their own: see the agent.
        libc::mallopt(libc::M_TOP_PAD, KEPT_BYTES);
    }
}
