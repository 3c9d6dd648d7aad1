//! Engine options inside `arguments` (`--task_overhead_timeout 60`), read by the rules of the original's driver:
//! `--x v` and `--x=v`, the last one wins, no abbreviations, and what is not known belongs to the script.

use super::arguments::{RESERVED, Token};
use super::problem::{Fault, Place, Problems};

/// Longest timeout that the original takes: three days.
pub const TIMEOUT_SECONDS_MAX: u64 = 259_200;

const TIMEOUT_ALLOWED: &str = "an integer of seconds from 1 to 259200";
const BOOLEAN_ALLOWED: &str = "True or False";

/// Options that are given in `arguments`, and never as keys.
pub(super) const FLAGS: &[&str] = &[
    "task_overhead_timeout",
    "progress_update_timeout",
    "first_task_creation_timeout",
    "resource_monitor_interval",
    "append_row_dataframe_header",
    "profiling_module",
    "rank_mini_batch_count",
    "nice",
    "score_run_timeout",
    "copy_logs_to_parent",
    "push_metrics_to_parent",
    "metrics_name_prefix",
];

/// What the options say; `None`: not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverFlags {
    /// Slack around a `run()` call.
    pub task_overhead_timeout_seconds: Option<u64>,
    /// Give up when no mini-batch finished for so long.
    pub progress_update_timeout_seconds: Option<u64>,
    /// Give up when no mini-batch was created for so long.
    pub first_task_creation_timeout_seconds: Option<u64>,
    /// Period of resource sampling; 0: off.
    pub resource_monitor_interval_seconds: Option<u64>,
    /// Write the column names of DataFrames.
    pub append_row_dataframe_header: Option<bool>,
    /// `""`, `cProfile` or `profile`.
    pub profiling_module: Option<String>,
    /// Mini-batches without input.
    pub rank_mini_batch_count: Option<u64>,
    /// Scheduling priority.
    pub nice: Option<u32>,
    /// Old name of `run_invocation_timeout`, and where it stands.
    pub score_run_timeout_seconds: Option<(Place, u64)>,
}

/// Finds the engine options among the arguments; warns about those that are nearly one.
pub fn read_driver_flags(tokens: &[Token], problems: &mut Problems) -> DriverFlags {
    let mut flags = DriverFlags::default();
    let mut position = 0;
    while position < tokens.len() && tokens[position].text != "--" {
        let Token { place, field, text } = &tokens[position];
        position += 1;
        let Some(option) = text.strip_prefix("--") else { continue };
        let (name, inline) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        if !FLAGS.contains(&name) {
            if let Some(hint) = near_miss(name) {
                problems.warn(*place, field, &format!("\"--{name}\" is left to the script; {hint}"));
            }
            continue;
        }
        let value = match inline {
            Some(value) => value,
            None => match tokens.get(position).filter(|next| is_value(&next.text)) {
                Some(next) => {
                    position += 1;
                    &next.text
                }
                None => {
                    let fault = Fault::of(format!("\"--{name}\" without a value"), "a value as the next element");
                    problems.add(*place, field, fault);
                    continue;
                }
            },
        };
        match flags.set(*place, name, value) {
            Err(allowed) => {
                problems.add(*place, field, Fault::of(format!("\"--{name} {value}\""), allowed));
            }
            Ok(true) => {}
            Ok(false) => problems.warn(*place, field, &format!("\"--{name}\" has no effect here")),
        }
    }
    flags
}

impl DriverFlags {
    /// `Ok(false)`: understood, but without an effect. `Err`: what would be allowed.
    fn set(&mut self, place: Place, name: &str, value: &str) -> Result<bool, &'static str> {
        match name {
            "task_overhead_timeout" => self.task_overhead_timeout_seconds = Some(timeout(value)?),
            "progress_update_timeout" => self.progress_update_timeout_seconds = Some(timeout(value)?),
            "first_task_creation_timeout" => self.first_task_creation_timeout_seconds = Some(timeout(value)?),
            "score_run_timeout" => self.score_run_timeout_seconds = Some((place, timeout(value)?)),
            "resource_monitor_interval" => {
                let allowed = "an integer of seconds from 0 (off) to 2147483647";
                self.resource_monitor_interval_seconds = Some(integer(value, 0, i32::MAX as u64).ok_or(allowed)?);
            }
            "rank_mini_batch_count" => {
                let count: i32 = value.trim().parse().map_err(|_| "an integer up to 2147483647; below 0 is 0")?;
                self.rank_mini_batch_count = Some(count.max(0) as u64);
            }
            "nice" => self.nice = Some(integer(value, 0, 20).ok_or("an integer from 0 to 20")? as u32),
            "append_row_dataframe_header" => self.append_row_dataframe_header = Some(boolean(value)?),
            "profiling_module" => match value {
                "" | "cProfile" | "profile" => self.profiling_module = Some(value.to_owned()),
                _ => return Err("\"\", cProfile or profile"),
            },
            "copy_logs_to_parent" | "push_metrics_to_parent" => return boolean(value).map(|_| false),
            "metrics_name_prefix" => return Ok(false),
            _ => unreachable!("{name} is in FLAGS and has no arm"),
        }
        Ok(true)
    }
}

fn integer(value: &str, least: u64, most: u64) -> Option<u64> {
    value.trim().parse().ok().filter(|value| (least..=most).contains(value))
}

fn timeout(value: &str) -> Result<u64, &'static str> {
    integer(value, 1, TIMEOUT_SECONDS_MAX).ok_or(TIMEOUT_ALLOWED)
}

fn boolean(value: &str) -> Result<bool, &'static str> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(BOOLEAN_ALLOWED),
    }
}

/// As `argparse` sees it: an option does not follow as a value, a negative number does.
fn is_value(text: &str) -> bool {
    !text.starts_with('-') || text == "-" || text.parse::<f64>().is_ok()
}

/// What a misspelt engine option was probably meant to be. Short names are too near to those of scripts.
fn near_miss(name: &str) -> Option<String> {
    const NAME_LENGTH_MIN: usize = 10;
    const DISTANCE_MAX: usize = 2;
    let normal = name.to_lowercase().replace('-', "_");
    let near = |candidate: &&&str| {
        candidate.len() >= NAME_LENGTH_MIN && strsim::damerau_levenshtein(&normal, candidate) <= DISTANCE_MAX
    };
    match FLAGS.iter().find(near) {
        Some(flag) => Some(format!("did you mean \"--{flag}\"?")),
        None => RESERVED.iter().find(near).map(|key| format!("did you mean the key {key} of the job file?")),
    }
}
