//! Detects the format of a file from its name and its first bytes.
//!
//! The name determines the format, and the content is compared with it: a file whose content contradicts its name, or
//! the `format` of its input, is rejected by name instead of being read in the wrong format.

use protocol::TableFormat;

/// Bytes that [`content`] needs from the beginning of a file: the mark of a tar archive ends there.
pub const MAGIC_BYTES: usize = 262;

/// Compression of a text file. Parquet files compress their columns themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// `.gz`
    Gzip,
    /// `.zst`
    Zstd,
}

impl Compression {
    /// Returns its name for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// The result for the name of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedFormat {
    /// The kind according to the extension before that of the compression.
    pub kind: NamedKind,
    /// The compression according to the last extension.
    pub compression: Option<Compression>,
}

/// The meaning of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedKind {
    /// A table of this format.
    Table(TableFormat),
    /// Something else, in words: "an Excel workbook".
    Other(&'static str),
    /// Unknown.
    Unknown,
}

/// The result for the first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Text: delimited, JSON lines, or other.
    Text,
    /// No bytes.
    Empty,
    /// Parquet.
    Parquet,
    /// Compressed data of any kind.
    Compressed(Compression),
    /// Something else, in words: "an Excel workbook".
    Other(&'static str),
}

/// Extensions of tables, in lower case.
const TABLES: &[(&str, TableFormat)] = &[
    ("csv", TableFormat::Csv),
    ("txt", TableFormat::Csv),
    ("tsv", TableFormat::Tsv),
    ("tab", TableFormat::Tsv),
    ("jsonl", TableFormat::Jsonl),
    ("ndjson", TableFormat::Jsonl),
    ("json", TableFormat::Jsonl),
    ("parquet", TableFormat::Parquet),
    ("pq", TableFormat::Parquet),
];

const COMPRESSIONS: &[(&str, Compression)] = &[
    ("gz", Compression::Gzip),
    ("gzip", Compression::Gzip),
    ("zst", Compression::Zstd),
    ("zstd", Compression::Zstd),
];

const EXCEL: &str = "an Excel workbook";
const ZIP: &str = "a zip archive, or an Excel workbook";
const TAR: &str = "a tar archive";
const BZIP2: &str = "compressed with bzip2";
const XZ: &str = "compressed with xz";
const LZ4: &str = "compressed with lz4";
const SNAPPY: &str = "compressed with snappy";
const ORC: &str = "an ORC file";
const AVRO: &str = "an Avro file";
const ARROW: &str = "an Arrow or Feather file";
const PICKLE: &str = "a Python pickle";
const NUMPY: &str = "a NumPy array";
const HDF5: &str = "an HDF5 file";
const SQLITE: &str = "an SQLite database";
const LFS: &str = "a pointer of Git LFS and not the data itself";
const HTML: &str = "an HTML page";

/// Extensions of unsupported files, in lower case.
const OTHERS: &[(&[&str], &str)] = &[
    (&["xlsx", "xls", "xlsm", "xlsb"], EXCEL),
    (&["ods"], "an OpenDocument spreadsheet"),
    (&["zip"], "a zip archive"),
    (&["tar", "tgz", "tbz", "tbz2", "txz"], TAR),
    (&["7z", "rar"], "an archive"),
    (&["bz2"], BZIP2),
    (&["xz", "lzma"], XZ),
    (&["lz4"], LZ4),
    (&["snappy", "sz"], SNAPPY),
    (&["br"], "compressed with brotli"),
    (&["orc"], ORC),
    (&["avro"], AVRO),
    (&["arrow", "arrows", "feather", "ipc"], ARROW),
    (&["pkl", "pickle"], PICKLE),
    (&["npy", "npz"], NUMPY),
    (&["h5", "hdf5", "hdf"], HDF5),
    (&["db", "sqlite", "sqlite3"], SQLITE),
    (&["xml"], "XML"),
    (&["html", "htm"], HTML),
    (&["yaml", "yml"], "YAML"),
    (&["sas7bdat", "xpt"], "a SAS table"),
    (&["dta"], "a Stata table"),
    (&["sav"], "an SPSS table"),
    (&["rds", "rdata"], "R data"),
    (&["pdf"], "a PDF"),
    (&["png", "jpg", "jpeg", "gif", "webp", "tif", "tiff", "bmp"], "a picture"),
    (&["py", "ipynb", "sh", "md", "rst"], "source code or a document"),
];

/// First bytes of files other than text.
const MAGIC: &[(&[u8], Content)] = &[
    (b"PAR1", Content::Parquet),
    (b"PARE", Content::Other("an encrypted Parquet file")),
    (b"\x1f\x8b", Content::Compressed(Compression::Gzip)),
    (b"\x28\xb5\x2f\xfd", Content::Compressed(Compression::Zstd)),
    (b"PK\x03\x04", Content::Other(ZIP)),
    (b"PK\x05\x06", Content::Other(ZIP)),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Content::Other(EXCEL)),
    (b"\xfd7zXZ\x00", Content::Other(XZ)),
    (b"\x04\x22\x4d\x18", Content::Other(LZ4)),
    (b"\xff\x06\x00\x00sNaPpY", Content::Other(SNAPPY)),
    (b"7z\xbc\xaf\x27\x1c", Content::Other("an archive")),
    (b"Rar!\x1a\x07", Content::Other("an archive")),
    (b"Obj\x01", Content::Other(AVRO)),
    (b"ARROW1\x00\x00", Content::Other(ARROW)),
    (b"\x93NUMPY", Content::Other(NUMPY)),
    (b"\x89HDF\r\n\x1a\n", Content::Other(HDF5)),
    (b"SQLite format 3\x00", Content::Other(SQLITE)),
    (b"\x80\x02", Content::Other(PICKLE)),
    (b"\x80\x03", Content::Other(PICKLE)),
    (b"\x80\x04\x95", Content::Other(PICKLE)),
    (b"\x80\x05\x95", Content::Other(PICKLE)),
    (b"\x89PNG\r\n\x1a\n", Content::Other("a picture")),
    (b"\xff\xd8\xff", Content::Other("a picture")),
    (b"%PDF-", Content::Other("a PDF")),
    (b"\x7fELF", Content::Other("a program")),
    (b"version https://git-lfs.github.com/spec/", Content::Other(LFS)),
];

/// Classifies a name, or a path or URL that ends in one, regardless of case.
pub fn named(path: &[u8]) -> NamedFormat {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    let (stem, last) = split_extension(&name);
    let Some((_, compression)) = COMPRESSIONS.iter().find(|(extension, _)| *extension == last)
    else {
        return NamedFormat { kind: kind_of(last), compression: None };
    };
    let kind = match kind_of(split_extension(stem).1) {
        NamedKind::Table(TableFormat::Parquet) => NamedKind::Other("a compressed Parquet file"),
        kind => kind,
    };
    NamedFormat { kind, compression: Some(*compression) }
}

/// Splits a name into stem and extension, which is empty if there is none.
fn split_extension(name: &str) -> (&str, &str) {
    match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => (stem, extension),
        _ => (name, ""),
    }
}

fn kind_of(extension: &str) -> NamedKind {
    let table = TABLES
        .iter()
        .find(|(name, _)| *name == extension)
        .map(|(_, format)| NamedKind::Table(*format));
    let other = || {
        OTHERS
            .iter()
            .find(|(names, _)| names.contains(&extension))
            .map(|(_, what)| NamedKind::Other(what))
    };
    table.or_else(other).unwrap_or(NamedKind::Unknown)
}

/// Classifies the first bytes of a file, [`MAGIC_BYTES`] of them if the file has that many.
pub fn content(head: &[u8]) -> Content {
    if head.is_empty() {
        return Content::Empty;
    }
    if let Some((_, content)) = MAGIC.iter().find(|(magic, _)| head.starts_with(magic)) {
        return *content;
    }
    // Both could begin a text: `ORC,…`, `BZh9…`.
    let is_control = |byte: &u8| *byte < b' ' && !b"\t\r\n".contains(byte);
    if head.strip_prefix(b"ORC").is_some_and(|rest| rest.iter().take(16).any(is_control)) {
        return Content::Other(ORC);
    }
    if head.starts_with(b"BZh") && head.get(4..10) == Some(b"1AY&SY") {
        return Content::Other(BZIP2);
    }
    if head.get(257..262) == Some(b"ustar") {
        return Content::Other(TAR);
    }
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let begins =
        |with: &[u8]| head.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    if begins(b"<!doctype html") || begins(b"<html") {
        return Content::Other(HTML);
    }
    if begins(b"<?xml") {
        return Content::Other("XML");
    }
    Content::Text
}

/// Returns why a file cannot be read as `format`, as a sentence that continues its name; `None` if its name and first
/// bytes do not contradict the format.
pub fn refusal(named: NamedFormat, format: TableFormat, head: &[u8]) -> Option<String> {
    let content = content(head);
    if format == TableFormat::Parquet {
        return match content {
            Content::Parquet => None,
            Content::Empty => {
                Some("is empty, and not a Parquet file; leave it out, or write it again".to_owned())
            }
            Content::Text => Some(
                "is not a Parquet file; correct its name, or set `format`, or write it again"
                    .to_owned(),
            ),
            Content::Compressed(compression) => Some(format!(
                "is compressed with {} and not a Parquet file; decompress it, or correct its name",
                compression.word()
            )),
            Content::Other(what) => Some(unread(what)),
        };
    }
    match (content, named.compression) {
        (Content::Text, None) | (Content::Empty, _) => None,
        (Content::Compressed(found), Some(named)) if found == named => None,
        (Content::Parquet, _) => {
            Some("is a Parquet file; set `format: parquet`, or correct its name".to_owned())
        }
        (Content::Compressed(found), _) => {
            let extension = if found == Compression::Gzip { ".gz" } else { ".zst" };
            Some(format!(
                "is compressed with {}; let its name end in {extension}, or decompress it",
                found.word()
            ))
        }
        (Content::Text, Some(named)) => Some(format!(
            "is not compressed with {}, although its name says so; correct its name",
            named.word()
        )),
        (Content::Other(what), _) => Some(unread(what)),
    }
}

/// Returns the end of a sentence about an unsupported file.
pub fn unread(what: &str) -> String {
    match what {
        LFS => format!("is {what}; fetch the data with `git lfs pull`"),
        HTML => {
            format!(
                "is {what}, which web servers send in place of a missing file; download it again, or leave it out"
            )
        }
        _ => format!(
            "is {what}, and not read as a table; convert it to Parquet, CSV or JSON lines, or leave it out"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_determines_format_and_compression() {
        let table = |format| NamedKind::Table(format);
        for (path, kind, compression) in [
            ("data/a.csv", table(TableFormat::Csv), None),
            ("a.b.TXT", table(TableFormat::Csv), None),
            ("A.TSV.GZ", table(TableFormat::Tsv), Some(Compression::Gzip)),
            ("s3://bucket/a%20b.jsonl.zst", table(TableFormat::Jsonl), Some(Compression::Zstd)),
            ("a.ndjson", table(TableFormat::Jsonl), None),
            ("part-0.c000.snappy.parquet", table(TableFormat::Parquet), None),
            ("part-0.gz.pq", table(TableFormat::Parquet), None),
            (
                "a.parquet.gz",
                NamedKind::Other("a compressed Parquet file"),
                Some(Compression::Gzip),
            ),
            ("a.tar.gz", NamedKind::Other(TAR), Some(Compression::Gzip)),
            ("a.gz", NamedKind::Unknown, Some(Compression::Gzip)),
            ("a.xlsx", NamedKind::Other(EXCEL), None),
            ("csv", NamedKind::Unknown, None),
            (".csv", NamedKind::Unknown, None),
            ("x.csv/part-00000", NamedKind::Unknown, None),
            ("a.csv ", NamedKind::Unknown, None),
            ("", NamedKind::Unknown, None),
        ] {
            assert_eq!(named(path.as_bytes()), NamedFormat { kind, compression }, "{path:?}");
        }
    }

    #[test]
    fn first_bytes_determine_the_kind_of_a_file() {
        for (head, expected) in [
            (&b""[..], Content::Empty),
            (b"id,name\n1,a\n", Content::Text),
            (b"\xef\xbb\xbfid\n", Content::Text),
            (b"ORC,BZh9,PAR\n", Content::Text),
            (b"BZh9,id\n", Content::Text),
            (b"PAR1\x15\x04", Content::Parquet),
            (b"\x1f\x8b\x08\x00", Content::Compressed(Compression::Gzip)),
            (b"\x28\xb5\x2f\xfd\x04", Content::Compressed(Compression::Zstd)),
            (b"BZh91AY&SY\x00", Content::Other(BZIP2)),
            (b"ORC\n1\n", Content::Text),
            (b"ORC\x0a\x03", Content::Other(ORC)),
            (b"ORC\x08\x03", Content::Other(ORC)),
            (b"PK\x03\x04\x14", Content::Other(ZIP)),
            (b"Obj\x01\x04\x14avro.codec", Content::Other(AVRO)),
            (b"\n <!DOCTYPE HTML>", Content::Other(HTML)),
            (b"version https://git-lfs.github.com/spec/v1\noid", Content::Other(LFS)),
        ] {
            assert_eq!(content(head), expected, "{}", head.escape_ascii());
        }
    }

    #[test]
    fn first_bytes_reach_the_mark_of_a_tar_archive() {
        let mut head = [b'a'; MAGIC_BYTES];
        head[257..262].copy_from_slice(b"ustar");
        assert_eq!(content(&head), Content::Other(TAR));
    }

    #[test]
    fn contradicting_content_is_rejected_with_a_remedy() {
        let refused =
            |path: &str, format, head: &[u8]| refusal(named(path.as_bytes()), format, head);
        let gzip = b"\x1f\x8b\x08\x00";
        assert_eq!(refused("a.csv", TableFormat::Csv, b"id\n"), None);
        assert_eq!(refused("a.csv", TableFormat::Csv, b""), None);
        assert_eq!(refused("a.csv.gz", TableFormat::Csv, gzip), None);
        assert_eq!(refused("a", TableFormat::Parquet, b"PAR1"), None);
        for (path, format, head, expected) in [
            ("a.csv", TableFormat::Csv, &b"PAR1"[..], "set `format: parquet`"),
            ("a.csv", TableFormat::Csv, gzip, "let its name end in .gz"),
            ("a.csv.zst", TableFormat::Csv, gzip, "let its name end in .gz"),
            ("a.csv.gz", TableFormat::Csv, b"id\n", "is not compressed with gzip"),
            ("a.jsonl", TableFormat::Jsonl, b"PK\x03\x04", "a zip archive, or an Excel workbook"),
            ("a.parquet", TableFormat::Parquet, b"id\n", "is not a Parquet file"),
            ("a.parquet", TableFormat::Parquet, b"", "is empty"),
            (
                "a.parquet",
                TableFormat::Parquet,
                b"version https://git-lfs.github.com/spec/v1",
                "git lfs pull",
            ),
            (
                "a.parquet",
                TableFormat::Parquet,
                gzip,
                "is compressed with gzip and not a Parquet file",
            ),
        ] {
            let reason = refused(path, format, head).unwrap_or_default();
            assert!(reason.contains(expected), "{path}: {reason}");
        }
    }
}
