//! `sys.argv[1:]` of the entry script, in the order of the original: options of the engine, the user's arguments, the
//! inputs.
//!
//! An option and its value are two elements, never `--name=value`: scripts look for name and value side by side.

use protocol::{InputKind, JobSpec};

use crate::keys::{self, JOB};
use crate::{Node, Section};

/// Options that no key of the job file sets.
const FIXED: [&str; 3] =
    ["client_sdk_version", "scoring_module_name", "create_snapshot_at_runtime"];

/// Returns the user's arguments among those of the script.
pub fn arguments_of(job: &JobSpec) -> &[String] {
    let is_option = |element: &String| {
        let name = element.strip_prefix("--");
        name.is_some_and(|name| FIXED.contains(&name) || keys::reserved(name).is_some())
    };
    let first = 2 * job.argv.chunks(2).take_while(|pair| is_option(&pair[0])).count();
    let end = job.argv.len().saturating_sub(2 * job.inputs.len());
    job.argv.get(first..end).unwrap_or_default()
}

/// Returns all arguments, in order. `arguments` are the user's.
pub fn assemble(job: &JobSpec, top: &Section<'_>, arguments: &[String]) -> Vec<String> {
    let [version, script, snapshot] = FIXED;
    let mut options = vec![
        (0, version, env!("CARGO_PKG_VERSION").to_owned()),
        (1, script, job.entry_script.clone()),
        (8, snapshot, "True".to_owned()),
    ];
    options.extend(JOB.rows().filter_map(|key| {
        let argument = key.argument.as_ref()?;
        let value = (argument.value)(job, top.get(key.name).and_then(Node::scalar))?;
        Some((argument.position, key.name, value))
    }));
    options.sort_by_key(|(position, ..)| *position);
    let options = options.into_iter().flat_map(|(_, name, value)| [format!("--{name}"), value]);
    let inputs = job.inputs.iter().enumerate().flat_map(|(position, input)| {
        let option = match input.kind {
            InputKind::Tabular => format!("--input_ds_{position}"),
            InputKind::File => format!("--input_fds_{position}"),
        };
        [option, input.name.clone()]
    });
    options.chain(arguments.iter().cloned()).chain(inputs).collect()
}
