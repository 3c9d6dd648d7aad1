//! What goes in comes out, and nothing else does anything.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// Path, content, executable.
type Tree = BTreeMap<String, (Vec<u8>, bool)>;

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::create_dir(folder.path().join("source")).expect("new");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path("source").join(name);
        fs::create_dir_all(path.parent().expect("below a folder")).expect("writable");
        fs::write(&path, content).expect("writable");
        path
    }

    fn pack_data(&self) -> Snapshot {
        pack(Source::Data(&self.path("source")), &self.path("archive")).expect("it can be packed")
    }

    fn pack_scripts(&self, entry_script: Option<&str>) -> Snapshot {
        let source = Source::Scripts { folder: &self.path("source"), entry_script, excluded: &Gitignore::empty() };
        pack(source, &self.path("archive")).expect("it can be packed")
    }

    fn unpack(&self, snapshot: &Snapshot) -> Tree {
        unpack(&self.path("archive"), snapshot, Limit::SCRIPTS, &self.path("copy")).expect("it can be unpacked");
        tree(&self.path("copy"))
    }

    /// Unpacks what somebody else has packed, under its true digest, and says why that was refused.
    fn refused(&self, tar: &[u8]) -> String {
        let limit = Limit { bytes: 1024, files: 3 };
        let archive = self.path("archive");
        fs::write(&archive, zstd::encode_all(tar, 1).expect("it compresses")).expect("writable");
        let snapshot = Snapshot { digest: blake3::hash(tar).to_hex().to_string(), bytes: 0, file: None };
        let result = unpack(&archive, &snapshot, limit, &self.path("into/copy"));
        let Err(Error::Damaged { message, .. }) = result else { panic!("it was not refused: {result:?}") };
        assert!(!self.path("into/copy").exists() && !self.path("into/copy.partial").exists());
        let left = tree(self.folder.path());
        assert_eq!(names(&left), ["archive", "into/copy.lock"], "something was written elsewhere");
        message
    }
}

fn tree(folder: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("readable").map(|entry| entry.expect("readable").path()) {
            let metadata = entry.symlink_metadata().expect("it is there");
            if metadata.is_dir() {
                folders.push(entry);
            } else {
                assert!(metadata.is_file(), "{entry:?} is neither file nor folder");
                let name = entry.strip_prefix(folder).expect("below").to_string_lossy().into_owned();
                let content = fs::read(&entry).expect("readable");
                tree.insert(name, (content, metadata.permissions().mode() & 0o111 != 0));
            }
        }
    }
    tree
}

fn names(tree: &Tree) -> Vec<&str> {
    tree.keys().map(String::as_str).collect()
}

#[test]
fn scripts_travel_without_what_is_ignored_but_with_the_entry_script() {
    let place = Place::new();
    for name in [
        "main.py",
        "lib/a.py",
        "lib/__pycache__/a.pyc",
        ".git/HEAD",
        "venv/pyvenv.cfg",
        "venv/bin/python",
        "store/jobs/a/spec.json",
        "run.log",
        "data/big.csv",
        "data/small.csv",
        "tmp/x",
        ".hidden",
    ] {
        place.write(name, name.as_bytes());
    }
    place.write(".amlignore", b"data/\n!data/small.csv\nmain.py\n");
    place.write(".gitignore", b"tmp\n");
    mark(&place.path("source/store")).expect("writable");
    let tree = place.unpack(&place.pack_scripts(Some("main.py")));
    assert_eq!(names(&tree), [".amlignore", ".gitignore", ".hidden", "lib/a.py", "main.py"]);
}

#[test]
fn a_marked_folder_that_holds_the_script_travels() {
    let place = Place::new();
    for name in ["own/main.py", "own/beside.py"] {
        place.write(name, b"");
    }
    for folder in ["source", "source/own"] {
        mark(&place.path(folder)).expect("writable");
        mark(&place.path(folder)).expect("marked already");
    }
    let tree = place.unpack(&place.pack_scripts(Some("own/main.py")));
    assert!(names(&tree).contains(&"own/beside.py"), "{:?}", names(&tree));
}

#[test]
fn data_travels_as_it_is() {
    let place = Place::new();
    for name in [".git/HEAD", "a.log", ".gitignore", "__pycache__/x"] {
        place.write(name, b"*\n");
    }
    let tree = place.unpack(&place.pack_data());
    assert_eq!(names(&tree), [".git/HEAD", ".gitignore", "__pycache__/x", "a.log"]);
}

#[test]
fn one_file_keeps_its_name() {
    let place = Place::new();
    let model = place.write("model ü.bin", b"weights");
    let snapshot = pack(Source::Data(&model), &place.path("archive")).expect("it can be packed");
    assert_eq!(snapshot.file.as_deref(), Some("model ü.bin"));
    assert_eq!(snapshot.bytes, place.path("archive").metadata().expect("it is there").len());
    assert_eq!(place.unpack(&snapshot)["model ü.bin"].0, b"weights");
}

#[test]
fn an_empty_folder_arrives_empty() {
    let place = Place::new();
    assert_eq!(place.unpack(&place.pack_data()), Tree::new());
}

#[test]
fn links_are_followed_and_those_that_lead_nowhere_are_left_out() {
    let place = Place::new();
    fs::create_dir(place.path("elsewhere")).expect("new");
    fs::write(place.path("elsewhere/shared.py"), "shared").expect("writable");
    place.write("main.py", b"main");
    let link = |to: &Path, name: &str| symlink(to, place.path("source").join(name)).expect("it can be linked");
    link(&place.path("elsewhere"), "folder");
    link(&place.path("elsewhere/shared.py"), "file.py");
    link(Path::new("missing"), "dangling");
    link(Path::new("."), "circle");
    for snapshot in [place.pack_data(), place.pack_scripts(None)] {
        let tree = place.unpack(&snapshot);
        assert_eq!(names(&tree), ["file.py", "folder/shared.py", "main.py"]);
        assert_eq!(tree["file.py"].0, b"shared");
        fs::remove_dir_all(place.path("copy")).expect("it is there");
    }
}

#[test]
fn times_owners_and_other_modes_do_not_count_but_executable_does() {
    let place = Place::new();
    let script = place.write("tool.sh", b"#!/bin/sh\n");
    let first = place.pack_data();
    let packed = fs::read(place.path("archive")).expect("readable");
    fs::set_permissions(&script, Permissions::from_mode(0o600)).expect("ours");
    let file = File::options().write(true).open(&script).expect("writable");
    file.set_modified(std::time::UNIX_EPOCH).expect("ours");
    assert_eq!(place.pack_data(), first);
    assert_eq!(fs::read(place.path("archive")).expect("readable"), packed, "the same bytes");
    fs::set_permissions(&script, Permissions::from_mode(0o700)).expect("ours");
    let executable = place.pack_data();
    assert_ne!(executable.digest, first.digest);
    assert!(place.unpack(&executable)["tool.sh"].1);
}

#[test]
fn a_source_that_is_too_large_names_its_largest_files() {
    let place = Place::new();
    place.write("small.py", b"1");
    for (name, megabytes) in [("b.bin", 290), ("a.bin", 20)] {
        // Sparse files take no room.
        File::create(place.path("source").join(name)).and_then(|file| file.set_len(megabytes << 20)).expect("writable");
    }
    let source = Source::Scripts { folder: &place.path("source"), entry_script: None, excluded: &Gitignore::empty() };
    let Err(Error::TooLarge { found, allowed }) = pack(source, &place.path("archive")) else { panic!("not refused") };
    assert!(found.contains("the largest so far: b.bin (290 MB), a.bin (20 MB)"), "{found}");
    assert!(allowed.starts_with("20000 files of 300 MB; ") && allowed.contains(".amlignore"), "{allowed}");
}

#[test]
fn a_source_that_is_not_there_is_an_error() {
    let place = Place::new();
    let missing = place.path("missing");
    let error = pack(Source::Data(&missing), &place.path("archive")).expect_err("there is nothing");
    assert!(matches!(&error, Error::Unavailable { .. }) && error.to_string().contains("missing"), "{error}");
}

#[test]
fn a_file_that_grows_or_shrinks_meanwhile_is_noticed() {
    let place = Place::new();
    let path = place.write("growing", b"12345");
    for promised in [4, 6] {
        let mut file = SteadyFile { file: File::open(&path).expect("it is there"), left: promised };
        let error = file.read_to_end(&mut Vec::new()).expect_err("it is not as long as promised");
        assert!(error.to_string().contains("changed while"), "{error}");
    }
}

#[test]
fn unpacking_again_changes_nothing_and_what_a_killed_one_left_is_cleared() {
    let place = Place::new();
    place.write("main.py", b"main");
    let snapshot = place.pack_data();
    fs::create_dir_all(place.path("copy.partial/half")).expect("new");
    place.unpack(&snapshot);
    assert!(!place.path("copy.partial").exists());
    fs::write(place.path("copy/made_by_the_script"), "").expect("writable");
    fs::remove_file(place.path("archive")).expect("it is there");
    assert_eq!(names(&place.unpack(&snapshot)), ["made_by_the_script", "main.py"]);
}

#[test]
fn many_may_unpack_at_the_same_time() {
    let place = Place::new();
    for number in 0..200 {
        place.write(&format!("folder{}/{number}", number % 7), &vec![0; number * 10]);
    }
    let snapshot = place.pack_data();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(place.unpack(&snapshot).len(), 200));
        }
    });
}

#[test]
fn another_content_than_promised_is_refused() {
    let place = Place::new();
    place.write("main.py", b"main");
    let snapshot = place.pack_data();
    let wrong = Snapshot { digest: blake3::hash(b"other").to_hex().to_string(), ..snapshot };
    let result = unpack(&place.path("archive"), &wrong, Limit::SCRIPTS, &place.path("copy"));
    assert!(matches!(&result, Err(Error::Damaged { message, .. }) if message.contains("digest")), "{result:?}");
    assert!(!place.path("copy").exists());
}

#[test]
fn a_truncated_archive_is_refused() {
    let place = Place::new();
    place.write("main.py", &[7; 3000]);
    let snapshot = place.pack_data();
    let whole = fs::read(place.path("archive")).expect("readable");
    for length in 0..whole.len() {
        fs::write(place.path("archive"), &whole[..length]).expect("writable");
        let result = unpack(&place.path("archive"), &snapshot, Limit::SCRIPTS, &place.path("copy"));
        assert!(matches!(result, Err(Error::Damaged { .. })), "{length} of {} bytes: {result:?}", whole.len());
    }
}

/// A tar stream as someone with bad intentions would write it, field by field.
#[derive(Default)]
struct Hostile(Vec<u8>);

impl Hostile {
    fn entry(mut self, kind: u8, name: &[u8], link: &[u8], content: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        let fields = header.as_gnu_mut().expect("made so");
        fields.name[..name.len()].copy_from_slice(name);
        fields.linkname[..link.len()].copy_from_slice(link);
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_mode(0o4777);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

#[test]
fn names_that_lead_out_are_refused() {
    let place = Place::new();
    for name in ["../evil", "a/../../evil", "/tmp/evil", "..", ".", "", "a/..", "./evil", "folder/"] {
        let message = place.refused(&Hostile::default().entry(b'0', name.as_bytes(), b"", b"x").end());
        assert!(message.contains("not a path below") || message.contains("not a regular file"), "{name}: {message}");
    }
    // The long forms of a name are no other way.
    let long = [b"../".repeat(60), b"evil\0".to_vec()].concat();
    let message =
        place.refused(&Hostile::default().entry(b'L', b"././@LongLink", b"", &long).entry(b'0', b"a", b"", b"x").end());
    assert!(message.contains("not a path below"), "{message}");
    let pax = b"15 path=../evil\n";
    let pax = [format!("{} ", pax.len()).into_bytes(), pax[3..].to_vec()].concat();
    let message = place.refused(&Hostile::default().entry(b'x', b"pax", b"", &pax).entry(b'0', b"a", b"", b"x").end());
    assert!(message.contains("not a path below"), "{message}");
}

#[test]
fn whatever_is_not_a_regular_file_is_refused() {
    let place = Place::new();
    for (kind, what) in [
        (b'1', "hard link"),
        (b'2', "symbolic link"),
        (b'3', "character device"),
        (b'4', "block device"),
        (b'5', "folder"),
        (b'6', "pipe"),
        (b'7', "contiguous file"),
        (b'S', "sparse file"),
        (b'g', "global header"),
        (b'?', "unknown"),
    ] {
        // The classic: a link, then a file through it.
        let tar = Hostile::default().entry(kind, b"way", b"/etc", b"").entry(b'0', b"way/evil", b"", b"x").end();
        let message = place.refused(&tar);
        assert!(!message.is_empty(), "{what}");
    }
}

#[test]
fn names_that_contradict_each_other_are_refused() {
    let place = Place::new();
    for (first, second) in [("a", "a"), ("a", "a/b"), ("a/b", "a")] {
        let tar = Hostile::default().entry(b'0', first.as_bytes(), b"", b"x").entry(b'0', second.as_bytes(), b"", b"x");
        let message = place.refused(&tar.end());
        assert!(message.contains(second), "{message}");
    }
}

#[test]
fn bombs_are_refused_before_they_burst() {
    let place = Place::new();
    // Too much of one file, of all, too many, a header that lies about its size, a name without end, a long tail.
    let zeros = vec![0; 2000];
    let message = place.refused(&Hostile::default().entry(b'0', b"a", b"", &zeros).end());
    assert!(message.contains("more than 3 files of 1024 bytes"), "{message}");
    let two = Hostile::default().entry(b'0', b"a", b"", &zeros[..600]).entry(b'0', b"b", b"", &zeros[..600]);
    assert!(place.refused(&two.end()).contains("more than"));
    let many =
        (0..4).fold(Hostile::default(), |tar, number: i32| tar.entry(b'0', number.to_string().as_bytes(), b"", b""));
    assert!(place.refused(&many.end()).contains("more than"));
    let name = vec![b'n'; 1 << 20];
    let message = place.refused(&Hostile::default().entry(b'L', b"long", b"", &name).entry(b'0', b"a", b"", b"").end());
    assert!(message.contains("longer than any"), "{message}");
    let mut tail = Hostile::default().entry(b'0', b"a", b"", b"x").end();
    tail.resize(1 << 20, 0);
    assert!(place.refused(&tail).contains("longer than any"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_packed_is_unpacked(
        files in prop::collection::btree_map(
            // Names of all lengths and letters; folders and files never share a name.
            prop::collection::vec("[^/\0]{1,40}", 1..5),
            (prop::collection::vec(any::<u8>(), 0..5000), any::<bool>()),
            0..12,
        ),
    ) {
        let place = Place::new();
        let mut expected = Tree::new();
        for (names, (content, is_executable)) in files {
            let (file, folders) = names.split_last().expect("at least one");
            let folders: String = folders.iter().map(|folder| format!("d{folder}/")).collect();
            let name = format!("{folders}f{file}");
            let path = place.write(&name, &content);
            if is_executable {
                fs::set_permissions(path, Permissions::from_mode(0o755)).expect("ours");
            }
            expected.insert(name, (content, is_executable));
        }
        let snapshot = place.pack_data();
        prop_assert_eq!(&place.unpack(&snapshot), &expected);
        // Packed where it was unpacked, it is the same snapshot.
        let again = pack(Source::Data(&place.path("copy")), &place.path("again")).expect("it can be packed");
        prop_assert_eq!(again, snapshot);
    }

    #[test]
    fn no_archive_does_harm(
        base in 0..3usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let place = Place::new();
        let base = [
            Hostile::default().entry(b'0', b"a/b", b"", b"content").entry(b'0', b"c", b"", b"more"),
            Hostile::default().entry(b'L', b"long", b"", &[b'n'; 300]).entry(b'0', b"a", b"", b"content"),
            Hostile::default().entry(b'x', b"pax", b"", b"12 path=a/b\n").entry(b'0', b"c", b"", b"more"),
        ].into_iter().nth(base).expect("one of three");
        let mut tar = base.end();
        for (index, byte) in changes {
            // Headers are what matters; their checksums are put right again.
            let index = index.index(tar.len());
            tar[index] = byte;
        }
        for start in (0..tar.len()).step_by(512) {
            let mut header = tar::Header::new_old();
            header.as_mut_bytes().copy_from_slice(&tar[start..start + 512]);
            if header.as_bytes()[257..262] == *b"ustar" {
                header.set_cksum();
                tar[start..start + 512].copy_from_slice(header.as_bytes());
            }
        }
        let mut archive = File::create(place.path("archive")).expect("writable");
        archive.write_all(&zstd::encode_all(&tar[..], 1).expect("it compresses")).expect("writable");
        let snapshot = Snapshot { digest: blake3::hash(&tar).to_hex().to_string(), bytes: 0, file: None };
        let into = place.path("into/copy");
        let result = unpack(&place.path("archive"), &snapshot, Limit { bytes: 4096, files: 4 }, &into);
        prop_assert_eq!(result.is_ok(), into.exists());
        let outside: Vec<_> = tree(place.folder.path()).into_keys().filter(|name| !name.starts_with("into/copy/")).collect();
        prop_assert_eq!(outside, ["archive", "into/copy.lock"]);
    }
}
