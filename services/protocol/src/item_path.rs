//! The path or URL of one item, as bytes, because a file name on Linux may be invalid UTF-8.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A local path or a URL, as raw bytes.
///
/// Its JSON form is a string if it is valid UTF-8, and `{"bytes": "<base64>"}` otherwise. A file name of any bytes
/// therefore reaches the entry script as `os.fsdecode` would return it.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemPath(Vec<u8>);

impl ItemPath {
    /// Returns the raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path for calls to the operating system.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Returns the path for people: invalid bytes as U+FFFD, control characters escaped.
    pub fn display(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        if !text.contains(char::is_control) {
            return text.into_owned();
        }
        let mut shown = String::with_capacity(text.len());
        for character in text.chars() {
            if character.is_control() {
                shown.extend(character.escape_default())
            } else {
                shown.push(character)
            }
        }
        shown
    }

    /// Whether this names an object by URL (`s3://…`, `https://…`) rather than a local file.
    pub fn is_url(&self) -> bool {
        self.0.windows(3).take(16).any(|window| window == b"://")
    }
}

impl fmt::Debug for ItemPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.display())
    }
}

impl From<&Path> for ItemPath {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

impl From<PathBuf> for ItemPath {
    fn from(path: PathBuf) -> Self {
        Self(OsString::from(path).into_vec())
    }
}

impl From<&str> for ItemPath {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for ItemPath {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Wire<'a> {
    Text(#[serde(borrow)] std::borrow::Cow<'a, str>),
    Bytes { bytes: String },
}

impl Serialize for ItemPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Wire::Bytes { bytes: STANDARD.encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ItemPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Wire::deserialize(deserializer)? {
            Wire::Text(text) => Ok(Self(text.into_owned().into_bytes())),
            Wire::Bytes { bytes } => {
                STANDARD.decode(bytes).map(Self).map_err(serde::de::Error::custom)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_json() {
        for bytes in [&b"/data/a b.png"[..], b"/data/\xff\xfe", b"/data/new\nline", b""] {
            let path = ItemPath::from(bytes.to_vec());
            let json = serde_json::to_string(&path).expect("paths serialise");
            assert_eq!(serde_json::from_str::<ItemPath>(&json).expect("and come back"), path);
        }
    }

    #[test]
    fn display_is_one_line() {
        assert_eq!(ItemPath::from("a\nb").display(), "a\\nb");
    }
}
