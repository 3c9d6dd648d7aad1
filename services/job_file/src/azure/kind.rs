//! Which document of Azure ML a text is, if it is one.

use crate::{Entry, Fault, Location, Node, find};

/// A document that Gristmill runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentKind {
    Pipeline,
    Parallel,
    Deployment,
}

const ALLOWED: &str = "a job file (its keys are in JOB_FILE.md), or one of these documents of Azure ML: a pipeline job, a \
                       parallel component, a batch deployment";
/// Documents of Azure ML that Gristmill does not run, by their `type`.
const OTHERS: &[&str] =
    &["command", "sweep", "spark", "automl", "import", "data_transfer", "finetuning", "distillation"];
/// Parts of `$schema` that name documents which Gristmill does not run.
const OTHER_SCHEMAS: &[&str] = &[
    "batchendpoint",
    "commandjob",
    "commandcomponent",
    "sweepjob",
    "sparkjob",
    "automl",
    "managedonline",
    "kubernetesonline",
    "environment",
    "data.schema",
    "mltable",
    "model.schema",
    "datastore",
    "compute",
    "amlcompute",
    "schedule",
    "workspace",
];

/// Returns the kind of a document of Azure ML, or why Gristmill does not run it. `None`: it is a job file.
pub fn of(entries: &[Entry]) -> Option<Result<DocumentKind, (Location, &'static str, Fault)>> {
    let text = |key: &str| find(entries, key).and_then(Node::scalar).map(|scalar| scalar.text.as_str());
    let has = |key: &str| find(entries, key).is_some();
    let at = |key: &str| entries.iter().find(|entry| entry.key == key).map_or(Location::File, |entry| entry.location);
    let refused = |key: &'static str, found: &str, message: String| {
        Some(Err((at(key), key, Fault::of(format!("{found:?}"), ALLOWED).saying(message))))
    };
    let schema = text("$schema").map(str::to_lowercase).filter(|schema| schema.contains("azureml"));
    let schema_has = |part: &str| schema.as_deref().is_some_and(|schema| schema.contains(part));
    let jobs = find(entries, "jobs").is_some_and(|jobs| !jobs.entries().is_empty());
    let is_deployment = has("code_configuration") || has("endpoint_name") || schema_has("batchdeployment");
    if let (Some(kind), Some(_)) = (text("kind"), text("apiVersion")) {
        return refused("kind", kind, "this is a manifest of Kubernetes, not a job".to_owned());
    }
    match text("type") {
        Some("pipeline") if is_deployment => {
            let message = "this is a deployment of a pipeline component; run the pipeline itself";
            refused("type", "pipeline", message.to_owned())
        }
        Some("pipeline") => Some(Ok(DocumentKind::Pipeline)),
        Some("parallel") => Some(Ok(DocumentKind::Parallel)),
        Some("model") if is_deployment || schema_has("batchdeployment") || has("settings") => {
            Some(Ok(DocumentKind::Deployment))
        }
        Some(kind) if OTHERS.contains(&kind) => {
            let step = if kind == "command" { "; as a step of a pipeline it runs" } else { "" };
            refused("type", kind, format!("this is an Azure ML {kind} document, which Gristmill does not run{step}"))
        }
        None if jobs || schema_has("pipelinejob") || schema_has("pipelinecomponent") => {
            Some(Ok(DocumentKind::Pipeline))
        }
        None if schema_has("parallelcomponent") => Some(Ok(DocumentKind::Parallel)),
        None if is_deployment && !schema_has("online") => Some(Ok(DocumentKind::Deployment)),
        _ => {
            let schema = schema.as_deref()?;
            let name = OTHER_SCHEMAS.iter().find(|part| schema.contains(**part)).copied().unwrap_or("other");
            let what = if name == "other" { "a document".to_owned() } else { format!("a document ({name})") };
            let message = format!("this is {what} of Azure ML, which Gristmill does not run");
            refused("$schema", text("$schema").unwrap_or_default(), message)
        }
    }
}
