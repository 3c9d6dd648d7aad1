//! What makes two runs of a job file the same job.
//!
//! The fingerprint covers everything that decides what the output holds or where it goes: script, arguments, inputs,
//! sizes, keys, formats, thresholds, tries and the timeouts of a try, environment, output. It leaves out what only
//! decides how fast, how many at once, or how loudly: see [`without_operation`]. A field that a later version adds
//! to the specification counts until it is listed there, which at worst runs a job that could have been reused.

use protocol::{Durability, JobSpec};
use serde::Serialize;

/// Everything the fingerprint is made of.
#[derive(Serialize)]
pub struct Ingredients<'a> {
    /// The job; identity, fingerprint and operation are ignored.
    pub spec: &'a JobSpec,
    /// The user's arguments, placeholders replaced. They stand in for `argv`, which has operational options as well.
    pub arguments: &'a [String],
    /// Digest of the script snapshot.
    pub snapshot: &'a str,
    /// Digest of the reference data.
    pub side_inputs: &'a str,
    /// Digest of the requirements file; empty for an interpreter.
    pub requirements: &'a str,
}

/// The fingerprint, in hex.
pub fn fingerprint(ingredients: &Ingredients<'_>) -> String {
    let spec = without_operation(ingredients.spec);
    let bytes = serde_json::to_vec(&Ingredients { spec: &spec, ..*ingredients }).expect("plain data serialises");
    blake3::hash(&bytes).to_hex().to_string()
}

/// The job with one value for everything that has no influence on the output.
fn without_operation(spec: &JobSpec) -> JobSpec {
    JobSpec {
        job_id: String::new(),
        fingerprint: String::new(),
        description: String::new(),
        argv: Vec::new(),
        node_count: None,
        process_count_per_node: None,
        logging_level: String::new(),
        progress_update_timeout_seconds: 0,
        first_task_creation_timeout_seconds: 0,
        resource_monitor_interval_seconds: 0,
        profiling_module: String::new(),
        nice: 0,
        allow_reuse: true,
        durability: Durability::Process,
        ..spec.clone()
    }
}
