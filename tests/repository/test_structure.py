"""Structure of the code: files that can be read in one go, and no two files that need each other."""

import ast
import os
import re
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from harness import ROOT

LINES_MAX = 500
CRATES = sorted(path.parent for path in (ROOT / "services").glob("*/src"))
PACKAGE = ROOT / "services/python/package/gristmill"
PAGES = ROOT / "services/portal/web/src"
PATH = re.compile(r"\b(crate|super(?:::super)*)((?:::\w+)+)")


def test_files_are_short():
    command = ["git", "ls-files", "*.rs", "*.py", "*.ts", "*.tsx"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    assert len(files) > 500
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}
    assert not {name: lines for name, lines in lengths.items() if lines > LINES_MAX}


@pytest.mark.parametrize("crate", CRATES, ids=lambda crate: crate.name)
def test_modules_of_a_crate_need_one_another_in_one_direction(crate):
    assert not circle(rust_modules(crate / "src"))


def test_modules_of_python_need_one_another_in_one_direction():
    assert not circle(python_modules(PACKAGE, "gristmill"))


def test_modules_of_the_portal_need_one_another_in_one_direction():
    files = [file for file in PAGES.rglob("*.ts*") if ".test." not in file.name]
    found = {}
    for file in files:
        names = re.findall(r"""from ["'](\.[^"']+)["']""", file.read_text())
        targets = [Path(os.path.normpath(file.parent / name)) for name in names]
        found[file] = {target.with_suffix(ending) for target in targets for ending in (".ts", ".tsx")} & set(files)
    assert len(found) > 20
    assert not circle(found)


def test_circle_is_found(tmp_path):
    (tmp_path / "lib.rs").write_text("mod first;\nmod second;\n")
    (tmp_path / "first.rs").write_text("use crate::second::{Inner, Other};\n")
    (tmp_path / "second.rs").write_text("use super::first::Thing;\n")
    assert set(circle(rust_modules(tmp_path))) == {"first.rs", "second.rs"}
    tests = "#[cfg(test)]\nmod tests { use super::first::A; }\n"
    (tmp_path / "second.rs").write_text("// No need of super::first.\n" + tests)
    assert not circle(rust_modules(tmp_path))


def circle(needs):
    """Returns the names of files that need one another; an empty list if there are none."""
    try:
        tuple(TopologicalSorter(needs).static_order())
    except CycleError as error:
        return [file.name for file in error.args[1]]
    return []


def rust_modules(folder):
    """Returns the files that each file names, without its parents and children: a module and its parts are one."""
    files = {module_of(file, folder): file for file in folder.rglob("*.rs") if "tests" not in file.stem}
    found = {}
    for module, file in files.items():
        text = re.sub(r"#\[cfg\(test\)\]\n(pub(\(.*?\))? )?mod \w+ \{.*", "", file.read_text(), flags=re.DOTALL)
        text = re.sub(r"//.*", "", text)
        needed = set()
        for start, rest in PATH.findall(text):
            base = () if start == "crate" else module[: len(module) - start.count("super")]
            path = (*base, *rest.strip(":").split("::"))
            while path and path not in files:
                path = path[:-1]
            needed.add(path)
        related = {path for path in needed if path == path[: len(path)] and is_related(path, module)}
        found[file] = {files[path] for path in needed - related}
    return found


def module_of(file, folder):
    parts = file.relative_to(folder).with_suffix("").parts
    return () if parts in (("lib",), ("main",)) else parts


def is_related(one, other):
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def python_modules(folder, name):
    """Returns the files that each file imports, at any place, without its own package."""
    files = {}
    for file in folder.rglob("*.py"):
        if "shims" not in file.parts:
            parts = (name, *file.relative_to(folder).with_suffix("").parts)
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    found = {}
    for module, file in files.items():
        names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                parts = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= parts if parts <= files.keys() else {node.module}
        found[file] = {files[one] for one in names if one in files and not module.startswith(one)}
    return found
