"""Terraform files: where they are, and the policies of the module `access` as Terraform's own parser evaluates them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tfparse import load_from_path

from harness import ROOT

INFRA = ROOT / "infra"
MODULES = sorted(folder for folder in (INFRA / "modules").iterdir() if any(folder.glob("*.tf")))
ROOTS = sorted(file.parent for part in ("environments", "examples") for file in (INFRA / part).glob("*/main.tf"))


def text_of(folder: Path) -> str:
    """Returns all Terraform files of a folder."""
    return "".join(file.read_text() for file in sorted(folder.glob("*.tf")))


def evaluate(folder: Path, main: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the resources of a root that uses the modules as `./modules/NAME`, without asking AWS.

    The parser fails at empty `dynamic` blocks and at `for_each` over unknown values: give optional arguments a value.
    """
    shutil.copytree(INFRA / "modules", folder / "modules")
    (folder / "main.tf").write_text(main)
    return load_from_path(str(folder))


def call(module: str, **arguments: Any) -> str:
    """Returns a module call in Terraform's syntax."""
    lines = [f"  {name} = {json.dumps(value)}" for name, value in arguments.items()]
    return "\n".join([f'module "{module}" {{', f'  source = "./modules/{module}"', *lines, "}"]) + "\n"


def policies(evaluated: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Returns the policy of each role from the module `access`, as IAM receives it."""
    statements = evaluated["aws_iam_policy_document"][0]["for_each"]
    return {
        role: {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Sid": statement["sid"],
                    "Effect": "Allow",
                    "Action": statement["actions"],
                    "Resource": statement["resources"],
                    "Condition": {
                        condition["test"]: {condition["variable"]: condition["values"]}
                        for condition in statement["conditions"]
                    },
                }
                for statement in statements[role]
                if statement["resources"]
            ],
        }
        for role in statements
    }
