//! The kernel's count of processes that it killed because memory ran out: evidence about a SIGKILL.

/// Returns the number of processes that the kernel has killed because memory ran out, in this container if it has its
/// own count, else on this machine. Returns `None` if the kernel reports no count.
pub fn kills() -> Option<u64> {
    let in_cgroup = || {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        let events = std::fs::read_to_string(format!("/sys/fs/cgroup{path}/memory.events")).ok()?;
        count(&events)
    };
    in_cgroup().or_else(|| count(&std::fs::read_to_string("/proc/vmstat").ok()?))
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_of_the_kernel_is_parsed() {
        assert_eq!(count("low 0\noom 3\noom_kill 2\noom_group_kill 1\n"), Some(2));
        assert_eq!(count("nr_free_pages 1\n"), None);
        assert!(kills().is_some(), "Linux 4.13 or newer has a count");
    }
}
