//! The kernel's count of processes that it killed because memory ran out: evidence about a SIGKILL.

use std::path::Path;

use crate::memory_groups::value;
use crate::pressure::groups;

/// Returns the number of processes that the kernel has killed because memory ran out, in this container if it has its
/// own count, else on this machine. Returns `None` if the kernel reports no count.
pub fn kills() -> Option<u64> {
    let count = |file: &Path| value(file, "oom_kill ");
    let groups = groups(Path::new("/"));
    let in_cgroup = groups.first().and_then(|own| count(&own.join("memory.events")));
    in_cgroup.or_else(|| count(Path::new("/proc/vmstat")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernel_has_a_count() {
        assert!(super::kills().is_some(), "Linux 4.13 or newer has one");
    }
}
