//! Reads the lines of one block from a text file of any encoding, as valid UTF-8.
//!
//! The one idea: a line belongs to the block in which it starts, so a block extends from its first line break to the
//! first line break after it, usually with a single `pread`. Nothing is mapped into memory, so a file that shrinks
//! while it is read causes an ordinary short read.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use encoding_rs::{Encoding, ISO_2022_JP, UTF_8, UTF_16BE, UTF_16LE};
use memchr::{memchr, memrchr};
use protocol::TableOptions;

use crate::charset::{Charset, encoding_of};
use crate::detect::{Compression, Content, MAGIC_BYTES, content, named, refusal};
use crate::error::{Error, Result, unreadable};
use crate::split::{is_blank, is_multi_line};
use crate::wide::unmarked_utf16;

/// Longest piece of a line that is read after the end of its block. A longer line is more likely a binary file than a
/// table, and would exhaust the memory of the node.
pub const LINE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Bytes read in addition to a block, because its last line usually ends there.
const TAIL_BYTES: usize = 16 * 1024;

/// Largest buffer that is kept for the next block: one huge line must not occupy memory permanently.
const KEPT_BYTES_MAX: usize = 16 * 1024 * 1024;

const PIECE_BYTES: usize = 256 * 1024;

/// Returns whether a text file must be read to be split: from front to back, or because line breaks in quotes do not
/// end rows.
pub fn must_be_read(name: &[u8], options: &TableOptions) -> bool {
    options.format.is_text() && (is_multi_line(options) || is_read_from_front(name, options))
}

/// Returns whether a text file can only be read from front to back: its name shows a compression, or line breaks, or
/// quotes if these matter, cannot be found by their bytes in its encoding.
pub fn is_read_from_front(name: &[u8], options: &TableOptions) -> bool {
    let shows_ends = || encoding_of(options).is_ok_and(|encoding| shows_ends(encoding, options));
    options.format.is_text() && (named(name).compression.is_some() || !shows_ends())
}

/// Returns whether the ends of records can be found by their bytes. In some encodings a byte of a character may look
/// like a line break; in others like a delimiter or a quote, which matters only if quotes do.
fn shows_ends(encoding: &'static Encoding, options: &TableOptions) -> bool {
    is_splittable(encoding)
        && (!is_multi_line(options) || encoding == UTF_8 || encoding.is_single_byte())
}

pub(crate) fn is_splittable(encoding: &'static Encoding) -> bool {
    ![UTF_16LE, UTF_16BE, ISO_2022_JP].contains(&encoding)
}

/// The text of one block: `bytes[start..end]`, whole lines.
#[derive(Default)]
pub(crate) struct Text {
    /// The buffer, which is kept between blocks.
    pub bytes: Vec<u8>,
    /// Start of the text.
    pub start: usize,
    /// End of the text.
    pub end: usize,
    /// Offset of `bytes[start]` in the file.
    pub offset: u64,
    /// Whether invalid bytes were replaced by U+FFFD.
    pub replaced: bool,
    /// Number of lines before it, if counted while reading.
    pub lines_before: Option<u64>,
}

impl Text {
    /// Returns the text.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns whether it contains only white space and line breaks.
    pub fn is_blank(&self, delimiter: u8) -> bool {
        self.as_slice().split(|&byte| byte == b'\n').all(|line| is_blank(line, delimiter))
    }

    pub fn clear(&mut self, offset: u64) {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() > KEPT_BYTES_MAX {
            bytes = Vec::new();
        }
        *self = Self { bytes, offset, ..Self::default() };
    }

    pub fn decode(&mut self, charset: Charset) {
        let raw = &self.bytes[self.start..self.end];
        if charset.is_utf8() && std::str::from_utf8(raw).is_ok() {
            return;
        }
        let (text, replaced) = charset.decode(raw);
        if let std::borrow::Cow::Owned(text) = text {
            self.start = 0;
            self.end = text.len();
            self.bytes = text.into_bytes();
        }
        self.replaced = replaced;
    }
}

/// The identity of a file in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
}

impl Identity {
    fn new(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// An open text file.
pub(crate) struct TextFile {
    file: File,
    /// Its name for people.
    pub name: String,
    pub bytes: u64,
    /// Start of the first line that is not blank, after those to skip: the header, if there is one.
    pub first_line: u64,
    /// For a compressed file, the encoding of the options.
    pub charset: Charset,
    pub compression: Option<Compression>,
    /// Whether its text can only be read from front to back, see [`crate::stream`].
    pub is_stream: bool,
    pub identity: Identity,
    /// Length of the byte order mark.
    pub mark_bytes: u64,
    /// Whether parts of the file are missing, so that the number of lines before the block is unknown.
    pub has_holes: bool,
}

impl TextFile {
    /// Opens `path`, which messages call `name`.
    pub fn open(path: &Path, name: &str, options: &TableOptions) -> Result<Self> {
        let charset = Charset::of(options)?;
        let file = File::open(path).map_err(unreadable(name))?;
        let metadata = file.metadata().map_err(unreadable(name))?;
        if metadata.is_dir() {
            return Err(unreadable(name)(io::ErrorKind::IsADirectory.into()));
        }
        let bytes = metadata.len();
        let mut opened = Self {
            file,
            name: name.to_owned(),
            bytes,
            first_line: 0,
            charset,
            compression: None,
            is_stream: false,
            identity: Identity::new(&metadata),
            mark_bytes: 0,
            has_holes: false,
        };
        let mut head = [0; MAGIC_BYTES];
        let head_length = opened.read_at(&mut head, 0)?;
        if let Some(message) = refusal(named(name.as_bytes()), options.format, &head[..head_length])
        {
            return Err(Error::kind(name, message));
        }
        if let Content::Compressed(compression) = content(&head[..head_length]) {
            (opened.compression, opened.is_stream) = (Some(compression), true);
            return Ok(opened);
        }
        // A byte order mark takes precedence over the options.
        if let Some((marked, mark_bytes)) = Encoding::for_bom(&head[..head_length]) {
            if !is_splittable(marked) && !must_be_read(name.as_bytes(), options) {
                let encoding = marked.name().to_ascii_lowercase();
                return Err(Error::Options(format!(
                    "{name} is {} text; set encoding: {encoding}",
                    marked.name()
                )));
            }
            (opened.charset, opened.mark_bytes) = (marked.into(), mark_bytes as u64);
        }
        if opened.charset.is_utf8()
            && let Some(message) = unmarked_utf16(&head[..head_length])
        {
            return Err(Error::kind(name, message));
        }
        if !shows_ends(opened.charset.encoding, options) {
            opened.is_stream = true;
            return Ok(opened);
        }
        opened.first_line = opened.find_first_line(options)?;
        Ok(opened)
    }

    /// Opens the file again, at its beginning.
    pub fn again(&self) -> io::Result<File> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }

    fn find_first_line(&self, options: &TableOptions) -> Result<u64> {
        let mut skipped = 0;
        let mut buffer = vec![0; 64];
        let mut line_start = 0;
        let mut at = self.mark_bytes;
        loop {
            let length = self.read_at(&mut buffer, at)?;
            for (index, &byte) in buffer[..length].iter().enumerate() {
                if byte == b'\n' {
                    line_start = at + index as u64 + 1;
                    skipped += 1;
                } else if skipped >= options.skip_rows && !is_blank(&[byte], options.delimiter) {
                    return Ok(line_start);
                }
            }
            if length == 0 {
                return Ok(if skipped < options.skip_rows { self.bytes } else { line_start });
            }
            at += length as u64;
            buffer.resize(PIECE_BYTES, 0);
        }
    }

    /// Fills `buffer` from `offset` on, up to the end of the file. Returns the number of bytes read.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(&self.name)(error)),
            }
        }
        Ok(filled)
    }

    /// Reads the lines that start at a byte offset from `first` to `last`, both included.
    pub fn read_lines(&self, first: u64, last: u64, text: &mut Text) -> Result<()> {
        // The line break before a line that starts at `first`.
        let from = first.saturating_sub(1);
        let last = last.min(self.bytes);
        text.clear(from);
        if self.bytes == 0 || first > last {
            return Ok(());
        }
        let wanted = usize::try_from(last - from).expect("blocks fit into memory");
        let mut asked = wanted + TAIL_BYTES;
        let mut filled = self.fill(text, 0, asked)?;
        let wanted = wanted.min(filled);
        let start = if first == 0 {
            (self.mark_bytes as usize).min(filled)
        } else {
            match memchr(b'\n', &text.bytes[..wanted]) {
                Some(at) => at + 1,
                None => return Ok(()),
            }
        };
        let mut searched = wanted;
        let end = loop {
            if let Some(at) = memchr(b'\n', &text.bytes[searched..filled]) {
                break searched + at + 1;
            }
            if filled < asked {
                break filled;
            }
            if filled - wanted > LINE_BYTES_MAX {
                let line =
                    memrchr(b'\n', &text.bytes[..wanted]).map_or(from, |at| from + at as u64 + 1);
                return Err(Error::Malformed {
                    path: self.name.clone(),
                    place: format!("byte {line}"),
                    message: format!(
                        "the line that starts here is longer than {LINE_BYTES_MAX} bytes"
                    ),
                });
            }
            searched = filled;
            asked = filled * 2;
            filled = self.fill(text, filled, asked)?;
        };
        (text.start, text.end) = (start, end);
        text.offset = if first == 0 { 0 } else { from + start as u64 };
        text.decode(self.charset);
        Ok(())
    }

    /// Grows the buffer to at least `to` bytes, reads into it from `at` on, and returns its filled length.
    fn fill(&self, text: &mut Text, at: usize, to: usize) -> Result<usize> {
        if text.bytes.len() < to {
            text.bytes.resize(to, 0);
        }
        let base = text.offset;
        Ok(at + self.read_at(&mut text.bytes[at..to], base + at as u64)?)
    }

    /// Calls `each` with consecutive pieces of bytes `from..to`, in constant memory.
    pub fn scan(&self, from: u64, to: u64, mut each: impl FnMut(&[u8])) -> Result<()> {
        let mut buffer = vec![0; PIECE_BYTES];
        let mut at = from;
        while at < to {
            let length = (to - at).min(PIECE_BYTES as u64) as usize;
            let filled = self.read_at(&mut buffer[..length], at)?;
            if filled == 0 {
                break;
            }
            each(&buffer[..filled]);
            at += filled as u64;
        }
        Ok(())
    }
}
