"""Terraform as it is written (blocks, arguments, references), and as Terraform's own parser evaluates it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hcl2
from tfparse import load_from_path

INFRA = Path(__file__).resolve().parent.parent / "infra"
MODULES = sorted(folder for folder in (INFRA / "modules").iterdir() if any(folder.glob("*.tf")))
ROOTS = sorted(file.parent for part in ("environments", "examples") for file in (INFRA / part).glob("*/main.tf"))

# Arguments and blocks of the language itself.
META_ARGUMENTS = {"count", "for_each", "depends_on", "provider"}
META_BLOCKS = {"lifecycle", "dynamic", "provisioner", "connection", "timeouts"}
REFERENCE = re.compile(
    r"(?<![\w.\"-])(?P<first>var|local|module|data|each|aws_\w+)\.(?P<second>\w+)(?:\[[^\]]*\])?(?:\.(?P<third>\w+))?(?:\[[^\]]*\])?(?:\.(?P<fourth>\w+))?"
)
COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)


@dataclass
class Folder:
    """A root or a module."""

    path: Path
    variables: dict[str, dict[str, Any]] = field(default_factory=dict)
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    local_values: set[str] = field(default_factory=set)
    # ("resource" or "data", type, name) -> its body.
    resources: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    text: str = ""

    @property
    def name(self) -> str:
        return str(self.path.relative_to(INFRA))

    def references(self) -> set[tuple[str, ...]]:
        """Everything that is named anywhere: ("var", NAME), ("aws_sqs_queue", NAME, ATTRIBUTE), …"""
        found = REFERENCE.finditer(self.text)
        return {tuple(part for part in match.groups() if part) for match in found}


def unquoted(name: str) -> str:
    return name.strip('"')


def plain(value: Any) -> Any:
    """Without the quotes and marks of the parser."""
    if isinstance(value, dict):
        return {unquoted(key): plain(inner) for key, inner in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value


def read(path: Path) -> Folder:
    folder = Folder(path)
    for file in sorted(path.glob("*.tf")):
        text = file.read_text()
        folder.text += COMMENT.sub("", text)
        parsed = plain(hcl2.loads(text))
        for block in parsed.get("variable", []):
            folder.variables.update(block)
        for block in parsed.get("output", []):
            folder.outputs.update(block)
        for block in parsed.get("module", []):
            folder.modules.update(block)
        for block in parsed.get("locals", []):
            folder.local_values.update(block)
        for kind in ("resource", "data"):
            for block in parsed.get(kind, []):
                for type_name, named in block.items():
                    for name, body in named.items():
                        folder.resources[kind, type_name, name] = body
    return folder


def blocks(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Nested blocks, those that are made by `dynamic` among them."""
    for name, value in body.items():
        for block in value if isinstance(value, list) else []:
            if name == "dynamic" and isinstance(block, dict):
                for of, dynamic in block.items():
                    for content in dynamic["content"]:
                        yield of, content
            elif isinstance(block, dict):
                yield name, block


def problems(body: dict[str, Any], schema: dict[str, Any], where: str, is_top: bool = True) -> Iterator[str]:
    """What the provider would not take, or misses."""
    used_blocks = {name for name, _ in blocks(body)}
    nested = {name for name in used_blocks if name in schema["blocks"]}
    arguments = body.keys() - nested - {"dynamic"} - (META_ARGUMENTS | META_BLOCKS if is_top else set())
    for name in sorted(arguments - schema["arguments"].keys()):
        yield f"{where}: there is no {name}"
    required = {name for name, kind in schema["arguments"].items() if kind == "required"}
    required |= {name for name, block in schema["blocks"].items() if block["is"] == "required"}
    for name in sorted(required - body.keys() - used_blocks):
        yield f"{where}: {name} is missing"
    for name, block in blocks(body):
        if name in schema["blocks"]:
            yield from problems(block, schema["blocks"][name], f"{where}.{name}", is_top=False)
        elif name not in META_BLOCKS and name not in schema["arguments"]:
            yield f"{where}: there is no block {name}"


def evaluate(folder: Path, main: str) -> dict[str, list[dict[str, Any]]]:
    """What becomes of a root that uses the modules as `./modules/NAME`, as far as it is known before AWS is asked.

    The parser loses track of `dynamic` blocks where one of them is for nobody, and of `for_each` over what is not
    known: give optional arguments a value.
    """
    shutil.copytree(INFRA / "modules", folder / "modules")
    (folder / "main.tf").write_text(main)
    return load_from_path(str(folder))


def found(evaluated: dict[str, list[dict[str, Any]]], kind: str, path_end: str) -> dict[str, Any]:
    """The one block of that kind whose path ends like this."""
    (block,) = [block for block in evaluated[kind] if block["__tfmeta"]["path"].endswith(path_end)]
    return block


def call(module: str, **arguments: Any) -> str:
    """A call of a module, as Terraform reads it."""
    lines = [f"  {name} = {json.dumps(value)}" for name, value in arguments.items()]
    return "\n".join([f'module "{module}" {{', f'  source = "./modules/{module}"', *lines, "}"]) + "\n"


def statements(document: dict[str, Any]) -> list[dict[str, Any]]:
    found = document.get("statement", [])
    return found if isinstance(found, list) else [found]


def policy(document: dict[str, Any]) -> dict[str, Any]:
    """A policy document as IAM reads it."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": statement["sid"],
                "Effect": statement.get("effect", "Allow"),
                "Action": statement["actions"],
                "Resource": statement["resources"],
            }
            for statement in statements(document)
        ],
    }
