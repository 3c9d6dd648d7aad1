//! The states of a job, and selections of jobs.

use std::fmt;

use protocol::{JobState, Progress, RoundResult};
use serde::Serialize;

use crate::name_of;

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum State {
    /// Every mini-batch has ended, and the output is written.
    Completed,
    /// The job failed.
    Failed,
    /// It was stopped by a request or a signal.
    Canceled,
    /// Its process has ended. A retry continues the job.
    Interrupted,
    /// Processes work on it.
    Running,
    /// On a compute target, no worker has started.
    Queued,
    /// Its workers or reducers are silent, or its process is stopped.
    Waiting,
    /// The user has asked it to stop.
    Canceling,
    /// Its files cannot be read.
    Damaged,
}

impl State {
    /// Marks the last round of an interrupted job as interrupted.
    pub fn mark_last(self, rounds: &mut [RoundResult]) {
        if self == Self::Interrupted
            && let Some(last) = rounds.last_mut()
        {
            last.state = None;
        }
    }

    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Completed,
        Self::Failed,
        Self::Canceled,
        Self::Interrupted,
        Self::Running,
        Self::Queued,
        Self::Waiting,
        Self::Canceling,
        Self::Damaged,
    ];

    /// Returns the name of the state in a sentence and on a command line; elsewhere it begins with a capital letter.
    pub fn word(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Interrupted => "interrupted",
            Self::Running => "running",
            Self::Queued => "queued",
            Self::Waiting => "waiting",
            Self::Canceling => "canceling",
            Self::Damaged => "damaged",
        }
    }

    /// Whether a job in this state may have processes.
    pub fn may_have_processes(self) -> bool {
        matches!(self, Self::Running | Self::Waiting | Self::Canceling)
    }

    /// Whether a job in this state has the processes of its progress.
    pub fn has_processes(self, progress: &Progress) -> bool {
        self.may_have_processes() && progress.silent_since.is_none()
    }

    /// Whether a job in this state may still change.
    pub fn is_open(self) -> bool {
        matches!(
            self,
            Self::Interrupted | Self::Running | Self::Queued | Self::Waiting | Self::Canceling
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

impl From<JobState> for State {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Completed => Self::Completed,
            JobState::Failed => Self::Failed,
            JobState::Canceled => Self::Canceled,
            JobState::Running => Self::Running,
        }
    }
}

/// A selection of jobs.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only jobs in one of these states; empty: all states.
    pub states: Vec<State>,
    /// Only jobs with this name; `*` matches any characters.
    pub name: Option<String>,
}

impl Selection {
    /// Whether the job's name is selected.
    pub fn has_name(&self, job_id: &str) -> bool {
        self.name.as_ref().is_none_or(|pattern| matches(pattern, name_of(job_id)))
    }

    /// Whether the state is selected.
    pub fn has_state(&self, state: State) -> bool {
        self.states.is_empty() || self.states.contains(&state)
    }

    /// Whether only jobs that have not ended are selected; these are few, and found quickly.
    pub fn is_open(&self) -> bool {
        !self.states.is_empty() && self.states.iter().all(|state| state.is_open())
    }
}

/// Whether a text matches a pattern in which `*` matches any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((beginning, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(beginning) else { return false };
    (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| matches(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_characters() {
        for (pattern, text, expected) in [
            ("score", "score", true),
            ("score", "score-2", false),
            ("score*", "score", true),
            ("*-2", "score-2", true),
            ("s*e-*", "score-2", true),
            ("*x*", "score", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn selection_matches_state_and_name() {
        let selection =
            Selection { states: vec![State::Failed, State::Interrupted], name: Some("a".into()) };
        assert!(selection.has_state(State::Failed) && !selection.has_state(State::Completed));
        assert!(
            selection.has_name("a-20261121-100203-ab12")
                && !selection.has_name("ab-20261121-100203-ab12")
        );
        assert!(
            !selection.is_open()
                && Selection { states: vec![State::Running], name: None }.is_open()
        );
        assert!(Selection::default().has_state(State::Damaged) && !Selection::default().is_open());
    }
}
