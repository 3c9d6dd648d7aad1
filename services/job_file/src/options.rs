//! Options of the engine inside `arguments` (`--task_overhead_timeout 60`), read by the rules of Azure ML's driver:
//! `--x v` and `--x=v`, the last one wins, no abbreviations, and the script keeps unknown options.

use protocol::JobSpec;

use crate::arguments::Token;
use crate::keys::{self, JOB, Key, OPTIONS, Read, SCORE_RUN_TIMEOUT};
use crate::{Fault, Location, Node, Section};

/// Reads the options among the arguments into `job`. Warns of names that resemble one.
pub fn read_options(tokens: &[Token], top: &Section<'_>, job: &mut JobSpec) {
    for key in OPTIONS.rows() {
        if let (Some(default), Read::Job(set)) = (key.absent(Location::File), key.read) {
            set(job, &default).expect("the default of an option is a valid value");
        }
    }
    let mut tokens = tokens.iter().take_while(|token| token.text != "--").peekable();
    while let Some(Token { location, field, text }) = tokens.next() {
        let Some(option) = text.strip_prefix("--") else { continue };
        let (name, inline) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        if READ_BY_PROCESSES.contains(&name) {
            continue;
        }
        if let Some(reason) = without_effect(name) {
            top.problems.warn(
                *location,
                field,
                format!("\"--{name}\" is an engine option without effect here{reason}"),
            );
            continue;
        }
        let Some(key) = OPTIONS.find(name) else {
            if let Some(hint) = near_miss(name) {
                top.problems.warn(
                    *location,
                    field,
                    format!("\"--{name}\" is left to the script; {hint}"),
                );
            }
            continue;
        };
        let next = || tokens.next_if(|next| is_value(&next.text)).map(|next| next.text.as_str());
        let Some(value) = inline.or_else(next) else {
            let fault =
                Fault::of(format!("\"--{name}\" without a value"), "a value as the next element");
            top.problems.add(*location, field, fault);
            continue;
        };
        match set(key, &Node::text(*location, value), top, job) {
            Ok(None) => {}
            Ok(Some(warning)) => {
                top.problems.warn(*location, field, format!("\"--{name}\" {warning}"))
            }
            Err(fault) => {
                top.problems.add(*location, field, fault.finding(format!("\"--{name} {value}\"")))
            }
        }
    }
    if job.progress_update_timeout_seconds == 0 {
        job.progress_update_timeout_seconds =
            3 * (job.run_invocation_timeout_seconds + job.task_overhead_timeout_seconds);
    }
}

/// Options that the processes of the script read from their arguments.
const READ_BY_PROCESSES: [&str; 5] = [
    "amlbi_async_mode",
    "amlbi_file_format",
    "amlbi_mini_batch_rows",
    "amlbi_pf_enabled",
    "amlbi_pf_run_mode",
];

/// Returns the reason why an option of Azure ML has no effect, as the end of a sentence. `None`: another name.
fn without_effect(name: &str) -> Option<&'static str> {
    match name {
        "append_row_safe_output" => Some(": every row is written once, and whole"),
        "amlbi_dataframe_mixed_types" => {
            Some(": the key `columns` of an input gives a column the type json")
        }
        "resume_from" => Some(": an interrupted job continues when it is started again"),
        _ => name.starts_with("amlbi_").then_some(""),
    }
}

/// Sets one option. Returns a warning if it has no effect.
fn set(
    key: &Key,
    value: &Node,
    top: &Section<'_>,
    job: &mut JobSpec,
) -> Result<Option<&'static str>, Fault> {
    let Read::Job(set) = key.read else { return Ok(None) };
    if key.name == SCORE_RUN_TIMEOUT && top.get("run_invocation_timeout").is_some() {
        return set(&mut JobSpec::default(), value)
            .map(|()| Some("has no effect together with run_invocation_timeout"));
    }
    set(job, value).map(|()| key.is_ignored.then_some("has no effect here"))
}

/// Returns whether a text is a value by the rules of `argparse`: a negative number is, an option is not.
fn is_value(text: &str) -> bool {
    !text.starts_with('-') || text == "-" || text.parse::<f64>().is_ok()
}

/// Returns a suggestion for a misspelt name. Skips short names, which resemble those of scripts.
fn near_miss(name: &str) -> Option<String> {
    const NAME_LENGTH_MIN: usize = 10;
    const DISTANCE_MAX: usize = 2;
    let normal = name.to_lowercase().replace('-', "_");
    let is_near = |candidate: &&str| {
        candidate.len() >= NAME_LENGTH_MIN
            && strsim::damerau_levenshtein(&normal, candidate) <= DISTANCE_MAX
    };
    let option =
        OPTIONS.names().find(is_near).map(|option| format!("did you mean \"--{option}\"?"));
    let reserved = || JOB.names().filter(|key| keys::reserved(key).is_some()).find(is_near);
    option.or_else(|| reserved().map(|key| format!("did you mean the key {key} of the job file?")))
}
