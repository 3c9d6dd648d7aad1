//! Plans and groups in folders that look like those of the kernel.

use super::*;

const GIB: u64 = 1 << 30;

/// A folder with files like those below `/`.
pub(crate) struct Root(tempfile::TempDir);

impl Root {
    pub(crate) fn new<const N: usize>(files: [(&str, &str); N]) -> Self {
        let root = Self(tempfile::tempdir().expect("temporary folder"));
        files.into_iter().for_each(|(name, text)| root.write(name, text));
        root
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("has a folder")).expect("writable");
        fs::write(path, text).expect("writable");
    }

    fn read(&self, name: &str) -> String {
        read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn plan(&self, is_root: bool) -> Result<Plan, NoMemoryGroups> {
        plan_below(self.0.path(), is_root)
    }

    fn refusal(&self, is_root: bool) -> String {
        self.plan(is_root).expect_err("such groups cannot be used").to_string()
    }
}

#[test]
fn numbers_of_the_kernel_are_read() {
    let root = Root::new([("status", "Name:\tpython\nVmRSS:\t    2048 kB\nThreads:\t1\n")]);
    let value = |word| value(&root.path("status"), word);
    let read = (value("VmRSS:"), value("Threads:"), value("VmSwap:"));
    assert_eq!(read, (Some(2 << 20), Some(1), None));
}

fn unit() -> Root {
    Root::new([
        ("proc/self/cgroup", "0::/system.slice/worker.service\n"),
        ("sys/fs/cgroup/system.slice/worker.service/cgroup.controllers", "cpu memory pids\n"),
        ("sys/fs/cgroup/system.slice/worker.service/cgroup.subtree_control", ""),
        ("sys/fs/cgroup/system.slice/worker.service/cgroup.procs", "41\n"),
        ("sys/fs/cgroup/system.slice/worker.service/cgroup.type", "domain\n"),
    ])
}

#[test]
fn delegated_unit_gets_a_leaf_for_the_worker_and_groups_for_jobs() {
    let root = unit();
    let own = "sys/fs/cgroup/system.slice/worker.service";
    let plan = root
        .plan(false)
        .expect("the files of another user are writable only if systemd delegates them");
    assert!(plan.moves && plan.to_string().starts_with("cgroup v2, in "), "{plan}");
    let groups = plan.carry_out(40 * GIB).expect("writable");
    assert_eq!(root.read(&format!("{own}/{WORKER}/cgroup.procs")), "41");
    assert_eq!(root.read(&format!("{own}/cgroup.subtree_control")), "+memory");
    let jobs = format!("{own}/{JOBS}{}", std::process::id());
    assert_eq!(root.read(&format!("{jobs}/cgroup.subtree_control")), "+memory");
    assert_eq!(
        root.read(&format!("{jobs}/memory.max")),
        (39 * GIB).to_string(),
        "1 GB is left to the worker"
    );
    let limited = groups.of_job("first", 2 * GIB).expect("writable");
    assert_eq!(root.read(&format!("{jobs}/first/memory.max")), (2 * GIB).to_string());
    let free = groups.of_job("second", 0).expect("writable");
    assert!(
        !root.path(&format!("{jobs}/second/memory.max")).exists(),
        "only the limit of all jobs"
    );

    assert_eq!(limited.kills(), None);
    root.write(
        &format!("{jobs}/first/memory.events"),
        "max 7\noom 2\noom_kill 1\noom_group_kill 0\n",
    );
    assert_eq!(limited.kills(), Some(1));
    assert!(
        limited.why().contains("more than its max_memory, 2 GB: raise max_memory"),
        "{}",
        limited.why()
    );
    root.write(&format!("{jobs}/first/memory.events"), "max 7\noom 0\noom_kill 1\n");
    assert!(
        limited.why().contains("the jobs of this node together need more than the 39 GB"),
        "{}",
        limited.why()
    );
    assert!(free.why().contains("the jobs of this node together"), "{}", free.why());
}

#[test]
fn small_node_keeps_a_twentieth() {
    let groups = unit().plan(false).expect("writable").carry_out(2 * GIB);
    assert_eq!(groups.expect("writable").limit(), 2 * GIB - 2 * GIB / 20);
}

#[test]
fn worker_that_is_already_in_its_leaf_moves_nothing() {
    let root = unit();
    root.write("proc/self/cgroup", "0::/system.slice/worker.service/gristmill-worker\n");
    root.write("sys/fs/cgroup/system.slice/worker.service/gristmill-worker/cgroup.procs", "41\n");
    let plan = root.plan(false).expect("writable");
    assert!(
        !plan.moves && plan.parent == root.path("sys/fs/cgroup/system.slice/worker.service"),
        "{plan}"
    );
}

#[test]
fn groups_that_are_not_the_workers_own_are_left_alone() {
    let root = unit();
    let refusal = root.refusal(true);
    assert!(refusal.contains("set Delegate=yes"), "{refusal}");
    root.write("sys/fs/cgroup/system.slice/worker.service/cgroup.controllers", "cpu pids\n");
    let refusal = root.refusal(false);
    assert!(refusal.ends_with("worker.service has no memory controller"), "{refusal}");
    let root = Root::new([("proc/self/cgroup", "0::/../elsewhere\n")]);
    assert!(root.refusal(false).contains("outside of its namespace"));
    let root = Root::new([("proc/self/cgroup", "3:cpu:/\n")]);
    assert_eq!(root.refusal(false), "there is no hierarchy for memory");
    assert_eq!(Root::new([]).refusal(false), "this kernel has no control groups");
    let root = Root::new([
        ("proc/self/cgroup", "0::/\n"),
        ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
        ("sys/fs/cgroup/cgroup.procs", "1\n"),
    ]);
    let refusal = root.refusal(false);
    assert!(
        refusal.contains("cannot write") && refusal.contains("cgroup.subtree_control"),
        "{refusal}"
    );
}

#[test]
fn root_of_a_container_moves_the_processes_of_the_container() {
    let root = Root::new([
        ("proc/self/cgroup", "0::/\n"),
        ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
        ("sys/fs/cgroup/cgroup.subtree_control", ""),
        ("sys/fs/cgroup/cgroup.procs", "1\n"),
        ("sys/fs/cgroup/cgroup.type", "domain\n"),
    ]);
    assert!(root.plan(true).expect("its own").moves);
    fs::remove_file(root.path("sys/fs/cgroup/cgroup.type")).expect("exists");
    assert!(!root.plan(true).expect("its own").moves, "the root of the machine has kernel threads");
}

#[test]
fn version_1_limits_memory_without_moving_the_worker() {
    let root = Root::new([
        ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/box/one\n0::/\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/box/one/memory.limit_in_bytes", "9223372036854771712\n"),
    ]);
    let plan = root.plan(true).expect("writable");
    assert_eq!((plan.version, plan.moves), (Version::One, false));
    assert_eq!(plan.parent, root.path("sys/fs/cgroup/memory/box/one"));
    let left = root.path(&format!("sys/fs/cgroup/memory/box/one/{JOBS}4194305"));
    fs::create_dir_all(left.join("job")).expect("writable");
    let groups = plan.carry_out(GIB).expect("writable");
    assert!(!left.exists(), "the worker of that process id was killed");
    let group = groups.of_job("job", 1 << 20).expect("writable");
    let jobs = format!("sys/fs/cgroup/memory/box/one/{JOBS}{}/job", std::process::id());
    assert_eq!(root.read(&format!("{jobs}/memory.limit_in_bytes")), (1 << 20).to_string());
    root.write(
        &format!("{jobs}/memory.oom_control"),
        "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    );
    root.write(&format!("{jobs}/memory.failcnt"), "12\n");
    assert_eq!(group.kills(), Some(3));
    assert!(group.why().contains("its max_memory, 1 MB"), "{}", group.why());

    root.write("proc/self/cgroup", "4:memory:/docker/of-the-host\n");
    assert_eq!(root.plan(true).expect("writable").parent, root.path("sys/fs/cgroup/memory"));
}

#[test]
fn groups_are_removed_with_their_owners() {
    let root = Root::new([
        ("proc/self/cgroup", "4:memory:/\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1\n"),
    ]);
    let groups = root.plan(true).expect("writable").carry_out(GIB).expect("writable");
    let folder = groups.folder.clone();
    let job = groups.of_job("job", 0).expect("writable");
    assert!(folder.join("job").exists());
    drop(job);
    assert!(!folder.join("job").exists());
    // The files of the kernel disappear with their folder.
    fs::remove_file(folder.join("memory.limit_in_bytes")).expect("exists");
    fs::remove_file(folder.join("memory.use_hierarchy")).expect("exists");
    drop(groups);
    assert!(!folder.exists());
}
