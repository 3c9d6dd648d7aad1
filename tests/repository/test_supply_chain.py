"""The origin of the code, the layers of the crates, and the tests that SECURITY.md and GUARANTEES.md name."""

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest
import tomllib

from harness import ROOT, write_wheel

NAME = re.compile(r"`([a-z0-9_-]+)`")
NAME_OF_CRATE = re.compile(r"`([a-z_/]+)`")
# `file::test`, with the file relative to services/ or the repository, one of several in a cell.
NAMED_TEST = re.compile(r"`([A-Za-z0-9_./-]+\.(?:rs|py))::([a-z0-9_]+)`")


def manifests() -> list[dict]:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    return [tomllib.loads((ROOT / member / "Cargo.toml").read_text()) for member in workspace["members"]]


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True, text=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def section(document: str, title: str) -> str:
    text = (ROOT / document).read_text()
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(text: str) -> list[list[str]]:
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_every_dependency_of_the_workspace_is_used():
    used = set()
    for manifest in manifests():
        for part in (manifest, *manifest.get("target", {}).values()):
            used.update(*(part.get(f"{kind}dependencies", {}) for kind in ("", "dev-", "build-")))
    assert tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"].keys() <= used


def test_table_of_crates_names_the_dependencies_of_each():
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    ours = {Path(member).name if member.startswith("services/") else member: member for member in members}
    head = (ROOT / "services/README.md").read_text().partition("\n## ")[0]
    rows = {NAME_OF_CRATE.fullmatch(row[0])[1]: row[2] for row in table(head)}
    assert set(rows) == set(ours)
    for name, cell in rows.items():
        declared = tomllib.loads((ROOT / ours[name] / "Cargo.toml").read_text())["dependencies"]
        assert set(NAME.findall(cell)) == set(declared) & set(ours), name
        assert NAME.search(cell) or cell == "nothing", name


@pytest.mark.parametrize(
    ("document", "title"),
    [("SECURITY.md", "What a hostile input can do"), ("services/GUARANTEES.md", "What is guaranteed")],
)
def test_every_row_of_a_promise_names_tests_that_exist(document, title):
    rows = table(section(document, title))
    assert len(rows) > 10
    for row in rows:
        assert len(row) == 3 and all(row) and NAMED_TEST.search(row[2]), f"no test: {row}"
    for file, test in NAMED_TEST.findall((ROOT / document).read_text()):
        path = next((place for place in (ROOT / file, ROOT / "services" / file) if place.exists()), None)
        assert path is not None, f"{document} names {file}, which is not there"
        definition = f"def {test}(" if path.suffix == ".py" else f"fn {test}("
        assert definition in path.read_text(), f"{document} names {test}, which is not in {file}"


def test_python_packages_are_pinned():
    """Requires `name==version`, perhaps with a marker, so that later builds use the same packages."""
    files = tracked("*requirements*.txt")
    assert len(files) > 3
    pinned = re.compile(r"[A-Za-z0-9._-]+(\[[a-z0-9,-]+\])?==[0-9][A-Za-z0-9.+-]*( *;.*)?( *--hash=\S+)*( \\)?$")
    for file in files:
        for line in file.read_text().splitlines():
            line = line.split(" #")[0].strip()
            if line and not line.startswith(("#", "-r ", "--hash=")):
                assert pinned.match(line), f"{file.relative_to(ROOT)}: {line} is not pinned"


def test_packages_of_images_and_wheels_have_hashes():
    """The wheel itself needs none: the same build made it, and pip looks nowhere else."""
    texts = [file.read_text().replace("\\\n", " ") for file in (ROOT / "infra/images").glob("*ockerfile")]
    installs = [line for text in texts for line in re.findall(r"pip install[^&]*", text)]
    assert len(installs) == 2
    assert all("--require-hashes" in line or "--no-index --no-deps" in line for line in installs)
    for script in ("wheel", "package", "lock"):
        (line,) = re.findall(r".*scripts/python-environment.*", (ROOT / "scripts" / script).read_text())
        assert "--require-hashes" in line, script


@pytest.mark.parametrize("lock", tracked("infra/packaging/*.in"), ids=lambda lock: lock.stem)
def test_lock_has_the_listed_versions(lock):
    """`scripts/lock` writes it; pip rejects an entry without a hash."""
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    locked = lock.with_suffix(".txt").read_text()
    assert "#    scripts/lock\n" in locked
    assert lines and not [line for line in lines if f"{line} \\\n    --hash=sha256:" not in locked]


@pytest.mark.parametrize("second_has_one", [True, False])
def test_package_without_a_hash_is_not_installed(tmp_path, second_has_one):
    lines = []
    for name, has_one in (("first", True), ("second", second_has_one)):
        wheel = write_wheel(tmp_path, name, "")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{wheel} --hash=sha256:{digest}\n" if has_one else f"{wheel}\n")
    (tmp_path / "requirements.txt").write_text("".join(lines))
    ended = subprocess.run(
        [ROOT / "scripts/python-environment", tmp_path / "requirements.txt", "--require-hashes", "--no-index"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode == 0) == second_has_one, ended.stderr
    assert second_has_one or "Hashes are required in --require-hashes mode" in ended.stderr


def test_crates_come_only_from_the_registry():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    sources = {package.get("source", "here") for package in lock["package"]}
    assert sources == {"here", "registry+https://github.com/rust-lang/crates.io-index"}
    assert all("checksum" in package for package in lock["package"] if "source" in package)


def test_repository_contains_no_secrets():
    """Searches for keys in vendors' formats, except those of AWS's documentation."""
    key = re.compile(
        rb"AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY-----|ghp_[A-Za-z0-9]{36}|xox[bp]-[0-9]{10}"
    )
    for file in tracked():
        if file.is_file():
            found = [match for match in key.findall(file.read_bytes()) if not match.endswith(b"EXAMPLE")]
            assert not found, f"{file.relative_to(ROOT)}: {found}"
