//! `arguments`: rules, placeholders, engine options among them.

use super::Workplace;

/// Returns the user's part of `sys.argv[1:]`.
fn arguments(workplace: &Workplace, given: &str) -> Vec<String> {
    let spec = workplace.spec(&format!("side_inputs: {{labels: labels.txt}}\narguments: {given}"));
    let argv = &spec.argv;
    let from =
        argv.iter().position(|argument| argument == "--output").expect("an engine option") + 2;
    let to = argv.iter().position(|argument| argument == "--input_fds_0").expect("an input");
    assert_eq!(crate::arguments_of(&spec), &argv[from..to]);
    argv[from..to].to_vec()
}

#[test]
fn values_are_passed_as_written() {
    let workplace = Workplace::new();
    let given = r#"[--a, 1.50, --b, 007, --c, 1e-3, --d, True, --e, false, --f, "", --g, 'x y', --h=1, -1, yes, 0x10]"#;
    let expected = [
        "--a", "1.50", "--b", "007", "--c", "1e-3", "--d", "True", "--e", "False", "--f", "",
        "--g", "x y", "--h=1",
    ];
    assert_eq!(arguments(&workplace, given)[..15], expected);
    assert_eq!(arguments(&workplace, given)[15..], ["-1", "yes", "0x10"]);
}

#[test]
fn placeholders_become_absolute_paths() {
    let workplace = Workplace::new();
    let path = |name: &str| workplace.path(name).display().to_string();
    let given = r#"[--l, "${{side_inputs.labels}}", --d, "${{ inputs.data }}/x", --o, "a${{output}}:${{output}}", "--x=$5"]"#;
    let (labels, data, output) = (path("labels.txt"), path("data/x"), path("output"));
    let expected = ["--l", &labels, "--d", &data, "--o", &format!("a{output}:{output}"), "--x=$5"];
    assert_eq!(arguments(&workplace, given), expected);
    let spec =
        workplace.spec("environment_variables: {DATA: '${{inputs.data}}', N: 1.0, EMPTY: ''}");
    let variables: Vec<(&str, &str)> = spec
        .environment_variables
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(variables, [("DATA", path("data").as_str()), ("EMPTY", ""), ("N", "1.0")]);
}

/// Only the fault of the value is reported, not its placeholder.
#[test]
fn placeholder_of_invalid_value_is_not_a_second_problem() {
    let workplace = Workplace::new();
    for changes in [
        "side_inputs: {labels: nowhere}\narguments: [-l, '${{side_inputs.labels}}']",
        "inputs: [{name: a, type: file, path: data}, {name: b, path: data}]\narguments: [-i, '${{inputs.b}}']",
        "inputs: [{type: nix, path: data}]\narguments: [-i, '${{inputs.input_0}}']",
        "inputs: {a: {type: file, path: data}, b: 1}\narguments: [-i, '${{inputs.b}}']",
        "output: labels.txt\narguments: [-o, '${{output}}']",
    ] {
        let said = workplace.problems(changes);
        assert_eq!(said.lines().count(), 1, "{changes}: {said}");
    }
}

#[test]
fn reserved_names_are_rejected() {
    let workplace = Workplace::new();
    let reserved = "mini_batch_size error_threshold allowed_failed_count allowed_failed_percent output output_action \
                    logging_level process_count_per_node run_invocation_timeout run_max_try append_row_file_name \
                    partition_keys";
    for name in reserved.split(' ') {
        for given in [format!("[--x, --{name}, 1]"), format!("['--{name}=1']")] {
            let said = workplace.problems(&format!("arguments: {given}"));
            let expected = format!(
                "'--{name}' is a reserved argument in ParallelRunStep, please use another argument name instead."
            );
            assert!(said.contains(&expected), "{given}: {said}");
        }
    }
    for free in
        ["[--model_name, x]", "[--outputs, x]", "[-output, x]", "[--output_dir=x]", "[--x, output]"]
    {
        assert_eq!(workplace.problems(&format!("arguments: {free}")), "", "{free}");
    }
}

#[test]
fn engine_options_are_read() {
    let workplace = Workplace::new();
    let given = "[--task_overhead_timeout, 60, --x, --first_task_creation_timeout=5, --resource_monitor_interval, 0, \
                 --append_row_dataframe_header, 'True', --profiling_module, cProfile, --nice, 0, --nice=7]";
    let spec = workplace.spec(&format!("arguments: {given}"));
    assert_eq!(spec.task_overhead_timeout_seconds, 60);
    assert_eq!(spec.progress_update_timeout_seconds, 3 * (60 + 60));
    assert_eq!(spec.first_task_creation_timeout_seconds, 5);
    assert_eq!(spec.resource_monitor_interval_seconds, 0);
    assert!(spec.output.header);
    assert_eq!((spec.profiling_module.as_str(), spec.nice), ("cProfile", 7), "the last one wins");
    assert!(spec.argv.contains(&"--task_overhead_timeout".to_owned()), "the script sees them too");

    let spec =
        workplace.spec("arguments: [--progress_update_timeout, 99, --rank_mini_batch_count, -3]");
    assert_eq!((spec.progress_update_timeout_seconds, spec.rank_mini_batch_count), (99, 0));
    let spec = workplace.spec("arguments: [--profiling_module, '', --x, --, --nice, 99]");
    assert_eq!(
        (spec.profiling_module.as_str(), spec.nice),
        ("", 5),
        "behind -- everything is the script's"
    );
}

#[test]
fn misspelt_engine_options_give_warnings() {
    let workplace = Workplace::new();
    for (given, expected) in [
        ("[--resource_monitor_interva, 5]", "\"--resource_monitor_interval\"?"),
        ("[--task-overhead-timeout, 5]", "did you mean \"--task_overhead_timeout\"?"),
        ("[--profiling_modul=x]", "did you mean \"--profiling_module\"?"),
        ("[--error_treshold, 5]", "did you mean the key error_threshold of the job file?"),
        ("[--metrics_name_prefix, a]", "\"--metrics_name_prefix\" has no effect here"),
        ("[--push_metrics_to_parent, 'True']", "has no effect here"),
    ] {
        let warnings = workplace.warnings(&format!("arguments: {given}"));
        assert!(warnings.len() == 1 && warnings[0].contains(expected), "{given}: {warnings:?}");
        assert!(warnings[0].starts_with("job.yaml:7: arguments[0]: "), "{warnings:?}");
    }
    let given = "arguments: [--model, x, --dice, 3, --outputs, y, --run_id, z, --timeout, 5, --input_format, a]";
    assert_eq!(workplace.warnings(given), Vec::<String>::new());
}

#[test]
fn key_takes_precedence_over_old_name_of_timeout() {
    let workplace = Workplace::new();
    let parsed = workplace.parsed("arguments: [--score_run_timeout, 90]");
    assert_eq!(parsed.spec.run_invocation_timeout_seconds, 90);
    let timeout = parsed
        .spec
        .argv
        .iter()
        .position(|argument| argument == "--run_invocation_timeout")
        .expect("always");
    assert_eq!(parsed.spec.argv[timeout + 1], "90");
    let parsed =
        workplace.parsed("arguments: [--score_run_timeout, 90]\nrun_invocation_timeout: 20");
    assert_eq!(parsed.spec.run_invocation_timeout_seconds, 20);
    assert_eq!(parsed.warnings.len(), 1);
}

#[test]
fn settings_file_gives_arguments_of_to_csv() {
    let workplace = Workplace::new();
    let file = "code/parallel_run_step.settings.json";
    workplace.write(
        file,
        r#"{"append_row": {"pandas.DataFrame.to_csv": {"sep": ",", "na_rep": "NA"}}, "other": 1}"#,
    );
    let arguments = workplace.spec("").output.to_csv_arguments;
    assert_eq!(
        serde_json::Value::Object(arguments),
        serde_json::json!({"sep": ",", "na_rep": "NA"})
    );
    for (text, expected) in [
        ("{", "settings.json:1: not valid JSON"),
        ("[]", "settings.json: found []"),
        (r#"{"append_row": 5}"#, "settings.json: append_row: found 5"),
        (r#"{"append_row": {"pandas.DataFrame.to_csv": [1]}}"#, "to_csv: found [1]"),
        (
            r#"{"append_row": {"pandas.DataFrame.to_csv": {"separator": ","}}}"#,
            "found \"separator\"; allowed: sep,",
        ),
        (
            r#"{"append_row": {"pandas.DataFrame.to_csv": {"na_repp": ","}}}"#,
            "did you mean \"na_rep\"?",
        ),
    ] {
        workplace.write(file, text);
        let said = workplace.problems("");
        assert!(said.contains(expected), "{text}: {said}");
    }
    for nothing in ["{}", r#"{"append_row": {}}"#] {
        workplace.write(file, nothing);
        assert!(workplace.spec("").output.to_csv_arguments.is_empty());
    }
}
