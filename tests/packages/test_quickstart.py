"""Each package as a user has it: installed, the quickstart run with it, removed. Only the data of the user remains.

`scripts/release check` runs these tests with the packages of a release.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

from harness import ROOT
from packages import Deb, Package, Tarball, Wheel, run


@pytest.mark.parametrize("kind", [Wheel, Tarball, Deb])
def test_quickstart_runs_and_removal_leaves_only_data(kind: type[Package], tmp_path: Path) -> None:
    clone, place, home = tmp_path / "clone", tmp_path / "place", tmp_path / "home"
    shutil.copytree(ROOT / "scripts", clone / "scripts")
    shutil.copytree(ROOT / "examples", clone / "examples", ignore=shutil.ignore_patterns("data", "output"))
    place.mkdir()
    package = kind(place)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRISTMILL")}
    environment = {**kept, "GRISTMILL_HOME": str(home), "GRISTMILL_PYTHON": sys.executable}
    told = run(clone / "scripts/quickstart", place / package.program, env=environment)
    assert "items: 1797 of 1797 succeeded" in told and "items: 150 of 150 succeeded" in told
    outputs = [clone / f"examples/{name}/output/{name}.txt" for name in ("digits", "iris")]
    lines = [len(output.read_text().splitlines()) for output in outputs]
    assert lines == [1797, 150]
    package.remove()
    assert [output.exists() for output in outputs] == [True, True]
    assert len(list((home / "jobs").iterdir())) == 2
