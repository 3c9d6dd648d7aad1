//! A glob, split at its slashes, so that a walk enters only folders that may contain a match.
//!
//! The components form a small automaton: a *state* is the number of components already matched, and `**` may match
//! any number of folders. A walk carries the set of states in which it reached a folder.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use protocol::ItemPath;

/// The reason why a pattern is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("the pattern is not valid UTF-8")]
    NotText(#[from] std::str::Utf8Error),
    #[error(transparent)]
    Invalid(#[from] globset::Error),
}

/// A glob relative to the folder in which it begins.
#[derive(Clone, Debug)]
pub(crate) struct Glob {
    components: Vec<Component>,
}

#[derive(Clone, Debug)]
enum Component {
    /// `**`
    AnyDepth,
    Name {
        matcher: GlobMatcher,
        /// The first character, if the component contains it literally.
        first: Option<u8>,
    },
}

impl Component {
    /// Returns whether it matches hidden names that begin with `first`. As in a shell, it must name that character.
    fn names_hidden(&self, first: u8) -> bool {
        matches!(self, Self::Name { first: Some(named), .. } if *named == first)
    }
}

/// Sets of states are tiny, so a vector is faster than a set.
pub(crate) type States = Vec<usize>;

/// Returns whether `path` contains a character with a meaning in globs.
pub(crate) fn is_glob(path: &[u8]) -> bool {
    first_special(path).is_some()
}

fn first_special(path: &[u8]) -> Option<usize> {
    let mut escaped = false;
    path.iter().position(|&byte| {
        let special = !escaped && matches!(byte, b'*' | b'?' | b'[' | b'{');
        escaped = byte == b'\\' && !escaped;
        special
    })
}

/// Splits `path` into the folder before its first component with a special character, slash included, and the rest.
pub(crate) fn split_base(path: &[u8]) -> (&[u8], &[u8]) {
    let special = first_special(path).unwrap_or(path.len());
    let base_length =
        path[..special].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    path.split_at(base_length)
}

/// Returns where the listing of a local path begins: there, or in the folder in which its pattern begins.
pub(crate) fn start_of(path: &ItemPath) -> PathBuf {
    if path.as_path().exists() || !is_glob(path.as_bytes()) {
        return path.as_path().to_owned();
    }
    let (base, _) = split_base(path.as_bytes());
    OsString::from_vec(unescape(base)).into()
}

/// Returns the first character of a component, unless it is special.
fn first_literal(component: &str) -> Option<u8> {
    match component.as_bytes() {
        [b'\\', byte, ..] => Some(*byte),
        [byte, ..] if !matches!(byte, b'*' | b'?' | b'[' | b'{') => Some(*byte),
        _ => None,
    }
}

/// Removes the backslashes that escape special characters.
pub(crate) fn unescape(base: &[u8]) -> Vec<u8> {
    let mut escaped = false;
    let mut plain = Vec::with_capacity(base.len());
    for &byte in base {
        escaped = byte == b'\\' && !escaped;
        if !escaped {
            plain.push(byte);
        }
    }
    plain
}

impl Glob {
    pub(crate) fn parse(pattern: &[u8]) -> Result<Self, PatternError> {
        let pattern = std::str::from_utf8(pattern)?;
        let components = pattern.split('/').filter(|component| !component.is_empty());
        let components = components.map(|component| match component {
            "**" => Ok(Component::AnyDepth),
            name => {
                GlobBuilder::new(name).literal_separator(true).backslash_escape(true).build().map(
                    |glob| Component::Name {
                        matcher: glob.compile_matcher(),
                        first: first_literal(name),
                    },
                )
            }
        });
        Ok(Self { components: components.collect::<Result<_, globset::Error>>()? })
    }

    /// Returns the states at the folder in which the glob begins.
    pub(crate) fn start(&self) -> States {
        self.closed(vec![0])
    }

    /// Returns the states after an entry of this name; empty if nothing at or below it matches. A pattern matches
    /// `hidden` names only if it has the same first character.
    pub(crate) fn step(&self, states: &[usize], name: &[u8], hidden: bool) -> States {
        let first = name.first().copied().unwrap_or_default();
        let name = Path::new(OsStr::from_bytes(name));
        let mut next = States::new();
        for &state in states {
            match self.components.get(state) {
                None => {}
                Some(component) if hidden && !component.names_hidden(first) => {}
                Some(Component::AnyDepth) => {
                    next.push(state);
                    next.extend(self.is_last(state).then_some(state + 1));
                }
                Some(Component::Name { matcher, .. }) => {
                    next.extend(matcher.is_match(name).then_some(state + 1))
                }
            }
        }
        self.closed(next)
    }

    /// Returns whether the whole glob matches an entry reached in these states.
    pub(crate) fn is_match(&self, states: &[usize]) -> bool {
        states.contains(&self.components.len())
    }

    /// Returns whether an entry below a folder reached in these states may match.
    pub(crate) fn leads_on(&self, states: &[usize]) -> bool {
        states.iter().any(|&state| state < self.components.len())
    }

    fn is_last(&self, state: usize) -> bool {
        state + 1 == self.components.len()
    }

    /// Adds the states that `**` reaches without a folder. At the end, `**` matches at least one name.
    fn closed(&self, mut states: States) -> States {
        let mut index = 0;
        while let Some(&state) = states.get(index) {
            let passes = matches!(self.components.get(state), Some(Component::AnyDepth))
                && !self.is_last(state);
            if passes && !states.contains(&(state + 1)) {
                states.push(state + 1);
            }
            index += 1;
        }
        states.sort_unstable();
        states.dedup();
        states
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        let glob = Glob::parse(pattern.as_bytes()).expect("valid");
        let states = path.split('/').fold(glob.start(), |states, name| {
            glob.step(&states, name.as_bytes(), name.starts_with(['.', '_']))
        });
        glob.is_match(&states)
    }

    #[test]
    fn double_star_matches_across_slashes_only() {
        for (pattern, path, expected) in [
            ("*.csv", "a.csv", true),
            ("*.csv", "b/a.csv", false),
            ("**/*.csv", "a.csv", true),
            ("**/*.csv", "x/y/a.csv", true),
            ("x/**", "x/y/z", true),
            ("x/**", "x", false),
            ("*/**", "x", false),
            ("*/**", "x/y", true),
            ("**", "x", true),
            ("**/**", "x", true),
            ("x/**/z/*.csv", "x/z/a.csv", true),
            ("x/**/z/*.csv", "x/z/z/a.csv", true),
            ("x/**/z/*.csv", "x/z/y/a.csv", false),
            ("[ab]?.{png,jpg}", "a1.jpg", true),
            ("[ab]?.{png,jpg}", "c1.jpg", false),
            ("*", ".hidden", false),
            (".*", ".hidden", true),
            ("_*", ".hidden", false),
            ("\\_*", "_hidden", true),
            ("?hidden", "_hidden", false),
            ("**", "_x/y", false),
            ("**/y", "_x/y", false),
            ("_x/**", "_x/y", true),
            ("**/_*/y", "a/_x/y", true),
            ("\\*.csv", "*.csv", true),
            ("\\*.csv", "a.csv", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn base_ends_before_the_first_special_component() {
        assert_eq!(split_base(b"/data/2020/*.csv"), (&b"/data/2020/"[..], &b"*.csv"[..]));
        assert_eq!(split_base(b"/data/a\\*b/c?/d"), (&b"/data/a\\*b/"[..], &b"c?/d"[..]));
        assert_eq!(unescape(b"/data/a\\*b/"), b"/data/a*b/");
        assert!(!is_glob(b"/data/a\\*b"));
    }
}
