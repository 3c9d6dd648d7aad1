//! The table of keys. A key of the job file, or an option of the engine among `arguments`, is declared in one row.
//!
//! [`job`], [`input`] and [`option`] hold the rows. The rows decide: known keys and suggestions for unknown ones,
//! parsing, defaults, `--set` and its completion, the arguments that the script gets and their reserved names, the
//! fingerprint, and the tables of `REFERENCE.md`.
//!
//! A row completely declares a key that sets one field of the job or of a table. Where keys depend on each other, the
//! module of their topic reads them: [`Read::Topic`].
//!
//! To add a key, write its row, the field of the specification, and the code that uses the field.
//! `left_out` in the row declares that a key does not affect the output. Tests compare rows, fields and the reference,
//! which `UPDATE_REFERENCE=1 cargo nextest run --workspace -E 'test(reference_has_the_rows_of_the_table)'` writes.

mod input;
mod job;
mod option;

pub use option::SCORE_RUN_TIMEOUT;
use protocol::{JobSpec, TableFormat, TableOptions};

use crate::{Fault, Location, Node, Scalar, azure, nearest};

/// Parses a value into the field that it decides.
pub type Setter<T> = fn(&mut T, &Node) -> Result<(), Fault>;

pub struct Key {
    /// Name of the key, or of the option without `--`.
    pub name: &'static str,
    /// Allowed values, for the reference.
    pub values: &'static str,
    /// Default as it would be written in the file. Where it is `None`, [`Key::default_in_words`] describes it.
    pub default: Option<&'static str>,
    /// Default in words, for the reference.
    pub default_in_words: &'static str,
    /// Effect of the key, in Markdown, for the reference.
    pub meaning: &'static str,
    pub read: Read,
    /// The option by which the script gets the value. Its name is then reserved.
    pub argument: Option<Argument>,
    /// Whether it has no influence on the output, so that fingerprints leave it out.
    pub is_left_out: bool,
    /// Path in the JSON of a [`JobSpec`], if it differs from the name.
    pub setting: &'static str,
    /// Whether `--set KEY.NAME=VALUE` changes a part of the value.
    pub has_parts: bool,
    pub applies: Applies,
    /// Whether the value is checked but has no effect.
    pub is_ignored: bool,
}

#[derive(Clone, Copy)]
pub enum Read {
    Topic,
    /// Into a field of the job.
    Job(Setter<JobSpec>),
    /// Into an option of the tables of an input.
    Table(Setter<TableOptions>),
}

/// An option of the engine among the arguments of the script.
pub struct Argument {
    /// Rank in the order of the original.
    pub position: u8,
    /// Returns the value, if the option is passed at all. The scalar is the value that the file gives.
    pub value: fn(&JobSpec, Option<&Scalar>) -> Option<String>,
}

/// Inputs on which a key has an effect.
#[derive(Clone, Copy)]
pub enum Applies {
    Everything,
    Tables,
    Text,
    Delimited,
}

impl Applies {
    /// Returns whether the key has an effect on files, or on tables of this format. An unknown format may be any.
    pub fn to(self, is_file: bool, format: Option<TableFormat>) -> bool {
        match self {
            Self::Everything => true,
            _ if is_file => false,
            Self::Tables => true,
            Self::Text => format.is_none_or(TableFormat::is_text),
            Self::Delimited => format.is_none_or(TableFormat::is_delimited),
        }
    }
}

/// Declares a key that the module of its topic reads, unless a method below gives it a setter.
const fn key(name: &'static str, values: &'static str, default_in_words: &'static str) -> Key {
    Key {
        name,
        values,
        default: None,
        default_in_words,
        meaning: "",
        read: Read::Topic,
        argument: None,
        is_left_out: false,
        setting: name,
        has_parts: false,
        applies: Applies::Everything,
        is_ignored: false,
    }
}

/// Declares a key with a default that can be written in the file.
const fn key_with_default(name: &'static str, values: &'static str, default: &'static str) -> Key {
    Key { default: Some(default), ..key(name, values, "") }
}

const REQUIRED: &str = "required";

impl Key {
    const fn meaning(self, meaning: &'static str) -> Self {
        Self { meaning, ..self }
    }

    const fn job(self, setter: Setter<JobSpec>) -> Self {
        Self { read: Read::Job(setter), ..self }
    }

    const fn table(self, setter: Setter<TableOptions>) -> Self {
        Self { read: Read::Table(setter), ..self }
    }

    const fn argument(
        self,
        position: u8,
        value: fn(&JobSpec, Option<&Scalar>) -> Option<String>,
    ) -> Self {
        Self { argument: Some(Argument { position, value }), ..self }
    }

    const fn left_out(self) -> Self {
        Self { is_left_out: true, ..self }
    }

    const fn setting(self, setting: &'static str) -> Self {
        Self { setting, ..self }
    }

    const fn with_parts(self) -> Self {
        Self { has_parts: true, ..self }
    }

    const fn only(self, applies: Applies) -> Self {
        Self { applies, ..self }
    }

    const fn ignored(self) -> Self {
        Self { is_ignored: true, ..self }
    }

    /// Returns the node to read where the key is absent, if any: the default, or null for a required key, which its
    /// parser rejects.
    pub fn absent(&self, location: Location) -> Option<Node> {
        match self.default {
            Some(default) => Some(Node::plain(location, default)),
            None => (self.default_in_words == REQUIRED).then(|| Node::plain(location, "")),
        }
    }
}

/// Rows that the reference shows together.
pub struct Table {
    /// Name in the markers of the reference.
    pub name: &'static str,
    pub rows: &'static [Key],
}

/// The keys of one kind of mapping.
#[derive(Clone, Copy)]
pub struct Keys {
    /// Its tables in the order of the reference.
    pub tables: &'static [Table],
    /// Prefix of the names in the reference.
    pub prefix: &'static str,
}

pub static JOB: Keys = Keys { tables: job::TABLES, prefix: "" };
pub static INPUT: Keys = Keys { tables: input::INPUT, prefix: "" };
/// Keys of `environment`, if it is a mapping.
pub static ENVIRONMENT: Keys = Keys { tables: input::ENVIRONMENT, prefix: "" };
/// Keys of `limits`.
pub static LIMITS: Keys = Keys { tables: input::LIMITS, prefix: "" };
/// Keys of `requires`.
pub static REQUIRES: Keys = Keys { tables: input::REQUIRES, prefix: "" };
/// Options of the engine among `arguments`.
pub static OPTIONS: Keys = Keys { tables: option::TABLES, prefix: "--" };

impl Keys {
    pub fn rows(self) -> impl Iterator<Item = &'static Key> + Clone {
        self.tables.iter().flat_map(|table| table.rows)
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        self.rows().map(|key| key.name)
    }

    pub fn find(self, name: &str) -> Option<&'static Key> {
        self.rows().find(|key| key.name == name)
    }

    /// Returns the fault of a key that has no row, with a similar key. `list` may shorten the list of all names.
    pub fn unknown(self, name: &str, list: impl FnOnce(String) -> String) -> Fault {
        let option = || {
            OPTIONS
                .find(name)
                .map(|_| format!("it belongs in arguments: [\"--{name}\", \"<value>\"]"))
        };
        let hint = azure::hint(name).map(str::to_owned).or_else(option);
        let (hint, allowed) = match (hint, nearest(name, self.names())) {
            (Some(hint), _) => (format!("; {hint}"), "the keys of REFERENCE.md".to_owned()),
            (None, Some(key)) => (format!("; did you mean {key:?}?"), key.to_owned()),
            (None, None) => (String::new(), list(self.names().collect::<Vec<_>>().join(", "))),
        };
        Fault::of(format!("{name:?}"), allowed).saying(format!("unknown key{hint}"))
    }
}

/// Iterates over the keys and options that decide the specification of a job.
pub fn of_job() -> impl Iterator<Item = &'static Key> {
    JOB.rows().chain(OPTIONS.rows())
}

/// Returns the name of the output file of a job that names none.
pub fn default_file_name() -> &'static str {
    JOB.find("append_row_file_name").and_then(|key| key.default).unwrap_or_default()
}

/// Returns the row of the key whose value the script gets as the option `name`.
pub fn reserved(name: &str) -> Option<&'static Key> {
    JOB.find(name).filter(|key| key.argument.is_some())
}

/// Returns the name by which people know a setting of a [`JobSpec`]: its key or its option.
pub fn name_of_setting(setting: &str) -> Option<String> {
    let named = |keys: Keys| {
        keys.rows().find(|key| key.setting == setting).map(|key| (keys.prefix, key.name))
    };
    named(JOB).or_else(|| named(OPTIONS)).map(|(prefix, name)| format!("{prefix}{name}"))
}

/// Returns the keys that `--set` and its completion take before the `=`, each with its allowed values.
pub fn settable() -> impl Iterator<Item = (String, &'static str)> {
    let parts = |of: &'static str, keys: Keys| {
        keys.rows().map(move |key| (format!("{of}.{}", key.name), key.values))
    };
    let top = JOB.rows().map(|key| (key.name.to_owned(), key.values));
    top.chain(parts("environment", ENVIRONMENT))
        .chain(parts("limits", LIMITS))
        .chain(parts("requires", REQUIRES))
}
