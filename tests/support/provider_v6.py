"""Version 6 of Terraform's AWS provider, which the tests cannot run: its names, and the names that infra/ uses.

`provider_v6.txt` has a line for each type that infra/ uses, with all names of its arguments, blocks and attributes;
names of nested blocks stand beside those of the type. npm's `@cdktf/provider-aws` is generated from the provider's
schema: `python tests/support/provider_v6.py` reads it (a download of 37 MB) and writes that file.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

TABLE = Path(__file__).with_suffix(".txt")
PACKAGE = "@cdktf/provider-aws@21.22.1"
META = {"count", "for_each", "depends_on", "provider", "lifecycle", "dynamic", "content", "iterator", "labels"}
# A string, perhaps with an expression that contains strings.
STRING = r'"(?:\\.|\$\{(?:[^{}"]|"(?:\\.|[^"\\])*")*\}|[^"\\])*"'
# A string, a comment, the beginning of a block, the beginning of an argument, or a bracket.
NAME = r'(?:^ *|(?<=\{ ))([a-z]\w*)(?: "(\w+)")?(?: "\w+")? *(\{|=(?!=))'
TOKEN = re.compile(rf"{STRING}|#[^\n]*|{NAME}|[][(){{}}]", re.MULTILINE)
REFERENCE = re.compile(r"\b(data\.)?(aws_\w+)\.\w+(?:\[[^]]*\])?\.([a-z]\w*)")


def used(text: str) -> dict[str, set[str]]:
    """Returns the names that Terraform text uses of each type; data sources are called `data.TYPE`."""
    names: dict[str, set[str]] = defaultdict(set)
    for data, type_name, attribute in REFERENCE.findall(text):
        names[data + type_name].add(attribute)
    # What encloses the place: the type for blocks of a resource, else nothing.
    within: list[str] = []
    for match in TOKEN.finditer(text):
        name, label, opens = match.groups()
        enclosing = within[-1] if within else ""
        if name and enclosing and name not in META:
            names[enclosing].add(name)
        if name == "dynamic" and enclosing:
            names[enclosing].add(label)
        if opens == "{":
            begins = {"resource": label, "data": f"data.{label}"}.get(name, "") if not within else enclosing
            within.append("" if name == "lifecycle" else begins)
        elif match[0] in "[({":
            within.append("")
        elif match[0] in "])}":
            within.pop()
    return {type_name: found for type_name, found in names.items() if "aws_" in type_name}


def table() -> dict[str, set[str]]:
    """Returns the names of version 6 by type."""
    lines = TABLE.read_text().splitlines()
    return {type_name: set(names.split()) for type_name, _, names in (line.partition(": ") for line in lines)}


def _names(declarations: str) -> set[str]:
    written = re.findall(r"Docs at Terraform Registry: \{@link \S+#(\w+) ", declarations)
    read = re.findall(r"^    get (\w+)\(\)", declarations, re.MULTILINE)
    return {*written, *(re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in read)}


def _update(types: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        lines = []
        with tarfile.open(archive) as package:
            for type_name in sorted(types):
                name = type_name.removeprefix("data.").removeprefix("aws_")
                folder_name = f"data-aws-{name}" if type_name.startswith("data.") else name
                path = f"package/lib/{folder_name.replace('_', '-')}/index.d.ts"
                lines.append(f"{type_name}: {' '.join(sorted(_names(package.extractfile(path).read().decode())))}\n")
    TABLE.write_text("".join(lines))


if __name__ == "__main__":
    infra = Path(__file__).parents[2] / "infra"
    _update({type_name for file in infra.rglob("*.tf") for type_name in used(file.read_text())})
