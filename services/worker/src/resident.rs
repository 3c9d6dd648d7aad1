//! The resident memory of a process, by which the scheduler decides whether to replace it (`process_max_memory`).

/// Returns the resident memory (RSS) of a process in bytes, without its children; `None` if it has ended.
pub fn resident(pid: u32) -> Option<u64> {
    resident_of(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn resident_of(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read() {
        assert_eq!(resident_of("Name:\tpython\nVmRSS:\t    2048 kB\nThreads:\t1\n"), Some(2 << 20));
        assert_eq!(resident_of("Name:\tzombie\nState:\tZ\n"), None);
        assert!(resident(std::process::id()).is_some_and(|bytes| bytes > 1 << 20));
    }
}
