//! `error_threshold`, `allowed_failed_count`, `allowed_failed_percent`: when a job is given up.
//!
//! None is required. The first version of the original asked for `error_threshold`; the second takes -1, any number.

use protocol::ErrorThresholds;

use super::problem::{Fault, Problems};
use super::section::{Section, integer};
use super::yaml::{Node, ScalarKind};

const ANY_NUMBER: i64 = -1;
const ANY_PERCENT: f64 = 100.0;

/// The thresholds, and what of them the file gives: the script's arguments show only that.
pub struct Thresholds {
    /// With the defaults.
    pub thresholds: ErrorThresholds,
    /// As given.
    pub allowed_failed_count: Option<i64>,
    /// As given and written.
    pub allowed_failed_percent: Option<String>,
}

/// Reads all three.
pub fn read_thresholds(top: &Section<'_>, problems: &mut Problems) -> Thresholds {
    let error_threshold = top.value("error_threshold", problems, |node| count("error_threshold", node));
    let allowed_failed_count = top.value("allowed_failed_count", problems, |node| count("allowed_failed_count", node));
    let percent = top.value("allowed_failed_percent", problems, percent);
    Thresholds {
        thresholds: ErrorThresholds {
            error_threshold: error_threshold.unwrap_or(ANY_NUMBER),
            allowed_failed_count: allowed_failed_count.unwrap_or(ANY_NUMBER),
            allowed_failed_percent: percent.as_ref().map_or(ANY_PERCENT, |(percent, _)| *percent),
        },
        allowed_failed_count,
        allowed_failed_percent: percent.map(|(_, written)| written),
    }
}

fn count(key: &str, node: &Node) -> Result<i64, Fault> {
    integer(node, -1, i64::MAX).map_err(|_| {
        let shown = node.scalar().map_or("", |scalar| &scalar.text);
        let message = format!("{key} '{shown}' is not an int value greater than or equal to -1.");
        Fault::new(node, "an integer from -1 (any number), without quotes").saying(message)
    })
}

fn percent(node: &Node) -> Result<(f64, String), Fault> {
    let allowed = "a number from 0 to 100 (any share)";
    let shown = node.scalar().map_or(String::new(), |scalar| scalar.text.clone());
    let value = match node.scalar().map(|scalar| scalar.kind) {
        Some(ScalarKind::Integer(value)) => value as f64,
        Some(ScalarKind::Float(value)) => value,
        _ => {
            let message = format!("allowed_failed_percent '{shown}' is not an int or float.");
            return Err(Fault::new(node, allowed).saying(message));
        }
    };
    match (0.0..=100.0).contains(&value) {
        true => Ok((value, shown)),
        false => {
            let message = format!("allowed_failed_percent '{shown}' is not between 0 and 100.");
            Err(Fault::new(node, allowed).saying(message))
        }
    }
}
