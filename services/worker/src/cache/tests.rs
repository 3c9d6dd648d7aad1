//! What stays in the caches, and what leaves them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use tempfile::TempDir;

use super::evict::{Candidate, EvictionReason, evictions};
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + 10_000 * HOUR
}

fn entry(bytes: u64, hours: u32, in_use: bool) -> Candidate {
    Candidate { bytes, used_at: now() - hours * HOUR, in_use }
}

fn going(
    entries: &[Candidate],
    limits: Limits,
    wanted: u64,
    free: u64,
) -> Vec<(usize, EvictionReason)> {
    evictions(entries, limits, wanted, free, now())
}

#[test]
fn least_recently_used_entries_go_first() {
    let limits = Limits { bytes: Some(10), ..Limits::default() };
    let entries = [entry(4, 1, false), entry(4, 3, false), entry(4, 2, false)];
    assert_eq!(going(&entries, limits, 0, 100), [(1, EvictionReason::Size)]);
    assert_eq!(
        going(&entries, limits, 4, 100),
        [(1, EvictionReason::Size), (2, EvictionReason::Size)]
    );
    assert_eq!(
        going(&entries, limits, 100, 100).len(),
        3,
        "the new entry alone exceeds the limit of the caches"
    );
    assert_eq!(going(&entries, Limits::default(), 100, 200), []);
}

#[test]
fn entries_in_use_stay() {
    let limits = Limits { bytes: Some(1), age: Some(HOUR), free_min: 100 };
    let entries = [entry(4, 9, true), entry(4, 1, false), entry(4, 8, true)];
    assert_eq!(going(&entries, limits, 50, 0), [(1, EvictionReason::Size)]);
}

#[test]
fn old_entries_go_and_then_as_many_as_the_disk_lacks() {
    let limits = Limits { bytes: Some(100), age: Some(5 * HOUR), free_min: 10 };
    let entries = [entry(4, 1, false), entry(4, 6, false), entry(4, 2, false), entry(4, 3, false)];
    assert_eq!(going(&entries, limits, 0, 10), [(1, EvictionReason::Age)]);
    assert_eq!(
        going(&entries, limits, 0, 2),
        [(1, EvictionReason::Age), (3, EvictionReason::Disk)]
    );
    assert_eq!(
        going(&entries, limits, 4, 2),
        [(1, EvictionReason::Age), (3, EvictionReason::Disk), (2, EvictionReason::Disk)]
    );
}

proptest! {
    #[test]
    fn limits_hold_or_everything_unused_has_gone(
        described in proptest::collection::vec((0..100_u64, 0..50_u32, any::<bool>()), 0..20),
        bytes_max in 0..500_u64,
        free_min in 0..300_u64,
        wanted in 0..100_u64,
        free in 0..300_u64,
    ) {
        let entries: Vec<Candidate> = described.iter().map(|(bytes, hours, in_use)| entry(*bytes, *hours, *in_use)).collect();
        let limits = Limits { bytes: Some(bytes_max), age: Some(40 * HOUR), free_min };
        let going = going(&entries, limits, wanted, free);
        let gone: Vec<usize> = going.iter().map(|(index, _)| *index).collect();
        prop_assert!(gone.iter().all(|index| !entries[*index].in_use));
        prop_assert!(gone.is_sorted_by_key(|index| entries[*index].used_at));
        let stays = |index: &usize| !gone.contains(index);
        let held: u64 = (0..entries.len()).filter(stays).map(|index| entries[index].bytes).sum();
        let freed: u64 = gone.iter().map(|index| entries[*index].bytes).sum();
        let unused_stay = (0..entries.len()).filter(stays).any(|index| !entries[index].in_use);
        prop_assert!(!unused_stay || held + wanted <= bytes_max && free + freed >= free_min + wanted);
    }
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("temporary folder"))
    }

    fn cache(&self, bytes: u64) -> Cache {
        Cache::new(self.0.path().join("caches"), Limits { bytes: Some(bytes), ..Limits::default() })
    }

    /// Returns what is in the folder of a kind of entries.
    fn names(&self, kind: EntryKind) -> Vec<String> {
        let entries =
            fs::read_dir(self.0.path().join("caches").join(kind.folder())).expect("a folder");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }
}

/// Gets an entry of a hundred kilobytes.
async fn get(cache: &Cache, name: &str) -> Result<PinnedEntry> {
    let content = cache.content(EntryKind::SideInput, name);
    let make = async {
        fs::create_dir(&content)?;
        fs::write(content.join("file"), vec![1; 100_000])?;
        Ok(())
    };
    cache.get(EntryKind::SideInput, name, 100_000, make).await
}

#[tokio::test]
async fn jobs_share_an_entry_that_stays_while_one_uses_it() {
    let folder = Folder::new();
    let cache = folder.cache(150_000);
    let (first, second) = tokio::join!(get(&cache, "aa"), get(&cache, "aa"));
    let (first, second) = (first.expect("made"), second.expect("there"));
    assert_eq!(fs::read(first.path().join("file")).expect("whole").len(), 100_000);
    drop(first);
    let other = get(&cache, "bb").await.expect("made although the caches are too large");
    cache.tidy().expect("readable");
    assert_eq!(folder.names(EntryKind::SideInput), ["aa", "aa.lock", "bb", "bb.lock"]);
    drop(second);
    cache.tidy().expect("readable");
    assert_eq!(folder.names(EntryKind::SideInput), ["bb", "bb.lock"]);
    drop(other);
    cache.tidy().expect("readable");
    assert_eq!(folder.names(EntryKind::SideInput), ["bb", "bb.lock"], "it fits");
    cache.empty().expect("readable");
    assert_eq!(folder.names(EntryKind::SideInput), [""; 0]);
    get(&cache, "aa").await.expect("made again");
}

#[tokio::test]
async fn failed_or_abandoned_entry_leaves_nothing() {
    let folder = Folder::new();
    let cache = folder.cache(1 << 30);
    let content = cache.content(EntryKind::Snapshot, "aa");
    let half = async {
        fs::create_dir_all(&content)?;
        fs::write(content.join("file"), "half")?;
        bail!("the store does not answer")
    };
    cache.get(EntryKind::Snapshot, "aa", 0, half).await.expect_err("it fails");
    assert_eq!(folder.names(EntryKind::Snapshot), ["aa.lock"]);
    // A killed process cannot clean up.
    fs::create_dir_all(&content).expect("writable");
    fs::write(content.join("file"), "half").expect("writable");
    let environment = cache.entry(EntryKind::Environment, "bb");
    fs::create_dir_all(environment.join("bin")).expect("writable");
    assert!(matches!(
        cache.take(EntryKind::Environment, "bb").expect("readable"),
        Acquisition::Absent(_)
    ));
    assert!(!environment.exists(), "an environment without its mark is not used");
    fs::create_dir_all(&environment).expect("writable");
    cache.tidy().expect("readable");
    assert_eq!(
        (folder.names(EntryKind::Snapshot), folder.names(EntryKind::Environment)),
        (vec![], vec![])
    );
}

/// Another process holds the lock: as a worker that downloads, and then as a job that uses the entry.
#[tokio::test]
async fn processes_of_a_machine_exclude_each_other() {
    let folder = Folder::new();
    let cache = folder.cache(0);
    drop(get(&cache, "aa").await.expect("made"));
    let lock = cache.entry(EntryKind::SideInput, "aa.lock");
    let hold = |how: &str| {
        let mut command = Command::new("flock");
        command.arg("--no-fork").arg(how).arg(&lock).args(["sh", "-c", "echo held; exec cat"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("flock is installed");
        io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut [0; 5])
            .expect("it holds the lock");
        child
    };
    let mut user = hold("--shared");
    cache.tidy().expect("readable");
    drop(get(&cache, "aa").await.expect("it is there"));
    user.kill().expect("it runs");
    user.wait().expect("it ends");
    let mut maker = hold("--exclusive");
    assert!(matches!(
        cache.take(EntryKind::SideInput, "aa").expect("readable"),
        Acquisition::Taken
    ));
    cache.tidy().expect("readable");
    assert_eq!(
        folder.names(EntryKind::SideInput),
        ["aa", "aa.lock"],
        "the caches are too large, but it is in use"
    );
    maker.kill().expect("it runs");
    maker.wait().expect("it ends");
    cache.tidy().expect("readable");
    assert_eq!(folder.names(EntryKind::SideInput), [""; 0]);
}

#[tokio::test]
async fn full_disk_is_named_before_it_is_filled() {
    let folder = Folder::new();
    let cache = folder.cache(1 << 30);
    let error =
        cache.get(EntryKind::Snapshot, "aa", 1 << 60, async { panic!("it does not begin") }).await;
    let text = format!("{:#}", error.expect_err("no disk is that large"));
    assert!(
        text.contains("1073741824 GB needed, and jobs use 0 KB of the 0 KB in its caches"),
        "{text}"
    );
    assert!(text.starts_with("the disk of /") && !text.contains('\n'), "{text}");
    let printed = anyhow::anyhow!(
        "pip ended with 1; its last lines:\n  OSError: [Errno 28] No space left on device"
    );
    let explained = cache.explain(printed.context("install the packages")).to_string();
    assert!(explained.starts_with("the disk of /") && !explained.contains('\n'), "{explained}");
    let other = cache.explain(anyhow::anyhow!("no such package"));
    assert_eq!(other.to_string(), "no such package");
}

const KINDS: [EntryKind; 3] = EntryKind::SHARED;

/// Takes an entry of a guarded cache with two files, and makes it if it is missing. Returns whether it was missing.
fn take(cache: &Cache, kind: EntryKind, name: &str) -> (PinnedEntry, bool) {
    loop {
        match cache.take(kind, name).expect("readable") {
            Acquisition::Present(used) => return (used, false),
            Acquisition::Absent(making) => {
                let folder = match kind {
                    EntryKind::Environment => cache.entry(kind, name),
                    _ => cache.content(kind, name),
                };
                write_entry(&folder);
                return (making.keep().expect("writable"), true);
            }
            Acquisition::Taken => {}
        }
    }
}

fn write_entry(folder: &Path) {
    fs::create_dir_all(folder.join("lib")).expect("writable");
    fs::write(folder.join("lib/code.py"), "good").expect("writable");
    fs::write(folder.join("run"), "#!/bin/sh").expect("writable");
    set_mode(&folder.join("run"), 0o755);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("own file");
}

/// Returns a name for the entry: that of its content.
fn name() -> String {
    let folder = tempfile::tempdir().expect("temporary folder");
    write_entry(folder.path());
    storage::digest_of(folder.path()).expect("readable").expect("only files")
}

type Change = fn(&Path);

/// What a script may try. Each is given the folder of the entry.
const CHANGES: [(&str, Change); 8] = [
    ("same length and time", |entry| {
        let file = entry.join("lib/code.py");
        let time = file.metadata().and_then(|metadata| metadata.modified()).expect("readable");
        set_mode(&file, 0o644);
        fs::write(&file, "evil").expect("writable");
        File::options()
            .write(true)
            .open(&file)
            .and_then(|file| file.set_modified(time))
            .expect("own file");
        set_mode(&file, 0o444);
    }),
    ("one more file", |entry| fs::write(entry.join("lib/more.py"), "").expect("writable")),
    ("one file less", |entry| fs::remove_file(entry.join("lib/code.py")).expect("writable")),
    ("a link", |entry| {
        fs::remove_file(entry.join("lib/code.py")).expect("writable");
        std::os::unix::fs::symlink("/tmp/elsewhere", entry.join("lib/code.py")).expect("writable");
    }),
    ("another mode", |entry| set_mode(&entry.join("lib/code.py"), 0o555)),
    ("unreadable", |entry| set_mode(&entry.join("lib/code.py"), 0o0)),
    ("unreadable folder", |entry| set_mode(&entry.join("lib"), 0o0)),
    ("another name", |entry| {
        fs::rename(entry.join("lib/code.py"), entry.join("lib/core.py")).expect("writable")
    }),
];

#[test]
fn changed_entry_is_made_anew() {
    let folder = Folder::new();
    let cache = folder.cache(1 << 30).guarded();
    let name = name();
    for kind in KINDS {
        let (used, is_new) = take(&cache, kind, &name);
        assert!(is_new);
        for (what, change) in CHANGES {
            assert!(!take(&cache, kind, &name).1, "{kind:?} is intact");
            for folder in ["", "lib"] {
                set_mode(&used.path().join(folder), 0o755);
            }
            change(used.path());
            if what != "unreadable folder" {
                set_mode(&used.path().join("lib"), 0o555);
            }
            set_mode(used.path(), 0o555);
            // A job still uses the entry that was changed.
            let (again, is_new) = take(&cache, kind, &name);
            assert!(is_new, "{kind:?}: {what}");
            assert_eq!(
                fs::read_to_string(again.path().join("lib/code.py")).expect("made anew"),
                "good",
                "{what}"
            );
            assert_eq!(folder.names(kind).len(), 2, "nothing else is left: {what}");
        }
    }
}

#[test]
fn guarded_entry_is_read_only_for_all() {
    let folder = Folder::new();
    let cache = folder.cache(1 << 30).guarded();
    for kind in KINDS {
        let (used, _) = take(&cache, kind, &name());
        let mode = |name: &str| {
            used.path().join(name).metadata().expect("there").permissions().mode() & 0o7777
        };
        assert_eq!(
            [mode(""), mode("lib"), mode("lib/code.py"), mode("run")],
            [0o555, 0o555, 0o444, 0o555],
            "{kind:?}"
        );
        let lock = beside(used.path(), ".lock").metadata().expect("there");
        assert_eq!(lock.permissions().mode() & 0o7777, 0o600, "no other user can hold it");
        drop(used);
    }
    cache.empty().expect("its owner removes it");
    assert!(KINDS.iter().all(|kind| folder.names(*kind).is_empty()));
}

/// On a person's own machine, the entries belong to that person.
#[test]
fn entry_of_one_person_may_change() {
    let folder = Folder::new();
    let cache = folder.cache(1 << 30);
    let (used, _) = take(&cache, EntryKind::Environment, "aa");
    fs::write(used.path().join("lib/more.py"), "").expect("writable");
    assert!(!take(&cache, EntryKind::Environment, "aa").1);
}

/// Its worker was killed before it had written the size and the seal.
#[test]
fn entry_without_record_is_made_anew() {
    let folder = Folder::new();
    let cache = folder.cache(1 << 30);
    let (used, _) = take(&cache, EntryKind::SideInput, "aa");
    fs::write(beside(used.path(), ".lock"), "").expect("writable");
    drop(used);
    assert!(take(&cache, EntryKind::SideInput, "aa").1);
    fs::write(folder.0.path().join("caches/side-inputs/aa.lock"), "").expect("writable");
    cache.tidy().expect("readable");
    assert_eq!(folder.names(EntryKind::SideInput), [""; 0]);
}
