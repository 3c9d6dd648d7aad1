use super::*;

/// As `terraform output -json` prints it, among other outputs.
fn outputs(target: &str) -> String {
    format!(
        r#"{{
  "store": {{"sensitive": false, "type": "string", "value": "s3://another"}},
  "target": {{"sensitive": false, "type": ["object", {{"name": "string", "queue": "string"}}], "value": {target}}}
}}"#
    )
}

const SQS: &str = r#"{"endpoint": null, "name": "prod", "queue": "sqs://team-a", "region": "eu-central-1",
                      "store": "s3://team-a-gristmill/jobs"}"#;

fn import(given: &str, name: &str, text: &str, replace: bool) -> Result<Imported> {
    TerraformTarget::read(given)?.import(name, Path::new("gristmill.toml"), text, replace)
}

fn imported(given: &str, name: &str, text: &str, replace: bool) -> String {
    match import(given, name, text, replace).expect("imports") {
        Imported::Changed(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_outputs_and_the_single_output_give_the_same_target() {
    let expected = "[targets.prod]\nqueue = \"sqs://team-a\"\nstore = \"s3://team-a-gristmill/jobs\"\n\
                    region = \"eu-central-1\"\n";
    for given in [outputs(SQS), SQS.to_owned()] {
        assert_eq!(TerraformTarget::read(&given).expect("a target").name.as_deref(), Some("prod"));
        assert_eq!(imported(&given, "prod", "", false), expected);
        assert_eq!(import(&given, "prod", expected, false).expect("imports"), Imported::Unchanged);
    }
}

#[test]
fn import_keeps_every_other_line_of_the_file() {
    let before = "# What we use.\n\n[targets.office] # the old one\nqueue = 'sqlite:queues'   # on the disk\n\
                  store = \"store\"\n\n# Ask Kim before you change this.\n";
    let added = format!(
        "{before}\n[targets.prod]\nqueue = \"sqs://team-a\"\nstore = \"s3://team-a-gristmill/jobs\"\n\
         region = \"eu-central-1\"\n"
    );
    assert_eq!(imported(SQS, "prod", before, false), added);

    let edited = added.replace(
        "region = \"eu-central-1\"",
        "region = 'us-east-1' # for now\npython = \"/opt/python\"",
    );
    let Imported::Differs(keys) = import(SQS, "prod", &edited, false).expect("imports") else {
        panic!("it differs")
    };
    assert_eq!(keys, ["region"]);
    let expected = edited.replace("'us-east-1' # for now", "\"eu-central-1\" # for now");
    assert_eq!(
        imported(SQS, "prod", &edited, true),
        expected,
        "only the value changes, and the user's keys stay"
    );
}

#[test]
fn import_removes_old_keys_and_adds_new_ones() {
    let at_an_emulator = "[targets.prod]\nqueue = \"sqs://team-a\"\nstore = \"s3://team-a-gristmill/jobs\"\n\
                          endpoint = \"http://127.0.0.1:4566\"\n";
    let differs = Imported::Differs(vec!["endpoint"]);
    assert_eq!(import(SQS, "prod", at_an_emulator, false).expect("imports"), differs);
    let now = imported(SQS, "prod", at_an_emulator, true);
    assert!(!now.contains("endpoint") && now.contains("region = \"eu-central-1\""), "{now}");

    let without_region =
        "[targets.prod]\nqueue = \"sqs://team-a\"\nstore = \"s3://team-a-gristmill/jobs\"\n";
    assert!(
        imported(SQS, "prod", without_region, false).contains("region"),
        "a missing key needs no `replace`"
    );
}

#[test]
fn target_in_any_notation_is_updated_in_place() {
    for (text, expected) in [
        (
            "targets.prod = { queue = 'sqs://b', store = 's3://team-a-gristmill/jobs' }\n",
            "targets.prod = { queue = \"sqs://team-a\", store = 's3://team-a-gristmill/jobs' , region = \"eu-central-1\" }\n",
        ),
        (
            "[targets]\nprod.queue = 'sqs://b'\nprod.store = 's3://c'\n",
            "[targets]\nprod.queue = \"sqs://team-a\"\nprod.store = \"s3://team-a-gristmill/jobs\"\n\
             prod.region = \"eu-central-1\"\n",
        ),
    ] {
        assert_eq!(imported(SQS, "prod", text, true), expected);
    }
    let inline = imported(SQS, "prod", "targets = { a = { store = 's3://c' } }\n", false);
    let read = parse(Path::new("gristmill.toml"), &inline, |_| None).expect("valid");
    assert_eq!(read.targets.keys().collect::<Vec<_>>(), ["a", "prod"], "{inline}");
}

#[test]
fn broker_names_the_variable_of_its_password() {
    let broker = r#"{"name": "mq", "queue": "amqps://gristmill:${BROKER_PASSWORD}@b-1.mq.example:5671/%2f?prefix=team-a",
                     "store": "s3://bucket/jobs", "region": "us-east-1", "endpoint": null, "lease_seconds": 1800}"#;
    assert_eq!(TerraformTarget::read(broker).expect("a target").variables, ["BROKER_PASSWORD"]);
    let text = imported(broker, "mq", "", false);
    assert!(
        text.contains("gristmill:${BROKER_PASSWORD}@b-1") && text.contains("lease_seconds = 1800"),
        "{text}"
    );
}

#[test]
fn invalid_target_is_rejected_with_remedy() {
    let with = |change: &str| outputs(&SQS.replace("\"sqs://team-a\"", change));
    for (given, expected) in [
        ("".to_owned(), "the input is empty; if `terraform output` failed, its message says why"),
        (
            "target = {\n}".to_owned(),
            "not valid JSON (expected ident at line 1 column 2); pass the output of `terraform",
        ),
        ("[]".to_owned(), "found a list instead of a JSON object"),
        ("{}".to_owned(), "there are no outputs; run `terraform apply`"),
        (r#"{"bucket": {"value": "b"}}"#.to_owned(), "no output \"target\" (there are: bucket)"),
        (r#"{"target": "sqs://a"}"#.to_owned(), "output \"target\" is a text without a value"),
        (
            outputs("\"sqs://a\""),
            "output \"target\" is a text instead of an object with queue and store",
        ),
        (
            outputs(SQS).replace("false", "true"),
            "output \"target\" is marked as sensitive, but a target must not hold a secret",
        ),
        (with("null"), "target.queue is missing"),
        (with("\"\""), "target.queue is empty"),
        (with("7"), "target.queue is a number instead of a text"),
        (with("\"kafka://a\""), "\"kafka://\" is not a kind of queue"),
        (with("\"amqps://u:${A}b@h\""), "target.queue holds a password"),
        (with("\"amqps://u:${A@h\""), "target.queue: a `${` without `}`"),
        (
            outputs(&SQS.replace("\"region\"", "\"regoin\"")),
            "target.regoin: unknown key, did you mean \"region\"?",
        ),
    ] {
        let message = format!("{:#}", TerraformTarget::read(&given).expect_err(&given));
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
    let secret = format!(
        "{:#}",
        TerraformTarget::read(&with("\"amqps://u:s3cr3t@h\"")).expect_err("a password")
    );
    assert!(secret.contains("holds a password") && !secret.contains("s3cr3t"), "{secret}");
}

#[test]
fn invalid_name_or_file_is_rejected() {
    for name in ["local", "", "a b", "a/b"] {
        let message = format!("{:#}", import(SQS, name, "", false).expect_err(name));
        assert!(message.contains("is not a valid name of a target"), "{message}");
    }
    let message = format!(
        "{:#}",
        import(SQS, "prod", "\n[targets.a]\nqeue = 'x'\n", false).expect_err("a slip")
    );
    assert!(message.contains("gristmill.toml:3: unknown key \"qeue\""), "{message}");
}
