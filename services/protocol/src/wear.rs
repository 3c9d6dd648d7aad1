//! The reasons for which nodes replace Python processes that still work.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::GpuSet;
use crate::words::counted;

/// Why a node replaces a process that still works. Its text completes the sentence "process007 is replaced: it …".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Wear {
    /// It has made as many runs as `process_max_runs` allows.
    Runs {
        /// Runs that it has made.
        runs: u64,
    },
    /// It occupies more memory than `process_max_memory` allows.
    Memory {
        /// Resident memory of the process.
        bytes: u64,
        /// The limit.
        limit: u64,
        /// Runs that it has made.
        runs: u64,
    },
    /// Too many of its runs have failed: its state may be corrupt.
    Failures {
        /// Failed runs.
        failures: u32,
    },
    /// Its GPUs no longer work for it.
    Gpu {
        /// The GPUs that it is assigned.
        #[serde(rename = "gpu")]
        gpus: GpuSet,
    },
    /// A reason that this build does not know.
    #[serde(other)]
    Other,
}

/// Every word of [`Wear::word`], in the order of reports.
pub const WEARS: [&str; 5] = ["runs", "memory", "failures", "gpu", "other"];

impl Wear {
    /// Returns the word for machines.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Runs { .. } => "runs",
            Self::Memory { .. } => "memory",
            Self::Failures { .. } => "failures",
            Self::Gpu { .. } => "gpu",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Wear {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs { runs } => {
                write!(formatter, "has made {} (process_max_runs)", counted(*runs, "run"))
            }
            Self::Memory { bytes, limit, runs } => {
                let (occupied, limit) = (memory(*bytes), memory(*limit));
                let runs = counted(*runs, "run");
                write!(
                    formatter,
                    "occupies {occupied} after {runs}, more than {limit} (process_max_memory)"
                )
            }
            Self::Failures { failures } => write!(formatter, "has failed {failures} times"),
            Self::Gpu { gpus } => write!(formatter, "can no longer use {gpus}"),
            Self::Other => write!(formatter, "is worn out"),
        }
    }
}

/// Returns an amount of memory in the units of the job file, which are multiples of 1024: `512 MB`, `1.5 GB`.
pub fn memory(bytes: u64) -> String {
    const UNITS: [(&str, f64); 3] = [("GB", 1_073_741_824.0), ("MB", 1_048_576.0), ("KB", 1024.0)];
    let bytes = bytes as f64;
    let (unit, size) = UNITS.into_iter().find(|(_, size)| bytes >= *size).unwrap_or(UNITS[2]);
    // Two digits after the point tell a figure from a limit that it just exceeds.
    let text = format!("{:.2}", bytes / size);
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_the_units_of_the_job_file() {
        let texts = [1 << 30, 3 << 29, 512 << 20, 700 << 10, 5].map(memory);
        assert_eq!(texts, ["1 GB", "1.5 GB", "512 MB", "700 KB", "0 KB"]);
        assert_eq!(memory((2 << 30) + (30 << 20)), "2.03 GB");
        assert_eq!(memory(100 << 30), "100 GB");
    }

    #[test]
    fn unknown_reason_is_readable() {
        let read: Wear = serde_json::from_str(r#"{"why": "moths", "holes": 3}"#).expect("readable");
        assert_eq!(read, Wear::Other);
        let written = serde_json::to_string(&Wear::Runs { runs: 7 }).expect("plain data");
        assert_eq!(written, r#"{"why":"runs","runs":7}"#);
        assert_eq!(Wear::Runs { runs: 1 }.to_string(), "has made 1 run (process_max_runs)");
    }
}
