//! The table of keys: its rows match the reference, the parsers, the defaults and the fingerprint.

use crate::keys::{self, ENVIRONMENT, INPUT, JOB, Key, LIMITS, OPTIONS, REQUIRES};
use crate::with_tables;

use super::Workplace;

#[test]
fn reference_has_the_rows_of_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/REFERENCE.md");
    let reference = std::fs::read_to_string(path).expect("the reference can be read");
    let written = with_tables(&reference);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(path, &written).expect("the reference can be written");
        return;
    }
    let differs = written.lines().zip(reference.lines()).find(|(written, now)| written != now);
    assert!(
        written == reference,
        "REFERENCE.md differs from the table of keys: {differs:?}; write its tables with\n\
         UPDATE_REFERENCE=1 cargo nextest run --workspace -E 'test(reference_has_the_rows_of_the_table)'"
    );
    for keys in [JOB, INPUT, ENVIRONMENT, LIMITS, REQUIRES, OPTIONS] {
        for name in keys.names() {
            let row = format!("\n| `{}{name}` |", keys.prefix);
            assert!(reference.contains(&row), "REFERENCE.md has no row for {name}");
        }
    }
}

#[test]
fn generated_part_replaces_the_old_one() {
    let written = with_tables(
        "a\n<!-- keys: reserved -->\nold\n<!-- end -->\nb <!-- keys: other -->\nc\n<!-- end -->\n",
    );
    assert!(
        written.starts_with("a\n<!-- keys: reserved -->\n`--mini_batch_size`, `--partition_keys`, `--output_action`, "),
        "{written}"
    );
    assert!(
        written.ends_with("\n<!-- end -->\nb <!-- keys: other -->\nc\n<!-- end -->\n"),
        "{written}"
    );
    assert!(!written.contains("\nold\n"), "{written}");
}

#[test]
fn every_row_is_documented_and_unique() {
    for keys in [JOB, INPUT, ENVIRONMENT, LIMITS, REQUIRES, OPTIONS] {
        for (index, Key { name, meaning, values, .. }) in keys.rows().enumerate() {
            assert!(meaning.ends_with(['.', '…', ')']) && !values.is_empty(), "{name}");
            assert!(!meaning.contains('\n'), "{name}: a cell is one line");
            assert_eq!(
                keys.names().position(|other| other == *name),
                Some(index),
                "{name} has two rows"
            );
        }
    }
}

#[test]
fn every_key_is_read_and_checked() {
    let workplace = Workplace::new();
    for key in JOB.names() {
        let said = workplace.problems(&format!("{key}: [[[]]]"));
        assert!(said.contains(&format!(": {key}")), "{key} takes anything: {said}");
        let said = workplace.override_problems(&[(key, "[[[]]]")]);
        assert!(said.contains(&format!("--set {key}")), "--set does not reach {key}: {said}");
    }
    for key in INPUT.names() {
        let rest = ["type: tabular, ", "path: tables, "]
            .map(|part| if part.starts_with(key) { "" } else { part });
        let said = workplace.problems(&format!("inputs: [{{{}{key}: [[[]]]}}]", rest.concat()));
        assert!(said.contains(&format!(": inputs[0].{key}")), "{key} takes anything: {said}");
        let said = workplace.override_problems(&[(&format!("inputs.data.{key}"), "[[[]]]")]);
        assert!(
            said.contains(&format!("--set inputs[0].{key}")),
            "--set does not reach {key}: {said}"
        );
    }
    let wrong = &["[[[]]]", "0", "-1", "1.5", "many"][..];
    for (parent, keys, values) in [
        ("environment", ENVIRONMENT, &wrong[..1]),
        ("limits", LIMITS, wrong),
        ("requires", REQUIRES, wrong),
    ] {
        for name in keys.names() {
            let key = format!("{parent}.{name}");
            for value in values {
                let said = workplace.problems(&format!("{parent}: {{{name}: {value}}}"));
                assert!(said.contains(&format!(": {key}: ")), "{key} takes {value}: {said}");
            }
            let said = workplace.override_problems(&[(&key, "[[[]]]")]);
            assert!(said.contains(&format!("--set {key}")), "--set does not reach {key}: {said}");
        }
    }
    for option in OPTIONS.names().filter(|option| *option != "metrics_name_prefix") {
        let said = workplace.problems(&format!("arguments: [--{option}, wrong value]"));
        assert!(
            said.contains(&format!("--{option} wrong value")),
            "{option} takes anything: {said}"
        );
    }
}

#[test]
fn documented_default_is_the_default() {
    let workplace = Workplace::new();
    let with_defaults = |keys: keys::Keys| {
        keys.rows().filter_map(|key| Some((key.name, key.default?))).collect::<Vec<(&str, &str)>>()
    };
    let mut expected = workplace.spec("");
    for (key, default) in with_defaults(JOB) {
        let spec = workplace.spec(&format!("{key}: {default}"));
        assert_eq!(protocol::JobSpec { argv: expected.argv.clone(), ..spec }, expected, "{key}");
    }
    for (option, default) in with_defaults(OPTIONS) {
        let spec = workplace.spec(&format!("arguments: [--{option}, '{default}']"));
        expected.fingerprint.clone_from(&spec.fingerprint);
        assert_eq!(protocol::JobSpec { argv: expected.argv.clone(), ..spec }, expected, "{option}");
    }
    let table = workplace.spec("inputs: [{TABLE}]").inputs;
    for (key, default) in with_defaults(INPUT) {
        let given = format!("inputs: [{{TABLE, {key}: {default}}}]");
        assert_eq!(workplace.spec(&given).inputs, table, "{key}");
    }
}

fn identity_settings(parsed: &crate::Parsed) -> serde_json::Value {
    serde_json::to_value(&parsed.identity).expect("plain data")["settings"].take()
}

/// A field without a key would have no name in messages, and no rule whether the fingerprint covers it.
#[test]
fn every_setting_of_a_job_has_a_key() {
    let workplace = Workplace::new();
    let parsed = workplace.parsed(
        "outputs: {images: images}\nfail_fast: 3\nmodel: labels.txt\nprocess_max_runs: 9\nprocess_max_memory: 1GB\n\
         concurrency: 9\nlimits: {concurrent: 9}\nisolate: items\nisolate_items_max: 9\nspeculation: true\n\
         owner: ana\npriority: high\nmax_share: 50\nmax_memory: 1GB\nresult_schema: {columns: {a: any}}\nrequires: {gpus: 1}\n\
         gpus_per_process: 1\nprocess_count_per_gpu: 2",
    );
    let json = serde_json::to_value(&parsed.spec).expect("plain data");
    let known: Vec<&str> = keys::of_job().map(|key| key.setting).collect();
    for (field, value) in json.as_object().expect("an object") {
        let is_split = known.iter().any(|setting| setting.starts_with(&format!("{field}.")));
        let parts = value.as_object().filter(|_| is_split).into_iter().flatten();
        let parts: Vec<String> = parts.map(|(part, _)| format!("{field}.{part}")).collect();
        let settings = if is_split { parts } else { vec![field.clone()] };
        for setting in settings
            .iter()
            .map(String::as_str)
            .filter(|setting| !crate::identity::OF_ENGINE.contains(setting))
        {
            let is_other = ["snapshots", "output.to_csv_arguments"].contains(&setting);
            assert!(known.contains(&setting) || is_other, "{setting} has no key");
        }
    }
    let output = identity_settings(&parsed);
    let empty = identity_settings(&workplace.parsed(""));
    for key in keys::of_job().filter(|key| key.is_left_out) {
        assert_eq!(
            output.get(key.setting),
            empty.get(key.setting),
            "{} changes the fingerprint",
            key.name
        );
    }
    let no_field = ["compute_target", "arguments"];
    let is_stored =
        |key: &&Key| !key.is_ignored && !key.setting.is_empty() && !no_field.contains(&key.name);
    for key in keys::of_job().filter(is_stored) {
        let pointer = format!("/{}", key.setting.replace('.', "/"));
        assert!(json.pointer(&pointer).is_some(), "{} names no setting: {pointer}", key.name);
    }
}

#[test]
fn isolate_takes_false_for_off() {
    let workplace = Workplace::new();
    for off in ["off", "'off'", "false"] {
        assert_eq!(
            workplace.spec(&format!("isolate: {off}")).isolate,
            protocol::Isolate::Off,
            "{off}"
        );
    }
}
