//! All printing. Every command prints through this file.
//!
//! Texts come from elsewhere: names of files, messages of scripts, errors of brokers. Control characters in them could
//! control the terminal, so all except line break and tab are escaped as in JSON. This keeps the values of JSON output.
//!
//! If standard output cannot be written, the command fails at its end ([`failure`]), except for a closed pipe (`|
//! head`). Before `main`, Rust opens /dev/null in place of a closed standard output (`>&-`), so [`CHECK`] runs even
//! earlier.

use std::borrow::Cow;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first error of writing to standard output.
static FAILURE: OnceLock<String> = OnceLock::new();
/// Whether the process was started without a standard output.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);
/// The loader calls the functions of this section before Rust begins.
#[used]
#[unsafe(link_section = ".init_array")]
static CHECK: extern "C" fn() = check_stdout;
static QUIET: AtomicBool = AtomicBool::new(false);
static HAS_OUTPUT: AtomicBool = AtomicBool::new(false);
static STREAMS_EVENTS: AtomicBool = AtomicBool::new(false);

extern "C" fn check_stdout() {
    // SAFETY: this call only reads the flags of a descriptor, which need not be open.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// Prints a line. Returns whether the output still has a reader.
pub fn out(text: &str) -> bool {
    HAS_OUTPUT.store(true, Ordering::Relaxed);
    line(text)
}

fn line(text: &str) -> bool {
    let mut stdout = io::stdout().lock();
    let written =
        stdout.write_all(printable(text).as_bytes()).and_then(|()| stdout.write_all(b"\n"));
    noted(written.and_then(|()| stdout.flush())).is_ok()
}

/// Prints events as JSON from now on.
pub fn stream_events() {
    STREAMS_EVENTS.store(true, Ordering::Relaxed);
}

pub fn streams_events() -> bool {
    STREAMS_EVENTS.load(Ordering::Relaxed)
}

/// Prints an event, which does not count as the output of a command.
pub fn event(event: &serde_json::Value) {
    line(&event.to_string());
}

pub fn has_output() -> bool {
    HAS_OUTPUT.load(Ordering::Relaxed)
}

pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Returns whether only results, warnings and errors are printed.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints a note to standard error; with `--quiet`, only if it is a warning.
pub fn note(text: &str) {
    if !is_quiet() || text.starts_with("warning") {
        err(text);
    }
}

pub fn err(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(text));
}

/// Writes the bytes of a file to standard output. To a terminal, writes their printable form.
pub fn bytes(bytes: &[u8]) -> bool {
    let mut stdout = io::stdout().lock();
    let written = match io::IsTerminal::is_terminal(&stdout) {
        true => stdout.write_all(printable(&String::from_utf8_lossy(bytes)).as_bytes()),
        false => stdout.write_all(bytes),
    };
    noted(written.and_then(|()| stdout.flush())).is_ok()
}

pub fn clear_screen() {
    let _ = noted(io::stdout().write_all(b"\x1b[2J\x1b[H"));
}

pub fn failure() -> Option<&'static str> {
    FAILURE.get().map(String::as_str)
}

fn noted(written: io::Result<()>) -> io::Result<()> {
    let is_closed = WAS_CLOSED.load(Ordering::Relaxed);
    let written = if is_closed { Err(io::Error::other("it is closed")) } else { written };
    if let Err(error) = &written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = FAILURE.set(error.to_string());
    }
    written
}

/// Standard output for many lines. Each write must consist of whole characters, like those of `write!` and
/// `serde_json`.
#[derive(Debug)]
pub struct Lines(BufWriter<StdoutLock<'static>>);

impl Lines {
    pub fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }
}

impl Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        noted(self.0.write_all(printable(&String::from_utf8_lossy(text)).as_bytes()))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        noted(self.0.flush())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// Returns the text with control characters escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_harmless = |character: char| !is_command(character) || matches!(character, '\n' | '\t');
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let escaped = |character: char| match is_harmless(character) {
        true => character.to_string(),
        false => format!("\\u{:04x}", u32::from(character)),
    };
    Cow::Owned(text.chars().map(escaped).collect())
}

/// Returns whether a character controls the terminal, breaks a line, or changes the direction of the text around it,
/// which makes one name look like another.
fn is_command(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Standard error for the log. Each write is one event and becomes one line, so that no text in it can look like
/// another event.
#[derive(Debug)]
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(one_line(&String::from_utf8_lossy(event)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn one_line(event: &str) -> String {
    printable(event.trim_end_matches('\n')).replace('\n', "\\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let text = "a\x1b]0;title\x07b\u{9b}2Jc\rd\x08e\u{202e}f";
        let shown = printable(text);
        assert_eq!(shown, "a\\u001b]0;title\\u0007b\\u009b2Jc\\u000dd\\u0008e\\u202ef");
        assert_eq!(printable("one\n\ttwo ä 漢"), "one\n\ttwo ä 漢");
    }

    /// A file that prints directly may print control characters.
    #[test]
    fn every_other_file_prints_through_this_one() {
        let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("sources").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).expect("source");
                let prints = |line: &&str| {
                    let writes =
                        ["io::stdout()", "io::stderr()"].iter().any(|stream| line.contains(stream));
                    let macros = ["print!(", "println!("].iter().any(|name| line.contains(name));
                    (writes && !line.contains("is_terminal")) || macros
                };
                let found = text.lines().find(prints);
                assert!(
                    found.is_none() || path.ends_with("printed.rs"),
                    "{}: {found:?}",
                    path.display()
                );
            }
        }
    }

    #[test]
    fn escaping_keeps_the_value_of_json() {
        let value = serde_json::json!({"name": "a\x1b\u{202e}gpj.exe\u{9b}2J\u{7f}\n\u{2028}\"\\"});
        let text = value.to_string();
        let shown = printable(&text);
        assert!(!shown.chars().any(is_command), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
    }

    #[test]
    fn event_is_one_line() {
        assert_eq!(one_line("WARN a\nERROR b\x1b[2J\n"), "WARN a\\nERROR b\\u001b[2J\n");
    }
}
