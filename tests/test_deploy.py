"""scripts/deploy, beside stand-ins for terraform, docker and the aws command: what it runs, in order."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REGISTRY = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"
REPOSITORIES = {name: f"{REGISTRY}/gristmill-dev/{name}" for name in ("gristmill", "gristmill-worker")}
TARGET = {
    "name": "gristmill-dev",
    "queue": "sqs://gristmill-dev",
    "store": "s3://gristmill-dev-123456789012/gristmill-dev",
    "region": "eu-central-1",
    "endpoint": None,
}
STAND_IN = """#!/bin/sh
name=$(basename "$0")
case "$name $*" in
    "docker --version"*) echo "Docker version 20.10.24" && exit ;;
esac
echo "$name $*" >>"$RECORDED"
case "$name $*" in
    terraform*"output -json repositories") echo "$REPOSITORIES" ;;
    terraform*"output -json") echo "$OUTPUTS" ;;
    terraform*apply*) exit "${APPLY_STATUS:-0}" ;;
    aws*describe-images*) exit "${IS_PUSHED:-1}" ;;
    aws*get-login-password*) echo a-password ;;
    docker*login*) echo "password: $(cat)" >>"$RECORDED" ;;
    "docker image ls"*) for image; do :; done; echo "$image 100MB" ;;
esac
"""


class Deployment:
    def __init__(self, folder: Path, executable: Path) -> None:
        self.folder = folder
        self.recorded = folder / "recorded"
        stand_ins = folder / "bin"
        stand_ins.mkdir()
        for name in ("terraform", "docker", "aws"):
            (stand_ins / name).write_text(STAND_IN)
            (stand_ins / name).chmod(0o755)
        outputs = {
            "repositories": {"sensitive": False, "type": ["object", {}], "value": REPOSITORIES},
            "target": {"sensitive": False, "type": ["object", {}], "value": TARGET},
        }
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GRISTMILL_")},
            "PATH": f"{stand_ins}:{os.environ['PATH']}",
            "GRISTMILL": str(executable),
            "GRISTMILL_COMPONENTS": str(folder / "components"),
            "RECORDED": str(self.recorded),
            "REPOSITORIES": json.dumps(REPOSITORIES, separators=(",", ":")),
            "OUTPUTS": json.dumps(outputs),
        }

    def deploy(self, *arguments: str, expect: int = 0, **environment: str) -> subprocess.CompletedProcess:
        """Runs it in an empty folder, as somebody does who has no target yet."""
        ended = subprocess.run(
            [ROOT / "scripts/deploy", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert ended.returncode == expect, ended.stdout + ended.stderr
        return ended

    def commands(self) -> list[str]:
        """What the stand-ins were asked, without what changes with the commit and the day."""
        lines = self.recorded.read_text().splitlines() if self.recorded.exists() else []
        return [line if "docker build" not in line else line.partition(" --build-arg")[0] for line in lines]


@pytest.fixture
def deployment(workplace) -> Deployment:
    return Deployment(workplace.folder, workplace.executable)


TERRAFORM = "terraform -chdir=infra/environments/dev"
LOOKS = f"{TERRAFORM} output -json repositories"
FIRST = [
    f"{TERRAFORM} init",
    f"{TERRAFORM} apply -auto-approve -var image_tag=0.1.0 -target=module.cluster.aws_ecr_repository.image",
    LOOKS,
]
LAST = [f"{TERRAFORM} apply -auto-approve -var image_tag=0.1.0", f"{TERRAFORM} output -json"]


def describe(image: str) -> str:
    where = f"--region eu-central-1 --repository-name gristmill-dev/{image}"
    return f"aws ecr describe-images {where} --image-ids imageTag=0.1.0"


def test_one_command_makes_repositories_images_fleet_and_target(deployment):
    ended = deployment.deploy("dev", "--tag", "0.1.0", "--yes")
    commands = deployment.commands()
    assert commands[:4] == [*FIRST, describe("gristmill-worker")]
    assert sorted(commands[4:6]) == [
        "aws ecr get-login-password --region eu-central-1",
        f"docker login --username AWS --password-stdin {REGISTRY}",
    ], "the two ends of a pipe"
    assert commands[6] == "password: a-password"
    images = [f"{REGISTRY}/gristmill-dev/{name}:0.1.0" for name in ("gristmill-worker", "gristmill")]
    built = [command.rpartition("--tag ")[2] for command in commands if command.startswith("docker build")]
    assert built == images
    assert commands[-4:] == [*(f"docker push {image}" for image in images), *LAST]
    for command in commands:
        program, _, rest = command.partition(" ")
        is_shown = any(rest in line for line in ended.stderr.splitlines() if line.startswith("+ "))
        assert is_shown or program == "password:" or rest.startswith(("build ", "image ls", "network ")), command
    assert "a-password" not in ended.stdout + ended.stderr
    assert (deployment.folder / "gristmill.toml").read_text() == (
        '[targets.gristmill-dev]\nqueue = "sqs://gristmill-dev"\n'
        'store = "s3://gristmill-dev-123456789012/gristmill-dev"\nregion = "eu-central-1"\n'
    )


def test_images_that_are_pushed_are_not_built_again(deployment):
    for _ in range(2):
        deployment.recorded.unlink(missing_ok=True)
        deployment.deploy("dev", "--tag", "0.1.0", "--yes", IS_PUSHED="0")
        assert deployment.commands() == [*FIRST, describe("gristmill-worker"), describe("gristmill"), *LAST]


def test_a_dry_run_shows_the_commands_and_runs_none(deployment):
    ended = deployment.deploy("prod", "--dry-run", "--tag", "0.1.0", "--", "--base", "debian:12")
    assert deployment.commands() == []
    assert not (deployment.folder / "gristmill.toml").exists()
    shown = [line.removeprefix("+ ") for line in ended.stderr.splitlines() if line.startswith("+ ")]
    programs = [line.split()[0] for line in shown]
    assert programs.count("terraform") == 5 and "scripts/images" in programs and "scripts/docker" in programs
    assert all("-chdir=infra/environments/prod" in line for line in shown if line.startswith("terraform"))
    assert any(line.endswith("--tag 0.1.0 --base debian:12") for line in shown)


def test_what_fails_stops_it(deployment):
    deployment.deploy("dev", "--tag", "0.1.0", "--yes", expect=3, APPLY_STATUS="3")
    assert deployment.commands() == FIRST[:2]


def test_an_environment_that_is_not_there_is_told(deployment):
    ended = deployment.deploy("staging", expect=1)
    assert ended.stderr == 'There is no environment "staging"; there are: dev prod.\n'
    assert deployment.deploy("dev", "prod", expect=1).stderr.startswith("Usage: scripts/deploy ENVIRONMENT")
