//! Tests of packing, unpacking and listing.

mod hostile;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// The files of a folder: the path of each, its content, and whether it is executable.
type Tree = BTreeMap<String, (Vec<u8>, bool)>;

struct Folders {
    folder: TempDir,
}

impl Folders {
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

    /// Writes a sparse file, which takes no space.
    fn write_sparse(&self, name: &str, megabytes: u64) {
        let file = File::create(self.path("source").join(name)).expect("writable");
        file.set_len(megabytes << 20).expect("it can be long");
    }

    fn pack_data(&self) -> Snapshot {
        pack(Source::Data(&self.path("source")), &self.path("archive")).expect("it can be packed")
    }

    fn pack_scripts(&self, entry_script: Option<&str>) -> Snapshot {
        let source = Source::Scripts {
            folder: &self.path("source"),
            entry_script,
            excluded: &Gitignore::empty(),
        };
        pack(source, &self.path("archive")).expect("it can be packed")
    }

    fn unpack(&self, snapshot: &Snapshot) -> Tree {
        unpack(&self.path("archive"), snapshot, Limit::SCRIPTS, &self.path("copy"))
            .expect("it can be unpacked");
        tree(&self.path("copy"))
    }

    /// Unpacks an archive of another origin under its true digest, and returns the reason of its rejection.
    fn rejection(&self, tar: &[u8]) -> String {
        let limit = Limit { bytes: 1024, files: 3 };
        let archive = self.path("archive");
        fs::write(&archive, zstd::encode_all(tar, 1).expect("it compresses")).expect("writable");
        let snapshot =
            Snapshot { digest: blake3::hash(tar).to_hex().to_string(), bytes: 0, file: None };
        let result = unpack(&archive, &snapshot, limit, &self.path("into/copy"));
        let Err(Error::Damaged { source, .. }) = result else {
            panic!("it was not rejected: {result:?}")
        };
        assert!(!self.path("into/copy").exists() && !self.path("into/copy.partial").exists());
        let left = tree(self.folder.path());
        assert_eq!(names(&left), ["archive", "into/copy.lock"], "it wrote outside the folder");
        source.to_string()
    }
}

fn tree(folder: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in
            fs::read_dir(next).expect("readable").map(|entry| entry.expect("readable").path())
        {
            let metadata = entry.symlink_metadata().expect("it is there");
            if metadata.is_dir() {
                folders.push(entry);
            } else {
                assert!(metadata.is_file(), "{entry:?} is neither file nor folder");
                let name =
                    entry.strip_prefix(folder).expect("below").to_string_lossy().into_owned();
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
fn unpacked_folder_has_its_digest_until_it_is_changed() {
    let test = Folders::new();
    test.write("main.py", b"import helper");
    test.write("helper/__init__.py", b"");
    test.write("helper-2.txt", &[7; 70_000]);
    let script = test.write(&format!("{}/run.sh", "long-name".repeat(20)), b"#!/bin/sh");
    fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("own file");
    let snapshot = test.pack_scripts(Some("main.py"));
    let copy = test.path("copy");
    test.unpack(&snapshot);
    let is_intact = || digest_of(&copy).expect("readable").as_ref() == Some(&snapshot.digest);
    assert!(is_intact());

    let main = copy.join("main.py");
    fs::write(&main, b"import evil  ").expect("writable");
    assert!(!is_intact(), "changed text");
    fs::write(&main, b"import helper").expect("writable");
    assert!(is_intact());
    fs::write(copy.join("helper.py"), b"").expect("writable");
    assert!(!is_intact(), "one more file");
    fs::remove_file(copy.join("helper.py")).expect("own file");
    fs::create_dir(copy.join("empty")).expect("writable");
    assert!(!is_intact(), "one more folder");
    fs::remove_dir(copy.join("empty")).expect("own folder");
    fs::set_permissions(&main, Permissions::from_mode(0o755)).expect("own file");
    assert!(!is_intact(), "another mode");
    fs::rename(&main, test.path("elsewhere")).expect("own file");
    symlink(test.path("elsewhere"), &main).expect("writable");
    assert!(!is_intact(), "a link to the same text, which can change later");
}

#[test]
fn scripts_travel_without_ignored_files_but_with_the_entry_script() {
    let test = Folders::new();
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
        test.write(name, name.as_bytes());
    }
    test.write(".amlignore", b"data/\n!data/small.csv\nmain.py\n");
    test.write(".gitignore", b"tmp\n");
    mark(&test.path("source/store")).expect("writable");
    let tree = test.unpack(&test.pack_scripts(Some("main.py")));
    assert_eq!(names(&tree), [".amlignore", ".gitignore", ".hidden", "lib/a.py", "main.py"]);
}

#[test]
fn files_of_tools_and_systems_are_not_packed() {
    let test = Folders::new();
    for name in [
        "main.py",
        ".DS_Store",
        "._main.py",
        "Thumbs.db",
        ".vscode/settings.json",
        ".idea/workspace.xml",
        ".ipynb_checkpoints/main-checkpoint.py",
        "lib/.ipynb_checkpoints/a-checkpoint.py",
        "lib/__pycache__/a.pyc",
        ".main.py.swp",
        "main.py~",
        "#main.py#",
        ".#main.py",
        ".~lock.notes.odt#",
        ".mypy_cache/3.11/main.data.json",
        ".svn/entries",
        "nohup.out",
        "run.log",
        "conda/conda-meta/history",
        "conda/lib/a.py",
        "lib/a.py",
    ] {
        test.write(name, b"");
    }
    assert_eq!(names(&test.unpack(&test.pack_scripts(Some("main.py")))), ["lib/a.py", "main.py"]);
}

#[test]
fn marked_folder_with_the_script_travels() {
    let test = Folders::new();
    for name in ["own/main.py", "own/beside.py"] {
        test.write(name, b"");
    }
    for folder in ["source", "source/own"] {
        mark(&test.path(folder)).expect("writable");
        mark(&test.path(folder)).expect("marked already");
    }
    let tree = test.unpack(&test.pack_scripts(Some("own/main.py")));
    assert!(names(&tree).contains(&"own/beside.py"), "{:?}", names(&tree));
}

#[test]
fn all_files_of_data_travel() {
    let test = Folders::new();
    for name in [".git/HEAD", "a.log", ".gitignore", "__pycache__/x"] {
        test.write(name, b"*\n");
    }
    let tree = test.unpack(&test.pack_data());
    assert_eq!(names(&tree), [".git/HEAD", ".gitignore", "__pycache__/x", "a.log"]);
}

#[test]
fn one_file_keeps_its_name() {
    let test = Folders::new();
    let model = test.write("model ü.bin", b"weights");
    let snapshot = pack(Source::Data(&model), &test.path("archive")).expect("it can be packed");
    assert_eq!(snapshot.file.as_deref(), Some("model ü.bin"));
    assert_eq!(snapshot.bytes, test.path("archive").metadata().expect("it is there").len());
    assert_eq!(test.unpack(&snapshot)["model ü.bin"].0, b"weights");
}

#[test]
fn empty_folder_is_unpacked_empty() {
    let test = Folders::new();
    assert_eq!(test.unpack(&test.pack_data()), Tree::new());
}

#[test]
fn links_are_followed_unless_they_are_dangling_or_circular() {
    let test = Folders::new();
    fs::create_dir(test.path("elsewhere")).expect("new");
    fs::write(test.path("elsewhere/shared.py"), "shared").expect("writable");
    test.write("main.py", b"main");
    let link = |to: &Path, name: &str| {
        symlink(to, test.path("source").join(name)).expect("it can be linked")
    };
    link(&test.path("elsewhere"), "folder");
    link(&test.path("elsewhere/shared.py"), "file.py");
    link(Path::new("missing"), "dangling");
    link(Path::new("."), "circle");
    link(Path::new("itself"), "itself");
    link(Path::new("other"), "one");
    link(Path::new("one"), "other");
    fs::create_dir_all(test.path("source/deep/er")).expect("new");
    link(Path::new("../.."), "deep/er/up");
    for snapshot in [test.pack_data(), test.pack_scripts(None)] {
        let tree = test.unpack(&snapshot);
        assert_eq!(names(&tree), ["file.py", "folder/shared.py", "main.py"]);
        assert_eq!(tree["file.py"].0, b"shared");
        fs::remove_dir_all(test.path("copy")).expect("it is there");
    }
}

#[test]
fn digest_ignores_times_and_modes_except_executable() {
    let test = Folders::new();
    let script = test.write("tool.sh", b"#!/bin/sh\n");
    let first = test.pack_data();
    let packed = fs::read(test.path("archive")).expect("readable");
    fs::set_permissions(&script, Permissions::from_mode(0o600)).expect("ours");
    let file = File::options().write(true).open(&script).expect("writable");
    file.set_modified(std::time::UNIX_EPOCH).expect("ours");
    assert_eq!(test.pack_data(), first);
    assert_eq!(fs::read(test.path("archive")).expect("readable"), packed, "the same bytes");
    fs::set_permissions(&script, Permissions::from_mode(0o700)).expect("ours");
    let executable = test.pack_data();
    assert_ne!(executable.digest, first.digest);
    assert!(test.unpack(&executable)["tool.sh"].1);
}

#[test]
fn error_for_oversized_scripts_names_the_largest_files() {
    let test = Folders::new();
    test.write("small.py", b"1");
    for (name, megabytes) in [("b.bin", 290), ("a.bin", 20)] {
        test.write_sparse(name, megabytes);
    }
    let source = Source::Scripts {
        folder: &test.path("source"),
        entry_script: None,
        excluded: &Gitignore::empty(),
    };
    let Err(Error::TooLarge { found, allowed }) = pack(source, &test.path("archive")) else {
        panic!("it was not rejected")
    };
    assert!(found.contains("the largest: b.bin (290 MB), a.bin (20 MB)"), "{found}");
    assert!(
        allowed.starts_with("20000 files of 300 MB; ") && allowed.contains(".amlignore"),
        "{allowed}"
    );
}

#[test]
fn large_unneeded_data_is_left_out() {
    let test = Folders::new();
    test.write("main.py", b"1");
    test.write("labels.txt", b"a");
    for (name, megabytes) in [("b.bin", 290), ("a.bin", 20), ("model.bin", 100)] {
        test.write_sparse(name, megabytes);
    }
    let source = Source::Scripts {
        folder: &test.path("source"),
        entry_script: None,
        excluded: &Gitignore::empty(),
    };
    let listed = || files(source).expect("it can be listed").files;
    let (kept, left_out) =
        fit(listed(), |file| file.name == Path::new("model.bin")).expect("the rest fits");
    assert_eq!(left_out.as_deref(), Some("b.bin (290 MB)"));
    let kept: Vec<_> = kept.iter().map(|file| file.name.to_string_lossy()).collect();
    assert_eq!(kept, ["a.bin", "labels.txt", "main.py", "model.bin"]);
    let (_, left_out) =
        fit(listed(), |file| file.name == Path::new("b.bin")).expect("the rest fits");
    assert_eq!(left_out.as_deref(), Some("model.bin (100 MB), a.bin (20 MB)"));
    assert!(matches!(fit(listed(), |_| true), Err(Error::TooLarge { .. })));
    // If the files fit, none of them is left out.
    fs::remove_file(test.path("source/b.bin")).expect("it is there");
    assert_eq!(fit(listed(), |_| false).expect("it fits").1, None);
}

#[test]
fn listing_of_a_huge_folder_has_only_its_packages() {
    let test = Folders::new();
    for name in [
        "main.py",
        "package/__init__.py",
        "package/a.py",
        "package/plain/b.py",
        "plain/c.py",
        "inside/d.py",
    ] {
        test.write(name, b"");
    }
    for number in 0..Limit::SCRIPTS.files {
        File::create(test.path("source/plain").join(format!("{number}.png"))).expect("writable");
    }
    let listing = |entry_script| {
        let source = Source::Scripts {
            folder: &test.path("source"),
            entry_script,
            excluded: &Gitignore::empty(),
        };
        let listing = files(source).expect("never too many");
        (
            listing.files.iter().map(|file| file.name.display().to_string()).collect::<Vec<_>>(),
            listing.is_partial,
        )
    };
    let (names, is_partial) = listing(Some("inside/d.py"));
    assert_eq!(names, ["inside/d.py", "main.py", "package/__init__.py", "package/a.py"]);
    assert!(is_partial);
    fs::remove_dir_all(test.path("source/plain")).expect("it is there");
    assert_eq!(listing(None).0.len(), 5);
}

#[test]
fn missing_source_fails() {
    let test = Folders::new();
    let missing = test.path("missing");
    let error = pack(Source::Data(&missing), &test.path("archive")).expect_err("there is nothing");
    assert!(
        matches!(&error, Error::Unavailable { .. }) && error.to_string().contains("missing"),
        "{error:#}"
    );
}

#[test]
fn file_that_changes_its_length_during_packing_fails() {
    let test = Folders::new();
    let path = test.write("growing", b"12345");
    for promised in [4, 6] {
        let mut file = SteadyFile { file: File::open(&path).expect("it is there"), left: promised };
        let error = file.read_to_end(&mut Vec::new()).expect_err("it is not as long as promised");
        assert!(error.to_string().contains("changed during"), "{error}");
    }
}

#[test]
fn second_unpack_changes_nothing_and_partial_folder_is_cleared() {
    let test = Folders::new();
    test.write("main.py", b"main");
    let snapshot = test.pack_data();
    fs::create_dir_all(test.path("copy.partial/half")).expect("new");
    test.unpack(&snapshot);
    assert!(!test.path("copy.partial").exists());
    fs::write(test.path("copy/made_by_the_script"), "").expect("writable");
    fs::remove_file(test.path("archive")).expect("it is there");
    assert_eq!(names(&test.unpack(&snapshot)), ["made_by_the_script", "main.py"]);
}

#[test]
fn concurrent_unpacks_succeed() {
    let test = Folders::new();
    for number in 0..200 {
        test.write(&format!("folder{}/{number}", number % 7), &vec![0; number * 10]);
    }
    let snapshot = test.pack_data();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(test.unpack(&snapshot).len(), 200));
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn packed_files_are_unpacked(
        files in prop::collection::btree_map(
            // Names of all lengths and letters; folders and files never share a name.
            prop::collection::vec("[^/\0]{1,40}", 1..5),
            (prop::collection::vec(any::<u8>(), 0..5000), any::<bool>()),
            0..12,
        ),
    ) {
        let test = Folders::new();
        let mut expected = Tree::new();
        for (names, (content, is_executable)) in files {
            let (file, folders) = names.split_last().expect("at least one");
            let folders: String = folders.iter().map(|folder| format!("d{folder}/")).collect();
            let name = format!("{folders}f{file}");
            let path = test.write(&name, &content);
            if is_executable {
                fs::set_permissions(path, Permissions::from_mode(0o755)).expect("ours");
            }
            expected.insert(name, (content, is_executable));
        }
        let snapshot = test.pack_data();
        prop_assert_eq!(&test.unpack(&snapshot), &expected);
        // Packing the unpacked folder gives the same snapshot.
        let again = pack(Source::Data(&test.path("copy")), &test.path("again")).expect("it can be packed");
        prop_assert_eq!(again, snapshot);
    }
}
