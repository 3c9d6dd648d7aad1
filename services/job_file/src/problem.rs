//! All mistakes in a document, each as a [`Problem`], in the order of the lines.
//!
//! Parsers of single values know no files and no lines. They return a [`Fault`]; [`Problems`] adds the location.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::{Location, Node, Value};

/// A mistake, or a warning, with its location. Only its `Display` composes its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, as the user named it.
    pub file: String,
    /// Line, counted from 1. `None`: the file as a whole, or the command line.
    pub line: Option<usize>,
    /// The key; a nested one with its path: `inputs[0].path`. `--set <key>` for the command line.
    pub field: String,
    /// The problem. Empty if "found" and "allowed" describe it.
    pub message: String,
    /// The value that was found; empty if the message names it.
    pub found: String,
    /// The allowed values; empty if the message names them.
    pub allowed: String,
}

impl Problem {
    /// Creates a mistake that its message describes completely.
    pub fn of_file(file: &Path, message: String) -> Self {
        let (field, found, allowed) = Default::default();
        Self { file: shown(file), line: None, field, message, found, allowed }
    }
}

/// Returns the name of a job file for messages; `-` is the standard input.
pub fn shown(file: &Path) -> String {
    if file == Path::new(STDIN) { "standard input".to_owned() } else { file.display().to_string() }
}

/// The name of a job file that stands for the standard input.
pub const STDIN: &str = "-";

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(formatter, "{}:{line}: ", self.file)?,
            None => write!(formatter, "{}: ", self.file)?,
        }
        if !self.field.is_empty() {
            write!(formatter, "{}: ", self.field)?;
        }
        let found = if self.found == NOTHING {
            "missing".to_owned()
        } else {
            format!("found {}", self.found)
        };
        match self.message.is_empty() {
            _ if self.found.is_empty() => formatter.write_str(&self.message),
            true => write!(formatter, "{found}; allowed: {}", self.allowed),
            false => write!(formatter, "{} ({found}; allowed: {})", self.message, self.allowed),
        }
    }
}

/// The found text of a missing value.
const NOTHING: &str = "nothing";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    message: String,
    found: String,
    allowed: String,
}

impl Fault {
    /// Creates the fault of a value that is not allowed.
    pub fn new(node: &Node, allowed: impl Into<String>) -> Self {
        Self::of(describe(node), allowed)
    }

    /// Works like [`Fault::new`], with a description of the value.
    pub fn of(found: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self { message: String::new(), found: found.into(), allowed: allowed.into() }
    }

    /// Creates the fault of an absent value.
    pub fn missing(allowed: impl Into<String>) -> Self {
        Self::of(NOTHING, allowed)
    }

    /// Creates the fault of an unknown name. Its message suggests the nearest of the known ones.
    pub fn unknown<'n>(
        name: &str,
        known: impl IntoIterator<Item = &'n str>,
        message: &str,
    ) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        let hint = did_you_mean(name, known.iter().copied());
        Self::of(format!("{name:?}"), known.join(", ")).saying(format!("{message}{hint}"))
    }

    /// Creates a fault that its message describes completely.
    pub fn only(message: impl Into<String>) -> Self {
        Self::default().saying(message)
    }

    pub fn saying(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// Adds to the message.
    pub fn adding(self, more: &str) -> Self {
        Self { message: format!("{}{more}", self.message), ..self }
    }

    /// Puts `context: ` before the message.
    pub fn within(self, context: &str) -> Self {
        Self { message: format!("{context}: {}", self.message), ..self }
    }

    /// Replaces the description of the value.
    pub fn finding(self, found: impl Into<String>) -> Self {
        Self { found: found.into(), ..self }
    }
}

/// Collects mistakes and warnings while a document is read.
#[derive(Default)]
pub struct Problems {
    file: String,
    found: RefCell<Vec<(Location, Problem)>>,
    warnings: RefCell<Vec<(Location, Problem)>>,
    /// Lists of keys that earlier problems name.
    listed: RefCell<Vec<String>>,
    /// Further files that the document refers to, as the user finds them.
    others: RefCell<Vec<String>>,
}

impl Problems {
    /// Returns an empty collection. `file`: as the user named it.
    pub fn new(file: String) -> Self {
        Self { file, ..Self::default() }
    }

    /// Returns a list of keys the first time, and a reference to it after that.
    pub fn list_once(&self, keys: String) -> String {
        let mut listed = self.listed.borrow_mut();
        if listed.contains(&keys) {
            return "the keys that are listed above".to_owned();
        }
        listed.push(keys.clone());
        keys
    }

    pub fn add(&self, location: Location, field: &str, fault: Fault) {
        self.add_to_file(self.file_of(location), location, field, fault);
    }

    /// Returns a value, or records the fault in it.
    pub fn accept<T>(&self, location: Location, field: &str, read: Result<T, Fault>) -> Option<T> {
        read.map_err(|fault| self.add(location, field, fault)).ok()
    }

    /// Registers another file. [`Location::Other`] has the number that this returns.
    pub fn other_file(&self, name: String) -> u16 {
        let mut others = self.others.borrow_mut();
        others.push(name);
        u16::try_from(others.len() - 1).unwrap_or(u16::MAX)
    }

    /// Returns an empty collection for a document that refers to further files.
    pub fn with_others(file: String, others: Vec<String>) -> Self {
        Self { file, others: RefCell::new(others), ..Self::default() }
    }

    /// Returns an empty collection for the same document.
    pub fn aside(&self) -> Self {
        Self::with_others(self.file.clone(), self.others())
    }

    /// Takes the further files of a collection that [`aside`](Self::aside) has made.
    pub fn set_others(&self, others: Vec<String>) {
        *self.others.borrow_mut() = others;
    }

    /// Returns the further files.
    pub fn others(&self) -> Vec<String> {
        self.others.borrow().clone()
    }

    /// Adds the mistakes and warnings of another collection.
    pub fn take(&self, other: Self) {
        self.found.borrow_mut().extend(other.found.into_inner());
        self.warnings.borrow_mut().extend(other.warnings.into_inner());
    }

    /// Forgets the mistakes without a line. In a document with mistakes, keys may be absent only because of them.
    pub fn forget_absent(&self) {
        self.found.borrow_mut().retain(|(location, _)| *location != Location::File);
    }

    fn file_of(&self, location: Location) -> String {
        match location {
            Location::Other(file, _) => {
                self.others.borrow().get(usize::from(file)).cloned().unwrap_or_default()
            }
            _ => self.file.clone(),
        }
    }

    /// Records a mistake in another file than the document.
    pub fn add_to_file(&self, file: String, location: Location, field: &str, fault: Fault) {
        self.found.borrow_mut().push((location, problem(file, location, field, fault)));
    }

    /// Records a setting that works, but probably not as intended.
    pub fn warn(&self, location: Location, field: &str, message: impl Into<String>) {
        self.warnings.borrow_mut().push((
            location,
            problem(self.file_of(location), location, field, Fault::only(message)),
        ));
    }

    /// Returns whether no mistake was found so far.
    pub fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// Returns the warnings if there is no mistake, otherwise all mistakes; both in the order of the lines.
    pub fn finish(self) -> Result<Vec<Problem>, Vec<Problem>> {
        let in_order = |mut located: Vec<(Location, Problem)>| {
            located.sort_by_key(|(location, _)| order(*location));
            located.into_iter().map(|(_, problem)| problem).collect()
        };
        let (found, warnings) = (self.found.into_inner(), self.warnings.into_inner());
        if found.is_empty() { Ok(in_order(warnings)) } else { Err(in_order(found)) }
    }
}

fn problem(file: String, location: Location, field: &str, fault: Fault) -> Problem {
    let line = if let Location::Line(line) | Location::Other(_, line) = location {
        Some(line)
    } else {
        None
    };
    let field = match location {
        Location::Override => format!("--set {field}"),
        Location::Input if field != "--input" => format!("--input: {field}"),
        _ => field.to_owned(),
    };
    let Fault { message, found, allowed } = fault;
    Problem { file, line, field, message, found, allowed }
}

fn order(location: Location) -> (usize, usize) {
    match location {
        Location::File => (0, 0),
        Location::Line(line) => (0, line),
        Location::Other(file, line) => (1 + usize::from(file), line),
        Location::Override | Location::Input => (usize::MAX, 0),
    }
}

/// Describes a value in a few words, on one line.
fn describe(node: &Node) -> String {
    /// Longer texts are cut.
    const CHARACTERS_MAX: usize = 80;
    match &node.value {
        Value::Scalar(scalar) if scalar.is_null() => NOTHING.to_owned(),
        Value::Scalar(scalar) => match scalar.text.char_indices().nth(CHARACTERS_MAX) {
            Some((end, _)) => format!("{:?}…", &scalar.text[..end]),
            None => format!("{:?}", scalar.text),
        },
        Value::List(items) if items.is_empty() => "an empty list".to_owned(),
        Value::List(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
    }
}

/// Returns the candidate most similar to `word`, if any is similar enough.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Suggestions below this similarity (0 to 1) confuse more than they help.
    const SIMILARITY_MIN: f64 = 0.6;
    let plain = |name: &str| name.to_lowercase().replace(['-', ' '], "_");
    let word = plain(word);
    candidates
        .into_iter()
        .map(|candidate| {
            (strsim::normalized_damerau_levenshtein(&word, &plain(candidate)), candidate)
        })
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate)
}

/// Returns the end of a message: a suggestion for `word`, or an empty text.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or_else(String::new, |near| format!("; did you mean {near:?}?"))
}
