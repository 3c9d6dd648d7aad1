//! `requires`: the hardware and labels that each node of the job must have.

use protocol::{LABEL_ALLOWED, Requirements, is_label};

use crate::keys::REQUIRES;
use crate::values::{integer, memory};
use crate::{Fault, Node, Section};

/// Larger numbers are typing mistakes.
const GPUS_MAX: i64 = 1000;
const PROCESSORS_MAX: i64 = 10_000;

pub fn read_requires(top: &Section<'_>) -> Requirements {
    let allowed = "a mapping: {gpus: 1, memory: 16GB, processors: 4, labels: {zone: a}}";
    let Some(section) = top.below("requires", REQUIRES, allowed) else {
        return Requirements::default();
    };
    let allowed = "a mapping of names to values: {zone: a, gpu_model: H200}";
    Requirements {
        gpus: section.value("gpus", |node| integer(node, 1, GPUS_MAX)).unwrap_or(0),
        memory: section.value("memory", memory).unwrap_or(0),
        processors: section
            .value("processors", |node| integer(node, 1, PROCESSORS_MAX))
            .unwrap_or(0),
        labels: section.named("labels", allowed, |entry| {
            label(&Node::text(entry.location, &entry.key))?;
            label(&entry.node)
        }),
    }
}

/// Parses the name or value of a label. Takes numbers and truth values as text.
fn label(node: &Node) -> Result<String, Fault> {
    let text = node.scalar().filter(|scalar| !scalar.is_null()).map(|scalar| scalar.text.clone());
    text.filter(|text| is_label(text)).ok_or_else(|| Fault::new(node, LABEL_ALLOWED))
}
