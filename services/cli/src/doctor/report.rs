//! What the doctor says: one line a check, as it is known.

use std::process::ExitCode;

use serde::Serialize;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// Jobs run, but not as well as they could.
    Warning,
    /// Jobs would not run, or not safely.
    Failed,
    /// Nobody could tell.
    NotChecked,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub check: String,
    /// How it came out.
    pub state: State,
    /// What is there, or what to fix.
    pub message: String,
}

/// All checks so far.
#[derive(Debug)]
pub struct Report {
    json: bool,
    checks: Vec<Check>,
}

impl Report {
    /// With `json`, everything is printed at the end.
    pub fn new(json: bool) -> Self {
        Self { json, checks: Vec::new() }
    }

    /// As it should be.
    pub fn ok(&mut self, check: impl Into<String>, message: impl Into<String>) {
        self.add(check, State::Ok, message);
    }

    /// Should be mended some day.
    pub fn warning(&mut self, check: impl Into<String>, message: impl Into<String>) {
        self.add(check, State::Warning, message);
    }

    /// Must be mended.
    pub fn failed(&mut self, check: impl Into<String>, message: impl Into<String>) {
        self.add(check, State::Failed, message);
    }

    /// Could not be found out, and why.
    pub fn not_checked(&mut self, check: impl Into<String>, message: impl Into<String>) {
        self.add(check, State::NotChecked, message);
    }

    fn add(&mut self, check: impl Into<String>, state: State, message: impl Into<String>) {
        let check = Check { check: check.into(), state, message: message.into() };
        if !self.json {
            let word = match state {
                State::Ok => "ok",
                State::Warning => "warning",
                State::Failed => "FAILED",
                State::NotChecked => "not checked",
            };
            say!(out, "{word:<12} {}: {}", check.check, check.message);
        }
        self.checks.push(check);
    }

    /// Prints the sum of it, and gives the exit status.
    pub fn end(self, target: &str) -> ExitCode {
        let count = |state: State| self.checks.iter().filter(|check| check.state == state).count();
        let failed = count(State::Failed);
        if self.json {
            say!(out, "{}", serde_json::json!({ "target": target, "ok": failed == 0, "checks": self.checks }));
        } else {
            let (warnings, unknown) = (count(State::Warning), count(State::NotChecked));
            say!(
                out,
                "target {target}: {failed} to fix, {warnings} warnings, {unknown} not checked, {} ok",
                count(State::Ok)
            );
        }
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
impl Report {
    /// What was checked, and how it came out.
    pub fn states(&self) -> Vec<(String, State)> {
        self.checks.iter().map(|check| (check.check.clone(), check.state)).collect()
    }
}
