//! Reads the lines of one block out of a text file, as valid UTF-8, whatever the encoding of the file is.
//!
//! The one idea: a line belongs to the block in which it starts, so a block is read from the first line break in it
//! to the first line break behind it, usually with a single `pread`. Nothing is mapped into memory: a file that
//! shrinks while it is read is then an ordinary short read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use encoding_rs::{Encoding, ISO_2022_JP, UTF_8, UTF_16BE, UTF_16LE};
use memchr::{memchr, memrchr};
use protocol::TableOptions;

use crate::error::{Error, Result, unreadable};

/// Longest piece of a line behind the end of its block that is still read. Longer ones are more likely a binary file
/// than a table, and would take the node's memory with them.
pub const LINE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Read with a block, because its last line usually ends there.
const TAIL_BYTES: usize = 16 * 1024;

/// Largest buffer that is kept for the next block: one huge line must not occupy memory for ever.
const KEPT_BYTES_MAX: usize = 16 * 1024 * 1024;

const PIECE_BYTES: usize = 256 * 1024;

/// The encoding that `options` name.
///
/// Encodings whose line breaks cannot be found by looking for the byte 0x0A are refused unless the file is read whole.
pub(crate) fn encoding_of(options: &TableOptions) -> Result<&'static Encoding> {
    let label = options.encoding.as_str();
    let Some(encoding) = encoding_for(label) else {
        return Err(Error::Options(format!(
            "encoding \"{label}\" is unknown; use a label such as utf-8, latin1, windows-1252 or shift_jis"
        )));
    };
    if !is_splittable(encoding) && !options.support_multi_line {
        return Err(Error::Options(format!(
            "a file in encoding \"{label}\" cannot be cut at byte offsets; set support_multi_line: true, which makes \
             each file one mini-batch, or convert the files to utf-8"
        )));
    }
    Ok(encoding)
}

/// WHATWG labels, and those that Python has beside them: `utf_8`, `latin-1`, `utf-8-sig`.
fn encoding_for(label: &str) -> Option<&'static Encoding> {
    let label = label.trim().to_ascii_lowercase().replace('_', "-");
    let label = label.strip_suffix("-sig").unwrap_or(&label);
    [label, &label.replace('-', "_"), &label.replace('-', "")]
        .into_iter()
        .find_map(|label| Encoding::for_label_no_replacement(label.as_bytes()))
}

fn is_splittable(encoding: &'static Encoding) -> bool {
    ![UTF_16LE, UTF_16BE, ISO_2022_JP].contains(&encoding)
}

/// Whether a line holds nothing: such lines are skipped everywhere.
pub(crate) fn is_blank(line: &[u8], delimiter: u8) -> bool {
    line.iter().all(|&byte| matches!(byte, b' ' | b'\t' | b'\r') && byte != delimiter)
}

/// The text of one block: `bytes[start..end]`, whole lines.
#[derive(Default)]
pub(crate) struct Text {
    /// Kept between blocks, so that it is allocated once.
    pub bytes: Vec<u8>,
    /// First byte of the text.
    pub start: usize,
    /// Behind the last byte of the text.
    pub end: usize,
    /// Where `bytes[start]` stands in the file.
    pub offset: u64,
    /// Whether bytes that are no text were replaced by U+FFFD.
    pub replaced: bool,
}

impl Text {
    /// The text itself.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn clear(&mut self, offset: u64) {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() > KEPT_BYTES_MAX {
            bytes = Vec::new();
        }
        *self = Self { bytes, offset, ..Self::default() };
    }

    fn decode(&mut self, encoding: &'static Encoding) {
        let raw = &self.bytes[self.start..self.end];
        if encoding == UTF_8 && std::str::from_utf8(raw).is_ok() {
            return;
        }
        let (text, replaced) = encoding.decode_without_bom_handling(raw);
        if let std::borrow::Cow::Owned(text) = text {
            self.start = 0;
            self.end = text.len();
            self.bytes = text.into_bytes();
        }
        self.replaced = replaced;
    }
}

/// One text file, open.
pub(crate) struct TextFile {
    file: File,
    name: String,
    bytes: u64,
    first_line: u64,
    encoding: &'static Encoding,
    /// Length of the byte order mark.
    mark_bytes: usize,
    /// Some of the file is missing: nobody can say how many lines there are before the block.
    pub has_holes: bool,
}

impl TextFile {
    /// Opens `path`, which messages call `name`.
    pub fn open(path: &Path, name: &str, options: &TableOptions) -> Result<Self> {
        let encoding = encoding_of(options)?;
        let file = File::open(path).map_err(unreadable(name))?;
        let metadata = file.metadata().map_err(unreadable(name))?;
        if metadata.is_dir() {
            return Err(unreadable(name)(io::ErrorKind::IsADirectory.into()));
        }
        let bytes = metadata.len();
        let mut opened =
            Self { file, name: name.to_owned(), bytes, first_line: 0, encoding, mark_bytes: 0, has_holes: false };
        let mut head = [0; 4];
        let head_length = opened.read_at(&mut head, 0)?;
        // A mark says what the file is, whatever the options say.
        if let Some((marked, mark_bytes)) = Encoding::for_bom(&head[..head_length]) {
            if !is_splittable(marked) && !options.support_multi_line {
                return Err(Error::Options(format!(
                    "{name} is {} text; set support_multi_line: true, or convert it to utf-8",
                    marked.name()
                )));
            }
            (opened.encoding, opened.mark_bytes) = (marked, mark_bytes);
        }
        opened.first_line = opened.find_first_line(options.delimiter)?;
        Ok(opened)
    }

    /// Size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the first line starts that is not blank: the header, if there is one.
    pub fn first_line(&self) -> u64 {
        self.first_line
    }

    /// Length of the byte order mark.
    pub fn mark_bytes(&self) -> u64 {
        self.mark_bytes as u64
    }

    fn find_first_line(&self, delimiter: u8) -> Result<u64> {
        let mut buffer = vec![0; 64];
        let mut line_start = 0;
        let mut at = self.mark_bytes();
        loop {
            let length = self.read_at(&mut buffer, at)?;
            for (index, &byte) in buffer[..length].iter().enumerate() {
                if byte == b'\n' {
                    line_start = at + index as u64 + 1;
                } else if !is_blank(&[byte], delimiter) {
                    return Ok(line_start);
                }
            }
            if length == 0 {
                return Ok(line_start);
            }
            at += length as u64;
            buffer.resize(PIECE_BYTES, 0);
        }
    }

    /// Fills `buffer` from `offset` on, as far as the file goes.
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
        // The line break in front of a line that starts at `first`.
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
            self.mark_bytes.min(filled)
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
                let line = memrchr(b'\n', &text.bytes[..wanted]).map_or(from, |at| from + at as u64 + 1);
                return Err(Error::Malformed {
                    path: self.name.clone(),
                    place: format!("byte {line}"),
                    message: format!("the line that starts here is longer than {LINE_BYTES_MAX} bytes"),
                });
            }
            searched = filled;
            asked = filled * 2;
            filled = self.fill(text, filled, asked)?;
        };
        (text.start, text.end) = (start, end);
        text.offset = if first == 0 { 0 } else { from + start as u64 };
        text.decode(self.encoding);
        Ok(())
    }

    /// Reads the first `limit` bytes of the file, which may end within a character or a line.
    pub fn read_prefix(&self, limit: u64, text: &mut Text) -> Result<()> {
        text.clear(0);
        let wanted = usize::try_from(limit.min(self.bytes)).expect("files that are read whole fit into memory");
        text.end = self.fill(text, 0, wanted)?;
        text.start = self.mark_bytes.min(text.end);
        text.decode(self.encoding);
        Ok(())
    }

    /// Grows the buffer to at least `to` bytes, reads into it from `at` on, and returns how far it is filled.
    fn fill(&self, text: &mut Text, at: usize, to: usize) -> Result<usize> {
        if text.bytes.len() < to {
            text.bytes.resize(to, 0);
        }
        let base = text.offset;
        Ok(at + self.read_at(&mut text.bytes[at..to], base + at as u64)?)
    }

    /// Calls `each` with every piece of the file, in order. For scans in constant memory.
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
