//! The frames of a Python traceback or stack.

use serde::Serialize;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Frame {
    file: String,
    line: u64,
    function: String,
    code: String,
    /// Code of the user, not of a library or of Python.
    user: bool,
}

/// Returns the frames, the outermost first; those of several tracebacks in the order of the text.
pub fn frames(text: &str) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((file, number, function)) = heading(line) else { continue };
        // A traceback shows the code of a frame below it; a dump of `faulthandler` does not.
        let code = lines.next_if(|next| heading(next).is_none() && next.starts_with("    "));
        let code = code.map_or_else(String::new, |code| code.trim().to_owned());
        frames.push(Frame { user: is_of_user(&file), file, line: number, function, code });
    }
    if text.contains("most recent call first") {
        frames.reverse();
    }
    frames
}

/// Reads `  File "a.py", line 7, in run`; `faulthandler` omits the comma before `in`.
fn heading(line: &str) -> Option<(String, u64, String)> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = rest.split_at(digits);
    let function = rest.trim_start_matches(',').trim().strip_prefix("in ").unwrap_or_default();
    Some((file.to_owned(), number.parse().ok()?, function.to_owned()))
}

fn is_of_user(file: &str) -> bool {
    let library =
        ["/site-packages/", "/dist-packages/", "/lib/python3", "/gristmill/", "/azureml_user/"];
    !file.starts_with('<') && !library.iter().any(|part| file.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_traceback_are_in_order() {
        let text = "Traceback (most recent call last):\n  File \"/usr/lib/python3.11/x.py\", line 3, in a\n    b()\n    ^^^\n  \
                    File \"/home/me/entry <b>.py\", line 7, in run\n    raise ValueError\nValueError: bad";
        let frames = frames(text);
        let short: Vec<_> = frames
            .iter()
            .map(|frame| (frame.line, &*frame.function, &*frame.code, frame.user))
            .collect();
        assert_eq!(short, [(3, "a", "b()", false), (7, "run", "raise ValueError", true)]);
    }

    #[test]
    fn dump_of_a_stack_is_turned_around() {
        let text = "Current thread 0x1 (most recent call first):\n  File \"/me/a.py\", line 9 in inner\n  File \"/me/a.py\", \
                    line 2 in run\n";
        let frames = frames(text);
        assert_eq!(
            frames.iter().map(|frame| &*frame.function).collect::<Vec<_>>(),
            ["run", "inner"]
        );
    }

    #[test]
    fn other_texts_have_no_frames() {
        for text in [
            "",
            "File \"",
            "  File \"a\", line x, in f",
            "File \"a\", line 99999999999999999999999 in f",
        ] {
            assert!(frames(text).is_empty(), "{text}");
        }
    }
}
