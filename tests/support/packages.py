"""The packages of scripts/package, installed and removed as a user does it."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

from harness import ROOT

DPKG = ["--force-depends", "--force-script-chrootless", "--log=/dev/null", "--path-include=/*"]
"""Options for an empty system that ignore this machine's exclusions from packages."""


def run(*command: object, **options: Any) -> str:
    """Returns the output of a command; if the command fails, the test fails with its output."""
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert ended.returncode == 0, f"{command}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def folder_of(variable: str) -> Path:
    if not os.environ.get(variable):
        pytest.fail(f"{variable} must name what scripts/package has made: run scripts/test, or scripts/package before")
    return Path(os.environ[variable])


def only(pattern: str) -> Path:
    (found,) = folder_of("GRISTMILL_PACKAGES").glob(pattern)
    return found


class Package:
    """A folder into which one package is installed."""

    folder: Path
    program: str
    """The command in the folder."""
    kept: tuple[str, ...] = ()
    """What the removal leaves on purpose."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prepare()
        self.before = self.files()
        self.install()

    def prepare(self) -> None:
        """Makes what is there before."""

    def install(self) -> None:
        raise NotImplementedError

    def uninstall(self) -> None:
        raise NotImplementedError

    def remove(self) -> None:
        """Removes the package, of which nothing may remain, and nothing else may go."""
        self.uninstall()
        assert self.files() ^ self.before == set()

    def files(self) -> set[str]:
        """Returns all files and links, without those that remain on purpose."""
        found = {
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
        return {name for name in found if not name.startswith(self.kept)} if self.kept else found


class Tarball(Package):
    """Unpacked over a folder of other programs by the command of COMMANDS.md."""

    program = "bin/gristmill"

    def prepare(self) -> None:
        (self.folder / "bin").mkdir()
        (self.folder / "bin/other").touch()

    def run(self, name: str) -> None:
        page = (ROOT / "services/cli/COMMANDS.md").read_text().partition("\n## Install\n")[2]
        (command,) = re.findall(rf"^sudo ({name} .*?)(?: +#.*)?$", page, re.MULTILINE)
        command = re.sub(r"gristmill-\S+\.tar\.gz", f"'{only('*.tar.gz')}'", command)
        run("bash", "-euc", command.replace("/usr/local", f"'{self.folder}'"))

    def install(self) -> None:
        self.run("tar")

    def uninstall(self) -> None:
        self.run("rm")


class Wheel(Package):
    """Installed by pip into a fresh environment."""

    program = "bin/gristmill"

    def prepare(self) -> None:
        venv.create(self.folder, with_pip=True)

    def pip(self, *arguments: object) -> None:
        pip = [self.folder / "bin/python", "-B", "-m", "pip", "--quiet"]
        run(*pip, *arguments, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})

    def install(self) -> None:
        wheel = os.environ.get("GRISTMILL_WHEEL")
        if not wheel:
            pytest.fail("GRISTMILL_WHEEL must name the wheel: run scripts/test, or scripts/wheel before")
        self.pip("install", "--no-index", "--no-deps", wheel)

    def uninstall(self) -> None:
        self.pip("uninstall", "--yes", "gristmill")


class Deb(Package):
    """Installed by dpkg into an empty system. A purge leaves the user of the services, and dpkg its own files."""

    program = "usr/bin/gristmill"
    kept = ("var/lib/dpkg/", "etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/.pwd.lock")

    def prepare(self) -> None:
        (self.folder / "etc").mkdir()
        for name in ("info", "updates"):
            (self.folder / "var/lib/dpkg" / name).mkdir(parents=True)
        (self.folder / "var/lib/dpkg/status").touch()

    def install(self) -> None:
        run("dpkg", f"--root={self.folder}", *DPKG, "--install", only("*.deb"))

    def uninstall(self) -> None:
        cache = self.folder / "var/cache/gristmill"
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "entry").touch()
        run("dpkg", f"--root={self.folder}", *DPKG, "--purge", "gristmill")
