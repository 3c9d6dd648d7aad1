//! A glob, cut at its slashes, so that a walk enters only folders in which something can match.
//!
//! The components form a small automaton: a *state* is the number of components already matched, and `**` may match
//! any number of folders. A walk carries the set of states a folder was reached in.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};

/// A glob relative to the folder in which it begins.
#[derive(Clone, Debug)]
pub(crate) struct Glob {
    components: Vec<Component>,
}

#[derive(Clone, Debug)]
enum Component {
    /// `**`
    AnyDepth,
    Name(GlobMatcher),
}

/// Sets of states are tiny: a vector beats a set.
pub(crate) type States = Vec<usize>;

/// Whether `path` holds a character with a meaning in globs.
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
    let base_length = path[..special].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    path.split_at(base_length)
}

/// Removes the backslashes that take away the meaning of special characters.
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
    /// The error is a message for people.
    pub(crate) fn parse(pattern: &[u8]) -> Result<Self, String> {
        let pattern = std::str::from_utf8(pattern).map_err(|_| "the pattern is not valid UTF-8".to_owned())?;
        let components = pattern.split('/').filter(|component| !component.is_empty());
        let components = components.map(|component| match component {
            "**" => Ok(Component::AnyDepth),
            name => GlobBuilder::new(name)
                .literal_separator(true)
                .backslash_escape(true)
                .build()
                .map(|glob| Component::Name(glob.compile_matcher()))
                .map_err(|error| error.to_string()),
        });
        Ok(Self { components: components.collect::<Result<_, _>>()? })
    }

    /// The states at the folder in which the glob begins.
    pub(crate) fn start(&self) -> States {
        self.closed(vec![0])
    }

    /// The states after an entry of this name; empty: nothing at or below it matches.
    pub(crate) fn step(&self, states: &[usize], name: &[u8]) -> States {
        let name = Path::new(OsStr::from_bytes(name));
        let mut next = States::new();
        for &state in states {
            match self.components.get(state) {
                None => {}
                Some(Component::AnyDepth) => {
                    next.push(state);
                    next.extend(self.is_last(state).then_some(state + 1));
                }
                Some(Component::Name(matcher)) => next.extend(matcher.is_match(name).then_some(state + 1)),
            }
        }
        self.closed(next)
    }

    /// Whether an entry reached in these states is matched by the whole glob.
    pub(crate) fn is_match(&self, states: &[usize]) -> bool {
        states.contains(&self.components.len())
    }

    /// Whether something below a folder reached in these states can match.
    pub(crate) fn leads_on(&self, states: &[usize]) -> bool {
        states.iter().any(|&state| state < self.components.len())
    }

    fn is_last(&self, state: usize) -> bool {
        state + 1 == self.components.len()
    }

    /// `**` also matches no folder at all; at the end it stands for at least one name.
    fn closed(&self, mut states: States) -> States {
        let mut index = 0;
        while let Some(&state) = states.get(index) {
            let passes = matches!(self.components.get(state), Some(Component::AnyDepth)) && !self.is_last(state);
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
        let states = path.split('/').fold(glob.start(), |states, name| glob.step(&states, name.as_bytes()));
        glob.is_match(&states)
    }

    #[test]
    fn components_match_within_slashes_and_double_stars_across() {
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
            ("*", ".hidden", true),
            ("\\*.csv", "*.csv", true),
            ("\\*.csv", "a.csv", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn the_base_is_what_comes_before_the_first_special_component() {
        assert_eq!(split_base(b"/data/2020/*.csv"), (&b"/data/2020/"[..], &b"*.csv"[..]));
        assert_eq!(split_base(b"/data/a\\*b/c?/d"), (&b"/data/a\\*b/"[..], &b"c?/d"[..]));
        assert_eq!(unescape(b"/data/a\\*b/"), b"/data/a*b/");
        assert!(!is_glob(b"/data/a\\*b"));
    }
}
