//! Mini-batches of files by count.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use partitioner::Inputs;
use proptest::prelude::*;
use protocol::{FileVersion, InputKind, MiniBatchSize, Work};

use crate::fixtures::{
    descriptors, file_batches, file_job, files_of, folder, input, job, refusal, totals, write,
};

#[test]
fn files_of_a_folder_precede_its_sub_folders() {
    let root = folder();
    for name in ["b/2", "b/1", "z", "a", "b/c/9", "a.d/1", "B"] {
        write(root.path(), name, "");
    }
    let batches = file_batches(root.path(), &file_job(2, &[root.path()]));
    let expected: [&[&str]; 5] = [&["B", "a"], &["z"], &["a.d/1"], &["b/1", "b/2"], &["b/c/9"]];
    assert_eq!(batches, expected, "unsorted, or two folders in a mini-batch");
}

#[test]
fn files_and_globs_share_mini_batches() {
    let root = folder();
    for name in ["x/1.png", "y/2.png", "y/3.png", "y/4.txt", "dir/5.png", "dir/6.png", "z/7.png"] {
        write(root.path(), name, "");
    }
    let paths = ["z/7.png", "*/*.png", "dir", "x/1.png"].map(|name| root.path().join(name));
    let paths: Vec<&Path> = paths.iter().map(|path| path.as_path()).collect();
    let batches = file_batches(root.path(), &file_job(4, &paths));
    let expected: [&[&str]; 4] = [
        &["z/7.png", "dir/5.png", "dir/6.png", "x/1.png"],
        &["y/2.png", "y/3.png", "z/7.png"],
        &["dir/5.png", "dir/6.png"],
        &["x/1.png"],
    ];
    assert_eq!(batches, expected);
}

#[test]
fn glob_returns_sorted_paths() {
    let root = folder();
    for name in ["a/x.csv", "a.csv", "a-b.csv", "a/b/y.csv", "ab/z.csv", ".h/.h.csv", "a/no.txt"] {
        write(root.path(), name, "");
    }
    let batches = file_batches(root.path(), &file_job(100, &[&root.path().join("**/*.csv")]));
    let mut expected = ["a/x.csv", "a.csv", "a-b.csv", "a/b/y.csv", "ab/z.csv"];
    expected.sort_unstable();
    assert_eq!(batches, [expected]);
    let deep = file_batches(root.path(), &file_job(100, &[&root.path().join("a/**")]));
    assert_eq!(deep, [["a/b/y.csv", "a/no.txt", "a/x.csv"]]);
}

#[test]
fn existing_file_takes_precedence_over_a_pattern() {
    let root = folder();
    write(root.path(), "a[1].png", "");
    write(root.path(), "a1.png", "");
    let path = root.path().join("a[1].png");
    assert_eq!(file_batches(root.path(), &file_job(9, &[&path])), [["a[1].png"]]);
    fs::remove_file(&path).expect("removable");
    assert_eq!(file_batches(root.path(), &file_job(9, &[&path])), [["a1.png"]]);
}

#[test]
fn names_are_any_bytes() {
    let root = folder();
    let names: [&[u8]; 6] =
        [b"a b'\"", b"new\nline", b"\xff\xfe", "\u{e4}".as_bytes(), b"_IMG_1", b"back\\slash*"];
    for name in names {
        write(root.path(), OsStr::from_bytes(name), "");
    }
    let batches = file_batches(root.path(), &file_job(10, &[root.path()]));
    let expected =
        ["_IMG_1", "a b\\'\\\"", "back\\\\slash*", "new\\nline", "\\xc3\\xa4", "\\xff\\xfe"];
    assert_eq!(batches, [expected]);
    let globbed = file_batches(root.path(), &file_job(10, &[&root.path().join("*")]));
    assert_eq!(globbed, [expected]);
}

#[test]
fn links_are_followed_except_in_circles() {
    let (root, elsewhere) = (folder(), folder());
    write(root.path(), "a/file", "");
    write(elsewhere.path(), "far", "");
    let link = |to: &Path, name: &str| symlink(to, root.path().join(name)).expect("linkable");
    link(elsewhere.path(), "a/outside");
    link(root.path(), "a/up");
    link(Path::new("."), "self");
    link(Path::new("a/file"), "to-file");
    link(Path::new("nowhere"), "broken");
    link(root.path(), "again");
    let batches = file_batches(root.path(), &file_job(10, &[root.path()]));
    let expected: [&[&str]; 3] = [&["broken", "to-file"], &["a/file"], &["a/outside/far"]];
    assert_eq!(batches, expected);
}

#[test]
fn plan_has_the_version_of_every_file_in_any_depth() {
    let root = folder();
    // More folders than stay open.
    for depth in 0..40 {
        write(root.path(), format!("{}file", "d/".repeat(depth)), "x".repeat(depth));
    }
    let target = Path::new("d/d/d/file");
    symlink(target, root.path().join("link")).expect("linkable");
    symlink("nowhere", root.path().join("broken")).expect("linkable");
    let mut versions = 0;
    for path in [root.path().to_owned(), root.path().join("**")] {
        for descriptor in descriptors(&file_job(1, &[&path])) {
            let Work::Files { paths, stamps, .. } = &descriptor.work else {
                panic!("{descriptor:?} has no files")
            };
            let version = fs::metadata(paths[0].as_path())
                .ok()
                .map(|metadata| FileVersion::of_file(&metadata));
            assert_eq!(
                stamps.first().copied().unwrap_or(0),
                version.map_or(0, |version| version.stamp())
            );
            versions += 1;
        }
    }
    assert_eq!(versions, 2 * 42);
}

#[test]
fn link_to_the_output_is_rejected() {
    let root = folder();
    write(root.path(), "in/a", "");
    write(root.path(), "out/deep/rows.txt", "");
    let mut job = file_job(10, &[&root.path().join("in")]);
    job.output.folder = root.path().join("out/deep").into();
    job.output.file_name = "rows.txt".to_owned();
    assert_eq!(file_batches(root.path(), &job), [["in/a"]]);
    for target in ["out", "out/deep", "out/deep/rows.txt"] {
        let link = root.path().join("in/link");
        symlink(root.path().join(target), &link).expect("linkable");
        let refused = refusal(&job);
        assert!(
            refused.contains("it leads to the output, so the next run would read"),
            "{target}: {refused}"
        );
        fs::remove_file(link).expect("a link");
    }
}

#[test]
fn socket_is_left_out() {
    let root = folder();
    write(root.path(), "empty", "");
    let _socket = UnixListener::bind(root.path().join("socket")).expect("bindable");
    assert_eq!(file_batches(root.path(), &file_job(10, &[root.path()])), [["empty"]]);
    let refused = refusal(&file_job(10, &[&root.path().join("socket")]));
    assert!(
        refused.ends_with("socket is neither a file nor a folder; name one of these"),
        "{refused}"
    );
}

#[test]
fn inputs_are_partitioned_separately() {
    let root = folder();
    for name in ["a/1", "a/2", "a/3", "b/1"] {
        write(root.path(), name, "");
    }
    let mut job = file_job(2, &[&root.path().join("a")]);
    job.inputs.push(input("more", InputKind::File, &[&root.path().join("b")]));
    let descriptors = descriptors(&job);
    let inputs: Vec<u32> = descriptors
        .iter()
        .map(|descriptor| match descriptor.work {
            Work::Files { input, .. } => input,
            _ => panic!("files only"),
        })
        .collect();
    assert_eq!(inputs, [0, 0, 1]);
    assert_eq!(
        descriptors.iter().map(|descriptor| descriptor.mini_batch).collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

#[test]
fn ranks_ignore_inputs() {
    let mut job = file_job(2, &[Path::new("/does/not/exist")]);
    job.rank_mini_batch_count = 3;
    let mut plan = Inputs::default().plan(&job);
    assert!(plan.by_ref().all(|descriptor| descriptor.expect("planned").work == Work::Rank));
    let totals = plan.totals();
    assert_eq!((totals.mini_batches, totals.items, totals.files), (3, Some(3), 0));
    assert_eq!(plan.schemas().expect("nothing is read"), [None]);
}

#[test]
fn bad_input_is_reported_in_one_line() {
    let root = folder();
    write(root.path(), "full/sub/file", "");
    fs::create_dir(root.path().join("empty")).expect("writable");
    fs::create_dir(root.path().join("empty/nested")).expect("writable");
    let shown = root.path().display();
    for (path, expected) in [
        (
            "missing",
            format!(
                "input 'images': {shown}/missing does not exist; correct the path, or put the data there"
            ),
        ),
        ("*.png", format!("input 'images': {shown}/*.png matches no file; correct the pattern")),
        (
            "no/*.png",
            format!("input 'images': {shown}/no/*.png matches no file: there is no {shown}/no/"),
        ),
        (
            "full/*",
            format!(
                "input 'images': {shown}/full/* matches no file; it matches a folder: add /** to take the files in it"
            ),
        ),
        (
            "a[",
            format!(
                "input 'images': {shown}/a[ is not a valid pattern: error parsing glob 'a[': unclosed character class; missing ']'"
            ),
        ),
        (
            "empty",
            format!(
                "input 'images': {shown}/empty holds no files; put files there, or correct the job file"
            ),
        ),
    ] {
        assert_eq!(refusal(&file_job(1, &[&root.path().join(path)])), expected);
    }
    let empty = root.path().join("empty");
    assert_eq!(
        refusal(&file_job(1, &[&empty, &empty])),
        "input 'images': none of its 2 paths holds a file; put files there, or correct the job file"
    );
    let newline = refusal(&file_job(1, &[&root.path().join("a\nb")]));
    assert_eq!(newline.lines().count(), 1, "{newline}");
}

#[test]
fn unreadable_folder_is_named() {
    let root = folder();
    write(root.path(), "open/file", "");
    write(root.path(), "shut/file", "");
    let shut = root.path().join("shut");
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o000)).expect("ours");
    if fs::read_dir(&shut).is_ok() {
        // The superuser can read everything, so the test removes the folder during the walk instead.
        let mut plan = Inputs::default().plan(&file_job(1, &[root.path()]));
        assert!(plan.next().expect("one file").is_ok());
        fs::remove_dir_all(&shut).expect("ours");
        let refused = format!("{:#}", plan.next().expect("an error").expect_err("an error"));
        assert!(
            refused.contains(&format!("{} cannot be read: No such file", shut.display())),
            "{refused}"
        );
        return;
    }
    let refused = refusal(&file_job(1, &[root.path()]));
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o700)).expect("ours");
    assert!(
        refused.contains(&format!("{} cannot be read; give the user", shut.display())),
        "{refused}"
    );
}

#[test]
fn unsuitable_size_is_rejected() {
    let root = folder();
    write(root.path(), "file", "");
    let mut job = job(MiniBatchSize::Bytes(10));
    job.inputs.push(input("images", InputKind::File, &[root.path()]));
    assert_eq!(refusal(&job), "input 'images': mini_batch_size must be a number of files");
    job.mini_batch_size = MiniBatchSize::Files(0);
    assert_eq!(refusal(&job), "input 'images': mini_batch_size must be 1 or more");
}

#[tokio::test]
async fn digest_changes_with_the_inputs() {
    let root = folder();
    write(root.path(), "a", "1");
    write(root.path(), "b/c", "1");
    let job = file_job(1, &[root.path()]);
    let digest = async || partitioner::inputs_digest(&job).await.expect("listable");
    let first = digest().await;
    assert_eq!(totals(&job).inputs_digest, first, "the plan has a different digest");
    assert_eq!(digest().await, first);

    write(root.path(), "b/c", "22");
    let grown = digest().await;
    assert_ne!(grown, first);
    fs::rename(root.path().join("b/c"), root.path().join("b/d")).expect("renamable");
    let renamed = digest().await;
    assert_ne!(renamed, grown);
    let file = fs::File::options().append(true).open(root.path().join("a")).expect("writable");
    file.set_modified(std::time::UNIX_EPOCH).expect("ours");
    assert_ne!(digest().await, renamed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn each_file_is_in_exactly_one_mini_batch(
        names in prop::collection::btree_set("[abB .]{1,3}(/[ab]{1,2}){0,3}\\.f", 1..40),
        size in 1u64..6,
        as_glob: bool,
    ) {
        let root = folder();
        for name in &names {
            // Skips a name that is already a folder, and `.`.
            let path = root.path().join(name);
            if path.components().count() == root.path().components().count() + name.split('/').count() {
                let _ = fs::create_dir_all(path.parent().expect("below root")).and_then(|()| fs::write(path, ""));
            }
        }
        write(root.path(), "always", "");
        let path = if as_glob { root.path().join("**") } else { root.path().to_owned() };
        let job = file_job(size, &[&path]);
        let planned = descriptors(&job);
        let files: Vec<String> = planned.iter().flat_map(|descriptor| files_of(root.path(), descriptor)).collect();
        let distinct: BTreeSet<&String> = files.iter().collect();
        prop_assert_eq!(distinct.len(), files.len());
        prop_assert_eq!(files.len(), count_files(root.path()));
        for (position, descriptor) in planned.iter().enumerate() {
            prop_assert_eq!(descriptor.mini_batch, position as u64);
            let files = files_of(root.path(), descriptor);
            prop_assert!((1..=size as usize).contains(&files.len()));
            prop_assert!(files.is_sorted());
            let folders: BTreeSet<_> = files.iter().map(|file| Path::new(file).parent().map(Path::to_owned)).collect();
            prop_assert!(as_glob || folders.len() == 1);
        }
        if as_glob {
            prop_assert!(files.is_sorted());
        }
        prop_assert_eq!(descriptors(&job), planned);
    }
}

fn count_files(folder: &Path) -> usize {
    let entries =
        fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path());
    let is_hidden =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
    let shown = entries.filter(|path| !is_hidden(path));
    shown.map(|path| if path.is_dir() { count_files(&path) } else { 1 }).sum()
}
