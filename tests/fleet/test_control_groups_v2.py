"""The tests of memory limits once more where control groups have version 2: in a virtual machine."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

import virtual_machine
from harness import ROOT

TESTS = ROOT / "tests/fleet/test_memory_of_jobs.py"


# Ten times longer than on the test machine itself.
@pytest.mark.timeout(1800)
def test_memory_is_limited_in_control_groups_of_version_2(tmp_path: Path, executable: Path) -> None:
    kept = ("GRISTMILL", "HOME", "PATH", "XDG")
    environment = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--reruns=0", "--color=no", str(TESTS)]
    console = virtual_machine.run(tmp_path, command, {**environment, "GRISTMILL": str(executable)}, seconds=1700)
    count = len(re.findall(r"^def test_", TESTS.read_text(), re.MULTILINE))
    assert re.search(rf"^{count} passed in ", console, re.MULTILINE), console
