"""scripts/deploy and scripts/images, with stand-ins for terraform, docker and the aws command."""

import copy
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from harness import ROOT

REGISTRY = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"
REPOSITORIES = {name: f"{REGISTRY}/gristmill-dev/{name}" for name in ("gristmill", "gristmill-worker")}
TARGET = {
    "name": "gristmill-dev",
    "queue": "sqs://gristmill-dev",
    "store": "s3://gristmill-dev-123456789012/gristmill-dev",
    "region": "eu-central-1",
    "endpoint": None,
}
NEW = {
    "registry": REGISTRY,
    "repositories": REPOSITORIES,
    "target": TARGET,
    "account": {"images": {}},
    "engine": {},
    "commands": [],
}
HEAD = subprocess.run(
    ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.strip()
WORKER, REDUCER = (f"{REPOSITORIES[name]}:0.1.0" for name in ("gristmill-worker", "gristmill"))
BUILT = {"platform": "linux/amd64", "revision": HEAD}


class Deployment:
    """A folder, an account and an engine; commands change the account and the engine."""

    def __init__(self, folder: Path, executable: Path) -> None:
        self.folder = folder
        self.world_file = folder / "world.json"
        self.world = copy.deepcopy(NEW)
        stand_ins = folder / "bin"
        stand_ins.mkdir()
        for name in ("terraform", "docker", "aws"):
            (stand_ins / name).symlink_to(ROOT / "tests/support/deploy_stand_ins.py")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GRISTMILL_", "AWS_"))},
            "PATH": f"{stand_ins}:{os.environ['PATH']}",
            "GRISTMILL": str(executable),
            "GRISTMILL_COMPONENTS": str(folder / "components"),
            "STAND_INS": str(self.world_file),
        }

    def run(self, script: str, *arguments: str, expect: int = 0, answer: str = "", **environment: str):
        """Runs a script in an empty folder, like a user without a target."""
        self.world["commands"] = []
        self.world_file.write_text(json.dumps(self.world))
        ended = subprocess.run(
            [ROOT / "scripts" / script, *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            input=answer,
        )
        self.world = json.loads(self.world_file.read_text())
        assert ended.returncode == expect, ended.stdout + ended.stderr
        return ended

    def deploy(self, *arguments: str, **how):
        return self.run("deploy", *arguments, **how)

    @property
    def commands(self) -> list[str]:
        """Returns the commands of the stand-ins, without commit, date and folder."""
        lines = [re.sub(r"/tmp/\S+/plan", "PLAN", line) for line in self.world["commands"]]
        return [line.partition(" --build-arg")[0] for line in lines]

    def begun(self, *beginnings: str) -> list[str]:
        return [line for line in self.commands if line.startswith(beginnings)]


@pytest.fixture
def deployment(workplace) -> Deployment:
    return Deployment(workplace.folder, workplace.executable)


DEV = ("dev", "--tag", "0.1.0", "--yes")
TERRAFORM = "terraform -chdir=infra/environments/dev"
PLAN = f"{TERRAFORM} plan -input=false -detailed-exitcode -out=PLAN -var image_tag=0.1.0"


def test_one_command_creates_repositories_images_fleet_and_target_and_again_changes_nothing(deployment):
    ended = deployment.deploy(*DEV)
    assert deployment.begun(TERRAFORM, "docker build", "docker push") == [
        f"{TERRAFORM} init -input=false",
        f"{PLAN} -target=module.platform.aws_ecr_repository.image",
        f"{TERRAFORM} show -json PLAN",
        f"{TERRAFORM} apply -input=false PLAN",
        f"{TERRAFORM} output -json repositories",
        *(
            f"docker build --file infra/images/Dockerfile --target {target} --tag {image} --platform linux/amd64"
            for target, image in (("gristmill-worker", WORKER), ("gristmill", REDUCER))
        ),
        f"docker push {WORKER}",
        f"docker push {REDUCER}",
        PLAN,
        f"{TERRAFORM} show -json PLAN",
        f"{TERRAFORM} apply -input=false PLAN",
        f"{TERRAFORM} output -json",
    ]
    assert deployment.world["account"] == {
        "images": {WORKER: BUILT, REDUCER: BUILT},
        "repositories": True,
        "deployed": "0.1.0",
    }
    assert "Account 123456789012." in ended.stderr
    assert "a-password" not in ended.stdout + ended.stderr
    account, target = deployment.world["account"], (deployment.folder / "gristmill.toml").read_text()
    assert target == (
        '[targets.gristmill-dev]\nqueue = "sqs://gristmill-dev"\n'
        'store = "s3://gristmill-dev-123456789012/gristmill-dev"\nregion = "eu-central-1"\n'
    )

    # Another machine, whose engine has no images, checks those of the registry.
    deployment.world["engine"] = {}
    ended = deployment.deploy(*DEV)
    assert deployment.begun("docker build", "docker push", f"{TERRAFORM} apply") == []
    assert deployment.begun("docker pull") == [
        f"docker pull --platform linux/amd64 {image}" for image in (WORKER, REDUCER)
    ]
    assert ended.stderr.count("Nothing to change.") == 2
    assert (deployment.world["account"], (deployment.folder / "gristmill.toml").read_text()) == (account, target)


def test_interrupted_run_can_be_completed(deployment):
    """Interrupts the deployment after each change; the next run continues until its first change."""
    deployment.deploy(*DEV)
    target = deployment.folder / "gristmill.toml"
    expected = deployment.world["account"], target.read_text()
    deployment.world = copy.deepcopy(NEW)
    target.unlink()
    # init, repositories, login, two builds, two pushes, everything else
    for _ in range(8):
        deployment.deploy(*DEV, expect=130, INTERRUPT_AFTER_CHANGE="1")
        assert not target.exists()
    deployment.deploy(*DEV, INTERRUPT_AFTER_CHANGE="1")
    assert (deployment.world["account"], target.read_text()) == expected


@pytest.mark.parametrize(
    ("present", "environment", "message"),
    [
        ({WORKER: {**BUILT, "platform": "linux/arm64"}}, {}, "is for linux/arm64, not for linux/amd64"),
        ({WORKER: {**BUILT, "revision": "another"}}, {}, f"built from another; this is {HEAD}"),
        ({WORKER: BUILT, REDUCER: {**BUILT, "revision": "another"}}, {}, "are not of one commit"),
        ({}, {"TASKS_ARCHITECTURE": "ARM64"}, f"Tasks with {WORKER} run on ARM64, and it is for linux/amd64."),
        ({}, {"TASKS_SUFFIX": "-cuda"}, f"The tasks want {WORKER}-cuda, which is not one of those built here."),
    ],
)
def test_unsuitable_images_are_not_deployed(deployment, present, environment, message):
    deployment.world["account"] = {"images": present, "repositories": True}
    ended = deployment.deploy(*DEV, expect=1, **environment)
    assert message in ended.stderr and "deployed" not in deployment.world["account"]
    assert deployment.world["account"]["images"].items() >= present.items()


def test_registry_error_is_not_a_missing_image(deployment):
    ended = deployment.deploy(*DEV, expect=254, IS_FORBIDDEN="1")
    assert "AccessDeniedException" in ended.stderr and deployment.begun("docker build", "docker push") == []


def test_apply_requires_the_answer_yes(deployment):
    for answer in ("", "y\n", "no\n"):
        ended = deployment.deploy("dev", "--tag", "0.1.0", expect=1, answer=answer)
        assert 'Only "yes" applies it' in ended.stderr and "Nothing was applied. --yes applies" in ended.stderr
        assert deployment.begun(f"{TERRAFORM} apply") == [] and deployment.world["account"] == {"images": {}}
    deployment.deploy("dev", "--tag", "0.1.0", answer="yes\nyes\n")
    assert deployment.world["account"]["deployed"] == "0.1.0"


def test_images_for_gpus_and_arm_are_built_and_pushed_too(deployment):
    deployment.deploy(
        *DEV,
        *("--platform", "linux/arm64", "--", "--cuda", "cuda:12"),
        TASKS_SUFFIX="-cuda",
        TASKS_ARCHITECTURE="ARM64",
    )
    built = {**BUILT, "platform": "linux/arm64"}
    assert deployment.world["account"]["images"] == {WORKER: built, REDUCER: built, f"{WORKER}-cuda": built}


PROD = ("prod", "--tag", "0.1.0", "--yes", "--backend-config", "bucket=states")


def test_target_uses_the_repositories_of_its_platform(deployment):
    """An environment without a module for repositories reads them from the platform's parameter."""
    deployment.deploy(*PROD)
    first, second = deployment.begun("terraform -chdir=infra/environments/prod plan")
    assert first.endswith(" -target=data.aws_ssm_parameter.platform") and "-target" not in second
    assert deployment.world["account"]["images"] == {WORKER: BUILT, REDUCER: BUILT}


def test_platform_is_deployed_without_images(deployment):
    deployment.deploy("platform", "--yes", "--tag", "0.1.0", "--backend-config", "bucket=states")
    terraform = "terraform -chdir=infra/environments/platform"
    assert deployment.begun("terraform", "docker push", "docker build") == [
        f"{terraform} init -input=false -backend-config=bucket=states -reconfigure",
        f"{terraform} plan -input=false -detailed-exitcode -out=PLAN",
        f"{terraform} show -json PLAN",
        f"{terraform} apply -input=false PLAN",
    ]
    assert not (deployment.folder / "gristmill.toml").exists()


def test_dry_run_shows_the_commands_and_runs_none(deployment):
    configuration = ("--backend-config", "bucket=states", "--backend-config", "key=prod")
    ended = deployment.deploy("prod", "--dry-run", "--tag", "0.1.0", *configuration, "--", "--base", "debian:12")
    assert deployment.commands == []
    assert not (deployment.folder / "gristmill.toml").exists()
    shown = [line.removeprefix("+ ") for line in ended.stderr.splitlines() if line.startswith("+ ")]
    programs = [line.split()[0] for line in shown]
    assert programs.count("terraform") == 7 and programs.count("scripts/docker") == 2
    assert all("-chdir=infra/environments/prod" in line for line in shown if line.startswith("terraform"))
    assert shown[0].endswith("init -input=false -backend-config=bucket=states -backend-config=key=prod -reconfigure")
    assert any(line.endswith("--tag 0.1.0 --platform linux/amd64 --base debian:12") for line in shown)


def test_state_of_prod_comes_from_a_file_or_options(deployment):
    ended = deployment.deploy("prod", "--tag", "0.1.0", "--yes", expect=1)
    assert "Write infra/environments/prod/backend.hcl" in ended.stderr and deployment.commands == []
    file = deployment.folder / "states.hcl"
    file.write_text('bucket = "states"\n')
    (deployment.folder / "team-b.tfvars").write_text('name = "team-b"\n')
    prod = ("prod", "--tag", "0.1.0", "--yes")
    deployment.deploy(*prod, "--backend-config", "states.hcl", "--var-file", "team-b.tfvars")
    plans = deployment.begun("terraform -chdir=infra/environments/prod plan")
    assert len(plans) == 2 and all(f" -var-file={deployment.folder}/team-b.tfvars" in plan for plan in plans)
    expected = f"terraform -chdir=infra/environments/prod init -input=false -backend-config={file} -reconfigure"
    assert deployment.begun("terraform")[0] == expected
    own = ROOT / "infra/environments/prod/backend.hcl"
    assert not own.exists(), "a test never writes into the repository over what is there"
    assert subprocess.run(["git", "check-ignore", "-q", own], cwd=ROOT).returncode == 0
    try:
        own.write_text(file.read_text())
        deployment.deploy("prod", "--tag", "0.1.0", "--yes")
    finally:
        own.unlink()
    assert deployment.begun("terraform")[0].endswith("init -input=false -backend-config=backend.hcl -reconfigure")


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        ({"ENGINE": "none"}, (), "No Docker engine answers: start it"),
        ({"HAS_NO_CREDENTIALS": "1"}, (), "The credentials for AWS do not work: sign in"),
        ({}, ("--tag", "team/1"), '"team/1" cannot be a tag here'),
        ({}, ("--tag", "latest"), 'not "latest", which moves'),
    ],
)
def test_missing_prerequisites_fail_before_any_change(deployment, environment, arguments, message):
    ended = deployment.deploy(*DEV, *arguments, expect=1, **environment)
    assert message in ended.stderr and deployment.begun("terraform") == []


def test_wheel_for_another_architecture_is_rejected(deployment):
    wheel = deployment.folder / "gristmill-0.1.0-cp310-abi3-manylinux_2_36_aarch64.whl"
    wheel.touch()
    ended = deployment.run("images", "--platform", "linux/amd64", "--wheel", str(wheel), expect=1)
    assert "does not run on linux/amd64" in ended.stderr and deployment.begun("docker build") == []
