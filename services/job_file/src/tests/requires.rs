//! `requires`: accepted, and refused.

use std::collections::BTreeMap;

use protocol::Requirements;

use super::{BASE, Workplace};

#[test]
fn requirements_are_read() {
    let workplace = Workplace::new();
    let none = Requirements::default();
    let labels = |labels: &[(&str, &str)]| {
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
    };
    for (changes, expected) in [
        ("", none.clone()),
        ("requires:", none.clone()),
        ("requires: {}", none.clone()),
        ("requires: {gpus: 1}", Requirements { gpus: 1, ..none.clone() }),
        ("requires: {memory: 16 GB}", Requirements { memory: 16 << 30, ..none.clone() }),
        ("requires: {processors: 4, memory: 500MB}", Requirements { processors: 4, memory: 500 << 20, ..none.clone() }),
        (
            "requires: {labels: {zone: a, gpu_model: H200, spot: true, version: 1.50}}",
            Requirements {
                labels: labels(&[("zone", "a"), ("gpu_model", "H200"), ("spot", "true"), ("version", "1.50")]),
                ..none.clone()
            },
        ),
    ] {
        assert_eq!(workplace.spec(changes).requires, expected, "{changes}");
    }
    let overrides = [("requires.gpus", "2"), ("requires.labels.zone", "b"), ("requires.labels.topology/rack", "7")];
    let spec = workplace.load(&format!("{BASE}requires: {{labels: {{zone: a}}}}\n"), &overrides).expect("valid").spec;
    let expected = labels(&[("zone", "b"), ("topology/rack", "7")]);
    assert_eq!(spec.requires, Requirements { gpus: 2, labels: expected, ..none });
    let spec = workplace.load(BASE, &overrides[1..2]).expect("valid").spec;
    assert_eq!(spec.requires.labels, labels(&[("zone", "b")]), "without labels in the file");
}

#[test]
fn wrong_requirements_are_refused() {
    let workplace = Workplace::new();
    let long = format!("requires: {{labels: {{zone: {}}}}}", "a".repeat(64));
    for (changes, expected) in [
        ("requires: gpu", "requires: found \"gpu\" … a mapping: {gpus: 1, memory: 16GB"),
        ("requires: {gpu: 1}", "requires.gpu: unknown key; did you mean \"gpus\"?"),
        ("requires: {gpus: 0}", "requires.gpus: must be 1 to 1000"),
        ("requires: {memory: 16}", "requires.memory: found \"16\" … a size with its unit"),
        ("requires: {processors: 10001}", "requires.processors: must be 1 to 10000"),
        ("requires: {labels: [zone]}", "requires.labels: … a mapping of names to values"),
        ("requires: {labels: {zone: }}", "requires.labels.zone: … 1 to 63 letters, digits, `-`, `_`, `.` and `/`"),
        ("requires: {labels: {zone: [a]}}", "requires.labels.zone: … 1 to 63 letters"),
        ("requires: {labels: {zone: a b}}", "requires.labels.zone: found \"a b\" … 1 to 63 letters"),
        ("requires: {labels: {'my zone': a}}", "requires.labels.my zone: found \"my zone\" … 1 to 63 letters"),
        (long.as_str(), "requires.labels.zone: … 1 to 63 letters"),
    ] {
        let said = workplace.problems(changes);
        let mut rest = said.as_str();
        for part in expected.split(" … ") {
            let at = rest.find(part).unwrap_or_else(|| panic!("{changes}: {part:?} is missing in {said}"));
            rest = &rest[at + part.len()..];
        }
        assert_eq!(said.lines().count(), 1, "{changes}: {said}");
    }
}
