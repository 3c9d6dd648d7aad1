//! Keeps freed memory in the process.

use pyo3::prelude::*;

/// Bytes of freed memory that the process keeps: the value that the C library itself chooses once the process frees a
/// block of half that size. The agent does the same (`worker/src/allocator.rs`).
#[cfg(target_env = "gnu")]
const KEPT_BYTES: i32 = 64 << 20;

/// Makes the C library keep freed memory: a frame is as large as the one before it, and getting its pages from the
/// kernel again takes longer than filling them.
#[pyfunction]
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: these calls only change settings of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES / 2);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        // For threads of the script; see the agent.
        libc::mallopt(libc::M_TOP_PAD, KEPT_BYTES);
    }
}
