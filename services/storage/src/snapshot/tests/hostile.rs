//! Tests with archives that are damaged, or made to do harm.

use super::*;

#[test]
fn archive_with_another_digest_is_rejected() {
    let test = Folders::new();
    test.write("main.py", b"main");
    let snapshot = test.pack_data();
    let wrong = Snapshot { digest: blake3::hash(b"other").to_hex().to_string(), ..snapshot };
    let result = unpack(&test.path("archive"), &wrong, Limit::SCRIPTS, &test.path("copy"));
    assert!(
        matches!(&result, Err(Error::Damaged { source, .. }) if source.to_string().contains("digest")),
        "{result:?}"
    );
    assert!(!test.path("copy").exists());
}

#[test]
fn truncated_archive_is_rejected() {
    let test = Folders::new();
    test.write("main.py", &[7; 3000]);
    let snapshot = test.pack_data();
    let whole = fs::read(test.path("archive")).expect("readable");
    for length in 0..whole.len() {
        fs::write(test.path("archive"), &whole[..length]).expect("writable");
        let result = unpack(&test.path("archive"), &snapshot, Limit::SCRIPTS, &test.path("copy"));
        assert!(
            matches!(result, Err(Error::Damaged { .. })),
            "{length} of {} bytes: {result:?}",
            whole.len()
        );
    }
}

/// A tar stream that an attacker could write, field by field.
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
fn names_outside_the_folder_are_rejected() {
    let test = Folders::new();
    for name in ["../evil", "a/../../evil", "/tmp/evil", "..", ".", "", "a/..", "./evil", "folder/"]
    {
        let message =
            test.rejection(&Hostile::default().entry(b'0', name.as_bytes(), b"", b"x").end());
        assert!(
            message.contains("not a path below") || message.contains("not a regular file"),
            "{name}: {message}"
        );
    }
    // The long forms of names are checked as well.
    let long = [b"../".repeat(60), b"evil\0".to_vec()].concat();
    let message = test.rejection(
        &Hostile::default()
            .entry(b'L', b"././@LongLink", b"", &long)
            .entry(b'0', b"a", b"", b"x")
            .end(),
    );
    assert!(message.contains("not a path below"), "{message}");
    let pax = b"15 path=../evil\n";
    let pax = [format!("{} ", pax.len()).into_bytes(), pax[3..].to_vec()].concat();
    let message = test.rejection(
        &Hostile::default().entry(b'x', b"pax", b"", &pax).entry(b'0', b"a", b"", b"x").end(),
    );
    assert!(message.contains("not a path below"), "{message}");
}

#[test]
fn entries_other_than_regular_files_are_rejected() {
    let test = Folders::new();
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
        // The classic attack: a link, and then a file below it.
        let tar = Hostile::default()
            .entry(kind, b"way", b"/etc", b"")
            .entry(b'0', b"way/evil", b"", b"x")
            .end();
        let message = test.rejection(&tar);
        assert!(!message.is_empty(), "{what}");
    }
}

#[test]
fn contradictory_names_are_rejected() {
    let test = Folders::new();
    for (first, second) in [("a", "a"), ("a", "a/b"), ("a/b", "a")] {
        let tar = Hostile::default().entry(b'0', first.as_bytes(), b"", b"x").entry(
            b'0',
            second.as_bytes(),
            b"",
            b"x",
        );
        let message = test.rejection(&tar.end());
        assert!(message.contains(second), "{message}");
    }
}

#[test]
fn oversized_archives_are_rejected_early() {
    let test = Folders::new();
    // A file that is too large, files that are too large together, too many files, a name without end, and a long tail.
    let zeros = vec![0; 2000];
    let message = test.rejection(&Hostile::default().entry(b'0', b"a", b"", &zeros).end());
    assert!(message.contains("more than 3 files or 1024 bytes"), "{message}");
    let two = Hostile::default().entry(b'0', b"a", b"", &zeros[..600]).entry(
        b'0',
        b"b",
        b"",
        &zeros[..600],
    );
    assert!(test.rejection(&two.end()).contains("more than"));
    let many = (0..4).fold(Hostile::default(), |tar, number: i32| {
        tar.entry(b'0', number.to_string().as_bytes(), b"", b"")
    });
    assert!(test.rejection(&many.end()).contains("more than"));
    let name = vec![b'n'; 1 << 20];
    let message = test.rejection(
        &Hostile::default().entry(b'L', b"long", b"", &name).entry(b'0', b"a", b"", b"").end(),
    );
    assert!(message.contains("too long"), "{message}");
    let mut tail = Hostile::default().entry(b'0', b"a", b"", b"x").end();
    tail.resize(1 << 20, 0);
    assert!(test.rejection(&tail).contains("too long"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_archive_does_harm(
        base in 0..3usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let test = Folders::new();
        let base = [
            Hostile::default().entry(b'0', b"a/b", b"", b"content").entry(b'0', b"c", b"", b"more"),
            Hostile::default().entry(b'L', b"long", b"", &[b'n'; 300]).entry(b'0', b"a", b"", b"content"),
            Hostile::default().entry(b'x', b"pax", b"", b"12 path=a/b\n").entry(b'0', b"c", b"", b"more"),
        ].into_iter().nth(base).expect("one of three");
        let mut tar = base.end();
        for (index, byte) in changes {
            // Changed headers are the interesting ones, so their checksums are corrected below.
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
        let mut archive = File::create(test.path("archive")).expect("writable");
        archive.write_all(&zstd::encode_all(&tar[..], 1).expect("it compresses")).expect("writable");
        let snapshot = Snapshot { digest: blake3::hash(&tar).to_hex().to_string(), bytes: 0, file: None };
        let into = test.path("into/copy");
        let result = unpack(&test.path("archive"), &snapshot, Limit { bytes: 4096, files: 4 }, &into);
        prop_assert_eq!(result.is_ok(), into.exists());
        let outside: Vec<_> = tree(test.folder.path()).into_keys().filter(|name| !name.starts_with("into/copy/")).collect();
        prop_assert_eq!(outside, ["archive", "into/copy.lock"]);
    }
}
