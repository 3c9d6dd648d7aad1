"""The Debian package and the tarball of scripts/package, as installed by a user.

The wheel has tests of its own: test_wheel.py.
"""

import gzip
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import ROOT, Workplace
from packages import Deb, folder_of, only, run

in_one_process = pytest.mark.xdist_group("packages")
"""Each process of pytest would unpack and install the packages for itself."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tarball, unpacked into a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("un packed")
    run("tar", "-xf", only("*.tar.gz"), "-C", folder)
    (top,) = folder.iterdir()
    return top


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A system with only the Debian package, which is purged at the end."""
    package = Deb(tmp_path_factory.mktemp("system"))
    yield package.folder
    package.remove()


@pytest.fixture(scope="module", params=["tarball", "deb"])
def prefix(request: pytest.FixtureRequest) -> Path:
    """The folder with `bin`, `lib` and `share`."""
    if request.param == "tarball":
        return request.getfixturevalue("unpacked")
    return request.getfixturevalue("installed") / "usr"


def test_checksums_cover_every_package():
    packages = folder_of("GRISTMILL_PACKAGES")
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=packages)
    listed = {line.split()[1] for line in (packages / "SHA256SUMS").read_text().splitlines()}
    assert listed | {"SHA256SUMS"} == {file.name for file in packages.iterdir()}
    assert {Path(name).suffix for name in listed} == {".whl", ".deb", ".gz"}


def test_second_build_produces_the_same_bytes():
    """The second build ran in another time zone, with another umask."""
    first, second = folder_of("GRISTMILL_PACKAGES"), folder_of("GRISTMILL_PACKAGES_AGAIN")
    assert first != second
    assert (first / "SHA256SUMS").read_text() == (second / "SHA256SUMS").read_text()


@in_one_process
def test_installed_command_runs_a_job(prefix, tmp_path):
    workplace = Workplace(tmp_path, prefix / "bin/gristmill", Path(sys.executable))
    workplace.data(3)
    script = "import gristmill\ndef run(files): return [gristmill.__file__] * len(files)"
    ended = workplace.job(script).run()
    assert ended.lines == [str(prefix / "lib/gristmill/python/gristmill/__init__.py")] * 3
    version = run(prefix / "bin/gristmill", "--version").split()[1]
    assert f'__version__ = "{version}"' in (prefix / "lib/gristmill/python/gristmill/__init__.py").read_text()
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


@in_one_process
def test_packages_contain_the_licences(unpacked, installed):
    doc = unpacked / "share/doc/gristmill"
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        assert (doc / name).read_text() == (ROOT / name).read_text()
    copyright_file = (installed / "usr/share/doc/gristmill/copyright").read_text()
    words = (ROOT / "LICENSE-MIT").read_text().split()
    assert " ".join(words) in " ".join(word for word in copyright_file.split() if word != ".")
    notices = (doc / "THIRD-PARTY-NOTICES").read_text()
    assert gzip.decompress((installed / "usr/share/doc/gristmill/THIRD-PARTY-NOTICES.gz").read_bytes()) == (
        notices.encode()
    )


@in_one_process
def test_every_crate_in_the_executable_has_a_notice(unpacked):
    tree = ["cargo", "tree", "--locked", "--offline", "--edges=normal,no-proc-macro", "--prefix=none", "--no-dedupe"]
    crates = set()
    for package in ("gristmill", "gristmill-python"):
        lines = run(*tree, "--package", package, "--format={p}", cwd=ROOT).splitlines()
        # Workspace crates have a path after the version.
        crates |= {line.replace(" v", " ").replace(" (*)", "") for line in lines if " (/" not in line and line}
    assert len(crates) > 300
    notices = (unpacked / "share/doc/gristmill/THIRD-PARTY-NOTICES").read_text()
    used_by = {name for line in re.findall(r"^Used by: (.*)$", notices, re.MULTILINE) for name in line.split(", ")}
    assert crates <= used_by, f"without a notice: {sorted(crates - used_by)}"


def test_lintian_finds_nothing():
    """infra/packaging/debian/lintian-overrides has the exceptions, each with its reason."""
    # saphyr-parser, a port of libyaml to Rust, has the messages of libyaml. Whether Lintian sees them there depends on
    # where the linker puts them, so an override would be unused at times, which is an error too.
    not_told = ("--suppress-tags", "embedded-library")
    told = run("lintian", "--allow-root", "--fail-on=error,warning,info", *not_told, only("*.deb"))
    assert told == ""


def test_deb_requires_the_glibc_of_the_wheel():
    depends = run("dpkg-deb", "--field", only("*.deb"), "Depends")
    major, minor = re.search(r"manylinux_(\d+)_(\d+)_", only("*.whl").name).groups()
    assert f"libc6 (>= {major}.{minor})" in depends
    for file in ("lib/gristmill/gristmill", "lib/gristmill/python/gristmill/_native.abi3.so"):
        assert f"./usr/{file}\n" in run("dpkg-deb", "--contents", only("*.deb"))


@in_one_process
def test_services_are_installed_and_not_started(installed, tmp_path):
    assert "\ngristmill:" in "\n" + (installed / "etc/passwd").read_text()
    assert (installed / "etc/gristmill/environment").stat().st_mode & 0o777 == 0o600
    assert not list(installed.rglob("*.wants"))
    for role in ("worker", "reducer", "portal"):
        unit = (installed / f"usr/lib/systemd/system/gristmill-{role}.service").read_text()
        assert f"ExecStart=/usr/bin/gristmill {role} " in unit and "User=gristmill" in unit
        assert "GRISTMILL_HOME=/var/cache/gristmill" in unit and "CacheDirectory=gristmill" in unit
        # The check looks for the command on this machine.
        (tmp_path / f"gristmill-{role}.service").write_text(unit.replace("/usr/bin", f"{installed}/usr/bin"))
    said = run("systemd-analyze", "verify", "--man=no", *tmp_path.glob("*.service"))
    assert said == ""
    for role, exposure in (("worker", 25), ("reducer", 20), ("portal", 20)):
        service = f"gristmill-{role}.service"
        run("systemd-analyze", "security", "--offline=true", f"--root={installed}", f"--threshold={exposure}", service)


@in_one_process
def test_every_command_has_a_manual_page(unpacked):
    """Lintian checks how the pages render."""
    listed = run(unpacked / "bin/gristmill", "--help").partition("\nCommands:\n")[2].partition("\n\n")[0]
    commands = set(re.findall(r"^  ([a-z-]+)", listed, re.MULTILINE)) - {"help"}
    pages = {file.name.removesuffix(".1.gz"): file for file in (unpacked / "share/man/man1").iterdir()}
    assert {"gristmill", *(f"gristmill-{command}" for command in commands)} <= pages.keys()
    assert "--idle-exit" in re.sub(".\b", "", run("mandoc", "-T", "utf8", pages["gristmill-worker"]))


COMPLETE_IN_BASH = """
. "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
function=$(complete -p gristmill | sed -E 's/.*-F ([^ ]+) .*/\\1/')
"$function" gristmill "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""

COMPLETE_IN_ZSH = """
compdef() { :; }
_describe() { print -l -- ${(P)${@[-1]}}; }
words=(${@[2,-1]}) CURRENT=$#words
. "$1"
_clap_dynamic_completer_gristmill
"""


@in_one_process
def test_completions_work_in_every_shell(unpacked, tmp_path):
    bash = unpacked / "share/bash-completion/completions/gristmill"
    fish = unpacked / "share/fish/vendor_completions.d/gristmill.fish"
    zsh = unpacked / "share/zsh/site-functions/_gristmill"
    job_id = "digits-20261121-033347-0888"
    (tmp_path / "jobs" / job_id).mkdir(parents=True)
    path = f"{unpacked / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GRISTMILL_HOME": str(tmp_path)}
    for typed, expected in {
        "gristmill dea": "dead-letters",
        "gristmill worker --idle": "--idle-exit",
        "gristmill status dig": job_id,
        "gristmill run --set run_max": "run_max_try=",
    }.items():
        told = run("bash", "--norc", "-c", COMPLETE_IN_BASH, "bash", bash, *typed.split(), env=environment)
        assert told.split() == [expected]
        told = run("fish", "--no-config", "-c", f"source '{fish}'; complete --do-complete '{typed}'", env=environment)
        assert told.split("\t")[0].strip() == expected
        told = run("zsh", "-f", "-c", COMPLETE_IN_ZSH, "zsh", zsh, *typed.split(), env=environment)
        assert told.split(":")[0].strip() == expected
