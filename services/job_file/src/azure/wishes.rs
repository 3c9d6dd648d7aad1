//! What a command line changes in a document.

/// What a command line changes in a document.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// `--set KEY=VALUE`, or `STEP.KEY=VALUE` for one step.
    pub overrides: Vec<(String, String)>,
    /// `--input NAME=VALUE`, or `VALUE` where there is one input.
    pub inputs: Vec<String>,
    /// `--step NAME`: this step alone.
    pub step: Option<String>,
}
