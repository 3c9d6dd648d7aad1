"""scripts/prove-on-aws, with stand-ins for terraform, docker, aws and gristmill."""

import json
import os
import re
import signal
import subprocess

import pytest
from test_deploy import Deployment
from test_runbooks import NO_OPERATIONS, check_aws

from harness import ROOT, wait_until

TABLE = "What has not been run against AWS"


class Proof(Deployment):
    """A deployment whose fleet answers as one that works."""

    def __init__(self, folder, executable):
        super().__init__(folder, executable)
        for name in ("gristmill", "sleep"):
            (folder / "bin" / name).symlink_to(ROOT / "tests/support/deploy_stand_ins.py")
        self.environment |= {
            "GRISTMILL": str(folder / "bin/gristmill"),
            "EXECUTABLE": str(executable),
            "TMPDIR": str(folder / "temporary"),
        }
        (folder / "temporary").mkdir()

    def prove(self, *arguments, **how):
        ended = self.run("prove-on-aws", *arguments, **how)
        assert list((self.folder / "temporary").iterdir()) == []
        assert "a-password" not in ended.stdout + ended.stderr
        return ended

    def is_clean(self):
        """Whether nothing is left of what the script creates."""
        files = list(self.folder.glob("*.tfvars.json"))
        return (self.world["account"], self.world.get("roles", {}), self.world.get("states"), files) == (
            {"images": {}},
            {},
            None,
            [],
        ) and ("gristmill-proof-alarms" not in self.world.get("queues", []))


@pytest.fixture
def proof(workplace):
    return Proof(workplace.folder, workplace.executable)


# Commands of the program `aws` that are no operations of a service, beside those of the documents.
OTHERS = {("ecr", "get-login-password"), ("configure", "get"), ("s3", "mb"), ("s3", "rb")}


def results(ended):
    """Returns the rows of the last table: claims and how they ended."""
    return dict(re.findall(r"^(\w+) +(held|FAILED|not run)\b", ended.stdout, re.MULTILINE))


CLAIMS = ["deploy", "operator", "zero", "job", "spot", "kill", "stop", "update", "alarm", "idle", "destroy"]


# The folders that are created, in this order, and the claims about them.
ENVIRONMENTS = {"dev": (["dev"], CLAIMS), "prod": (["platform", "prod"], CLAIMS)}
ENVIRONMENTS["platform"] = (["platform"], ["deploy", "destroy"])


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_claim_is_shown_and_everything_destroyed(proof, environment):
    roots, claims = ENVIRONMENTS[environment]
    ended = proof.prove("--yes", *([] if environment == "dev" else ["--environment", environment]))
    assert results(ended) == dict.fromkeys(claims, "held")
    assert proof.is_clean()
    assert ended.stderr.index("dollars") < ended.stderr.index(f"scripts/deploy {roots[0]} --yes"), (
        "the costs come first"
    )
    for command, expected in (("apply", roots), ("destroy", roots[::-1])):
        lines = (line for line in proof.begun("terraform") if f" {command} " in line)
        assert list(dict.fromkeys(line.split()[1].rpartition("/")[2] for line in lines)) == expected
    if environment == "platform":
        return
    shown = [line[2:] for line in ended.stderr.splitlines() if line.startswith("+ ")]
    changes = ("aws iam create", "aws iam delete", "aws ecs stop", "aws sqs", "aws sns", "terraform")
    ran = [line for line in proof.begun(*changes) if " show -json " not in line]
    assert len(ran) > 15
    # The command `aws` calls an option so, beside its own `--endpoint-url`.
    words = [line.replace("--notification-endpoint", "--endpoint").split()[1:] for line in proof.begun("aws ")]
    asked = [one for one in words if tuple(one[:2]) not in NO_OPERATIONS | OTHERS]
    assert len({tuple(one[:2]) for one in asked}) > 15
    check_aws(asked)
    assert not [line for line in ran if not any(line in re.sub(r"/tmp/\S+/plan", "PLAN", one) for one in shown)]


@pytest.mark.parametrize(
    ("environment", "failed", "message"),
    [
        ({"FAILS": "batch-get-image"}, "deploy", "InternalError"),
        ({"TWICE": "name=killed"}, "kill", "not those of its files, each once"),
        ({"FAILS": "stop-task"}, "stop", "InternalError"),
        ({"FAILS": "sns subscribe"}, "alarm", "InternalError"),
    ],
    ids=["in the middle of the deployment", "row twice", "beside a job", "with a queue"],
)
def test_failure_ends_in_cleaning_up_and_is_named(proof, environment, failed, message):
    ended = proof.prove("--yes", expect=1, **environment)
    assert results(ended) == {
        claim: "held" if CLAIMS.index(claim) < CLAIMS.index(failed) or claim == "destroy" else "not run"
        for claim in CLAIMS
    } | {failed: "FAILED"}
    assert message in ended.stderr and proof.is_clean()


@pytest.mark.parametrize("fails", ["terraform -chdir=infra/environments/dev destroy", "iam delete-role"])
def test_destroy_that_fails_says_that_something_is_left(proof, fails):
    ended = proof.prove("--yes", expect=1, FAILS=fails)
    assert results(ended)["destroy"] == "FAILED"
    left = "Something may be left, and cost money. Run again: \n    terraform -chdir=infra/environments/dev destroy"
    assert left in ended.stdout and "delete the roles gristmill-proof-operator" in ended.stdout
    assert ("deployed" in proof.world["account"]) == fails.startswith("terraform"), "the rest goes"


def test_interrupt_cleans_up(proof):
    proof.world_file.write_text(json.dumps(proof.world))
    process = subprocess.Popen(
        [ROOT / "scripts/prove-on-aws", "--yes"],
        cwd=proof.folder,
        env={**proof.environment, "HOLD": "name=killed"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: "name=killed" in proof.world_file.read_text(), "the job that is interrupted")
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    proof.world = json.loads(proof.world_file.read_text())
    assert process.returncode == 130 and proof.is_clean(), printed
    assert "kill      FAILED" in printed and "destroy   held" in printed, printed


def test_target_that_cannot_be_destroyed_keeps_its_platform_and_the_states(proof):
    fails = "terraform -chdir=infra/environments/prod destroy"
    ended = proof.prove("--yes", "--environment", "prod", expect=1, FAILS=fails)
    kept = [proof.folder / f"gristmill-proof-{name}.tfvars.json" for name in ("platform", "prod")]
    assert results(ended)["destroy"] == "FAILED" and proof.world["states"] and "platform" in proof.world["account"]
    assert all(path.exists() for path in kept)
    commands = ended.stdout.partition("Run again: ")[2].split("\n")[1:4]
    assert [line.strip().partition(" -var image_tag")[0] for line in commands] == [
        fails,
        f"terraform -chdir=infra/environments/platform destroy -var-file={kept[0]}",
        "aws s3 rb --force s3://gristmill-proof-states-123456789012",
    ]
    again = proof.prove("--yes", "--environment", "prod", expect=1)
    assert "is left from another run" in again.stderr


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_dry_run_shows_every_step_and_runs_none(proof, environment):
    roots, claims = ENVIRONMENTS[environment]
    ended = proof.prove("--dry-run", "--environment", environment)
    assert proof.world["commands"] == [] and ended.stdout == "" and proof.is_clean()
    headings = re.findall(r"^== (\w+): ", ended.stderr, re.MULTILINE)
    assert headings == claims
    assert "dollars" in ended.stderr
    assert re.findall(r"scripts/deploy (\w+) --yes", ended.stderr) == roots
    assert re.findall(r"environments/(\w+) destroy", ended.stderr) == roots[::-1]


def test_account_with_a_fleet_is_refused(proof):
    proof.world["account"]["repositories"] = True
    ended = proof.prove("--yes", expect=1)
    assert "has resources of Gristmill in eu-central-1" in ended.stderr and "arn:aws:s3:::" in ended.stderr
    assert proof.begun("terraform") == [] and proof.world["account"]["repositories"]


@pytest.mark.parametrize(
    ("environment", "answer", "message"),
    [
        ({}, "y\n", "Nothing was created"),
        ({"HAS_NO_CREDENTIALS": "1"}, "", "The credentials for AWS do not work"),
        ({"CALLER": "root"}, "", "The root user cannot assume a role"),
        ({"FAILS": "get-resources"}, "", "InternalError"),
        ({"NETWORK": "None", "ENVIRONMENT": "prod"}, "yes\n", "The account has no default network"),
        ({"ENVIRONMENT": "production"}, "", "there are: dev, prod, platform"),
    ],
)
def test_nothing_is_created_before_everything_is_in_order(proof, environment, answer, message):
    chosen = environment.pop("ENVIRONMENT", "dev")
    ended = proof.run("prove-on-aws", "--environment", chosen, expect=1, answer=answer, **environment)
    assert message in ended.stderr and proof.begun("terraform", "docker", "aws iam create", "aws s3 mb") == []


def test_table_of_the_page_has_the_claims_of_the_script():
    text = (ROOT / "infra/README.md").read_text()
    section = text.partition(f"\n### {TABLE}\n")[2].partition("\n## ")[0]
    script = (ROOT / "scripts/prove-on-aws").read_text()
    claims = re.findall(r'^    "(\w+)\|(.*)"$', script, re.MULTILINE)
    assert [name for name, _ in claims] == CLAIMS
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE)
    assert rows == [(name, claim.replace("\\", "")) for name, claim in claims]
