"""The environment of notebooks, with Jupyter, beside that of the tests."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from harness import ROOT

HERE = Path(__file__).resolve().parent


def interpreter() -> Path:
    """Returns an interpreter with what notebooks import."""
    made = subprocess.run(
        [ROOT / "scripts/python-environment", ROOT / "tests/requirements-notebooks.txt"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(made.stdout.splitlines()[-1])


def environment(executable: Path, folder: Path) -> dict[str, str]:
    """Returns the environment of a kernel, in which `import gristmill` finds the package of this executable."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GRISTMILL", "JUPYTER"))}
    added = {name: value for name, value in os.environ.items() if name.startswith("GRISTMILL_TEST_")}
    return {
        **kept,
        **added,
        "HOME": str(folder),
        "GRISTMILL_HOME": str(folder / "home"),
        "PYTHONPATH": str(executable.parent / "python"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


def run_cells(executable: Path, folder: Path, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs cells in a kernel; `kernel_session.py` describes steps and answers."""
    ended = subprocess.run(
        [interpreter(), HERE / "kernel_session.py", folder],
        input=json.dumps(steps),
        env=environment(executable, folder),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    answers: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return answers
