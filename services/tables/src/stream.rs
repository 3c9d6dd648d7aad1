//! Reads text from front to back: compressed files, encodings in which line breaks cannot be found by their byte, and
//! records with line breaks in quotes.
//!
//! The partitioner reads such a text once and splits it into whole records ([`protocol::BlockRange::Records`]). A
//! decoder continues at the end of the previous range as long as ranges are in order, and otherwise starts again at the
//! beginning. Memory contains one window and one record, regardless of the size of the file.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};

use encoding_rs::{Decoder, Encoding, UTF_8};
use flate2::read::MultiGzDecoder;
use memchr::{memchr, memchr_iter, memchr3, memrchr};
use protocol::TableOptions;

use crate::charset::Charset;
use crate::detect::{Compression, Content, MAGIC_BYTES, content};
use crate::error::{Error, Result, unreadable};
use crate::source::{Identity, LINE_BYTES_MAX, Text, TextFile};
use crate::split::is_multi_line;
use crate::wide::unmarked_utf16;

const PIECE_BYTES: usize = 64 * 1024;

/// The decompressed text of one file from some position on; in UTF-8, unless its encoding can be decoded window by
/// window.
pub(crate) struct TextStream {
    source: Source,
    identity: Identity,
    name: String,
    compression: Option<Compression>,
    /// Offset of the next byte in the text.
    position: u64,
    /// Line breaks before it; `None` in a stream that did not start at the beginning.
    lines: Option<u64>,
    /// Encoding of the bytes read.
    charset: Charset,
}

enum Source {
    Bytes(Box<dyn Read + Send>),
    Transcoded(Transcoder),
}

impl TextStream {
    /// Opens the text of `file` from `position` on.
    pub fn open(file: &TextFile, position: u64) -> Result<Self> {
        let name = file.name.clone();
        let failed = unreadable(&file.name);
        let mut own = file.again().map_err(&failed)?;
        let identity = file.identity.clone();
        if !file.is_stream {
            let start = position.max(file.mark_bytes);
            own.seek(SeekFrom::Start(start)).map_err(&failed)?;
            let lines = (start == file.mark_bytes).then_some(0);
            let source = Source::Bytes(Box::new(own));
            let charset = file.charset;
            return Ok(Self {
                source,
                identity,
                name,
                compression: None,
                position: start,
                lines,
                charset,
            });
        }
        let compression = file.compression;
        let (mut reader, head) =
            opened(own, compression).map_err(|error| failure(&name, compression, 0, error))?;
        let marked = Encoding::for_bom(&head);
        let (charset, mark_bytes) =
            marked.map_or((file.charset, 0), |(encoding, bytes)| (encoding.into(), bytes));
        if compression.is_some()
            && charset.is_utf8()
            && let Some(message) = unmarked_utf16(&head)
        {
            return Err(Error::Kind { path: name, message });
        }
        io::copy(&mut reader.by_ref().take(mark_bytes as u64), &mut io::sink())
            .map_err(|error| failure(&name, compression, 0, error))?;
        let source = match charset.is_utf8() {
            true => Source::Bytes(reader),
            false => Source::Transcoded(Transcoder::new(reader, charset)),
        };
        let charset = UTF_8.into();
        let mut stream =
            Self { source, identity, name, compression, position: 0, lines: Some(0), charset };
        stream.skip_to(position)?;
        Ok(stream)
    }

    /// Opens the text of `file` after the lines that the options skip.
    pub fn open_table(file: &TextFile, options: &TableOptions) -> Result<Self> {
        let mut stream = Self::open(file, 0)?;
        if !file.is_stream {
            // The file knows where its first line is; blank lines before it do not matter.
            stream.skip_to(if options.skip_rows > 0 { file.first_line } else { 0 })?;
            return Ok(stream);
        }
        let mut byte = Vec::new();
        while stream.lines.is_some_and(|lines| lines < options.skip_rows)
            && stream.read(1, &mut byte)? == 1
        {
            byte.clear();
        }
        Ok(stream)
    }

    /// Returns whether continuing here reads `file` at `position` with less work than a new start.
    pub fn leads_to(&self, file: &TextFile, position: u64) -> bool {
        file.is_stream
            && self.position <= position
            && self.name == file.name
            && self.identity == file.identity
    }

    /// Skips to a position.
    pub fn skip_to(&mut self, position: u64) -> Result<()> {
        let mut buffer = Vec::new();
        while self.position < position {
            let wanted = (position - self.position).min(PIECE_BYTES as u64) as usize;
            if self.read(wanted, &mut buffer)? == 0 {
                break;
            }
            buffer.clear();
        }
        Ok(())
    }

    /// Returns the offset of the next byte in the text.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Appends `wanted` bytes to the buffer, or all up to the end. Returns the number of bytes read.
    pub fn read(&mut self, wanted: usize, buffer: &mut Vec<u8>) -> Result<usize> {
        let before = buffer.len();
        // Not zeroed first: a window is much larger than most files.
        buffer.reserve(wanted);
        let reader: &mut dyn Read = match &mut self.source {
            Source::Bytes(reader) => reader,
            Source::Transcoded(transcoder) => transcoder,
        };
        let read = reader.take(wanted as u64).read_to_end(buffer);
        let filled = buffer.len() - before;
        self.position += filled as u64;
        read.map_err(|error| failure(&self.name, self.compression, self.position, error))?;
        if let Some(lines) = &mut self.lines {
            *lines += count_lines(&buffer[before..]);
        }
        Ok(filled)
    }

    /// Returns the name of the file, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn has_replaced(&self) -> bool {
        matches!(&self.source, Source::Transcoded(transcoder) if transcoder.has_replaced)
    }
}

/// Returns a reader of the decompressed bytes of a file, and the first [`MAGIC_BYTES`] of them.
fn opened(
    file: File,
    compression: Option<Compression>,
) -> io::Result<(Box<dyn Read + Send>, Vec<u8>)> {
    let mut reader: Box<dyn Read + Send> = match compression {
        None => Box::new(file),
        Some(Compression::Gzip) => {
            Box::new(MultiGzDecoder::new(BufReader::with_capacity(PIECE_BYTES, file)))
        }
        Some(Compression::Zstd) => Box::new(zstd::stream::read::Decoder::new(file)?),
    };
    let mut head = Vec::new();
    reader.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut head)?;
    if compression.is_some()
        && let Content::Parquet | Content::Compressed(_) | Content::Other(_) = content(&head)
    {
        return Err(io::Error::other("the compressed data is not text"));
    }
    Ok((Box::new(Cursor::new(head.clone()).chain(reader)), head))
}

fn failure(name: &str, compression: Option<Compression>, position: u64, error: io::Error) -> Error {
    match compression {
        Some(compression) if error.raw_os_error().is_none() => Error::Malformed {
            path: name.to_owned(),
            place: format!("byte {position} of its text"),
            message: format!(
                "not readable as {}: {error}; the file is damaged or cut short",
                compression.word()
            ),
        },
        _ => unreadable(name)(error),
    }
}

/// Text of any encoding as UTF-8.
struct Transcoder {
    inner: Box<dyn Read + Send>,
    charset: Charset,
    decoder: Decoder,
    raw: Vec<u8>,
    text: Cursor<Vec<u8>>,
    has_ended: bool,
    /// Whether invalid bytes were replaced by U+FFFD.
    has_replaced: bool,
}

impl Transcoder {
    fn new(inner: Box<dyn Read + Send>, charset: Charset) -> Self {
        let decoder = charset.encoding.new_decoder_without_bom_handling();
        let (raw, text) = (vec![0; PIECE_BYTES], Cursor::default());
        Self { inner, charset, decoder, raw, text, has_ended: false, has_replaced: false }
    }
}

impl Read for Transcoder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.text.position() == self.text.get_ref().len() as u64 && !self.has_ended {
            let length = self.inner.read(&mut self.raw)?;
            self.has_ended = length == 0;
            if self.charset.has_gaps() {
                // Every byte is a character, so pieces need no state.
                let (text, replaced) = self.charset.decode(&self.raw[..length]);
                self.text = Cursor::new(text.into_owned().into_bytes());
                self.has_replaced |= replaced;
                continue;
            }
            let room = self.decoder.max_utf8_buffer_length(length).expect("pieces are small");
            let mut text = std::mem::take(self.text.get_mut());
            text.resize(room, 0);
            let (_, _, written, replaced) =
                self.decoder.decode_to_utf8(&self.raw[..length], &mut text, self.has_ended);
            text.truncate(written);
            self.text = Cursor::new(text);
            self.has_replaced |= replaced;
        }
        self.text.read(buffer)
    }
}

/// Finds the ends of records in a text that arrives in pieces, by the rules of [`crate::split::Splitter`].
#[derive(Debug)]
pub(crate) struct RecordEnds {
    delimiter: u8,
    /// Whether a line break within quotes does not end a record.
    has_quotes: bool,
    /// Bytes seen since the start of the text.
    at: u64,
    /// Start of the current cell.
    cell: u64,
    quoted: bool,
    /// Position after the last closing quote.
    after_quote: u64,
}

/// Creates a finder for a text with these options that begins with a record.
pub(crate) fn record_ends(options: &TableOptions) -> RecordEnds {
    RecordEnds::new(options.delimiter, is_multi_line(options))
}

impl RecordEnds {
    fn new(delimiter: u8, has_quotes: bool) -> Self {
        Self { delimiter, has_quotes, at: 0, cell: 0, quoted: false, after_quote: u64::MAX }
    }

    /// Returns the position after the first end of a record in `piece`; skips the whole piece without one. Pieces are
    /// consecutive.
    pub fn next(&mut self, piece: &[u8]) -> Option<usize> {
        let base = self.at;
        self.at = base + piece.len() as u64;
        if !self.has_quotes {
            let end = memchr(b'\n', piece)? + 1;
            self.at = base + end as u64;
            return Some(end);
        }
        let mut done = 0;
        loop {
            let rest = &piece[done..];
            if self.quoted {
                done += memchr(b'"', rest)? + 1;
                self.quoted = false;
                self.after_quote = base + done as u64;
                continue;
            }
            let found = done + memchr3(self.delimiter, b'\n', b'"', rest)?;
            let position = base + found as u64;
            done = found + 1;
            match piece[found] {
                b'"' => self.quoted = position == self.cell || position == self.after_quote,
                byte => {
                    self.cell = if byte == self.delimiter || byte == b'\n' {
                        position + 1
                    } else {
                        self.cell
                    }
                }
            }
            if piece[found] == b'\n' {
                self.at = position + 1;
                return Some(done);
            }
        }
    }

    /// Returns the position after the last record that ends in `piece`.
    fn last(&mut self, piece: &[u8]) -> Option<usize> {
        if !self.has_quotes {
            self.at += piece.len() as u64;
            return memrchr(b'\n', piece).map(|at| at + 1);
        }
        let mut end = 0;
        loop {
            // Most text has few quotes: up to the next one, only the last line counts.
            let rest = &piece[end..];
            if !self.quoted
                && let Some(plain) =
                    memrchr(b'\n', &rest[..memchr(b'"', rest).unwrap_or(rest.len())])
            {
                end += plain + 1;
                self.at += plain as u64 + 1;
                self.cell = self.at;
            }
            match self.next(&piece[end..]) {
                Some(length) => end += length,
                None => return (end > 0).then_some(end),
            }
        }
    }
}

/// The records of a stream up to some position, in windows of whole records.
pub(crate) struct Windows<'a> {
    stream: &'a mut TextStream,
    ends: RecordEnds,
    window_bytes: usize,
    end: u64,
    /// The beginning of a record that was read with those before it.
    rest: Vec<u8>,
}

impl<'a> Windows<'a> {
    /// Creates the windows from the position of the stream on.
    pub fn new(
        stream: &'a mut TextStream,
        ends: RecordEnds,
        window_bytes: usize,
        end: u64,
    ) -> Self {
        Self { stream, ends, window_bytes, end, rest: Vec::new() }
    }

    /// Returns the number of bytes in the range after the windows so far.
    pub fn behind(&self) -> u64 {
        self.end - self.stream.position + self.rest.len() as u64
    }

    /// Fills `text` with the next records. Returns `false` if there are none.
    pub fn next(&mut self, text: &mut Text) -> Result<bool> {
        let offset = self.stream.position - self.rest.len() as u64;
        text.clear(offset);
        text.lines_before = self.stream.lines.map(|lines| lines - count_lines(&self.rest));
        let mut bytes = std::mem::take(&mut text.bytes);
        bytes.clear();
        bytes.append(&mut self.rest);
        let mut whole = 0;
        while whole == 0 {
            let filled = bytes.len();
            let wanted = self
                .window_bytes
                .min(usize::try_from(self.end - self.stream.position).unwrap_or(usize::MAX));
            let read = self.stream.read(wanted, &mut bytes)?;
            if let Some(end) = self.ends.last(&bytes[filled..]) {
                whole = filled + end;
            }
            if read < wanted || self.stream.position == self.end {
                whole = bytes.len();
                break;
            }
            if whole == 0 && bytes.len() > LINE_BYTES_MAX {
                return Err(too_long(&self.stream.name, offset));
            }
        }
        self.rest.extend_from_slice(&bytes[whole..]);
        (text.bytes, text.start, text.end) = (bytes, 0, whole);
        text.decode(self.stream.charset);
        text.replaced |= self.stream.has_replaced();
        Ok(whole > 0)
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

/// Returns the error for a record of implausible length.
pub(crate) fn too_long(name: &str, start: u64) -> Error {
    let message = format!(
        "the record that starts here is longer than {LINE_BYTES_MAX} bytes; is a quote not closed?"
    );
    Error::Malformed { path: name.to_owned(), place: format!("byte {start}"), message }
}
