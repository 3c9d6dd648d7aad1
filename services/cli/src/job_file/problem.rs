//! What is wrong with a job file: one [`Problem`] a mistake, all of them at once, in the order of the lines.
//!
//! The parsers of single values know nothing of files and lines. They return a [`Fault`]; [`Problems`] adds where it is.

use std::fmt;

use super::yaml::{Node, Value};

/// Where a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole: something that should be in it is not.
    File,
    /// A line of the file, counted from 1.
    Line(usize),
    /// A `--set key=value` of the command line.
    Override,
}

/// One mistake, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file it is in, as the user named it.
    pub file: String,
    /// Line, counted from 1. `None`: the file as a whole, or the command line.
    pub line: Option<usize>,
    /// The key, nested ones with their path: `inputs[0].path`. `--set <key>` for the command line.
    pub field: String,
    /// What is wrong, where "found" and "allowed" do not say it. May be empty.
    pub message: String,
    /// What stands there.
    pub found: String,
    /// What may stand there.
    pub allowed: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(formatter, "{}:{line}: ", self.file)?,
            None => write!(formatter, "{}: ", self.file)?,
        }
        if !self.field.is_empty() {
            write!(formatter, "{}: ", self.field)?;
        }
        match self.message.is_empty() {
            true => write!(formatter, "found {}; allowed: {}", self.found, self.allowed),
            false => write!(formatter, "{} (found {}; allowed: {})", self.message, self.found, self.allowed),
        }
    }
}

/// What is wrong with one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    message: String,
    found: String,
    allowed: String,
}

impl Fault {
    /// The value is not one of those allowed.
    pub fn new(node: &Node, allowed: impl Into<String>) -> Self {
        Self::of(describe(node), allowed)
    }

    /// As [`Fault::new`], for what is not a value of the file.
    pub fn of(found: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self { message: String::new(), found: found.into(), allowed: allowed.into() }
    }

    /// Says in words what is wrong.
    pub fn saying(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }
}

/// Collects what is wrong, and what is merely odd, while a file is read.
pub struct Problems {
    file: String,
    found: Vec<(Place, Problem)>,
    warnings: Vec<(Place, String)>,
}

impl Problems {
    /// `file` as the user named it.
    pub fn new(file: String) -> Self {
        Self { file, found: Vec::new(), warnings: Vec::new() }
    }

    /// Records a fault of a key.
    pub fn add(&mut self, place: Place, field: &str, fault: Fault) {
        let file = self.file.clone();
        self.add_to_file(file, place, field, fault);
    }

    /// Records a fault of another file than the job file.
    pub fn add_to_file(&mut self, file: String, place: Place, field: &str, fault: Fault) {
        let line = if let Place::Line(line) = place { Some(line) } else { None };
        let field = if place == Place::Override { format!("--set {field}") } else { field.to_owned() };
        let Fault { message, found, allowed } = fault;
        self.found.push((place, Problem { file, line, field, message, found, allowed }));
    }

    /// Records something that works, but hardly as meant.
    pub fn warn(&mut self, place: Place, field: &str, message: &str) {
        let text = match place {
            Place::Line(line) => format!("{}:{line}: {field}: {message}", self.file),
            Place::File => format!("{}: {field}: {message}", self.file),
            Place::Override => format!("{}: --set {field}: {message}", self.file),
        };
        self.warnings.push((place, text));
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The warnings if nothing is wrong, otherwise everything that is; both in the order of the lines.
    pub fn finish(mut self) -> Result<Vec<String>, Vec<Problem>> {
        self.found.sort_by_key(|(place, _)| order(*place));
        self.warnings.sort_by_key(|(place, _)| order(*place));
        match self.found.is_empty() {
            true => Ok(self.warnings.into_iter().map(|(_, text)| text).collect()),
            false => Err(self.found.into_iter().map(|(_, problem)| problem).collect()),
        }
    }
}

fn order(place: Place) -> usize {
    match place {
        Place::File => 0,
        Place::Line(line) => line,
        Place::Override => usize::MAX,
    }
}

/// A value in a few words, on one line.
fn describe(node: &Node) -> String {
    /// Longer texts say no more.
    const CHARACTERS_MAX: usize = 80;
    match &node.value {
        Value::Scalar(scalar) if scalar.is_null() => "nothing".to_owned(),
        Value::Scalar(scalar) if scalar.text.chars().count() > CHARACTERS_MAX => {
            format!("{:?}…", scalar.text.chars().take(CHARACTERS_MAX).collect::<String>())
        }
        Value::Scalar(scalar) => format!("{:?}", scalar.text),
        Value::List(items) if items.is_empty() => "an empty list".to_owned(),
        Value::List(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
    }
}

/// The candidate that `word` was probably meant to be.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this share of equal letters a guess confuses more than it helps.
    const SIMILARITY_MIN: f64 = 0.6;
    let plain = |name: &str| name.to_lowercase().replace(['-', ' '], "_");
    let word = plain(word);
    candidates
        .into_iter()
        .map(|candidate| (strsim::normalized_damerau_levenshtein(&word, &plain(candidate)), candidate))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate)
}
