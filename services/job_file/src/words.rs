//! Decides whether code or settings mention a file beside the script.
//!
//! A script names the files that it reads: `open("labels.txt")`, `glob("prompts/*.md")`, `f"{name}.npy"`,
//! `--model small.bin`. So a file counts if its name, the name of a folder above it, or its extension after a wildcard
//! is among the words of the code, the arguments or the environment variables. An accidental match at worst runs a job
//! that could have been reused.

use std::collections::HashSet;
use std::path::{Component, Path};

/// More text than any script has; prevents a folder full of generated code from exhausting memory.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// Words of texts: letters, digits, `.`, `_`, `-`, and every character beyond ASCII.
#[derive(Debug, Default)]
pub struct Words {
    words: HashSet<Vec<u8>>,
    bytes: usize,
}

impl Words {
    pub fn add(&mut self, text: &[u8]) {
        self.bytes += text.len();
        if self.bytes > BYTES_MAX {
            return;
        }
        for word in words(text) {
            if !self.words.contains(word) {
                self.words.insert(word.to_vec());
            }
        }
    }

    /// Returns whether the words mention the file of this relative path.
    pub fn mention(&self, path: &Path) -> bool {
        if self.bytes > BYTES_MAX {
            return true;
        }
        let mut names = path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name.as_encoded_bytes()),
            _ => None,
        });
        let has_all = |name: &[u8]| {
            words(name).next().is_some() && words(name).all(|word| self.words.contains(word))
        };
        let extensions = path.file_name().map_or(&[][..], |name| name.as_encoded_bytes());
        let mut dots =
            extensions.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
        names.any(has_all) || dots.any(|at| self.words.contains(&extensions[at..]))
    }
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_part =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte) || !byte.is_ascii();
    text.split(move |byte| !is_part(byte)).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_mentioned_by_name_folder_or_extension() {
        let mut words = Words::default();
        words.add(br#"labels = open(os.path.join(HERE, "my labels.txt")); glob("prompts/*/*.md"); f"{name}.npy""#);
        words.add("open('aé.bin')".as_bytes());
        words.add("--model=small.pkl".as_bytes());
        for path in [
            "my labels.txt",
            "deep/my labels.txt",
            "prompts/a/b",
            "notes.md",
            "x.npy",
            "small.pkl",
            "aé.bin",
        ] {
            assert!(words.mention(Path::new(path)), "{path}");
        }
        for path in
            ["labels.txt2", "results.csv", "large.pkl", "data/1.png", "other.bin", ".DS_Store"]
        {
            assert!(!words.mention(Path::new(path)), "{path}");
        }
        assert!(!Words::default().mention(Path::new("a.txt")));
    }
}
