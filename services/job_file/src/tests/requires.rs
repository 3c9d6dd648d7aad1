//! `requires`: what it means, and `--set` of its parts.

use std::collections::BTreeMap;

use protocol::Requirements;

use super::{BASE, Workplace};

#[test]
fn requirements_are_read() {
    let workplace = Workplace::new();
    let none = Requirements::default();
    let labels = |labels: &[(&str, &str)]| {
        labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<BTreeMap<_, _>>()
    };
    for (changes, expected) in [
        ("", none.clone()),
        ("requires:", none.clone()),
        ("requires: {}", none.clone()),
        ("requires: {gpus: 1}", Requirements { gpus: 1, ..none.clone() }),
        ("requires: {memory: 16 GB}", Requirements { memory: 16 << 30, ..none.clone() }),
        (
            "requires: {processors: 4, memory: 500MB}",
            Requirements { processors: 4, memory: 500 << 20, ..none.clone() },
        ),
        (
            "requires: {labels: {zone: a, gpu_model: H200, spot: true, version: 1.50}}",
            Requirements {
                labels: labels(&[
                    ("zone", "a"),
                    ("gpu_model", "H200"),
                    ("spot", "true"),
                    ("version", "1.50"),
                ]),
                ..none.clone()
            },
        ),
    ] {
        assert_eq!(workplace.spec(changes).requires, expected, "{changes}");
    }
    let overrides = [
        ("requires.gpus", "2"),
        ("requires.labels.zone", "b"),
        ("requires.labels.topology/rack", "7"),
    ];
    let spec = workplace
        .load(&format!("{BASE}requires: {{labels: {{zone: a}}}}\n"), &overrides)
        .expect("valid")
        .spec;
    let expected = labels(&[("zone", "b"), ("topology/rack", "7")]);
    assert_eq!(spec.requires, Requirements { gpus: 2, labels: expected, ..none });
    let spec = workplace.load(BASE, &overrides[1..2]).expect("valid").spec;
    assert_eq!(spec.requires.labels, labels(&[("zone", "b")]), "without labels in the file");
}
