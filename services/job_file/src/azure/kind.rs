//! Finds the kind of a document of Azure ML.

use crate::{Entry, Fault, Location, Node, Value, find};

/// A document that Gristmill runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentKind {
    Pipeline,
    Parallel,
    Deployment,
}

const ALLOWED: &str = "a job file (its keys are in REFERENCE.md), or one of these documents of Azure ML: a pipeline job, a \
                       parallel component, a batch deployment";

/// A document that Gristmill does not run: its kind, and what to run instead.
type Other = (&'static str, &'static str);

const COMMAND: Other = (
    "a command job",
    "put it below `jobs` of a document of `type: pipeline`, whose command steps run",
);
const TRAINING: &str = "write the work as a command step of a pipeline (`type: pipeline`)";
const AS_BATCH: &str = "run its model and script on data as a batch deployment (`type: model`)";
const ONLINE_DEPLOYMENT: Other = ("an online deployment", AS_BATCH);
const ONLINE_ENDPOINT: Other = ("an online endpoint", AS_BATCH);
const SWEEP: Other = (
    "a sweep job",
    "write its trial as a command step of a pipeline, and run it for each value: --input NAME=VALUE",
);
const SPARK: Other = (
    "a Spark job",
    "write the work as a parallel or command step of a pipeline (`type: pipeline`)",
);
const AUTOML: Other = ("an AutoML job", TRAINING);
const NAME_THE_DATA: &str =
    "name the data where they are, or copy them in a command step of a pipeline";
const BATCH_ENDPOINT: Other =
    ("a batch endpoint", "run its deployment: gristmill run DEPLOYMENT.yml --input DATA");
const ENVIRONMENT: Other = (
    "an environment",
    "name it in a document, `environment: ./FILE.yml`, or replace one: --set environment=PATH",
);
const DATA: Other = (
    "a data asset",
    "give its path to a job: --input PATH, or a line below [azureml.data] of gristmill.toml",
);
const MLTABLE: Other =
    ("an MLTable", "make its folder an input of a job: type: mltable, path: FOLDER");
const MODEL: Other = (
    "a model asset",
    "run a batch deployment with `model: {path: …}`, or add a line below [azureml.models] of gristmill.toml",
);
const DATASTORE: Other = ("a datastore", "add a line below [azureml.datastores] of gristmill.toml");
const COMPUTE: Other =
    ("a compute", "jobs run on this machine, or on a target: [targets.NAME] of gristmill.toml");
const SCHEDULE: Other =
    ("a schedule", "run the document of its `create_job` from cron or a timer of systemd");
const WORKSPACE: Other = ("a workspace or a part of one", "jobs need none");
const FLOW: Other =
    ("a prompt flow", "call it for each item from the `run` of an entry script, in a job file");

/// Documents by their `type`.
const BY_TYPE: &[(&str, Other)] = &[
    ("command", COMMAND),
    ("sweep", SWEEP),
    ("spark", SPARK),
    ("automl", AUTOML),
    ("import", ("an import job", NAME_THE_DATA)),
    ("data_transfer", ("a data transfer job", NAME_THE_DATA)),
    ("finetuning", ("a fine-tuning job", TRAINING)),
    ("distillation", ("a distillation job", TRAINING)),
    ("uri_file", DATA),
    ("uri_folder", DATA),
    ("mltable", DATA),
    ("custom_model", MODEL),
    ("mlflow_model", MODEL),
    ("triton_model", MODEL),
    ("azure_blob", DATASTORE),
    ("azure_file", DATASTORE),
    ("azure_data_lake_gen1", DATASTORE),
    ("azure_data_lake_gen2", DATASTORE),
    ("one_lake", DATASTORE),
    ("hdfs", DATASTORE),
    ("amlcompute", COMPUTE),
    ("computeinstance", COMPUTE),
    ("virtualmachine", COMPUTE),
    ("kubernetes", COMPUTE),
    ("synapsespark", COMPUTE),
];

/// Documents by a part of `$schema`, in lower case; the first one counts.
const BY_SCHEMA: &[(&str, Other)] = &[
    ("batchendpoint", BATCH_ENDPOINT),
    ("onlinedeployment", ONLINE_DEPLOYMENT),
    ("onlineendpoint", ONLINE_ENDPOINT),
    ("commandjob", COMMAND),
    ("commandcomponent", COMMAND),
    ("sweep", SWEEP),
    ("spark", SPARK),
    ("automl", AUTOML),
    ("environment", ENVIRONMENT),
    ("mltable", MLTABLE),
    ("data.schema", DATA),
    ("asset.schema", DATA),
    ("model.schema", MODEL),
    ("datastore", DATASTORE),
    ("azureblob", DATASTORE),
    ("azurefile", DATASTORE),
    ("azuredatalake", DATASTORE),
    ("compute", COMPUTE),
    ("schedule", SCHEDULE),
    ("promptflow", FLOW),
    ("package", ("a model package", "run its model as a batch deployment (`type: model`)")),
    ("workspace", WORKSPACE),
    ("connection", WORKSPACE),
    ("registry", WORKSPACE),
];

/// Returns the kind of a document of Azure ML, or why Gristmill does not run it. `None`: it is a job file.
pub fn of(entries: &[Entry]) -> Option<Result<DocumentKind, (Location, &'static str, Fault)>> {
    let text =
        |key: &str| find(entries, key).and_then(Node::scalar).map(|scalar| scalar.text.as_str());
    let has = |key: &str| find(entries, key).is_some();
    let at = |key: &str| {
        entries.iter().find(|entry| entry.key == key).map_or(Location::File, |entry| entry.location)
    };
    let refused = |key: &'static str, message: String| {
        let found = text(key).map_or_else(|| format!("the key {key}"), |text| format!("{text:?}"));
        Some(Err((at(key), key, Fault::of(found, ALLOWED).saying(message))))
    };
    let other = |key: &'static str, (kind, instead): Other| {
        refused(key, format!("this is {kind}, which Gristmill does not run: {instead}"))
    };
    let schema = text("$schema").map(str::to_lowercase).filter(|schema| schema.contains("azureml"));
    let schema_has = |part: &str| schema.as_deref().is_some_and(|schema| schema.contains(part));
    let jobs = find(entries, "jobs").is_some_and(|jobs| !jobs.entries().is_empty());
    let is_online = schema_has("online") || ONLINE_KEYS.iter().any(|key| has(key));
    let is_deployment =
        has("code_configuration") || has("endpoint_name") || schema_has("batchdeployment");
    if let (Some(kind), Some(_)) = (text("kind"), text("apiVersion")) {
        return refused("kind", format!("this is a manifest of Kubernetes ({kind}), not a job"));
    }
    match text("type") {
        Some("pipeline") if is_deployment => {
            let component =
                text("component").map_or_else(String::new, |component| format!(", {component}"));
            let message =
                "this is a deployment of a pipeline component; run the document of that component";
            refused("type", format!("{message}{component}"))
        }
        Some("pipeline") => Some(Ok(DocumentKind::Pipeline)),
        Some("parallel") => Some(Ok(DocumentKind::Parallel)),
        Some("model") if is_deployment || schema_has("batchdeployment") || has("settings") => {
            Some(Ok(DocumentKind::Deployment))
        }
        // `type: kubernetes` is a compute, and an online deployment.
        Some(kind) if is_deployment && (is_online || ["kubernetes", "managed"].contains(&kind)) => {
            other("type", ONLINE_DEPLOYMENT)
        }
        Some(kind) if BY_TYPE.iter().any(|(known, _)| *known == kind.to_lowercase()) => {
            let found = BY_TYPE.iter().find(|(known, _)| *known == kind.to_lowercase());
            let kind = if has("paths") { MLTABLE } else { found.expect("just found").1 };
            other("type", kind)
        }
        None if jobs || schema_has("pipelinejob") || schema_has("pipelinecomponent") => {
            Some(Ok(DocumentKind::Pipeline))
        }
        None if schema_has("parallelcomponent") => Some(Ok(DocumentKind::Parallel)),
        None if is_deployment && is_online => other(
            if has("endpoint_name") { "endpoint_name" } else { "code_configuration" },
            ONLINE_DEPLOYMENT,
        ),
        None if is_deployment => Some(Ok(DocumentKind::Deployment)),
        _ => match BY_SCHEMA.iter().find(|(part, _)| schema_has(part)) {
            Some((_, kind)) => other("$schema", *kind),
            None if schema.is_some() => refused(
                "$schema",
                "this is a document of Azure ML that Gristmill does not run".to_owned(),
            ),
            None => by_keys(entries).and_then(|(key, kind)| other(key, kind)),
        },
    }
}

/// Keys that only online deployments have.
const ONLINE_KEYS: [&str; 6] = [
    "instance_type",
    "liveness_probe",
    "readiness_probe",
    "request_settings",
    "scale_settings",
    "app_insights_enabled",
];

/// Returns the kind of a document without type and schema, by a key that no job file has. `None`: it may be a job file.
fn by_keys(entries: &[Entry]) -> Option<(&'static str, Other)> {
    let find = |key: &str| find(entries, key);
    let is_list = |key: &str| find(key).is_some_and(|node| matches!(node.value, Value::List(_)));
    let has = |key: &str| find(key).is_some();
    if ["entry_script", "output_action", "task"].into_iter().any(has) {
        return None;
    }
    match () {
        () if is_list("nodes") => Some(("nodes", FLOW)),
        () if is_list("dependencies")
            && ["channels", "name", "build_dependencies"].into_iter().any(has) =>
        {
            Some(("dependencies", ENVIRONMENT))
        }
        () if has("flow") && has("data") => Some(("flow", FLOW)),
        () if has("model_id") => Some(("model_id", ONLINE_ENDPOINT)),
        () if has("replication_locations") => Some(("replication_locations", WORKSPACE)),
        () if has("managed_network") => Some(("managed_network", WORKSPACE)),
        () if has("target") && has("credentials") => Some(("credentials", WORKSPACE)),
        () if has("trigger") && has("create_job") => Some(("create_job", SCHEDULE)),
        () if is_list("paths") => Some(("paths", MLTABLE)),
        () if has("auth_mode") && has("defaults") => Some(("auth_mode", BATCH_ENDPOINT)),
        () if has("auth_mode") => Some(("auth_mode", ONLINE_ENDPOINT)),
        () if has("conda_file") => Some(("conda_file", ENVIRONMENT)),
        () if has("image") => Some(("image", ENVIRONMENT)),
        () if has("build") => Some(("build", ENVIRONMENT)),
        () if has("command") => Some(("command", COMMAND)),
        () => None,
    }
}
