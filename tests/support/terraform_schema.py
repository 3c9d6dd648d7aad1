"""Writes terraform_schema.json beside this file: the AWS provider's schema of the types that infra/ uses.

    python tests/support/terraform_schema.py

The source is the provider's schema as CDKTF packages it for npm, so that neither Terraform nor its plugin is needed.
Run it after a new resource type, or for another version of the provider.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from terraform_files import INFRA

PACKAGE = "@cdktf/provider-aws"
# The last release: of version 6 of the provider, which the lock files of the environments name.
VERSION = "21.22.1"
FILE = Path(__file__).with_name("terraform_schema.json")

USED = re.compile(r'^(resource|data) "(aws_\w+)"', re.MULTILINE)
ENTRY = re.compile(r"^\s+(\w+): \{\n\s+value: (.*),\n\s+isBlock: (true|false),", re.MULTILINE)
NESTED = re.compile(r"(\w+)ToHclTerraform\b")
PROPERTY = re.compile(r"#(\w+) \w+#\w+\}(?:(?!\*/)[\s\S])*\*/\s*readonly \w+(\??):")
INTERFACE = re.compile(r"^export interface (\w+)(?: extends [\w.]+)? \{\n([\s\S]*?)^\}", re.MULTILINE)
ATTRIBUTE = re.compile(r"this\.get\w+Attribute\('(\w+)'\)|new \w+\(this, \"(\w+)\"")


def used_types() -> list[tuple[str, str]]:
    """Returns the types that infra/ uses: ("resource" or "data", type)."""
    return sorted({found for file in INFRA.rglob("*.tf") for found in USED.findall(file.read_text())})


def read_type(script: str, types: str) -> dict[str, Any]:
    """Returns the schema of a type, from its JavaScript and its declarations."""
    interfaces = {name: dict(PROPERTY.findall(body)) for name, body in INTERFACE.findall(types)}
    top = script[script.index("synthesizeHclAttributes()") :]
    (config,) = [name for name in interfaces if f"{name} extends cdktf.TerraformMetaArguments" in types]
    described = read_struct(top, interfaces[config], script, interfaces)
    main_class = script[script.rindex("extends cdktf.Terraform") :]
    attributes = {name for pair in ATTRIBUTE.findall(main_class) for name in pair if name}
    described["attributes"] = sorted(attributes - described["blocks"].keys())
    return described


def read_struct(body: str, optional: dict[str, str], script: str, interfaces: dict[str, Any]) -> dict[str, Any]:
    arguments: dict[str, str] = {}
    blocks: dict[str, Any] = {}
    for name, value, is_block in ENTRY.findall(body):
        kind = "optional" if optional.get(name, "?") else "required"
        nested = NESTED.search(value)
        struct = nested[1][0].upper() + nested[1][1:] if nested else ""
        if is_block == "false" or struct not in interfaces:
            arguments[name] = kind
            continue
        start = script.index(f"function {nested[1]}ToHclTerraform")
        inner = script[start : script.index("\n}\n", start)]
        blocks[name] = {"is": kind, **read_struct(inner, interfaces[struct], script, interfaces)}
    return {"arguments": arguments, "blocks": blocks}


def problems(given: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    """Yields arguments and blocks that the provider does not know, and required ones that are absent."""
    blocks, arguments = schema["blocks"], schema["arguments"]
    for name, value in given.items():
        if name in blocks:
            for block in value if isinstance(value, list) else [value]:
                yield from problems(block, blocks[name], f"{where}.{name}")
        elif name not in arguments:
            yield f"{where}: there is no {name}"
    required = {name for name, kind in arguments.items() if kind == "required"}
    required |= {name for name, block in blocks.items() if block["is"] == "required"}
    yield from (f"{where}: {name} is missing" for name in sorted(required - given.keys()))


def download(folder: Path) -> Path:
    command = ["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}"]
    packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return folder / packed.stdout.split()[-1]


def generate(archive: Path) -> dict[str, Any]:
    wanted = {}
    for kind, name in used_types():
        folder = name.removeprefix("aws_").replace("_", "-")
        wanted[f"package/lib/{'data-aws-' if kind == 'data' else ''}{folder}"] = (kind, name)
    read: dict[str, str] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.rpartition("/")[0] in wanted and member.name.endswith(("/index.js", "/index.d.ts")):
                read[member.name] = tar.extractfile(member).read().decode()
            if member.name == "package/package.json":
                provider = json.load(tar.extractfile(member))["cdktf"]["provider"]
    schema: dict[str, Any] = {
        "source": f"npm {PACKAGE} {VERSION}",
        "provider": f"{provider['name'].rpartition('.io/')[2]} {provider['version']}",
        "resource": {},
        "data": {},
    }
    for folder, (kind, name) in sorted(wanted.items(), key=lambda item: item[1]):
        schema[kind][name] = read_type(read[f"{folder}/index.js"], read[f"{folder}/index.d.ts"])
    return schema


def write(schema: dict[str, Any]) -> None:
    """Returns JSON with one line for each type, for readable diffs."""
    lines = [f'"source": {json.dumps(schema["source"])},', f'"provider": {json.dumps(schema["provider"])},']
    for kind in ("resource", "data"):
        types = [f" {json.dumps(name)}: {json.dumps(schema[kind][name], sort_keys=True)}" for name in schema[kind]]
        lines.append(f'"{kind}": {{\n' + ",\n".join(types) + "\n}" + ("," if kind == "resource" else ""))
    FILE.write_text("{\n" + "\n".join(lines) + "\n}\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        schema = generate(download(Path(folder)))
    write(schema)
    print(f"{FILE}: {len(schema['resource'])} resources and {len(schema['data'])} data sources of {schema['provider']}")


if __name__ == "__main__":
    main()
