//! How this process keeps memory that it has freed.

/// Freed memory that stays with the process, bytes. What the C library arrives at by itself once a block of half that
/// size was freed. The Python processes do the same (`python/src/memory.rs`).
#[cfg(target_env = "gnu")]
const KEPT_BYTES: i32 = 64 << 20;

/// Has the C library keep what is freed: a table is as large as the one before it, and getting its pages from the
/// kernel again takes longer than filling them. In as many places as there are cores, not in eight times as many: what
/// one has kept, the others cannot use. For `main`, before threads start.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        // SAFETY: plain settings of the allocator.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES / 2);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
            libc::mallopt(libc::M_ARENA_MAX, cores.try_into().unwrap_or(i32::MAX));
        }
    }
}
