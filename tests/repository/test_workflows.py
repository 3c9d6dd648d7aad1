"""The workflows of GitHub Actions: valid, pinned, and with few permissions."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from harness import ROOT, python_with

FOLDER = ROOT / ".github/workflows"
FORMS = ROOT / ".github/ISSUE_TEMPLATE"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
EXAMPLES = [ROOT / "examples/schedulers/github-actions.yml"]


def load(file):
    return YAML(typ="safe").load(file)


def steps(file):
    return [step for job in load(file)["jobs"].values() for step in job.get("steps", [])]


def test_workflows_and_issue_forms_are_valid():
    for schema, files in (
        ("vendor.github-workflows", [*WORKFLOWS, *EXAMPLES]),
        ("vendor.dependabot", [ROOT / ".github/dependabot.yml"]),
        ("vendor.github-issue-forms", [FORMS / "bug.yml", FORMS / "idea.yml"]),
    ):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
        checked = subprocess.run(command, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout


def test_workflows_are_not_careless():
    """zizmor knows the usual ways to take over a workflow: injected expressions, kept credentials, moving tags."""
    zizmor = Path(python_with(ROOT / "tests/requirements-zizmor.txt")).parent / "zizmor"
    command = [
        zizmor,
        "--offline",
        "--no-progress",
        "--config",
        ROOT / ".github/zizmor.yml",
        ROOT / ".github",
        *EXAMPLES,
    ]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("file", [*WORKFLOWS, *EXAMPLES], ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit_with_their_version(file):
    used = re.findall(r"^ *(?:- )?uses: (.*)$", file.read_text(), re.MULTILINE)
    assert used
    for line in used:
        assert line.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+(, .*)?", line), line


def test_one_commit_for_each_version():
    texts = "".join(file.read_text() for file in [*WORKFLOWS, *EXAMPLES])
    pins = set(re.findall(r"uses: ([\w-]+/[\w-]+)\S*@(\w+) # (v[\d.]+)", texts))
    assert len(pins) == len({action for action, _, _ in pins}) > 5


# The jobs that may write, and what.
WRITES = {"push": {"packages", "id-token", "attestations"}, "publish": {"contents", "id-token", "attestations"}}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_each_job_names_its_permissions(file):
    workflow = load(file)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        writes = {right for right, level in job["permissions"].items() if level == "write"}
        assert writes == WRITES.get(name, set()), name
        assert not writes or job["environment"] == "release", f"{name}: its environment can require an approval"


@pytest.mark.parametrize("file", [*WORKFLOWS, *EXAMPLES], ids=lambda file: file.stem)
def test_shell_of_steps_is_valid_and_without_expressions(file):
    """Expressions are replaced before the shell reads its text, so a secret or a name of a branch would be code."""
    for step in steps(file):
        script = step.get("run", "")
        assert "${{" not in script, script
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        for called in re.findall(r"(?:scripts|\.ci|examples)/[\w/-]+", script):
            assert (ROOT / called).exists(), called


def test_release_runs_every_step_of_its_script():
    usage = subprocess.run([ROOT / "scripts/release", "--help"], capture_output=True, text=True, check=True).stdout
    offered = re.findall(r"^  (\w+) {2,}", usage, re.MULTILINE)
    scripts = "\n".join(step.get("run", "") for step in steps(FOLDER / "release.yml"))
    assert re.findall(r"scripts/release (\w+)", scripts) == offered
    # A step sees only the secrets that it needs.
    for step in steps(FOLDER / "release.yml"):
        secret = [name for name, value in step.get("env", {}).items() if "secrets." in str(value)]
        assert not secret or re.search(r"docker login|release (sign|publish)", step["run"]), step
