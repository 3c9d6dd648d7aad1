//! A command step as a job file: one mini-batch without input, whose script runs the command.

use super::expression;
use super::known::{self, Effect, KnownKeys};
use super::layers::{LayerValue, Layers};
use super::reader::{JobFile, Reader};
use super::scope::{Scope, StepContext};
use crate::{Fault, Value};

/// The module of the Python package that runs a command.
pub const ENTRY_SCRIPT: &str = "gristmill.command_step";
/// A command without a limit may run for three days, the longest that a job file can say.
const TIMEOUT_SECONDS: &str = "259200";
const LIMITS: KnownKeys = &[(Effect::Read, "timeout")];

impl Reader<'_> {
    /// Returns the job file of a command step, and its scope.
    pub fn command<'s>(&self, layers: &Layers, around: &StepContext<'s>) -> (JobFile, Scope<'s>) {
        let prefix = around.prefix;
        for layer in &layers.0 {
            self.check_keys(
                &layer.entries,
                prefix,
                &[known::COMMON, known::JOB, known::STEP, known::COMMAND],
            );
        }
        self.check_nested(layers, "limits", prefix, LIMITS);
        let scope = Scope::read(self, layers, around);
        let mut job = JobFile::default();
        let here = layers.location_of(&["command", "component", "type"]);
        job.put_text("name", here, around.job);
        self.put_description(layers, &mut job);
        job.put_text("entry_script", here, ENTRY_SCRIPT);
        if let Some(found) = layers.find(&["code"]) {
            job.put("source_directory", self.code(found, &format!("{prefix}code")));
        }
        let field = format!("{prefix}environment");
        job.put(
            "environment",
            self.environment(around.step, layers.find(&["environment"]), &field),
        );
        let field = format!("{prefix}command");
        match layers.find(&["command"]) {
            Some(LayerValue { node, .. }) if matches!(node.value, Value::Scalar(_)) => {
                let command = expression::replace(node.written(), &mut |name| scope.text(name));
                if let Some(command) = self.problems.accept(node.location, &field, command) {
                    let command = in_quotes(command.trim());
                    let words =
                        ["--command", &command, "--rank_mini_batch_count", "1"].map(str::to_owned);
                    job.put_texts("arguments", node.location, &words);
                }
            }
            Some(LayerValue { node, .. }) => {
                self.problems.add(node.location, &field, Fault::new(node, "a text"))
            }
            None => {
                self.problems.add(here, &field, Fault::missing("the command that the step runs"))
            }
        }
        scope.put_variables(self, layers, &mut job);
        scope.put_side_inputs(self, layers.location_of(&["inputs"]), &mut job);
        scope.put_outputs(self, layers.location_of(&["outputs"]), &mut job);
        job.put_text("output_action", here, "summary_only");
        let timeout = layers.find(&["limits", "timeout"]);
        let timeout = timeout
            .and_then(|found| scope.plain(self, found.node, &format!("{prefix}limits.timeout")));
        match timeout {
            Some(node) => job.put("run_invocation_timeout", Some(node)),
            None => job.put_plain("run_invocation_timeout", here, TIMEOUT_SECONDS),
        }
        for (key, value) in
            [("run_max_try", "1"), ("allowed_failed_count", "0"), ("process_count_per_node", "1")]
        {
            job.put_plain(key, here, value);
        }
        (job, scope)
    }
}

/// Puts paths, which may contain blanks, between shell quotes, unless they are quoted already.
fn in_quotes(command: &str) -> String {
    let (mut quoted, mut rest, mut inside) = (String::new(), command, None);
    while let Some(character) = rest.chars().next() {
        let mut length = character.len_utf8();
        match (inside, character) {
            (None, '$') if rest.starts_with("${{") => {
                length = rest.find("}}").map_or(rest.len(), |end| end + 2);
                quoted.push_str(&format!("\"{}\"", &rest[..length]));
                rest = &rest[length..];
                continue;
            }
            (None | Some('"'), '\\') => length += rest.chars().nth(1).map_or(0, char::len_utf8),
            (None, '"' | '\'') => inside = Some(character),
            (Some(quote), character) if quote == character => inside = None,
            _ => {}
        }
        quoted.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::in_quotes;

    #[test]
    fn paths_outside_quotes_get_quotes() {
        for (command, expected) in [
            ("a ${{inputs.x}}/b c", "a \"${{inputs.x}}\"/b c"),
            (
                "a \"${{inputs.x}} b\" '${{inputs.y}}' ${{z}}",
                "a \"${{inputs.x}} b\" '${{inputs.y}}' \"${{z}}\"",
            ),
            ("a \\\" ${{x}} é", "a \\\" \"${{x}}\" é"),
            ("echo \"it's\" ${{x}}", "echo \"it's\" \"${{x}}\""),
        ] {
            assert_eq!(in_quotes(command), expected);
        }
    }
}
