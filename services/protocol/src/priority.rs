//! The weight of jobs that divide a fleet.

use serde::{Deserialize, Serialize};

/// The share of a job while other jobs have work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// A quarter of what a job of normal priority gets.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Four times what a job of normal priority gets.
    High,
}

impl Priority {
    /// Every priority, the lowest first.
    pub const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// Returns the priority with this word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.word() == word)
    }

    /// Returns the weight of a job when a node divides its processes.
    pub fn weight(self) -> u32 {
        match self {
            Self::Low => 1,
            Self::Normal => 4,
            Self::High => 16,
        }
    }

    /// Returns its value in a job file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }
}
