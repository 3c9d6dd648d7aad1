"""Structure of the code: no two files that need each other."""

import ast
import os
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import tomllib

from harness import ROOT

CRATES = sorted(path.parent for path in (ROOT / "services").glob("*/src"))
ROLES = {"partitioner", "worker", "reducer"}
# What only a caller of the engine does: it prints, has exit statuses and reads variables.
CALLERS_ALONE = r"\be?print(?:ln)?!|process::exit|ExitCode|\benv::vars?(?:_os)?\("
# What a pure state machine does not: it waits, reads files or clocks, logs, or draws numbers. A moment is a value.
IMPURE = r"\btokio::(?!time::Instant)|\bstd::fs\b|\bnow\(\)|\btracing::|\brand::|\basync fn\b|\.await\b"
# What only callers name, as each knows its own commands and their flags: in texts, a `Remedy` stands for them.
COMMANDS = r"\bgristmill (?!import\b)[a-z]|(?<![\w-])--[a-z]"
PACKAGE = ROOT / "services/python/package/gristmill"
PAGES = ROOT / "services/portal/web/src"
PATH = re.compile(r"\b(crate|super(?:::super)*)((?:::\w+)+)")


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


def test_engine_leaves_the_terminal_and_the_environment_to_its_callers():
    assert not occurrences(CALLERS_ALONE, (ROOT / "services/engine/src").rglob("*.rs"))
    assert occurrences(CALLERS_ALONE, (ROOT / "services/cli/src").glob("*.rs"))


def test_only_callers_name_commands():
    """The engine names no flag either."""
    services = ROOT / "services"
    assert not occurrences(COMMANDS, (services / "engine/src").rglob("*.rs"))
    for crate in (*ROLES, "storage"):
        assert not occurrences(r"\bgristmill [a-z]", (services / crate / "src").rglob("*.rs"))
    assert occurrences(COMMANDS, [services / "cli/src/remedies.rs"])


def test_decisions_are_pure():
    worker, reducer = ROOT / "services/worker/src", ROOT / "services/reducer/src"
    files = [worker / "scheduler.rs", worker / "node/allocations.rs", *(worker / "scheduler").glob("*.rs")]
    files += [
        reducer / f"{name}.rs"
        for name in ("tally", "nodes", "judge", "thresholds", "stalls", "speculation", "schedule", "worker_liveness")
    ]
    assert not occurrences(IMPURE, files)
    assert occurrences(IMPURE, [worker / "agent.rs"])


@pytest.mark.parametrize("role", sorted(ROLES))
def test_no_role_depends_on_another(role):
    manifest = tomllib.loads((ROOT / f"services/{role}/Cargo.toml").read_text())
    assert manifest["dependencies"].keys() & ROLES == set()


def test_paths_of_the_architecture_page_exist():
    text = (ROOT / "services/README.md").read_text().partition("## To change X, open Y\n")[2]
    folders = [ROOT, ROOT / "services", *CRATES, *(crate / "src" for crate in CRATES), PACKAGE, PAGES]
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows
    missing = []
    for row in rows:
        near = list(folders)
        for path in re.findall(r"`([\w./]+(?:\.(?:rs|py|ts|md|json)|/))`", row):
            found = next((folder / path for folder in near if (folder / path).exists()), None)
            if found is None:
                missing.append(path)
            else:
                # Further names of a row are often those of files beside the last one, or below it.
                near += [found.parent, found.parent.parent, found.with_suffix("")]
    assert not missing


def occurrences(pattern, files):
    """Returns the places where the code of these files, without comments and tests, matches."""
    places = []
    for file in files:
        if "tests" in file.parts or "tests" in file.stem:
            continue
        text = re.sub(r"//.*", "", code(file))
        places += [f"{file.relative_to(ROOT)}: {match.group()}" for match in re.finditer(pattern, text)]
    return places


def code(file):
    """Returns the text of a file without its module of tests."""
    return re.sub(r"#\[cfg\(test\)\]\n(pub(\(.*?\))? )?mod \w+ \{.*", "", file.read_text(), flags=re.DOTALL)


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
        text = re.sub(r"//.*", "", code(file))
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
