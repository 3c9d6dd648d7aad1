//! The memory that this machine or container has available, and whether it is short of it.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use crate::memory_groups::value;

/// Memory is short when less is available than this part of it, or than this many bytes if that is less.
const PART: u64 = 10;
const BYTES: u64 = 2 << 30;

/// Returns whether the machine, or a control group of this process, is short of memory.
pub fn is_short() -> bool {
    is_short_below(Path::new("/"))
}

fn is_short_below(root: &Path) -> bool {
    limits(root).any(|(total, available)| available < BYTES.min(total / PART))
}

/// Returns the memory in bytes that is available to this process; `None`: unknown.
pub fn available_memory() -> Option<u64> {
    limits(Path::new("/")).map(|(_, available)| available).min()
}

/// Returns the total and the available memory of the machine and of each control group of this process that has a
/// limit.
fn limits(root: &Path) -> impl Iterator<Item = (u64, u64)> {
    machine(root).into_iter().chain(groups(root).into_iter().filter_map(|group| of_group(&group)))
}

/// Returns the total and the available memory of the machine.
pub(crate) fn machine(root: &Path) -> Option<(u64, u64)> {
    let bytes = |word| value(&root.join("proc/meminfo"), word);
    Some((bytes("MemTotal:")?, bytes("MemAvailable:")?))
}

/// Returns the limit of a control group, and its available memory, which includes file pages that
/// the kernel can drop.
fn of_group(group: &Path) -> Option<(u64, u64)> {
    let number = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let files = value(&group.join("memory.stat"), "inactive_file ").unwrap_or(0);
    Some((limit, limit.saturating_sub(used.saturating_sub(files))))
}

/// Returns the control groups of this process (version 2), from its own to the outermost.
pub(crate) fn groups(root: &Path) -> Vec<PathBuf> {
    let own = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    Path::new(own).ancestors().map(|group| root.join("sys/fs/cgroup").join(group)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_groups::tests::Root;

    #[test]
    fn memory_of_machine_and_container_may_be_short() {
        let root = Root::new([]);
        let write = |name, text| root.write(name, text);
        let is_short = || is_short_below(&root.path(""));
        assert!(!is_short(), "unknown");
        write(
            "proc/meminfo",
            "MemTotal:  10000000 kB\nMemFree:  1 kB\nMemAvailable:   2000000 kB\n",
        );
        assert!(!is_short());
        write(
            "proc/meminfo",
            "MemTotal:  10000000 kB\nMemFree:  1 kB\nMemAvailable:   900000 kB\n",
        );
        assert!(is_short());
        write(
            "proc/meminfo",
            "MemTotal:  1000000000 kB\nMemFree:  1 kB\nMemAvailable:   3000000 kB\n",
        );
        assert!(!is_short(), "3 GB of a large machine are enough");
        let available = || limits(&root.path("")).map(|(_, available)| available).min();
        assert_eq!(available(), Some(3_000_000 << 10));
        write("proc/self/cgroup", "0::/system.slice/worker.service\n");
        write("sys/fs/cgroup/system.slice/memory.max", "1000000000\n");
        write("sys/fs/cgroup/system.slice/memory.current", "950000000\n");
        assert!(is_short(), "a group around that of the process");
        write("sys/fs/cgroup/system.slice/memory.stat", "anon 1\ninactive_file 400000000\n");
        assert!(!is_short(), "the kernel can drop files");
        assert_eq!(available(), Some(450_000_000));
        write("sys/fs/cgroup/system.slice/memory.max", "max\n");
        write("sys/fs/cgroup/system.slice/memory.stat", "");
        assert!(!is_short());
    }
}
