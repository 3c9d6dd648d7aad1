"""`gristmill target import`: turns Terraform outputs into a target for other commands."""

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
    """Returns `terraform output -json` of an environment, with other outputs too."""
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
def test_imported_target_is_listed_and_usable(workplace, target, shape):
    ended = gristmill(workplace, "target", "import", given=shape(target))
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == f"wrote target {target['name']} to {workplace.folder / 'gristmill.toml'}"
    assert ("it uses the environment variable BROKER_PASSWORD, which is not set" in lines) == (target is RABBITMQ)
    assert lines[-1] == f"check it with: gristmill doctor --target {target['name']}"
    text = (workplace.folder / "gristmill.toml").read_text()
    values = [f"{key} = {json.dumps(target[key])}" for key in ("queue", "store", "region", "endpoint") if target[key]]
    assert text.splitlines() == [f"[targets.{target['name']}]", *values]

    shown = target["queue"].replace("${BROKER_PASSWORD}", "***")
    listed = gristmill(workplace, "target", "list").stdout.splitlines()
    assert listed[1].split() == [target["name"], shown, target["store"]]
    # The error about a wrong name lists the target; no request goes to AWS.
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    unknown = gristmill(workplace, "jobs", "--target", "gristmill-def", **environment, BROKER_PASSWORD="x")
    assert f"has: {target['name']}" in unknown.stderr


def test_import_changes_only_its_target_and_only_with_replace(workplace):
    path = workplace.folder / "gristmill.toml"
    before = '# Ours.\n[targets.office] # old\nqueue = "sqlite:queues"\nstore = "store"\n\n# The end.\n'
    path.write_text(before)
    path.chmod(0o640)
    assert gristmill(workplace, "target", "import", "prod", given=outputs(SQS)).returncode == 0
    added = path.read_text()
    assert added.startswith(before) and added.removeprefix(before).startswith("\n[targets.prod]\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640

    again = gristmill(workplace, "target", "import", "prod", given=outputs(SQS))
    assert again.returncode == 0 and "is already in" in again.stdout and path.read_text() == added

    other = outputs({**SQS, "store": "s3://another"})
    refused = gristmill(workplace, "target", "import", "prod", given=other)
    assert refused.returncode == 1 and path.read_text() == added
    assert refused.stderr == (
        f"gristmill: {path} has another target prod: store differs; --replace replaces it, another NAME keeps both\n"
    )
    replaced = gristmill(workplace, "target", "import", "prod", "--replace", given=other)
    assert replaced.returncode == 0, replaced.stderr
    assert path.read_text() == added.replace(SQS["store"], "s3://another")


def test_import_writes_the_named_file_and_keeps_links(workplace):
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
