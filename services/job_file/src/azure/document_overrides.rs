//! The changes of a command line to a document.

use crate::Context;

/// The changes of a command line to a document.
#[derive(Clone, Debug, Default)]
pub struct DocumentOverrides {
    /// `--set KEY=VALUE`, or `STEP.KEY=VALUE` for one step.
    pub overrides: Vec<(String, String)>,
    /// `--input NAME=VALUE`, or `VALUE` where there is one input.
    pub inputs: Vec<String>,
    /// `--step NAME`: this step alone.
    pub step: Option<String>,
}

impl DocumentOverrides {
    /// Returns the options of a command with the same effect in any working folder: paths become absolute.
    pub fn words(&self, context: &Context) -> Vec<String> {
        let inputs = self.inputs.iter().map(|input| {
            let (name, value) = input.split_once('=').unwrap_or(("", input));
            let equals = if input.contains('=') { "=" } else { "" };
            let path = context.working_directory.join(value);
            let is_path = !value.is_empty() && path.exists();
            let value = if is_path { path.display().to_string() } else { value.to_owned() };
            ("--input", format!("{name}{equals}{value}"))
        });
        let overrides =
            self.overrides.iter().map(|(key, value)| ("--set", format!("{key}={value}")));
        let step = self.step.iter().map(|step| ("--step", step.clone()));
        let words = overrides.chain(inputs).chain(step);
        words.flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }
}
