"""Documents of infra/: the scripts that they name exist, and so do the commands of `gristmill` and of the AWS API, with
their options."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import botocore.session

from harness import ROOT, Workplace
from terraform_files import INFRA

# Options of the `aws` command itself, and commands that are no operations of a service.
OF_AWS = {"--query", "--output", "--region"}
NO_OPERATIONS = {("s3", "cp"), ("s3", "rm"), ("logs", "tail")}


PAGES = ("README.md", "RUNBOOKS.md", "COSTS.md", "batch/README.md", "images/README.md", "modules/rabbitmq/README.md")
DOCUMENTS = [INFRA / name for name in PAGES]


def commands(program: str) -> list[list[str]]:
    """Returns the words of each command in lines of their own and in lines of text."""
    text = "\n".join(document.read_text() for document in DOCUMENTS).replace("\\\n", " ")
    found = re.findall(rf"(?:^|`){program} ([^`\n#|>]+)", text, re.MULTILINE)
    return [shlex.split(line.replace("…", "")) for line in found]


def dashed(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def options(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


def check_aws(asked: list[list[str]]) -> None:
    """Checks that these operations of AWS exist, with their options."""
    session = botocore.session.get_session()
    for words in asked:
        model = session.get_service_model(words[0])
        operations = {dashed(name): name for name in model.operation_names}
        operation = operations.get(words[1])
        if words[1] == "wait":
            waiters = session.get_waiter_model(words[0])
            waiter = {dashed(name): name for name in waiters.waiter_names}[words[2]]
            operation = waiters.get_waiter(waiter).operation
        assert operation, words
        members = model.operation_model(operation).input_shape.members
        assert options(words) - OF_AWS <= {f"--{dashed(name)}" for name in members}, words


def test_aws_commands_exist_with_their_options() -> None:
    asked = [words for words in commands("aws") if tuple(words[:2]) not in NO_OPERATIONS]
    assert len(asked) > 15
    check_aws(asked)


def test_scripts_exist() -> None:
    named = set(re.findall(r"(?<![\w/])scripts/[a-z]+(?:-[a-z]+)*", "".join(map(Path.read_text, DOCUMENTS))))
    assert len(named) > 3
    assert [script for script in named if not os.access(ROOT / script, os.X_OK)] == []


def test_gristmill_commands_exist_with_their_options(workplace: Workplace) -> None:
    named: dict[str, set[str]] = {}
    for words in commands("gristmill"):
        named.setdefault(words[0], set()).update(options(words))
    assert {"clean", "dead-letters", "doctor", "retry"} <= named.keys()
    for command, given in named.items():
        told = workplace.command(command, "--help")
        assert told.exit_status == 0 and not [option for option in given if option not in told.stdout], str(told)
