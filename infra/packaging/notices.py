"""Writes THIRD-PARTY-NOTICES: the licences of everything that is compiled into the executable and the extension.

    python3 infra/packaging/notices.py FILE

Asks `cargo metadata` which packages those are, and takes the texts from their sources as cargo has them. Equal texts
stand once, after the names of all who use them. What only helps to build (build scripts, procedural macros, tests) is
not handed out and has no notice here.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("gristmill", "gristmill-python")
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)
SOURCES_OF_OTHERS = ("aws-lc", "zstd", "third_party", "src")
"""Folders of a package that may contain third-party work with its own licence."""

NOT_TEXT = (".rs", ".c", ".h", ".html")

STANDARD_LIBRARY = """\
The Rust standard library is part of every Rust program. Copyright (c) The Rust Project Contributors; licence: MIT OR
Apache-2.0, texts as for the packages below. SQLite, which is part of libsqlite3-sys, is in the public domain."""


def linked_packages():
    """Returns the packages from a registry whose code the distributed files contain."""
    host = re.search(r"host: (\S+)", run("rustc", "-vV"))[1]
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [identity for identity, package in packages.items() if package["name"] in SHIPPED]
    linked = set()
    while waiting:
        identity = waiting.pop()
        is_macro = any("proc-macro" in target["kind"] for target in packages[identity]["targets"])
        if identity in linked or is_macro:
            continue
        linked.add(identity)
        dependencies = nodes[identity]["deps"]
        waiting += [one["pkg"] for one in dependencies if any(kind["kind"] is None for kind in one["dep_kinds"])]
    foreign = [packages[identity] for identity in linked if packages[identity]["source"]]
    return sorted(foreign, key=lambda package: (package["name"], package["version"]))


def run(*command):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def texts_of(package):
    """Returns every licence text of a package, else the standard texts of the licence that it names."""
    folder = Path(package["manifest_path"]).parent
    found = [file for file in folder.iterdir() if LICENCE_FILE.match(file.name)]
    for below in SOURCES_OF_OTHERS:
        found += [file for file in (folder / below).rglob("*") if LICENCE_FILE.match(file.name)]
    files = [file for file in sorted(set(found)) if file.is_file() and file.suffix not in NOT_TEXT]
    # Beside other licence files, COPYING describes a choice, or is the other choice (GPL of zstd).
    chosen = [file for file in files if file.name != "COPYING"] or files
    return [file.read_text(errors="replace") for file in chosen] or standard_texts(package)


def standard_texts(package):
    """Returns standard texts for the few packages that name a licence but contain no text."""
    offered = set(re.split(r"\s+OR\s+|/", package["license"] or ""))
    if "Apache-2.0" in offered:
        return [(ROOT / "LICENSE-APACHE").read_text()]
    if "MIT" in offered:
        authors = ", ".join(package["authors"]) or f"the authors of {package['name']}"
        return [re.sub(r"Copyright .*", f"Copyright (c) {authors}", (ROOT / "LICENSE-MIT").read_text(), count=1)]
    sys.exit(f"{package['name']} {package['version']} has no licence text, and none is known for {package['license']}.")


def notices():
    packages = linked_packages()
    text_of_key, users = {}, defaultdict(list)
    for package in packages:
        for text in texts_of(package):
            key = " ".join(text.split()).lower()
            text_of_key.setdefault(key, text)
            if package not in users[key]:
                users[key].append(package)
    yield "Third-party software in Gristmill"
    yield STANDARD_LIBRARY
    yield "\n".join(f"{package['name']} {package['version']}: {package['license']}" for package in packages)
    for key, used_by in sorted(users.items(), key=lambda item: (-len(item[1]), item[0])):
        names = ", ".join(f"{package['name']} {package['version']}" for package in used_by)
        lines = [line.rstrip() for line in text_of_key[key].expandtabs().strip("\n").splitlines()]
        yield f"{'=' * 80}\nUsed by: {names}\n{'-' * 80}\n" + "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text("\n\n".join(notices()) + "\n", encoding="utf-8")
