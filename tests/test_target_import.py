"""`gristmill target import`: what Terraform prints becomes a target that other commands find."""

import json
import os
import stat
import subprocess

import pytest

from harness import Workplace

SQS = {
    "name": "gristmill-dev",
    "queue": "sqs://gristmill-dev",
    "store": "s3://gristmill-dev-123456789012/gristmill-dev",
    "region": "eu-central-1",
    "endpoint": None,
}
RABBITMQ = {
    **SQS,
    "queue": "amqps://gristmill:${BROKER_PASSWORD}@b-1.mq.eu-central-1.amazonaws.com:5671/%2f?prefix=prod",
}
LOCALSTACK = {**SQS, "name": "local-aws", "region": "us-east-1", "endpoint": "http://127.0.0.1:4566"}


def outputs(target: dict) -> str:
    """As `terraform output -json` of an environment, which has other outputs too."""
    kinds = {key: "dynamic" if value is None else "string" for key, value in target.items()}
    others = {name: {"sensitive": False, "type": ["map", "string"], "value": {}} for name in ("policy_arns", "store")}
    return json.dumps({**others, "target": {"sensitive": False, "type": ["object", kinds], "value": target}}, indent=2)


def gristmill(workplace: Workplace, *arguments: object, given: str = "", **environment: str):
    return subprocess.run(
        [workplace.executable, *map(str, arguments)],
        cwd=workplace.folder,
        env={**workplace.environment, **environment},
        input=given,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("target", [SQS, RABBITMQ, LOCALSTACK], ids=["sqs", "rabbitmq", "localstack"])
@pytest.mark.parametrize("shape", [outputs, json.dumps], ids=["all", "one"])
def test_a_target_is_written_listed_and_found(workplace, target, shape):
    ended = gristmill(workplace, "target", "import", given=shape(target))
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == f"target {target['name']} is written to {workplace.folder / 'gristmill.toml'}"
    assert ("it names the variable BROKER_PASSWORD, which is not set here" in lines) == (target is RABBITMQ)
    assert lines[-1] == f"whether all of it is there: gristmill doctor --target {target['name']}"
    text = (workplace.folder / "gristmill.toml").read_text()
    values = [f"{key} = {json.dumps(target[key])}" for key in ("queue", "store", "region", "endpoint") if target[key]]
    assert text.splitlines() == [f"[targets.{target['name']}]", *values]

    shown = target["queue"].replace("${BROKER_PASSWORD}", "***")
    listed = gristmill(workplace, "target", "list").stdout.splitlines()
    assert listed[1].split() == [target["name"], shown, target["store"]]
    # A command that uses it says so: nobody serves these queues here, and nothing is asked of AWS.
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    unknown = gristmill(workplace, "jobs", "--target", "gristmill-def", **environment, BROKER_PASSWORD="x")
    assert f"has: {target['name']}" in unknown.stderr


def test_only_its_own_lines_of_a_file_change_and_only_when_asked(workplace):
    path = workplace.folder / "gristmill.toml"
    before = '# Ours.\n[targets.office] # old\nqueue = "sqlite:queues"\nstore = "store"\n\n# The end.\n'
    path.write_text(before)
    path.chmod(0o640)
    assert gristmill(workplace, "target", "import", "prod", given=outputs(SQS)).returncode == 0
    added = path.read_text()
    assert added.startswith(before) and added.removeprefix(before).startswith("\n[targets.prod]\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640

    again = gristmill(workplace, "target", "import", "prod", given=outputs(SQS))
    assert again.returncode == 0 and "is in" in again.stdout and path.read_text() == added

    other = outputs({**SQS, "store": "s3://another"})
    refused = gristmill(workplace, "target", "import", "prod", given=other)
    assert refused.returncode == 1 and path.read_text() == added
    assert refused.stderr == (
        f"gristmill: {path} has another target prod: store differs; --replace takes what was given, another NAME keeps "
        "both\n"
    )
    replaced = gristmill(workplace, "target", "import", "prod", "--replace", given=other)
    assert replaced.returncode == 0, replaced.stderr
    assert path.read_text() == added.replace(SQS["store"], "s3://another")


def test_the_file_that_is_named_is_written_and_a_link_stays_a_link(workplace):
    (workplace.folder / "shared").mkdir()
    link = workplace.folder / "link.toml"
    link.symlink_to("shared/targets.toml")
    (workplace.folder / "shared/targets.toml").write_text("")
    (workplace.folder / "given.json").write_text(outputs(SQS))
    ended = gristmill(workplace, "target", "import", "--from", "given.json", GRISTMILL_CONFIG=str(link))
    assert ended.returncode == 0, ended.stderr
    assert link.is_symlink() and "gristmill-dev" in (workplace.folder / "shared/targets.toml").read_text()
    assert not (workplace.folder / "gristmill.toml").exists()
    assert sorted(os.listdir(workplace.folder / "shared")) == ["targets.toml"], "nothing is left beside it"


def test_a_new_file_that_hides_another_says_so(workplace):
    (workplace.folder / "gristmill.toml").write_text('[targets.a]\nstore = "store"\n')
    below = workplace.folder / "below"
    below.mkdir()
    ended = subprocess.run(
        [workplace.executable, "target", "import"],
        cwd=below,
        env=workplace.environment,
        input=outputs(SQS),
        capture_output=True,
        text=True,
    )
    assert f"from now on it counts here, and not {workplace.folder / 'gristmill.toml'} any more" in ended.stdout


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "read standard input: nothing was given"),
        ("target = {\n", "it is not JSON"),
        ("{}", "there are no outputs: run `terraform apply`"),
        (json.dumps({"bucket": {"value": "b"}}), 'there is no output "target" (there are: bucket)'),
        (outputs(SQS).replace("false", "true"), 'output "target" is marked as sensitive'),
        (outputs({**SQS, "queues": "sqs://a"}), 'target.queues: unknown key, did you mean "queue"?'),
        (outputs({**SQS, "queue": "amqps://u:s3cr3t@host"}), "target.queue holds a password"),
        (outputs({**SQS, "queue": None}), "target.queue is missing"),
        (outputs({**SQS, "name": "local"}), '"local" is no name of a target'),
    ],
)
def test_what_is_no_target_changes_nothing(workplace, given, expected):
    ended = gristmill(workplace, "target", "import", given=given)
    assert ended.returncode == 1 and expected in ended.stderr, ended.stderr
    assert len(ended.stderr.splitlines()) == 1 and "s3cr3t" not in ended.stderr
    assert not (workplace.folder / "gristmill.toml").exists()
