//! The resident memory of a process, by which the scheduler decides whether to replace it (`process_max_memory`).

use std::path::Path;

use crate::memory_groups::value;

/// Returns the resident memory (RSS) of a process in bytes, without its children; `None` if it has ended.
pub fn resident(pid: u32) -> Option<u64> {
    value(Path::new(&format!("/proc/{pid}/status")), "VmRSS:")
}

#[cfg(test)]
mod tests {
    #[test]
    fn resident_memory_is_read() {
        assert!(super::resident(std::process::id()).is_some_and(|bytes| bytes > 1 << 20));
    }
}
