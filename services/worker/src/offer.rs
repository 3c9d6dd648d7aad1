//! The resources that this machine offers to jobs.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::Path;

use protocol::Offer;

use crate::gpu::cores;
use crate::memory_groups::path_of_version_1;
use crate::pressure::{groups, machine};

/// Returns the offer of a worker on this machine, or in this container.
pub fn offer(gpus: u32, labels: BTreeMap<String, String>) -> Offer {
    Offer { gpus, memory: memory(Path::new("/")), processors: cores(), labels }
}

/// Returns the memory of the machine, or the limit of a control group of this process if that is smaller; 0: unknown.
fn memory(root: &Path) -> u64 {
    let machine = machine(root).map(|(total, _)| total);
    limits(root).into_iter().chain(machine).min().unwrap_or(0)
}

/// Returns the limits of the control groups of this process.
fn limits(root: &Path) -> Vec<u64> {
    let own = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let own = Path::new(own.lines().find_map(path_of_version_1).unwrap_or_default());
    let of_version_1 = own
        .ancestors()
        .map(|group| root.join("sys/fs/cgroup/memory").join(group).join("memory.limit_in_bytes"));
    let files = groups(root).into_iter().map(|group| group.join("memory.max")).chain(of_version_1);
    files.filter_map(|file| read_to_string(file).ok()?.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_groups::tests::Root;

    #[test]
    fn memory_is_the_smallest_limit() {
        let root = Root::new([]);
        let write = |name, text| root.write(name, text);
        let memory = || memory(&root.path(""));
        assert_eq!(memory(), 0, "unknown");
        write("proc/meminfo", "MemTotal:       16000000 kB\nMemAvailable:  1 kB\n");
        write("proc/self/cgroup", "0::/system.slice/worker.service\n");
        write("sys/fs/cgroup/system.slice/worker.service/memory.max", "max\n");
        assert_eq!(memory(), 16_384_000_000);
        write("sys/fs/cgroup/system.slice/memory.max", "4294967296\n");
        assert_eq!(memory(), 4 << 30, "a group around that of the process");
        write("sys/fs/cgroup/system.slice/worker.service/memory.max", "1073741824\n");
        assert_eq!(memory(), 1 << 30);
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(memory(), 1 << 30, "version 1 without a limit");
        write("proc/self/cgroup", "9:memory:/box/inner\n0::/system.slice/worker.service\n");
        write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "536870912\n");
        assert_eq!(memory(), 1 << 29, "a group of version 1 around that of the process");
    }

    #[test]
    fn this_machine_offers_processors_and_memory() {
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let offer = offer(2, labels.clone());
        assert!(
            offer.processors > 0 && offer.memory > 0 && offer.gpus == 2 && offer.labels == labels,
            "{offer}"
        );
    }
}
