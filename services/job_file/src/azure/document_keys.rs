//! `--set` with the keys of a document, as `az ml job create --set` takes them: `jobs.STEP.inputs.NAME=…`,
//! `settings.…=…`, `inputs.NAME.path=…`. All other keys are those of the job files of its steps.

use super::bindings::LITERALS;
use super::kind::DocumentKind;
use super::known::{self, KnownKeys};
use crate::keys::JOB;
use crate::overrides::{read_value, replace, value_of};
use crate::{Entry, Fault, Location, Node, Problems, Value, find};

const INPUTS: &str = "inputs";
const OUTPUTS: &str = "outputs";
const JOBS: &str = "jobs";

/// Changes a document. Returns the values for the job files of its steps.
pub fn apply(
    entries: &mut Vec<Entry>,
    kind: DocumentKind,
    overrides: &[(String, String)],
    problems: &Problems,
) -> Vec<(String, String)> {
    let mut others = Vec::new();
    for (key, text) in overrides {
        let path: Vec<&str> = key.split('.').collect();
        if !is_of_document(entries, kind, &path) {
            others.push((key.clone(), text.clone()));
            continue;
        }
        if let Err(fault) = read_value(text).and_then(|node| set(entries, &path, node)) {
            problems.add(Location::Override, key, fault);
        }
    }
    others
}

/// Returns whether a key belongs to the document. `STEP.KEY` and keys of job files do not.
fn is_of_document(entries: &[Entry], kind: DocumentKind, path: &[&str]) -> bool {
    let tables: &[KnownKeys] = match kind {
        DocumentKind::Pipeline => &[known::COMMON, known::JOB, known::PIPELINE],
        DocumentKind::Parallel => &[known::COMMON, known::JOB, known::STEP, known::PARALLEL],
        DocumentKind::Deployment => &[known::COMMON, known::DEPLOYMENT, known::DEPLOYMENT_SETTINGS],
    };
    let below = |key: &str, name: &str| {
        find(entries, key).is_some_and(|node| find(node.entries(), name).is_some())
    };
    match path {
        [step, _, ..] if *step != JOBS && below(JOBS, step) => false,
        [group @ (INPUTS | OUTPUTS), name, rest @ ..] => {
            // A job file has keys of inputs, too: `inputs.NAME.take`.
            let is_binding =
                |key: &str| known::keys(&[known::OUTPUT]).any(|(known, _)| known == key);
            let of_group = entries
                .iter()
                .find(|entry| entry.key == *group)
                .map_or(&[][..], |entry| entry.node.entries());
            let own = of_group
                .iter()
                .find(|entry| entry.key == *name)
                .filter(|_| kind != DocumentKind::Deployment);
            let of_component =
                kind == DocumentKind::Pipeline && find(entries, "component").is_some();
            let has_key =
                |key: &str| own.is_some_and(|own| find(own.node.entries(), key).is_some());
            (own.is_some() || of_component)
                && rest.first().is_none_or(|key| is_binding(key) || has_key(key))
        }
        // The model decides which script runs.
        ["model", ..] => kind == DocumentKind::Deployment,
        [first, ..] => {
            JOB.find(first).is_none() && known::keys(tables).any(|(known, _)| known == *first)
        }
        [] => false,
    }
}

fn set(entries: &mut Vec<Entry>, path: &[&str], node: Node) -> Result<(), Fault> {
    let [key, rest @ ..] = path else { return Ok(()) };
    if rest.is_empty() {
        replace(entries, key, node);
        return Ok(());
    }
    let found = value_of(entries, key);
    let is_group = [INPUTS, OUTPUTS].contains(key);
    match (&mut found.value, rest) {
        (Value::Mapping(steps), [step, _, ..]) if *key == JOBS && find(steps, step).is_none() => {
            let names = steps.iter().map(|entry| entry.key.as_str());
            Err(Fault::unknown(step, names, "the pipeline has no such step"))
        }
        (Value::Mapping(bindings), [name]) if is_group => {
            set_binding(bindings, name, node);
            Ok(())
        }
        (Value::Mapping(entries), _) => set(entries, rest, node),
        // `NAME: ./path`, or a key without a value.
        (Value::Scalar(_), _) => {
            found.value = Value::Mapping(Vec::new());
            let Value::Mapping(entries) = &mut found.value else { unreachable!("just set") };
            set(entries, rest, node)
        }
        (Value::List(_), _) => {
            Err(Fault::new(found, format!("a mapping in the document, or --set {key}=…")))
        }
    }
}

/// Sets the value of an input, or the path of an output, whatever form it has in the document.
fn set_binding(bindings: &mut Vec<Entry>, name: &str, node: Node) {
    const VALUES: [&str; 3] = ["path", "value", "default"];
    let keys =
        bindings.iter_mut().find(|entry| entry.key == name).map(|entry| &mut entry.node.value);
    match (keys, &node.value) {
        (Some(Value::Mapping(keys)), Value::Scalar(_)) if !keys.is_empty() => {
            let is_literal = match find(keys, "type") {
                Some(kind) => LITERALS.contains(&kind.written().trim()),
                None => find(keys, "path").is_none(),
            };
            keys.retain(|entry| !VALUES.contains(&entry.key.as_str()));
            replace(keys, if is_literal { "value" } else { "path" }, node);
        }
        _ => replace(bindings, name, node),
    }
}
